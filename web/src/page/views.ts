/** Views of a model's attention over its tokens: heads of a layer, all layers and heads, one query and key. */
import { h } from "./dom";
import { percent, t } from "./strings";

const ROW = 20; // height of a token, in pixels
const TALL = 560; // most pixels of the tokens that are in view
const THUMB = 56; // side of a small map
const COARSE = 12; // steps of a base-2 logarithm in `weights`
const FINE = 2048; // … in `map`; `dikkat.show.views` writes both
const FAINT = 0.02; // least weight that is drawn as a line

type Token = readonly [text: string, special: boolean, continues: boolean];

interface Layer {
  readonly name: string;
  readonly heads: readonly number[];
  readonly top: number;
  readonly keys: string;
  readonly weights: string;
  readonly cells: readonly [number, number];
  readonly map: string;
}

/** Attention of one kind; `dikkat.show.views` writes them. */
export interface View {
  readonly kind: "self" | "encoder" | "cross";
  readonly queries: readonly Token[];
  readonly keys: readonly Token[];
  readonly layers: readonly Layer[];
}

interface Opened {
  readonly keys: Uint16Array;
  readonly weights: Uint8Array;
  readonly map: Uint16Array;
}

const SHADES = 6; // of lines: those of one shade are drawn at once

function bytes(text: string): Uint8Array {
  const raw = atob(text);
  const found = new Uint8Array(raw.length);
  for (let k = 0; k < raw.length; k++) found[k] = raw.charCodeAt(k);
  return found;
}
const coarse = Float32Array.from({ length: 256 }, (_, code) => (code === 255 ? 0 : 2 ** (-code / COARSE)));
const fine = (code: number): number => (code === 65535 ? 0 : 2 ** (-code / FINE));
const colour = (head: number, of: number): string => `hsl(${(head * 360) / Math.max(of, 3)} 62% 47%)`;
const button = (label: string, pressed: boolean, click: () => void): HTMLButtonElement =>
  h("button", { type: "button", "aria-pressed": pressed ? "true" : "false", click }, label);

/** The views of all kinds of attention of one run. */
export function viewsOf(views: readonly View[]): HTMLElement {
  const place = h("section", { class: "views" });
  const draw = (kind: number): void => {
    const choice = views.length > 1
      ? h("div", { class: "choices", role: "group", "aria-label": t("view-kind") }, ...views.map((each, k) => button(t(`view-${each.kind}`), k === kind, () => draw(k)))) : null;
    place.replaceChildren(...(choice ? [choice] : []), ...new Views(views[kind]!).elements);
  };
  draw(views.findIndex((each) => each.kind === "cross") < 0 ? views.length - 1 : views.findIndex((each) => each.kind === "self"));
  return place;
}

class Views {
  readonly elements: HTMLElement[];
  private layer = 0;
  private readonly shown: Set<number>;
  private special = false;
  private query: number | null = null;
  private key: number | null = null;
  private readonly opened: (Opened | undefined)[] = [];
  private readonly heads = h("article", { class: "card" });
  private readonly all = h("article", { class: "card" });
  private readonly pair = h("article", { class: "card" });
  private lines: () => void = () => undefined;

  constructor(private readonly view: View) {
    this.shown = new Set(view.layers[0]!.heads.keys());
    this.elements = [this.heads, this.all, this.pair];
    this.drawHeads();
    this.drawAll();
    this.drawPair();
  }

  private open(layer: number): Opened {
    const { keys, weights, map } = this.view.layers[layer]!;
    return (this.opened[layer] ??= {
      keys: new Uint16Array(bytes(keys).buffer), weights: bytes(weights), map: new Uint16Array(bytes(map).buffer),
    });
  }

  /** Rows that are in view: special tokens are left out unless asked for. */
  private rows(tokens: readonly Token[]): number[] {
    const all = [...tokens.keys()];
    const rows = this.special ? all : all.filter((k) => !tokens[k]![1]);
    return rows.length ? rows : all;
  }

