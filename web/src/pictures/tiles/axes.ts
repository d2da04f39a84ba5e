/** Names of a map's rows and columns. */
import { visible } from "../../page/dom";

export interface Axis {
  /** Title, such as "Queries". */
  readonly title: string;
  readonly count: number;
  /** Names of the cells; null to number them. */
  readonly tokens: readonly string[] | null;
  /** Length before pooling. */
  readonly extent: number;
}

/** Name of a cell, or of a range with its end excluded. */
export function nameOf({ tokens, count, extent }: Axis, from: number, to = from + 1): string {
  if (tokens) {
    const [first, last] = [visible(tokens[from]!), visible(tokens[to - 1]!)];
    return to - from === 1 ? first : `${first} … ${last}`;
  }
  const [first, last] = [Math.floor((from * extent) / count), Math.ceil((to * extent) / count) - 1];
  return first >= last ? String(first) : `${first}–${last}`;
}

/** Cells between two labels that need `pixels` each: 1, 2, 5, 10 … */
export function pace(scale: number, pixels: number): number {
  for (let ten = 1; ; ten *= 10) for (const each of [ten, 2 * ten, 5 * ten]) if (each * scale >= pixels) return each;
}
