/** Stored sentence pairs, which translations follow, as `dikkat.translation.memory` has them. */
import type { Arithmetic } from "./arithmetic";
import { Refusal } from "./refusal";
import { metadataOf, readTensors } from "./tensors";
import { END, SPACE } from "./tokenizer";

/** States whose log-weight is below this have no effect. */
const NEGLIGIBLE = -16;
/** Smallest share of a pair that is listed as a source. */
const LEAST = 1e-3;
/** The largest number of float16, and a factor whose product loses the digits that float16 lacks. */
const [LARGEST, SPLIT] = [65504, 2 ** 42 + 1];

export interface StoredPair {
  /** The source as `normalised` returns it. */
  readonly key: string;
  readonly source: string;
  readonly target: string;
  readonly sourceIds: readonly number[];
  readonly targetIds: readonly number[];
  /** States before each token and before the end, row by row. */
  readonly keys: Float32Array;
  /** Log-weight of the states; the model's is 0. */
  readonly bias: number;
  /** False: numbers and other spans of the texts are read as text. */
  readonly hasSlots: boolean;
}

/** A stored pair with its share of a token's probability. */
export interface Source {
  readonly source: string;
  readonly target: string;
  readonly weight: number;
}

interface Near {
  readonly pair: StoredPair;
  readonly token: number;
  readonly weight: number;
}

const BLANK = new RegExp(`[${SPACE}\\x1c-\\x1f]+`, "gu");
const isSame = (one: readonly number[], other: readonly number[]): boolean => one.length === other.length && one.every((id, k) => id === other[k]);

/** A sentence in composed form with single spaces: sentences with the same result are equal. */
export const normalised = (sentence: string): string => sentence.normalize("NFC").replace(BLANK, " ").replace(/^ | $/gu, "");