  private drawHeads(): void {
    const { view } = this;
    const { heads } = view.layers[this.layer]!;
    const layers = h("select", { "aria-label": t("layers"), change: (event: Event) => {
      this.layer = Number((event.target as HTMLSelectElement).value);
      this.keepHeads();
      this.drawHeads();
    } }, ...view.layers.map(({ name }, k) => h("option", { value: k, selected: k === this.layer }, name)));
    const chips = heads.map((head, k) => {
      const chip = button(String(head), this.shown.has(k), () => {
        if (!this.shown.delete(k)) this.shown.add(k);
        chip.setAttribute("aria-pressed", String(this.shown.has(k)));
        this.lines();
      });
      chip.className = "chip";
      chip.style.setProperty("--chip", colour(k, heads.length));
      chip.addEventListener("dblclick", () => {
        this.shown.clear();
        this.shown.add(k);
        this.drawHeads();
      });
      return chip;
    });
    const some = [...view.queries, ...view.keys].some(([, special]) => special);
    const fold = some ? h("label", {}, h("input", { type: "checkbox", checked: this.special, change: (event: Event) => {
      this.special = (event.target as HTMLInputElement).checked;
      this.drawHeads();
    } }), ` ${t("view-special")}`) : null;
    const all = button(t("view-all"), this.shown.size === heads.length, () => {
      const full = this.shown.size === heads.length;
      this.shown.clear();
      if (!full) for (const k of heads.keys()) this.shown.add(k);
      this.drawHeads();
    });
    this.heads.replaceChildren(
      h("h2", {}, t("view-heads")), h("p", { class: "help" }, t("view-heads-help")),
      h("div", { class: "choices" }, layers, fold),
      h("div", { class: "choices", role: "group", "aria-label": t("heads") }, all, ...chips),
      this.columns(),
    );
    this.lines();
  }

  private keepHeads(): void {
    const { heads } = this.view.layers[this.layer]!;
    for (const k of [...this.shown]) if (k >= heads.length) this.shown.delete(k);
    if (!this.shown.size) for (const k of heads.keys()) this.shown.add(k);
  }

  /** Both columns of tokens, with lines from those in view; only what is in view is drawn. */
  private columns(): HTMLElement {
    const { view } = this;
    const sides = [this.rows(view.queries), this.rows(view.keys)] as const;
    const count = Math.max(sides[0].length, sides[1].length);
    const places = new Int32Array(view.keys.length).fill(-1);
    sides[1].forEach((k, place) => (places[k] = place));
    const canvas = h("canvas", { "aria-hidden": "true" });
    const left = h("ol", { class: "tokens from", "aria-label": t("queries") });
    const right = h("ol", { class: "tokens to", "aria-label": t("keys") });
    const stage = h("div", { class: "stage" }, left, canvas, right);
    const inside = h("div", { class: "inside" }, stage);
    const scroll = h("div", { class: "columns", tabindex: 0, role: "group", "aria-label": t("view-heads") }, inside);
    const tall = Math.min(TALL, count * ROW + 8);
    scroll.style.height = `${tall}px`;
    inside.style.height = `${count * ROW + 8}px`;
    stage.style.height = `${tall}px`;
    const word = (side: 0 | 1, place: number): HTMLElement => {
      const at = sides[side][place]!;
      const [text, , continues] = (side ? view.keys : view.queries)[at]!;
      const chosen = (side ? this.key : this.query) === at;
      const item = h("li", { dir: "auto", title: `${text} · ${at}`, class: `${continues ? "continues" : ""}${chosen ? " chosen" : ""}` },
        h("button", { type: "button", tabindex: -1, "aria-pressed": chosen ? "true" : "false", click: () => this.choose(side, chosen ? null : at) }, text || "␣"));
      item.style.top = `${place * ROW - scroll.scrollTop}px`;
      item.addEventListener("pointerenter", () => draw([side, at]));
      item.addEventListener("pointerleave", () => draw(null));
      return item;
    };
    let first = -1;
    const place = (force: boolean): void => {
      const start = Math.floor(scroll.scrollTop / ROW);
      const end = start + Math.ceil(tall / ROW) + 1;
      if (force || start !== first) {
        [left, right].forEach((list, side) => {
          const items = [];
          for (let row = start; row < Math.min(end, sides[side as 0 | 1].length); row++) items.push(word(side as 0 | 1, row));
          list.replaceChildren(...items);
        });
        first = start;
      } else {
        for (const list of [left, right]) [...list.children].forEach((item, k) => ((item as HTMLElement).style.top = `${(start + k) * ROW - scroll.scrollTop}px`));
      }
      draw(null);
    };
    const draw = (over: readonly [0 | 1, number] | null): void => this.paint(canvas, scroll.scrollTop, tall, sides, places, over);
    let waiting = 0;
    scroll.addEventListener("scroll", () => {
      waiting ||= requestAnimationFrame(() => {
        waiting = 0;
        place(false);
      });
    });
    new ResizeObserver(() => draw(null)).observe(canvas);
    this.lines = () => place(true);
    return scroll;
  }

