/** Alignments, and spots: words or pairs that the reader selects in a picture. */

export interface Alignment {
  readonly source: readonly string[];
  readonly target: readonly string[];
  /** Attention weights: one row over the source words for each target word. */
  readonly weights: readonly Float64Array[];
  /** Target words with a pinned weight, or selected by the reader. */
  readonly changedWords: ReadonlySet<number>;
  /** Language codes, by which browsers choose variants of glyphs; "" if unknown. */
  readonly languages?: readonly [source: string, target: string];
}

/** A target word, a source word, or a pair. */
export interface Spot {
  readonly target: number | null;
  readonly source: number | null;
}

export const NOWHERE: Spot = { target: null, source: null };

export const isNowhere = ({ target, source }: Spot): boolean => target === null && source === null;

export interface Listeners {
  /** Called when a spot is hovered or focused. */
  readonly hover: (spot: Spot) => void;
  /** Called when a spot is clicked, or activated with Enter. */
  readonly open: (spot: Spot) => void;
}

/** A picture in which a spot, and the opened target word, can be highlighted. */
export interface Highlightable {
  readonly highlight: (spot: Spot, openedWord: number | null) => void;
}

export interface Picture extends Highlightable {
  readonly element: SVGSVGElement;
}

/** Index of the largest weight. */
export function argmax(weights: ArrayLike<number>): number {
  let best = 0;
  for (let k = 1; k < weights.length; k++) if (weights[k]! > weights[best]!) best = k;
  return best;
}

/** The weight with the strongest colour: 1, or less if all weights are small, as in long texts. */
export function ceiling(weights: readonly ArrayLike<number>[]): number {
  const maximum = weights.reduce((largest, row) => Math.max(largest, row.length ? row[argmax(row)]! : 0), 0);
  return [0.04, 0.08, 0.2, 0.4].find((limit) => maximum <= limit) ?? 1;
}

/** True if two alignments have equal words and weights. */
export const isSame = (a: Alignment, b: Alignment): boolean =>
  areEqual(a.source, b.source) && areEqual(a.target, b.target) && a.weights.every((row, k) => areEqual(row, b.weights[k]!));

function areEqual<T>(a: ArrayLike<T>, b: ArrayLike<T>): boolean {
  for (let k = 0; k < a.length; k++) if (a[k] !== b[k]) return false;
  return a.length === b.length;
}
