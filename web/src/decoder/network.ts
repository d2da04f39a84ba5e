/** The network of a model folder: encoder, attention, decoder, readout, as docs/reference_decoder.py has it. */
import { Arithmetic, room, rounded, type Exponentials, type Matrix } from "./arithmetic";
import { Refusal } from "./refusal";
import type { Tensor } from "./tensors";

export interface Settings {
  cell: "gru" | "lstm";
  score: string;
  bidirectional: boolean;
  num_layers: number;
  embedding_size: number;
  hidden_size: number;
  tokenizer?: string;
  length_penalty?: number | null;
}

/** Encoder outputs with their projected keys. */
export interface Memory {
  readonly size: number;
  readonly values: readonly Float32Array[];
  readonly keys: readonly Float32Array[];
  /** Embeddings of the source, where words vote for words; else none. */
  readonly embedded: readonly Float32Array[];
  /** Precomputed for additive scores; null for the others. */
  readonly exponentials: Exponentials | null;
}

export interface State {
  readonly hidden: readonly Float32Array[];
  readonly cell: readonly Float32Array[];
}

/** A layer's state, content (equal to it in a GRU) and gates. */
interface Turned {
  readonly state: Float32Array;
  readonly content: Float32Array;
  readonly gates: Gates;
}

/** Pinned weights of a step, by source position. */
export type Pins = ReadonlyMap<number, number>;

/** What a step sees of the source. */
interface Seen {
  readonly context: Float32Array;
  /** Weighted mean of the source's embeddings; empty where they add nothing. */
  readonly attended: Float32Array;
}

/** What becomes of it. */
interface Written {
  readonly gates: Gates;
  readonly state: State;
  readonly readout: Float32Array;
}

/** Values of a decoder step, from the query to the readout. */
export interface Step extends Seen, Written {
  readonly query: Float32Array;
  /** Scores, their softmax, and that with the pins applied. */
  readonly scores: Float64Array;
  readonly own: Float64Array;
  readonly weights: Float64Array;
}

/** Gates of the top layer by name, with the candidate. */
type Gates = Readonly<Record<string, Float32Array>>;

/** Weights of what source words add to the readout. */
const LEXICAL = "lexical.weight";
const ATTENDING = ["additive", "dot", "scaled_dot", "bilinear"];

/** Words encoded between two yields. */
const TOGETHER = 64;

interface Cell {
  given: Matrix;
  own: Matrix;
  givenBias: Float32Array;
  ownBias: Float32Array;
}

export class Network {
  readonly arithmetic: Arithmetic;
  readonly attends: boolean;
  readonly vocabulary: number;
  private readonly matrices = new Map<string, Matrix>();
  private readonly vectors = new Map<string, Float32Array>();
  private readonly encoderCells: Cell[][];
  private readonly decoderCells: Cell[];
  private readonly outputName: string;
  private readonly sourceName: string;
  private readonly scoreWeight: Float32Array;
  private readonly lstm: boolean;
  private memory: Memory | null = null; // of the last step
  /** Whether source words add to the readout themselves. */
  readonly lexical: boolean;
  /** Length penalty of its searches. */
  readonly penalty: number;

  /** @param plain true to compute without WebAssembly */
  constructor(readonly settings: Settings, tensors: ReadonlyMap<string, Tensor>, plain = false) {
    if (!(ATTENDING.includes(settings.score) || settings.score === "none")) {
      throw new Refusal("no-model", `score ${settings.score}`);
    }
    this.attends = settings.score !== "none";
    this.penalty = settings.length_penalty ?? 1;
    this.lstm = settings.cell === "lstm";
    this.lexical = tensors.has(LEXICAL);
    let size = 0;
    let widest = 0;
    for (const [name, { shape }] of tensors) {
      if (!tensors.has(`${name}.scales`)) continue;
      const [rows, columns] = shape as [number, number];
      size += room(rows, this.widths(name, columns));
      widest = Math.max(widest, rows, columns);
    }
    this.arithmetic = new Arithmetic(size, widest, plain);
    for (const [name, { shape, numbers }] of tensors) {
      const scales = tensors.get(`${name}.scales`);
      if (scales) {
        const widths = this.widths(name, shape[1]!);
        const rowScales = scales.numbers as Float32Array;
        this.matrices.set(name, this.arithmetic.matrix(numbers as Int8Array, rowScales, widths));
      } else if (!name.endsWith(".scales")) this.vectors.set(name, Float32Array.from(numbers));
    }
    const kind = this.lstm ? "lstm" : "gru";
    const sides = settings.bidirectional ? ["", "_reverse"] : [""];
    const layers = [...Array(settings.num_layers).keys()];
    this.encoderCells = layers.map((layer) => sides.map((side) => this.cell(`encoder.${kind}.`, `l${layer}${side}`)));
    this.decoderCells = layers.map((layer) => this.cell("decoder.", `l${layer}`));
    this.outputName = this.matrices.has("output_weight") ? "output_weight" : "target_embedding.weight";
    this.sourceName = this.matrices.has("source_embedding.weight")
      ? "source_embedding.weight" : "target_embedding.weight";
    this.vocabulary = this.matrixOf(this.outputName).rows;
    this.scoreWeight = settings.score === "additive" ? this.vectorOf("decoder.score.w_v.weight") : new Float32Array();
  }

