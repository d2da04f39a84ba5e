/** A matrix, and ever coarser copies of it, each cell of which has the largest of sixteen: what a map of any size is drawn from. */

export interface Matrix {
  readonly rows: number;
  readonly columns: number;
  /** Row by row; what is not finite stays blank. */
  readonly values: ArrayLike<number>;
}

const FACTOR = 4; // by which each level is coarser than the one before, along both sides

/** So many of the finest cells, along each side, stand behind one of level `k`. */
export const spanOf = (level: number): number => FACTOR ** level;

/** The largest of a block of cells; NaN where none of them is a number. */
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
  /** The matrix itself, and its coarser copies. */
  readonly levels: Matrix[];
  /** Rows of the matrix that the coarser levels know already. */
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

  /** Go on for so many milliseconds. */
  build(milliseconds: number): void {
    const { rows, columns } = this.levels[0]!;
    const until = performance.now() + milliseconds;
    while (!this.complete) {
      const before = this.known;
      // Sixteen of the longest rows take a millisecond or so.
      this.known = Math.min(rows, before + FACTOR * Math.max(1, Math.ceil(40_000 / (columns * FACTOR))));
      this.refine(before, this.known);
      if (performance.now() > until) break;
    }
  }

  /** Bring every coarser level up to date with rows of the matrix. */
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

  /** The largest of a block of the matrix, read from the coarsest level whose cells fit it, or from the matrix while that is not known. */
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
