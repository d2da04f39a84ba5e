/** Attention weights between positions, which are words or belong to layouts: grids of images and time axes. */
import { unpacked } from "../decoder/tensors";
import type { Spot } from "./view_data";

/** The patches of an image, row by row from position `start`. */
export interface Grid {
  readonly kind: "grid";
  readonly start: number;
  readonly rows: number;
  readonly columns: number;
  /** The number of the image; −1 for none. */
  readonly image: number;
  /** The number of the lattice that contains the grid, and the lattice's rows above the grid. */
  readonly number: number;
  readonly above: number;
  /** Left, top, right and bottom edge in pixels of the image. */
  readonly box: readonly [number, number, number, number];
}

export interface Times {
  readonly kind: "times";
  readonly start: number;
  readonly values: readonly number[];
  readonly series: readonly number[] | null;
}

export type Layout = Grid | Times;

/** Weights of a layer as 8-bit codes, written by `dikkat.show.views`. */
export interface Maps {
  /** Side of a block of patches, or length of a run of times, with one mean weight. */
  readonly block: number;
  /** Weights of word queries: (heads, word queries, keys), gzipped, in base64; empty if `block` is 1. */
  readonly rows: string;
  /** Mean weights: (heads, groups of queries, groups of keys), gzipped, in base64. */
  readonly blocks: string;
}

const SIGN = 128; // bit of negative weights
const SINK_FACTOR = 10; // most queries give a sink at least this multiple of the uniform weight
const MIN_SINK_QUERIES = 8;

/** Weights by code, for unsigned and signed codes. */
const VALUES = [false, true].map((signed) => Float32Array.from({ length: 256 }, (_, code) => {
  const magnitude = signed ? code & (SIGN - 1) : code;
  if (!magnitude) return 0;
  return signed ? (code & SIGN ? -1 : 1) * 2 ** ((magnitude - SIGN + 1) / 6) : 2 ** ((magnitude - 255) / 12);
}));

export const isGrid = (layout: Layout): layout is Grid => layout.kind === "grid";

export const countOf = (layout: Layout): number => (layout.kind === "grid" ? layout.rows * layout.columns : layout.values.length);

/** The positions of queries or keys in groups: one group for each word, and for each block of a layout. */
export class Axis {
  readonly group: Int32Array;
  readonly sizes: Int32Array;
  /** Positions of words; and the index of each position in `words`, or −1. */
  readonly words: readonly number[];
  readonly rank: Int32Array;

  constructor(readonly length: number, layouts: readonly Layout[], block: number) {
    const names = Array.from({ length }, (_, position) => String(position));
    const blocks = (layout: Layout, k: number): readonly number[] =>
      layout.kind === "grid" ? [layout.number, Math.floor((layout.above + Math.floor(k / layout.columns)) / block), Math.floor((k % layout.columns) / block)] : [layout.start, Math.floor(k / block)];
    this.rank = new Int32Array(length);
    for (const layout of layouts) {
      this.rank.fill(-1, layout.start, layout.start + countOf(layout));
      for (let k = 0; k < countOf(layout); k++) names[layout.start + k] = `${layout.kind} ${blocks(layout, k).join(" ")}`;
    }
    const numbers = new Map([...new Set(names)].map((name, group) => [name, group]));
    this.group = Int32Array.from(names, (name) => numbers.get(name)!);
    this.sizes = new Int32Array(numbers.size);
    for (const group of this.group) this.sizes[group]! += 1;
    this.words = [...this.rank.keys()].filter((position) => !this.rank[position]);
    this.words.forEach((position, rank) => (this.rank[position] = rank));
  }
}

/** Weights of one layer. */
export class Weights {
  private readonly sinkOf: Uint8Array[] = [];
  private readonly groupSinkOf: Uint8Array[] = [];
  private readonly rescalingOf: Float32Array[] = [];

  private constructor(
    private readonly axes: readonly [Axis, Axis], readonly block: number,
    private readonly rows: Uint8Array, private readonly blocks: Uint8Array, private readonly values: Float32Array,
  ) {}

  static async unpack({ block, rows, blocks }: Maps, axes: readonly [Axis, Axis], signed: boolean): Promise<Weights> {
    return new Weights(axes, block, rows ? await unpacked(rows) : new Uint8Array(), await unpacked(blocks), VALUES[Number(signed)]!);
  }

  /** A spot's weights, one for each position of the other axis; without a spot, the means of all queries. */
  weightsOf(head: number, spot: Spot | null, hidesSinks: boolean): Float32Array {
    if (!spot) return this.mean(head, hidesSinks);
    return spot[0] ? this.column(head, spot[1], hidesSinks) : this.row(head, spot[1], hidesSinks);
  }

  /** True if the weights of a position are means of its block. */
  isPooled([side, position]: Spot): boolean {
    return this.block > 1 && (side === 1 || this.axes[0].rank[position]! < 0);
  }

  private weight(head: number, query: number, key: number): number {
    const [queryAxis, keyAxis] = this.axes;
    return this.values[this.isExact(query)
      ? this.rows[(head * queryAxis.words.length + queryAxis.rank[query]!) * keyAxis.length + key]!
      : this.blocks[(head * queryAxis.sizes.length + queryAxis.group[query]!) * keyAxis.sizes.length + keyAxis.group[key]!]!]!;
  }

  private row(head: number, query: number, hidesSinks: boolean): Float32Array {
    const [queryAxis, keyAxis] = this.axes;
    const exact = this.isExact(query);
    const [codes, start] = exact ? [this.rows, (head * queryAxis.words.length + queryAxis.rank[query]!) * keyAxis.length] : [this.blocks, (head * queryAxis.sizes.length + queryAxis.group[query]!) * keyAxis.sizes.length];
    const sinks = !hidesSinks ? null : exact ? this.sinks(head) : this.groupSinks(head);
    const factor = hidesSinks ? this.rescaling(head)[query]! : 1;
    const weights = new Float32Array(keyAxis.length);
    for (let key = 0; key < weights.length; key++) if (!sinks?.[key]) weights[key] = factor * this.values[codes[start + (exact ? key : keyAxis.group[key]!)]!]!;
    return weights;
  }

