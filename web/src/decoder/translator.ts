/** A page's model with its tokenizers. */
import { agreed, ofUnits, posteriors, unitsOf } from "./alignment";
import { confidenceOf, type StoredConfidence } from "./confidence";
import { LONGEST_TEXT, sentencesOf } from "./lines";
import { carry, escaped, parse, type Entities, type Tagged } from "./markup";
import { hasIds, PairMemory, sentenceKey, type StoredPair } from "./memory";
import { Network, type Settings, type Step } from "./network";
import { Refusal } from "./refusal";
import { check, choosing, forced, forcing, gainOf, normalised, NOTHING, opened, scored, type Chosen, type Hypothesis, type Opened, type Options, type Read, type SlotBits } from "./search";
import { restored, Slots, writtenOut, type Masked, type StoredSlots } from "./slots";
import { Line, usedSpans, type Terms } from "./terms";
import { checksum, readBundle, readTensors, unpacked } from "./tensors";
import { END, Tokenizer, UNKNOWN, type Encoded, type Span } from "./tokenizer";

export interface Translation {
  readonly source: string;
  readonly sourceTokens: readonly string[];
  readonly sourceIds: readonly number[];
  /** In HTML, if the source is. */
  readonly target: string;
  readonly targetTokens: string[];
  readonly ids: readonly number[];
  readonly score: number;
  readonly finished: boolean;
  /** Whether the model repeated itself and the translation is cut there. */
  readonly repeated: boolean;
  /** Words and marks of the source that no sentence had that the model learnt from. */
  readonly unknown: string[];
  /** Numbers, addresses and placeholders of the source that it lacks, and groups of digits that the source has in no form. */
  readonly lost: string[];
  readonly invented: string[];
  /** Source terms whose translation could not be used. */
  readonly unusedTerms: string[];
  /** The probability that it is right; null if the model does not say. */
  readonly confidence: number | null;
  /** Source and target without tags. */
  readonly texts: readonly [string, string];
  /** Opened steps, made on first use. */
  readonly steps: Opened[];
}

interface EncodedSource extends Encoded {
  /** The texts of its slots in a translation. */
  readonly slots: readonly string[];
  /** The translation of a text without letters; null: the model translates it. */
  readonly copy: string | null;
  readonly unknown: string[];
  /** Words outside the vocabulary of the stored translation. */
  readonly storedWords: readonly string[];
  /** Its stored pair, if there is one. */
  readonly stored: StoredPair | undefined;
}

const NO_SLOTS = new Slots();

export const DEFAULT: Options = { beam: 5, best: 1, chosen: NOTHING, terms: [] };

export class Translator {
  /** Cache of the last encoded sentence, for steering. */
  private last: { readonly ids: string; readonly read: Read } | null = null;
  private targetBits: Int32Array | null = null;

  constructor(
    readonly network: Network,
    readonly source: Tokenizer,
    readonly target: Tokenizer,
    readonly slots: Slots,
    readonly memory: PairMemory,
    readonly confidence: StoredConfidence | null,
    /** A checksum of the weights and tokenizers. */
    readonly checksum: string,
  ) {}

  /** Loads a model from its files by name. */
  static from(files: ReadonlyMap<string, Uint8Array>, plain = false): Translator {
    try {
      const text = (name: string): string => new TextDecoder().decode(files.get(name));
      const { settings, slots, confidence = null } = JSON.parse(text("settings.json")) as { settings: Settings; slots?: StoredSlots; confidence?: StoredConfidence };
      const network = new Network(settings, readTensors(files.get("model.safetensors")!), plain);
      const names = ["source.tokenizer.json", "target.tokenizer.json"];
      const [source, target] = names.map((name) => Tokenizer.from(text(name)));
      const sums = [...names, "model.safetensors"].map((name) => checksum(files.get(name)!).toString(36));
      return new Translator(network, source!, target!, new Slots(slots), PairMemory.from(files.get("memory.safetensors")!), confidence, sums.join(" "));
    } catch (error) {
      throw error instanceof Refusal ? error : new Refusal("damaged", String(error));
    }
  }

