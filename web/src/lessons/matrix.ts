/** A small matrix of weights with its numbers. */
import { s } from "../page/dom";
import { number } from "../page/strings";
import { OVER } from "../pictures/map";

const CELL = 54;

export interface Matrix {
  readonly element: SVGSVGElement;
  /** @param hidden true for padding cells */
  readonly show: (values: readonly (readonly number[])[], most: number, hidden?: (i: number, j: number) => boolean) => void;
}

export function matrix(label: string, rows: readonly string[], columns: readonly string[]): Matrix {
  const [left, top] = [30, 26];
  const cells = rows.map((_, i) => columns.map((_, j) => s("rect", { x: left + j * CELL + 1, y: top + i * 40 + 1, width: CELL - 2, height: 38, rx: 4, class: "cell" })));
  const backs = cells.map((row) => row.map((cell) => {
    const back = cell.cloneNode() as SVGRectElement;
    back.setAttribute("class", "empty");
    return back;
  }));
  const texts = rows.map((_, i) => columns.map((_, j) =>
    s("text", { x: left + (j + 0.5) * CELL, y: top + i * 40 + 20, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 13, class: "value" })));
  const element = s(
    "svg",
    { viewBox: `0 0 ${left + columns.length * CELL} ${top + rows.length * 40 + 2}`, class: "matrix", role: "img", "aria-label": label },
    ...columns.map((each, j) => s("text", { x: left + (j + 0.5) * CELL, y: 14, "text-anchor": "middle", "font-size": 13, class: "label" }, each)),
    ...rows.map((each, i) => s("text", { x: 14, y: top + i * 40 + 20, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 13, class: "label" }, each)),
    ...backs.flat(), ...cells.flat(), ...texts.flat(),
  );
  const show: Matrix["show"] = (values, most, hidden = () => false) => values.forEach((row, i) => row.forEach((value, j) => {
    const out = hidden(i, j);
    cells[i]![j]!.setAttribute("fill-opacity", out ? "0" : Math.max(0, value / most).toFixed(3));
    backs[i]![j]!.classList.toggle("padding", out);
    texts[i]![j]!.textContent = out ? "–" : number(value);
    texts[i]![j]!.classList.toggle("quiet", out);
    texts[i]![j]!.classList.toggle("over", !out && value / most > OVER);
  }));
  return { element, show };
}
