/** A picture of an image with the weights of its patches. */
import { h, s } from "../page/dom";
import type { Grid } from "../page/weights";
import { PositionPicture, type Listeners, type WeightStyle } from "./position_picture";
import { colourOf, fillOf } from "./scale";

/** An image as the model saw it, written by `dikkat.show.calls`. */
export interface ModelImage {
  readonly source: string;
  readonly width: number;
  readonly height: number;
  readonly original?: { readonly source: string; readonly width: number; readonly height: number; readonly frame: readonly [number, number, number, number] };
}

const MAX_HEIGHT = 540; // of an image, in pixels
const MAX_ASPECT_RATIO = 8; // longer images are squeezed
const DIM = 0.4; // opacity of the shade over an image, so that weights are brighter than the image
const MARK = "#19e3ff"; // no colour of the scale is similar

interface Cell {
  readonly position: number;
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export class Patches extends PositionPicture<HTMLCanvasElement> {
  readonly element: HTMLElement;
  private readonly size: readonly [width: number, height: number];
  private readonly ratio: number; // drawn width divided by drawn height
  private readonly grids: readonly Grid[];
  private readonly image = new Image();
  private dimmed: HTMLCanvasElement | null = null; // the dimmed image at its drawn size

  constructor(image: ModelImage | null, grids: readonly Grid[], label: string, listeners: Listeners) {
    super(h("canvas", { class: "patches" }), grids[0]!.start, label, listeners);
    this.size = image ? [image.width, image.height] : [grids[0]!.columns, grids[0]!.rows];
    this.grids = image ? grids : grids.map((grid) => ({ ...grid, box: [0, 0, ...this.size] as const }));
    this.ratio = ratioOf(...this.size);
    this.box.style.aspectRatio = String(this.ratio);
    this.box.style.maxWidth = `${Math.round(MAX_HEIGHT * this.ratio)}px`;
    this.element = h("figure", { class: "image" }, this.box);
    this.image.addEventListener("load", () => {
      this.dimmed = null;
      this.draw();
    });
    if (image) this.image.src = image.source;
  }

  override show(style: WeightStyle): void {
    if (style.opacity !== this.style?.opacity) this.dimmed = null;
    super.show(style);
  }

  protected hasPosition(position: number): boolean {
    return this.grids.some(({ start, rows, columns }) => position >= start && position < start + rows * columns);
  }

  protected positionAt({ offsetX, offsetY }: MouseEvent): number | null {
    return this.positionAtPoint(offsetX / this.box.clientWidth, offsetY / this.box.clientHeight);
  }

  /** The neighbour in the direction of an arrow key, also in another grid. */
  protected neighbour(key: string, position: number): number | null {
    const [rowStep, columnStep] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[key] ?? [0, 0];
    const { x, y, width, height } = this.cellOf(position, 1, 1);
    return rowStep || columnStep ? this.positionAtPoint(x + width * (0.5 + columnStep!), y + height * (0.5 + rowStep!)) ?? position : null;
  }

  /** The position at a point, given as shares of the width and height, or null. */
  private positionAtPoint(x: number, y: number): number | null {
    for (const { start, rows, columns, box: [left, top, right, bottom] } of this.grids) {
      const row = Math.floor(((y * this.size[1] - top) / (bottom - top)) * rows);
      const column = Math.floor(((x * this.size[0] - left) / (right - left)) * columns);
      if (row >= 0 && row < rows && column >= 0 && column < columns) return start + row * columns + column;
    }
    return null;
  }

  /** The rectangle of a position in a picture of this width and height. */
  private cellOf(position: number, width: number, height: number): Cell {
    const { start, rows, columns, box: [left, top, right, bottom] } = this.grids.find((grid) => position >= grid.start && position < grid.start + grid.rows * grid.columns)!;
    const [row, column] = [Math.floor((position - start) / columns), (position - start) % columns];
    const [cellWidth, cellHeight] = [((right - left) / columns / this.size[0]) * width, ((bottom - top) / rows / this.size[1]) * height];
    return { position, x: (left / this.size[0]) * width + column * cellWidth, y: (top / this.size[1]) * height + row * cellHeight, width: cellWidth, height: cellHeight };
  }

  private *cells(width: number, height: number): Generator<Cell> {
    for (const { start, rows, columns } of this.grids) for (let k = 0; k < rows * columns; k++) yield this.cellOf(start + k, width, height);
  }

  protected draw(): void {
    const { box: canvas, style } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (!style || !width || !height) return;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height, this.dimmed] = [width, height, null];
    const brush = canvas.getContext("2d")!;
    brush.clearRect(0, 0, width, height);
    brush.drawImage((this.dimmed ??= this.dimmedImage(width, height, style.opacity)), 0, 0);
    if (style.values) this.drawWeights(brush, width, height, style);
    this.drawMarks(brush, width, height, style, ratio);
  }

