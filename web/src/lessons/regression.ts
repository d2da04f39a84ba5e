/** Attention on a line is kernel regression: the numbers of `dikkat.regression.NadarayaWatson`, order "constant". */
import { h, s } from "../page/dom";
import { number, percent, t, type Phrase } from "../page/strings";
import { table } from "../pictures/table";
import { draggable } from "./dragging";

const KERNELS = ["gaussian", "epanechnikov", "triangular", "boxcar"] as const;
export type Kernel = (typeof KERNELS)[number];

/** log K(distance / bandwidth); −∞ outside the kernel's support. */
const LOGARITHMS: Record<Kernel, (r: number) => number> = {
  gaussian: (r) => (-r * r) / 2,
  epanechnikov: (r) => (r < 1 ? Math.log(1 - r * r) : -Infinity),
  triangular: (r) => (r < 1 ? Math.log(1 - r) : -Infinity),
  boxcar: (r) => (r <= 1 ? 0 : -Infinity),
};

/** Prediction at a query and weights of the points; NaN and zeros if no point is within the kernel's support. */
export function predicted(
  x: readonly number[], y: readonly number[], query: number, kernel: Kernel, bandwidth: number,
): { value: number; weights: number[] } {
  const scores = x.map((each) => LOGARITHMS[kernel](Math.abs(each - query) / bandwidth));
  const most = Math.max(...scores);
  if (most === -Infinity) return { value: NaN, weights: x.map(() => 0) };
  const shares = scores.map((score) => Math.exp(score - most));
  const sum = shares.reduce((a, b) => a + b, 0);
  const weights = shares.map((share) => share / sum);
  return { value: weights.reduce((all, weight, k) => all + weight * y[k]!, 0), weights };
}

const TALL = 340;
const FLOOR = 292; // y of the baseline of the weight bars
const [TOP, BOTTOM] = [14, 212];
const HIGHEST = 56; // pixels of the bar of the largest weight
const LEFT = 44;
const RIGHT = 16;
const [LOW, HIGH] = [0, 4]; // of y; x goes from 0 to 5

const toY = (y: number): number => BOTTOM - ((y - LOW) / (HIGH - LOW)) * (BOTTOM - TOP);
const fromY = (py: number): number => Math.min(HIGH, Math.max(LOW, LOW + ((BOTTOM - py) / (BOTTOM - TOP)) * (HIGH - LOW)));

