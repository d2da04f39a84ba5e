/** Room of a model's attention calls: maps of each call, drawn when it comes near the window. */
import type { Shown } from "../pictures/patches";
import { scaled, type Panel } from "../pictures/tiles/panels";
import { h, whenNear } from "./dom";
import { passagesOf, type Passages } from "./passages";
import { number, t } from "./strings";
import type { View } from "./recorded";
import { viewsOf } from "./views";

const ACROSS = 4; // maps beside each other, at most

/** Maps of one shape and scale; `dikkat.show.calls` writes them. */
interface Maps {
  readonly kind: "overview" | "rows" | "sums" | "entropy";
  readonly shape: readonly [number, number];
  readonly extent: readonly [number, number];
  readonly range: readonly [number, number];
  /** float32, little-endian, in base64. */
  readonly values: string;
}

/** Maps of one call: the first `heads` of `of` heads, for the first of `batch` batch elements. */
interface OfHeads extends Maps {
  readonly heads: number;
  readonly of: number;
  readonly batch: number;
}

interface Call {
  readonly name: string;
  readonly recorded: string;
  readonly maps: readonly OfHeads[];
}

export interface Calls {
  readonly count: number;
  readonly calls: readonly Call[];
  /** The entropy of every head of every call. */
  readonly overall: (Maps & { readonly names: readonly string[] }) | null;
  /** Attention over tokens that are known. */
  readonly views: readonly View[];
  /** The images that grids of the views are of. */
  readonly images?: readonly Shown[];
}

/** What a room shows: recorded calls, or the passages that written tokens read. */
export type Recorded = Calls | { readonly passages: Passages };

export function callsRoom(recorded: Recorded): HTMLElement {
  if ("passages" in recorded) return h("main", { id: "room" }, ...passagesOf(recorded.passages));
  const { count, calls, overall, views, images = [] } = recorded;
  const card = (title: string, note: string, draw: () => HTMLElement[]): HTMLElement => {
    const element = h("article", { class: "card call waiting" }, h("h2", { dir: "auto" }, title), note ? h("p", { class: "quiet" }, note) : null);
    whenNear(element, () => {
      element.append(...draw());
      element.classList.remove("waiting");
    });
    return element;
  };
  const cards = [
    ...(overall ? [card(t("all-calls"), "", () => [figure(overall, overall)])] : []),
    ...calls.map(({ name, recorded, maps }) => card(name, t("recorded", recorded), () => maps.map((each) => figure(each, each)))),
  ];
  const shown = calls.length < count ? t("calls-first", count, calls.length) : t("calls-count", count);
  const maps = cards.length ? [h("p", { class: "quiet" }, shown), h("p", { class: "help" }, t("tiles-help")), ...cards] : [];
  return h("main", { id: "room" }, ...(views.length ? [viewsOf(views, images)] : []), ...maps);
}

function figure(given: Maps, { heads = 1, of = heads, batch = 1, names = null }: Partial<OfHeads> & { readonly names?: readonly string[] | null }): HTMLElement {
  const { kind, shape, extent, range } = given;
  const values = new Float32Array(Uint8Array.from(atob(given.values), (each) => each.charCodeAt(0)).buffer);
  const count = values.length / (shape[0] * shape[1]);
  const [ylabel, xlabel] = {
    overview: [t("queries"), t("keys")], rows: [t("queries"), t("keys")], sums: [t("heads"), t("keys")], entropy: [t("layers"), t("heads")],
  }[kind] as [string, string];
  const panels = Array.from({ length: count }, (_, k): Panel => ({
    title: count > 1 ? t("head", k) : "", shape, extent, queries: names, keys: null, ylabel, xlabel,
  }));
  const pooled = kind !== "overview" && extent[1] > shape[1] ? [t("pooled", number(shape[1], 0), number(extent[1], 0))] : [];
  const which = [...(heads < of ? [t("heads-first", heads, of)] : []), ...(batch > 1 ? [t("batch-first", batch)] : []), ...pooled];
  return h("section", {}, h("h3", {}, [t(`call-${kind}`), ...which].join(" · ")), ...scaled({ panels, across: Math.min(count, ACROSS), range, values }));
}