  /** The image, dimmed and without colour in proportion to the opacity of the weights. */
  private dimmedImage(width: number, height: number, opacity: number): HTMLCanvasElement {
    const canvas = h("canvas", { width, height });
    const brush = canvas.getContext("2d")!;
    brush.fillStyle = "#888";
    if (!this.image.naturalWidth) return canvas;
    brush.imageSmoothingEnabled = width < 8 * this.image.naturalWidth; // enlarged pixels stay sharp
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

  private drawWeights(brush: CanvasRenderingContext2D, width: number, height: number, style: WeightStyle): void {
    brush.imageSmoothingEnabled = false;
    brush.globalAlpha = style.opacity;
    for (const grid of this.grids) {
      const [left, top, right, bottom] = grid.box.map((edge, k) => (edge / this.size[k % 2]!) * (k % 2 ? height : width));
      drawMap(brush, grid, style, left!, top!, right! - left!, bottom! - top!);
    }
    brush.globalAlpha = 1;
  }

  private drawMarks(brush: CanvasRenderingContext2D, width: number, height: number, style: WeightStyle, ratio: number): void {
    const [outline, crosses] = [new Path2D(this.outlinePath(width, height, style)), new Path2D()];
    for (const { position, x, y, width: cellWidth, height: cellHeight } of style.sinks?.some(Boolean) ? this.cells(width, height) : []) {
      if (!style.sinks![position]) continue;
      crosses.moveTo(x + cellWidth * 0.25, y + cellHeight * 0.25);
      crosses.lineTo(x + cellWidth * 0.75, y + cellHeight * 0.75);
      crosses.moveTo(x + cellWidth * 0.75, y + cellHeight * 0.25);
      crosses.lineTo(x + cellWidth * 0.25, y + cellHeight * 0.75);
    }
    const strokeTwice = (path: Path2D, colour: string, thick: number): void => {
      for (const [ink, line] of [["#000c", thick + 2], [colour, thick]] as const) {
        [brush.strokeStyle, brush.lineWidth] = [ink, line * ratio];
        brush.stroke(path);
      }
    };
    strokeTwice(outline, "#fff", 1.5);
    strokeTwice(crosses, "#fff", 1);
    if (this.marked === null) return;
    const { x, y, width: cellWidth, height: cellHeight } = this.cellOf(this.marked, width, height);
    const ring = new Path2D();
    ring.rect(x, y, cellWidth, cellHeight);
    ring.ellipse(x + cellWidth / 2, y + cellHeight / 2, cellWidth / 8, cellHeight / 8, 0, 0, 7);
    strokeTwice(ring, MARK, 2.5);
  }

  /** The outline of the cells with the largest weights, as the path of an SVG. */
  private outlinePath(width: number, height: number, { values, minOutlined: outlined }: WeightStyle): string {
    if (!values || !Number.isFinite(outlined)) return "";
    const isOutlined = (position: number): boolean => Math.abs(values[position]!) >= outlined;
    const lines: string[] = [];
    for (const { start, rows, columns } of this.grids) {
      for (let k = 0; k < rows * columns; k++) {
        if (!isOutlined(start + k)) continue;
        const { x, y, width: cellWidth, height: cellHeight } = this.cellOf(start + k, width, height);
        const [row, column] = [Math.floor(k / columns), k % columns];
        const [right, bottom] = [x + cellWidth, y + cellHeight];
        if (row === 0 || !isOutlined(start + k - columns)) lines.push(`M${x} ${y}H${right}`);
        if (row === rows - 1 || !isOutlined(start + k + columns)) lines.push(`M${x} ${bottom}H${right}`);
        if (column === 0 || !isOutlined(start + k - 1)) lines.push(`M${x} ${y}V${bottom}`);
        if (column === columns - 1 || !isOutlined(start + k + 1)) lines.push(`M${right} ${y}V${bottom}`);
      }
    }
    return lines.join("");
  }

  /** The picture as SVG within a square of `maxSize`, and its height. */
  createSvg(maxSize: number): readonly [SVGElement, number] {
    const [width, height] = [maxSize * Math.min(1, this.ratio), maxSize * Math.min(1, 1 / this.ratio)];
    const style = this.style!;
    const coloured = [...(style.values ? this.cells(width, height) : [])].filter(({ position }) => !(style.hidesSinks && style.sinks?.[position]));
    const markedCell = this.marked === null ? null : this.cellOf(this.marked, width, height);
    return [s("g", {},
      s("image", { href: this.dimmedImage(Math.round(2 * width), Math.round(2 * height), style.opacity).toDataURL(), width, height }),
      s("g", { opacity: style.opacity, "shape-rendering": "crispEdges" }, ...coloured.map(({ position, x, y, width: cellWidth, height: cellHeight }) =>
        s("rect", { x, y, width: cellWidth, height: cellHeight, ...fillOf(colourOf(style.values![position]!, style.scale)) }))),
      ...[["#000", 3.5], ["#fff", 1.5]].map(([ink, line]) => s("path", { d: this.outlinePath(width, height, style), fill: "none", stroke: ink!, "stroke-width": line! })),
      ...[...(style.sinks?.some(Boolean) ? this.cells(width, height) : [])].filter(({ position }) => style.sinks![position]).map(({ x, y, width: cellWidth, height: cellHeight }) =>
        s("path", { d: `M${x + cellWidth / 4} ${y + cellHeight / 4}l${cellWidth / 2} ${cellHeight / 2}m0 ${-cellHeight / 2}l${-cellWidth / 2} ${cellHeight / 2}`, stroke: "#fff", "stroke-width": 1.5, fill: "none" })),
      markedCell && s("rect", { x: markedCell.x, y: markedCell.y, width: markedCell.width, height: markedCell.height, fill: "none", stroke: MARK, "stroke-width": 2.5 })), height];
  }
}

/** The drawn width of an image divided by its drawn height. */
export const ratioOf = (width: number, height: number): number => Math.max(1 / MAX_ASPECT_RATIO, Math.min(MAX_ASPECT_RATIO, width / height));

let points: CanvasRenderingContext2D | null = null; // a canvas with one pixel for each patch

/** Draws the weights of a grid in a rectangle. */
export function drawMap(brush: CanvasRenderingContext2D, { start, rows, columns }: Grid, { values, scale, sinks, hidesSinks }: Pick<WeightStyle, "values" | "scale" | "sinks" | "hidesSinks">,
  x: number, y: number, width: number, height: number): void {
  points ??= h("canvas").getContext("2d", { willReadFrequently: true })!;
  [points.canvas.width, points.canvas.height] = [columns, rows];
  const map = new ImageData(columns, rows);
  for (let k = 0; k < rows * columns; k++) {
    if (hidesSinks && sinks?.[start + k]) continue;
    const [red, green, blue, opacity] = colourOf(values![start + k]!, scale);
    map.data.set([red, green, blue, 255 * opacity], 4 * k);
  }
  points.putImageData(map, 0, 0);
  brush.drawImage(points.canvas, x, y, width, height);
}

/** Groups of grids that share an image without overlap. The tiles and the overview of an image are two groups. */
export function groupGrids(grids: readonly Grid[]): Grid[][] {
  const groups: Grid[][] = [];
  const overlap = (a: Grid, b: Grid): boolean => [0, 1].every((k) => a.box[k]! < b.box[k + 2]! && b.box[k]! < a.box[k + 2]!);
  for (const grid of grids) {
    const group = grid.image < 0 ? undefined : groups.find((candidate) => candidate[0]!.image === grid.image && !candidate.some((other) => overlap(grid, other)));
    if (group) group.push(grid);
    else groups.push([grid]);
  }
  return groups;
}