  /** Widths of a matrix's inputs, which are quantised one by one. */
  private widths(name: string, columns: number): number[] {
    const { embedding_size: e, hidden_size: h } = this.settings;
    const attended = this.lexical ? [e] : [];
    if (name === "decoder.weight_ih_l0") return [e, h, ...attended];
    if (name === "readout.weight") return [h, h, ...attended, e];
    return [columns];
  }

  private matrixOf(name: string): Matrix {
    const stored = this.matrices.get(name);
    if (!stored) throw new Refusal("damaged", name);
    return stored;
  }

  private vectorOf(name: string): Float32Array {
    const stored = this.vectors.get(name);
    if (!stored) throw new Refusal("damaged", name);
    return stored;
  }

  private cell(prefix: string, end: string): Cell {
    return {
      given: this.matrixOf(`${prefix}weight_ih_${end}`),
      own: this.matrixOf(`${prefix}weight_hh_${end}`),
      givenBias: this.vectorOf(`${prefix}bias_ih_${end}`),
      ownBias: this.vectorOf(`${prefix}bias_hh_${end}`),
    };
  }

  /** Linear layer of each group of inputs. */
  private times(name: string, groups: readonly (readonly Float32Array[])[]): Float32Array<ArrayBuffer>[] {
    const bias = name.endsWith(".weight") ? this.vectors.get(name.replace(/weight$/, "bias")) : undefined;
    return this.arithmetic.times(this.matrixOf(name), groups, bias ?? null);
  }

  private tanhs(vectors: Float32Array<ArrayBuffer>[]): Float32Array<ArrayBuffer>[] {
    for (const vector of vectors) this.arithmetic.tanhs(vector);
    return vectors;
  }

  private embedding(name: string, token: number): Float32Array {
    return this.arithmetic.row(this.matrixOf(name), token, Math.sqrt(this.settings.embedding_size));
  }

  // --- encoder

  /** Encodes a sentence, yielding between parts so that the page stays responsive. */
  *reading(source: readonly number[]): Generator<void, { memory: Memory; state: State }> {
    const embedded = source.map((token) => this.embedding(this.sourceName, token));
    let below: Float32Array[] = embedded;
    const ends: Float32Array[] = [];
    const endCells: Float32Array[] = [];
    for (const directions of this.encoderCells) {
      const sides: Float32Array[][] = [];
      const last: Float32Array[] = [];
      const lastCells: Float32Array[] = [];
      for (const [direction, cell] of directions.entries()) {
        const size = this.settings.hidden_size / directions.length;
        let state: Float32Array = new Float32Array(size);
        let content = state;
        const states: Float32Array[] = [];
        const inputs = direction ? [...below].reverse() : below;
        for (let first = 0; first < inputs.length; first += TOGETHER) {
          const group = inputs.slice(first, first + TOGETHER).map((x) => [x]);
          for (const inputSums of this.arithmetic.times(cell.given, group, cell.givenBias)) {
            const [stateSums] = this.arithmetic.times(cell.own, [[state]], cell.ownBias);
            ({ state, content } = this.turned(inputSums, stateSums!, state, content));
            states.push(state);
          }
          yield;
        }
        sides.push(direction ? states.reverse() : states);
        last.push(state);
        lastCells.push(content);
      }
      below = below.map((_, position) => joined(sides.map((side) => side[position]!)));
      ends.push(joined(last));
      endCells.push(joined(lastCells));
    }
    const values = this.attends ? below : [ends.at(-1)!];
    const hidden = this.tanhs(this.times("bridge.weight", ends.map((end) => [end])));
    const cell = this.lstm ? this.times("cell_bridge.weight", endCells.map((end) => [end])) : [];
    const keys = this.attends ? this.keysOf(values) : [];
    const exponentials = this.settings.score === "additive" ? this.arithmetic.exponentials(keys) : null;
    const memory = { size: source.length, values, keys, embedded: this.lexical ? embedded : [], exponentials };
    return { memory, state: { hidden, cell } };
  }

