/** What the pictures of an alignment show, and what a reader has chosen in them. */

export interface Aligned {
  readonly source: readonly string[];
  readonly target: readonly string[];
  /** For each word of the target, how much it looked at each of the source. */
  readonly weights: readonly Float64Array[];
  /** Steps that were changed: of their weights, or of the word itself. */
  readonly changed: ReadonlySet<number>;
  /** The languages of both, by which browsers choose forms of letters; empty where it is not known. */
  readonly languages?: readonly [source: string, target: string];
}

/** A place in a picture: a word of the target, or of the source, or a pair. */
export interface Spot {
  readonly target: number | null;
  readonly source: number | null;
}

export const NOWHERE: Spot = { target: null, source: null };

export const isNowhere = ({ target, source }: Spot): boolean => target === null && source === null;

export interface Listeners {
  /** Looked at for a moment: with the pointer, a finger or the keyboard. */
  readonly look: (spot: Spot) => void;
  /** Chosen, to be opened. */
  readonly open: (spot: Spot) => void;
}

/** A picture that can be told what to stress. */
export interface Picture {
  readonly element: SVGSVGElement;
  readonly stress: (spot: Spot, opened: number | null) => void;
}

/** The place of the largest weight. */
export function argmax(weights: ArrayLike<number>): number {
  let best = 0;
  for (let k = 1; k < weights.length; k++) if (weights[k]! > weights[best]!) best = k;
  return best;
}

/** Whether two show the same words and weights. */
export const isSame = (one: Aligned, other: Aligned): boolean =>
  alike(one.source, other.source) && alike(one.target, other.target) && one.weights.every((row, k) => alike(row, other.weights[k]!));

function alike<T>(one: ArrayLike<T>, other: ArrayLike<T>): boolean {
  for (let k = 0; k < one.length; k++) if (one[k] !== other[k]) return false;
  return one.length === other.length;
}