/** A number as float16 has it. */
function half(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  return (bits >> 15 ? -1 : 1) * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

/** The states of pairs. Nothing changes them later. */
export class States {
  /** @param projection from readouts to queries, row by row, in units of the bandwidth */
  constructor(readonly pairs: readonly StoredPair[], private readonly projection: Float32Array, private readonly size: number, private readonly count: number) {}

  query(readout: Float32Array): Float32Array {
    return Float32Array.from({ length: this.size }, (_, row) => {
      let sum = 0;
      for (let k = 0; k < readout.length; k++) sum += this.projection[row * readout.length + k]! * readout[k]!;
      return sum;
    });
  }

  /** A query in float16, to be stored. */
  key(readout: Float32Array): Float32Array {
    return this.query(readout).map((each) => {
      const x = Math.max(-LARGEST, Math.min(each, LARGEST));
      return x * SPLIT - (x * SPLIT - x);
    });
  }

  /** The states with the largest weights, largest first. */
  private nearest(readout: Float32Array): Near[] {
    if (!this.pairs.length) return [];
    const { size, count } = this;
    const query = this.query(readout);
    const found: Near[] = [];
    for (const pair of this.pairs) {
      for (let row = 0; row <= pair.targetIds.length; row++) {
        let log = pair.bias;
        for (let k = 0; k < size && log >= NEGLIGIBLE; k++) log -= (query[k]! - pair.keys[row * size + k]!) ** 2 / 2;
        if (log < NEGLIGIBLE) continue;
        const weight = Math.exp(log);
        let at = found.length;
        while (at > 0 && found[at - 1]!.weight < weight) at--;
        found.splice(at, 0, { pair, token: pair.targetIds[row] ?? END, weight });
        if (found.length > count) found.pop();
      }
    }
    return found;
  }

  /** Scores of the mixture p(v) = (p_model(v) + Σ K_i [v = v_i]) / (1 + Σ K_i). */
  mix(arithmetic: Arithmetic, scores: Float32Array, readout: Float32Array): Float32Array {
    const near = this.nearest(readout);
    if (!near.length) return scores;
    let most = -Infinity;
    for (let k = 0; k < scores.length; k++) most = Math.max(most, scores[k]!);
    const sum = arithmetic.logSum(scores, most);
    const mixed = Float32Array.from(scores);
    for (const token of new Set(near.map((each) => each.token))) {
      const mass = near.reduce((all, each) => all + (each.token === token ? each.weight : 0), 0);
      mixed[token] = Math.log(Math.exp(scores[token]! - sum) + mass) + sum;
    }
    return mixed;
  }

  /** The pairs that took part in a token's probability, largest share first. */
  sources(readout: Float32Array): Source[] {
    const shares = new Map<StoredPair, number>();
    const near = this.nearest(readout);
    const total = near.reduce((sum, { weight }) => sum + weight, 1);
    for (const { pair, weight } of near) shares.set(pair, (shares.get(pair) ?? 0) + weight / total);
    const listed = [...shares].filter(([, weight]) => weight >= LEAST).sort(([, one], [, other]) => other - one);
    return listed.map(([{ source, target }, weight]) => ({ source, target, weight }));
  }
}

/** The pairs of the page's file, and those that its reader adds: at most one of a sentence, the newest. */
export class PairMemory {
  states!: States;
  private added: readonly StoredPair[] = [];
  private bySource!: ReadonlyMap<string, StoredPair>;

  constructor(private readonly stored: readonly StoredPair[], private readonly projection: Float32Array, private readonly size: number, private readonly count: number, readonly bias: number) {
    this.hold(stored);
  }

  static from(bytes: Uint8Array): PairMemory {
    const [tensors, { nearest }] = [readTensors(bytes), metadataOf(bytes)];
    const numbersOf = (name: string) => {
      const found = tensors.get(name);
      if (!found) throw new Refusal("damaged", name);
      return found.numbers;
    };
    const size = tensors.get("projection")?.shape[0] ?? 0;
    const cut = (side: string): number[][] => {
      let at = 0;
      return Array.from(numbersOf(`${side}_lengths`), (length) => [...numbersOf(`${side}_tokens`).slice(at, (at += length))]);
    };
    const texts = JSON.parse(new TextDecoder().decode(numbersOf("texts") as Uint8Array)) as [string, string, boolean][];
    const [sources, targets, keys, biases] = [cut("source"), cut("target"), Float32Array.from(numbersOf("keys"), half), numbersOf("biases")];
    let at = 0;
    const pairs = texts.map(([source, target, hasSlots], k) => ({
      key: normalised(source), source, target, hasSlots, sourceIds: sources[k]!, targetIds: targets[k]!, bias: biases[k]!, keys: keys.subarray(at, (at += size * (targets[k]!.length + 1))),
    }));
    return new PairMemory(pairs, numbersOf("projection") as Float32Array, size, Number(nearest), numbersOf("bias")[0]!);
  }

  /** The pair of a sentence. */
  find(sentence: string): StoredPair | undefined {
    return this.bySource.get(normalised(sentence));
  }

  /** The pair with these source tokens. */
  findIds(ids: readonly number[]): StoredPair | undefined {
    return this.states.pairs.find((pair) => isSame(pair.sourceIds, ids));
  }

  add(pair: StoredPair): void {
    this.added = joined(this.added, pair);
    this.hold(joined(this.states.pairs, pair));
  }

  /** Forgets the pairs that the reader added, but for some. */
  retain(isKept: (pair: StoredPair) => boolean): void {
    if (this.added.every(isKept)) return;
    this.added = this.added.filter(isKept);
    this.hold(this.added.reduce(joined, this.stored));
  }

  private hold(pairs: readonly StoredPair[]): void {
    this.states = new States(pairs, this.projection, this.size, this.count);
    this.bySource = new Map(pairs.map((pair) => [pair.key, pair]));
  }
}

/** Pairs with another one, in place of those of the same sentence or the same source tokens. */
const joined = (pairs: readonly StoredPair[], pair: StoredPair): readonly StoredPair[] =>
  [...pairs.filter((old) => old.key !== pair.key && !isSame(old.sourceIds, pair.sourceIds)), pair];
