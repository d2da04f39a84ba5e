/** Softmax over the real words of each sentence, with lengths to drag. */
import { softmax } from "../decoder/network";
import { h } from "../page/dom";
import { number, t } from "../page/strings";
import { table } from "../pictures/table";
import { matrix } from "./matrix";

const WIDTH = 6;

/** Masked softmax of a row; all zeros for length 0. */
export function masked(scores: readonly number[], length: number): number[] {
  const own = length ? softmax(scores.slice(0, length)) : [];
  return scores.map((_, k) => (k < length ? own[k]! : 0));
}

export function maskedLesson(): HTMLElement {
  let seed = 1;
  const draw = (): number => {
    seed = (seed * 48271) % 2147483647; // Park and Miller's
    return +((seed / 2147483647) * 6 - 3).toFixed(1);
  };
  const fresh = (): number[][] => [0, 1, 2].map(() => Array.from({ length: WIDTH }, draw));
  let scores = fresh();
  const lengths = [6, 4, 2];
  const [rows, columns] = [["1", "2", "3"], Array.from({ length: WIDTH }, (_, k) => String(k + 1))];
  const [before, after] = [matrix(t("scores-before"), rows, columns), matrix(t("weights-after"), rows, columns)];
  const twin = h("div", {});
  const details = h("details", { class: "twin", toggle: () => redraw() }, h("summary", {}, t("table")), twin);
  const shown = lengths.map((each) => h("output", {}, String(each)));
  const sliders = lengths.map((length, k) => {
    const input = h("input", { type: "range", min: 0, max: WIDTH, step: 1, value: length, "aria-label": t("length-of", k + 1), input: () => {
      lengths[k] = Number(input.value);
      redraw();
    } });
    return h("label", { class: "range" }, h("span", {}, t("sentence", k + 1)), input, shown[k]!);
  });

  function redraw(): void {
    const weights = scores.map((row, k) => masked(row, lengths[k]!));
    const hidden = (i: number, j: number): boolean => j >= lengths[i]!;
    before.show(scores.map((row) => row.map((each) => each)), 3, hidden);
    after.show(weights, 1, hidden);
    lengths.forEach((length, k) => (shown[k]!.textContent = String(length)));
    if (details.open) {
      twin.replaceChildren(table(t("weights-after"), ["", ...columns], weights.map((row, i) =>
        [t("sentence", i + 1), ...row.map((each, j) => (hidden(i, j) ? `0 (${t("padding")})` : number(each, 3)))])));
    }
  }

  redraw();
  return h("section", { class: "card" }, h("h2", {}, t("softmax-title")), h("p", { class: "help" }, t("softmax-help")),
    h("div", { class: "controls" }, ...sliders, h("button", { type: "button", class: "plain", click: () => {
      scores = fresh();
      redraw();
    } }, t("shuffle"))),
    h("div", { class: "pair" },
      h("figure", {}, h("figcaption", {}, t("scores-before")), before.element),
      h("figure", {}, h("figcaption", {}, t("weights-after")), after.element)),
    details);
}
