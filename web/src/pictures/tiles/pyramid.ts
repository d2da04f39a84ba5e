/** Max-pooling pyramid of a matrix: each level keeps the largest of 4 × 4 cells of the level below. */

export interface Matrix {
  readonly rows: number;
  readonly columns: number;
  /** Values row by row. Cells with non-finite values are blank. */
  readonly values: ArrayLike<number>;
}

const FACTOR = 4; // ratio of the sides of two levels

/** The side, in cells of the matrix, of a cell of a level. */
export const spanOf = (level: number): number => FACTOR ** level;

/** Maximum of a block of cells; NaN if none is finite. */
export function blockMaximum(matrix: Matrix, row: number, column: number, height: number, width: number): number {
  const { rows, columns, values } = matrix;
  const [bottom, right] = [Math.min(rows, row + height), Math.min(columns, column + width)];
  let maximum = -Infinity;
  for (let i = row; i < bottom; i++) {
    for (let index = i * columns + column, end = i * columns + right; index < end; index++) {
      const value = values[index]!;
      if (value > maximum && value < Infinity) maximum = value;
    }
  }
  return maximum === -Infinity ? NaN : maximum;
}

export class Pyramid {
  /** The matrix and its coarser levels. */
  readonly levels: Matrix[];
  private pooledRows = 0;

  constructor(matrix: Matrix) {
    this.levels = [matrix];
    for (let level = matrix; level.rows > FACTOR || level.columns > FACTOR; this.levels.push(level)) {
      const [rows, columns] = [Math.ceil(level.rows / FACTOR), Math.ceil(level.columns / FACTOR)];
      level = { rows, columns, values: new Float32Array(rows * columns).fill(NaN) };
    }
  }

  get complete(): boolean {
    return this.pooledRows >= this.levels[0]!.rows;
  }

  /** Pools until the time is over. */
  build(milliseconds: number): void {
    const { rows, columns } = this.levels[0]!;
    const deadline = performance.now() + milliseconds;
    while (!this.complete) {
      const start = this.pooledRows;
      // Sixteen of the longest rows take about a millisecond.
      this.pooledRows = Math.min(rows, start + FACTOR * Math.max(1, Math.ceil(40_000 / (columns * FACTOR))));
      this.refine(start, this.pooledRows);
      if (performance.now() > deadline) break;
    }
  }

  /** Pools a range of rows into every coarser level. */
  private refine(startRow: number, endRow: number): void {
    for (let k = 1; k < this.levels.length; k++) {
      const [finer, level] = [this.levels[k - 1]!, this.levels[k]!];
      const values = level.values as Float32Array;
      const [firstRow, lastRow] = [Math.floor(startRow / spanOf(k)), Math.ceil(endRow / spanOf(k))];
      for (let i = firstRow; i < lastRow; i++) {
        for (let j = 0; j < level.columns; j++) {
          values[i * level.columns + j] = blockMaximum(finer, i * FACTOR, j * FACTOR, FACTOR, FACTOR);
        }
      }
    }
  }

  /** Maximum of a block of the matrix, from the coarsest pooled level whose cells divide the block. */
  block(row: number, column: number, height: number, width: number): number {
    let k = 0;
    const isAligned = (span: number): boolean =>
      row % span === 0 && column % span === 0 &&
      (height % span === 0 || row + height >= this.levels[0]!.rows) && (width % span === 0 || column + width >= this.levels[0]!.columns);
    const isPooled = Math.min(row + height, this.levels[0]!.rows) <= this.pooledRows;
    while (isPooled && k + 1 < this.levels.length && isAligned(spanOf(k + 1))) k++;
    const span = spanOf(k);
    return blockMaximum(this.levels[k]!, row / span, column / span, Math.ceil(height / span), Math.ceil(width / span));
  }
}
