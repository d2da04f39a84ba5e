/** The lesson on scoring functions: dot, additive and Gaussian scores of the same queries and keys. */
import { softmax } from "../decoder/network";
import { h, s } from "../page/dom";
import { number, t, type Phrase } from "../page/strings";
import { createTable } from "../pictures/table";
import { makeDraggable } from "./dragging";
import { drawMatrix } from "./matrix";

type Point = [number, number];

/** The score of a query and a key. Additive: W_q = W_k = I, v = (1, 1); Gaussian: σ = 1. */
const SCORES: Record<"dot" | "additive" | "gaussian-score", (q: Point, k: Point) => number> = {
  dot: (q, k) => q[0] * k[0] + q[1] * k[1],
  additive: (q, k) => Math.tanh(q[0] + k[0]) + Math.tanh(q[1] + k[1]),
  "gaussian-score": (q, k) => -((q[0] - k[0]) ** 2 + (q[1] - k[1]) ** 2) / 2,
};

const FORMULAS = { dot: "q·k", additive: "vᵀ tanh(q + k)", "gaussian-score": "−½‖q − k‖²" };
const SIDE = 300;
const REACH = 2.5;

const toPixels = (value: number): number => (value / REACH) * (SIDE / 2 - 14);
const fromPixels = (px: number): number => +Math.min(REACH, Math.max(-REACH, (px / (SIDE / 2 - 14)) * REACH)).toFixed(2);

export function createScoringLesson(): HTMLElement {
  const keys: Point[] = [[1.8, 0.4], [0.6, 1.5], [-1.2, 0.9], [-0.4, -1.4]];
  const queries: Point[] = [[1.1, 1.0], [-0.9, -0.3], [0.3, -0.6]];
  const names = { keys: keys.map((_, k) => `k${k + 1}`), queries: queries.map((_, k) => `q${k + 1}`) };
  const matrices = (Object.keys(SCORES) as (keyof typeof SCORES)[]).map((name) => ({ name, matrix: drawMatrix(t(name), names.queries, names.keys) }));
  const halfSide = SIDE / 2;
  const plane = s("svg", { viewBox: `${-halfSide} ${-halfSide} ${SIDE} ${SIDE}`, class: "lesson plane", role: "group", "aria-label": t("scores-title") },
    s("line", { class: "axis", x1: -halfSide, x2: halfSide, y1: 0, y2: 0 }), s("line", { class: "axis", y1: -halfSide, y2: halfSide, x1: 0, x2: 0 }),
    ...[-2, -1, 1, 2].flatMap((tick) => [
      s("text", { class: "label", x: toPixels(tick), y: 14, "text-anchor": "middle", "font-size": 11 }, number(tick, 0)),
      s("text", { class: "label", x: -6, y: -toPixels(tick), "text-anchor": "end", "dominant-baseline": "central", "font-size": 11 }, number(tick, 0))]));
  const tableBox = h("div", {});
  const details = h("details", { class: "twin", toggle: () => redraw() }, h("summary", {}, t("table")), tableBox);

  const handles = [...keys.map((point, k) => ({ point, name: names.keys[k]!, phrase: "key" as Phrase, kind: "key", k })),
    ...queries.map((point, k) => ({ point, name: names.queries[k]!, phrase: "query-number" as Phrase, kind: "query", k }))].map((handle) => {
    const element = s("g", { class: `handle spot ${handle.kind}`, tabindex: 0, role: "slider", "aria-label": t(handle.phrase, handle.k + 1), "aria-valuemin": -REACH, "aria-valuemax": REACH },
      handle.kind === "key" ? s("rect", { x: -13, y: -13, width: 26, height: 26, rx: 6 }) : s("circle", { r: 14 }),
      s("text", { "text-anchor": "middle", "dominant-baseline": "central", "font-size": 12 }, handle.name));
    plane.append(element);
    const moveTo = (x: number, y: number): void => {
      handle.point[0] = fromPixels(x);
      handle.point[1] = fromPixels(-y);
      redraw();
    };
    makeDraggable(plane, element, ([x, y]) => moveTo(x, y), (dx, dy) => moveTo(toPixels(handle.point[0]) + dx * 5.5, -toPixels(handle.point[1]) + dy * 5.5));
    return { ...handle, element };
  });

  function redraw(): void {
    for (const { element, point } of handles) {
      element.setAttribute("transform", `translate(${toPixels(point[0]).toFixed(1)},${(-toPixels(point[1])).toFixed(1)})`);
      element.setAttribute("aria-valuenow", String(point[0]));
      element.setAttribute("aria-valuetext", `(${number(point[0])}, ${number(point[1])})`);
    }
    const weights = matrices.map(({ name }) => queries.map((q) => [...softmax(keys.map((k) => SCORES[name](q, k)))]));
    matrices.forEach(({ matrix }, m) => matrix.show(weights[m]!, 1));
    if (details.open) {
      tableBox.replaceChildren(...matrices.map(({ name }, m) =>
        createTable(t(name), [t(name), ...names.keys], weights[m]!.map((row, i) => [names.queries[i]!, ...row.map((weight) => number(weight, 3))]))));
    }
  }

  redraw();
  return h("section", { class: "card" }, h("h2", {}, t("scores-title")), h("p", { class: "help" }, t("scores-help")),
    h("div", { class: "compared" }, plane, h("div", { class: "matrices" }, ...matrices.map(({ name, matrix }) =>
      h("figure", {}, h("figcaption", {}, h("span", {}, t(name)), h("span", { class: "quiet formula" }, FORMULAS[name])), matrix.element)))),
    details);
}
