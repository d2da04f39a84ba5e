/** An image under the weights of its patches. */
import { h, s } from "../page/dom";
import type { Grid } from "../page/weights";
import { Placed, type Listeners, type Look } from "./placed";
import { colourOf, filled } from "./scale";

/** An image as the model saw it; `dikkat.show.views` writes them. */
export interface Shown {
  readonly source: string;
  readonly width: number;
  readonly height: number;
  readonly original?: { readonly source: string; readonly width: number; readonly height: number; readonly frame: readonly [number, number, number, number] };
}

const TALL = 540; // most height of an image, in pixels
const LONGEST = 8; // most width in heights, or height in widths: longer images are squeezed
const DIM = 0.4; // of an image under a map: colours are brighter than what they lie on
const MARK = "#19e3ff"; // unlike any colour of the scale

interface Cell {
  readonly position: number;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export class Patches extends Placed<HTMLCanvasElement> {
  readonly element: HTMLElement;
  private readonly size: readonly [width: number, height: number];
  private readonly ratio: number; // of the width that is drawn to the height
  private readonly grids: readonly Grid[];
  private readonly image = new Image();
  private grey: HTMLCanvasElement | null = null; // the image at the size and opacity that it is drawn in

  constructor(image: Shown | null, grids: readonly Grid[], label: string, listeners: Listeners) {
    super(h("canvas", { class: "patches" }), grids[0]!.start, label, listeners);
    this.size = image ? [image.width, image.height] : [grids[0]!.columns, grids[0]!.rows];
    this.grids = image ? grids : grids.map((grid) => ({ ...grid, box: [0, 0, ...this.size] as const }));
    this.ratio = ratioOf(...this.size);
    this.box.style.aspectRatio = String(this.ratio);
    this.box.style.maxWidth = `${Math.round(TALL * this.ratio)}px`;
    this.element = h("figure", { class: "image" }, this.box);
    this.image.addEventListener("load", () => {
      this.grey = null;
      this.draw();
    });
    if (image) this.image.src = image.source;
  }

  override show(look: Look): void {
    if (look.opacity !== this.drawn?.opacity) this.grey = null;
    super.show(look);
  }

  protected has(position: number): boolean {
    return this.grids.some(({ start, rows, columns }) => position >= start && position < start + rows * columns);
  }

  protected positionAt({ offsetX, offsetY }: MouseEvent): number | null {
    return this.hit(offsetX / this.box.clientWidth, offsetY / this.box.clientHeight);
  }

  /** The neighbour in the direction of an arrow key, over the edges of grids too. */
  protected step(key: string, from: number): number | null {
    const [down, along] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[key] ?? [0, 0];
    const { x, y, width, height } = this.cell(from, 1, 1);
    return down || along ? this.hit(x + width * (0.5 + along!), y + height * (0.5 + down!)) ?? from : null;
  }

  /** The position at a point, in shares of the width and height; null: none. */
  private hit(x: number, y: number): number | null {
    for (const { start, rows, columns, box: [left, top, right, bottom] } of this.grids) {
      const row = Math.floor(((y * this.size[1] - top) / (bottom - top)) * rows);
      const column = Math.floor(((x * this.size[0] - left) / (right - left)) * columns);
      if (row >= 0 && row < rows && column >= 0 && column < columns) return start + row * columns + column;
    }
    return null;
  }

  /** A position's rectangle in a picture of some width and height. */
  private cell(position: number, width: number, height: number): Cell {
    const { start, rows, columns, box: [left, top, right, bottom] } = this.grids.find((grid) => position >= grid.start && position < grid.start + grid.rows * grid.columns)!;
    const [row, column] = [Math.floor((position - start) / columns), (position - start) % columns];
    const [wide, tall] = [((right - left) / columns / this.size[0]) * width, ((bottom - top) / rows / this.size[1]) * height];
    return { position, x: (left / this.size[0]) * width + column * wide, y: (top / this.size[1]) * height + row * tall, width: wide, height: tall };
  }

  private *cells(width: number, height: number): Generator<Cell> {
    for (const { start, rows, columns } of this.grids) for (let k = 0; k < rows * columns; k++) yield this.cell(start + k, width, height);
  }

  protected draw(): void {
    const { box: canvas, drawn } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (!drawn || !width || !height) return;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height, this.grey] = [width, height, null];
    const brush = canvas.getContext("2d")!;
    brush.clearRect(0, 0, width, height);
    brush.drawImage((this.grey ??= this.greyed(width, height, drawn.opacity)), 0, 0);
    if (drawn.values) this.paint(brush, width, height, drawn);
    this.mark(brush, width, height, drawn, ratio);
  }