  /** Loads a model from the base64 in a page. */
  static async unpack(base64: string, plain = false): Promise<Translator> {
    const bytes = await unpacked(base64);
    let files;
    try {
      files = readBundle(bytes);
    } catch (error) {
      throw error instanceof Refusal ? error : new Refusal("damaged", String(error));
    }
    return Translator.from(files, plain);
  }

  /** Tokens of a sentence; throws a refusal if it cannot be read. */
  encode(sentence: string): EncodedSource {
    this.check(sentence);
    const stored = this.memory.find(sentence);
    const [source, target] = stored ? this.masked({ ...stored, source: sentence }) : this.slots.mask(sentence);
    const { ids, pieces, spans } = this.source.encode(source);
    const copy = this.slots.copies(source.text) ? restored(source.text, target.parts) : null;
    const storedWords = this.storedWords({ ids, pieces });
    return { ids, spans, pieces: pieces.map((piece) => restored(piece, source.parts)), slots: target.parts, copy, unknown: this.source.unknown(source), storedWords, stored };
  }

  /** The unknown words of the stored translation with the same source tokens; unknown words of both sources become the sentence's own. */
  private storedWords({ ids, pieces }: Pick<Encoded, "ids" | "pieces">): string[] {
    const pair = this.memory.states.byIds(ids);
    if (!pair?.targetIds.includes(UNKNOWN)) return [];
    const [source, target] = this.masked(pair);
    const words = unknownWords({ ids, pieces });
    const names = new Map(unknownWords(this.source.encode(source)).map((word, k) => [word, words[k]!]));
    return unknownWords(this.target.encode(target)).map((word) => names.get(word) ?? word);
  }

  /** Both texts of a pair, with the slots that both have. */
  private masked({ source, target, hasSlots }: Pick<StoredPair, "source" | "target" | "hasSlots">): [Masked, Masked] {
    return (hasSlots ? this.slots : NO_SLOTS).mask(source, target);
  }

  /**
   * Computes the pair of a correction. Throws a refusal of an empty text, and of a source without letters. Yields between steps.
   * @param earlier the pairs that it is stored after
   */
  *correcting(source: string, target: string, earlier = this.memory.pairs): Generator<unknown, StoredPair> {
    for (const text of [source, target]) this.check(text);
    const key = sentenceKey(source);
    const read = (hasSlots: boolean) => {
      const [read, written] = this.masked({ source, target, hasSlots });
      return { hasSlots, sourceIds: this.source.encode(read).ids, targetIds: this.target.encode(written).ids };
    };
    let pair = read(true);
    const old = earlier.find((other) => hasIds(other, pair.sourceIds));
    if (old && old.key !== key && old.targetIds.join() !== pair.targetIds.join()) pair = read(false); // equal but for numbers
    if (!pair.sourceIds.length || !pair.targetIds.length) throw new Refusal("correction-empty");
    if (this.slots.copies(this.slots.mask(source)[0].text)) throw new Refusal("correction-letters");
    const { sourceIds, targetIds, hasSlots } = pair;
    const keys: number[] = [];
    for (const { readout } of forcing(this.network, yield* this.reading(sourceIds), targetIds)) {
      keys.push(...this.memory.states.key(readout));
      yield;
    }
    return { key, source, target, sourceIds, targetIds, keys: Float32Array.from(keys), bias: this.memory.bias, hasSlots };
  }

  /** Stores a correction, which later translations follow, as `Translator.correct` of Python does; returns the pairs that it replaces. */
  correct(source: string, target: string): StoredPair[] {
    return this.memory.add(ended(this.correcting(source, target)));
  }

  private check(sentence: string): void {
    if ([...sentence].length > LONGEST_TEXT) throw new Refusal("too-long", String([...sentence].length));
    if (/\p{Surrogate}/u.test(sentence)) throw new Refusal("half-character");
  }