  private keysOf(values: readonly Float32Array[]): readonly Float32Array[] {
    if (this.settings.score !== "additive") return values.map(rounded);
    return this.times("decoder.score.W_k.weight", values.map((value) => [value]));
  }

  /** One step of a GRU or LSTM, from the projections of its input and state. */
  private turned(inputSums: Float32Array, stateSums: Float32Array, state: Float32Array, content: Float32Array): Turned {
    const h = state.length;
    const gate = (at: number): Float32Array<ArrayBuffer> => {
      const sums = new Float32Array(h);
      for (let k = 0; k < h; k++) sums[k] = inputSums[at * h + k]! + stateSums[at * h + k]!;
      return sums;
    };
    const { arithmetic } = this;
    const next = new Float32Array(h);
    if (this.lstm) {
      const [input, forget, candidate, output] = [gate(0), gate(1), gate(2), gate(3)];
      for (const gate of [input, forget, output]) arithmetic.sigmoids(gate);
      arithmetic.tanhs(candidate);
      const after = new Float32Array(h);
      for (let k = 0; k < h; k++) after[k] = forget[k]! * content[k]! + input[k]! * candidate[k]!;
      next.set(after);
      arithmetic.tanhs(next);
      for (let k = 0; k < h; k++) next[k] = output[k]! * next[k]!;
      return { state: next, content: after, gates: { input, forget, candidate, output } };
    }
    const [reset, update] = [gate(0), gate(1)];
    arithmetic.sigmoids(reset);
    arithmetic.sigmoids(update);
    const candidate = new Float32Array(h);
    for (let k = 0; k < h; k++) candidate[k] = inputSums[2 * h + k]! + reset[k]! * stateSums[2 * h + k]!;
    arithmetic.tanhs(candidate);
    for (let k = 0; k < h; k++) next[k] = candidate[k]! + update[k]! * (state[k]! - candidate[k]!);
    return { state: next, content: next, gates: { reset, update, candidate } };
  }

  // --- decoder

  /** Decoder step for each last token and its state: attention, new state, readout. */
  steps(tokens: readonly number[], memory: Memory, before: readonly State[], pins: Pins | null = null): Step[] {
    if (memory !== this.memory) this.arithmetic.release();
    this.memory = memory;
    const looks = this.compared(before.map((state) => state.hidden.at(-1)!), memory).map(({ query, scores }) => {
      const own = softmax(scores);
      const weights = pins?.size ? pinned(own, pins) : own;
      const context = this.attends ? this.arithmetic.average(weights, memory.values) : memory.values[0]!;
      return { query, scores, own, weights, context, attended: this.arithmetic.average(weights, memory.embedded) };
    });
    const written = this.written(tokens, before, looks);
    return looks.map((look, row) => ({ ...look, ...written[row]! }));
  }

  /** What a step would write if it saw one position alone, for each of some positions. */
  alone(token: number, memory: Memory, before: State, positions: readonly number[]): Written[] {
    const none = new Float32Array();
    const seen = positions.map((position) => ({ context: memory.values[position]!, attended: memory.embedded[position] ?? none }));
    return this.written(positions.map(() => token), positions.map(() => before), seen);
  }

  private written(tokens: readonly number[], before: readonly State[], looks: readonly Seen[]): Written[] {
    const embedded = tokens.map((token) => this.embedding("target_embedding.weight", token));
    const states = before.map(() => ({ hidden: [] as Float32Array[], cell: [] as Float32Array[] }));
    let gates: Gates[] = [];
    const seen = looks.map(({ context, attended }) => (this.lexical ? [context, attended] : [context]));
    let inputs: Float32Array[][] = embedded.map((vector, row) => [vector, ...seen[row]!]);
    this.decoderCells.forEach((cell, layer) => {
      const inputSums = this.arithmetic.times(cell.given, inputs, cell.givenBias);
      const stateSums = this.arithmetic.times(cell.own, before.map((state) => [state.hidden[layer]!]), cell.ownBias);
      const turned = before.map((state, row) => {
        const old = state.hidden[layer]!;
        return this.turned(inputSums[row]!, stateSums[row]!, old, this.lstm ? state.cell[layer]! : old);
      });
      turned.forEach(({ state, content }, row) => {
        states[row]!.hidden.push(state);
        if (this.lstm) states[row]!.cell.push(content);
      });
      gates = turned.map((layerState) => layerState.gates);
      inputs = turned.map(({ state }) => [state]);
    });
    const read = seen.map((inputsSeen, row) => [inputs[row]![0]!, ...inputsSeen, embedded[row]!]);
    const readouts = this.tanhs(this.times("readout.weight", read));
    if (this.lexical) {
      const votes = this.times(LEXICAL, looks.map(({ attended }) => [attended]));
      readouts.forEach((readout, row) => votes[row]!.forEach((vote, k) => (readout[k] = readout[k]! + vote)));
    }
    return readouts.map((readout, row) => ({ gates: gates[row]!, state: states[row]!, readout }));
  }

