/** Matrices in int8 times vectors, as docs/int8.md says, and the functions that a step applies to what comes out. */
import { machine, type Machine } from "./kernels";

/**
 * A matrix in memory: for each of its inputs a block. Rows are padded to a multiple of 4, columns to one of 16, and of
 * four rows 16 numbers each stand side by side.
 */
export interface Matrix {
  readonly rows: number;
  readonly scales: number;
  readonly blocks: readonly { at: number; width: number; padded: number }[];
}

/** e^{2k} of additive keys, row by row. */
export interface Exponentials {
  readonly places: number;
  readonly numbers: Float64Array<ArrayBuffer>;
}

/** Most vectors of one product. */
const TOGETHER = 16;

const up = (count: number, to: number): number => Math.ceil(count / to) * to;

// Adding and subtracting 1.5·2²³ in float32 rounds to the nearest integer, ties to even.
const WHOLE = 12582912;
const f32 = Math.fround;

/** A small number rounded to the nearest integer, ties to even. */
const toEven = (x: number): number => f32(f32(x) + WHOLE) - WHOLE;

/** Bytes of a matrix. */
export function room(rows: number, widths: readonly number[]): number {
  return up(rows, 4) * (widths.reduce((sum, width) => sum + up(width, 16), 0) + 4) + 64;
}

export class Arithmetic {
  private readonly machine: Machine;
  private bytes!: Int8Array<ArrayBuffer>;
  private halves!: Int16Array<ArrayBuffer>;
  private floats!: Float32Array<ArrayBuffer>;
  private doubles!: Float64Array<ArrayBuffer>;
  private readonly vectors = 0;
  private readonly worths: number;
  private readonly out: number;
  private free: number;
  /** First bytes of the vectors that the steps of a sentence share. */
  private readonly shared = new Map<object, number>();
  private sharedEnd = 0; // the byte after them

  /**
   * @param size bytes of all matrices, by `room`
   * @param widest the largest number of rows or columns
   * @param plain true to compute without WebAssembly
   */
  constructor(size: number, private readonly widest: number, plain = false) {
    this.machine = machine(plain);
    this.worths = up(widest, 16) * 2 * TOGETHER;
    this.out = this.worths + 4 * TOGETHER;
    this.free = up(this.out + up(widest, 4) * 4 * TOGETHER, 64);
    this.grow(this.free + size);
  }

  get kind(): "wasm" | "js" {
    return this.machine.kind;
  }

  private grow(size: number): void {
    this.machine.grow(size);
    const buffer = this.machine.buffer();
    if (this.bytes?.buffer === buffer) return;
    this.bytes = new Int8Array(buffer);
    this.halves = new Int16Array(buffer);
    this.floats = new Float32Array(buffer);
    this.doubles = new Float64Array(buffer);
  }

  /** Copies a matrix into memory: its numbers row by row, the scales of its rows, the widths of its inputs. */
  matrix(numbers: Int8Array, scales: Float32Array, widths: readonly number[]): Matrix {
    const rows = scales.length;
    const columns = widths.reduce((a, b) => a + b, 0);
    const { bytes } = this;
    let first = 0;
    const blocks = widths.map((width) => {
      const block = { at: this.free, width, padded: up(width, 16) };
      for (let row = 0; row < rows; row++) {
        const from = row * columns + first;
        const to = place(block, row);
        for (let c = 0; c < width; c++) bytes[to + (c >> 4) * 64 + (c & 15)] = numbers[from + c]!;
      }
      this.free += up(rows, 4) * block.padded;
      first += width;
      return block;
    });
    const at = up(this.free, 16);
    this.floats.set(scales, at / 4);
    this.free = at + 4 * up(rows, 4);
    return { rows, scales: at, blocks };
  }

  /** bias + matrix · inputs for each group of inputs, each input quantised by itself. */
  times(matrix: Matrix, groups: readonly (readonly Float32Array[])[], bias: Float32Array | null): Float32Array<ArrayBuffer>[] {
    const products: Float32Array<ArrayBuffer>[] = [];
    const rows = up(matrix.rows, 4);
    for (let first = 0; first < groups.length; first += TOGETHER) {
      const batch = groups.slice(first, first + TOGETHER);
      const from = this.out / 4;
      batch.forEach((_, v) => {
        if (bias) this.floats.set(bias, from + v * rows);
        else this.floats.fill(0, from + v * rows, from + v * rows + matrix.rows);
      });
      matrix.blocks.forEach(({ at, padded }, k) => {
        batch.forEach((inputs, v) => {
          this.floats[this.worths / 4 + v] = this.quantize(inputs[k]!, this.vectors / 2 + v * padded, padded);
        });
        const { vectors, worths, out } = this;
        this.machine.kernels.product(at, matrix.scales, rows, padded, vectors, worths, batch.length, out, 4 * rows);
      });
      batch.forEach((_, v) => products.push(this.floats.slice(from + v * rows, from + v * rows + matrix.rows)));
    }
    return products;
  }

  /** A row of a one-block matrix times a number. */
  row(matrix: Matrix, row: number, by: number): Float32Array<ArrayBuffer> {
    const block = matrix.blocks[0]!;
    const scale = f32(this.floats[matrix.scales / 4 + row]! * f32(by));
    const numbers = new Float32Array(block.width);
    const from = place(block, row);
    for (let c = 0; c < numbers.length; c++) numbers[c] = this.bytes[from + (c >> 4) * 64 + (c & 15)]! * scale;
    return numbers;
  }

