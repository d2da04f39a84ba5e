/** The lesson on kernel regression, with the numbers of `dikkat.regression.NadarayaWatson` of order "constant". */
import { h, s } from "../page/dom";
import { number, percent, t, type Phrase } from "../page/strings";
import { createTable } from "../pictures/table";
import { makeDraggable } from "./dragging";

const KERNELS = ["gaussian", "epanechnikov", "triangular", "boxcar"] as const;
export type Kernel = (typeof KERNELS)[number];

/** log K(distance / bandwidth); −∞ outside the kernel's support. */
const LOGARITHMS: Record<Kernel, (r: number) => number> = {
  gaussian: (r) => (-r * r) / 2,
  epanechnikov: (r) => (r < 1 ? Math.log(1 - r * r) : -Infinity),
  triangular: (r) => (r < 1 ? Math.log(1 - r) : -Infinity),
  boxcar: (r) => (r <= 1 ? 0 : -Infinity),
};

/** The prediction at a query, and the weights of the points; NaN and zeros outside the kernel's support. */
export function predicted(
  x: readonly number[], y: readonly number[], query: number, kernel: Kernel, bandwidth: number,
): { value: number; weights: number[] } {
  const scores = x.map((xValue) => LOGARITHMS[kernel](Math.abs(xValue - query) / bandwidth));
  const largest = Math.max(...scores);
  if (largest === -Infinity) return { value: NaN, weights: x.map(() => 0) };
  const shares = scores.map((score) => Math.exp(score - largest));
  const sum = shares.reduce((a, b) => a + b, 0);
  const weights = shares.map((share) => share / sum);
  return { value: weights.reduce((sum, weight, k) => sum + weight * y[k]!, 0), weights };
}

const TALL = 340;
const BAR_BASELINE = 292; // y of the baseline of the weight bars
const [TOP, BOTTOM] = [14, 212];
const MAX_BAR_HEIGHT = 56; // pixels
const LEFT = 44;
const RIGHT = 16;
const [LOW, HIGH] = [0, 4]; // range of y; x is between 0 and 5

const toY = (y: number): number => BOTTOM - ((y - LOW) / (HIGH - LOW)) * (BOTTOM - TOP);
const fromY = (py: number): number => Math.min(HIGH, Math.max(LOW, LOW + ((BOTTOM - py) / (BOTTOM - TOP)) * (HIGH - LOW)));

