/** Grid of tile maps with one colour scale. */
import { h } from "../../page/dom";
import { precise, t } from "../../page/strings";
import { TileMap } from "./tilemap";

export interface Panel {
  readonly title: string;
  /** Rows and columns. */
  readonly shape: readonly [number, number];
  /** Rows and columns before pooling. */
  readonly extent: readonly [number, number];
  readonly queries: readonly string[] | null;
  readonly keys: readonly string[] | null;
  readonly ylabel: string;
  readonly xlabel: string;
}

export interface Panels {
  readonly panels: readonly Panel[];
  /** Most panels in a row. */
  readonly across: number;
  readonly range: readonly [number, number];
  /** Values of all panels, row by row. */
  readonly values: Float32Array;
}

const NARROW = 260; // least width of a panel beside another, in pixels

/** A card of maps. */
export const maps = (given: Panels): HTMLElement => h("section", { class: "card" }, h("p", { class: "help" }, t("tiles-help")), ...scaled(given));

/** The maps, and their scale. */
export function scaled({ panels, across, range, values }: Panels): HTMLElement[] {
  let start = 0;
  const drawn = panels.map(({ title, shape: [rows, columns], extent, queries, keys, ylabel, xlabel }, k) => {
    const own = values.subarray(start, (start += rows * columns));
    const tiles = new TileMap({
      matrix: { rows, columns, values: own }, range, label: title || (panels.length > 1 ? `${t("map")} ${k + 1}` : t("map")),
      rows: { title: ylabel, count: rows, extent: extent[0], tokens: queries },
      columns: { title: xlabel, count: columns, extent: extent[1], tokens: keys },
    });
    return h("figure", {}, title ? h("figcaption", { dir: "auto" }, title) : null, tiles.element);
  });
  const grid = h("div", { class: "panels" }, ...drawn);
  grid.style.gridTemplateColumns = `repeat(auto-fit, minmax(max(min(100%, ${NARROW}px), ${(100 / across).toFixed(2)}% - 1.5rem), 1fr))`;
  return [grid, h("p", { class: "scale" }, h("span", {}, precise(range[0])), h("span", { class: "ramp" }), h("span", {}, precise(range[1])))];
}
