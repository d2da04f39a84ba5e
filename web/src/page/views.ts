/** Views of a model's attention over its tokens: heads of a layer, all layers and heads, one query and key. */
import { h, menu, s } from "./dom";
import { printAlone, savePng, saveSvg, saveText } from "./save";
import { number, percent, t } from "./strings";

const ROW = 20; // height of a token, in pixels
const TALL = 700; // most pixels of the tokens that are in view
const THUMB = 96; // most side of a small map
const WIDE = 720; // of a drawing that is saved
const COARSE = 12; // steps of a base-2 logarithm in `weights`
const FINE = 2048; // … in `map`; `dikkat.show.views` writes both
const FAINT = 0.02; // least weight that is drawn as a line of one token
const LEAST = 0.06; // … where the lines of all tokens are drawn

const CLEAR = 0.3; // least share of a head's weight that says what the head does

type Token = readonly [text: string, special: boolean, continues: boolean];

/** What a head may do, as `dikkat.inspection.heads` measures it, with the hue of each. */
const HUES = { previous: 210, next: 265, itself: 150, first: 35, same: 320, induction: 355, separator: 55, evenly: -1 } as const;
type Doing = keyof typeof HUES;
const DOING = Object.keys(HUES) as Doing[];
const hue = (doing: Doing): string => (HUES[doing] < 0 ? "hsl(0 0% 55%)" : `hsl(${HUES[doing]} 65% 48%)`);

interface Layer {
  readonly name: string;
  readonly number: number;
  readonly heads: readonly number[];
  readonly shares: { readonly [doing in Doing | "information"]?: readonly (number | null)[] };
  readonly top: number;
  readonly keys: string;
  readonly weights: string;
  readonly cells: readonly [number, number];
  /** Whether the map is known, and not made of the largest weights alone. */
  readonly whole: boolean;
  readonly map: string;
}

/** Attention of one kind; `dikkat.show.views` writes them. */
export interface View {
  readonly kind: "self" | "encoder" | "cross" | "";
  readonly title: string;
  readonly queries: readonly Token[];
  readonly keys: readonly Token[];
  readonly layers: readonly Layer[];
}

type Edge = readonly [key: number, weight: number];

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
  const name = ({ kind, title }: View): string => [kind ? t(`view-${kind}`) : "", title].filter(Boolean).join(" · ");
  const draw = (kind: number): void => {
    const choice = views.length > 1
      ? h("div", { class: "choices", role: "group", "aria-label": t("view-kind") }, ...views.map((each, k) => button(name(each), k === kind, () => draw(k)))) : null;
    place.replaceChildren(...(choice ? [choice] : []), ...new Views(views[kind]!).elements);
  };
  draw(Math.max(0, views.findIndex((each) => each.kind === "self")));
  return place;
}

/** What a head does most, and how large a share of its weight that is. */
function doingOf(layer: Layer, k: number): readonly [Doing, number] {
  const found = DOING.map((each) => [each, layer.shares[each]?.[k] ?? -1] as const);
  return found.reduce((best, each) => (each[1] > best[1] ? each : best));
}

class Views {
  readonly elements: HTMLElement[];
  private layer = 0;
  private readonly shown = new Set<number>();
  private several = false;
  private mean = false;
  private special = false;
  private order: Doing | "information" | "" = "";
  private query: number | null = null;
  private key: number | null = null;
  private readonly opened: (Opened | undefined)[] = [];
  private readonly found = new Map<string, Edge[][]>();
  private readonly heads = h("article", { class: "card" });
  private readonly all = h("article", { class: "card" });
  private readonly pair = h("article", { class: "card" });
  private readonly says = h("p", { class: "says", "aria-live": "polite" });
  private lines: () => void = () => undefined;

  constructor(private readonly view: View) {
    const most = this.everyHead().reduce((best, each) => (this.worth(...each) > this.worth(...best) ? each : best));
    this.layer = most[0];
    this.shown.add(most[1]);
    this.elements = [this.heads, this.all, this.pair];
    this.drawHeads();
    this.drawAll();
    this.drawPair();
  }

