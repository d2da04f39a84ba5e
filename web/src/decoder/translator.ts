/** A page's model with its tokenizers. */
import { agreed, ofUnits, posteriors, unitsOf } from "./alignment";
import { carry, escaped, parse, type Entities, type Tagged } from "./markup";
import { Network, type Settings } from "./network";
import { Refusal } from "./refusal";
import { check, NOTHING, opened, searching, type Chosen, type Hypothesis, type Opened, type Options, type Read } from "./search";
import { readBundle, readTensors, unpacked } from "./tensors";
import { Tokenizer, UNKNOWN, type Encoded } from "./tokenizer";

export const LONGEST = 10_000;

export interface Translation {
  readonly source: string;
  readonly sourceTokens: string[];
  readonly sourceIds: number[];
  /** In HTML, if the source is. */
  readonly target: string;
  readonly targetTokens: string[];
  readonly ids: number[];
  readonly score: number;
  readonly finished: boolean;
  /** Words and marks of the source that no sentence had that the model learnt from. */
  readonly unknown: string[];
  /** Opened steps, made on first use. */
  readonly steps: Opened[];
}

export const DEFAULT: Options = { beam: 5, best: 1, penalty: 1, chosen: NOTHING };

export class Translator {
  /** Cache of the last encoded sentence, for steering. */
  private last: { readonly ids: string; readonly read: Read } | null = null;

  constructor(
    readonly network: Network,
    readonly source: Tokenizer,
    readonly target: Tokenizer,
  ) {}

  /** Loads a model from its files by name. */
  static from(files: ReadonlyMap<string, Uint8Array>, plain = false): Translator {
    try {
      const text = (name: string): string => new TextDecoder().decode(files.get(name));
      const { settings } = JSON.parse(text("settings.json")) as { settings: Settings };
      const network = new Network(settings, readTensors(files.get("model.safetensors")!), plain);
      const [source, target] = ["source", "target"].map((side) => Tokenizer.from(text(`${side}.tokenizer.json`)));
      return new Translator(network, source!, target!);
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
  encode(sentence: string): Encoded {
    this.check(sentence);
    return this.source.encode(sentence);
  }

  private check(sentence: string): void {
    if ([...sentence].length > LONGEST) throw new Refusal("too-long", String([...sentence].length));
    if (/\p{Surrogate}/u.test(sentence)) throw new Refusal("half-character");
  }

  /**
   * Translates token by token: yields functions that return the text so far; returns translations, best first.
   * @param entities of a sentence in HTML; null: plain text
   */
  *translating(sentence: string, options: Options = DEFAULT, entities: Entities | null = null): Generator<() => string, Translation[]> {
    this.check(sentence);
    const { text, root } = entities ? parse(sentence, entities) : { text: sentence, root: null };
    if (root?.inside.length && !this.network.attends) throw new Refusal("tag-unattended");
    const encoded = this.encode(text);
    if (!encoded.ids.length) return [];
    check(this.network, encoded.ids, options.chosen);
    const read = yield* this.reading(encoded.ids);
    const search = searching(this.network, encoded.ids, read, options);
    let found = search.next();
    while (!found.done) {
      const ids = found.value;
      yield () => this.target.decode(ids);
      found = search.next();
    }
    const best = found.value.map((each) => this.translation(sentence, text, encoded, each));
    if (root) for (const each of best) Object.assign(each, { target: yield* this.tagging(root, text, each.target) });
    return best;
  }

  private *tagging(root: Tagged, source: string, target: string): Generator<() => string, string> {
    if (!root.inside.length) return escaped(target);
    return carry(root, target, agreed(yield* this.weighing(source, target)), unitsOf(source), unitsOf(target));
  }

  /** From which unit of a text each unit of its translation comes: a row for each of the translation. */
  *weighing(source: string, target: string): Generator<() => string, number[][]> {
    const [read, written] = [this.encode(source), this.target.encode(target)];
    const memory = yield* this.reading(read.ids);
    const weights = yield* showing(posteriors(this.network, written.ids, memory), () => target);
    return ofUnits(weights, unitsOf(source), read.spans, unitsOf(target), written.spans);
  }

  private *reading(ids: readonly number[]): Generator<() => string, Read> {
    const own = ids.join();
    if (this.last?.ids === own) return this.last.read;
    const read = yield* showing(this.network.reading(ids), () => "");
    this.last = { ids: own, read };
    return read;
  }

  /** Translates without pauses. */
  translate(sentence: string, options: Options = DEFAULT, entities: Entities | null = null): Translation[] {
    const going = this.translating(sentence, options, entities);
    let found = going.next();
    while (!found.done) found = going.next();
    return found.value;
  }

  private translation(sentence: string, text: string, encoded: Encoded, found: Hypothesis): Translation {
    const copied = found.ids.map((id, index) => (id === UNKNOWN ? copiedWord(encoded, found.steps[index]!.weights) : null));
    const { network } = this;
    let steps: Opened[] | undefined;
    return {
      source: sentence,
      sourceTokens: encoded.pieces,
      sourceIds: encoded.ids,
      target: this.target.decode(found.ids, copied),
      targetTokens: found.ids.map((id, index) => copied[index] ?? this.target.label(id)),
      ids: found.ids,
      score: found.total,
      finished: found.finished,
      unknown: this.source.unknown(text).map((span) => text.slice(...span)),
      get steps() {
        return (steps ??= opened(network, found));
      },
    };
  }
}

/** Runs a generator with a text for each of its pauses. */
function* showing<T>(going: Generator<void, T>, text: () => string): Generator<() => string, T> {
  let found = going.next();
  while (!found.done) {
    yield text;
    found = going.next();
  }
  return found.value;
}

/** The unknown source word with the largest weight. */
function copiedWord(encoded: Encoded, weights: Float64Array): string | null {
  let best = -1;
  encoded.ids.forEach((id, place) => {
    if (id === UNKNOWN && (best < 0 || weights[place]! > weights[best]!)) best = place;
  });
  return best < 0 ? null : encoded.pieces[best]!;
}

export { NOTHING, type Chosen, type Options };
