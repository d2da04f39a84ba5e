/** Views of a model's attention over its tokens: heads of a layer, all layers and heads, one query and key. */
import type { Shown } from "../pictures/patches";
import { css, TINTS } from "../pictures/scale";
import { Columns, ROW, written, type Side, type Spot, type Token } from "./columns";
import { h, isolated, menu, s, whenNear } from "./dom";
import { Places } from "./places";
import { DOING, doingOf, isClear, SIGNS, type Doing, type Layer, type Lead, type View } from "./recorded";
import { printAlone, savePng, saveSvg, saveText } from "./save";
import { number, percent, signed, t } from "./strings";

const THUMB = 96; // most side of a small map
const WIDE = 720; // of a drawing that is saved
const STEPS = 2048; // of a base-2 logarithm; `dikkat.show.views` writes them
const FAINT = 0.02; // least weight that is drawn as a line of one token
const LEAST = 0.06; // … where the lines of all tokens are drawn

type Edge = readonly [key: number, weight: number];

const SHADES = 6; // of lines: those of one shade are drawn at once

const unpacked = (text: string): Uint16Array => new Uint16Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
const decoded = (layer: Layer) => ({ ...layer, keys: unpacked(layer.keys), weights: unpacked(layer.weights), map: unpacked(layer.map) });
const NONE = 65535; // the code of 0
const MINUS = 32768; // added to the code of a weight below 0
const valuesOf = (signed: boolean): Float32Array => Float32Array.from({ length: NONE + 1 }, (_, code) =>
  code === NONE ? 0 : signed && code >= MINUS ? -(2 ** ((MINUS - code) / STEPS)) : 2 ** (-code / STEPS));
const tint = (value: number): string => css([...TINTS[value < 0 ? 1 : 0], 1]);
const largest = ([, one]: Edge, [, other]: Edge): number => Math.abs(other) - Math.abs(one);
/** The colour of a head: none near that of controls. */
const colour = (head: number, of: number): string => `hsl(${(215 + (head * 290) / Math.max(of, 3)) % 360} 62% 47%)`;
const button = (label: string, click: () => void): HTMLButtonElement => h("button", { type: "button", click }, label);
const press = (pressed: HTMLElement, is: boolean): void => pressed.setAttribute("aria-pressed", String(is));

/** The views of all kinds of attention of one run. */
export function viewsOf(views: readonly View[], images: readonly Shown[]): HTMLElement {
  const shown = h("div", { class: "views" });
  const drawn: Views[] = [];
  const choices = views.map(({ kind, element, title }, k) => {
    const names = [kind && t(`view-${kind}`), element === null ? "" : t("view-element", element), title];
    return button(names.filter(Boolean).join(" · "), () => draw(k));
  });
  const draw = (chosen: number): void => {
    choices.forEach((each, k) => press(each, k === chosen));
    shown.replaceChildren(...(drawn[chosen] ??= new Views(views[chosen]!, images)).elements);
  };
  draw(Math.max(0, views.findIndex((each) => each.kind === "self")));
  return h("section", { class: "views" }, views.length > 1 && h("div", { class: "choices", role: "group", "aria-label": t("view-kind") }, ...choices), shown);
}

