/** Names of a map's rows and columns. */
import { makeVisible } from "../../page/dom";

export interface Axis {
  /** Title, such as "Queries". */
  readonly title: string;
  readonly count: number;
  /** Names of the cells; null numbers the cells. */
  readonly tokens: readonly string[] | null;
  /** Length before pooling. */
  readonly extent: number;
}

/** The name of a cell, or of a range that excludes its end. */
export function nameOf({ tokens, count, extent }: Axis, start: number, end = start + 1): string {
  if (tokens) {
    const [firstName, lastName] = [makeVisible(tokens[start]!), makeVisible(tokens[end - 1]!)];
    return end - start === 1 ? firstName : `${firstName} … ${lastName}`;
  }
  const [firstNumber, lastNumber] = [Math.floor((start * extent) / count), Math.ceil((end * extent) / count) - 1];
  return firstNumber >= lastNumber ? String(firstNumber) : `${firstNumber}–${lastNumber}`;
}

/** The number of cells per label, 1, 2, 5, 10 and so on, if each label needs `pixels`. */
export function labelInterval(scale: number, pixels: number): number {
  for (let power = 1; ; power *= 10) for (const interval of [power, 2 * power, 5 * power]) if (interval * scale >= pixels) return interval;
}
