/** Heat map of any size on a canvas, with zoom and scrolling by pointer, fingers, wheel and keyboard. */
import { OVER } from "../map";
import { h, isolated, shortened, widthOf } from "../../page/dom";
import { saveCanvas } from "../../page/save";
import { brief, number, precise, t } from "../../page/strings";
import { table } from "../table";
import { nameOf, pace, type Axis } from "./axes";
import { Painter } from "./painter";
import { Pyramid, type Matrix } from "./pyramid";
import { View } from "./view";

const SIZE = 12; // of letters, in pixels
const LABEL = 96; // widest label, in pixels
const SINGLE = 14; // cells of at least so many pixels are drawn one by one
const WRITTEN = 46; // cells of at least so many pixels show their numbers
const TURN = 1.0015; // zoom factor for a pixel of the wheel
const STEP = 1.5; // zoom factor for + and the buttons
const CLICK = 5; // pixels a pointer may move during a click
const POINTED = 3; // smallest block of cells to point at, in pixels
const WORK = 10; // milliseconds of a frame spent on coarser levels
const TWIN = 24; // most rows and columns of the table

export interface Mapped {
  readonly matrix: Matrix;
  /** Values of the palest and of the strongest colour. */
  readonly range: readonly [number, number];
  readonly rows: Axis;
  readonly columns: Axis;
  readonly label: string;
  /** Most height, in pixels. */
  readonly most?: number;
  /** Called when a cell is clicked, or Enter pressed on it. */
  readonly open?: (row: number, column: number) => void;
}

interface Block {
  readonly row: number;
  readonly column: number;
  readonly tall: number;
  readonly wide: number;
}

export class TileMap {
  readonly element: HTMLElement;
  readonly view: View;
  /** True once every level is pooled and every visible tile is sharp. */
  settled = false;
  private readonly pyramid: Pyramid;
  private readonly painter: Painter;
  private readonly canvas = h("canvas");
  private readonly window: HTMLElement;
  private readonly readout = h("output", { class: "cell-readout", role: "status" });
  private readonly twin = h("div");
  private readonly details: HTMLDetailsElement;
  private readonly probe = h("span", { class: "probe unseen", "aria-hidden": "true" });
  private readonly buttons: Record<"in" | "out" | "whole", HTMLButtonElement>;
  private readonly pointers = new Map<number, { x: number; y: number }>();
  private strayed = 0; // pixels since the pointer came down
  private at: Block | null = null;
  private frame = 0;
  private later = 0;
  private dyed = false;
  private left = 0; // origin of the cells, beside and below the labels
  private top = 0;
  private colour: (name: string) => string = () => "#888";