class Views {
  readonly elements: HTMLElement[];
  private layer = 0;
  private readonly shown = new Set<number>();
  private several = false;
  private readonly chosen: [query: number | null, key: number | null] = [null, null];
  private last: Side = 0; // of the chosen tokens
  private readonly data: readonly ReturnType<typeof decoded>[];
  private readonly values: Float32Array; // by code
  private readonly signed: boolean;
  private readonly found = new Map<string, Edge[][]>();
  // Controls are made once: one that is replaced while it is used loses the focus.
  private readonly heads: HTMLElement;
  private readonly layers: HTMLSelectElement;
  private readonly chips: HTMLButtonElement[][] = [];
  private readonly chipGroup = h("div", { class: "choices", role: "group", "aria-label": t("heads") });
  private readonly severalHeads = button(t("view-several"), () => {
    this.several = !this.several;
    if (!this.several) for (const k of [...this.shown].slice(1)) this.shown.delete(k);
    this.drawHeads();
  });
  private readonly allHeads = button(t("view-all"), () => {
    this.several = true;
    for (const k of this.view.layers[this.layer]!.heads.keys()) this.shown.add(k);
    this.drawHeads();
  });
  private readonly mean = h("input", { type: "checkbox", class: "mean", change: () => this.drawLines() });
  private readonly special = h("input", { type: "checkbox", class: "special", change: () => this.drawTokens() });
  private readonly headline = h("p", { class: "lead" });
  private readonly says = h("p", { class: "says", "aria-live": "polite" });
  private readonly columns: Columns;
  /** The pictures of a view with parts, in place of lines. */
  private readonly places: Places | null;
  private near = false; // whether the small maps are near the window
  private turn = 0; // of drawing them
  private readonly order: HTMLSelectElement;
  /** Whether no head has a pattern but to look at everything. */
  private readonly nothing: boolean;
  private readonly legend = h("p", { class: "legend" });
  private readonly grid = h("div", { class: "heads" });
  private readonly thumbs: HTMLButtonElement[][];
  private readonly pickers: readonly HTMLInputElement[]; // of a query and a key, by number
  private readonly pairs = h("div", { class: "wide", tabindex: 0 });

  constructor(private readonly view: View, images: readonly Shown[]) {
    const { layers, queries, keys, lead } = view;
    this.data = layers.map(decoded);
    this.signed = lead === "change";
    this.values = valuesOf(this.signed);
    this.columns = new Columns(view.parts ? [[], []] : [queries, keys], (spot) => this.drawLines(spot), ([side, token]) => this.choose(side, this.chosen[side] === token ? null : token));
    this.places = view.parts ? new Places(view, images, {
      look: (spot) => this.drawLines(spot), changed: () => this.drawLines(), redraw: () => void this.drawMaps(),
      choose: (spot) => (spot ? this.choose(spot[0], spot[1]) : this.chooseNone()),
    }) : null;
    const candidates = this.everyHead().filter(([layer]) => !this.places?.startsAtClass || layer === layers.length - 1);
    const most = candidates.reduce((best, each) => (this.worth(...each) > this.worth(...best) ? each : best));
    this.layer = most[0];
    this.shown.add(most[1]);
    if (this.places?.first) this.chosen[this.places.first[0]] = this.places.first[1];
    this.layers = h("select", { "aria-label": t("layers"), change: () => this.showLayer(Number(this.layers.value)) },
      ...layers.map(({ name }, k) => h("option", { value: k }, [t("view-layer", this.numberOf(k)), name].filter(Boolean).join(" · "))));
    this.order = h("select", { "aria-label": t("view-order"), change: () => this.drawAll() }, h("option", { value: "" }, t("view-by-layer")),
      lead && h("option", { value: lead, selected: true }, t(`looks-${lead}`)),
      ...(["information", ...DOING] as const).filter((each) => this.everyHead().some((head) => this.measure(...head, each) >= 0))
        .map((each) => h("option", { value: each }, t(`looks-${each}`))));
    this.thumbs = layers.map(({ heads }, l) => heads.map((_, k) => this.thumb(l, k)));
    const clear = new Set(this.everyHead().map(([l, k]) => doingOf(layers[l]!, k)).filter(([doing, share]) => isClear(doing, share)).map(([doing]) => doing));
    this.legend.append(...DOING.filter((each) => clear.has(each)).map((each) => h("span", {}, h("b", {}, SIGNS[each]), ` ${t(`looks-${each}`)}`)));
    this.nothing = ![...clear].some((each) => each !== "evenly");
    this.pickers = ([0, 1] as const).map((side) => this.picker(side));
    const saving = (["svg", "png", "pdf", "csv"] as const).map((kind) => button(kind === "csv" ? t("save-table") : kind.toUpperCase(), () => this.save(kind)));
    this.heads = h("article", { class: "card" },
      h("div", { class: "titled" }, h("h2", {}, t("view-heads")), menu(t("save"), ...saving)), this.headline, lead && this.swatches(), h("p", { class: "help" }, t(this.places ? (this.places.hasImages ? "place-help" : "place-times-help") : "view-heads-help")),
      h("div", { class: "choices" }, this.layers, !this.places && [...queries, ...keys].some(([, special]) => special) && h("label", {}, this.special, " ", t("view-special")),
        !this.places && view.kind !== "cross" && queries.length === keys.length && h("label", {}, this.mean, " ", t("view-mean"))),
      this.chipGroup, this.says, (this.places ?? this.columns).element);
    const all = h("article", { class: "card" }, h("h2", {}, t("view-model")), h("p", { class: "help" }, t(this.places ? "place-model-help" : lead ? "view-lead-help" : "view-model-help")),
      h("div", { class: "choices" }, h("label", {}, `${t("view-order")} `, this.order)), lead && this.swatches(), this.legend, h("div", { class: "wide", tabindex: 0 }, this.grid));
    const pair = h("article", { class: "card" }, h("h2", {}, t("view-pair")), h("p", { class: "help" }, t(this.places ? "place-pair-help" : "view-pair-help")),
      h("div", { class: "choices" }, ...this.pickers.map((input, side) => h("label", {}, t(side ? "view-key" : "view-query"), " ", input, " ", h("b", { dir: "auto" })))), this.pairs);
    this.elements = [this.heads, all, pair];
    this.drawTokens();
    this.drawHeads();
    this.drawAll();
    void this.drawPair();
    if (this.places) whenNear(this.grid, () => {
      this.near = true;
      void this.drawMaps();
    });
  }

