/** Beam search as `dikkat.cpu.search` does it, with words and weights that a reader has chosen; and a search's steps. */
import type { Memory, Network, Pins, State, Step } from "./network";
import { Refusal } from "./refusal";
import { BEGIN, END, PAD, UNKNOWN } from "./tokenizer";

export interface Options {
  readonly beam: number;
  readonly best: number;
  readonly penalty: number;
  /** What a reader has chosen; the search goes on from there. */
  readonly chosen: Chosen;
}

export interface Chosen {
  /** The first tokens; with the end as the last of them, all. */
  readonly tokens: readonly number[];
  /** Weights by step and place of the source. */
  readonly pins: ReadonlyMap<number, Pins>;
}

export const NOTHING: Chosen = { tokens: [], pins: new Map() };

export interface Hypothesis {
  readonly ids: number[];
  /** Log-probability of the tokens and, where it is finished, the end. */
  readonly total: number;
  readonly finished: boolean;
}

/** What a search found, best first, and what its steps begin with. */
export interface Found {
  readonly memory: Memory;
  readonly first: State;
  readonly hypotheses: Hypothesis[];
}

/** Most target tokens for a source of so many. */
export const limitOf = (source: number): number => Math.min(2 * source + 10, source + 50);

/** What ended hypotheses compete by: Wu et al. (2016), section 7. */
export const normalised = (total: number, length: number, penalty: number): number =>
  total / ((5 + length) / 6) ** penalty;

interface Place {
  readonly ids: number[];
  readonly total: number;
  readonly state: State;
}

interface Candidate {
  readonly total: number;
  readonly token: number;
  readonly from: Place;
  readonly state: State;
}

/** The greatest scores of a row less its log-sum-exp, of equal ones the lowest token first. */
export function likeliest(
  scores: Float32Array, count: number, allowed: (token: number) => boolean,
): { token: number; gain: number }[] {
  const found: { token: number; gain: number }[] = [];
  let most = -Infinity;
  let least = -Infinity;
  for (let token = 0; token < scores.length; token++) {
    const score = scores[token]!;
    if (score > most) most = score;
    if (!(score > least) || (token <= END && !allowed(token))) continue;
    let k = found.length;
    while (k > 0 && found[k - 1]!.gain < score) k--;
    found.splice(k, 0, { token, gain: score });
    if (found.length > count) found.pop();
    if (found.length === count) least = found[count - 1]!.gain;
  }
  const sum = logSum(scores, most);
  return found.map(({ token, gain }) => ({ token, gain: gain - sum }));
}

function logSum(scores: Float32Array, most: number): number {
  let sum = 0;
  for (let i = 0; i < scores.length; i++) sum += Math.exp(scores[i]! - most);
  return most + Math.log(sum);
}

function gainOf(scores: Float32Array, token: number): number {
  let most = -Infinity;
  for (let i = 0; i < scores.length; i++) most = Math.max(most, scores[i]!);
  return scores[token]! - logSum(scores, most);
}

/**
 * Search, and yield the best beginning so far after each step (and nothing yet while the sentence is being read).
 * What is returned comes best first: finished ones, then those that the limit cut.
 */