  /**
   * Translates token by token: yields functions that return the text so far; returns translations, best first. The
   * sentences of a plain text are translated one by one.
   * @param entities of a sentence in HTML; null: plain text
   */
  *translating(text: string, options: Options = DEFAULT, entities: Entities | null = null): Generator<() => string, Translation[]> {
    this.check(text);
    if (entities) return yield* this.marked(text, options, entities);
    if (!this.encode(text).ids.length) return [];
    const sentences = this.source.several || this.memory.find(text) ? [{ sentence: text, space: "" }] : sentencesOf(text);
    const groups: Translation[][] = [];
    let [before, steps, places] = ["", 0, 0];
    for (const { sentence, space } of sentences) {
      const going = this.plain(sentence, { ...options, chosen: within(options.chosen, steps, places) });
      const earlier = before;
      const group = yield* showing(going, (text) => () => earlier + text());
      groups.push(group);
      before += group[0]!.target + space;
      steps += group[0]!.steps.length;
      places += group[0]!.sourceTokens.length;
    }
    const terms = options.terms;
    if (groups.length === 1) return this.assessed(groups[0]!, terms);
    const most = Math.min(...groups.map(({ length }) => length));
    const spaces = sentences.map(({ space }) => space);
    return this.assessed(groups[0]!.slice(0, most).map((_, k) => joined(text, groups.map((group) => group[k]!), spaces)), terms);
  }

  /** Adds lost and invented numbers outside of used terms, and the confidence; of equal texts, the first one stays. */
  private assessed(all: readonly Translation[], terms: Terms): Translation[] {
    for (const translation of all) {
      const blank = (text: string, [start, end]: Span): string => text.slice(0, start) + "\n".repeat(end - start) + text.slice(end);
      const used = usedSpans(terms, translation.source, translation.target, this.target.forms);
      const texts = used.reduce<[string, string]>(([source, target], [read, written]) => [blank(source, read), blank(target, written)], [translation.source, translation.target]);
      const [lost, invented] = this.isStored(translation) ? [[], []] : this.slots.wrong(...texts);
      Object.assign(translation, { lost, invented });
      if (this.confidence) Object.assign(translation, { confidence: confidenceOf(this.confidence, translation) });
    }
    return terms.length ? all.filter(({ target }, k) => all.findIndex((translation) => translation.target === target) === k) : [...all];
  }

  private isStored({ source, target }: Translation): boolean {
    const stored = this.memory.find(source);
    return stored !== undefined && lineOf(stored) === target;
  }

  /** Translations with terms, best first. */
  private *using(all: readonly Translation[], { terms, chosen }: Options): Generator<() => string, Translation[]> {
    const results: Translation[] = [];
    for (const translation of all) {
      const { source, target } = translation;
      const line = new Line(terms, source, target, this.target, this.isStored(translation));
      while (!line.isDone) {
        const now = line.target;
        const both = [yield* this.weighing(source, now, false), yield* this.weighing(source, now, false, true)];
        const choice = line.useNext(both[0]!.map((row, i) => row.map((weight, j) => (weight + both[1]![i]![j]!) / 2)));
        for (let step = choice.next(); !step.done; ) {
          const scores: number[] = [];
          for (const candidate of step.value) scores.push((yield* this.written(source, candidate)).total);
          step = choice.next(scores.indexOf(Math.max(...scores)));
        }
      }
      const again = line.target === target ? translation : yield* this.rewritten(source, line.target, chosen, translation);
      results.push({ ...again, unusedTerms: line.unused });
    }
    const rank = (translation: Translation): number[] => [
      Number(translation.repeated), Number(!translation.finished), Number(this.slots.wrong(translation.source, translation.target)[0].length > 0), -normalised(translation.score, translation.targetTokens.length + 1, this.network.penalty),
    ];
    const ranks = new Map(results.map((translation) => [translation, rank(translation)]));
    return results.sort((one, other) => ranks.get(one)!.map((value, k) => value - ranks.get(other)![k]!).find(Boolean) ?? 0);
  }

