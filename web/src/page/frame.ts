/** Frames of alignment pictures: a menu of table, SVG, PNG and PDF; tile maps for long texts. */
import type { Aligned, Listeners, Picture } from "../pictures/aligned";
import { links } from "../pictures/links";
import { table } from "../pictures/table";
import { TileMap } from "../pictures/tiles/tilemap";
import { h, menu, visible } from "./dom";
import { printAlone, savePng, saveSvg } from "./save";
import { percent, t } from "./strings";

/** Most cells drawn as SVG, with links between the words; larger maps are drawn as tiles. */
export const DRAWN = 6_000;

interface Framed {
  /** The menu of the table, SVG, PNG and PDF. */
  readonly tools: HTMLElement;
  readonly body: HTMLElement;
}

/** @param name stem of the saved files */
export function framed(picture: Picture, given: Aligned, name: string): Framed {
  const drawn = h("div", { class: "scroll picture" }, picture.element);
  const twin = h("div", { hidden: true });
  const toggle = h("button", { type: "button", class: "plain", "aria-expanded": "false", click: () => {
    const wanted = twin.hidden;
    if (wanted && !twin.childElementCount) twin.append(tableOf(given));
    twin.hidden = !wanted;
    drawn.hidden = wanted;
    toggle.setAttribute("aria-expanded", String(wanted));
    toggle.textContent = t(wanted ? "picture" : "table");
  } }, t("table"));
  return {
    tools: menu(t("forms"), toggle,
      h("button", { type: "button", class: "plain", click: () => saveSvg(picture.element, name) }, "SVG"),
      h("button", { type: "button", class: "plain", click: () => void savePng(picture.element, name) }, "PNG"),
      h("button", { type: "button", class: "plain", click: () => printAlone(picture.element) }, "PDF")),
    body: h("div", {}, drawn, twin),
  };
}

/** The links of an alignment with their menu; a tile map without a menu if there are too many cells. */
export function pictured(given: Aligned, width: number, listeners: Listeners, name: string): { picture: Pick<Picture, "stress">; tools: HTMLElement | null; body: HTMLElement } {
  if (given.target.length * given.source.length > DRAWN) {
    const tiles = tiled(given, (target, source) => listeners.open({ target, source }));
    return { picture: { stress: (spot) => tiles.stress(spot.target, spot.source) }, tools: null, body: tiles.element };
  }
  const picture = links(given, width, listeners);
  return { picture, ...framed(picture, given, name) };
}

const tableOf = ({ source, target, weights }: Aligned): HTMLElement =>
  table(t("map"), ["", ...source.map(visible)],
    target.map((word, k) => [visible(word), ...[...weights[k]!].map((each) => percent(each, 1))]));

/** A tile map of an alignment. */
export function tiled(given: Aligned, open: (target: number, source: number) => void): TileMap {
  const [rows, columns] = [given.target.length, given.source.length];
  const values = new Float32Array(rows * columns);
  given.weights.forEach((row, k) => values.set(row, k * columns));
  return new TileMap({
    matrix: { rows, columns, values }, range: [0, 1], label: t("map"),
    rows: { title: t("target"), count: rows, extent: rows, tokens: given.target },
    columns: { title: t("read"), count: columns, extent: columns, tokens: given.source },
    open,
  });
}
