/** Frames of alignment pictures, with a menu of table, SVG, PNG and PDF, and tile maps for long texts. */
import type { Alignment, Highlightable, Listeners, Picture } from "../pictures/alignment";
import { drawLinks } from "../pictures/links";
import { createTable } from "../pictures/table";
import { TileMap } from "../pictures/tiles/tilemap";
import { h, createMenu, makeVisible } from "./dom";
import { printDrawing, savePng, saveSvg } from "./save";
import { percent, t } from "./strings";

/** Larger alignments are drawn as tile maps, not as SVG with links between the words. */
export const MAX_SVG_CELLS = 6_000;

interface Framed {
  /** The menu of the table, SVG, PNG and PDF. */
  readonly tools: HTMLElement;
  readonly body: HTMLElement;
}

/** @param name of the saved files, without suffix */
export function framePicture(picture: Picture, alignment: Alignment, name: string): Framed {
  const pictureBox = h("div", { class: "scroll picture" }, picture.element);
  const tableBox = h("div", { hidden: true });
  const toggle = h("button", { type: "button", class: "plain", "aria-expanded": "false", click: () => {
    const showsTable = tableBox.hidden;
    if (showsTable && !tableBox.childElementCount) tableBox.append(createWeightTable(alignment));
    tableBox.hidden = !showsTable;
    pictureBox.hidden = showsTable;
    toggle.setAttribute("aria-expanded", String(showsTable));
    toggle.textContent = t(showsTable ? "picture" : "table");
  } }, t("table"));
  return {
    tools: createMenu(t("file-formats"), toggle,
      h("button", { type: "button", class: "plain", click: () => saveSvg(picture.element, name) }, "SVG"),
      h("button", { type: "button", class: "plain", click: () => void savePng(picture.element, name) }, "PNG"),
      h("button", { type: "button", class: "plain", click: () => printDrawing(picture.element) }, "PDF")),
    body: h("div", {}, pictureBox, tableBox),
  };
}

/** Draws the links of an alignment with a menu, or a tile map without a menu if there are too many cells. */
export function createPicture(alignment: Alignment, width: number, listeners: Listeners, name: string): { picture: Highlightable; tools: HTMLElement | null; body: HTMLElement } {
  if (alignment.target.length * alignment.source.length > MAX_SVG_CELLS) {
    const tiles = createTileMap(alignment, (target, source) => listeners.open({ target, source }));
    return { picture: { highlight: (spot) => tiles.highlight(spot.target, spot.source) }, tools: null, body: tiles.element };
  }
  const picture = drawLinks(alignment, width, listeners);
  return { picture, ...framePicture(picture, alignment, name) };
}

const createWeightTable = ({ source, target, weights }: Alignment): HTMLElement =>
  createTable(t("map"), ["", ...source.map(makeVisible)],
    target.map((word, k) => [makeVisible(word), ...[...weights[k]!].map((weight) => percent(weight, 1))]));

export function createTileMap(alignment: Alignment, openCell: (target: number, source: number) => void): TileMap {
  const [rows, columns] = [alignment.target.length, alignment.source.length];
  const values = new Float32Array(rows * columns);
  alignment.weights.forEach((row, k) => values.set(row, k * columns));
  return new TileMap({
    matrix: { rows, columns, values }, range: [0, 1], label: t("map"),
    rows: { title: t("target"), count: rows, extent: rows, tokens: alignment.target },
    columns: { title: t("source-axis"), count: columns, extent: columns, tokens: alignment.source },
    open: openCell,
  });
}
