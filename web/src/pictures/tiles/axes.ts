/** What the rows and the columns of a map are called. */
import { visible } from "../../page/dom";

export interface Axis {
  /** What they are: "Queries", say. */
  readonly title: string;
  readonly count: number;
  /** A name each; or none, and they are counted. */
  readonly tokens: readonly string[] | null;
  /** How many there were before they were pooled into so few. */
  readonly extent: number;
}

/** The name of one, or of several, from the first to the one behind the last. */
export function nameOf({ tokens, count, extent }: Axis, from: number, to = from + 1): string {
  if (tokens) {
    const [first, last] = [visible(tokens[from]!), visible(tokens[to - 1]!)];
    return to - from === 1 ? first : `${first} … ${last}`;
  }
  const [first, last] = [Math.floor((from * extent) / count), Math.ceil((to * extent) / count) - 1];
  return first >= last ? String(first) : `${first}–${last}`;
}

/** Every how many cells a label stands, if each needs so many pixels: 1, 2, 5, 10 … */
export function pace(scale: number, pixels: number): number {
  for (let ten = 1; ; ten *= 10) for (const each of [ten, 2 * ten, 5 * ten]) if (each * scale >= pixels) return each;
}
