/** The network of a model folder: encoder, attention, decoder, readout, as docs/reference_decoder.py has it. */
import { Arithmetic, room, rounded, type Matrix } from "./arithmetic";
import { Refusal } from "./refusal";
import type { Tensor } from "./tensors";

export interface Settings {
  cell: "gru" | "lstm";
  score: string;
  coverage: boolean;
  bidirectional: boolean;
  num_layers: number;
  embedding_size: number;
  hidden_size: number;
  tokenizer?: string;
}

/** What a decoder looks at: a sentence, read. */
export interface Memory {
  readonly size: number;
  readonly values: readonly Float32Array[];
  readonly keys: readonly Float32Array[];
  /** e^{2k} of additive keys. */
  readonly exponentials: readonly Float64Array[];
}

export interface State {
  readonly hidden: readonly Float32Array[];
  readonly cell: readonly Float32Array[];
}

/** Where a step looks: weights that a reader has fixed, by the source's places. */
export type Pins = ReadonlyMap<number, number>;

/** What a step of the decoder did, from the query to the readout. */
export interface Step {
  readonly query: Float32Array;
  /** Before the softmax, after it, and with what was pinned. */
  readonly scores: Float64Array;
  readonly own: Float64Array;
  readonly weights: Float64Array;
  readonly context: Float32Array;
  readonly gates: Gates;
  readonly state: State;
  readonly readout: Float32Array;
}

/** The top layer's gates by their names, and what it would write. */
export type Gates = Readonly<Record<string, Float32Array>>;

