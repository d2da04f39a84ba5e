/** Matrices in int8 times vectors, as docs/int8.md says; in WebAssembly where there is some, otherwise in typed arrays. */
import product from "./product.wat";

/** A matrix in memory: for each of its inputs a block of rows, padded to a multiple of 16 columns. */
export interface Matrix {
  readonly rows: number;
  readonly scales: number;
  readonly blocks: readonly { at: number; width: number; padded: number }[];
}

type Product = (
  weights: number, scales: number, rows: number, width: number, vector: number, worth: number, out: number,
) => void;

const PAGE = 1 << 16;

export const padded = (width: number): number => Math.ceil(width / 16) * 16;

// To add and take away 1.5·2²³ in float32 rounds what is small against it to a whole number, of two the even one.
const WHOLE = 12582912;
const f32 = Math.fround;

/** A small number rounded to the nearest whole one, of two the even one. */
export const toEven = (x: number): number => f32(f32(x) + WHOLE) - WHOLE;

/** The bytes that a matrix takes. */
export function room(rows: number, widths: readonly number[]): number {
  return rows * widths.reduce((sum, width) => sum + padded(width), 0) + 4 * rows + 64;
}

export class Arithmetic {
  readonly kind: "wasm" | "js";
  private readonly bytes: Int8Array;
  private readonly floats: Float32Array;
  private readonly halves: Int16Array;
  private readonly product: Product;
  private readonly vector: number;
  private readonly out: number;
  private free: number;

  /**
   * @param size bytes of all matrices, by `room`
   * @param widest the largest number of rows or columns
   * @param plain whether to leave WebAssembly out
   */
  constructor(size: number, widest: number, plain = false) {
    const scratch = padded(widest) * 6 + 128;
    const memory = plain ? null : instance(Math.ceil((size + scratch) / PAGE) + 1);
    const buffer = memory?.buffer ?? new ArrayBuffer(Math.ceil((size + scratch) / 64) * 64);
    this.bytes = new Int8Array(buffer);
    this.floats = new Float32Array(buffer);
    this.halves = new Int16Array(buffer);
    this.vector = 0;
    this.out = padded(widest) * 2;
    this.free = Math.ceil(scratch / 64) * 64;
    this.kind = memory ? "wasm" : "js";
    this.product = memory?.product ?? this.inTypedArrays;
  }

  /** Take a matrix in: its numbers row after row, its rows' scales, and how wide each of its inputs is. */
  matrix(numbers: Int8Array, scales: Float32Array, widths: readonly number[]): Matrix {
    const rows = scales.length;
    const columns = widths.reduce((a, b) => a + b, 0);
    let first = 0;
    const blocks = widths.map((width) => {
      const block = { at: this.free, width, padded: padded(width) };
      for (let row = 0; row < rows; row++) {
        const start = row * columns + first;
        this.bytes.set(numbers.subarray(start, start + width), block.at + row * block.padded);
      }
      this.free += rows * block.padded;
      first += width;
      return block;
    });
    const at = Math.ceil(this.free / 4) * 4;
    this.floats.set(scales, at / 4);
    this.free = at + 4 * rows;
    return { rows, scales: at, blocks };
  }

  /** bias + the matrix times its inputs, each of which is quantised by itself. */
  times(matrix: Matrix, inputs: readonly Float32Array[], bias: Float32Array | null): Float32Array {
    const out = this.floats.subarray(this.out / 4, this.out / 4 + matrix.rows);
    if (bias) out.set(bias);
    else out.fill(0);
    matrix.blocks.forEach(({ at, padded }, k) => {
      const worth = this.quantize(inputs[k]!, padded);
      this.product(at, matrix.scales, matrix.rows, padded, this.vector, worth, this.out);
    });
    return out.slice();
  }

  /** A row of a matrix of one block, times a number. */
  row(matrix: Matrix, row: number, by: number): Float32Array {
    const { at, width, padded } = matrix.blocks[0]!;
    const scale = Math.fround(this.floats[matrix.scales / 4 + row]! * Math.fround(by));
    return Float32Array.from(this.bytes.subarray(at + row * padded, at + row * padded + width), (q) => q * scale);
  }

  /** Write a vector as whole numbers, of which the largest is 127, and return what 1 of these is worth. */
  private quantize(x: Float32Array, padded: number): number {
    const at = this.vector / 2;
    const whole = this.halves;
    let most = 0;
    for (let i = 0; i < x.length; i++) {
      const size = Math.abs(x[i]!);
      if (size > most) most = size;
    }
    const by = most === 0 ? 0 : Math.fround(127 / most);
    for (let i = 0; i < x.length; i++) whole[at + i] = toEven(Math.fround(x[i]! * by));
    whole.fill(0, at + x.length, at + padded);
    return Math.fround(most / 127);
  }

  private readonly inTypedArrays: Product = (weights, scales, rows, width, vector, worth, out) => {
    const { bytes, halves, floats } = this;
    const v = vector / 2;
    for (let r = 0; r < rows; r++) {
      const start = weights + r * width;
      let a = 0;
      let b = 0;
      for (let c = 0; c < width; c += 2) {
        a += bytes[start + c]! * halves[v + c]!;
        b += bytes[start + c + 1]! * halves[v + c + 1]!;
      }
      floats[out / 4 + r] = floats[out / 4 + r]! + (a + b) * Math.fround(worth * floats[scales / 4 + r]!);
    }
  };
}

/** What a vector becomes by that rounding. */
export function rounded(x: Float32Array): Float32Array {
  let most = 0;
  for (const each of x) most = Math.max(most, Math.abs(each));
  const by = most === 0 ? 0 : Math.fround(127 / most);
  const worth = Math.fround(most / 127);
  return x.map((each) => toEven(Math.fround(each * by)) * worth);
}

function instance(pages: number): { buffer: ArrayBuffer; product: Product } | null {
  try {
    const memory = new WebAssembly.Memory({ initial: pages });
    const code = Uint8Array.from(atob(product), (each) => each.charCodeAt(0));
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(code), { arithmetic: { memory } });
    return { buffer: memory.buffer, product: exports["product"] as Product };
  } catch {
    return null; // an old browser, or a policy that allows none
  }
}
