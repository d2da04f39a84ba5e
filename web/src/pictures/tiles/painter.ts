/** Cache of rendered tiles of a matrix at each zoom. */
import { blockMaximum, spanOf, type Pyramid } from "./pyramid";
import type { View } from "./view";

const SIDE = 256; // pixels of a tile
const MAX_TILES = 192; // 48 MiB
const TIME_LIMIT = 8; // milliseconds per frame for rendering tiles; coarser tiles replace missing ones

/** Rows and columns of cells per point. */
type Steps = readonly [number, number];

export interface Colours {
  /** RGB of the smallest and the largest value. */
  readonly lowest: readonly [number, number, number];
  readonly highest: readonly [number, number, number];
}

export class Painter {
  private readonly tiles = new Map<string, HTMLCanvasElement>();
  private readonly palette = new Uint32Array(256);

  constructor(private readonly pyramid: Pyramid, private readonly range: readonly [number, number]) {}

  /** Sets the colours and removes all tiles. */
  reset(colours: Colours): void {
    this.tiles.clear();
    for (let k = 0; k < 256; k++) {
      const [red, green, blue] = colours.lowest.map((darkest, channel) => Math.round(darkest + ((colours.highest[channel]! - darkest) * k) / 255));
      this.palette[k] = (255 << 24) | (blue! << 16) | (green! << 8) | red!; // as bytes: red, green, blue, opacity
    }
  }

  /** Removes all tiles, for example when more rows are pooled. */
  clear(): void {
    this.tiles.clear();
  }

  /** Draws a view; returns true if it used no coarser tile. */
  paint(context: CanvasRenderingContext2D, view: View): boolean {
    const deadline = performance.now() + TIME_LIMIT;
    const { steps, seen: range } = view;
    const [tileRows, tileColumns] = [SIDE * steps[0], SIDE * steps[1]];
    let isSharp = true;
    context.imageSmoothingEnabled = false; // smoothing would fade single peaks
    for (let tileRow = Math.floor(range.top / tileRows); tileRow * tileRows < range.bottom; tileRow++) {
      for (let tileColumn = Math.floor(range.left / tileColumns); tileColumn * tileColumns < range.right; tileColumn++) {
        const onlyCached = performance.now() > deadline;
        if (!this.draw(context, view, steps, tileRow, tileColumn, onlyCached)) isSharp = false;
      }
    }
    return isSharp;
  }

  private draw(context: CanvasRenderingContext2D, view: View, steps: Steps, tileRow: number, tileColumn: number, onlyCached: boolean): boolean {
    const exactTile = onlyCached ? this.cachedTile(steps, tileRow, tileColumn) : this.tileAt(steps, tileRow, tileColumn);
    const [rowStep, columnStep] = steps;
    const [top, left] = [tileRow * SIDE * rowStep, tileColumn * SIDE * columnStep];
    if (exactTile) {
      drawTile(context, view, exactTile, 0, 0, exactTile.width, exactTile.height, left, top, exactTile.width * columnStep, exactTile.height * rowStep);
      return true;
    }
    for (let factor = 2; Math.min(rowStep, columnStep) * factor < Math.max(view.rows, view.columns); factor *= 2) {
      const coarseTile = this.cachedTile([rowStep * factor, columnStep * factor], Math.floor(tileRow / factor), Math.floor(tileColumn / factor));
      if (!coarseTile) continue;
      const size = SIDE / factor;
      const [x, y] = [(tileColumn % factor) * size, (tileRow % factor) * size];
      const [width, height] = [Math.min(size, coarseTile.width - x), Math.min(size, coarseTile.height - y)];
      if (width > 0 && height > 0) {
        drawTile(context, view, coarseTile, x, y, width, height, left, top, width * columnStep * factor, height * rowStep * factor);
      }
      break;
    }
    return false;
  }

  private cachedTile([rowStep, columnStep]: Steps, tileRow: number, tileColumn: number): HTMLCanvasElement | undefined {
    return this.tiles.get(`${rowStep} ${columnStep} ${tileRow} ${tileColumn}`);
  }

  private tileAt(steps: Steps, tileRow: number, tileColumn: number): HTMLCanvasElement {
    const name = `${steps.join(" ")} ${tileRow} ${tileColumn}`;
    const tile = this.tiles.get(name) ?? this.renderTile(steps, tileRow, tileColumn);
    this.tiles.delete(name); // set again below, so that the map is ordered by use
    this.tiles.set(name, tile);
    if (this.tiles.size > MAX_TILES) this.tiles.delete(this.tiles.keys().next().value!);
    return tile;
  }

  private renderTile(steps: Steps, tileRow: number, tileColumn: number): HTMLCanvasElement {
    const level = Math.min(Math.floor(Math.log2(Math.min(...steps)) / 2), this.pyramid.levels.length - 1);
    const matrix = this.pyramid.levels[level]!;
    const [rowStep, columnStep] = steps.map((step) => step / spanOf(level)) as [number, number]; // cells of the level per point
    const [top, left] = [tileRow * SIDE * rowStep, tileColumn * SIDE * columnStep];
    const width = Math.min(SIDE, Math.ceil((matrix.columns - left) / columnStep));
    const height = Math.min(SIDE, Math.ceil((matrix.rows - top) / rowStep));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d")!;
    const image = context.createImageData(width, height);
    const points = new Uint32Array(image.data.buffer);
    const [low, high] = this.range;
    const scale = 255 / (high - low);
    const { rows, columns } = this.pyramid.levels[0]!;
    const [bottom, right] = [Math.floor(rows / steps[0]) * rowStep, Math.floor(columns / steps[1]) * columnStep];
    // The last complete point also includes the cells after it, which may be narrower than a pixel.
    const blockSide = (start: number, step: number, end: number): number => (start + step === end ? 2 * step : step);
    for (let i = 0, point = 0; i < height; i++) {
      const row = top + i * rowStep;
      for (let j = 0; j < width; j++, point++) {
        const column = left + j * columnStep;
        const value = blockMaximum(matrix, row, column, blockSide(row, rowStep, bottom), blockSide(column, columnStep, right));
        if (Number.isFinite(value)) points[point] = this.palette[Math.max(0, Math.min(255, Math.round((value - low) * scale)))]!;
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
}

/** Draws a rectangle of a tile at the position of its cells. */
function drawTile(
  context: CanvasRenderingContext2D, view: View, tile: HTMLCanvasElement,
  x: number, y: number, width: number, height: number, column: number, row: number, columns: number, rows: number,
): void {
  const left = (column - view.x) * view.scaleX;
  const top = (row - view.y) * view.scaleY;
  const right = left + Math.min(columns, view.columns - column) * view.scaleX;
  const bottom = top + Math.min(rows, view.rows - row) * view.scaleY;
  const [usedWidth, usedHeight] = [(width * Math.min(columns, view.columns - column)) / columns, (height * Math.min(rows, view.rows - row)) / rows];
  context.drawImage(tile, x, y, usedWidth, usedHeight, left, top, right - left, bottom - top);
}