export function* searching(
  network: Network, source: readonly number[], options: Options,
): Generator<readonly number[], Found> {
  const { chosen, penalty } = options;
  check(network, source, chosen);
  const reading = network.reading(source);
  let read = reading.next();
  while (!read.done) {
    yield [];
    read = reading.next();
  }
  const { memory, state: first } = read.value;
  const limit = limitOf(source.length);
  const copies = network.attends && source.includes(UNKNOWN);
  let living: Place[] = [{ ids: [], total: 0, state: first }];
  let places = options.beam;
  const ended: { hypothesis: Hypothesis; score: number }[] = [];
  const best: number[] = []; // scores of the ended, as many as are wanted
  for (let step = 0; living.length; step++) {
    const forced = chosen.tokens[step];
    const pins = chosen.pins.get(step) ?? null;
    const candidates: Candidate[] = [];
    for (const from of living) {
      const { state, readout } = network.step(from.ids.at(-1) ?? BEGIN, memory, from.state, pins);
      const scores = network.tokenScores(readout);
      const found = forced === undefined
        ? likeliest(scores, options.beam, (token) => (token === UNKNOWN && copies) || (token === END && step > 0))
        : [{ token: forced, gain: gainOf(scores, forced) }];
      if (!found.length || !Number.isFinite(found[0]!.gain)) throw new Refusal("not-numbers");
      for (const { token, gain } of found) {
        const total = from.total + gain;
        if (candidates.length === options.beam && !(total > candidates[options.beam - 1]!.total)) break;
        let k = candidates.length;
        while (k > 0 && candidates[k - 1]!.total < total) k--;
        candidates.splice(k, 0, { total, token, from, state });
        if (candidates.length > options.beam) candidates.pop();
      }
    }
    const going: Place[] = [];
    const length = step + 1;
    let used = 0;
    for (const { total, token, from, state } of candidates.slice(0, places)) {
      if (token === END) {
        used++;
        const score = normalised(total, length, penalty);
        ended.push({ hypothesis: { ids: from.ids, total, finished: true }, score });
        best.push(score);
        best.sort((a, b) => b - a);
      } else going.push({ ids: [...from.ids, token], total, state });
    }
    places -= used;
    if (length === limit) {
      // Those that the limit cuts stand behind all that are finished.
      const cut = going.map(({ ids, total }) => ({
        hypothesis: { ids, total, finished: false }, score: normalised(total, length, penalty),
      }));
      return { memory, first, hypotheses: [...ranked(ended), ...ranked(cut)].slice(0, options.best) };
    }
    // A log-probability only falls: could one that goes on still become one of the best?
    const hope = going.length ? normalised(going[0]!.total, limit, penalty) : -Infinity;
    if ((best[options.best - 1] ?? -Infinity) >= hope) break;
    living = going;
    if (living.length) yield living[0]!.ids;
  }
  return { memory, first, hypotheses: ranked(ended).slice(0, options.best) };
}

/** The best first; of equal ones the one that was out first. */
const ranked = (found: { hypothesis: Hypothesis; score: number }[]): Hypothesis[] =>
  [...found].sort((a, b) => b.score - a.score).map(({ hypothesis }) => hypothesis);

function check(network: Network, source: readonly number[], { tokens, pins }: Chosen): void {
  const limit = limitOf(source.length);
  if (tokens.length >= limit) throw new Refusal("step-place", String(tokens.length));
  tokens.forEach((token, step) => {
    const last = token === END && step === tokens.length - 1 && step > 0;
    const whole = Number.isInteger(token) && token >= 0 && token < network.vocabulary;
    if (!whole || token === PAD || token === BEGIN || (token === END && !last)) {
      throw new Refusal("token-place", String(token));
    }
  });
  for (const step of pins.keys()) if (step >= limit || step < 0) throw new Refusal("step-place", String(step + 1));
}

/** A step opened up: what it did, and what it could have written. */
export interface Opened extends Step {
  readonly token: number;
  readonly gain: number;
  readonly likely: { token: number; gain: number }[];
}

/** Everything that the steps of a hypothesis did, its end's included. */
export function opened(
  network: Network, memory: Memory, first: State, found: Hypothesis, pins: ReadonlyMap<number, Pins>, count = 8,
): Opened[] {
  let state = first;
  let before = BEGIN;
  const written = found.finished ? [...found.ids, END] : found.ids;
  return written.map((token, index) => {
    const step = network.step(before, memory, state, pins.get(index) ?? null);
    const scores = network.tokenScores(step.readout);
    const likely = likeliest(scores, count, (each) => each === END && index > 0);
    ({ state } = step);
    before = token;
    return { ...step, token, gain: gainOf(scores, token), likely };
  });
}