const ATTENDING = ["additive", "dot", "scaled_dot", "bilinear"];

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const f32 = Math.fround;

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

  /** @param plain whether to compute without WebAssembly */
  constructor(readonly settings: Settings, tensors: ReadonlyMap<string, Tensor>, plain = false) {
    if (settings.coverage || !(ATTENDING.includes(settings.score) || settings.score === "none")) {
      throw new Refusal("no-model", `score ${settings.score}, coverage ${settings.coverage}`);
    }
    this.attends = settings.score !== "none";
    this.lstm = settings.cell === "lstm";
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
        const own = scales.numbers as Float32Array;
        this.matrices.set(name, this.arithmetic.matrix(numbers as Int8Array, own, widths));
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

  /** How wide each input of a matrix is: what it is multiplied with is quantised in these parts. */
  private widths(name: string, columns: number): number[] {
    const { embedding_size: e, hidden_size: h } = this.settings;
    if (name === "decoder.weight_ih_l0") return [e, h];
    if (name === "readout.weight") return [h, h, e];
    return [columns];
  }

  private matrixOf(name: string): Matrix {
    const found = this.matrices.get(name);
    if (!found) throw new Refusal("damaged", name);
    return found;
  }

  private vectorOf(name: string): Float32Array {
    const found = this.vectors.get(name);
    if (!found) throw new Refusal("damaged", name);
    return found;
  }

  private cell(part: string, end: string): Cell {
    return {
      given: this.matrixOf(`${part}weight_ih_${end}`),
      own: this.matrixOf(`${part}weight_hh_${end}`),
      givenBias: this.vectorOf(`${part}bias_ih_${end}`),
      ownBias: this.vectorOf(`${part}bias_hh_${end}`),
    };
  }

  private times(name: string, ...inputs: Float32Array[]): Float32Array {
    const bias = name.endsWith(".weight") ? this.vectors.get(name.replace(/weight$/, "bias")) : undefined;
    return this.arithmetic.times(this.matrixOf(name), inputs, bias ?? null);
  }

  private embedding(name: string, token: number): Float32Array {
    return this.arithmetic.row(this.matrixOf(name), token, Math.sqrt(this.settings.embedding_size));
  }

  // --- reading

  /** Read a sentence, position by position, so that a caller can do something else between. */
  *reading(source: readonly number[]): Generator<void, { memory: Memory; state: State }> {
    let below = source.map((token) => this.embedding(this.sourceName, token));
    const ends: Float32Array[] = [];
    const endCells: Float32Array[] = [];
    for (const directions of this.encoderCells) {
      const sides: Float32Array[][] = [];
      const last: Float32Array[] = [];
      const lastCells: Float32Array[] = [];
      for (const [direction, cell] of directions.entries()) {
        const size = this.settings.hidden_size / directions.length;
        let state = new Float32Array(size);
        let content = new Float32Array(size);
        const found: Float32Array[] = [];
        for (const x of direction ? [...below].reverse() : below) {
          ({ state, content } = this.turn(cell, [x], state, content));
          found.push(state);
          yield;
        }
        sides.push(direction ? found.reverse() : found);
        last.push(state);
        lastCells.push(content);
      }
      below = below.map((_, place) => joined(sides.map((side) => side[place]!)));
      ends.push(joined(last));
      endCells.push(joined(lastCells));
    }
    const values = this.attends ? below : [ends.at(-1)!];
    const hidden = ends.map((end) => this.times("bridge.weight", end).map(Math.tanh));
    const cell = this.lstm ? endCells.map((end) => this.times("cell_bridge.weight", end)) : [];
    const keys = this.attends ? values.map((value) => this.key(value)) : [];
    const exponentials = this.settings.score === "additive" ? keys.map(exponentialsOf) : [];
    return { memory: { size: source.length, values, keys, exponentials }, state: { hidden, cell } };
  }

  private key(value: Float32Array): Float32Array {
    return this.settings.score === "additive" ? this.times("decoder.score.W_k.weight", value) : rounded(value);
  }

  /** One step of a GRU or an LSTM. */
  private turn(
    cell: Cell, inputs: Float32Array[], state: Float32Array, content: Float32Array,
  ): { state: Float32Array<ArrayBuffer>; content: Float32Array<ArrayBuffer>; gates: Gates } {
    const given = this.arithmetic.times(cell.given, inputs, cell.givenBias);
    const own = this.arithmetic.times(cell.own, [state], cell.ownBias);
    const h = state.length;
    const next = new Float32Array(h);
    const [one, two, three, four] = [0, 1, 2, 3].map(() => new Float32Array(h)) as [
      Float32Array, Float32Array, Float32Array, Float32Array,
    ];
    if (this.lstm) {
      const after = new Float32Array(h);
      for (let k = 0; k < h; k++) {
        one[k] = sigmoid(given[k]! + own[k]!);
        two[k] = sigmoid(given[h + k]! + own[h + k]!);
        three[k] = Math.tanh(given[2 * h + k]! + own[2 * h + k]!);
        four[k] = sigmoid(given[3 * h + k]! + own[3 * h + k]!);
        after[k] = two[k]! * content[k]! + one[k]! * three[k]!;
        next[k] = four[k]! * Math.tanh(after[k]!);
      }
      return { state: next, content: after, gates: { input: one, forget: two, candidate: three, output: four } };
    }
    for (let k = 0; k < h; k++) {
      one[k] = sigmoid(f32(given[k]! + own[k]!));
      two[k] = sigmoid(f32(given[h + k]! + own[h + k]!));
      three[k] = Math.tanh(given[2 * h + k]! + one[k]! * own[2 * h + k]!);
      next[k] = three[k]! + two[k]! * (state[k]! - three[k]!);
    }
    return { state: next, content: next, gates: { reset: one, update: two, candidate: three } };
  }

  // --- writing

  /** A step: where the decoder looks, its new state, and the readout. */
  step(token: number, memory: Memory, before: State, pins: Pins | null = null): Step {
    const embedded = this.embedding("target_embedding.weight", token);
    const { query, scores } = this.compared(before.hidden.at(-1)!, memory);
    const own = softmax(scores);
    const weights = pins?.size ? pinned(own, pins) : own;
    const context = this.average(weights, memory);
    const hidden: Float32Array[] = [];
    const cell: Float32Array[] = [];
    let inputs = [embedded, context];
    let gates: Gates = {};
    this.decoderCells.forEach((each, layer) => {
      const old = before.hidden[layer]!;
      const turned = this.turn(each, inputs, old, this.lstm ? before.cell[layer]! : old);
      hidden.push(turned.state);
      if (this.lstm) cell.push(turned.content);
      gates = turned.gates;
      inputs = [turned.state];
    });
    const readout = this.times("readout.weight", hidden.at(-1)!, context, embedded).map(Math.tanh);
    return { query, scores, own, weights, context, gates, state: { hidden, cell }, readout };
  }

  /** Scores of all tokens, unnormalised. */
  tokenScores(readout: Float32Array): Float32Array {
    return this.arithmetic.times(this.matrixOf(this.outputName), [readout], this.vectorOf("output_bias"));
  }

  private compared(state: Float32Array, memory: Memory): { query: Float32Array; scores: Float64Array } {
    const { score } = this.settings;
    const scores = new Float64Array(memory.size);
    if (score === "none") return { query: state, scores };
    if (score === "additive") {
      const query = this.times("decoder.score.W_q.weight", state);
      const exps = exponentialsOf(query);
      const v = this.scoreWeight;
      memory.exponentials.forEach((keys, place) => {
        let sum = 0;
        // tanh(q + k) = 1 − 2/(1 + e^{2q}·e^{2k}): the exponentials are computed once for each, not for each pair.
        for (let k = 0; k < v.length; k++) sum += v[k]! * (1 - 2 / (1 + exps[k]! * keys[k]!));
        scores[place] = sum;
      });
      return { query, scores };
    }
    const query = score === "bilinear" ? this.times("decoder.score.W_q.weight", state) : rounded(state);
    const by = score === "scaled_dot" ? Math.sqrt(state.length) : 1;
    memory.keys.forEach((key, place) => {
      let sum = 0;
      for (let k = 0; k < key.length; k++) sum += key[k]! * query[k]!;
      scores[place] = sum / by;
    });
    return { query, scores };
  }

  private average(weights: Float64Array, memory: Memory): Float32Array {
    if (!this.attends) return memory.values[0]!;
    const sum = new Float64Array(this.settings.hidden_size);
    memory.values.forEach((value, place) => {
      const weight = weights[place]!;
      if (weight) for (let k = 0; k < sum.length; k++) sum[k] = sum[k]! + weight * value[k]!;
    });
    return Float32Array.from(sum);
  }
}