  private everyHead(): (readonly [layer: number, head: number])[] {
    return this.view.layers.flatMap(({ heads }, l) => heads.map((_, k) => [l, k] as const));
  }

  /** The colours of what is above 0, and below. */
  private swatches(): HTMLElement {
    return h("p", { class: "legend" }, ...([1, -1] as const).map((sign) => {
      const swatch = h("b", { class: "swatch" });
      swatch.style.backgroundColor = tint(sign);
      return h("span", {}, swatch, ` ${t(this.signed ? (sign > 0 ? "view-more" : "view-less") : sign > 0 ? "view-rises" : "view-falls")}`);
    }));
  }

  /** What heads are ranked by; null if it is not known of a head. */
  private led(layer: number, k: number): number | null {
    const { lead, layers } = this.view;
    return lead ? layers[layer]!.shares[lead]?.[k] ?? null : null;
  }

  private ledText(led: number | null): string {
    return led === null ? "–" : this.signed ? number(led) : signed(led);
  }

  private measure(layer: number, k: number, of: Doing | "information"): number {
    return this.view.layers[layer]!.shares[of]?.[k] ?? -1;
  }

  /** How much a head says: heads that go by what tokens are come before those that go by where they stand. */
  private worth(layer: number, k: number): number {
    if (this.view.lead) return Math.abs(this.led(layer, k) ?? 0);
    const [doing, share] = doingOf(this.view.layers[layer]!, k);
    const told = this.measure(layer, k, "information") * share;
    return doing === "evenly" ? told / 2 : isClear(doing, share) && (doing === "same" || doing === "induction") ? 1 + told : told;
  }

  private numberOf(layer: number): number {
    const given = this.view.layers[layer]!.number;
    return given < 0 ? layer : given;
  }

  /** Where a head looks from each query: the weights that are known, the largest first. */
  private edges(k: number): Edge[][] {
    const name = `${this.layer} ${k} ${this.mean.checked}`;
    const before = this.found.get(name);
    if (before) return before;
    const { queries } = this.view;
    const { keys, weights, top } = this.data[this.layer]!;
    const rows = queries.map((_, i) => {
      const row: Edge[] = [];
      const from = (k * queries.length + i) * top;
      for (let at = from; at < from + top && weights[at] !== NONE; at++) row.push([keys[at]!, this.values[weights[at]!]!]);
      return row;
    });
    if (!this.mean.checked) return this.found.set(name, rows).get(name)!;
    const both = rows.map(() => new Map<number, number>());
    rows.forEach((row, i) => row.forEach(([j, weight]) => {
      both[i]!.set(j, (both[i]!.get(j) ?? 0) + weight / 2);
      both[j]?.set(i, (both[j].get(i) ?? 0) + weight / 2);
    }));
    return this.found.set(name, both.map((row) => [...row].sort(largest))).get(name)!;
  }

  private drawTokens(): void {
    this.columns.show(this.special.checked, this.chosen);
  }