  /**
   * The tokens of a source and of a given target, its steps and its log-probability.
   * @param pins of another target with the tokens `before`; they stay up to the first step with another token
   */
  private *written(source: string, target: string, pins: Chosen["pins"] = NOTHING.pins, before: readonly number[] = []) {
    const masks = this.slots.mask(source, target);
    const [read, { ids, pieces }] = [this.source.encode(masks[0]), this.target.encode(masks[1])];
    const changed = ids.findIndex((id, step) => id !== before[step]);
    if (changed >= 0) pins = new Map([...pins].filter(([step]) => step <= changed));
    const steps = yield* showing(forced(this.network, yield* this.reading(read.ids), ids, pins), () => () => target);
    const total = scored(this.network, this.memory.states, steps).reduce((sum, scores, k) => sum + gainOf(this.network, scores, ids[k] ?? END), 0);
    return { read, masks, ids, pieces, steps, total };
  }

  /** A translation with another target, without the shares of stored pairs. */
  private *rewritten(source: string, target: string, { pins }: Chosen, { ids: before, finished, repeated, unknown }: Translation): Generator<() => string, Translation> {
    const { read, masks: [{ parts }, { parts: slots }], ids, pieces, steps, total } = yield* this.written(source, target, pins, before);
    const encoded = { ...read, slots, copy: null, unknown, storedWords: [], stored: undefined, pieces: read.pieces.map((piece) => restored(piece, parts)) };
    const translation = this.translation(source, encoded, { ids, total, finished, repeated, steps });
    const withoutSources = translation.steps.map((step) => Object.create(step, { sources: { value: [] } }) as Opened);
    return { ...translation, steps: withoutSources, target, targetTokens: pieces.map((piece) => restored(piece, slots)), texts: [source, target] };
  }

  private *marked(sentence: string, options: Options, entities: Entities): Generator<() => string, Translation[]> {
    const { text, root } = parse(sentence, entities);
    if (root.inside.length && !this.network.attends) throw new Refusal("tag-unattended");
    const isBlank = !this.encode(text).ids.length;
    const best = this.assessed(yield* this.plain(text, options), options.terms);
    for (const translation of best) Object.assign(translation, { source: sentence, target: isBlank ? sentence : yield* this.tagging(root, text, translation.target, options.terms) });
    return best;
  }

  /** Translations of one sentence: at least one, which is empty if the sentence has no tokens. */
  private *plain(text: string, options: Options): Generator<() => string, Translation[]> {
    const encoded = this.encode(text);
    if (!encoded.ids.length || encoded.copy !== null) {
      const nothing = this.translation(text, { ...encoded, ids: [], pieces: [], unknown: [] }, { ids: [], total: 0, finished: true, repeated: false, steps: [] });
      return [{ ...nothing, target: encoded.copy ?? "", texts: [text, encoded.copy ?? ""] }];
    }
    check(this.network, encoded.ids, options.chosen);
    const read = yield* this.reading(encoded.ids);
    const [readsWord, beginsWord] = [this.source, this.target].map((tokenizer) => (id: number) => tokenizer.beginsWord(id));
    const search = choosing(this.network, this.memory.states, encoded.ids, read, options, this.slotBits(encoded.ids), readsWord!, beginsWord!);
    const hypotheses = yield* showing(search, ({ ids, steps }) => () => writtenOut(this.target.decode(ids, copiedWords(encoded, ids, steps)), encoded.slots));
    const all = hypotheses.map((hypothesis) => this.translation(text, encoded, hypothesis));
    return options.terms.length && this.network.attends ? yield* this.using(all, options) : all;
  }

  private slotBits(source: readonly number[]): SlotBits {
    const bitOf = (slot: number): number => (slot < 0 ? 0 : 1 << slot);
    const targets = (this.targetBits ??= Int32Array.from({ length: this.network.vocabulary }, (_, id) => bitOf(this.target.slot(id))));
    const known = targets.reduce((bits, bit) => bits | bit, 0);
    return { source: source.reduce((bits, id) => bits | (bitOf(this.source.slot(id)) & known), 0), targets };
  }