  /** Logits of all tokens after each step. */
  tokenScores(steps: readonly Written[]): Float32Array[] {
    return this.arithmetic.times(this.matrixOf(this.outputName), steps.map(({ readout }) => [readout]), this.vectorOf("output_bias"));
  }

  /** What each source word, by its weight, adds to the score of a token. */
  votes(source: readonly number[], weights: Float64Array, token: number): Float64Array {
    const output = this.arithmetic.row(this.matrixOf(this.outputName), token, 1);
    const positions = [...weights.keys()].filter((position) => weights[position]! > 1e-3); // the others add next to nothing
    const contributions = this.times(LEXICAL, positions.map((position) => [this.embedding(this.sourceName, source[position]!)]));
    const votes = new Float64Array(weights.length);
    positions.forEach((position, k) => (votes[position] = weights[position]! * dot(output, contributions[k]!)));
    return votes;
  }

  /** Query of each state, and its scores over the source. */
  private compared(states: readonly Float32Array[], memory: Memory): { query: Float32Array; scores: Float64Array }[] {
    const { score } = this.settings;
    if (score === "none") return states.map((query) => ({ query, scores: new Float64Array(memory.size) }));
    const queries = score === "dot" || score === "scaled_dot"
      ? states.map(rounded) : this.times("decoder.score.W_q.weight", states.map((state) => [state]));
    if (memory.exponentials) {
      const { arithmetic, scoreWeight } = this;
      const keys = memory.exponentials;
      return queries.map((query) => ({ query, scores: arithmetic.additive(keys, arithmetic.exponentials([query]), scoreWeight) }));
    }
    const by = score === "scaled_dot" ? Math.sqrt(this.settings.hidden_size) : 1;
    return queries.map((query) => ({ query, scores: Float64Array.from(memory.keys, (key) => dot(key, query) / by) }));
  }

}

function dot(a: Float32Array, b: Float32Array): number {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k]! * b[k]!;
  return sum;
}

function joined(vectors: readonly Float32Array[]): Float32Array<ArrayBuffer> {
  const all = new Float32Array(vectors.reduce((sum, vector) => sum + vector.length, 0));
  let at = 0;
  for (const vector of vectors) {
    all.set(vector, at);
    at += vector.length;
  }
  return all;
}

export function softmax(scores: ArrayLike<number>): Float64Array {
  let most = -Infinity;
  for (let i = 0; i < scores.length; i++) most = Math.max(most, scores[i]!);
  const shares = Float64Array.from(scores);
  let sum = 0;
  for (let i = 0; i < shares.length; i++) sum += shares[i] = Math.exp(shares[i]! - most);
  for (let i = 0; i < shares.length; i++) shares[i] = shares[i]! / sum;
  return shares;
}

/** Weights with the pinned ones set and the others scaled to the rest. */
export function pinned(weights: Float64Array, pins: Pins): Float64Array {
  let pinnedSum = 0;
  for (const [position, weight] of pins) {
    if (!Number.isFinite(weight)) throw new Refusal("weight-number", String(weight));
    if (weight < 0 || weight > 1) throw new Refusal("weight-range", String(weight));
    if (!Number.isInteger(position) || position < 0 || position >= weights.length) throw new Refusal("weight-place", String(position + 1));
    pinnedSum += weight;
  }
  if (pinnedSum > 1 + 1e-9) throw new Refusal("weight-sum", String(pinnedSum));
  let free = 0;
  weights.forEach((weight, position) => {
    if (!pins.has(position)) free += weight;
  });
  const freeCount = weights.length - pins.size;
  if (freeCount === 0) {
    // Every weight is pinned: they are scaled to a sum of 1.
    return weights.map((_, position) => (pinnedSum > 0 ? pins.get(position)! / pinnedSum : 1 / weights.length));
  }
  const rest = Math.max(0, 1 - pinnedSum);
  return weights.map((weight, position) => pins.get(position) ?? (free > 1e-12 ? (weight / free) * rest : rest / freeCount));
}
