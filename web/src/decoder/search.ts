/** Beam search by the rules of `dikkat.translation.decoding.compiled.rules`, with forced words and pinned weights. */
import type { PairShare, States } from "./memory";
import type { Memory, Network, Pins, State, Step } from "./network";
import { Refusal } from "./refusal";
import type { Terms } from "./terms";
import { BEGIN, END, PAD, UNKNOWN } from "./tokenizer";

export interface Options {
  readonly beam: number;
  readonly best: number;
  /** Forced words and pinned weights. */
  readonly chosen: Chosen;
  readonly terms: Terms;
}

export interface Chosen {
  /** First tokens of the translation; all of them if the last is the end. */
  readonly tokens: readonly number[];
  /** Pinned weights by step and source position. */
  readonly pins: ReadonlyMap<number, Pins>;
}

export const NOTHING: Chosen = { tokens: [], pins: new Map() };

export interface Hypothesis {
  readonly ids: readonly number[];
  /** Log-probability of the tokens, and of the end if finished. */
  readonly total: number;
  readonly finished: boolean;
  /** Whether a sequence of tokens repeated and the hypothesis is cut after its first occurrence. */
  readonly repeated: boolean;
  /** Decoder steps of the tokens, and of the end if finished or repeated. */
  readonly steps: readonly Step[];
}

/** Encoded sentence: the decoder's memory and its initial state. */
export interface Read {
  readonly memory: Memory;
  readonly state: State;
}

/** Slots as bits of a number: those of the source, and that of each target token or 0. */
export interface SlotBits {
  readonly source: number;
  readonly targets: Int32Array;
}

/** Length limit of a translation. */
const limitOf = (source: number): number => Math.min(2 * source + 10, source + 50);

/** Length-normalised log-probability: Wu et al. (2016), section 7. */
export const normalised = (total: number, length: number, penalty: number): number =>
  total / ((5 + length) / 6) ** penalty;

/** First tokens of a hypothesis, and their decoder steps. */
interface Prefix {
  readonly ids: readonly number[];
  readonly steps: readonly Step[];
}

interface Place extends Prefix {
  readonly ids: readonly number[];
  readonly total: number;
  readonly missing: number;
  readonly state: State;
}

interface Candidate {
  readonly total: number;
  readonly missing: number;
  readonly token: number;
  readonly from: Place;
  readonly step: Step;
}

interface Ended {
  readonly hypothesis: Hypothesis;
  readonly score: number;
}

interface Continuation {
  readonly token: number;
  /** Log-probability. */
  readonly gain: number;
}

/** Log-probabilities of the likeliest tokens, in descending order; ties by token number. */
function likeliest(network: Network, scores: Float32Array, count: number, allowed: (token: number) => boolean): Continuation[] {
  const continuations: Continuation[] = [];
  let least = -Infinity;
  for (let token = 0; token < scores.length; token++) {
    const score = scores[token]!;
    if (!(score > least) || !allowed(token)) continue;
    let k = continuations.length;
    while (k > 0 && continuations[k - 1]!.gain < score) k--;
    continuations.splice(k, 0, { token, gain: score });
    if (continuations.length > count) continuations.pop();
    if (continuations.length === count) least = continuations[count - 1]!.gain;
  }
  const sum = network.arithmetic.logSum(scores);
  return continuations.map(({ token, gain }) => ({ token, gain: gain - sum }));
}

/** Scores of all tokens after each step, merged with those of stored states. */
export const scored = (network: Network, states: States, steps: readonly Step[]): Float32Array[] =>
  network.tokenScores(steps).map((scores, row) => states.mix(network.arithmetic, scores, steps[row]!.readout));

/** Log-probability of a token. */
export const gainOf = (network: Network, scores: Float32Array, token: number): number => scores[token]! - network.arithmetic.logSum(scores);

const byTotal = (one: Candidate, other: Candidate): number => other.total - one.total;

/** The best candidates; with slots, first of all the best one with each number of missing slots. */
function chosenOf(candidates: Candidate[], beam: number): Candidate[] {
  const sorted = candidates.sort(byTotal), best = new Map<number, Candidate>();
  for (const candidate of sorted) {
    const count = countOf(candidate.missing);
    if (!best.has(count)) best.set(count, candidate);
  }
  const reserved = [...best].sort(([one], [other]) => one - other).map(([, candidate]) => candidate).sort(byTotal).slice(0, beam);
  const rest = sorted.filter((candidate) => !reserved.includes(candidate)).slice(0, beam - reserved.length);
  return [...reserved, ...rest].sort(byTotal);
}

