/** Heat map of any size on a canvas, with zoom and scrolling by pointer, fingers, wheel and keyboard. */
import { OVER } from "../map";
import { h, isolateDirection, shorten, widthOf } from "../../page/dom";
import { saveCanvas } from "../../page/save";
import { brief, number, precise, t } from "../../page/strings";
import { createTable } from "../table";
import { nameOf, labelInterval, type Axis } from "./axes";
import { Painter } from "./painter";
import { Pyramid, type Matrix } from "./pyramid";
import { View } from "./view";

const FONT_SIZE = 12; // pixels
const MAX_HEIGHT = 560; // pixels
const MAX_LABEL_WIDTH = 96; // pixels
const MIN_DRAWN_CELL = 14; // pixels; larger cells are drawn one by one
const MIN_NUMBERED_CELL = 46; // pixels; larger cells show their numbers
const WHEEL_ZOOM = 1.0015; // zoom factor per pixel of the wheel
const STEP = 1.5; // zoom factor of the keys and buttons
const MAX_CLICK_DISTANCE = 5; // pixels that the pointer may move during a click
const MIN_BLOCK_SIDE = 3; // pixels; the pointer selects blocks of smaller cells
const POOLING_TIME = 10; // milliseconds per frame for pooling
const MAX_TABLE_SIZE = 24; // rows, and columns

export interface TileMapOptions {
  readonly matrix: Matrix;
  /** The values of the palest and the strongest colour. */
  readonly range: readonly [number, number];
  readonly rows: Axis;
  readonly columns: Axis;
  readonly label: string;
  /** Called when a cell is clicked, or activated with Enter. */
  readonly open?: (row: number, column: number) => void;
}

interface Block {
  readonly row: number;
  readonly column: number;
  readonly height: number;
  readonly width: number;
}

export class TileMap {
  readonly element: HTMLElement;
  readonly view: View;
  /** True when all levels are pooled and all visible tiles are drawn at full resolution. */
  settled = false;
  private readonly pyramid: Pyramid;
  private readonly painter: Painter;
  private readonly canvas = h("canvas");
  private readonly window: HTMLElement;
  private readonly readout = h("output", { class: "cell-readout", role: "status" });
  private readonly tableBox = h("div");
  private readonly details: HTMLDetailsElement;
  private readonly probe = h("span", { class: "probe unseen", "aria-hidden": "true" });
  private readonly buttons: Record<"in" | "out" | "all", HTMLButtonElement>;
  private readonly pointers = new Map<number, { x: number; y: number }>();
  private draggedDistance = 0; // pixels since the pointer was pressed
  private activeBlock: Block | null = null;
  private frame = 0;
  private tableTimer = 0;
  private hasColours = false;
  private left = 0; // origin of the cells, right of the labels and below them
  private top = 0;
  private colour: (name: string) => string = () => "#888";