  constructor(private readonly given: Mapped) {
    const { matrix, rows, columns, label } = given;
    this.view = new View(matrix.rows, matrix.columns);
    this.pyramid = new Pyramid(matrix);
    this.painter = new Painter(this.pyramid, given.range);
    const button = (sign: string, phrase: "zoom-in" | "zoom-out" | "whole", act: () => void): HTMLButtonElement =>
      h("button", { type: "button", class: "icon", "aria-label": t(phrase), title: t(phrase), click: () => {
        act();
        this.changed();
      } }, sign);
    const middle = (factor: number) => () => this.view.zoom(factor, this.inside.wide / 2, this.inside.tall / 2);
    this.buttons = {
      out: button("−", "zoom-out", middle(1 / STEP)), in: button("+", "zoom-in", middle(STEP)), whole: button("⤢", "whole", () => this.view.home()),
    };
    const png = h("button", { type: "button", class: "plain", "aria-label": t("save-view"), title: t("save-view"), click: () => this.save() }, "PNG");
    this.window = h("div", { class: "window", tabindex: 0, role: "application", "aria-busy": "true", "aria-label": `${label}. ${t("tiles-help")}` }, this.canvas);
    this.details = h("details", { toggle: () => this.tabulate() }, h("summary", {}, t("in-view")), this.twin);
    this.element = h("div", { class: "tiles" },
      h("div", { class: "above" },
        h("p", { class: "quiet" }, `${rows.title} ↓ ${number(rows.extent, 0)} · ${columns.title} → ${number(columns.extent, 0)}`),
        h("div", { class: "tools" }, this.buttons.out, this.buttons.in, this.buttons.whole, png)),
      this.window, this.readout, this.probe, this.details);
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.window);
  }

  /** Highlights a cell as if it were pointed at; null clears. */
  stress(row: number | null, column: number | null): void {
    this.look(row === null || column === null ? null : { row, column, tall: 1, wide: 1 });
  }

  /** Saves the visible part as PNG, without the highlight. */
  private save(): void {
    this.at = null;
    this.draw();
    void saveCanvas(this.canvas, "dikkat-map");
  }

  // --- input

  private listen(): void {
    const { window: area, canvas, view, pointers } = this;
    area.addEventListener("wheel", (event) => {
      const factor = TURN ** -(event.deltaY * (event.deltaMode === 1 ? 33 : 1) * (event.ctrlKey ? 6 : 1));
      if (factor < 1 ? view.whole : view.nearest) return; // at the limit, the page scrolls
      event.preventDefault();
      view.zoom(factor, ...this.placeOf(event));
      this.changed();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.strayed = 0;
      if (event.pointerType !== "touch" || !view.whole) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerleave", () => pointers.size || this.look(null));
    for (const name of ["pointerup", "pointercancel"] as const) {
      canvas.addEventListener(name, (event) => {
        const was = pointers.delete(event.pointerId);
        if (!was || pointers.size || name === "pointercancel" || this.strayed > CLICK) return;
        this.look(this.blockAt(...this.placeOf(event)));
        if (this.at?.tall === 1 && this.at.wide === 1) this.given.open?.(this.at.row, this.at.column);
      });
    }
    canvas.addEventListener("dblclick", (event) => {
      view.zoom(STEP * STEP, ...this.placeOf(event));
      this.changed();
    });
    area.addEventListener("keydown", (event) => this.pressed(event));
    area.addEventListener("focus", () => area.matches(":focus-visible") && this.look(this.at ?? this.blockAt(0, 0)));
    area.addEventListener("blur", () => this.look(null));
    // The probe's colour transition tells of a change between light and dark.
    this.probe.addEventListener("transitionend", () => {
      this.dyed = false;
      this.changed();
    });
  }

  private moved(event: PointerEvent): void {
    const { pointers, view } = this;
    const before = pointers.get(event.pointerId);
    if (!before) {
      if (event.pointerType !== "touch") this.look(this.blockAt(...this.placeOf(event)));
      return;
    }
    const now = { x: event.clientX, y: event.clientY };
    this.strayed += Math.hypot(now.x - before.x, now.y - before.y);
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const distance = (from: { x: number; y: number }): number => Math.hypot(from.x - other.x, from.y - other.y);
      const middle = { clientX: (now.x + other.x) / 2, clientY: (now.y + other.y) / 2 };
      view.pan((now.x - before.x) / 2, (now.y - before.y) / 2);
      view.zoom(distance(now) / Math.max(1, distance(before)), ...this.placeOf(middle));
    } else view.pan(now.x - before.x, now.y - before.y);
    pointers.set(event.pointerId, now);
    this.changed();
  }

  private pressed(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { view } = this;
    const block = this.at ?? this.blockAt(0, 0)!;
    const [tall, wide] = this.steps;
    const middle = [(block.column + block.wide / 2 - view.x) * view.scaleX, (block.row + block.tall / 2 - view.y) * view.scaleY] as const;
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    let { row, column } = block;
    if (down || right) {
      const far = event.shiftKey ? 10 : 1;
      const to = (start: number, by: number, step: number, count: number): number =>
        Math.floor(Math.min(Math.max(start + by * far * step, 0), count - 1) / step) * step;
      [row, column] = [to(row, down!, tall, view.rows), to(column, right!, wide, view.columns)];
    } else if (event.key === "+" || event.key === "=") view.zoom(STEP, ...middle);
    else if (event.key === "-") view.zoom(1 / STEP, ...middle);
    else if (event.key === "Home") view.home();
    else if (event.key === "Enter" && block.tall === 1 && block.wide === 1) this.given.open?.(row, column);
    else return;
    event.preventDefault();
    const next = this.block(row, column);
    view.reveal(next.row, next.column, next.tall, next.wide);
    this.look(next);
  }

  /** Position of an event relative to the cells, in pixels. */
  private placeOf(event: { clientX: number; clientY: number }): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left - this.left, event.clientY - box.top - this.top];
  }

  /** Cells, down and across, of the block under a pointer: 1 unless they are too small to point at. */
  private get steps(): readonly [number, number] {
    const step = (scale: number): number => 2 ** Math.max(0, Math.ceil(Math.log2(POINTED / scale)));
    return [step(this.view.scaleY), step(this.view.scaleX)];
  }

  private block(row: number, column: number): Block {
    const { steps: [tall, wide], view } = this;
    const [top, left] = [row - (row % tall), column - (column % wide)];
    return { row: top, column: left, tall: Math.min(tall, view.rows - top), wide: Math.min(wide, view.columns - left) };
  }

  private blockAt(left: number, top: number): Block | null {
    const found = this.view.at(left, top);
    return found && this.block(...found);
  }

  private look(block: Block | null): void {
    this.at = block ?? (this.window.matches(":focus") ? this.at : null);
    this.readout.textContent = block ? this.blockText(block) : "";
    this.changed();
  }

  private blockText({ row, column, tall, wide }: Block): string {
    const { rows, columns } = this.given;
    const value = this.pyramid.block(row, column, tall, wide);
    const one = tall === 1 && wide === 1;
    const shown = Number.isNaN(value) ? t("blank") : one ? precise(value) : t("at-most", precise(value));
    return `${isolated(nameOf(rows, row, row + tall))} × ${isolated(nameOf(columns, column, column + wide))}: ${shown}`;
  }

  // --- drawing

  private get inside(): { wide: number; tall: number } {
    return { wide: Math.max(1, this.canvas.clientWidth - this.left), tall: Math.max(1, this.canvas.clientHeight - this.top) };
  }

  private resize(): void {
    const wide = this.window.clientWidth;
    if (!wide) return;
    const { rows, columns, most = 560 } = this.given;
    const longest = (axis: Axis): number =>
      axis.tokens ? Math.min(LABEL, Math.max(...sample(axis.tokens).map((each) => widthOf(each, SIZE)))) : widest(axis);
    this.left = Math.ceil(Math.min(longest(rows), wide * 0.3)) + 10;
    this.top = columns.tokens ? Math.ceil(longest(columns) * 0.71) + SIZE + 8 : SIZE + 12;
    const tall = this.view.height(wide - this.left, Math.min(most, Math.max(240, innerHeight * 0.75))) + this.top;
    const sharp = Math.min(devicePixelRatio || 1, 2);
    [this.canvas.width, this.canvas.height] = [Math.round(wide * sharp), Math.round(tall * sharp)];
    this.canvas.style.height = `${tall}px`;
    this.view.resize(wide - this.left, tall - this.top);
    this.draw();
  }

  /** Schedules drawing for the next frame. */
  private changed(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  private draw(): void {
    const context = this.canvas.getContext("2d");
    if (!context || !this.element.isConnected) return;
    if (!this.dyed) this.dye();
    const unknown = !this.pyramid.complete;
    if (unknown) {
      this.pyramid.build(WORK);
      this.painter.forget();
    }
    const { view, left, top } = this;
    const { wide, tall } = this.inside;
    const sharp = this.canvas.width / Math.max(1, this.canvas.clientWidth);
    context.setTransform(sharp, 0, 0, sharp, 0, 0);
    context.clearRect(0, 0, left + wide, top + tall);
    context.save();
    context.beginPath();
    context.rect(left, top, wide, tall);
    context.clip();
    context.translate(left, top);
    const single = Math.min(view.scaleX, view.scaleY) >= SINGLE;
    if (single) this.drawCells(context);
    const done = single || this.painter.paint(context, view);
    if (this.at) this.drawRing(context, this.at);
    context.restore();
    this.drawLabels(context);
    this.canvas.style.touchAction = view.whole ? "pan-x pan-y" : "none";
    this.canvas.classList.toggle("held", this.pointers.size > 0);
    this.buttons.in.disabled = view.nearest;
    this.buttons.out.disabled = this.buttons.whole.disabled = view.whole;
    this.settled = !unknown && done;
    this.window.setAttribute("aria-busy", String(!this.settled));
    if (!this.settled) this.changed();
    clearTimeout(this.later);
    this.later = window.setTimeout(() => this.tabulate(), 250);
  }

  private dye(): void {
    const named = (name: string): string => {
      this.probe.style.color = `var(--${name})`;
      return getComputedStyle(this.probe).color;
    };
    this.probe.style.transition = "none";
    const colours = new Map(["well", "heat", "over", "under", "ink", "quiet"].map((name) => [name, named(name)]));
    this.probe.style.removeProperty("color");
    getComputedStyle(this.probe).getPropertyValue("color"); // flushes styles before transitions are on again
    this.probe.style.removeProperty("transition");
    this.colour = (name) => colours.get(name)!;
    const numbers = (name: string): [number, number, number] => {
      const [red = 0, green = 0, blue = 0] = (colours.get(name)!.match(/[\d.]+/g) ?? []).map(Number);
      return [red, green, blue];
    };
    this.painter.reset({ well: numbers("well"), glow: numbers("heat") });
    this.dyed = true;
  }

  /** Draws large cells one by one, with rounded corners. */
  private drawCells(context: CanvasRenderingContext2D): void {
    const { view, given: { matrix, range: [low, high] } } = this;
    const { seen, scaleX, scaleY } = view;
    const written = Math.min(scaleX, scaleY) >= WRITTEN;
    context.font = `${SIZE}px ${getComputedStyle(this.window).fontFamily}`;
    [context.textAlign, context.textBaseline] = ["center", "middle"];
    for (let i = seen.top; i < seen.bottom; i++) {
      for (let j = seen.left; j < seen.right; j++) {
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
        if (!written) continue;
        context.fillStyle = this.colour(share > OVER ? "over" : "under");
        context.fillText(brief(value), x + scaleX / 2, y + scaleY / 2);
      }
    }
  }

  private drawRing(context: CanvasRenderingContext2D, { row, column, tall, wide }: Block): void {
    const { view } = this;
    context.strokeStyle = this.colour("ink");
    context.lineWidth = 2;
    context.strokeRect((column - view.x) * view.scaleX, (row - view.y) * view.scaleY, wide * view.scaleX, tall * view.scaleY);
  }

  private drawLabels(context: CanvasRenderingContext2D): void {
    const { view, at, left, top, given: { rows, columns } } = this;
    const { seen } = view;
    const { wide, tall } = this.inside;
    const written = (here: boolean): void => {
      context.font = `${here ? "600 " : ""}${SIZE}px ${getComputedStyle(this.window).fontFamily}`;
      context.fillStyle = this.colour(here ? "ink" : "quiet");
    };
    const down = pace(view.scaleY, SIZE + 5);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (let i = Math.ceil(seen.top / down) * down; i < seen.bottom; i += down) {
      const y = top + (i + 0.5 - view.y) * view.scaleY;
      if (y < top || y > top + tall) continue;
      written(at !== null && i >= at.row && i < at.row + at.tall);
      context.fillText(shortened(nameOf(rows, i), left - 8, SIZE), left - 6, y);
    }
    const along = pace(view.scaleX, columns.tokens ? SIZE + 5 : widest(columns) + 14);
    for (let j = Math.ceil(seen.left / along) * along; j < seen.right; j += along) {
      const x = left + (j + 0.5 - view.x) * view.scaleX;
      if (x < left || x + (columns.tokens ? 0 : widest(columns) / 2) > left + wide + 1) continue;
      written(at !== null && j >= at.column && j < at.column + at.wide);
      context.save();
      context.translate(x, top - 8);
      if (columns.tokens) context.rotate(-Math.PI / 4);
      context.textAlign = columns.tokens ? "left" : "center";
      context.fillText(shortened(nameOf(columns, j), LABEL, SIZE), 0, 0);
      context.restore();
    }
  }

  // --- table

  /** Table of the visible cells, pooled to at most `TWIN` rows and columns. */
  private tabulate(): void {
    if (!this.details.open || !this.pyramid.complete) return;
    const { view, given: { rows, columns, label } } = this;
    const { top, bottom, left, right } = view.seen;
    const starts = (from: number, to: number, count: number): [number, number][] => {
      const step = 2 ** Math.max(0, Math.ceil(Math.log2((to - from) / TWIN)));
      const made: [number, number][] = [];
      for (let at = from - (from % step); at < to; at += step) made.push([at, Math.min(step, count - at)]);
      return made;
    };
    const across = starts(left, right, view.columns);
    this.twin.replaceChildren(table(label, ["", ...across.map(([column, wide]) => nameOf(columns, column, column + wide))],
      starts(top, bottom, view.rows).map(([row, tall]) => [nameOf(rows, row, row + tall), ...across.map(([column, wide]) => {
        const value = this.pyramid.block(row, column, tall, wide);
        return Number.isNaN(value) ? t("blank") : precise(value);
      })])));
  }
}

/** Width of an axis's last label, in pixels. */
const widest = (axis: Axis): number => widthOf(nameOf(axis, axis.count - 1), SIZE);

/** A sample of labels, to estimate their width. */
const sample = (tokens: readonly string[]): string[] => {
  const every = Math.ceil(tokens.length / 300);
  return tokens.filter((_, k) => k % every === 0);
};