  /** Quantises a vector to integers up to 127; returns the scale. */
  private quantize(x: Float32Array, at: number, padded: number): number {
    const halves = this.halves;
    let most = 0;
    for (let i = 0; i < x.length; i++) {
      const size = Math.abs(x[i]!);
      if (size > most) most = size;
    }
    const by = most === 0 ? 0 : f32(127 / most);
    for (let i = 0; i < x.length; i++) halves[at + i] = toEven(f32(x[i]! * by));
    halves.fill(0, at + x.length, at + padded);
    return f32(most / 127);
  }

  /** 1 / (1 + e^{−x}), in place. */
  sigmoids(x: Float32Array): void {
    this.inParts(x, (at, count) => this.machine.kernels.sigmoids(at, count));
  }

  /** tanh x, in place. */
  tanhs(x: Float32Array): void {
    this.inParts(x, (at, count) => this.machine.kernels.tanhs(at, count));
  }

  private inParts(x: Float32Array, act: (at: number, count: number) => void): void {
    for (let first = 0; first < x.length; first += this.widest) {
      const chunk = x.subarray(first, first + this.widest);
      this.floats.set(chunk, this.out / 4);
      act(this.out, up(chunk.length, 4));
      chunk.set(this.floats.subarray(this.out / 4, this.out / 4 + chunk.length));
    }
  }

  /** log Σ e^x. */
  logSum(x: Float32Array): number {
    let most = -Infinity;
    for (let k = 0; k < x.length; k++) most = Math.max(most, x[k]!);
    const from = this.out / 4;
    this.floats.set(x, from);
    this.floats.fill(-Infinity, from + x.length, from + up(x.length, 4));
    return most + Math.log(this.machine.kernels.sumOfExponentials(this.out, up(x.length, 4), most));
  }

  /** e^{2k} of vectors of one length, clamped so that no product is 0·∞. */
  exponentials(vectors: readonly Float32Array[]): Exponentials {
    const width = up(vectors[0]?.length ?? 0, 2);
    const numbers = new Float64Array(width * vectors.length).fill(1);
    vectors.forEach((vector, row) => {
      for (let k = 0; k < vector.length; k++) {
        numbers[row * width + k] = Math.exp(2 * Math.min(Math.max(vector[k]!, -300), 300));
      }
    });
    return { places: vectors.length, numbers };
  }

  /** Makes room for the shared vectors of another sentence. */
  release(): void {
    this.shared.clear();
    this.sharedEnd = up(this.free, 16);
  }

  /** The first byte of shared vectors, which the first call writes. */
  private addressOf(vectors: object, bytes: number, write: (address: number) => void): number {
    const known = this.shared.get(vectors);
    if (known !== undefined) return known;
    const address = this.sharedEnd;
    this.sharedEnd = up(address + bytes, 16);
    this.grow(this.sharedEnd);
    write(address);
    this.shared.set(vectors, address);
    return address;
  }

  /** Additive scores Σ v·tanh(q + k) of all keys, from precomputed exponentials. */
  additive(keys: Exponentials, query: Exponentials, v: Float32Array): Float64Array<ArrayBuffer> {
    const width = query.numbers.length;
    const first = this.addressOf(keys, 8 * keys.numbers.length, (address) => this.doubles.set(keys.numbers, address / 8));
    const queryStart = this.sharedEnd / 8, out = queryStart + 2 * width;
    this.grow(8 * (out + up(keys.places, 2)));
    this.doubles.set(query.numbers, queryStart);
    this.doubles.fill(0, queryStart + width, out);
    this.doubles.set(v, queryStart + width);
    this.machine.kernels.additive(first, keys.places, width, 8 * queryStart, 8 * (queryStart + width), 8 * out);
    return this.doubles.slice(out, out + keys.places);
  }

  /** Σ weight · vector, added in float64. */
  average(weights: Float64Array, vectors: readonly Float32Array[]): Float32Array<ArrayBuffer> {
    const size = vectors[0]?.length ?? 0, width = up(size, 2);
    if (!size) return new Float32Array();
    const rows = this.addressOf(vectors, 4 * width * vectors.length, (address) =>
      vectors.forEach((vector, row) => this.floats.set(vector, address / 4 + row * width)));
    const sums = this.sharedEnd / 8, from = sums + width;
    this.grow(8 * (from + weights.length));
    this.doubles.fill(0, sums, from);
    this.doubles.set(weights, from);
    this.machine.kernels.average(rows, vectors.length, width, 8 * from, 8 * sums);
    return new Float32Array(this.doubles.subarray(sums, sums + size));
  }
}

/** Offset of a row in a block. */
const place = ({ at, padded }: { at: number; padded: number }, row: number): number =>
  at + (row >> 2) * 4 * padded + (row & 3) * 16;

/** A vector quantised and scaled back. */
export function rounded(x: Float32Array): Float32Array {
  let most = 0;
  for (const number of x) most = Math.max(most, Math.abs(number));
  const by = most === 0 ? 0 : f32(127 / most);
  const worth = f32(most / 127);
  return x.map((number) => toEven(f32(number * by)) * worth);
}