  private paint(canvas: HTMLCanvasElement, scrolled: number, tall: number, sides: readonly [number[], number[]], places: Int32Array, over: readonly [0 | 1, number] | null): void {
    const { layers, queries } = this.view;
    const { heads, top } = layers[this.layer]!;
    const { keys, weights } = this.open(this.layer);
    const width = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = tall * ratio;
    const brush = canvas.getContext("2d");
    if (!brush || !width) return;
    brush.scale(ratio, ratio);
    const wanted = over ?? (this.query !== null ? [0, this.query] as const : this.key !== null ? [1, this.key] as const : null);
    const [start, end] = [Math.floor(scrolled / ROW), Math.ceil((scrolled + tall) / ROW)];
    const rows = wanted && wanted[0] === 1 ? sides[0].keys() : Array.from({ length: Math.max(0, Math.min(end, sides[0].length) - start) }, (_, k) => start + k);
    brush.lineWidth = 1.6;
    const shown = [...rows].map((row) => [row, sides[0][row]!] as const).filter(([, i]) => !(wanted && wanted[0] === 0 && wanted[1] !== i));
    for (const k of this.shown) {
      const shades = Array.from({ length: SHADES }, () => new Path2D());
      for (const [row, i] of shown) {
        const y = row * ROW - scrolled + ROW / 2;
        const from = (k * queries.length + i) * top;
        for (let at = from; at < from + top; at++) {
          const weight = coarse[weights[at]!]!;
          if (weight < FAINT) break;
          const j = keys[at]!;
          if (places[j]! < 0 || (wanted && wanted[0] === 1 && wanted[1] !== j)) continue;
          const path = shades[Math.min(SHADES - 1, Math.floor(weight * SHADES))]!;
          path.moveTo(0, y);
          path.lineTo(width, places[j]! * ROW - scrolled + ROW / 2);
        }
      }
      brush.strokeStyle = colour(k, heads.length);
      shades.forEach((path, shade) => {
        brush.globalAlpha = (shade + 0.6) / SHADES;
        brush.stroke(path);
      });
    }
  }

  private choose(side: 0 | 1, at: number | null): void {
    if (side) this.key = at;
    else this.query = at;
    this.lines();
    this.drawPair();
  }

  private drawAll(): void {
    const { layers } = this.view;
    const most = Math.max(...layers.map(({ heads }) => heads.length));
    const grid = h("div", { class: "heads" });
    grid.style.gridTemplateColumns = `minmax(3rem, auto) repeat(${most}, ${THUMB}px)`;
    layers.forEach((layer, l) => {
      grid.append(h("span", { class: "quiet", title: layer.name }, String(l)));
      for (let k = 0; k < most; k++) {
        if (k >= layer.heads.length) {
          grid.append(h("span"));
          continue;
        }
        const [rows, columns] = layer.cells;
        const canvas = h("canvas", { width: columns, height: rows });
        const label = t("view-head", l, layer.heads[k]!);
        grid.append(h("button", { type: "button", class: "thumb", title: label, "aria-label": label, click: () => this.show(l, k) }, canvas));
      }
    });
    this.all.replaceChildren(h("h2", {}, t("view-model")), h("p", { class: "help" }, t("view-model-help")), h("div", { class: "wide", tabindex: 0 }, grid));
    const near = new IntersectionObserver((entries) => {
      if (!entries.some((each) => each.isIntersecting)) return;
      near.disconnect();
      this.thumbs([...grid.querySelectorAll("canvas")]);
    }, { rootMargin: "400px 0px" });
    near.observe(this.all);
  }

