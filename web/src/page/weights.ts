/** Weights between positions in parts: grids of an image, time axes and words. */
import { unpacked } from "../decoder/tensors";

/** The patches of an image, row by row from position `start`. */
export interface Grid {
  readonly kind: "grid";
  readonly start: number;
  readonly rows: number;
  readonly columns: number;
  /** The number of the image; −1 for none. */
  readonly image: number;
  /** The number of the lattice that the grid is a part of, and the lattice's rows above the grid. */
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

export type Part = Grid | Times;

/** Weights of a layer, in codes of 8 bits; `dikkat.show.views` writes them. */
export interface Maps {
  /** Side of a block of patches, or length of a run of times, that has one weight. */
  readonly block: number;
  /** Weights of the queries outside all parts: (heads, these queries, keys), gzipped, in base64; empty if `block` is 1. */
  readonly rows: string;
  /** Mean weights: (heads, groups of queries, groups of keys), gzipped, in base64. */
  readonly blocks: string;
}

export type Side = 0 | 1; // queries, keys
export type Spot = readonly [side: Side, position: number];

const SIGN = 128; // bit of a code of a weight below 0
const STRONG = 10; // times the uniform weight, from most queries: a sink
const LEAST = 8; // queries that a sink needs

/** Weights by code: of codes without signs, and with signs. */
const VALUES = [false, true].map((signed) => Float32Array.from({ length: 256 }, (_, code) => {
  const magnitude = signed ? code & (SIGN - 1) : code;
  if (!magnitude) return 0;
  return signed ? (code & SIGN ? -1 : 1) * 2 ** ((magnitude - SIGN + 1) / 6) : 2 ** ((magnitude - 255) / 12);
}));

export const countOf = (part: Part): number => (part.kind === "grid" ? part.rows * part.columns : part.values.length);

/** Positions of an axis in groups: a group for each word, and for each block of an image or time axis. */
export class Axis {
  readonly group: Int32Array;
  readonly sizes: Int32Array;
  /** Positions outside all parts; and the index of each position among them, or −1. */
  readonly outside: readonly number[];
  readonly rank: Int32Array;

