/** The lesson on masked softmax over sentences with adjustable lengths. */
import { softmax } from "../decoder/network";
import { h } from "../page/dom";
import { number, t } from "../page/strings";
import { createTable } from "../pictures/table";
import { drawMatrix } from "./matrix";

const WIDTH = 6;

/** Masked softmax of a row; all zeros for length 0. */
export function maskedSoftmax(scores: readonly number[], length: number): number[] {
  const weights = length ? softmax(scores.slice(0, length)) : [];
  return scores.map((_, k) => (k < length ? weights[k]! : 0));
}

export function createMaskingLesson(): HTMLElement {
  let seed = 1;
  const randomScore = (): number => {
    seed = (seed * 48271) % 2147483647; // Park and Miller's
    return +((seed / 2147483647) * 6 - 3).toFixed(1);
  };
  const randomScores = (): number[][] => [0, 1, 2].map(() => Array.from({ length: WIDTH }, randomScore));
  let scores = randomScores();
  const lengths = [6, 4, 2];
  const [rows, columns] = [["1", "2", "3"], Array.from({ length: WIDTH }, (_, k) => String(k + 1))];
  const [scoreMatrix, weightMatrix] = [drawMatrix(t("scores"), rows, columns), drawMatrix(t("weights"), rows, columns)];
  const tableBox = h("div", {});
  const details = h("details", { class: "twin", toggle: () => redraw() }, h("summary", {}, t("table")), tableBox);
  const lengthOutputs = lengths.map((length) => h("output", {}, String(length)));
  const sliders = lengths.map((length, k) => {
    const input = h("input", { type: "range", min: 0, max: WIDTH, step: 1, value: length, "aria-label": t("length-of", k + 1), input: () => {
      lengths[k] = Number(input.value);
      redraw();
    } });
    return h("label", { class: "range" }, h("span", {}, t("sentence", k + 1)), input, lengthOutputs[k]!);
  });

  function redraw(): void {
    const weights = scores.map((row, k) => maskedSoftmax(row, lengths[k]!));
    const isPadding = (i: number, j: number): boolean => j >= lengths[i]!;
    scoreMatrix.show(scores, 3, isPadding);
    weightMatrix.show(weights, 1, isPadding);
    lengths.forEach((length, k) => (lengthOutputs[k]!.textContent = String(length)));
    if (details.open) {
      tableBox.replaceChildren(createTable(t("weights"), ["", ...columns], weights.map((row, i) =>
        [t("sentence", i + 1), ...row.map((weight, j) => (isPadding(i, j) ? `0 (${t("padding")})` : number(weight, 3)))])));
    }
  }

  redraw();
  return h("section", { class: "card" }, h("h2", {}, t("softmax-title")), h("p", { class: "help" }, t("softmax-help")),
    h("div", { class: "controls" }, ...sliders, h("button", { type: "button", class: "plain", click: () => {
      scores = randomScores();
      redraw();
    } }, t("shuffle"))),
    h("div", { class: "pair" },
      h("figure", {}, h("figcaption", {}, t("scores")), scoreMatrix.element),
      h("figure", {}, h("figcaption", {}, t("weights")), weightMatrix.element)),
    details);
}
