/** The tab of a model's attention calls. It draws the maps of a call when the reader scrolls near them. */
import type { ModelImage } from "../pictures/patches";
import { createMaps, type Panel } from "../pictures/tiles/panels";
import { bytesOfBase64, h, whenNear } from "./dom";
import { createPassages, type Passages } from "./passages";
import { number, t } from "./strings";
import type { View } from "./view_data";
import { createViews } from "./views";

const MAX_COLUMNS = 4;

/** Maps of one shape and scale, written by `dikkat.show.calls`. */
interface Maps {
  readonly kind: "overview" | "rows" | "sums" | "entropy";
  readonly shape: readonly [number, number];
  readonly extent: readonly [number, number];
  readonly range: readonly [number, number];
  /** float32, little-endian, in base64. */
  readonly values: string;
}

/** Maps of one call: the first `heads` of `of` heads, for the first of `batch` items. */
interface HeadMaps extends Maps {
  readonly heads: number;
  readonly of: number;
  readonly batch: number;
}

interface Call {
  readonly name: string;
  readonly recorded: string;
  readonly maps: readonly HeadMaps[];
}

export interface Calls {
  readonly count: number;
  readonly calls: readonly Call[];
  /** The entropy of every head of every call. */
  readonly overall: (Maps & { readonly names: readonly string[] }) | null;
  /** Attention between known tokens. */
  readonly views: readonly View[];
  /** The images of the views' grids. */
  readonly images?: readonly ModelImage[];
}

/** The content of the tab: recorded calls, or the passages that an answer read. */
export type CallsContent = Calls | { readonly passages: Passages };

export function createCallsTab(content: CallsContent): HTMLElement {
  if ("passages" in content) return h("main", { id: "room" }, ...createPassages(content.passages));
  const { count, calls, overall, views, images = [] } = content;
  const createCard = (title: string, subtitle: string, draw: () => HTMLElement[]): HTMLElement => {
    const element = h("article", { class: "card call waiting" }, h("h2", { dir: "auto" }, title), subtitle ? h("p", { class: "quiet" }, subtitle) : null);
    whenNear(element, () => {
      element.append(...draw());
      element.classList.remove("waiting");
    });
    return element;
  };
  const cards = [
    ...(overall ? [createCard(t("all-calls"), "", () => [createFigure(overall, overall)])] : []),
    ...calls.map(({ name, recorded, maps }) => createCard(name, t("recorded", recorded), () => maps.map((map) => createFigure(map, map)))),
  ];
  const summary = calls.length < count ? t("first-calls", count, calls.length) : t("calls-count", count);
  const maps = cards.length ? [h("p", { class: "quiet" }, summary), h("p", { class: "help" }, t("tiles-help")), ...cards] : [];
  return h("main", { id: "room" }, ...(views.length ? [createViews(views, images)] : []), ...maps);
}

function createFigure(map: Maps, { heads = 1, of: headCount = heads, batch = 1, names = null }: Partial<HeadMaps> & { readonly names?: readonly string[] | null }): HTMLElement {
  const { kind, shape, extent, range } = map;
  const values = new Float32Array(bytesOfBase64(map.values).buffer);
  const count = values.length / (shape[0] * shape[1]);
  const [ylabel, xlabel] = {
    overview: [t("queries"), t("keys")], rows: [t("queries"), t("keys")], sums: [t("heads"), t("keys")], entropy: [t("layers"), t("heads")],
  }[kind] as [string, string];
  const panels = Array.from({ length: count }, (_, k): Panel => ({
    title: count > 1 ? t("head", k) : "", shape, extent, queries: names, keys: null, ylabel, xlabel,
  }));
  const pooled = kind !== "overview" && extent[1] > shape[1] ? [t("pooled-keys", number(shape[1], 0), number(extent[1], 0))] : [];
  const notes = [...(heads < headCount ? [t("first-heads", heads, headCount)] : []), ...(batch > 1 ? [t("first-item", batch)] : []), ...pooled];
  return h("section", {}, h("h3", {}, [t(`call-${kind}`), ...notes].join(" · ")), ...createMaps({ panels, maxColumns: Math.min(count, MAX_COLUMNS), range, values }));
}
