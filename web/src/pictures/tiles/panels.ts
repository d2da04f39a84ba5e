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
  readonly maxColumns: number;
  readonly range: readonly [number, number];
  /** Values of all panels, row by row. */
  readonly values: Float32Array;
}

const MIN_WIDTH = 260; // pixels of a panel next to another one

/** A card with the maps. */
export const createMapCard = (panels: Panels): HTMLElement => h("section", { class: "card" }, h("p", { class: "help" }, t("tiles-help")), ...createMaps(panels));

/** The maps and their colour scale. */
export function createMaps({ panels, maxColumns, range, values }: Panels): HTMLElement[] {
  let start = 0;
  const figures = panels.map(({ title, shape: [rows, columns], extent, queries, keys, ylabel, xlabel }, k) => {
    const panelValues = values.subarray(start, (start += rows * columns));
    const tiles = new TileMap({
      matrix: { rows, columns, values: panelValues }, range, label: title || (panels.length > 1 ? `${t("map")} ${k + 1}` : t("map")),
      rows: { title: ylabel, count: rows, extent: extent[0], tokens: queries },
      columns: { title: xlabel, count: columns, extent: extent[1], tokens: keys },
    });
    return h("figure", {}, title ? h("figcaption", { dir: "auto" }, title) : null, tiles.element);
  });
  const grid = h("div", { class: "panels" }, ...figures);
  grid.style.gridTemplateColumns = `repeat(auto-fit, minmax(max(min(100%, ${MIN_WIDTH}px), ${(100 / maxColumns).toFixed(2)}% - 1.5rem), 1fr))`;
  return [grid, h("p", { class: "scale" }, h("span", {}, precise(range[0])), h("span", { class: "ramp" }), h("span", {}, precise(range[1])))];
}
