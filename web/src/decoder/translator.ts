/** A page's model with its tokenizers. */
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
  readonly target: string;
  readonly targetTokens: string[];
  readonly ids: number[];
  readonly score: number;
  readonly finished: boolean;
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
    if ([...sentence].length > LONGEST) throw new Refusal("too-long", String([...sentence].length));
    if (/\p{Surrogate}/u.test(sentence)) throw new Refusal("half-character");
    return this.source.encode(sentence);
  }

  /** Translates token by token: yields functions that return the text so far; returns translations, best first. */
  *translating(sentence: string, options: Options = DEFAULT): Generator<() => string, Translation[]> {
    const encoded = this.encode(sentence);
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
    return found.value.map((each) => this.translation(sentence, encoded, each));
  }

  private *reading(ids: readonly number[]): Generator<() => string, Read> {
    const own = ids.join();
    if (this.last?.ids === own) return this.last.read;
    const reading = this.network.reading(ids);
    let found = reading.next();
    while (!found.done) {
      yield () => "";
      found = reading.next();
    }
    this.last = { ids: own, read: found.value };
    return found.value;
  }

  /** Translates without pauses. */
  translate(sentence: string, options: Options = DEFAULT): Translation[] {
    const going = this.translating(sentence, options);
    let found = going.next();
    while (!found.done) found = going.next();
    return found.value;
  }

  private translation(sentence: string, encoded: Encoded, found: Hypothesis): Translation {
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
      get steps() {
        return (steps ??= opened(network, found));
      },
    };
  }
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