  /** The image in dim greys, as far as weights cover it. */
  private greyed(width: number, height: number, opacity: number): HTMLCanvasElement {
    const canvas = h("canvas", { width, height });
    const brush = canvas.getContext("2d")!;
    brush.fillStyle = "#888";
    if (!this.image.naturalWidth) return canvas;
    brush.imageSmoothingEnabled = width < 8 * this.image.naturalWidth; // few pixels stay squares
    brush.drawImage(this.image, 0, 0, width, height);
    brush.globalCompositeOperation = "saturation";
    brush.globalAlpha = Math.min(1, 2 * opacity);
    brush.fillRect(0, 0, width, height);
    brush.globalCompositeOperation = "source-atop";
    brush.globalAlpha *= DIM;
    brush.fillStyle = "#000";
    brush.fillRect(0, 0, width, height);
    return canvas;
  }

  private paint(brush: CanvasRenderingContext2D, width: number, height: number, look: Look): void {
    brush.imageSmoothingEnabled = false;
    brush.globalAlpha = look.opacity;
    for (const grid of this.grids) {
      const [left, top, right, bottom] = grid.box.map((edge, k) => (edge / this.size[k % 2]!) * (k % 2 ? height : width));
      drawMap(brush, grid, look, left!, top!, right! - left!, bottom! - top!);
    }
    brush.globalAlpha = 1;
  }

  private mark(brush: CanvasRenderingContext2D, width: number, height: number, look: Look, ratio: number): void {
    const [outline, crosses] = [new Path2D(this.outline(width, height, look)), new Path2D()];
    for (const { position, x, y, width: wide, height: tall } of look.sinks?.some(Boolean) ? this.cells(width, height) : []) {
      if (!look.sinks![position]) continue;
      crosses.moveTo(x + wide * 0.25, y + tall * 0.25);
      crosses.lineTo(x + wide * 0.75, y + tall * 0.75);
      crosses.moveTo(x + wide * 0.75, y + tall * 0.25);
      crosses.lineTo(x + wide * 0.25, y + tall * 0.75);
    }
    const twice = (path: Path2D, colour: string, thick: number): void => {
      for (const [ink, line] of [["#000c", thick + 2], [colour, thick]] as const) {
        [brush.strokeStyle, brush.lineWidth] = [ink, line * ratio];
        brush.stroke(path);
      }
    };
    twice(outline, "#fff", 1.5);
    twice(crosses, "#fff", 1);
    if (this.marked === null) return;
    const { x, y, width: wide, height: tall } = this.cell(this.marked, width, height);
    const ring = new Path2D();
    ring.rect(x, y, wide, tall);
    ring.ellipse(x + wide / 2, y + tall / 2, wide / 8, tall / 8, 0, 0, 7);
    twice(ring, MARK, 2.5);
  }

  /** The outline of the cells with the largest weights, as the path of an SVG. */
  private outline(width: number, height: number, { values, outlined }: Look): string {
    if (!values || !Number.isFinite(outlined)) return "";
    const isIn = (position: number): boolean => Math.abs(values[position]!) >= outlined;
    const lines: string[] = [];
    for (const { start, rows, columns } of this.grids) {
      for (let k = 0; k < rows * columns; k++) {
        if (!isIn(start + k)) continue;
        const { x, y, width: wide, height: tall } = this.cell(start + k, width, height);
        const [row, column] = [Math.floor(k / columns), k % columns];
        const [right, bottom] = [x + wide, y + tall];
        if (row === 0 || !isIn(start + k - columns)) lines.push(`M${x} ${y}H${right}`);
        if (row === rows - 1 || !isIn(start + k + columns)) lines.push(`M${x} ${bottom}H${right}`);
        if (column === 0 || !isIn(start + k - 1)) lines.push(`M${x} ${y}V${bottom}`);
        if (column === columns - 1 || !isIn(start + k + 1)) lines.push(`M${right} ${y}V${bottom}`);
      }
    }
    return lines.join("");
  }

