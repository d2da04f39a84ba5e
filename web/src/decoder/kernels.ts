/** The loops in which a translator spends its time: in WebAssembly where there is some, otherwise in typed arrays. */
import code from "./kernels.wat";

/** Compiled functions; arguments are byte addresses or counts, documented in kernels.wat. */
interface Kernels {
  product(
    weights: number, scales: number, rows: number, width: number,
    vectors: number, worths: number, count: number, out: number, stride: number,
  ): void;
  sumOfExponentials(at: number, count: number, most: number): number;
  sigmoids(at: number, count: number): void;
  tanhs(at: number, count: number): void;
  additive(keys: number, places: number, width: number, query: number, v: number, out: number): void;
  average(vectors: number, places: number, width: number, weights: number, sums: number): void;
}

/** Kernels with their memory, whose buffer is replaced when it grows. */
export interface Machine {
  readonly kind: "wasm" | "js";
  readonly kernels: Kernels;
  readonly buffer: () => ArrayBuffer;
  /** Ensures a size in bytes. */
  readonly grow: (bytes: number) => void;
}

const PAGE = 1 << 16;

/** @param plain true to compute without WebAssembly */
export function machine(plain: boolean): Machine {
  return (plain ? null : inWebAssembly()) ?? inTypedArrays();
}

function inWebAssembly(): Machine | null {
  try {
    const memory = new WebAssembly.Memory({ initial: 1 });
    const bytes = Uint8Array.from(atob(code), (each) => each.charCodeAt(0));
    const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytes), { arithmetic: { memory } });
    return {
      kind: "wasm",
      kernels: exports as unknown as Kernels,
      buffer: () => memory.buffer,
      grow: (size) => void memory.grow(Math.max(0, Math.ceil((size - memory.buffer.byteLength) / PAGE))),
    };
  } catch {
    return null; // an old browser, or a policy that forbids WebAssembly
  }
}

function inTypedArrays(): Machine {
  let buffer = new ArrayBuffer(PAGE);
  let [bytes, halves, floats, doubles] = views(buffer);
  const kernels: Kernels = {
    product(weights, scales, rows, width, vectors, worths, count, out, stride) {
      for (let r = 0; r < rows; r++) {
        const first = weights + (r >> 2) * 4 * width + (r & 3) * 16;
        for (let v = 0; v < count; v++) {
          const at = vectors / 2 + v * width;
          let sum = 0;
          for (let c = 0; c < width; c += 16) {
            for (let k = 0; k < 16; k++) sum += bytes[first + 4 * c + k]! * halves[at + c + k]!;
          }
          const to = (out + v * stride) / 4 + r;
          floats[to] = floats[to]! + sum * Math.fround(floats[worths / 4 + v]! * floats[scales / 4 + r]!);
        }
      }
    },
    sumOfExponentials(at, count, most) {
      let sum = 0;
      for (let k = at / 4; k < at / 4 + count; k++) sum += Math.exp(floats[k]! - most);
      return sum;
    },
    sigmoids(at, count) {
      for (let k = at / 4; k < at / 4 + count; k++) floats[k] = 1 / (1 + Math.exp(-floats[k]!));
    },
    tanhs(at, count) {
      for (let k = at / 4; k < at / 4 + count; k++) floats[k] = Math.tanh(floats[k]!);
    },
    additive(keys, places, width, query, v, out) {
      for (let place = 0; place < places; place++) {
        let sum = 0;
        for (let k = 0; k < width; k++) {
          const w = doubles[v / 8 + k]!;
          sum += w - (2 * w) / (1 + doubles[query / 8 + k]! * doubles[keys / 8 + place * width + k]!);
        }
        doubles[out / 8 + place] = sum;
      }
    },
    average(vectors, places, width, weights, sums) {
      for (let place = 0; place < places; place++) {
        const [row, weight] = [vectors / 4 + place * width, doubles[weights / 8 + place]!];
        for (let k = 0; k < width; k++) doubles[sums / 8 + k]! += weight * floats[row + k]!;
      }
    },
  };
  return {
    kind: "js",
    kernels,
    buffer: () => buffer,
    grow: (size) => {
      if (size <= buffer.byteLength) return;
      const before = bytes;
      buffer = new ArrayBuffer(Math.ceil(size / PAGE) * PAGE);
      [bytes, halves, floats, doubles] = views(buffer);
      bytes.set(before);
    },
  };
}

const views = (buffer: ArrayBuffer): [Int8Array, Int16Array, Float32Array, Float64Array] =>
  [new Int8Array(buffer), new Int16Array(buffer), new Float32Array(buffer), new Float64Array(buffer)];