function countOf(bits: number): number {
  let count = 0;
  for (let remaining = bits; remaining; remaining &= remaining - 1) count++;
  return count;
}

/**
 * Beam search over an encoded sentence: yields the best prefix after each step, and returns hypotheses best first,
 * those that lack slots behind the others, and those cut by the length limit last.
 */
export function* searching(
  network: Network, states: States, source: readonly number[], { memory, state: first }: Read, options: Options, slots: SlotBits,
): Generator<Prefix, Hypothesis[]> {
  const { chosen } = options, { penalty } = network;
  const limit = limitOf(source.length);
  const copies = (network.attends && source.includes(UNKNOWN)) || (states.byIds(source)?.targetIds.includes(UNKNOWN) ?? false);
  const onlySlots = slots.targets.every((bit, token) => token <= END || bit !== 0);
  let living: Place[] = [{ ids: [], total: 0, missing: slots.source, state: first, steps: [] }];
  let places = options.beam;
  const ended: Ended[] = [], lacking: Ended[] = [];
  const best: number[] = []; // scores of the finished with all slots, in descending order
  for (let step = 0; living.length; step++) {
    const forced = chosen.tokens[step];
    const pins = chosen.pins.get(step) ?? null;
    const candidates: Candidate[] = [];
    const last = living.map(({ ids }) => ids.at(-1) ?? BEGIN);
    const steps = network.steps(last, memory, living.map(({ state }) => state), pins);
    const scores = scored(network, states, steps);
    for (const [row, from] of living.entries()) {
      const allowed = (token: number): boolean => {
        if (token > END) return !slots.targets[token] || (slots.targets[token]! & from.missing) !== 0;
        return (token === UNKNOWN && copies) || (token === END && (step > 0 || onlySlots));
      };
      const continuations = forced === undefined
        ? likeliest(network, scores[row]!, options.beam, allowed)
        : [{ token: forced, gain: gainOf(network, scores[row]!, forced) }];
      if (!continuations.length || !Number.isFinite(continuations[0]!.gain)) throw new Refusal("not-numbers");
      for (const { token, gain } of continuations) {
        const total = from.total + gain, missing = from.missing & ~slots.targets[token]!;
        if (total > -Infinity) candidates.push({ total, missing, token, from, step: steps[row]! });
      }
    }
    const going: Place[] = [];
    const length = step + 1;
    let used = 0;
    for (const { total, missing, token, from, step: done } of chosenOf(candidates, options.beam).slice(0, places)) {
      const steps = [...from.steps, done];
      if (token === END) {
        const score = normalised(total, length, penalty);
        (missing ? lacking : ended).push({ hypothesis: { ids: from.ids, total, finished: true, repeated: false, steps }, score });
        if (missing) continue; // ends no search
        used++;
        best.push(score);
        best.sort((a, b) => b - a);
      } else going.push({ ids: [...from.ids, token], total, missing, state: done.state, steps });
    }
    places -= used;
    if (length === limit) {
      // Hypotheses cut by the limit rank behind finished ones.
      const cut = going.map(({ ids, total, steps }) => ({
        hypothesis: { ids, total, finished: false, repeated: false, steps }, score: normalised(total, length, penalty),
      }));
      return [...ranked(ended), ...ranked(lacking), ...ranked(cut)].slice(0, options.best);
    }
    // Log-probabilities only fall, so the best living total bounds what can still finish.
    const hope = going.length ? normalised(going[0]!.total, limit, penalty) : -Infinity;
    if ((best[options.best - 1] ?? -Infinity) >= hope) break;
    living = going;
    if (living.length) yield living[0]!;
  }
  return [...ranked(ended), ...ranked(lacking)].slice(0, options.best);
}

/** Hypotheses by descending score; ties keep the order in which they finished. */
const ranked = (endings: Ended[]): Hypothesis[] =>
  [...endings].sort((a, b) => b.score - a.score).map(({ hypothesis }) => hypothesis);

const LONGEST = 30; // tokens of a sequence that repeats itself

/**
 * How often a sequence of tokens directly follows itself, and the end of the first one that does so more than `allowed` times.
 * Only sequences with the beginning of a word count.
 */
function repetition(
  ids: readonly number[], beginsWord: (id: number) => boolean, allowed = Infinity,
): { times: number; end: number } {
  let [times, start, end] = [1, Infinity, ids.length];
  for (let size = 1; size <= LONGEST && 3 * size <= ids.length; size++) {
    for (let at = size, equal = 0; at <= ids.length; at++) {
      if (at < ids.length && ids[at] === ids[at - size]) equal++;
      else {
        const [repeats, first] = [1 + Math.floor(equal / size), at - size - equal];
        if (repeats > 1 && ids.slice(first, first + size).some(beginsWord)) {
          times = Math.max(times, repeats);
          if (repeats > allowed && first < start) [start, end] = [first, first + size];
        }
        equal = 0;
      }
    }
  }
  return { times, end };
}

