/** A small matrix of weights with their numbers. */
import { s } from "../page/dom";
import { number } from "../page/strings";
import { OVER } from "../pictures/map";

const CELL = 54;

export interface Matrix {
  readonly element: SVGSVGElement;
  /** @param isPadding true for padding cells */
  readonly show: (values: readonly (readonly number[])[], maximum: number, isPadding?: (i: number, j: number) => boolean) => void;
}

export function drawMatrix(label: string, rows: readonly string[], columns: readonly string[]): Matrix {
  const [left, top] = [30, 26];
  const cells = rows.map((_, i) => columns.map((_, j) => s("rect", { x: left + j * CELL + 1, y: top + i * 40 + 1, width: CELL - 2, height: 38, rx: 4, class: "cell" })));
  const backgrounds = cells.map((row) => row.map((cell) => {
    const background = cell.cloneNode() as SVGRectElement;
    background.setAttribute("class", "empty");
    return background;
  }));
  const texts = rows.map((_, i) => columns.map((_, j) =>
    s("text", { x: left + (j + 0.5) * CELL, y: top + i * 40 + 20, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 13, class: "value" })));
  const element = s(
    "svg",
    { viewBox: `0 0 ${left + columns.length * CELL} ${top + rows.length * 40 + 2}`, class: "matrix", role: "img", "aria-label": label },
    ...columns.map((label, j) => s("text", { x: left + (j + 0.5) * CELL, y: 14, "text-anchor": "middle", "font-size": 13, class: "label" }, label)),
    ...rows.map((label, i) => s("text", { x: 14, y: top + i * 40 + 20, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 13, class: "label" }, label)),
    ...backgrounds.flat(), ...cells.flat(), ...texts.flat(),
  );
  const show: Matrix["show"] = (values, maximum, isPadding = () => false) => values.forEach((row, i) => row.forEach((value, j) => {
    const padding = isPadding(i, j);
    cells[i]![j]!.setAttribute("fill-opacity", padding ? "0" : Math.max(0, value / maximum).toFixed(3));
    backgrounds[i]![j]!.classList.toggle("padding", padding);
    texts[i]![j]!.textContent = padding ? "–" : number(value);
    texts[i]![j]!.classList.toggle("quiet", padding);
    texts[i]![j]!.classList.toggle("over", !padding && value / maximum > OVER);
  }));
  return { element, show };
}
