/** Stored sentence pairs, which translations follow, as `dikkat.translation.memory` has them. */
import type { Arithmetic } from "./arithmetic";
import { Refusal } from "./refusal";
import { metadataOf, readTensors } from "./tensors";
import { END, oneSpaced } from "./tokenizer";

/** States whose log-weight is below this have no effect. */
const NEGLIGIBLE = -16;
/** Smallest share of a pair that is listed as a source. */
const LEAST = 1e-3;
/** The largest number of float16, and a factor whose product loses the digits that float16 lacks. */
const [LARGEST, SPLIT] = [65504, 2 ** 42 + 1];

export interface StoredPair {
  /** The source as `sentenceKey` returns it. */
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
export interface PairShare {
  readonly source: string;
  readonly target: string;
  readonly weight: number;
}

/** A state with its weight, which is above 0. */
interface NearState {
  readonly pair: StoredPair;
  readonly token: number;
  readonly weight: number;
}

/** A sentence in composed form with single spaces: sentences with the same result are equal. */
export const sentenceKey = (sentence: string): string => oneSpaced(sentence.normalize("NFC"));

/** A number as float16 has it. */
function half(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  return (bits >> 15 ? -1 : 1) * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

/** The states of pairs. Nothing changes them later. */
export class States {
  /** @param projection from readouts to queries, row by row, in units of the bandwidth */
  constructor(readonly pairs: readonly StoredPair[], private readonly projection: Float32Array, private readonly size: number, private readonly count: number) {}

  /** The pair with these source tokens. */
  byIds(source: readonly number[]): StoredPair | undefined {
    return this.pairs.find((pair) => hasIds(pair, source));
  }

  query(readout: Float32Array): Float32Array {
    return Float32Array.from({ length: this.size }, (_, row) => {
      let sum = 0;
      for (let k = 0; k < readout.length; k++) sum += this.projection[row * readout.length + k]! * readout[k]!;
      return sum;
    });
  }

  /** A query in float16, to be stored. */
  key(readout: Float32Array): Float32Array {
    return this.query(readout).map((number) => {
      const x = Math.max(-LARGEST, Math.min(number, LARGEST));
      return x * SPLIT - (x * SPLIT - x);
    });
  }

  /** The states with the largest weights, largest first. */
  private nearest(readout: Float32Array): NearState[] {
    if (!this.pairs.length) return [];
    const { size, count } = this;
    const query = this.query(readout);
    const near: NearState[] = [];
    for (const pair of this.pairs) {
      for (let row = 0; row <= pair.targetIds.length; row++) {
        let log = pair.bias;
        for (let k = 0; k < size && log >= NEGLIGIBLE; k++) log -= (query[k]! - pair.keys[row * size + k]!) ** 2 / 2;
        if (log < NEGLIGIBLE) continue;
        const weight = Math.exp(log);
        let rank = near.length;
        while (rank > 0 && near[rank - 1]!.weight < weight) rank--;
        near.splice(rank, 0, { pair, token: pair.targetIds[row] ?? END, weight });
        if (near.length > count) near.pop();
      }
    }
    return near;
  }

  /** Scores of the mixture p(v) = (p_model(v) + Σ K_i [v = v_i]) / (1 + Σ K_i). */
  mix(arithmetic: Arithmetic, scores: Float32Array, readout: Float32Array): Float32Array {
    const near = this.nearest(readout);
    if (!near.length) return scores;
    const logSum = arithmetic.logSum(scores);
    const masses = new Map<number, number>();
    for (const { token, weight } of near) masses.set(token, (masses.get(token) ?? 0) + weight);
    const mixed = Float32Array.from(scores);
    for (const [token, mass] of masses) mixed[token] = Math.log(Math.exp(scores[token]! - logSum) + mass) + logSum;
    return mixed;
  }

  /** The pairs that took part in a token's probability, largest share first. */
  sources(readout: Float32Array): PairShare[] {
    const shares = new Map<StoredPair, number>();
    const near = this.nearest(readout);
    const total = near.reduce((sum, { weight }) => sum + weight, 1);
    for (const { pair, weight } of near) shares.set(pair, (shares.get(pair) ?? 0) + weight / total);
    const listed = [...shares].filter(([, weight]) => weight >= LEAST).sort(([, one], [, other]) => other - one);
    return listed.map(([{ source, target }, weight]) => ({ source, target, weight }));
  }
}

/** Sentence pairs that translations follow: at most one of a sentence, and of source tokens, the newest. */
export class PairMemory {
  states!: States;
  private bySource!: ReadonlyMap<string, StoredPair>;

  /** @param stored the pairs of the page's file */
  constructor(readonly stored: readonly StoredPair[], private readonly projection: Float32Array, private readonly size: number, private readonly count: number, readonly bias: number) {
    this.hold(stored);
  }

  static from(bytes: Uint8Array): PairMemory {
    const [tensors, { nearest }] = [readTensors(bytes), metadataOf(bytes)];
    const numbersOf = (name: string) => {
      const tensor = tensors.get(name);
      if (!tensor) throw new Refusal("damaged", name);
      return tensor.numbers;
    };
    const size = tensors.get("projection")?.shape[0] ?? 0;
    const cut = (side: string): number[][] => {
      let start = 0;
      return Array.from(numbersOf(`${side}_lengths`), (length) => [...numbersOf(`${side}_tokens`).slice(start, (start += length))]);
    };
    const texts = JSON.parse(new TextDecoder().decode(numbersOf("texts") as Uint8Array)) as [string, string, boolean][];
    const [sources, targets, keys, biases] = [cut("source"), cut("target"), Float32Array.from(numbersOf("keys"), half), numbersOf("biases")];
    let start = 0;
    const pairs = texts.map(([source, target, hasSlots], k) => ({
      key: sentenceKey(source), source, target, hasSlots, sourceIds: sources[k]!, targetIds: targets[k]!, bias: biases[k]!,
      keys: keys.subarray(start, (start += size * (targets[k]!.length + 1))),
    }));
    return new PairMemory(pairs, numbersOf("projection") as Float32Array, size, Number(nearest), numbersOf("bias")[0]!);
  }

  get pairs(): readonly StoredPair[] {
    return this.states.pairs;
  }

  /** The pair of a sentence. */
  find(sentence: string): StoredPair | undefined {
    return this.bySource.get(sentenceKey(sentence));
  }

  /** The pair of the page's file that a pair replaces. */
  inFile(pair: StoredPair): StoredPair | undefined {
    return this.stored.find((old) => replaces(pair, old));
  }

  /** Adds a pair, and returns the pairs that it replaces. */
  add(pair: StoredPair): StoredPair[] {
    const replaced = this.pairs.filter((old) => replaces(pair, old));
    this.hold(withPair(this.pairs, pair));
    return replaced;
  }

  /** Replaces all pairs by these, without conflicts. */
  hold(pairs: readonly StoredPair[]): void {
    this.states = new States(pairs, this.projection, this.size, this.count);
    this.bySource = new Map(pairs.map((pair) => [pair.key, pair]));
  }
}

const replaces = (pair: StoredPair, old: StoredPair): boolean => old.key === pair.key || hasIds(old, pair.sourceIds);

/** Whether a pair has these source tokens. */
export const hasIds = ({ sourceIds }: StoredPair, ids: readonly number[]): boolean =>
  sourceIds.length === ids.length && sourceIds.every((id, k) => id === ids[k]);

/** Pairs with another one, in place of the pairs of the same sentence or the same source tokens. */
export const withPair = (pairs: readonly StoredPair[], pair: StoredPair): StoredPair[] => [...pairs.filter((old) => !replaces(pair, old)), pair];