  private everyHead(): (readonly [layer: number, head: number])[] {
    return this.view.layers.flatMap(({ heads }, l) => heads.map((_, k) => [l, k] as const));
  }

  private measure(layer: number, k: number, of: Doing | "information"): number {
    return this.view.layers[layer]!.shares[of]?.[k] ?? -1;
  }

  /** How much a head says: heads that go by what tokens are come before those that go by where they stand. */
  private worth(layer: number, k: number): number {
    const [doing, share] = doingOf(this.view.layers[layer]!, k);
    const told = this.measure(layer, k, "information") * share;
    return doing === "evenly" ? told / 2 : share >= CLEAR && (doing === "same" || doing === "induction") ? 1 + told : told;
  }

  private numberOf(layer: number): number {
    const given = this.view.layers[layer]!.number;
    return given < 0 ? layer : given;
  }

  /** Where a head looks from each query: the weights that are known, the largest first. */
  private edges(k: number): Edge[][] {
    const name = `${this.layer} ${k} ${this.mean}`;
    const before = this.found.get(name);
    if (before) return before;
    const { queries, layers } = this.view;
    const { keys, weights } = this.open(this.layer);
    const { top } = layers[this.layer]!;
    const rows = queries.map((_, i) => {
      const row: Edge[] = [];
      const from = (k * queries.length + i) * top;
      for (let at = from; at < from + top && weights[at] !== 255; at++) row.push([keys[at]!, coarse[weights[at]!]!]);
      return row;
    });
    if (!this.mean) return this.found.set(name, rows).get(name)!;
    const both = rows.map(() => new Map<number, number>());
    rows.forEach((row, i) => row.forEach(([j, weight]) => {
      both[i]!.set(j, (both[i]!.get(j) ?? 0) + weight / 2);
      both[j]?.set(i, (both[j].get(i) ?? 0) + weight / 2);
    }));
    return this.found.set(name, both.map((row) => [...row].sort((one, other) => other[1] - one[1]))).get(name)!;
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
    } }, ...view.layers.map(({ name }, k) => h("option", { value: k, selected: k === this.layer }, t("view-layer", this.numberOf(k), name))));
    const chips = heads.map((head, k) => {
      const [doing, share] = doingOf(view.layers[this.layer]!, k);
      const label = share >= CLEAR ? `${head} · ${t(`looks-${doing}`)} ${number(share)}` : String(head);
      const chip = button(label, this.shown.has(k), () => {
        if (!this.several) this.shown.clear();
        if (!this.shown.delete(k)) this.shown.add(k);
        this.drawHeads();
      });
      chip.className = "chip";
      chip.style.setProperty("--chip", colour(k, heads.length));
      return chip;
    });
    const several = button(t("view-several"), this.several, () => {
      this.several = !this.several;
      if (!this.several) for (const k of [...this.shown].slice(1)) this.shown.delete(k);
      this.drawHeads();
    });
    const square = view.kind !== "cross" && view.queries.length === view.keys.length;
    const mean = square ? h("label", {}, h("input", { type: "checkbox", class: "mean", checked: this.mean, change: (event: Event) => {
      this.mean = (event.target as HTMLInputElement).checked;
      this.lines();
    } }), ` ${t("view-mean")}`) : null;
    const files = menu(t("save"), button("SVG", false, () => this.save("svg")), button("PNG", false, () => this.save("png")), button("PDF", false, () => this.save("pdf")), button(t("save-table"), false, () => this.save("csv")));
    const some = [...view.queries, ...view.keys].some(([, special]) => special);
    const fold = some ? h("label", {}, h("input", { type: "checkbox", class: "special", checked: this.special, change: (event: Event) => {
      this.special = (event.target as HTMLInputElement).checked;
      this.drawHeads();
    } }), ` ${t("view-special")}`) : null;
    const all = button(t("view-all"), this.shown.size === heads.length && heads.length > 1, () => {
      this.several = true;
      for (const k of heads.keys()) this.shown.add(k);
      this.drawHeads();
    });
    this.heads.replaceChildren(
      h("div", { class: "titled" }, h("h2", {}, t("view-heads")), files), h("p", { class: "lead" }, this.sentence()), h("p", { class: "help" }, t("view-heads-help")),
      h("div", { class: "choices" }, layers, fold, mean),
      h("div", { class: "choices", role: "group", "aria-label": t("heads") }, ...chips, ...(heads.length > 1 ? [several, all] : [])),
      this.says, this.columns(),
    );
    this.lines();
  }

  /** What the head that is shown alone does. */
  private sentence(): string {
    if (this.shown.size !== 1) return "";
    const layer = this.view.layers[this.layer]!;
    const [k] = this.shown;
    const [doing, share] = doingOf(layer, k!);
    if (share < 0) return "";
    return t(share >= CLEAR ? "view-says" : "view-unclear", this.numberOf(this.layer), layer.heads[k!]!, t(`looks-${doing}`), number(share));
  }

  /** The largest weights of a token, of the heads that are shown: of what it looks at, or of who looks at it. */
  private said(side: 0 | 1, at: number): string {
    const { queries, keys } = this.view;
    const weights = new Map<number, number>();
    for (const k of this.shown) this.edges(k).forEach((row, i) => row.forEach(([j, weight]) => {
      const [own, other] = side ? [j, i] : [i, j];
      if (own === at) weights.set(other, Math.max(weights.get(other) ?? 0, weight));
    }));
    const names = side ? queries : keys;
    const most = [...weights].sort((one, other) => other[1] - one[1]).slice(0, 5).map(([place, weight]) => `${names[place]![0]} (${place}) ${percent(weight, 1)}`);
    return t(side ? "looked-by" : "looked-most", `${(side ? keys : queries)[at]![0]} (${at})`, most.join(", ") || "—");
  }

  private keepHeads(): void {
    const { heads } = this.view.layers[this.layer]!;
    for (const k of [...this.shown]) if (k >= heads.length) this.shown.delete(k);
    if (!this.shown.size) this.shown.add(0);
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
    const draw = (over: readonly [0 | 1, number] | null): void => {
      const kept = this.query !== null ? ([0, this.query] as const) : this.key !== null ? ([1, this.key] as const) : null;
      const wanted = over ?? kept;
      this.says.textContent = wanted ? this.said(...wanted) : "";
      this.paint(canvas, scroll.scrollTop, tall, sides, places, wanted);
    };
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

  /** The lines of a head that are drawn: their rows, and their weight; at most those of one token. */
  private *drawn(k: number, rows: readonly [number[], number[]], places: Int32Array, wanted: readonly [0 | 1, number] | null): Generator<readonly [number, number, number]> {
    const edges = this.edges(k);
    for (let row = 0; row < rows[0].length; row++) {
      const i = rows[0][row]!;
      if (wanted?.[0] === 0 && wanted[1] !== i) continue;
      for (const [j, weight] of edges[i]!) {
        if (weight < (wanted ? FAINT : LEAST)) break;
        if (places[j]! >= 0 && !(wanted?.[0] === 1 && wanted[1] !== j)) yield [row, places[j]!, weight];
      }
    }
  }

  private paint(canvas: HTMLCanvasElement, scrolled: number, tall: number, sides: readonly [number[], number[]], places: Int32Array, wanted: readonly [0 | 1, number] | null): void {
    const { heads } = this.view.layers[this.layer]!;
    const width = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = tall * ratio;
    const brush = canvas.getContext("2d");
    if (!brush || !width) return;
    brush.scale(ratio, ratio);
    brush.lineWidth = 1.6;
    const y = (row: number): number => row * ROW - scrolled + ROW / 2;
    for (const k of this.shown) {
      const shades = Array.from({ length: SHADES }, () => new Path2D());
      for (const [row, place, weight] of this.drawn(k, sides, places, wanted)) {
        const [from, to] = [y(row), y(place)];
        if (Math.max(from, to) < 0 || Math.min(from, to) > tall || (!wanted && (from < 0 || from > tall))) continue;
        const path = shades[Math.min(SHADES - 1, Math.floor(weight * SHADES))]!;
        path.moveTo(0, from);
        path.lineTo(width, to);
      }
      brush.strokeStyle = colour(k, heads.length);
      shades.forEach((path, shade) => {
        brush.globalAlpha = (shade + 0.6) / SHADES;
        brush.stroke(path);
      });
    }
  }

  /** Saves what is shown: all tokens with their lines, or the weights as a table. */
  private save(kind: "svg" | "png" | "pdf" | "csv"): void {
    const { queries, keys, layers } = this.view;
    const layer = layers[this.layer]!;
    const name = `layer-${this.numberOf(this.layer)}-head-${[...this.shown].map((k) => layer.heads[k]).join("-")}`;
    if (kind === "csv") {
      const quoted = (text: string): string => `"${text.replaceAll('"', '""')}"`;
      const rows = [...this.shown].flatMap((k) => this.edges(k).flatMap((row, i) => row.map(([j, weight]) =>
        [this.numberOf(this.layer), layer.heads[k], i, j, weight.toPrecision(3), quoted(queries[i]![0]), quoted(keys[j]![0])].join(","))));
      saveText(["layer,head,query,key,weight,query_token,key_token", ...rows].join("\n"), `${name}.csv`, "text/csv");
      return;
    }
    const sides = [this.rows(queries), this.rows(keys)] as const;
    const places = new Int32Array(keys.length).fill(-1);
    sides[1].forEach((k, place) => (places[k] = place));
    const wanted = this.query !== null ? ([0, this.query] as const) : this.key !== null ? ([1, this.key] as const) : null;
    const tall = Math.max(sides[0].length, sides[1].length) * ROW + 8;
    const word = (token: Token, row: number, x: number, anchor: string): SVGElement =>
      s("text", { x, y: row * ROW + ROW * 0.7, "text-anchor": anchor, "font-size": 13, "font-family": "sans-serif", fill: "currentColor" }, token[0]);
    const drawing = s("svg", { viewBox: `0 0 ${WIDE} ${tall}` },
      ...[...this.shown].flatMap((k) => [...this.drawn(k, sides, places, wanted)].map(([row, place, weight]) => s("line", {
        x1: WIDE * 0.36, x2: WIDE * 0.64, y1: row * ROW + ROW / 2, y2: place * ROW + ROW / 2, stroke: colour(k, layer.heads.length), "stroke-width": 1.6, "stroke-opacity": weight.toFixed(3),
      }))),
      ...sides[0].map((i, row) => word(queries[i]!, row, WIDE * 0.35, "end")), ...sides[1].map((j, row) => word(keys[j]!, row, WIDE * 0.65, "start")));
    drawing.classList.add("unseen");
    this.heads.append(drawing);
    if (kind === "svg") saveSvg(drawing, name);
    else if (kind === "pdf") printAlone(drawing);
    else void savePng(drawing, name);
    drawing.remove();
  }

  private choose(side: 0 | 1, at: number | null): void {
    if (side) this.key = at;
    else this.query = at;
    this.lines();
    this.drawPair();
  }

  /** Every head as a small map: by layer, or the most of something first. */
  private drawAll(): void {
    const { layers } = this.view;
    const order = h("select", { "aria-label": t("view-order"), change: (event: Event) => {
      this.order = (event.target as HTMLSelectElement).value as Doing | "information" | "";
      this.drawAll();
    } }, h("option", { value: "", selected: this.order === "" }, t("view-by-layer")), ...(["information", ...DOING] as const)
      .filter((each) => this.everyHead().some((head) => this.measure(...head, each) >= 0))
      .map((each) => h("option", { value: each, selected: this.order === each }, t(`looks-${each}`))));
    const thumb = (l: number, k: number, caption: string): HTMLElement => {
      const [rows, columns] = layers[l]!.cells;
      const [doing, share] = doingOf(layers[l]!, k);
      const does = share >= 0 ? ` · ${t(`looks-${doing}`)} ${number(share)}` : "";
      const label = t("view-head", this.numberOf(l), layers[l]!.heads[k]!);
      const item = h("button", { type: "button", class: "thumb", title: `${label}${does}`, "aria-label": `${label}${does}`, click: () => this.show(l, k) },
        h("canvas", { width: columns, height: rows, "data-layer": l, "data-head": k }), h("span", {}, caption));
      const [tint, strength] = this.order ? [this.order === "information" ? "var(--accent)" : hue(this.order), this.measure(l, k, this.order)] : [hue(doing), share < CLEAR ? 0 : share];
      item.style.setProperty("--doing", `color-mix(in srgb, ${tint} ${Math.round(100 * Math.max(0, strength))}%, transparent)`);
      return item;
    };
    const most = Math.max(...layers.map(({ heads }) => heads.length));
    const grid = h("div", { class: `heads ${this.order ? "sorted" : ""}` });
    if (this.order) {
      const by = this.order;
      const sorted = this.everyHead().sort((one, other) => this.measure(...other, by) - this.measure(...one, by));
      grid.append(...sorted.map(([l, k]) => thumb(l, k, `${this.numberOf(l)}·${layers[l]!.heads[k]}: ${number(Math.max(0, this.measure(l, k, by)))}`)));
    } else {
      grid.style.gridTemplateColumns = `max-content repeat(${most}, minmax(1.6rem, ${THUMB}px))`;
      layers.forEach((layer, l) => {
        grid.append(h("span", { class: "quiet", title: layer.name }, String(this.numberOf(l))));
        for (let k = 0; k < most; k++) grid.append(k < layer.heads.length ? thumb(l, k, String(layer.heads[k])) : h("span"));
      });
    }
    const there = DOING.filter((each) => this.everyHead().some(([l, k]) => { const [doing, share] = doingOf(layers[l]!, k); return doing === each && share >= CLEAR; }));
    const legend = this.order ? null : h("p", { class: "legend" }, ...there.map((each) => {
      const mark = h("span", {}, t(`looks-${each}`));
      mark.style.setProperty("--doing", hue(each));
      return mark;
    }));
    this.all.replaceChildren(h("h2", {}, t("view-model")), h("p", { class: "help" }, t("view-model-help")), h("div", { class: "choices" }, h("label", {}, `${t("view-order")} `, order)), legend ?? "", h("div", { class: "wide", tabindex: 0 }, grid));
    const near = new IntersectionObserver((entries) => {
      if (!entries.some((each) => each.isIntersecting)) return;
      near.disconnect();
      this.thumbs([...grid.querySelectorAll("canvas")]);
    }, { rootMargin: "400px 0px" });
    near.observe(this.all);
  }

  private thumbs(canvases: HTMLCanvasElement[]): void {
    const ink = getComputedStyle(this.all).getPropertyValue("color").match(/\d+/g)!.map(Number);
    for (const canvas of canvases) {
      const [layer, k] = [Number(canvas.dataset["layer"]), Number(canvas.dataset["head"])];
      const [rows, columns] = this.view.layers[layer]!.cells;
      const { map } = this.open(layer);
      const image = new ImageData(columns, rows);
      for (let cell = 0; cell < rows * columns; cell++) {
        const weight = fine(map[k * rows * columns + cell]!);
        image.data.set([ink[0]!, ink[1]!, ink[2]!, 255 * Math.sqrt(weight)], 4 * cell);
      }
      canvas.getContext("2d")!.putImageData(image, 0, 0);
    }
  }

  private show(layer: number, head: number): void {
    this.layer = layer;
    this.several = false;
    this.shown.clear();
    this.shown.add(head);
    this.drawHeads();
    this.heads.scrollIntoView({ behavior: "smooth", block: "start" });
  }

  /** The weight of a pair in a head, and whether it is only known to be smaller. */
  private weight(layer: number, k: number, i: number, j: number): readonly [number, boolean] {
    const { queries, keys: names } = this.view;
    const { top, whole, cells: [rows, columns] } = this.view.layers[layer]!;
    const { keys, weights, map } = this.open(layer);
    if (whole && rows === queries.length && columns === names.length) return [fine(map[(k * rows + i) * columns + j]!), false];
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
      const rows = layers.map(({ name, heads }, l) => h("tr", {}, h("th", { scope: "row", title: name }, String(this.numberOf(l))), ...heads.map((_, k) => {
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