  constructor(private readonly options: TileMapOptions) {
    const { matrix, rows, columns, label } = options;
    this.view = new View(matrix.rows, matrix.columns);
    this.pyramid = new Pyramid(matrix);
    this.painter = new Painter(this.pyramid, options.range);
    const createButton = (symbol: string, phrase: "zoom-in" | "zoom-out" | "show-all", action: () => void): HTMLButtonElement =>
      h("button", { type: "button", class: "icon", "aria-label": t(phrase), title: t(phrase), click: () => {
        action();
        this.requestDraw();
      } }, symbol);
    const zoomAtCentre = (factor: number) => () => this.view.zoom(factor, this.innerSize.width / 2, this.innerSize.height / 2);
    this.buttons = {
      out: createButton("−", "zoom-out", zoomAtCentre(1 / STEP)), in: createButton("+", "zoom-in", zoomAtCentre(STEP)), all: createButton("⤢", "show-all", () => this.view.home()),
    };
    const png = h("button", { type: "button", class: "plain", "aria-label": t("save-view"), title: t("save-view"), click: () => this.save() }, "PNG");
    this.window = h("div", { class: "window", tabindex: 0, role: "application", "aria-busy": "true", "aria-label": `${label}. ${t("tiles-help")}` }, this.canvas);
    this.details = h("details", { toggle: () => this.tabulate() }, h("summary", {}, t("visible-table")), this.tableBox);
    this.element = h("div", { class: "tiles" },
      h("div", { class: "above" },
        h("p", { class: "quiet" }, `${rows.title} ↓ ${number(rows.extent, 0)} · ${columns.title} → ${number(columns.extent, 0)}`),
        h("div", { class: "tools" }, this.buttons.out, this.buttons.in, this.buttons.all, png)),
      this.window, this.readout, this.probe, this.details);
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.window);
  }

  /** Highlights a cell; null removes the highlight. */
  highlight(row: number | null, column: number | null): void {
    this.activate(row === null || column === null ? null : { row, column, height: 1, width: 1 });
  }

  /** Saves the visible part as PNG, without the highlight. */
  private save(): void {
    this.activeBlock = null;
    this.draw();
    void saveCanvas(this.canvas, "dikkat-map");
  }

  // --- input

  private listen(): void {
    const { window: area, canvas, view, pointers } = this;
    area.addEventListener("wheel", (event) => {
      const factor = WHEEL_ZOOM ** -(event.deltaY * (event.deltaMode === 1 ? 33 : 1) * (event.ctrlKey ? 6 : 1));
      if (factor < 1 ? view.showsAll : view.isNearest) return; // at the limit, the page scrolls
      event.preventDefault();
      view.zoom(factor, ...this.pointOf(event));
      this.requestDraw();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.draggedDistance = 0;
      if (event.pointerType !== "touch" || !view.showsAll) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.dragTo(event));
    canvas.addEventListener("pointerleave", () => pointers.size || this.activate(null));
    for (const name of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(name, (event) => {
        const wasDown = pointers.delete(event.pointerId);
        if (!wasDown || pointers.size || name === "pointercancel" || this.draggedDistance > MAX_CLICK_DISTANCE) return;
        this.activate(this.blockAt(...this.pointOf(event)));
        if (this.activeBlock?.height === 1 && this.activeBlock.width === 1) this.options.open?.(this.activeBlock.row, this.activeBlock.column);
      });
    }
    canvas.addEventListener("dblclick", (event) => {
      view.zoom(STEP * STEP, ...this.pointOf(event));
      this.requestDraw();
    });
    area.addEventListener("keydown", (event) => this.handleKey(event));
    area.addEventListener("focus", () => area.matches(":focus-visible") && this.activate(this.activeBlock ?? this.blockAt(0, 0)));
    area.addEventListener("blur", () => this.activate(null));
    // The probe has a colour transition, so its end signals a change between light and dark.
    this.probe.addEventListener("transitionend", () => {
      this.hasColours = false;
      this.requestDraw();
    });
  }

  private dragTo(event: PointerEvent): void {
    const { pointers, view } = this;
    const previous = pointers.get(event.pointerId);
    if (!previous) {
      if (event.pointerType !== "touch") this.activate(this.blockAt(...this.pointOf(event)));
      return;
    }
    const point = { x: event.clientX, y: event.clientY };
    this.draggedDistance += Math.hypot(point.x - previous.x, point.y - previous.y);
    const otherPoint = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (otherPoint) {
      const distance = (finger: { x: number; y: number }): number => Math.hypot(finger.x - otherPoint.x, finger.y - otherPoint.y);
      const middle = { clientX: (point.x + otherPoint.x) / 2, clientY: (point.y + otherPoint.y) / 2 };
      view.pan((point.x - previous.x) / 2, (point.y - previous.y) / 2);
      view.zoom(distance(point) / Math.max(1, distance(previous)), ...this.pointOf(middle));
    } else view.pan(point.x - previous.x, point.y - previous.y);
    pointers.set(event.pointerId, point);
    this.requestDraw();
  }

  private handleKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const block = this.activeBlock ?? this.blockAt(0, 0)!;
    const [rowStep, columnStep] = this.steps;
    const centre = [(block.column + block.width / 2 - view.x) * view.scaleX, (block.row + block.height / 2 - view.y) * view.scaleY] as const;
    const [rowSign, columnSign] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    let { row, column } = block;
    if (rowSign || columnSign) {
      const factor = event.shiftKey ? 10 : 1;
      const move = (start: number, sign: number, step: number, count: number): number =>
        Math.floor(Math.min(Math.max(start + sign * factor * step, 0), count - 1) / step) * step;
      [row, column] = [move(row, rowSign!, rowStep, view.rows), move(column, columnSign!, columnStep, view.columns)];
    } else if (event.key === "+" || event.key === "=") view.zoom(STEP, ...centre);
    else if (event.key === "-") view.zoom(1 / STEP, ...centre);
    else if (event.key === "Home") view.home();
    else if (event.key === "Enter" && block.height === 1 && block.width === 1) this.options.open?.(row, column);
    else return;
    event.preventDefault();
    const nextBlock = this.block(row, column);
    view.reveal(nextBlock.row, nextBlock.column, nextBlock.height, nextBlock.width);
    this.activate(nextBlock);
  }

  /** Position of an event relative to the cells, in pixels. */
  private pointOf(event: { clientX: number; clientY: number }): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left - this.left, event.clientY - box.top - this.top];
  }

  /** The rows and columns of a selectable block: 1 unless cells are too small. */
  private get steps(): readonly [number, number] {
    const step = (scale: number): number => 2 ** Math.max(0, Math.ceil(Math.log2(MIN_BLOCK_SIDE / scale)));
    return [step(this.view.scaleY), step(this.view.scaleX)];
  }

  private block(row: number, column: number): Block {
    const { steps: [rowStep, columnStep], view } = this;
    const [top, left] = [row - (row % rowStep), column - (column % columnStep)];
    return { row: top, column: left, height: Math.min(rowStep, view.rows - top), width: Math.min(columnStep, view.columns - left) };
  }

  private blockAt(left: number, top: number): Block | null {
    const cell = this.view.cellAt(left, top);
    return cell && this.block(...cell);
  }

  private activate(block: Block | null): void {
    this.activeBlock = block ?? (this.window.matches(":focus") ? this.activeBlock : null);
    this.readout.textContent = block ? this.blockText(block) : "";
    this.requestDraw();
  }

  private blockText({ row, column, height, width }: Block): string {
    const { rows, columns } = this.options;
    const value = this.pyramid.block(row, column, height, width);
    const isCell = height === 1 && width === 1;
    const valueText = Number.isNaN(value) ? t("no-number") : isCell ? precise(value) : t("upper-bound", precise(value));
    return `${isolateDirection(nameOf(rows, row, row + height))} × ${isolateDirection(nameOf(columns, column, column + width))}: ${valueText}`;
  }

  // --- drawing

  private get innerSize(): { width: number; height: number } {
    return { width: Math.max(1, this.canvas.clientWidth - this.left), height: Math.max(1, this.canvas.clientHeight - this.top) };
  }

  private resize(): void {
    const width = this.window.clientWidth;
    if (!width) return;
    const { rows, columns } = this.options;
    const maxLabelWidth = (axis: Axis): number =>
      axis.tokens ? Math.min(MAX_LABEL_WIDTH, Math.max(...sample(axis.tokens).map((token) => widthOf(token, FONT_SIZE)))) : lastLabelWidth(axis);
    this.left = Math.ceil(Math.min(maxLabelWidth(rows), width * 0.3)) + 10;
    this.top = columns.tokens ? Math.ceil(maxLabelWidth(columns) * 0.71) + FONT_SIZE + 8 : FONT_SIZE + 12;
    const height = this.view.preferredHeight(width - this.left, Math.min(MAX_HEIGHT, Math.max(240, innerHeight * 0.75))) + this.top;
    const pixelRatio = Math.min(devicePixelRatio || 1, 2);
    [this.canvas.width, this.canvas.height] = [Math.round(width * pixelRatio), Math.round(height * pixelRatio)];
    this.canvas.style.height = `${height}px`;
    this.view.resize(width - this.left, height - this.top);
    this.draw();
  }

  /** Schedules drawing for the next frame. */
  private requestDraw(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    const context = this.canvas.getContext("2d");
    if (!context || !this.element.isConnected) return;
    if (!this.hasColours) this.readColours();
    const isPooling = !this.pyramid.complete;
    if (isPooling) {
      this.pyramid.build(POOLING_TIME);
      this.painter.clear();
    }
    const { view, left, top } = this;
    const { width, height } = this.innerSize;
    const pixelRatio = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
    context.clearRect(0, 0, left + width, top + height);
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    context.translate(left, top);
    const drawsCells = Math.min(view.scaleX, view.scaleY) >= MIN_DRAWN_CELL;
    if (drawsCells) this.drawCells(context);
    const isComplete = drawsCells || this.painter.paint(context, view);
    if (this.activeBlock) this.drawRing(context, this.activeBlock);
    context.restore();
    this.drawLabels(context);
    this.canvas.style.touchAction = view.showsAll ? "pan-x pan-y" : "none";
    this.canvas.classList.toggle("held", this.pointers.size > 0);
    this.buttons.in.disabled = view.isNearest;
    this.buttons.out.disabled = this.buttons.all.disabled = view.showsAll;
    this.settled = !isPooling && isComplete;
    this.window.setAttribute("aria-busy", String(!this.settled));
    if (!this.settled) this.requestDraw();
    clearTimeout(this.tableTimer);
    this.tableTimer = window.setTimeout(() => this.tabulate(), 250);
  }

  private readColours(): void {
    const cssColour = (name: string): string => {
      this.probe.style.color = `var(--${name})`;
      return getComputedStyle(this.probe).color;
    };
    this.probe.style.transition = "none";
    const colours = new Map(["well", "heat", "over", "under", "ink", "quiet"].map((name) => [name, cssColour(name)]));
    this.probe.style.removeProperty("color");
    getComputedStyle(this.probe).getPropertyValue("color"); // flushes styles before transitions are on again
    this.probe.style.removeProperty("transition");
    this.colour = (name) => colours.get(name)!;
    const rgbOf = (name: string): [number, number, number] => {
      const [red = 0, green = 0, blue = 0] = (colours.get(name)!.match(/[\d.]+/g) ?? []).map(Number);
      return [red, green, blue];
    };
    this.painter.reset({ lowest: rgbOf("well"), highest: rgbOf("heat") });
    this.hasColours = true;
  }

  /** Draws large cells one by one, with rounded corners. */
  private drawCells(context: CanvasRenderingContext2D): void {
    const { view, options: { matrix, range: [low, high] } } = this;
    const { seen: range, scaleX, scaleY } = view;
    const showsNumbers = Math.min(scaleX, scaleY) >= MIN_NUMBERED_CELL;
    context.font = `${FONT_SIZE}px ${getComputedStyle(this.window).fontFamily}`;
    [context.textAlign, context.textBaseline] = ["center", "middle"];
    for (let i = range.top; i < range.bottom; i++) {
      for (let j = range.left; j < range.right; j++) {
        const value = matrix.values[i * matrix.columns + j]!;
        if (!Number.isFinite(value)) continue;
        const [x, y] = [(j - view.x) * scaleX, (i - view.y) * scaleY];
        context.beginPath();
        context.roundRect(x + 0.5, y + 0.5, scaleX - 1, scaleY - 1, 3);
        context.fillStyle = this.colour("well");
        context.fill();
        const share = Math.max(0, Math.min(1, (value - low) / (high - low)));
        context.globalAlpha = share;
        context.fillStyle = this.colour("heat");
        context.fill();
        context.globalAlpha = 1;
        if (!showsNumbers) continue;
        context.fillStyle = this.colour(share > OVER ? "over" : "under");
        context.fillText(brief(value), x + scaleX / 2, y + scaleY / 2);
      }
    }
  }

  private drawRing(context: CanvasRenderingContext2D, { row, column, height, width }: Block): void {
    const { view } = this;
    context.strokeStyle = this.colour("ink");
    context.lineWidth = 2;
    context.strokeRect((column - view.x) * view.scaleX, (row - view.y) * view.scaleY, width * view.scaleX, height * view.scaleY);
  }

  private drawLabels(context: CanvasRenderingContext2D): void {
    const { view, activeBlock, left, top, options: { rows, columns } } = this;
    const { seen: range } = view;
    const { width, height } = this.innerSize;
    const setLabelStyle = (isActive: boolean): void => {
      context.font = `${isActive ? "600 " : ""}${FONT_SIZE}px ${getComputedStyle(this.window).fontFamily}`;
      context.fillStyle = this.colour(isActive ? "ink" : "quiet");
    };
    const rowInterval = labelInterval(view.scaleY, FONT_SIZE + 5);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let i = Math.ceil(range.top / rowInterval) * rowInterval; i < range.bottom; i += rowInterval) {
      const y = top + (i + 0.5 - view.y) * view.scaleY;
      if (y < top || y > top + height) continue;
      setLabelStyle(activeBlock !== null && i >= activeBlock.row && i < activeBlock.row + activeBlock.height);
      context.fillText(shorten(nameOf(rows, i), left - 8, FONT_SIZE), left - 6, y);
    }
    const columnInterval = labelInterval(view.scaleX, columns.tokens ? FONT_SIZE + 5 : lastLabelWidth(columns) + 14);
    for (let j = Math.ceil(range.left / columnInterval) * columnInterval; j < range.right; j += columnInterval) {
      const x = left + (j + 0.5 - view.x) * view.scaleX;
      if (x < left || x + (columns.tokens ? 0 : lastLabelWidth(columns) / 2) > left + width + 1) continue;
      setLabelStyle(activeBlock !== null && j >= activeBlock.column && j < activeBlock.column + activeBlock.width);
      context.save();
      context.translate(x, top - 8);
      if (columns.tokens) context.rotate(-Math.PI / 4);
      context.textAlign = columns.tokens ? "left" : "center";
      context.fillText(shorten(nameOf(columns, j), MAX_LABEL_WIDTH, FONT_SIZE), 0, 0);
      context.restore();
    }
  }

  // --- table

  /** Table of the visible cells, pooled to at most `MAX_TABLE_SIZE` rows and columns. */
  private tabulate(): void {
    if (!this.details.open || !this.pyramid.complete) return;
    const { view, options: { rows, columns, label } } = this;
    const { top, bottom, left, right } = view.seen;
    const blocks = (start: number, end: number, count: number): [number, number][] => {
      const step = 2 ** Math.max(0, Math.ceil(Math.log2((end - start) / MAX_TABLE_SIZE)));
      const list: [number, number][] = [];
      for (let first = start - (start % step); first < end; first += step) list.push([first, Math.min(step, count - first)]);
      return list;
    };
    const columnBlocks = blocks(left, right, view.columns);
    this.tableBox.replaceChildren(createTable(label, ["", ...columnBlocks.map(([column, width]) => nameOf(columns, column, column + width))],
      blocks(top, bottom, view.rows).map(([row, height]) => [nameOf(rows, row, row + height), ...columnBlocks.map(([column, width]) => {
        const value = this.pyramid.block(row, column, height, width);
        return Number.isNaN(value) ? t("no-number") : precise(value);
      })])));
  }
}

/** Width of an axis's last label, in pixels. */
const lastLabelWidth = (axis: Axis): number => widthOf(nameOf(axis, axis.count - 1), FONT_SIZE);

/** A sample of labels, to estimate their width. */
const sample = (tokens: readonly string[]): string[] => {
  const interval = Math.ceil(tokens.length / 300);
  return tokens.filter((_, k) => k % interval === 0);
};