  private *tagging(root: Tagged, source: string, target: string, terms: Terms): Generator<() => string, string> {
    if (!root.inside.length) return escaped(target);
    const [weights, read, written] = [yield* this.weighing(source, target), unitsOf(source), unitsOf(target)];
    for (const used of usedSpans(terms, source, target, this.target.forms)) {
      // Attention does not know where words that the model did not choose come from.
      const [columns, rows] = [read, written].map(({ spans }, side) => [...spans.keys()].filter((k) => spans[k]![0] < used[side]![1] && used[side]![0] < spans[k]![1]));
      for (const row of rows!) weights[row] = read.spans.map((_, k) => (columns!.includes(k) ? 1 / columns!.length : 0));
    }
    return carry(root, target, agreed(weights), read, written);
  }

  /** From which unit of a text each unit of its translation comes: a row for each of the translation. */
  *weighing(source: string, target: string, wholeSpans = true, byAttention = false): Generator<() => string, number[][]> {
    const masked = this.slots.mask(source, target);
    const [read, written] = [this.source.encode(masked[0]), this.target.encode(masked[1])];
    const memory = yield* this.reading(read.ids);
    const going = byAttention ? forced(this.network, memory, written.ids) : posteriors(this.network, written.ids, memory);
    const rows = yield* showing<void, readonly (Float64Array | Step)[]>(going, () => () => target);
    const weights = rows.map((row) => ("weights" in row ? row.weights : row));
    return ofUnits(weights, unitsOf(source, wholeSpans), read.spans, unitsOf(target, wholeSpans), written.spans);
  }

  private *reading(ids: readonly number[]): Generator<() => string, Read> {
    const key = ids.join();
    if (this.last?.ids === key) return this.last.read;
    const read = yield* showing(this.network.reading(ids), () => () => "");
    this.last = { ids: key, read };
    return read;
  }

  /** Translates without pauses. */
  translate(sentence: string, options: Options = DEFAULT, entities: Entities | null = null): Translation[] {
    return ended(this.translating(sentence, options, entities));
  }

  private translation(text: string, encoded: EncodedSource, hypothesis: Hypothesis): Translation {
    const { network, target, memory: { states } } = this;
    // A slot that the source lacks gives nothing.
    const written = [...hypothesis.steps.keys()].filter((step) => step >= hypothesis.ids.length || target.slot(hypothesis.ids[step]!) < encoded.slots.length);
    const textSteps = written.map((step) => hypothesis.steps[step]!);
    const ids = written.flatMap((step) => hypothesis.ids[step] ?? []);
    const copied = copiedWords(encoded, ids, textSteps);
    const exact = encoded.stored?.targetIds.join() === ids.join() ? encoded.stored : null;
    const targetText = exact ? lineOf(exact) : writtenOut(target.decode(ids, copied), encoded.slots);
    const labels = exact ? this.target.encode(this.masked({ ...exact, source: text })[1]).pieces : target.labels(ids, copied);
    let openedSteps: Opened[] | undefined;
    return {
      source: text,
      sourceTokens: encoded.pieces,
      sourceIds: encoded.ids,
      target: targetText,
      targetTokens: labels.map((label) => restored(label, encoded.slots)),
      ids,
      score: hypothesis.total,
      finished: hypothesis.finished,
      repeated: hypothesis.repeated,
      unknown: exact ? [] : encoded.unknown, lost: [], invented: [], unusedTerms: [], confidence: null, texts: [text, targetText],
      get steps() {
        return (openedSteps ??= opened(network, states, ids, textSteps, encoded.slots));
      },
    };
  }
}