export function createRegressionLesson(): HTMLElement {
  const width = window.innerWidth < 640 ? 380 : 860; // narrower on phones, so that points are large enough for a finger
  const right = width - RIGHT;
  const toX = (value: number): number => LEFT + (value / 5) * (right - LEFT);
  const fromX = (px: number): number => Math.min(5, Math.max(0, ((px - LEFT) / (right - LEFT)) * 5));
  const x = [0.3, 0.8, 1.2, 1.6, 2.1, 2.4, 2.9, 3.3, 3.9, 4.4, 4.8];
  const noise = [0.3, -0.25, 0.2, 0.1, -0.3, 0.25, -0.1, 0.3, -0.2, 0.15, -0.1];
  const y = x.map((value, k) => +(1.6 * Math.sin(value) + value ** 0.8 + noise[k]!).toFixed(2));
  let [query, bandwidth, kernel] = [2, 0.4, "gaussian" as Kernel];

  const curve = s("path", { class: "curve" });
  const cursor = s("g", { class: "handle query", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": 5 },
    s("line", { class: "stem", y1: TOP - 8, y2: BAR_BASELINE + 22 }), s("rect", { class: "grip", x: -34, y: BAR_BASELINE + 22, width: 68, height: 24, rx: 8 }),
    s("text", { class: "held", y: BAR_BASELINE + 34, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 13 }));
  const createLabel = (x: number, y: number, text: string, anchor: string): SVGTextElement =>
    s("text", { class: "label", x, y, "text-anchor": anchor, "dominant-baseline": "central", "font-size": 12 }, text);
  const ticks = [0, 1, 2, 3, 4, 5].map((tick) => createLabel(toX(tick), BAR_BASELINE + 12, `${tick === 5 ? "x = " : ""}${tick}`, tick === 5 ? "end" : "middle"));
  const levels = [0, 1, 2, 3, 4].flatMap((level) => [
    s("line", { class: "level", x1: LEFT, x2: right, y1: toY(level), y2: toY(level) }), createLabel(LEFT - 8, toY(level), `${level === 4 ? "y = " : ""}${level}`, "end")]);
  const largestLabel = createLabel(LEFT - 8, BAR_BASELINE - MAX_BAR_HEIGHT, "", "end");
  const estimate = s("circle", { class: "estimate", r: 8 });
  const predictionLabel = s("text", { class: "reading", "dominant-baseline": "central", "font-size": 14 });
  const bars = x.map(() => s("rect", { class: "bar", width: 10, rx: 2 }));
  const rays = x.map(() => s("line", { class: "ray" }));
  const points = x.map((_, k) => s("circle", { class: "handle point", r: 8, tabindex: 0, role: "slider", "aria-valuemin": LOW, "aria-valuemax": HIGH, "data-point": k }));
  const drawing = s("svg", { viewBox: `0 0 ${width} ${TALL}`, class: "lesson", role: "group", "aria-label": t("regression") },
    s("line", { class: "axis", x1: LEFT, x2: right, y1: BAR_BASELINE, y2: BAR_BASELINE }), ...levels, ...ticks,
    createLabel(LEFT - 8, BAR_BASELINE, percent(0), "end"), largestLabel, ...rays, curve, ...bars, cursor, estimate, ...points, predictionLabel);
  const answer = h("output", { class: "answer" });
  const tableBox = h("div", {});
  const details = h("details", { class: "twin", toggle: () => redraw() }, h("summary", {}, t("table")), tableBox);

  const createSlider = (label: Phrase, value: number, minimum: number, maximum: number, apply: (value: number) => void): [HTMLElement, HTMLInputElement, HTMLElement] => {
    const output = h("output", {}, number(value));
    const input = h("input", { type: "range", min: minimum, max: maximum, step: 0.01, value, input: () => apply(Number(input.value)) });
    return [h("label", { class: "range" }, h("span", {}, t(label)), input, output), input, output];
  };
  const [queryLabel, queryInput, queryOutput] = createSlider("query-x", query, 0, 5, (value) => moveQuery(value));
  const [bandwidthLabel, , bandwidthOutput] = createSlider("bandwidth", bandwidth, 0.05, 2, (value) => {
    bandwidth = value;
    redraw();
  });

  function moveQuery(value: number): void {
    query = +value.toFixed(2);
    queryInput.value = String(query);
    redraw();
  }

  function redraw(): void {
    const { value, weights } = predicted(x, y, query, kernel, bandwidth);
    let path = "";
    let drawing = false;
    for (let position = 0; position <= 5.0001; position += 0.025) {
      const prediction = predicted(x, y, position, kernel, bandwidth).value;
      if (Number.isFinite(prediction)) path += `${drawing ? "L" : "M"}${toX(position).toFixed(1)},${toY(prediction).toFixed(1)}`;
      drawing = Number.isFinite(prediction);
    }
    curve.setAttribute("d", path || "M0,0");
    cursor.setAttribute("transform", `translate(${toX(query)},0)`);
    cursor.lastElementChild!.textContent = `x = ${number(query)}`;
    cursor.setAttribute("aria-label", t("query-x"));
    cursor.setAttribute("aria-valuenow", String(query));
    estimate.setAttribute("visibility", Number.isFinite(value) ? "visible" : "hidden");
    estimate.setAttribute("cx", String(toX(query)));
    estimate.setAttribute("cy", String(Number.isFinite(value) ? toY(value) : 0));
    // The number is at the corner of the prediction that is farthest from all points.
    const [px, py] = [toX(query), Number.isFinite(value) ? toY(value) : 0];
    const distanceToPoints = ([dx, dy]: [number, number]): number =>
      Math.abs(px + 45 * dx - width / 2) > width / 2 - 45 ? -1 : Math.min(...x.map((xValue, k) => Math.hypot(toX(xValue) - px - 45 * dx, (toY(y[k]!) - py - 22 * dy) * 2)));
    const corners: [number, number][] = [[1, -1], [1, 1], [-1, -1], [-1, 1]];
    const [dx, dy] = corners.reduce((best, corner) => (distanceToPoints(corner) > distanceToPoints(best) ? corner : best));
    predictionLabel.setAttribute("x", String(px + 14 * dx));
    predictionLabel.setAttribute("y", String(py + 22 * dy));
    predictionLabel.setAttribute("text-anchor", dx < 0 ? "end" : "start");
    predictionLabel.textContent = Number.isFinite(value) ? `y = ${number(value)}` : "";
    const largestWeight = Math.max(...weights);
    largestLabel.textContent = largestWeight ? percent(largestWeight) : "";
    points.forEach((point, k) => {
      point.setAttribute("cx", String(toX(x[k]!)));
      point.setAttribute("cy", String(toY(y[k]!)));
      point.setAttribute("aria-label", t("point", k + 1));
      point.setAttribute("aria-valuenow", String(y[k]!));
      point.setAttribute("aria-valuetext", `x ${number(x[k]!)}, y ${number(y[k]!)}, ${t("weight")} ${percent(weights[k]!, 1)}`);
      const barHeight = Math.max((weights[k]! / (largestWeight || 1)) * MAX_BAR_HEIGHT, 0.001);
      bars[k]!.setAttribute("x", String(toX(x[k]!) - 5));
      bars[k]!.setAttribute("y", String(BAR_BASELINE - barHeight));
      bars[k]!.setAttribute("height", String(barHeight));
      for (const [name, coordinate] of Object.entries({ x1: toX(x[k]!), y1: toY(y[k]!), x2: toX(query), y2: Number.isFinite(value) ? toY(value) : 0 })) {
        rays[k]!.setAttribute(name, coordinate.toFixed(1));
      }
      rays[k]!.setAttribute("stroke-opacity", Number.isFinite(value) ? Math.min(0.9, weights[k]! * 2).toFixed(3) : "0");
    });
    queryOutput.textContent = number(query);
    bandwidthOutput.textContent = number(bandwidth);
    answer.textContent = `${t("prediction")}: ${Number.isFinite(value) ? number(value, 4) : t("no-point-in-range")}`;
    if (details.open) {
      tableBox.replaceChildren(createTable(t("regression"), ["", "x", "y", t("weight")], x.map((xValue, k) =>
        [t("point", k + 1), number(xValue), number(y[k]!), percent(weights[k]!, 1)])));
    }
  }

  makeDraggable(drawing, cursor, ([px]) => moveQuery(fromX(px)), (dx) => moveQuery(fromX(toX(query) + dx * 7)));
  points.forEach((point, k) => {
    const movePoint = (px: number, py: number): void => {
      [x[k], y[k]] = [+fromX(px).toFixed(2), +fromY(py).toFixed(2)];
      redraw();
    };
    makeDraggable(drawing, point, ([px, py]) => movePoint(px, py), (dx, dy) => movePoint(toX(x[k]!) + dx * 7, toY(y[k]!) + dy * 5));
  });
  redraw();
  return h("section", { class: "card" }, h("h2", {}, t("regression")), h("p", { class: "help" }, t("regression-help")),
    h("div", { class: "controls" },
      h("label", {}, h("span", {}, t("kernel")), h("select", { change: (event: Event) => {
        kernel = (event.target as HTMLSelectElement).value as Kernel;
        redraw();
      } }, ...KERNELS.map((name) => h("option", { value: name }, t(name))))),
      queryLabel, bandwidthLabel),
    drawing, answer, details);
}