  private showLayer(layer: number, heads: Iterable<number> = this.shown): void {
    this.layer = layer;
    const kept = [...heads].filter((k) => k < this.view.layers[layer]!.heads.length);
    this.shown.clear();
    for (const k of kept.length ? kept : [0]) this.shown.add(k);
    this.drawHeads();
  }

  private chip(head: number, k: number, of: number): HTMLButtonElement {
    const [doing, share] = doingOf(this.view.layers[this.layer]!, k);
    const led = this.led(this.layer, k);
    const chip = button(led !== null ? `${head} · ${this.ledText(led)}` : isClear(doing, share) ? `${head} · ${t(`looks-${doing}`)} ${number(share)}` : String(head), () => {
      if (!this.several) this.shown.clear();
      if (!this.shown.delete(k)) this.shown.add(k);
      this.drawHeads();
    });
    chip.className = "chip";
    chip.style.setProperty("--chip", this.signed ? "var(--accent)" : led !== null ? tint(led) : colour(k, of));
    return chip;
  }

  private drawHeads(): void {
    const { heads } = this.view.layers[this.layer]!;
    const chips = (this.chips[this.layer] ??= heads.map((head, k) => this.chip(head, k, heads.length)));
    chips.forEach((chip, k) => press(chip, this.shown.has(k)));
    press(this.severalHeads, this.several);
    press(this.allHeads, this.shown.size === heads.length && heads.length > 1);
    if (chips[0] !== this.chipGroup.firstChild) this.chipGroup.replaceChildren(...chips, ...(heads.length > 1 ? [this.severalHeads, this.allHeads] : []));
    this.layers.value = String(this.layer);
    this.headline.textContent = this.sentence();
    this.drawLines();
  }

  /** What the head that is shown alone does. */
  private sentence(): string {
    if (this.shown.size !== 1) return "";
    const layer = this.view.layers[this.layer]!;
    const [k] = this.shown;
    const [doing, share] = doingOf(layer, k!);
    const [name, led, { lead }] = [[this.numberOf(this.layer), layer.heads[k!]!] as const, this.led(this.layer, k!), this.view];
    if (lead === "change") return led === null ? "" : t("view-change", ...name, this.ledText(led));
    const looks = share < 0 || (this.nothing && this.places) ? "" : this.nothing ? t("view-nothing") : t(isClear(doing, share) ? "view-says" : "view-unclear", ...name, t(`looks-${doing}`), number(share));
    return lead && led !== null ? `${looks} ${t(`view-${lead}`, ...name, signed(led))}` : looks;
  }

  /** The largest weights of a token, of the heads that are shown: of what it looks at, or of who looks at it. */
  private spotText([side, at]: Spot): string {
    const weights = new Map<number, number>();
    for (const k of this.shown) this.edges(k).forEach((row, i) => row.forEach(([j, weight]) => {
      const [own, other] = side ? [j, i] : [i, j];
      if (own === at && Math.abs(weight) > Math.abs(weights.get(other) ?? 0)) weights.set(other, weight);
    }));
    const name = (of: Side, token: number): string => `${isolated(written((of ? this.view.keys : this.view.queries)[token]!))} (${this.position(of, token)})`;
    const most = [...weights].sort(largest).slice(0, 5).map(([token, weight]) => `${name(side ? 0 : 1, token)} ${this.percent(weight)}`);
    return t(side ? "looked-by" : "looked-most", name(side, at), most.join(", ") || "—");
  }

  private percent(weight: number): string {
    return `${this.signed && weight > 0 ? "+" : ""}${percent(weight, 1)}`;
  }

  /** The token whose lines are shown while no other one is pointed at. */
  private get kept(): Spot | null {
    const side = this.chosen[this.last] === null ? (1 - this.last) as Side : this.last;
    const token = this.chosen[side];
    return token === null ? null : [side, token];
  }

  /** The lines of a head, or those of one token: the rows of both ends, and the weight. */
  private *lines(k: number, spot: Spot | null): Generator<readonly [from: number, to: number, weight: number]> {
    const [rows, columns] = this.columns.rowOf;
    for (const [i, row] of this.edges(k).entries()) {
      if (rows[i]! < 0 || (spot?.[0] === 0 && spot[1] !== i)) continue;
      for (const [j, weight] of row) {
        if (Math.abs(weight) < (spot ? FAINT : LEAST)) break;
        if (columns[j]! >= 0 && !(spot?.[0] === 1 && spot[1] !== j)) yield [rows[i]!, columns[j]!, weight];
      }
    }
  }