function joined(parts: readonly Float32Array[]): Float32Array<ArrayBuffer> {
  const all = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** e^{2x}, neither 0 nor infinite, so that no product of two is 0·∞. */
function exponentialsOf(x: Float32Array): Float64Array {
  return Float64Array.from(x, (each) => Math.exp(2 * Math.min(Math.max(each, -300), 300)));
}

export function softmax(scores: ArrayLike<number>): Float64Array {
  let most = -Infinity;
  for (let i = 0; i < scores.length; i++) most = Math.max(most, scores[i]!);
  const shares = Float64Array.from(scores, (score) => Math.exp(score - most));
  const sum = shares.reduce((a, b) => a + b, 0);
  return shares.map((share) => share / sum);
}

/** Weights of which some are given: the others share what is left, in the proportions that they had. */
export function pinned(own: Float64Array, pins: Pins): Float64Array {
  let given = 0;
  for (const [place, weight] of pins) {
    if (!Number.isFinite(weight)) throw new Refusal("weight-number", String(weight));
    if (weight < 0 || weight > 1) throw new Refusal("weight-range", String(weight));
    if (!Number.isInteger(place) || place < 0 || place >= own.length) throw new Refusal("weight-place", String(place + 1));
    given += weight;
  }
  if (given > 1 + 1e-9) throw new Refusal("weight-sum", String(given));
  let free = 0;
  own.forEach((weight, place) => {
    if (!pins.has(place)) free += weight;
  });
  const others = own.length - pins.size;
  if (others === 0) {
    // Nothing is left to share: what was given is brought to a sum of 1.
    return own.map((_, place) => (given > 0 ? pins.get(place)! / given : 1 / own.length));
  }
  const left = Math.max(0, 1 - given);
  return own.map((weight, place) => pins.get(place) ?? (free > 1e-12 ? (weight / free) * left : left / others));
}