/**
 * The hypotheses of `searching`. If one of them repeats itself (more often than the source and the reader's words do)
 * or has no end, the whole beam is searched and such hypotheses rank last.
 */
export function* choosing(
  network: Network, states: States, source: readonly number[], read: Read, options: Options, slots: SlotBits,
  readsWord: (id: number) => boolean, beginsWord: (id: number) => boolean,
): Generator<Prefix, Hypothesis[]> {
  const allowed = Math.max(2, repetition(source, readsWord).times, repetition(options.chosen.tokens, beginsWord).times);
  const stored = states.byIds(source)?.targetIds.join();
  const cut = (hypothesis: Hypothesis): Hypothesis => {
    const end = hypothesis.ids.join() === stored ? hypothesis.ids.length : repetition(hypothesis.ids, beginsWord, allowed).end;
    const [ids, steps] = [hypothesis.ids.slice(0, end), hypothesis.steps.slice(0, end + 1)];
    return { ...hypothesis, ids, steps, repeated: end < hypothesis.ids.length };
  };
  const faults = (hypothesis: Hypothesis): number => 2 * Number(repetition(hypothesis.ids, beginsWord).times > allowed && hypothesis.ids.join() !== stored) + Number(!hypothesis.finished);
  let hypotheses = yield* searching(network, states, source, read, options, slots);
  if (options.best < options.beam && hypotheses.some(faults)) hypotheses = yield* searching(network, states, source, read, { ...options, best: options.beam }, slots);
  return [...hypotheses].sort((one, other) => faults(one) - faults(other)).slice(0, options.best).map(cut);
}

/** Yields the decoder steps of given tokens, and of the end. */
export function* forcing(network: Network, { memory, state }: Read, ids: readonly number[], pins: Chosen["pins"] = NOTHING.pins): Generator<Step> {
  for (let k = 0; k <= ids.length; k++) {
    const [step] = network.steps([ids[k - 1] ?? BEGIN], memory, [state], pins.get(k) ?? null);
    yield step!;
    state = step!.state;
  }
}

/** All steps of `forcing`. Yields between them. */
export function* forced(...request: Parameters<typeof forcing>): Generator<void, Step[]> {
  const steps: Step[] = [];
  for (const step of forcing(...request)) {
    steps.push(step);
    yield;
  }
  return steps;
}

/** Throws a refusal for forced words or pins that cannot be. */
export function check(network: Network, source: readonly number[], { tokens, pins }: Chosen): void {
  const limit = limitOf(source.length);
  if (tokens.length >= limit) throw new Refusal("step-place", String(tokens.length));
  tokens.forEach((token, step) => {
    const last = token === END && step === tokens.length - 1 && step > 0;
    const isToken = Number.isInteger(token) && token >= 0 && token < network.vocabulary;
    if (!isToken || token === PAD || token === BEGIN || (token === END && !last)) {
      throw new Refusal("token-place", String(token));
    }
  });
  for (const step of pins.keys()) if (step >= limit || step < 0) throw new Refusal("step-place", String(step + 1));
}

/** A decoder step with its token and the likeliest alternatives. */
export interface Opened extends Step {
  readonly token: number;
  /** The texts of the sentence's slots. */
  readonly slots: readonly string[];
  readonly gain: number;
  readonly likely: Continuation[];
  /** The stored pairs that took part in the token's probability. */
  readonly sources: PairShare[];
}

/** Opened steps of a translation; their alternatives are computed on first use. */
export function opened(network: Network, states: States, ids: readonly number[], steps: readonly Step[], slots: readonly string[], count = 8): Opened[] {
  return steps.map((step, index) => {
    const token = ids[index] ?? END;
    let known: { gain: number; likely: Continuation[] } | undefined;
    const looked = (): { gain: number; likely: Continuation[] } => {
      const [scores] = scored(network, states, [step]);
      const likely = likeliest(network, scores!, count, (id) => id > END || (id === END && index > 0));
      return { gain: gainOf(network, scores!, token), likely };
    };
    return {
      ...step, token, slots,
      get gain() {
        return (known ??= looked()).gain;
      },
      get likely() {
        return (known ??= looked()).likely;
      },
      get sources() {
        return states.sources(step.readout);
      },
    };
  });
}