  /** The colour of a line: of its sign, of its head's effect, or of its head. */
  private ink(k: number, weight: number): string {
    const led = this.led(this.layer, k);
    return this.signed ? tint(weight) : led !== null ? tint(led) : colour(k, this.view.layers[this.layer]!.heads.length);
  }

  /** Of a line: differences are small. */
  private opacity(weight: number): number {
    return this.signed ? Math.sqrt(Math.abs(weight)) : weight;
  }

  private drawLines(over: Spot | null = null): void {
    const spot = over ?? this.kept;
    if (this.places) {
      this.says.textContent = this.places.show(this.layer, [...this.shown].sort((one, other) => one - other), over, this.kept);
      return;
    }
    this.says.textContent = spot ? this.spotText(spot) : "";
    const { box: { scrollTop }, canvas, height } = this.columns;
    const width = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const brush = canvas.getContext("2d");
    if (!brush || !width) return;
    brush.scale(ratio, ratio);
    brush.lineWidth = 1.6;
    const y = (row: number): number => row * ROW - scrollTop + ROW / 2;
    const inks = new Map<string, Path2D[]>();
    for (const k of this.shown) {
      for (const [row, column, weight] of this.lines(k, spot)) {
        const [from, to] = [y(row), y(column)];
        if (Math.max(from, to) < 0 || Math.min(from, to) > height || (!spot && (from < 0 || from > height))) continue;
        const ink = this.ink(k, weight);
        if (!inks.has(ink)) inks.set(ink, Array.from({ length: SHADES }, () => new Path2D()));
        const path = inks.get(ink)![Math.min(SHADES - 1, Math.floor(this.opacity(weight) * SHADES))]!;
        path.moveTo(0, from);
        path.lineTo(width, to);
      }
    }
    for (const [ink, shades] of inks) {
      brush.strokeStyle = ink;
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
    const name = `layer-${this.numberOf(this.layer)}-head-${[...this.shown].map((k) => layer.heads[k]).join("-")}${this.places?.isWithoutSinks ? "-without-sinks" : ""}`;
    if (kind === "csv") {
      const quoted = (text: string): string => `"${text.replaceAll('"', '""')}"`;
      const known = this.places ? [...this.places.table()] : [...this.shown].flatMap((k) => this.edges(k).flatMap((row, i) => row.map(([j, weight]) => [k, i, j, weight] as const)));
      const rows = known.map(([k, i, j, weight]) =>
        [this.numberOf(this.layer), layer.heads[k], i === null ? "" : this.position(0, i), this.position(1, j), weight.toPrecision(3), quoted(i === null ? "mean" : queries[i]![0]), quoted(keys[j]![0])].join(","));
      saveText(["layer,head,query,key,weight,query_token,key_token", ...rows].join("\n"), `${name}.csv`, "text/csv");
      return;
    }
    const drawing = this.places?.drawing(t("view-head", this.numberOf(this.layer), [...this.shown].map((k) => layer.heads[k]).join(", "))) ?? this.drawing();
    drawing.classList.add("unseen");
    this.heads.append(drawing);
    if (kind === "svg") saveSvg(drawing, name);
    else if (kind === "pdf") printAlone(drawing);
    else void savePng(drawing, name);
    drawing.remove();
  }

  /** All tokens with their lines. */
  private drawing(): SVGSVGElement {
    const { queries, keys } = this.view;
    const [from, to] = this.columns.rows;
    const tall = Math.max(from.length, to.length) * ROW + 8;
    const word = (token: Token, row: number, x: number, anchor: string): SVGElement =>
      s("text", { x, y: row * ROW + ROW * 0.7, "text-anchor": anchor, "font-size": 13, "font-family": "sans-serif", fill: "currentColor" }, written(token));
    return s("svg", { viewBox: `0 0 ${WIDE} ${tall}` },
      ...[...this.shown].flatMap((k) => [...this.lines(k, this.kept)].map(([row, column, weight]) => s("line", {
        x1: WIDE * 0.36, x2: WIDE * 0.64, y1: row * ROW + ROW / 2, y2: column * ROW + ROW / 2, stroke: this.ink(k, weight), "stroke-width": 1.6, "stroke-opacity": this.opacity(weight).toFixed(3),
      }))),
      ...from.map((i, row) => word(queries[i]!, row, WIDE * 0.35, "end")), ...to.map((j, row) => word(keys[j]!, row, WIDE * 0.65, "start")));
  }

  private chooseNone(): void {
    this.chosen.fill(null);
    this.drawTokens();
    void this.drawPair();
    void this.drawMaps();
  }

  private choose(side: Side, token: number | null): void {
    [this.chosen[side], this.last] = [token, side];
    const listed = token !== null && !this.places;
    if (listed && this.columns.rowOf[side][token]! < 0) this.special.checked = true;
    this.drawTokens();
    if (listed) this.columns.reveal(this.columns.rowOf[side][token]!);
    void this.drawPair();
    void this.drawMaps();
  }

  /** A small map, in black; the style sheet inverts it on a dark page. */
  private thumb(layer: number, k: number): HTMLButtonElement {
    const { cells: [rows, columns], heads, map } = this.data[layer]!;
    const [doing, share] = doingOf(this.view.layers[layer]!, k);
    const [led, { lead }] = [this.led(layer, k), this.view];
    const label = [t("view-head", this.numberOf(layer), heads[k]!), share >= 0 && `${t(`looks-${doing}`)} ${number(share)}`, lead && led !== null && `${t(`looks-${lead}`)} ${this.ledText(led)}`].filter(Boolean).join(" · ");
    const canvas = h("canvas", { width: columns, height: rows, class: this.signed && "signed" });
    const image = this.places ? null : new ImageData(columns, rows);
    for (let cell = 0; image && cell < rows * columns; cell++) {
      const weight = this.values[map[k * rows * columns + cell]!]!;
      if (this.signed) image.data.set(TINTS[weight < 0 ? 1 : 0], 4 * cell);
      image.data[4 * cell + 3] = 255 * Math.sqrt(Math.abs(weight));
    }
    if (image) canvas.getContext("2d")!.putImageData(image, 0, 0);
    return h("button", { type: "button", class: "thumb", title: label, "aria-label": label, click: () => {
      this.several = false;
      this.showLayer(layer, [k]);
      this.heads.scrollIntoView({ behavior: "smooth", block: "start" });
    } }, canvas, h("span"));
  }

  /** Draws the kept token's maps on the images in all heads, a layer at a time. */
  private async drawMaps(): Promise<void> {
    const turn = ++this.turn;
    if (!this.places || !this.near) return;
    for (const [l, thumbs] of this.thumbs.entries()) {
      await this.places.ready(l);
      if (turn !== this.turn) return;
      thumbs.forEach((thumb, k) => thumb.firstChild!.replaceWith(this.places!.thumb(l, k)));
      await new Promise((resolve) => setTimeout(resolve)); // a pointer goes first
    }
  }

  /** Every head as a small map: by layer, or the most of something first. */
  private drawAll(): void {
    const { layers, lead } = this.view;
    const by = this.order.value as Doing | "information" | Lead | "";
    const heads = this.everyHead();
    const sizeOf = (l: number, k: number): number => (by === lead ? this.worth(l, k) : this.measure(l, k, by as Doing));
    if (by) heads.sort((one, other) => sizeOf(...other) - sizeOf(...one));
    const full = Math.max(...heads.map((head) => this.worth(...head))) || 1;
    for (const [l, k] of heads) {
      const [doing, share] = doingOf(layers[l]!, k);
      const led = this.led(l, k);
      const value = by === lead ? this.ledText(led) : number(Math.max(0, sizeOf(l, k)));
      const [strength, caption] = by ? [sizeOf(l, k), `${this.numberOf(l)}·${layers[l]!.heads[k]}: ${value}`]
        : !isClear(doing, share) ? [0, String(layers[l]!.heads[k])] : [share, `${layers[l]!.heads[k]} ${SIGNS[doing]}`];
      const thumb = this.thumbs[l]![k]!;
      thumb.lastElementChild!.textContent = caption;
      thumb.setAttribute("aria-label", by ? `${thumb.title} · ${caption}` : thumb.title);
      thumb.style.setProperty("--share", String(Math.max(0, lead ? this.worth(l, k) / full : strength)));
      if (lead && !this.signed) thumb.style.setProperty("--bar", tint(led ?? 0));
    }
    this.grid.classList.toggle("tinted", lead !== "" && !this.signed);
    const most = Math.max(...this.thumbs.map(({ length }) => length));
    this.legend.hidden = by !== "";
    this.grid.classList.toggle("sorted", by !== "");
    this.grid.style.gridTemplateColumns = by ? "" : `max-content repeat(${most}, minmax(1.6rem, ${THUMB}px))`;
    this.grid.replaceChildren(...(by ? heads.map(([l, k]) => this.thumbs[l]![k]!) : layers.flatMap(({ name }, l) => [
      h("span", { class: "quiet", title: name }, String(this.numberOf(l))), ...this.thumbs[l]!, ...Array.from({ length: most - this.thumbs[l]!.length }, () => h("span")),
    ])));
  }

  /** The weight of a pair in a head, and whether it is only known to be smaller. */
  private weight(layer: number, k: number, i: number, j: number): readonly [number, boolean] {
    const { queries, keys: names } = this.view;
    if (this.places) return [this.places.weight(layer, k, i, j), false];
    const { top, whole, cells: [rows, columns], keys, weights, map } = this.data[layer]!;
    if (whole && rows === queries.length && columns === names.length) return [this.values[map[(k * rows + i) * columns + j]!]!, false];
    const from = (k * queries.length + i) * top;
    for (let at = from; at < from + top; at++) if (keys[at] === j && weights[at] !== NONE) return [this.values[weights[at]!]!, false];
    const least = Math.abs(this.values[weights[from + top - 1]!]!);
    return least ? [Math.ceil(least * 1000) / 1000, true] : [0, false]; // rounded up to the tenth of a percent that is shown
  }

  /** The position of a query or key in the sequence. */
  private position(side: Side, token: number): number {
    return this.view.positions?.[side][token] ?? token;
  }

  private picker(side: Side): HTMLInputElement {
    const positions = Array.from((side ? this.view.keys : this.view.queries), (_, token) => this.position(side, token));
    const [first, last] = [Math.min(...positions), Math.max(...positions)];
    const input = h("input", { type: "number", min: first, max: last, placeholder: `${first}–${last}`, change: () => {
      const position = Math.max(first, Math.min(Math.round(input.valueAsNumber), last));
      const token = positions.indexOf(position); // the position of no selected query has none
      this.choose(side, token < 0 ? null : token);
    } });
    return input;
  }

  private async drawPair(): Promise<void> {
    const { queries, keys, layers } = this.view;
    const [query, key] = this.chosen;
    this.pickers.forEach((input, side) => {
      const token = this.chosen[side]!;
      input.value = token === null ? "" : String(this.position(side as Side, token));
      input.nextElementSibling!.textContent = token === null ? "" : written((side ? keys : queries)[token]!);
    });
    this.pairs.replaceChildren();
    this.pairs.hidden = query === null || key === null;
    if (query === null || key === null) return;
    if (this.places) await Promise.all(layers.map((_, layer) => this.places!.ready(layer)));
    if (query !== this.chosen[0] || key !== this.chosen[1]) return;
    const widest = layers.reduce((most, { heads }) => (heads.length > most.length ? heads : most), layers[0]!.heads);
    this.pairs.replaceChildren(h("table", { class: "pairs" },
      h("thead", {}, h("tr", {}, h("th"), ...widest.map((head) => h("th", { scope: "col" }, String(head))))),
      h("tbody", {}, ...layers.map(({ name, heads }, l) => h("tr", {}, h("th", { scope: "row", title: name }, String(this.numberOf(l))), ...heads.map((_, k) => {
        const [weight, below] = this.weight(l, k, query, key);
        const cell = h("td", {}, below ? `< ${percent(weight, 1)}` : this.percent(weight));
        if (!below) cell.style.setProperty("--weight", Math.abs(weight).toFixed(3));
        if (this.signed) cell.style.setProperty("--glow", `color-mix(in srgb, ${tint(weight)} 60%, transparent)`);
        return cell;
      }))))));
  }
}
