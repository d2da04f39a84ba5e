/** Files of tensors, as https://github.com/huggingface/safetensors has them, and the bundle that a page carries. */
import { Refusal } from "./refusal";

export type Numbers = Int8Array | Uint8Array | Uint16Array | Int32Array | Float32Array | Float64Array;

export interface Tensor {
  readonly shape: readonly number[];
  readonly numbers: Numbers;
}

/** Numbers of float16 are their bits. */
const KINDS = { I8: Int8Array, U8: Uint8Array, F16: Uint16Array, I32: Int32Array, F32: Float32Array, F64: Float64Array } as const;

interface Entry {
  dtype: keyof typeof KINDS;
  shape: number[];
  data_offsets: [number, number];
}

/** Splits off a header: eight bytes with its length, little-endian, then that many bytes of JSON. */
function headed(bytes: Uint8Array): { header: Record<string, unknown>; rest: Uint8Array } {
  if (bytes.length < 8) throw new Refusal("damaged", "no header");
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (8 + length > bytes.length) throw new Refusal("damaged", "header cut short");
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length))) as Record<string, unknown>;
  return { header, rest: bytes.subarray(8 + length) };
}

/** All tensors of a safetensors file. */
export function readTensors(bytes: Uint8Array): Map<string, Tensor> {
  const { header, rest } = headed(bytes);
  const found = new Map<string, Tensor>();
  for (const [name, value] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const { dtype, shape, data_offsets: [start, end] } = value as Entry;
    const kind = KINDS[dtype];
    if (!kind || end > rest.length) throw new Refusal("damaged", name);
    // A copy, since Float32Array wants offsets that are multiples of four.
    const own = rest.slice(start, end);
    const numbers = new kind(own.buffer, 0, own.byteLength / kind.BYTES_PER_ELEMENT);
    if (numbers.length !== shape.reduce((a, b) => a * b, 1)) throw new Refusal("damaged", name);
    found.set(name, { shape, numbers });
  }
  return found;
}

/** The texts that a safetensors file has by their names. */
export const metadataOf = (bytes: Uint8Array): Record<string, string> => (headed(bytes).header["__metadata__"] ?? {}) as Record<string, string>;

/** The files of a bundle by their names: a header `{name: [first byte, the one behind the last]}`, then the files. */
export function readBundle(bytes: Uint8Array): Map<string, Uint8Array> {
  const { header, rest } = headed(bytes);
  return new Map(
    Object.entries(header).map(([name, range]) => {
      const [start, end] = range as [number, number];
      if (!(start <= end && end <= rest.length)) throw new Refusal("damaged", name);
      return [name, rest.subarray(start, end)];
    }),
  );
}

/** A checksum (FNV-1a, 32 bits). */
export const checksum = (bytes: Uint8Array): number => bytes.reduce((sum, byte) => Math.imul(sum ^ byte, 0x01000193), 0x811c9dc5) >>> 0;

/** Decompresses base64 of gzip; the checksum in gzip finds damage. */
export async function unpacked(base64: string): Promise<Uint8Array> {
  if (typeof DecompressionStream === "undefined") throw new Refusal("old-browser", "DecompressionStream");
  let text: string;
  try {
    text = atob(base64.trim());
  } catch {
    throw new Refusal("damaged", "base64");
  }
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  try {
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new Refusal("damaged", "gzip");
  }
}
