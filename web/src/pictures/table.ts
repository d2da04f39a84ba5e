/** A table of a picture's numbers, for screen readers and for copying. */
import { h } from "../page/dom";

export function createTable(caption: string, head: readonly string[], rows: readonly (readonly string[])[]): HTMLElement {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...head.map((name, k) => (k || name ? h("th", { scope: "col", dir: "auto" }, name) : h("td"))))),
      h("tbody", {}, ...rows.map(([name, ...cells]) =>
        h("tr", {}, h("th", { scope: "row", dir: "auto" }, name!), ...cells.map((cell) => h("td", {}, cell))))),
    ),
  );
}