  /** The picture as SVG of at most this width and height; and its height. */
  svg(most: number): readonly [SVGElement, number] {
    const [width, height] = [most * Math.min(1, this.ratio), most * Math.min(1, 1 / this.ratio)];
    const look = this.drawn!;
    const coloured = [...(look.values ? this.cells(width, height) : [])].filter(({ position }) => !(look.hidden && look.sinks?.[position]));
    const marked = this.marked === null ? null : this.cell(this.marked, width, height);
    return [s("g", {},
      s("image", { href: this.greyed(Math.round(2 * width), Math.round(2 * height), look.opacity).toDataURL(), width, height }),
      s("g", { opacity: look.opacity, "shape-rendering": "crispEdges" }, ...coloured.map(({ position, x, y, width: wide, height: tall }) =>
        s("rect", { x, y, width: wide, height: tall, ...filled(colourOf(look.values![position]!, look.scale)) }))),
      ...[["#000", 3.5], ["#fff", 1.5]].map(([ink, line]) => s("path", { d: this.outline(width, height, look), fill: "none", stroke: ink!, "stroke-width": line! })),
      ...[...(look.sinks?.some(Boolean) ? this.cells(width, height) : [])].filter(({ position }) => look.sinks![position]).map(({ x, y, width: wide, height: tall }) =>
        s("path", { d: `M${x + wide / 4} ${y + tall / 4}l${wide / 2} ${tall / 2}m0 ${-tall / 2}l${-wide / 2} ${tall / 2}`, stroke: "#fff", "stroke-width": 1.5, fill: "none" })),
      marked && s("rect", { x: marked.x, y: marked.y, width: marked.width, height: marked.height, fill: "none", stroke: MARK, "stroke-width": 2.5 })), height];
  }
}

/** The ratio of the drawn width to the drawn height of an image. */
export const ratioOf = (width: number, height: number): number => Math.max(1 / LONGEST, Math.min(LONGEST, width / height));

let points: CanvasRenderingContext2D | null = null; // of a canvas with a pixel for each patch

/** Draws the weights of a grid's patches in a rectangle. */
export function drawMap(brush: CanvasRenderingContext2D, { start, rows, columns }: Grid, { values, scale, sinks, hidden }: Pick<Look, "values" | "scale" | "sinks" | "hidden">,
  x: number, y: number, width: number, height: number): void {
  points ??= h("canvas").getContext("2d", { willReadFrequently: true })!;
  [points.canvas.width, points.canvas.height] = [columns, rows];
  const map = new ImageData(columns, rows);
  for (let k = 0; k < rows * columns; k++) {
    if (hidden && sinks?.[start + k]) continue;
    const [red, green, blue, opacity] = colourOf(values![start + k]!, scale);
    map.data.set([red, green, blue, 255 * opacity], 4 * k);
  }
  points.putImageData(map, 0, 0);
  brush.drawImage(points.canvas, x, y, width, height);
}

/** Grids by image; overlapping grids of one image, such as its tiles and its overview, are apart. */
export function grouped(grids: readonly Grid[]): Grid[][] {
  const groups: Grid[][] = [];
  const overlap = (one: Grid, other: Grid): boolean => [0, 1].every((k) => one.box[k]! < other.box[k + 2]! && other.box[k]! < one.box[k + 2]!);
  for (const grid of grids) {
    const group = grid.image < 0 ? undefined : groups.find((each) => each[0]!.image === grid.image && !each.some((other) => overlap(grid, other)));
    if (group) group.push(grid);
    else groups.push([grid]);
  }
  return groups;
}
