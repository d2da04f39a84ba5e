/** Data of alignment pictures, and the spots a reader points at or opens. */

export interface Aligned {
  readonly source: readonly string[];
  readonly target: readonly string[];
  /** Attention weights: a row over the source for each target word. */
  readonly weights: readonly Float64Array[];
  /** Steps with a pinned weight or a picked word. */
  readonly changed: ReadonlySet<number>;
  /** Language codes, by which browsers choose glyph variants; empty if unknown. */
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
  readonly look: (spot: Spot) => void;
  /** Called when a spot is clicked, or Enter pressed on it. */
  readonly open: (spot: Spot) => void;
}

/** A drawing with a method that highlights a spot. */
export interface Picture {
  readonly element: SVGSVGElement;
  readonly stress: (spot: Spot, opened: number | null) => void;
}

/** Index of the largest weight. */
export function argmax(weights: ArrayLike<number>): number {
  let best = 0;
  for (let k = 1; k < weights.length; k++) if (weights[k]! > weights[best]!) best = k;
  return best;
}

/** The weight with the strongest colour: 1, or less where all are small, as in long texts. */
export function ceiling(weights: readonly ArrayLike<number>[]): number {
  const most = weights.reduce((all, row) => Math.max(all, row.length ? row[argmax(row)]! : 0), 0);
  return [0.04, 0.08, 0.2, 0.4].find((each) => most <= each) ?? 1;
}

/** True if two alignments have equal words and weights. */
export const isSame = (one: Aligned, other: Aligned): boolean =>
  alike(one.source, other.source) && alike(one.target, other.target) && one.weights.every((row, k) => alike(row, other.weights[k]!));

function alike<T>(one: ArrayLike<T>, other: ArrayLike<T>): boolean {
  for (let k = 0; k < one.length; k++) if (one[k] !== other[k]) return false;
  return one.length === other.length;
}
