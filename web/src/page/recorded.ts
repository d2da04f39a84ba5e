/** The data of views, and the patterns of heads. */
import type { Token } from "./columns";
import type { Maps, Part } from "./weights";

const CLEAR = 0.3; // least share of a head's weight that says what the head does
const EVEN = 0.6; // … of a head that looks evenly: less is weight that points somewhere

/** What a head may do, as `dikkat.inspection.heads` measures it, with the sign of each. Colours are those of heads. */
export const SIGNS = { previous: "←", next: "→", itself: "=", first: "⇤", same: "≡", induction: "↻", separator: "¶", nearby: "◎", row: "↔", column: "↕", class: "★", registers: "⌂", evenly: "≈" } as const;
export type Doing = keyof typeof SIGNS;
export const DOING = Object.keys(SIGNS) as Doing[];
/** What a page may rank heads by: the change of their weights, or what cutting them does to a result. */
export type Lead = "change" | "effect" | "estimate";

export interface Layer {
  readonly name: string;
  readonly number: number;
  readonly heads: readonly number[];
  readonly shares: { readonly [doing in Doing | "information" | Lead]?: readonly (number | null)[] };
  /** What each head does; "" if that is not known. */
  readonly looks: readonly (Doing | "")[];
  readonly top: number;
  readonly keys: string;
  readonly weights: string;
  readonly cells: readonly [number, number];
  /** Whether the map, or `maps`, has all weights, not only the largest ones. */
  readonly whole: boolean;
  readonly map: string;
  /** The weights between parts of a view with parts. */
  readonly maps?: Maps;
}

/** Attention of one kind; `dikkat.show.views` writes them. */
export interface View {
  readonly kind: "self" | "encoder" | "cross" | "";
  /** Which element of a batch; null on a page of one. */
  readonly element: number | null;
  readonly title: string;
  /** What the weights are divided by; "" for nothing. */
  readonly note: string;
  /** By what heads are ranked; "" for what they do. Weights are signed where it is "change". */
  readonly lead: Lead | "";
  readonly queries: readonly Token[];
  readonly keys: readonly Token[];
  /** The positions of queries and keys in the sequence; 0, 1, 2 and so on by default. */
  readonly positions?: readonly [queries: readonly number[], keys: readonly number[]];
  /** The grids and times among queries and keys. */
  readonly parts?: readonly [queries: readonly Part[], keys: readonly Part[]];
  readonly layers: readonly Layer[];
}

/** What a head does, and how large a share of its weight that is. */
export function doingOf({ looks, shares }: Layer, k: number): readonly [Doing, number] {
  const doing = looks[k] || "evenly";
  return [doing, shares[doing]?.[k] ?? -1];
}

/** Whether a share is large enough to say that a head does this. */
export const isClear = (doing: Doing, share: number): boolean => share >= (doing === "evenly" ? EVEN : CLEAR);
