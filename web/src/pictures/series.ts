/** A time series above the weights of its times. */
import { h, s } from "../page/dom";
import { brief } from "../page/strings";
import type { Times } from "../page/weights";
import { PositionPicture, type Listeners } from "./position_picture";

const [LEFT, TOP, LINE, GAP, BARS, FOOT] = [52, 10, 190, 14, 70, 24]; // pixels
const TICKS = 5;

export class Series extends PositionPicture<HTMLElement> {
  readonly element: HTMLElement;

  constructor(private readonly axis: Times, label: string, listeners: Listeners) {
    super(h("div", { class: "series" }), axis.start, label, listeners);
    this.element = h("figure", { class: "image" }, this.box);
  }

  protected hasPosition(position: number): boolean {
    return position >= this.axis.start && position < this.axis.start + this.axis.values.length;
  }

  protected neighbour(key: string, position: number): number | null {
    const [firstPosition, lastPosition] = [this.axis.start, this.axis.start + this.axis.values.length - 1];
    const target = { ArrowRight: position + 1, ArrowLeft: position - 1, Home: firstPosition, End: lastPosition }[key];
    return target === undefined ? null : Math.max(firstPosition, Math.min(target, lastPosition));
  }

  protected positionAt({ clientX }: MouseEvent): number | null {
    const { left, width } = this.box.getBoundingClientRect();
    const share = (clientX - left - LEFT) / (width - LEFT);
    const rightEdge = this.edges().findIndex((edge) => share < edge);
    return rightEdge > 0 ? this.axis.start + rightEdge - 1 : null;
  }

  /** The position of a time as a share of the width, which includes half a bar at each end. */
  private shareOf(time: number): number {
    const { values } = this.axis;
    const lastIndex = values.length - 1;
    const halfSteps = lastIndex ? [values[1]! - values[0]!, values[lastIndex]! - values[lastIndex - 1]!].map((step) => step / 2) : [0.5, 0.5];
    const [start, end] = [values[0]! - halfSteps[0]!, values[lastIndex]! + halfSteps[1]!];
    return (time - start) / (end - start || 1);
  }

  /** Edges of the bars as shares of the width, halfway between neighbouring times. */
  private edges(): number[] {
    const { values } = this.axis;
    return [0, ...values.slice(1).map((value, k) => this.shareOf((value + values[k]!) / 2)), 1];
  }

  protected draw(): void {
    const width = this.box.clientWidth;
    if (!this.style || !width) return;
    const [picture, height] = this.createSvg(width);
    this.box.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, picture));
  }

  /** The picture as SVG, and its height. */
  createSvg(width: number): readonly [SVGElement, number] {
    const { values, series, start } = this.axis;
    const { values: weights, scale, sinks, hidesSinks } = this.style!;
    const edges = this.edges().map((share) => LEFT + share * (width - LEFT));
    const middleOf = (k: number): number => (edges[k]! + edges[k + 1]!) / 2;
    const finite = (series ?? []).filter(Number.isFinite);
    const [minimum, maximum] = [Math.min(...finite), Math.max(...finite)];
    const toY = (value: number): number => TOP + LINE * (1 - (value - minimum) / (maximum - minimum || 1));
    const bottom = TOP + (series ? LINE + GAP : 0) + BARS;
    const bars = !weights ? [] : values.flatMap((_, k) => {
      const weight = weights[start + k]!;
      const height = Math.min(1, Math.abs(weight) / (scale.max || 1)) * BARS;
      return hidesSinks && sinks?.[start + k] ? [] : [
        s("rect", { x: edges[k]!, y: bottom - height, width: Math.max(1, edges[k + 1]! - edges[k]! - 1), height, class: weight < 0 ? "warm" : "bar" }),
        series && s("rect", { x: edges[k]!, y: TOP, width: edges[k + 1]! - edges[k]! + 0.3, height: LINE, class: "shade", "fill-opacity": (0.75 * Math.min(1, Math.abs(weight) / (scale.max || 1)) ** scale.gamma).toFixed(3) }),
      ].filter((element) => element !== null);
    });
    const createLabel = (x: number, y: number, anchor: string, label: string): SVGElement => s("text", { x, y, "text-anchor": anchor, "font-size": 11, class: "label" }, label);
    const ticks = [...new Set(Array.from({ length: TICKS }, (_, k) => Math.round((k * (values.length - 1)) / (TICKS - 1))))];
    // A series has one value for each time, or values at equal distances from the first to the last time.
    const [firstTime, lastTime] = [values[0]!, values.at(-1)!];
    const timeOf = (k: number): number => (series!.length === values.length ? values[k]! : firstTime + (k * (lastTime - firstTime)) / Math.max(1, series!.length - 1));
    const toX = (k: number): number => LEFT + this.shareOf(timeOf(k)) * (width - LEFT);
    const line = (series ?? []).map((value, k) => (Number.isFinite(value) ? `${k && Number.isFinite(series![k - 1]) ? "L" : "M"}${toX(k).toFixed(1)} ${toY(value).toFixed(1)}` : "")).join("");
    const markedX = this.marked === null ? null : middleOf(this.marked - start);
    return [s("g", { class: "series" }, ...bars,
      series && s("path", { d: line, class: "curve", fill: "none" }),
      series && createLabel(LEFT - 6, toY(maximum) + 8, "end", brief(maximum)), series && createLabel(LEFT - 6, toY(minimum), "end", brief(minimum)),
      createLabel(LEFT - 6, bottom - BARS + 8, "end", `${+(100 * scale.max).toPrecision(2)} %`), createLabel(LEFT - 6, bottom, "end", "0"),
      s("line", { x1: LEFT, x2: width, y1: bottom, y2: bottom, class: "axis" }),
      ...ticks.map((k) => createLabel(middleOf(k), bottom + 16, k === 0 ? "start" : k === values.length - 1 ? "end" : "middle", String(+values[k]!.toPrecision(6)))),
      markedX !== null && s("line", { x1: markedX, x2: markedX, y1: TOP, y2: bottom, class: "here" })), bottom + FOOT];
  }
}
