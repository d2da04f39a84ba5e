/** Scroll and zoom state of a tile map. */

const MAX_CELL_SIDE = 64; // pixels
const MAX_ASPECT_RATIO = 4; // beyond this ratio, width and height are fitted to the window separately
const MIN_HEIGHT = 160; // pixels, for a wide map with enough rows

const clamp = (low: number, value: number, high: number): number => Math.max(low, Math.min(value, high));

export class View {
  /** Fractional cell coordinates of the upper left corner. */
  x = 0;
  y = 0;
  private zoomFactor = 1; // 1 shows the whole matrix
  private width = 1;
  private height = 1;
  private fittedSide: readonly [number, number] = [1, 1]; // pixels of a cell, across and down, at zoom 1

  constructor(readonly rows: number, readonly columns: number) {}

  preferredHeight(width: number, maximum: number): number {
    const ratio = this.rows / this.columns;
    const height = ratio > MAX_ASPECT_RATIO ? maximum : ratio < 1 / MAX_ASPECT_RATIO ? Math.max(width / MAX_ASPECT_RATIO, MIN_HEIGHT) : width * ratio;
    const fullHeight = this.rows * MAX_CELL_SIDE;
    return Math.round(clamp(Math.min(fullHeight, 60), Math.min(height, fullHeight), maximum));
  }

  /** Resizes the window; zoom 1 stays zoom 1. */
  resize(width: number, height: number): void {
    const isOblong = Math.max(this.rows / this.columns, this.columns / this.rows) > MAX_ASPECT_RATIO;
    const [widthScale, heightScale] = [Math.min(width / this.columns, MAX_CELL_SIDE), Math.min(height / this.rows, MAX_CELL_SIDE)];
    [this.width, this.height] = [width, height];
    this.fittedSide = isOblong ? [widthScale, heightScale] : [Math.min(widthScale, heightScale), Math.min(widthScale, heightScale)];
    this.clampToMatrix();
  }

  /** Pixels of a cell, across and down. */
  get scaleX(): number {
    return Math.min(this.fittedSide[0] * this.zoomFactor, MAX_CELL_SIDE);
  }

  get scaleY(): number {
    return Math.min(this.fittedSide[1] * this.zoomFactor, MAX_CELL_SIDE);
  }

  get showsAll(): boolean {
    return this.zoomFactor === 1;
  }

  get isNearest(): boolean {
    return this.zoomFactor >= this.maxZoom;
  }

  private get maxZoom(): number {
    return Math.max(1, MAX_CELL_SIDE / Math.min(...this.fittedSide));
  }

  home(): void {
    [this.x, this.y, this.zoomFactor] = [0, 0, 1];
  }

  /** Scrolls by pixels. */
  pan(right: number, down: number): void {
    this.x -= right / this.scaleX;
    this.y -= down / this.scaleY;
    this.clampToMatrix();
  }

  /** Zooms by a factor about a fixed point of the window. */
  zoom(factor: number, left: number, top: number): void {
    const [x, y] = [this.x + left / this.scaleX, this.y + top / this.scaleY];
    this.zoomFactor = clamp(1, this.zoomFactor * factor, this.maxZoom);
    this.x = x - left / this.scaleX;
    this.y = y - top / this.scaleY;
    this.clampToMatrix();
  }

  /** Scrolls a block of cells into view. */
  reveal(row: number, column: number, height: number, width: number): void {
    this.x = clamp(column + width - this.width / this.scaleX, this.x, column);
    this.y = clamp(row + height - this.height / this.scaleY, this.y, row);
    this.clampToMatrix();
  }

  /** Keeps the window inside the matrix. */
  private clampToMatrix(): void {
    this.zoomFactor = clamp(1, this.zoomFactor, this.maxZoom);
    this.x = Math.max(0, Math.min(this.x, this.columns - this.width / this.scaleX));
    this.y = Math.max(0, Math.min(this.y, this.rows - this.height / this.scaleY));
  }

  /** Cell at a point of the window, or null outside the matrix. */
  cellAt(left: number, top: number): readonly [row: number, column: number] | null {
    const [row, column] = [Math.floor(this.y + top / this.scaleY), Math.floor(this.x + left / this.scaleX)];
    const isInside = left >= 0 && top >= 0 && row < this.rows && column < this.columns;
    return isInside ? [row, column] : null;
  }

  /** Rows and columns of cells per point: powers of 2, so that a point is at least one pixel. */
  get steps(): readonly [rows: number, columns: number] {
    const step = (scale: number): number => 2 ** Math.max(0, Math.ceil(Math.log2(1 / scale) - 1e-9));
    return [step(this.scaleY), step(this.scaleX)];
  }

  /** The range of visible cells; `bottom` and `right` are excluded. */
  get seen(): { top: number; bottom: number; left: number; right: number } {
    return {
      top: Math.floor(this.y), bottom: Math.min(this.rows, Math.ceil(this.y + this.height / this.scaleY - 1e-6)),
      left: Math.floor(this.x), right: Math.min(this.columns, Math.ceil(this.x + this.width / this.scaleX - 1e-6)),
    };
  }
}
