/** Table of a picture's numbers, for screen readers and for copying. */
import { h } from "../page/dom";

export function table(caption: string, head: readonly string[], rows: readonly (readonly string[])[]): HTMLElement {
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, ...head.map((each, k) => (k || each ? h("th", { scope: "col", dir: "auto" }, each) : h("td"))))),
      h("tbody", {}, ...rows.map(([first, ...rest]) =>
        h("tr", {}, h("th", { scope: "row", dir: "auto" }, first!), ...rest.map((each) => h("td", {}, each))))),
    ),
  );
}
