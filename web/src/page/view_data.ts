/** The data of attention views, and the patterns of heads. */
import type { Maps, Layout } from "./weights";

const MIN_CLEAR_SHARE = 0.3; // a smaller share of a head's weight shows no clear pattern
const MIN_EVEN_SHARE = 0.6; // the same for the pattern "evenly"

export type Token = readonly [text: string, special: boolean, continues: boolean];
export type Side = 0 | 1; // queries, keys
export type Spot = readonly [side: Side, position: number];

/** The patterns that `dikkat.inspection.heads` measures, and their symbols. */
export const SIGNS = { previous: "←", next: "→", itself: "=", first: "⇤", same: "≡", induction: "↻", separator: "¶", nearby: "◎", row: "↔", column: "↕", class: "★", registers: "⌂", evenly: "≈" } as const;
export type Pattern = keyof typeof SIGNS;
export const PATTERNS = Object.keys(SIGNS) as Pattern[];
/** The measure that ranks heads: the change of their weights, or the effect of removing them. */
export type Lead = "change" | "effect" | "estimate";

export interface Layer {
  readonly name: string;
  readonly number: number;
  readonly heads: readonly number[];
  readonly shares: { readonly [doing in Pattern | "information" | Lead]?: readonly (number | null)[] };
  /** The main pattern of each head; "" if unknown. */
  readonly looks: readonly (Pattern | "")[];
  readonly top: number;
  readonly keys: string;
  readonly weights: string;
  readonly cells: readonly [number, number];
  /** True if the map, or `maps`, contains all weights, not only the largest ones. */
  readonly whole: boolean;
  readonly map: string;
  /** The weights of a view with layouts. */
  readonly maps?: Maps;
}

/** Attention of one kind, written by `dikkat.show.views`. */
export interface View {
  readonly kind: "self" | "encoder" | "cross" | "";
  /** The index of the batch item; null if the page has one item. */
  readonly element: number | null;
  readonly title: string;
  /** The divisor of the weights; "" for none. */
  readonly note: string;
  /** The measure that ranks heads; "" ranks them by their patterns. Weights are signed if it is "change". */
  readonly lead: Lead | "";
  readonly queries: readonly Token[];
  readonly keys: readonly Token[];
  /** The sequence positions of queries and keys; by default 0, 1, 2 and so on. */
  readonly positions?: readonly [queries: readonly number[], keys: readonly number[]];
  /** The layouts among queries and keys. */
  readonly parts?: readonly [queries: readonly Layout[], keys: readonly Layout[]];
  readonly layers: readonly Layer[];
}

/** The main pattern of a head, and its share of the head's weight. */
export function mainPattern({ looks, shares }: Layer, k: number): readonly [Pattern, number] {
  const pattern = looks[k] || "evenly";
  return [pattern, shares[pattern]?.[k] ?? -1];
}

/** True if the share is large enough to name the pattern. */
export const isClear = (pattern: Pattern, share: number): boolean => share >= (pattern === "evenly" ? MIN_EVEN_SHARE : MIN_CLEAR_SHARE);
