/** Scroll and zoom state of a tile map. */

const LARGEST = 64; // pixels of a cell's side, at most
const OBLONG = 4; // beyond this ratio of sides, each is fitted to the window by itself
const FLAT = 160; // least height of a wide map with enough rows, in pixels

const between = (low: number, value: number, high: number): number => Math.max(low, Math.min(value, high));

export class View {
  /** Fractional cell coordinates of the upper left corner. */
  x = 0;
  y = 0;
  private zoomed = 1; // 1 shows the whole matrix
  private wide = 1;
  private tall = 1;
  private fit: readonly [number, number] = [1, 1]; // pixels of a cell, across and down, at zoom 1

  constructor(readonly rows: number, readonly columns: number) {}

  /** Preferred height for a width. */
  height(wide: number, most: number): number {
    const ratio = this.rows / this.columns;
    const tall = ratio > OBLONG ? most : ratio < 1 / OBLONG ? Math.max(wide / OBLONG, FLAT) : wide * ratio;
    const full = this.rows * LARGEST;
    return Math.round(between(Math.min(full, 60), Math.min(tall, full), most));
  }

  /** Resizes the window; zoom 1 stays zoom 1. */
  resize(wide: number, tall: number): void {
    const oblong = Math.max(this.rows / this.columns, this.columns / this.rows) > OBLONG;
    const [along, down] = [Math.min(wide / this.columns, LARGEST), Math.min(tall / this.rows, LARGEST)];
    [this.wide, this.tall] = [wide, tall];
    this.fit = oblong ? [along, down] : [Math.min(along, down), Math.min(along, down)];
    this.settle();
  }

  /** Pixels of a cell, across and down. */
  get scaleX(): number {
    return Math.min(this.fit[0] * this.zoomed, LARGEST);
  }

  get scaleY(): number {
    return Math.min(this.fit[1] * this.zoomed, LARGEST);
  }

  get whole(): boolean {
    return this.zoomed === 1;
  }

  get nearest(): boolean {
    return this.zoomed >= this.most;
  }

  private get most(): number {
    return Math.max(1, LARGEST / Math.min(...this.fit));
  }

  home(): void {
    [this.x, this.y, this.zoomed] = [0, 0, 1];
  }

  /** Scrolls by pixels. */
  pan(right: number, down: number): void {
    this.x -= right / this.scaleX;
    this.y -= down / this.scaleY;
    this.settle();
  }

  /** Zooms by a factor about a fixed point of the window. */
  zoom(factor: number, left: number, top: number): void {
    const [x, y] = [this.x + left / this.scaleX, this.y + top / this.scaleY];
    this.zoomed = between(1, this.zoomed * factor, this.most);
    this.x = x - left / this.scaleX;
    this.y = y - top / this.scaleY;
    this.settle();
  }

  /** Scrolls a block of cells into view. */
  reveal(row: number, column: number, tall: number, wide: number): void {
    this.x = between(column + wide - this.wide / this.scaleX, this.x, column);
    this.y = between(row + tall - this.tall / this.scaleY, this.y, row);
    this.settle();
  }

  /** Keeps the window inside the matrix. */
  private settle(): void {
    this.zoomed = between(1, this.zoomed, this.most);
    this.x = Math.max(0, Math.min(this.x, this.columns - this.wide / this.scaleX));
    this.y = Math.max(0, Math.min(this.y, this.rows - this.tall / this.scaleY));
  }

  /** Cell at a point of the window, or null outside the matrix. */
  at(left: number, top: number): readonly [row: number, column: number] | null {
    const [row, column] = [Math.floor(this.y + top / this.scaleY), Math.floor(this.x + left / this.scaleX)];
    const inside = left >= 0 && top >= 0 && row < this.rows && column < this.columns;
    return inside ? [row, column] : null;
  }

  /** Cells per drawn point, down and across: powers of 2 that make a point at least a pixel. */
  get steps(): readonly [down: number, along: number] {
    const step = (scale: number): number => 2 ** Math.max(0, Math.ceil(Math.log2(1 / scale) - 1e-9));
    return [step(this.scaleY), step(this.scaleX)];
  }

  /** Range of visible cells, ends excluded. */
  get seen(): { top: number; bottom: number; left: number; right: number } {
    return {
      top: Math.floor(this.y), bottom: Math.min(this.rows, Math.ceil(this.y + this.tall / this.scaleY - 1e-6)),
      left: Math.floor(this.x), right: Math.min(this.columns, Math.ceil(this.x + this.wide / this.scaleX - 1e-6)),
    };
  }
}
