/** Max-pooling pyramid of a matrix: each level keeps the largest of 4 × 4 cells of the level below. */

export interface Matrix {
  readonly rows: number;
  readonly columns: number;
  /** Values row by row; non-finite ones stay blank. */
  readonly values: ArrayLike<number>;
}

const FACTOR = 4; // ratio of the sides of two levels

/** Cells of the matrix along each side of a cell of level `k`. */
export const spanOf = (level: number): number => FACTOR ** level;

/** Maximum of a block of cells; NaN if none is finite. */
export function largest(matrix: Matrix, row: number, column: number, tall: number, wide: number): number {
  const { rows, columns, values } = matrix;
  const [bottom, right] = [Math.min(rows, row + tall), Math.min(columns, column + wide)];
  let most = -Infinity;
  for (let i = row; i < bottom; i++) {
    for (let at = i * columns + column, end = i * columns + right; at < end; at++) {
      const value = values[at]!;
      if (value > most && value < Infinity) most = value;
    }
  }
  return most === -Infinity ? NaN : most;
}

export class Pyramid {
  /** The matrix and its coarser levels. */
  readonly levels: Matrix[];
  /** Rows of the matrix already pooled. */
  private known = 0;

  constructor(matrix: Matrix) {
    this.levels = [matrix];
    for (let last = matrix; last.rows > FACTOR || last.columns > FACTOR; this.levels.push(last)) {
      const [rows, columns] = [Math.ceil(last.rows / FACTOR), Math.ceil(last.columns / FACTOR)];
      last = { rows, columns, values: new Float32Array(rows * columns).fill(NaN) };
    }
  }

  get complete(): boolean {
    return this.known >= this.levels[0]!.rows;
  }

  /** Pools for some milliseconds. */
  build(milliseconds: number): void {
    const { rows, columns } = this.levels[0]!;
    const until = performance.now() + milliseconds;
    while (!this.complete) {
      const before = this.known;
      // Sixteen of the longest rows take about a millisecond.
      this.known = Math.min(rows, before + FACTOR * Math.max(1, Math.ceil(40_000 / (columns * FACTOR))));
      this.refine(before, this.known);
      if (performance.now() > until) break;
    }
  }

  /** Pools a range of rows into every coarser level. */
  private refine(from: number, to: number): void {
    for (let k = 1; k < this.levels.length; k++) {
      const [finer, level] = [this.levels[k - 1]!, this.levels[k]!];
      const values = level.values as Float32Array;
      const [first, last] = [Math.floor(from / spanOf(k)), Math.ceil(to / spanOf(k))];
      for (let i = first; i < last; i++) {
        for (let j = 0; j < level.columns; j++) {
          values[i * level.columns + j] = largest(finer, i * FACTOR, j * FACTOR, FACTOR, FACTOR);
        }
      }
    }
  }

  /** Maximum of a block of the matrix, from the coarsest level that fits it and is pooled. */
  block(row: number, column: number, tall: number, wide: number): number {
    let k = 0;
    const fits = (span: number): boolean =>
      row % span === 0 && column % span === 0 &&
      (tall % span === 0 || row + tall >= this.levels[0]!.rows) && (wide % span === 0 || column + wide >= this.levels[0]!.columns);
    const known = Math.min(row + tall, this.levels[0]!.rows) <= this.known;
    while (known && k + 1 < this.levels.length && fits(spanOf(k + 1))) k++;
    const span = spanOf(k);
    return largest(this.levels[k]!, row / span, column / span, Math.ceil(tall / span), Math.ceil(wide / span));
  }
}