  private thumbs(canvases: HTMLCanvasElement[]): void {
    const ink = getComputedStyle(this.all).getPropertyValue("color").match(/\d+/g)!.map(Number);
    let next = 0;
    this.view.layers.forEach(({ heads, cells: [rows, columns], map: packed }) => {
      const map = new Uint16Array(bytes(packed).buffer);
      heads.forEach((_, k) => {
        const image = new ImageData(columns, rows);
        for (let cell = 0; cell < rows * columns; cell++) {
          const weight = fine(map[k * rows * columns + cell]!);
          image.data.set([ink[0]!, ink[1]!, ink[2]!, 255 * Math.sqrt(weight)], 4 * cell);
        }
        canvases[next++]!.getContext("2d")!.putImageData(image, 0, 0);
      });
    });
  }

  private show(layer: number, head: number): void {
    this.layer = layer;
    this.shown.clear();
    this.shown.add(head);
    this.drawHeads();
    this.heads.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  /** The weight of a pair in a head, and whether it is only known to be smaller. */
  private weight(layer: number, k: number, i: number, j: number): readonly [number, boolean] {
    const { queries, keys: names } = this.view;
    const { top, cells: [rows, columns] } = this.view.layers[layer]!;
    const { keys, weights, map } = this.open(layer);
    if (rows === queries.length && columns === names.length) return [fine(map[(k * rows + i) * columns + j]!), false];
    const from = (k * queries.length + i) * top;
    for (let at = from; at < from + top; at++) if (keys[at] === j && weights[at] !== 255) return [coarse[weights[at]!]!, false];
    return [coarse[weights[from + top - 1]!]!, true];
  }

  private drawPair(): void {
    const { queries, keys, layers } = this.view;
    const pick = (side: 0 | 1): HTMLElement => {
      const tokens = side ? keys : queries;
      const now = side ? this.key : this.query;
      const input = h("input", { type: "number", min: 0, max: tokens.length - 1, value: now ?? "", change: () => {
        const at = input.valueAsNumber;
        this.choose(side, Number.isInteger(at) && at >= 0 && at < tokens.length ? at : null);
      } });
      return h("label", {}, `${t(side ? "view-key" : "view-query")} `, input, h("b", { dir: "auto" }, now === null ? "" : ` ${tokens[now]![0]}`));
    };
    const body: HTMLElement[] = [];
    if (this.query !== null && this.key !== null) {
      const most = Math.max(...layers.map(({ heads }) => heads.length));
      const head = h("tr", {}, h("th", {}), ...Array.from({ length: most }, (_, k) => h("th", { scope: "col" }, String(layers[0]!.heads[k] ?? k))));
      const rows = layers.map(({ name, heads }, l) => h("tr", {}, h("th", { scope: "row", title: name }, String(l)), ...heads.map((_, k) => {
        const [weight, below] = this.weight(l, k, this.query!, this.key!);
        const cell = h("td", {}, below ? `< ${percent(weight, 1)}` : percent(weight, 1));
        if (!below) cell.style.setProperty("--weight", weight.toFixed(3));
        return cell;
      })));
      body.push(h("div", { class: "wide", tabindex: 0 }, h("table", { class: "pairs" }, h("thead", {}, head), h("tbody", {}, ...rows))));
    }
    this.pair.replaceChildren(
      h("h2", {}, t("view-pair")), h("p", { class: "help" }, t("view-pair-help")), h("div", { class: "choices" }, pick(0), pick(1)), ...body,
    );
  }
}
