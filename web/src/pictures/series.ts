/** A time series above the weights of its times. */
import { h, s } from "../page/dom";
import { brief, t } from "../page/strings";
import type { Times } from "../page/weights";
import type { Look } from "./patches";

const [LEFT, TOP, LINE, GAP, BARS, FOOT] = [52, 10, 190, 14, 70, 24]; // pixels
const TICKS = 5;

export class Series {
  readonly element: HTMLElement;
  private readonly box: HTMLElement;
  private at: number | null = null; // index
  private drawn: Look | null = null;

  /** @param look, choose as of `Patches` */
  constructor(private readonly part: Times, label: string, private readonly look: (position: number | null) => void, choose: (position: number) => void) {
    const { start, values: { length } } = part;
    this.box = h("div", {
      class: "series", tabindex: 0, role: "application", "aria-label": `${label}. ${t("patches-keys")}`,
      pointermove: (event: PointerEvent) => this.go(this.indexAt(event.clientX)), pointerleave: () => this.go(null), blur: () => this.go(null),
      click: (event: MouseEvent) => {
        const index = this.indexAt(event.clientX);
        if (index !== null) choose(start + index);
      },
      focus: () => this.box.matches(":focus-visible") && this.go(this.current),
      keydown: (event: KeyboardEvent) => {
        const to = { ArrowRight: this.current + 1, ArrowLeft: this.current - 1, Home: 0, End: length - 1 }[event.key];
        if (event.key === "Enter" || event.key === " ") choose(start + this.current);
        else if (event.key === "Escape") this.go(null);
        else if (to === undefined) return;
        else this.go(Math.max(0, Math.min(to, length - 1)));
        event.preventDefault();
      },
    });
    this.element = h("figure", { class: "image" }, this.box);
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  has(position: number): boolean {
    return position >= this.part.start && position < this.part.start + this.part.values.length;
  }

  show(look: Look): void {
    this.drawn = look;
    this.draw();
  }

  private get current(): number {
    const mark = this.drawn?.mark ?? null;
    return this.at ?? (mark !== null && this.has(mark) ? mark - this.part.start : 0);
  }

  private go(index: number | null): void {
    if (index === this.at) return;
    this.at = index;
    this.look(index === null ? null : this.part.start + index);
  }

  private indexAt(x: number): number | null {
    const { left, width } = this.box.getBoundingClientRect();
    const share = (x - left - LEFT) / (width - LEFT);
    if (share < 0 || share >= 1) return null;
    const { values } = this.part;
    const edges = this.edges();
    return values.findIndex((_, k) => share < edges[k + 1]!);
  }

  /** Edges of the times' bars as shares of the width: halfway between neighbours. */
  private edges(): number[] {
    const { values } = this.part;
    const last = values.length - 1;
    const half = last ? [values[1]! - values[0]!, values[last]! - values[last - 1]!].map((each) => each / 2) : [0.5, 0.5];
    const [from, to] = [values[0]! - half[0]!, values[last]! + half[1]!];
    return [0, ...values.slice(1).map((value, k) => ((value + values[k]!) / 2 - from) / (to - from || 1)), 1];
  }

  private draw(): void {
    const width = this.box.clientWidth;
    if (!this.drawn || !width) return;
    const [picture, height] = this.svg(width);
    this.box.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, picture));
  }

  /** The picture as SVG at some width; and its height. */
  svg(width: number): readonly [SVGElement, number] {
    const { values, series, start } = this.part;
    const { values: weights, scale, mark, sinks, hidden } = this.drawn!;
    const edges = this.edges().map((share) => LEFT + share * (width - LEFT));
    const middle = (k: number): number => (edges[k]! + edges[k + 1]!) / 2;
    const finite = (series ?? []).filter(Number.isFinite);
    const [least, most] = [Math.min(...finite), Math.max(...finite)];
    const y = (value: number): number => TOP + LINE * (1 - (value - least) / (most - least || 1));
    const foot = TOP + (series ? LINE + GAP : 0) + BARS;
    const bars = !weights ? [] : values.flatMap((_, k) => {
      const weight = weights[start + k]!;
      const tall = Math.min(1, Math.abs(weight) / (scale.full || 1)) * BARS;
      return hidden && sinks?.[start + k] ? [] : [
        s("rect", { x: edges[k]!, y: foot - tall, width: Math.max(1, edges[k + 1]! - edges[k]! - 1), height: tall, class: weight < 0 ? "warm" : "bar" }),
        series && s("rect", { x: edges[k]!, y: TOP, width: edges[k + 1]! - edges[k]! + 0.3, height: LINE, class: "shade", "fill-opacity": (0.75 * Math.min(1, Math.abs(weight) / (scale.full || 1)) ** scale.gamma).toFixed(3) }),
      ].filter((each) => each !== null);
    });
    const text = (x: number, at: number, anchor: string, label: string): SVGElement => s("text", { x, y: at, "text-anchor": anchor, "font-size": 11, class: "label" }, label);
    const ticks = [...new Set(Array.from({ length: TICKS }, (_, k) => Math.round((k * (values.length - 1)) / (TICKS - 1))))];
    const line = (series ?? []).map((value, k) => (Number.isFinite(value) ? `${k && Number.isFinite(series![k - 1]) ? "L" : "M"}${middle(k).toFixed(1)} ${y(value).toFixed(1)}` : "")).join("");
    const at = mark !== null && this.has(mark) ? middle(mark - start) : null;
    return [s("g", {}, ...bars,
      series && s("path", { d: line, class: "curve", fill: "none" }),
      series && text(LEFT - 6, y(most) + 8, "end", brief(most)), series && text(LEFT - 6, y(least), "end", brief(least)),
      text(LEFT - 6, foot - BARS + 8, "end", `${+(100 * scale.full).toPrecision(2)} %`), text(LEFT - 6, foot, "end", "0"),
      s("line", { x1: LEFT, x2: width, y1: foot, y2: foot, class: "axis" }),
      ...ticks.map((k) => text(middle(k), foot + 16, k === 0 ? "start" : k === values.length - 1 ? "end" : "middle", String(+values[k]!.toPrecision(6)))),
      at !== null && s("line", { x1: at, x2: at, y1: TOP, y2: foot, class: "here" })), foot + FOOT];
  }
}