export function regressionLesson(): HTMLElement {
  const wide = window.innerWidth < 640 ? 380 : 860; // narrower on phones, where points must be large enough for a finger
  const right = wide - RIGHT;
  const toX = (at: number): number => LEFT + (at / 5) * (right - LEFT);
  const fromX = (px: number): number => Math.min(5, Math.max(0, ((px - LEFT) / (right - LEFT)) * 5));
  const x = [0.3, 0.8, 1.2, 1.6, 2.1, 2.4, 2.9, 3.3, 3.9, 4.4, 4.8];
  const noise = [0.3, -0.25, 0.2, 0.1, -0.3, 0.25, -0.1, 0.3, -0.2, 0.15, -0.1];
  const y = x.map((each, k) => +(1.6 * Math.sin(each) + each ** 0.8 + noise[k]!).toFixed(2));
  let [query, bandwidth, kernel] = [2, 0.4, "gaussian" as Kernel];

  const curve = s("path", { class: "curve" });
  const cursor = s("g", { class: "handle query", tabindex: 0, role: "slider", "aria-valuemin": 0, "aria-valuemax": 5 },
    s("line", { class: "stem", y1: TOP - 8, y2: FLOOR + 22 }), s("rect", { class: "grip", x: -34, y: FLOOR + 22, width: 68, height: 24, rx: 8 }),
    s("text", { class: "held", y: FLOOR + 34, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 13 }));
  const label = (at: number, y: number, text: string, anchor: string): SVGTextElement =>
    s("text", { class: "label", x: at, y, "text-anchor": anchor, "dominant-baseline": "central", "font-size": 12 }, text);
  const ticks = [0, 1, 2, 3, 4, 5].map((each) => label(toX(each), FLOOR + 12, `${each === 5 ? "x = " : ""}${each}`, each === 5 ? "end" : "middle"));
  const levels = [0, 1, 2, 3, 4].flatMap((each) => [
    s("line", { class: "level", x1: LEFT, x2: right, y1: toY(each), y2: toY(each) }), label(LEFT - 8, toY(each), `${each === 4 ? "y = " : ""}${each}`, "end")]);
  const largest = label(LEFT - 8, FLOOR - HIGHEST, "", "end");
  const estimate = s("circle", { class: "estimate", r: 8 });
  const reading = s("text", { class: "reading", "dominant-baseline": "central", "font-size": 14 });
  const bars = x.map(() => s("rect", { class: "bar", width: 10, rx: 2 }));
  const rays = x.map(() => s("line", { class: "ray" }));
  const points = x.map((_, k) => s("circle", { class: "handle point", r: 8, tabindex: 0, role: "slider", "aria-valuemin": LOW, "aria-valuemax": HIGH, "data-point": k }));
  const drawing = s("svg", { viewBox: `0 0 ${wide} ${TALL}`, class: "lesson", role: "group", "aria-label": t("regression") },
    s("line", { class: "axis", x1: LEFT, x2: right, y1: FLOOR, y2: FLOOR }), ...levels, ...ticks,
    label(LEFT - 8, FLOOR, percent(0), "end"), largest, ...rays, curve, ...bars, cursor, estimate, ...points, reading);
  const answer = h("output", { class: "answer" });
  const twin = h("div", {});
  const details = h("details", { class: "twin", toggle: () => redraw() }, h("summary", {}, t("table")), twin);

  const range = (label: Phrase, value: number, least: number, most: number, act: (value: number) => void): [HTMLElement, HTMLInputElement, HTMLElement] => {
    const shown = h("output", {}, number(value));
    const input = h("input", { type: "range", min: least, max: most, step: 0.01, value, input: () => act(Number(input.value)) });
    return [h("label", { class: "range" }, h("span", {}, t(label)), input, shown), input, shown];
  };
  const [queryLabel, queryInput, queryShown] = range("query-at", query, 0, 5, (value) => move(value));
  const [bandwidthLabel, , bandwidthShown] = range("bandwidth", bandwidth, 0.05, 2, (value) => {
    bandwidth = value;
    redraw();
  });

  function move(value: number): void {
    query = +value.toFixed(2);
    queryInput.value = String(query);
    redraw();
  }

  function redraw(): void {
    const { value, weights } = predicted(x, y, query, kernel, bandwidth);
    let path = "";
    let drawing = false;
    for (let at = 0; at <= 5.0001; at += 0.025) {
      const here = predicted(x, y, at, kernel, bandwidth).value;
      if (Number.isFinite(here)) path += `${drawing ? "L" : "M"}${toX(at).toFixed(1)},${toY(here).toFixed(1)}`;
      drawing = Number.isFinite(here);
    }
    curve.setAttribute("d", path || "M0,0");
    cursor.setAttribute("transform", `translate(${toX(query)},0)`);
    cursor.lastElementChild!.textContent = `x = ${number(query)}`;
    cursor.setAttribute("aria-label", t("query-at"));
    cursor.setAttribute("aria-valuenow", String(query));
    estimate.setAttribute("visibility", Number.isFinite(value) ? "visible" : "hidden");
    estimate.setAttribute("cx", String(toX(query)));
    estimate.setAttribute("cy", String(Number.isFinite(value) ? toY(value) : 0));
    // The number stands at the corner of the prediction that is farthest from all points.
    const [px, py] = [toX(query), Number.isFinite(value) ? toY(value) : 0];
    const room = ([dx, dy]: [number, number]): number =>
      Math.abs(px + 45 * dx - wide / 2) > wide / 2 - 45 ? -1 : Math.min(...x.map((each, k) => Math.hypot(toX(each) - px - 45 * dx, (toY(y[k]!) - py - 22 * dy) * 2)));
    const corners: [number, number][] = [[1, -1], [1, 1], [-1, -1], [-1, 1]];
    const [dx, dy] = corners.reduce((best, each) => (room(each) > room(best) ? each : best));
    reading.setAttribute("x", String(px + 14 * dx));
    reading.setAttribute("y", String(py + 22 * dy));
    reading.setAttribute("text-anchor", dx < 0 ? "end" : "start");
    reading.textContent = Number.isFinite(value) ? `y = ${number(value)}` : "";
    const most = Math.max(...weights);
    largest.textContent = most ? percent(most) : "";
    points.forEach((point, k) => {
      point.setAttribute("cx", String(toX(x[k]!)));
      point.setAttribute("cy", String(toY(y[k]!)));
      point.setAttribute("aria-label", t("point", k + 1));
      point.setAttribute("aria-valuenow", String(y[k]!));
      point.setAttribute("aria-valuetext", `x ${number(x[k]!)}, y ${number(y[k]!)}, ${t("weight")} ${percent(weights[k]!, 1)}`);
      const tall = Math.max((weights[k]! / (most || 1)) * HIGHEST, 0.001);
      bars[k]!.setAttribute("x", String(toX(x[k]!) - 5));
      bars[k]!.setAttribute("y", String(FLOOR - tall));
      bars[k]!.setAttribute("height", String(tall));
      for (const [name, place] of Object.entries({ x1: toX(x[k]!), y1: toY(y[k]!), x2: toX(query), y2: Number.isFinite(value) ? toY(value) : 0 })) {
        rays[k]!.setAttribute(name, place.toFixed(1));
      }
      rays[k]!.setAttribute("stroke-opacity", Number.isFinite(value) ? Math.min(0.9, weights[k]! * 2).toFixed(3) : "0");
    });
    queryShown.textContent = number(query);
    bandwidthShown.textContent = number(bandwidth);
    answer.textContent = `${t("prediction")}: ${Number.isFinite(value) ? number(value, 4) : t("out-of-reach")}`;
    if (details.open) {
      twin.replaceChildren(table(t("regression"), ["", "x", "y", t("weight")], x.map((each, k) =>
        [t("point", k + 1), number(each), number(y[k]!), percent(weights[k]!, 1)])));
    }
  }

  draggable(drawing, cursor, ([px]) => move(fromX(px)), (dx) => move(fromX(toX(query) + dx * 7)));
  points.forEach((point, k) => {
    const place = (px: number, py: number): void => {
      [x[k], y[k]] = [+fromX(px).toFixed(2), +fromY(py).toFixed(2)];
      redraw();
    };
    draggable(drawing, point, ([px, py]) => place(px, py), (dx, dy) => place(toX(x[k]!) + dx * 7, toY(y[k]!) + dy * 5));
  });
  redraw();
  return h("section", { class: "card" }, h("h2", {}, t("regression")), h("p", { class: "help" }, t("regression-help")),
    h("div", { class: "controls" },
      h("label", {}, h("span", {}, t("kernel")), h("select", { change: (event: Event) => {
        kernel = (event.target as HTMLSelectElement).value as Kernel;
        redraw();
      } }, ...KERNELS.map((each) => h("option", { value: each }, t(each))))),
      queryLabel, bandwidthLabel),
    drawing, answer, details);
}