  /** The weights of a key. Without sinks, each query's other weights add up to 1. */
  private column(head: number, key: number, hidesSinks: boolean): Float32Array {
    return Float32Array.from({ length: this.axes[0].length }, (_, query) => {
      if (hidesSinks && (this.isExact(query) ? this.sinks(head) : this.groupSinks(head))[key]) return 0;
      return this.weight(head, query, key) * (hidesSinks ? this.rescaling(head)[query]! : 1);
    });
  }

  private mean(head: number, hidesSinks: boolean): Float32Array {
    const [queryAxis, keyAxis] = this.axes;
    const share = new Float32Array(queryAxis.sizes.length); // of each group in the mean
    for (let query = 0; query < queryAxis.length; query++) {
      share[queryAxis.group[query]!]! += (hidesSinks ? this.rescaling(head)[query]! : 1) / queryAxis.length;
    }
    const means = new Float32Array(keyAxis.sizes.length);
    for (let group = 0; group < share.length; group++) {
      const start = (head * share.length + group) * means.length;
      for (let key = 0; key < means.length; key++) means[key]! += share[group]! * this.values[this.blocks[start + key]!]!;
    }
    return Float32Array.from({ length: keyAxis.length }, (_, key) => (hidesSinks && this.groupSinks(head)[key] ? 0 : means[keyAxis.group[key]!]!));
  }

  /** Marks attention sinks: keys with ten times the uniform weight from most queries that see them. */
  sinks(head: number): Uint8Array {
    return (this.sinkOf[head] ??= this.groupSinks(head).map((isGroupSink, key) => Number(isGroupSink && this.isPeak(head, key))));
  }

  /** True if word queries, whose weights are exact, give a key the weight of a sink. Few patches of a block pass. */
  private isPeak(head: number, key: number): boolean {
    const { axes: [{ words }, keyAxis], rows } = this;
    return !rows.length || keyAxis.sizes[keyAxis.group[key]!] === 1
      || words.reduce((sum, query) => sum + this.weight(head, query, key), 0) * keyAxis.length >= SINK_FACTOR * words.length;
  }

  /** True if the weights of a query are exact, not means of its block. */
  private isExact(query: number): boolean {
    return this.rows.length > 0 && this.axes[0].rank[query]! >= 0;
  }

  /** Marks all keys of each block that contains a sink. */
  private groupSinks(head: number): Uint8Array {
    const cached = this.groupSinkOf[head];
    if (cached) return cached;
    const [queryAxis, keyAxis] = this.axes;
    const [visibleQueries, peakQueries] = [new Int32Array(keyAxis.sizes.length), new Int32Array(keyAxis.sizes.length)];
    for (let group = 0; group < queryAxis.sizes.length; group++) {
      const start = (head * queryAxis.sizes.length + group) * keyAxis.sizes.length;
      let visible = 0;
      for (let key = 0; key < visibleQueries.length; key++) if (this.blocks[start + key]) visible += keyAxis.sizes[key]!;
      for (let key = 0; key < visibleQueries.length; key++) {
        const weight = this.values[this.blocks[start + key]!]!;
        if (weight) visibleQueries[key]! += queryAxis.sizes[group]!;
        // The mean of a block dilutes a single sink, so the threshold is lower; `isPeak` then checks exact weights.
        if (weight * visible >= SINK_FACTOR / (this.rows.length ? Math.sqrt(keyAxis.sizes[key]!) : 1)) peakQueries[key]! += queryAxis.sizes[group]!;
      }
    }
    const isStrong = (group: number): boolean => visibleQueries[group]! >= MIN_SINK_QUERIES && 2 * peakQueries[group]! > visibleQueries[group]!;
    const peaks = new Set([...keyAxis.group].filter((group, key) => isStrong(group) && this.isPeak(head, key)));
    return (this.groupSinkOf[head] = Uint8Array.from(keyAxis.group, (group) => Number(peaks.has(group))));
  }

  /** For each query, 1 divided by its total weight on keys that are not sinks. */
  private rescaling(head: number): Float32Array {
    const cached = this.rescalingOf[head];
    if (cached) return cached;
    const [queryAxis, keyAxis] = this.axes;
    if (!this.groupSinks(head).some(Boolean)) return (this.rescalingOf[head] = new Float32Array(queryAxis.length).fill(1));
    const weightWithoutSinks = new Float32Array(queryAxis.sizes.length);
    const isSink = new Uint8Array(keyAxis.sizes.length);
    this.groupSinks(head).forEach((isGroupSink, key) => (isSink[keyAxis.group[key]!] = isGroupSink));
    for (let group = 0; group < weightWithoutSinks.length; group++) {
      const start = (head * weightWithoutSinks.length + group) * isSink.length;
      for (let key = 0; key < isSink.length; key++) if (!isSink[key]) weightWithoutSinks[group]! += keyAxis.sizes[key]! * this.values[this.blocks[start + key]!]!;
    }
    const keys = [...keyAxis.group.keys()];
    return (this.rescalingOf[head] = Float32Array.from(queryAxis.group, (group, query) => {
      const sum = this.isExact(query) ? keys.reduce((sum, key) => sum + (this.sinks(head)[key] ? 0 : this.weight(head, query, key)), 0) : weightWithoutSinks[group]!;
      return sum ? 1 / sum : 0;
    }));
  }
}
