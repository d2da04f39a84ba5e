/** A time series above the weights of its times. */
import { h, s } from "../page/dom";
import { brief } from "../page/strings";
import type { Times } from "../page/weights";
import { Placed, type Listeners } from "./placed";

const [LEFT, TOP, LINE, GAP, BARS, FOOT] = [52, 10, 190, 14, 70, 24]; // pixels
const TICKS = 5;

export class Series extends Placed<HTMLElement> {
  readonly element: HTMLElement;

  constructor(private readonly part: Times, label: string, listeners: Listeners) {
    super(h("div", { class: "series" }), part.start, label, listeners);
    this.element = h("figure", { class: "image" }, this.box);
  }

  protected has(position: number): boolean {
    return position >= this.part.start && position < this.part.start + this.part.values.length;
  }

  protected step(key: string, from: number): number | null {
    const [first, last] = [this.part.start, this.part.start + this.part.values.length - 1];
    const to = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: first, End: last }[key];
    return to === undefined ? null : Math.max(first, Math.min(to, last));
  }

  protected positionAt({ clientX }: MouseEvent): number | null {
    const { left, width } = this.box.getBoundingClientRect();
    const share = (clientX - left - LEFT) / (width - LEFT);
    const after = this.edges().findIndex((edge) => share < edge);
    return after > 0 ? this.part.start + after - 1 : null;
  }

  /** A time as a share of the width, which reaches half a bar beyond the first and the last time. */
  private shareOf(time: number): number {
    const { values } = this.part;
    const last = values.length - 1;
    const half = last ? [values[1]! - values[0]!, values[last]! - values[last - 1]!].map((step) => step / 2) : [0.5, 0.5];
    const [from, to] = [values[0]! - half[0]!, values[last]! + half[1]!];
    return (time - from) / (to - from || 1);
  }

  /** Edges of the times' bars as shares of the width: halfway between neighbours. */
  private edges(): number[] {
    const { values } = this.part;
    return [0, ...values.slice(1).map((value, k) => this.shareOf((value + values[k]!) / 2)), 1];
  }

  protected draw(): void {
    const width = this.box.clientWidth;
    if (!this.drawn || !width) return;
    const [picture, height] = this.svg(width);
    this.box.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, picture));
  }

  /** The picture as SVG at some width; and its height. */
  svg(width: number): readonly [SVGElement, number] {
    const { values, series, start } = this.part;
    const { values: weights, scale, sinks, hidden } = this.drawn!;
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
    // A series has a number for each time, or numbers at equal distances from the first to the last time.
    const [begin, end] = [values[0]!, values.at(-1)!];
    const timeOf = (k: number): number => (series!.length === values.length ? values[k]! : begin + (k * (end - begin)) / Math.max(1, series!.length - 1));
    const x = (k: number): number => LEFT + this.shareOf(timeOf(k)) * (width - LEFT);
    const line = (series ?? []).map((value, k) => (Number.isFinite(value) ? `${k && Number.isFinite(series![k - 1]) ? "L" : "M"}${x(k).toFixed(1)} ${y(value).toFixed(1)}` : "")).join("");
    const at = this.marked === null ? null : middle(this.marked - start);
    return [s("g", { class: "series" }, ...bars,
      series && s("path", { d: line, class: "curve", fill: "none" }),
      series && text(LEFT - 6, y(most) + 8, "end", brief(most)), series && text(LEFT - 6, y(least), "end", brief(least)),
      text(LEFT - 6, foot - BARS + 8, "end", `${+(100 * scale.full).toPrecision(2)} %`), text(LEFT - 6, foot, "end", "0"),
      s("line", { x1: LEFT, x2: width, y1: foot, y2: foot, class: "axis" }),
      ...ticks.map((k) => text(middle(k), foot + 16, k === 0 ? "start" : k === values.length - 1 ? "end" : "middle", String(+values[k]!.toPrecision(6)))),
      at !== null && s("line", { x1: at, x2: at, y1: TOP, y2: foot, class: "here" })), foot + FOOT];
  }
}