/** A reader's changes of the sentence that begins at a step and a position. */
function within({ tokens, pins }: Chosen, step: number, position: number): Chosen {
  const rest = tokens.slice(step);
  const ended = step + (rest.indexOf(END) + 1 || Infinity);
  const sentencePins = [...pins].filter(([pinnedStep]) => pinnedStep >= step && pinnedStep < ended);
  return {
    tokens: tokens.slice(step, ended),
    pins: new Map(sentencePins.map(([pinnedStep, weights]) => [pinnedStep - step, new Map([...weights].map(([from, weight]) => [from - position, weight]))])),
  };
}

/** The translation of a line, of those of its sentences: each but the last has its end as a step, a token without a text. */
function joined(source: string, sentences: readonly Translation[], spaces: readonly string[]): Translation {
  const [all, last] = [sentences.reduce((sum, sentence) => sum + sentence.sourceTokens.length, 0), sentences.length - 1];
  let position = 0;
  const steps = sentences.flatMap((sentence) => {
    const first = position;
    position += sentence.sourceTokens.length;
    const widened = (values: Float64Array, otherwise: number): Float64Array => {
      const wide = new Float64Array(all).fill(otherwise);
      wide.set(values, first);
      return wide;
    };
    // Computed when read: of all steps together, they are as large as the square of the text.
    return sentence.steps.map((step): Opened => Object.create(step, {
      weights: { get: () => widened(step.weights, 0) }, scores: { get: () => widened(step.scores, -Infinity) },
    }) as Opened);
  });
  const target = sentences.map((sentence, k) => sentence.target + spaces[k]!).join("");
  const ending = <T>(values: readonly T[], sentence: Translation, k: number, end: T): T[] => (k < last && sentence.steps.length > sentence.ids.length ? [...values, end] : [...values]);
  return {
    source, steps, lost: [], invented: [], confidence: null, unusedTerms: sentences.flatMap((sentence) => sentence.unusedTerms), texts: [source, target],
    sourceTokens: sentences.flatMap((sentence) => sentence.sourceTokens), sourceIds: sentences.flatMap((sentence) => sentence.sourceIds),
    target,
    targetTokens: sentences.flatMap((sentence, k) => ending(sentence.targetTokens, sentence, k, "")), ids: sentences.flatMap((sentence, k) => ending(sentence.ids, sentence, k, END)),
    score: sentences.reduce((sum, { score }) => sum + score, 0),
    finished: sentences.every(({ finished }) => finished), repeated: sentences.some(({ repeated }) => repeated),
    unknown: sentences.flatMap((sentence) => sentence.unknown),
  };
}

/** What a generator returns, without pauses. */
function ended<T>(going: Generator<unknown, T>): T {
  for (;;) {
    const { done, value } = going.next();
    if (done) return value;
  }
}

/** Runs a generator with a text for each of its pauses. */
function* showing<P, T>(going: Generator<P, T>, text: (pause: P) => () => string): Generator<() => string, T> {
  let result = going.next();
  for (; !result.done; result = going.next()) yield text(result.value);
  return result.value;
}

const unknownWords = ({ ids, pieces }: Pick<Encoded, "ids" | "pieces">): string[] => pieces.filter((_, k) => ids[k] === UNKNOWN);

/** The translation of a pair as one line. */
const lineOf = ({ target }: StoredPair): string => target.replace(/[\t-\r]+/g, " ").trim();

/** The words that unknown tokens are written as; null for other tokens. */
function copiedWords(encoded: EncodedSource, ids: readonly number[], steps: readonly Step[]): (string | null)[] {
  const words = encoded.storedWords.values();
  return ids.map((id, index) => (id === UNKNOWN ? words.next().value ?? copiedWord(encoded, steps[index]!.weights) : null));
}

/** The unknown source word with the largest weight. */
function copiedWord(encoded: Encoded, weights: Float64Array): string | null {
  let best = -1;
  encoded.ids.forEach((id, position) => {
    if (id === UNKNOWN && (best < 0 || weights[position]! > weights[best]!)) best = position;
  });
  return best < 0 ? null : encoded.pieces[best]!;
}

export { NOTHING, type Chosen, type Options };