  constructor(readonly length: number, parts: readonly Part[], block: number) {
    const names = Array.from({ length }, (_, position) => String(position));
    const blocks = (part: Part, k: number): readonly number[] =>
      part.kind === "grid" ? [part.number, Math.floor((part.above + Math.floor(k / part.columns)) / block), Math.floor((k % part.columns) / block)] : [part.start, Math.floor(k / block)];
    this.rank = new Int32Array(length);
    for (const part of parts) {
      this.rank.fill(-1, part.start, part.start + countOf(part));
      for (let k = 0; k < countOf(part); k++) names[part.start + k] = `${part.kind} ${blocks(part, k).join(" ")}`;
    }
    const numbers = new Map([...new Set(names)].map((name, group) => [name, group]));
    this.group = Int32Array.from(names, (name) => numbers.get(name)!);
    this.sizes = new Int32Array(numbers.size);
    for (const group of this.group) this.sizes[group]! += 1;
    this.outside = [...this.rank.keys()].filter((position) => !this.rank[position]);
    this.outside.forEach((position, rank) => (this.rank[position] = rank));
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

  static async of({ block, rows, blocks }: Maps, axes: readonly [Axis, Axis], signed: boolean): Promise<Weights> {
    return new Weights(axes, block, rows ? await unpacked(rows) : new Uint8Array(), await unpacked(blocks), VALUES[Number(signed)]!);
  }

  /** The weight of each position of the other axis with one position; of all queries, the mean. */
  of(head: number, spot: Spot | null, hidden: boolean): Float32Array {
    if (!spot) return this.mean(head, hidden);
    return spot[0] ? this.column(head, spot[1], hidden) : this.row(head, spot[1], hidden);
  }

  /** Whether the numbers of a position are those of its block. */
  isPooled([side, position]: Spot): boolean {
    return this.block > 1 && (side === 1 || this.axes[0].rank[position]! < 0);
  }

  private at(head: number, query: number, key: number): number {
    const [from, to] = this.axes;
    return this.values[this.isExact(query)
      ? this.rows[(head * from.outside.length + from.rank[query]!) * to.length + key]!
      : this.blocks[(head * from.sizes.length + from.group[query]!) * to.sizes.length + to.group[key]!]!]!;
  }

  private row(head: number, query: number, hidden: boolean): Float32Array {
    const [from, to] = this.axes;
    const exact = this.isExact(query);
    const [codes, start] = exact ? [this.rows, (head * from.outside.length + from.rank[query]!) * to.length] : [this.blocks, (head * from.sizes.length + from.group[query]!) * to.sizes.length];
    const sinks = !hidden ? null : exact ? this.sinks(head) : this.groupSinks(head);
    const factor = hidden ? this.rescaling(head)[query]! : 1;
    const weights = new Float32Array(to.length);
    for (let key = 0; key < weights.length; key++) if (!sinks?.[key]) weights[key] = factor * this.values[codes[start + (exact ? key : to.group[key]!)]!]!;
    return weights;
  }

  /** The weights of a key; if sinks are hidden, their shares in the weights of each query on other keys. */
  private column(head: number, key: number, hidden: boolean): Float32Array {
    return Float32Array.from({ length: this.axes[0].length }, (_, query) => {
      if (hidden && (this.isExact(query) ? this.sinks(head) : this.groupSinks(head))[key]) return 0;
      return this.at(head, query, key) * (hidden ? this.rescaling(head)[query]! : 1);
    });
  }

  private mean(head: number, hidden: boolean): Float32Array {
    const [from, to] = this.axes;
    const share = new Float32Array(from.sizes.length); // of each group in the mean
    for (let query = 0; query < from.length; query++) {
      share[from.group[query]!]! += (hidden ? this.rescaling(head)[query]! : 1) / from.length;
    }
    const means = new Float32Array(to.sizes.length);
    for (let group = 0; group < share.length; group++) {
      const start = (head * share.length + group) * means.length;
      for (let key = 0; key < means.length; key++) means[key]! += share[group]! * this.values[this.blocks[start + key]!]!;
    }
    return Float32Array.from({ length: to.length }, (_, key) => (hidden && this.groupSinks(head)[key] ? 0 : means[to.group[key]!]!));
  }

  /** Keys that receive at least ten times the uniform weight from most of the queries that see them. */
  sinks(head: number): Uint8Array {
    return (this.sinkOf[head] ??= this.groupSinks(head).map((is, key) => Number(is && this.isPeak(head, key))));
  }

  /** Whether the queries outside parts, whose weights are exact, give a key as much as a sink: of a block's patches, few are. */
  private isPeak(head: number, key: number): boolean {
    const { axes: [{ outside }, to], rows } = this;
    return !rows.length || to.sizes[to.group[key]!] === 1
      || outside.reduce((sum, query) => sum + this.at(head, query, key), 0) * to.length >= STRONG * outside.length;
  }

  /** Whether a query has a row of its own. */
  private isExact(query: number): boolean {
    return this.rows.length > 0 && this.axes[0].rank[query]! >= 0;
  }

  /** As `sinks`, with all patches of a block. */
  private groupSinks(head: number): Uint8Array {
    const known = this.groupSinkOf[head];
    if (known) return known;
    const [from, to] = this.axes;
    const [seen, strong] = [new Int32Array(to.sizes.length), new Int32Array(to.sizes.length)];
    for (let group = 0; group < from.sizes.length; group++) {
      const start = (head * from.sizes.length + group) * to.sizes.length;
      let visible = 0;
      for (let key = 0; key < seen.length; key++) if (this.blocks[start + key]) visible += to.sizes[key]!;
      for (let key = 0; key < seen.length; key++) {
        const weight = this.values[this.blocks[start + key]!]!;
        if (weight) seen[key]! += from.sizes[group]!;
        // One sink is diluted in the mean of a block, which a peak in exact rows makes up for.
        if (weight * visible >= STRONG / (this.rows.length ? Math.sqrt(to.sizes[key]!) : 1)) strong[key]! += from.sizes[group]!;
      }
    }
    const isStrong = (group: number): boolean => seen[group]! >= LEAST && 2 * strong[group]! > seen[group]!;
    const peaks = new Set([...to.group].filter((group, key) => isStrong(group) && this.isPeak(head, key)));
    return (this.groupSinkOf[head] = Uint8Array.from(to.group, (group) => Number(peaks.has(group))));
  }

  /** Of each query, 1 over its weight on all keys but sinks. */
  private rescaling(head: number): Float32Array {
    const known = this.rescalingOf[head];
    if (known) return known;
    const [from, to] = this.axes;
    if (!this.groupSinks(head).some(Boolean)) return (this.rescalingOf[head] = new Float32Array(from.length).fill(1));
    const kept = new Float32Array(from.sizes.length);
    const isSink = new Uint8Array(to.sizes.length);
    this.groupSinks(head).forEach((is, key) => (isSink[to.group[key]!] = is));
    for (let group = 0; group < kept.length; group++) {
      const start = (head * kept.length + group) * isSink.length;
      for (let key = 0; key < isSink.length; key++) if (!isSink[key]) kept[group]! += to.sizes[key]! * this.values[this.blocks[start + key]!]!;
    }
    const keys = [...to.group.keys()];
    return (this.rescalingOf[head] = Float32Array.from(from.group, (group, query) => {
      const sum = this.isExact(query) ? keys.reduce((before, key) => before + (this.sinks(head)[key] ? 0 : this.at(head, query, key)), 0) : kept[group]!;
      return sum ? 1 / sum : 0;
    }));
  }
}
