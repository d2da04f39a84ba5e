/** Cache of rendered tiles of a matrix at each zoom. */
import { largest, spanOf, type Pyramid } from "./pyramid";
import type { View } from "./view";

const SIDE = 256; // pixels of a tile
const KEPT = 192; // tiles: 48 MiB
const PATIENCE = 8; // milliseconds of a frame for making tiles; coarser ones stand in for the rest

/** Cells per point, down and across. */
type Steps = readonly [number, number];

export interface Colours {
  /** RGB of the smallest and of the largest value. */
  readonly well: readonly [number, number, number];
  readonly glow: readonly [number, number, number];
}

export class Painter {
  private readonly tiles = new Map<string, HTMLCanvasElement>();
  private readonly palette = new Uint32Array(256);

  constructor(private readonly pyramid: Pyramid, private readonly range: readonly [number, number]) {}

  /** Sets the colours and drops every tile. */
  reset(colours: Colours): void {
    this.tiles.clear();
    for (let k = 0; k < 256; k++) {
      const [red, green, blue] = colours.well.map((from, side) => Math.round(from + ((colours.glow[side]! - from) * k) / 255));
      this.palette[k] = (255 << 24) | (blue! << 16) | (green! << 8) | red!; // as bytes: red, green, blue, opacity
    }
  }

  /** Drops every tile, for instance those made before all numbers were pooled. */
  forget(): void {
    this.tiles.clear();
  }

  /** Draws a view; returns true if no coarser tile stood in. */
  paint(context: CanvasRenderingContext2D, view: View): boolean {
    const until = performance.now() + PATIENCE;
    const { steps, seen } = view;
    const [tall, wide] = [SIDE * steps[0], SIDE * steps[1]];
    let sharp = true;
    context.imageSmoothingEnabled = false; // smoothing would fade single peaks
    for (let down = Math.floor(seen.top / tall); down * tall < seen.bottom; down++) {
      for (let along = Math.floor(seen.left / wide); along * wide < seen.right; along++) {
        const hurry = performance.now() > until;
        if (!this.draw(context, view, steps, down, along, hurry)) sharp = false;
      }
    }
    return sharp;
  }

  private draw(context: CanvasRenderingContext2D, view: View, steps: Steps, down: number, along: number, hurry: boolean): boolean {
    const own = hurry ? this.kept(steps, down, along) : this.tile(steps, down, along);
    const [tall, wide] = steps;
    const [top, left] = [down * SIDE * tall, along * SIDE * wide];
    if (own) {
      place(context, view, own, 0, 0, own.width, own.height, left, top, own.width * wide, own.height * tall);
      return true;
    }
    for (let coarser = 2; Math.min(tall, wide) * coarser < Math.max(view.rows, view.columns); coarser *= 2) {
      const found = this.kept([tall * coarser, wide * coarser], Math.floor(down / coarser), Math.floor(along / coarser));
      if (!found) continue;
      const part = SIDE / coarser;
      const [x, y] = [(along % coarser) * part, (down % coarser) * part];
      const [across, deep] = [Math.min(part, found.width - x), Math.min(part, found.height - y)];
      if (across > 0 && deep > 0) {
        place(context, view, found, x, y, across, deep, left, top, across * wide * coarser, deep * tall * coarser);
      }
      break;
    }
    return false;
  }

  private kept([tall, wide]: Steps, down: number, along: number): HTMLCanvasElement | undefined {
    return this.tiles.get(`${tall} ${wide} ${down} ${along}`);
  }

  private tile(steps: Steps, down: number, along: number): HTMLCanvasElement {
    const name = `${steps.join(" ")} ${down} ${along}`;
    const made = this.tiles.get(name) ?? this.made(steps, down, along);
    this.tiles.delete(name); // set again below: the map's order is the order of use
    this.tiles.set(name, made);
    if (this.tiles.size > KEPT) this.tiles.delete(this.tiles.keys().next().value!);
    return made;
  }

  private made(steps: Steps, down: number, along: number): HTMLCanvasElement {
    const level = Math.min(Math.floor(Math.log2(Math.min(...steps)) / 2), this.pyramid.levels.length - 1);
    const matrix = this.pyramid.levels[level]!;
    const [deep, across] = steps.map((step) => step / spanOf(level)) as [number, number]; // cells of the level for one point
    const [top, left] = [down * SIDE * deep, along * SIDE * across];
    const wide = Math.min(SIDE, Math.ceil((matrix.columns - left) / across));
    const tall = Math.min(SIDE, Math.ceil((matrix.rows - top) / deep));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [wide, tall];
    const context = canvas.getContext("2d")!;
    const image = context.createImageData(wide, tall);
    const points = new Uint32Array(image.data.buffer);
    const [low, high] = this.range;
    const scale = 255 / (high - low);
    const { rows, columns } = this.pyramid.levels[0]!;
    const [bottom, right] = [Math.floor(rows / steps[0]) * deep, Math.floor(columns / steps[1]) * across];
    // A remainder behind the last whole point may be narrower than a pixel: that point includes its maxima.
    const reach = (from: number, step: number, whole: number): number => (from + step === whole ? 2 * step : step);
    for (let i = 0, at = 0; i < tall; i++) {
      const row = top + i * deep;
      for (let j = 0; j < wide; j++, at++) {
        const column = left + j * across;
        const value = largest(matrix, row, column, reach(row, deep, bottom), reach(column, across, right));
        if (Number.isFinite(value)) points[at] = this.palette[Math.max(0, Math.min(255, Math.round((value - low) * scale)))]!;
      }
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
}

/** Draws a part of a tile at the position of its cells. */
function place(
  context: CanvasRenderingContext2D, view: View, tile: HTMLCanvasElement,
  x: number, y: number, wide: number, tall: number, column: number, row: number, columns: number, rows: number,
): void {
  const left = (column - view.x) * view.scaleX;
  const top = (row - view.y) * view.scaleY;
  const right = left + Math.min(columns, view.columns - column) * view.scaleX;
  const bottom = top + Math.min(rows, view.rows - row) * view.scaleY;
  const [used, deep] = [(wide * Math.min(columns, view.columns - column)) / columns, (tall * Math.min(rows, view.rows - row)) / rows];
  context.drawImage(tile, x, y, used, deep, left, top, right - left, bottom - top);
}
