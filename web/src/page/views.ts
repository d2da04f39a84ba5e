/** Views of a model's attention over its tokens: heads of a layer, all layers and heads, one query and key. */
import type { ModelImage } from "../pictures/patches";
import { cssColour, TINTS } from "../pictures/scale";
import { Columns, ROW, tokenText } from "./columns";
import { bytesOfBase64, createMenu, h, isolateDirection, s, whenNear } from "./dom";
import { PositionView } from "./position_view";
import { PATTERNS, mainPattern, isClear, SIGNS, type Pattern, type Layer, type Lead, type Side, type Spot, type Token, type View } from "./view_data";
import { printDrawing, savePng, saveSvg, saveText } from "./save";
import { number, percent, signed, t } from "./strings";

const MAX_THUMBNAIL_SIZE = 96; // pixels of a side
const DRAWING_WIDTH = 720; // of a saved drawing
const STEPS = 2048; // of a base-2 logarithm, as in `dikkat.show.views`
const MIN_SPOT_WEIGHT = 0.02; // smallest weight with a line, for the lines of one token
const MIN_LINE_WEIGHT = 0.06; // the same for the lines of all tokens

type Edge = readonly [key: number, weight: number];

const SHADES = 6; // opacities of lines; lines of one opacity are drawn at once

const uint16Of = (text: string): Uint16Array => new Uint16Array(bytesOfBase64(text).buffer);
const decodeLayer = (layer: Layer) => ({ ...layer, keys: uint16Of(layer.keys), weights: uint16Of(layer.weights), map: uint16Of(layer.map) });
const NONE = 65535; // the code of 0
const MINUS = 32768; // added to the codes of negative weights
const valuesOf = (signed: boolean): Float32Array => Float32Array.from({ length: NONE + 1 }, (_, code) =>
  code === NONE ? 0 : signed && code >= MINUS ? -(2 ** ((MINUS - code) / STEPS)) : 2 ** (-code / STEPS));
const signColour = (value: number): string => cssColour([...TINTS[value < 0 ? 1 : 0], 1]);
const byMagnitude = ([, a]: Edge, [, b]: Edge): number => Math.abs(b) - Math.abs(a);
/** The colour of a head, which differs from the colour of controls. */
const headColour = (head: number, count: number): string => `hsl(${(215 + (head * 290) / Math.max(count, 3)) % 360} 62% 47%)`;
const createButton = (label: string, click: () => void): HTMLButtonElement => h("button", { type: "button", click }, label);
const setPressed = (pressed: HTMLElement, isPressed: boolean): void => pressed.setAttribute("aria-pressed", String(isPressed));

/** The views of one run, with a button for each kind of attention. */
export function createViews(views: readonly View[], images: readonly ModelImage[]): HTMLElement {
  const container = h("div", { class: "views" });
  const cache: Views[] = [];
  const choices = views.map(({ kind, element, title }, k) => {
    const names = [kind && t(`view-${kind}`), element === null ? "" : t("view-element", element), title];
    return createButton(names.filter(Boolean).join(" · "), () => draw(k));
  });
  const draw = (index: number): void => {
    choices.forEach((choice, k) => setPressed(choice, k === index));
    container.replaceChildren(...(cache[index] ??= new Views(views[index]!, images)).elements);
  };
  draw(Math.max(0, views.findIndex((view) => view.kind === "self")));
  return h("section", { class: "views" }, views.length > 1 && h("div", { class: "choices", role: "group", "aria-label": t("view-kind") }, ...choices), container);
}

class Views {
  readonly elements: HTMLElement[];
  private layer = 0;
  private readonly selectedHeads = new Set<number>();
  private selectsSeveral = false;
  private readonly selectedTokens: [query: number | null, key: number | null] = [null, null];
  private lastSide: Side = 0; // of the token selected last
  private readonly data: readonly ReturnType<typeof decodeLayer>[];
  private readonly values: Float32Array; // by code
  private readonly signed: boolean;
  private readonly edgeCache = new Map<string, Edge[][]>();
  // Controls are created once, because replacing a focused control would lose the focus.
  private readonly headsCard: HTMLElement;
  private readonly layerSelect: HTMLSelectElement;
  private readonly chips: HTMLButtonElement[][] = [];
  private readonly chipGroup = h("div", { class: "choices", role: "group", "aria-label": t("heads") });
  private readonly severalHeads = createButton(t("view-several-heads"), () => {
    this.selectsSeveral = !this.selectsSeveral;
    if (!this.selectsSeveral) for (const k of [...this.selectedHeads].slice(1)) this.selectedHeads.delete(k);
    this.drawHeads();
  });
  private readonly allHeads = createButton(t("all-heads"), () => {
    this.selectsSeveral = true;
    for (const k of this.view.layers[this.layer]!.heads.keys()) this.selectedHeads.add(k);
    this.drawHeads();
  });
  private readonly meanBox = h("input", { type: "checkbox", class: "mean", change: () => this.drawLines() });
  private readonly specialBox = h("input", { type: "checkbox", class: "special", change: () => this.drawTokens() });
  private readonly headline = h("p", { class: "lead" });
  private readonly readout = h("p", { class: "says", "aria-live": "polite" });
  private readonly columns: Columns;
  /** The pictures of a view with layouts; other views have lines. */
  private readonly positionView: PositionView | null;
  private isNear = false; // true once the thumbnails are near the window
  private run = 0; // number of times that thumbnails were drawn
  private readonly orderSelect: HTMLSelectElement;
  /** True if no head has a clear pattern other than "evenly". */
  private readonly hasNoPatterns: boolean;
  private readonly legend = h("p", { class: "legend" });
  private readonly grid = h("div", { class: "heads" });
  private readonly thumbnails: HTMLButtonElement[][];
  private readonly pickers: readonly HTMLInputElement[]; // inputs of the query's and the key's position
  private readonly pairs = h("div", { class: "wide", tabindex: 0 });

  constructor(private readonly view: View, images: readonly ModelImage[]) {
    const { layers, queries, keys, lead } = view;
    this.data = layers.map(decodeLayer);
    this.signed = lead === "change";
    this.values = valuesOf(this.signed);
    this.columns = new Columns(view.parts ? [[], []] : [queries, keys], (spot) => this.drawLines(spot), ([side, token]) => this.select(side, this.selectedTokens[side] === token ? null : token));
    this.positionView = view.parts ? new PositionView(view, images, {
      hover: (spot) => this.drawLines(spot), update: () => this.drawLines(), redraw: () => void this.drawMaps(),
      select: (spot) => (spot ? this.select(spot[0], spot[1]) : this.deselect()),
    }) : null;
    const candidates = this.everyHead().filter(([layer]) => !this.positionView?.startsAtClass || layer === layers.length - 1);
    const best = candidates.reduce((best, head) => (this.rankValue(...head) > this.rankValue(...best) ? head : best));
    this.layer = best[0];
    this.selectedHeads.add(best[1]);
    if (this.positionView?.initialSpot) this.selectedTokens[this.positionView.initialSpot[0]] = this.positionView.initialSpot[1];
    this.layerSelect = h("select", { "aria-label": t("layers"), change: () => this.showLayer(Number(this.layerSelect.value)) },
      ...layers.map(({ name }, k) => h("option", { value: k }, [t("view-layer", this.numberOf(k)), name].filter(Boolean).join(" · "))));
    this.orderSelect = h("select", { "aria-label": t("view-order"), change: () => this.drawAll() }, h("option", { value: "" }, t("view-by-layer")),
      lead && h("option", { value: lead, selected: true }, t(`looks-${lead}`)),
      ...(["information", ...PATTERNS] as const).filter((measure) => this.everyHead().some((head) => this.measureOf(...head, measure) >= 0))
        .map((measure) => h("option", { value: measure }, t(`looks-${measure}`))));
    this.thumbnails = layers.map(({ heads }, l) => heads.map((_, k) => this.createThumbnail(l, k)));
    const clear = new Set(this.everyHead().map(([l, k]) => mainPattern(layers[l]!, k)).filter(([pattern, share]) => isClear(pattern, share)).map(([pattern]) => pattern));
    this.legend.append(...PATTERNS.filter((pattern) => clear.has(pattern)).map((pattern) => h("span", {}, h("b", {}, SIGNS[pattern]), ` ${t(`looks-${pattern}`)}`)));
    this.hasNoPatterns = ![...clear].some((pattern) => pattern !== "evenly");
    this.pickers = ([0, 1] as const).map((side) => this.createPicker(side));
    const saving = (["svg", "png", "pdf", "csv"] as const).map((kind) => createButton(kind === "csv" ? t("save-table") : kind.toUpperCase(), () => this.save(kind)));
    this.headsCard = h("article", { class: "card" },
      h("div", { class: "titled" }, h("h2", {}, t("view-heads")), createMenu(t("save"), ...saving)), this.headline, lead && this.createSwatches(), h("p", { class: "help" }, t(this.positionView ? (this.positionView.hasImages ? "position-help" : "position-times-help") : "view-heads-help")),
      h("div", { class: "choices" }, this.layerSelect, !this.positionView && [...queries, ...keys].some(([, special]) => special) && h("label", {}, this.specialBox, " ", t("view-special")),
        !this.positionView && view.kind !== "cross" && queries.length === keys.length && h("label", {}, this.meanBox, " ", t("view-mean"))),
      this.chipGroup, this.readout, (this.positionView ?? this.columns).element);
    const modelCard = h("article", { class: "card" }, h("h2", {}, t("view-model")), h("p", { class: "help" }, t(this.positionView ? "position-model-help" : lead ? "view-lead-help" : "view-model-help")),
      h("div", { class: "choices" }, h("label", {}, `${t("view-order")} `, this.orderSelect)), lead && this.createSwatches(), this.legend, h("div", { class: "wide", tabindex: 0 }, this.grid));
    const pairCard = h("article", { class: "card" }, h("h2", {}, t("view-pair")), h("p", { class: "help" }, t(this.positionView ? "position-pair-help" : "view-pair-help")),
      h("div", { class: "choices" }, ...this.pickers.map((input, side) => h("label", {}, t(side ? "view-key" : "view-query"), " ", input, " ", h("b", { dir: "auto" })))), this.pairs);
    this.elements = [this.headsCard, modelCard, pairCard];
    this.drawTokens();
    this.drawHeads();
    this.drawAll();
    void this.drawPair();
    if (this.positionView) whenNear(this.grid, () => {
      this.isNear = true;
      void this.drawMaps();
    });
  }

  private everyHead(): (readonly [layer: number, head: number])[] {
    return this.view.layers.flatMap(({ heads }, l) => heads.map((_, k) => [l, k] as const));
  }

  /** A legend of the colours of positive and negative values. */
  private createSwatches(): HTMLElement {
    return h("p", { class: "legend" }, ...([1, -1] as const).map((sign) => {
      const swatch = h("b", { class: "swatch" });
      swatch.style.backgroundColor = signColour(sign);
      return h("span", {}, swatch, ` ${t(this.signed ? (sign > 0 ? "view-increase" : "view-decrease") : sign > 0 ? "view-positive-effect" : "view-negative-effect")}`);
    }));
  }

  /** The measure that ranks heads; null if unknown for this head. */
  private leadValue(layer: number, k: number): number | null {
    const { lead, layers } = this.view;
    return lead ? layers[layer]!.shares[lead]?.[k] ?? null : null;
  }

  private leadText(value: number | null): string {
    return value === null ? "–" : this.signed ? number(value) : signed(value);
  }

  private measureOf(layer: number, k: number, name: Pattern | "information"): number {
    return this.view.layers[layer]!.shares[name]?.[k] ?? -1;
  }

  /** The rank of a head without a measure: heads that depend on the content of tokens precede positional heads. */
  private rankValue(layer: number, k: number): number {
    if (this.view.lead) return Math.abs(this.leadValue(layer, k) ?? 0);
    const [pattern, share] = mainPattern(this.view.layers[layer]!, k);
    const information = this.measureOf(layer, k, "information") * share;
    return pattern === "evenly" ? information / 2 : isClear(pattern, share) && (pattern === "same" || pattern === "induction") ? 1 + information : information;
  }

  private numberOf(layer: number): number {
    const number = this.view.layers[layer]!.number;
    return number < 0 ? layer : number;
  }

  /** The known weights of each query, the largest first. */
  private edgesOf(k: number): Edge[][] {
    const name = `${this.layer} ${k} ${this.meanBox.checked}`;
    const cached = this.edgeCache.get(name);
    if (cached) return cached;
    const { queries } = this.view;
    const { keys, weights, top } = this.data[this.layer]!;
    const rows = queries.map((_, i) => {
      const row: Edge[] = [];
      const start = (k * queries.length + i) * top;
      for (let index = start; index < start + top && weights[index] !== NONE; index++) row.push([keys[index]!, this.values[weights[index]!]!]);
      return row;
    });
    if (!this.meanBox.checked) return this.edgeCache.set(name, rows).get(name)!;
    const bothDirections = rows.map(() => new Map<number, number>());
    rows.forEach((row, i) => row.forEach(([j, weight]) => {
      bothDirections[i]!.set(j, (bothDirections[i]!.get(j) ?? 0) + weight / 2);
      bothDirections[j]?.set(i, (bothDirections[j].get(i) ?? 0) + weight / 2);
    }));
    return this.edgeCache.set(name, bothDirections.map((row) => [...row].sort(byMagnitude))).get(name)!;
  }

  private drawTokens(): void {
    this.columns.show(this.specialBox.checked, this.selectedTokens);
  }

  private showLayer(layer: number, heads: Iterable<number> = this.selectedHeads): void {
    this.layer = layer;
    const validHeads = [...heads].filter((k) => k < this.view.layers[layer]!.heads.length);
    this.selectedHeads.clear();
    for (const k of validHeads.length ? validHeads : [0]) this.selectedHeads.add(k);
    this.drawHeads();
  }

  private createChip(head: number, k: number, count: number): HTMLButtonElement {
    const [pattern, share] = mainPattern(this.view.layers[this.layer]!, k);
    const leadValue = this.leadValue(this.layer, k);
    const chip = createButton(leadValue !== null ? `${head} · ${this.leadText(leadValue)}` : isClear(pattern, share) ? `${head} · ${t(`looks-${pattern}`)} ${number(share)}` : String(head), () => {
      if (!this.selectsSeveral) this.selectedHeads.clear();
      if (!this.selectedHeads.delete(k)) this.selectedHeads.add(k);
      this.drawHeads();
    });
    chip.className = "chip";
    chip.style.setProperty("--chip", this.signed ? "var(--accent)" : leadValue !== null ? signColour(leadValue) : headColour(k, count));
    return chip;
  }

  private drawHeads(): void {
    const { heads } = this.view.layers[this.layer]!;
    const chips = (this.chips[this.layer] ??= heads.map((head, k) => this.createChip(head, k, heads.length)));
    chips.forEach((chip, k) => setPressed(chip, this.selectedHeads.has(k)));
    setPressed(this.severalHeads, this.selectsSeveral);
    setPressed(this.allHeads, this.selectedHeads.size === heads.length && heads.length > 1);
    if (chips[0] !== this.chipGroup.firstChild) this.chipGroup.replaceChildren(...chips, ...(heads.length > 1 ? [this.severalHeads, this.allHeads] : []));
    this.layerSelect.value = String(this.layer);
    this.headline.textContent = this.patternSentence();
    this.drawLines();
  }

  /** A sentence about the only selected head; "" for several heads. */
  private patternSentence(): string {
    if (this.selectedHeads.size !== 1) return "";
    const layer = this.view.layers[this.layer]!;
    const [k] = this.selectedHeads;
    const [pattern, share] = mainPattern(layer, k!);
    const [name, leadValue, { lead }] = [[this.numberOf(this.layer), layer.heads[k!]!] as const, this.leadValue(this.layer, k!), this.view];
    if (lead === "change") return leadValue === null ? "" : t("view-change", ...name, this.leadText(leadValue));
    const description = share < 0 || (this.hasNoPatterns && this.positionView) ? "" : this.hasNoPatterns ? t("view-no-patterns") : t(isClear(pattern, share) ? "view-pattern" : "view-unclear", ...name, t(`looks-${pattern}`), number(share));
    return lead && leadValue !== null ? `${description} ${t(`view-${lead}`, ...name, signed(leadValue))}` : description;
  }

  /** The largest weights of a token in the selected heads: the keys of a query, or the queries of a key. */
  private spotText([side, token]: Spot): string {
    const weights = new Map<number, number>();
    for (const k of this.selectedHeads) this.edgesOf(k).forEach((row, i) => row.forEach(([j, weight]) => {
      const [end, otherEnd] = side ? [j, i] : [i, j];
      if (end === token && Math.abs(weight) > Math.abs(weights.get(otherEnd) ?? 0)) weights.set(otherEnd, weight);
    }));
    const name = (axis: Side, token: number): string => `${isolateDirection(tokenText((axis ? this.view.keys : this.view.queries)[token]!))} (${this.position(axis, token)})`;
    const largest = [...weights].sort(byMagnitude).slice(0, 5).map(([token, weight]) => `${name(side ? 0 : 1, token)} ${this.percent(weight)}`);
    return t(side ? "attended-by" : "attends-most-to", name(side, token), largest.join(", ") || "—");
  }

  private percent(weight: number): string {
    return `${this.signed && weight > 0 ? "+" : ""}${percent(weight, 1)}`;
  }

  /** The selected token, whose lines are visible while the pointer is on no token. */
  private get selectedSpot(): Spot | null {
    const side = this.selectedTokens[this.lastSide] === null ? (1 - this.lastSide) as Side : this.lastSide;
    const token = this.selectedTokens[side];
    return token === null ? null : [side, token];
  }

  /** The lines of a head, or of one of its tokens: the rows of both ends, and the weight. */
  private *linesOf(k: number, spot: Spot | null): Generator<readonly [queryRow: number, keyRow: number, weight: number]> {
    const [rows, columns] = this.columns.rowOf;
    for (const [i, row] of this.edgesOf(k).entries()) {
      if (rows[i]! < 0 || (spot?.[0] === 0 && spot[1] !== i)) continue;
      for (const [j, weight] of row) {
        if (Math.abs(weight) < (spot ? MIN_SPOT_WEIGHT : MIN_LINE_WEIGHT)) break;
        if (columns[j]! >= 0 && !(spot?.[0] === 1 && spot[1] !== j)) yield [rows[i]!, columns[j]!, weight];
      }
    }
  }

  /** The colour of a line, by the weight's sign, the head's effect, or the head. */
  private lineColour(k: number, weight: number): string {
    const leadValue = this.leadValue(this.layer, k);
    return this.signed ? signColour(weight) : leadValue !== null ? signColour(leadValue) : headColour(k, this.view.layers[this.layer]!.heads.length);
  }

  /** The opacity of a line. Changes of weights are small, so their opacity is higher. */
  private lineOpacity(weight: number): number {
    return this.signed ? Math.sqrt(Math.abs(weight)) : weight;
  }

  private drawLines(hoveredSpot: Spot | null = null): void {
    const spot = hoveredSpot ?? this.selectedSpot;
    if (this.positionView) {
      this.readout.textContent = this.positionView.show(this.layer, [...this.selectedHeads].sort((a, b) => a - b), hoveredSpot, this.selectedSpot);
      return;
    }
    this.readout.textContent = spot ? this.spotText(spot) : "";
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
    const pathsByColour = new Map<string, Path2D[]>();
    for (const k of this.selectedHeads) {
      for (const [row, column, weight] of this.linesOf(k, spot)) {
        const [queryY, keyY] = [y(row), y(column)];
        if (Math.max(queryY, keyY) < 0 || Math.min(queryY, keyY) > height || (!spot && (queryY < 0 || queryY > height))) continue;
        const colour = this.lineColour(k, weight);
        if (!pathsByColour.has(colour)) pathsByColour.set(colour, Array.from({ length: SHADES }, () => new Path2D()));
        const path = pathsByColour.get(colour)![Math.min(SHADES - 1, Math.floor(this.lineOpacity(weight) * SHADES))]!;
        path.moveTo(0, queryY);
        path.lineTo(width, keyY);
      }
    }
    for (const [colour, shades] of pathsByColour) {
      brush.strokeStyle = colour;
      shades.forEach((path, shade) => {
        brush.globalAlpha = (shade + 0.6) / SHADES;
        brush.stroke(path);
      });
    }
  }

  /** Saves a picture of the selected heads, or a table of their weights. */
  private save(kind: "svg" | "png" | "pdf" | "csv"): void {
    const { queries, keys, layers } = this.view;
    const layer = layers[this.layer]!;
    const name = `layer-${this.numberOf(this.layer)}-head-${[...this.selectedHeads].map((k) => layer.heads[k]).join("-")}${this.positionView?.isWithoutSinks ? "-without-sinks" : ""}`;
    if (kind === "csv") {
      const quote = (text: string): string => `"${text.replaceAll('"', '""')}"`;
      const weights = this.positionView ? [...this.positionView.table()] : [...this.selectedHeads].flatMap((k) => this.edgesOf(k).flatMap((row, i) => row.map(([j, weight]) => [k, i, j, weight] as const)));
      const rows = weights.map(([k, i, j, weight]) =>
        [this.numberOf(this.layer), layer.heads[k], i === null ? "" : this.position(0, i), this.position(1, j), weight.toPrecision(3), quote(i === null ? "mean" : queries[i]![0]), quote(keys[j]![0])].join(","));
      saveText(["layer,head,query,key,weight,query_token,key_token", ...rows].join("\n"), `${name}.csv`, "text/csv");
      return;
    }
    const drawing = this.positionView?.createDrawing(t("view-head", this.numberOf(this.layer), [...this.selectedHeads].map((k) => layer.heads[k]).join(", "))) ?? this.createDrawing();
    drawing.classList.add("unseen");
    this.headsCard.append(drawing);
    if (kind === "svg") saveSvg(drawing, name);
    else if (kind === "pdf") printDrawing(drawing);
    else void savePng(drawing, name);
    drawing.remove();
  }

  /** The picture to save: all tokens with their lines. */
  private createDrawing(): SVGSVGElement {
    const { queries, keys } = this.view;
    const [queryRows, keyRows] = this.columns.rows;
    const height = Math.max(queryRows.length, keyRows.length) * ROW + 8;
    const createLabel = (token: Token, row: number, x: number, anchor: string): SVGElement =>
      s("text", { x, y: row * ROW + ROW * 0.7, "text-anchor": anchor, "font-size": 13, "font-family": "sans-serif", fill: "currentColor" }, tokenText(token));
    return s("svg", { viewBox: `0 0 ${DRAWING_WIDTH} ${height}` },
      ...[...this.selectedHeads].flatMap((k) => [...this.linesOf(k, this.selectedSpot)].map(([row, column, weight]) => s("line", {
        x1: DRAWING_WIDTH * 0.36, x2: DRAWING_WIDTH * 0.64, y1: row * ROW + ROW / 2, y2: column * ROW + ROW / 2, stroke: this.lineColour(k, weight), "stroke-width": 1.6, "stroke-opacity": this.lineOpacity(weight).toFixed(3),
      }))),
      ...queryRows.map((i, row) => createLabel(queries[i]!, row, DRAWING_WIDTH * 0.35, "end")), ...keyRows.map((j, row) => createLabel(keys[j]!, row, DRAWING_WIDTH * 0.65, "start")));
  }

  private deselect(): void {
    this.selectedTokens.fill(null);
    this.drawTokens();
    void this.drawPair();
    void this.drawMaps();
  }

  private select(side: Side, token: number | null): void {
    [this.selectedTokens[side], this.lastSide] = [token, side];
    const listed = token !== null && !this.positionView;
    if (listed && this.columns.rowOf[side][token]! < 0) this.specialBox.checked = true;
    this.drawTokens();
    if (listed) this.columns.reveal(this.columns.rowOf[side][token]!);
    void this.drawPair();
    void this.drawMaps();
  }

  /** A thumbnail of a head, in black. The style sheet inverts it on a dark page. */
  private createThumbnail(layer: number, k: number): HTMLButtonElement {
    const { cells: [rows, columns], heads, map } = this.data[layer]!;
    const [pattern, share] = mainPattern(this.view.layers[layer]!, k);
    const [leadValue, { lead }] = [this.leadValue(layer, k), this.view];
    const label = [t("view-head", this.numberOf(layer), heads[k]!), share >= 0 && `${t(`looks-${pattern}`)} ${number(share)}`, lead && leadValue !== null && `${t(`looks-${lead}`)} ${this.leadText(leadValue)}`].filter(Boolean).join(" · ");
    const canvas = h("canvas", { width: columns, height: rows, class: this.signed && "signed" });
    const image = this.positionView ? null : new ImageData(columns, rows);
    for (let cell = 0; image && cell < rows * columns; cell++) {
      const weight = this.values[map[k * rows * columns + cell]!]!;
      if (this.signed) image.data.set(TINTS[weight < 0 ? 1 : 0], 4 * cell);
      image.data[4 * cell + 3] = 255 * Math.sqrt(Math.abs(weight));
    }
    if (image) canvas.getContext("2d")!.putImageData(image, 0, 0);
    return h("button", { type: "button", class: "thumb", title: label, "aria-label": label, click: () => {
      this.selectsSeveral = false;
      this.showLayer(layer, [k]);
      this.headsCard.scrollIntoView({ behavior: "smooth", block: "start" });
    } }, canvas, h("span"));
  }

  /** Draws the thumbnails of the selected position, one layer at a time. */
  private async drawMaps(): Promise<void> {
    const run = ++this.run;
    if (!this.positionView || !this.isNear) return;
    for (const [l, layerThumbnails] of this.thumbnails.entries()) {
      await this.positionView.unpack(l);
      if (run !== this.run) return;
      layerThumbnails.forEach((thumbnail, k) => thumbnail.firstChild!.replaceWith(this.positionView!.drawThumbnail(l, k)));
      await new Promise((resolve) => setTimeout(resolve)); // lets the page react to the reader
    }
  }

  /** Shows the thumbnails of all heads, by layer or in the selected order. */
  private drawAll(): void {
    const { layers, lead } = this.view;
    const order = this.orderSelect.value as Pattern | "information" | Lead | "";
    const heads = this.everyHead();
    const sizeOf = (l: number, k: number): number => (order === lead ? this.rankValue(l, k) : this.measureOf(l, k, order as Pattern));
    if (order) heads.sort((a, b) => sizeOf(...b) - sizeOf(...a));
    const maxRankValue = Math.max(...heads.map((head) => this.rankValue(...head))) || 1;
    for (const [l, k] of heads) {
      const [pattern, share] = mainPattern(layers[l]!, k);
      const leadValue = this.leadValue(l, k);
      const value = order === lead ? this.leadText(leadValue) : number(Math.max(0, sizeOf(l, k)));
      const [strength, caption] = order ? [sizeOf(l, k), `${this.numberOf(l)}·${layers[l]!.heads[k]}: ${value}`]
        : !isClear(pattern, share) ? [0, String(layers[l]!.heads[k])] : [share, `${layers[l]!.heads[k]} ${SIGNS[pattern]}`];
      const thumbnail = this.thumbnails[l]![k]!;
      thumbnail.lastElementChild!.textContent = caption;
      thumbnail.setAttribute("aria-label", order ? `${thumbnail.title} · ${caption}` : thumbnail.title);
      thumbnail.style.setProperty("--share", String(Math.max(0, lead ? this.rankValue(l, k) / maxRankValue : strength)));
      if (lead && !this.signed) thumbnail.style.setProperty("--bar", signColour(leadValue ?? 0));
    }
    this.grid.classList.toggle("tinted", lead !== "" && !this.signed);
    const columnCount = Math.max(...this.thumbnails.map(({ length }) => length));
    this.legend.hidden = order !== "";
    this.grid.classList.toggle("sorted", order !== "");
    this.grid.style.gridTemplateColumns = order ? "" : `max-content repeat(${columnCount}, minmax(1.6rem, ${MAX_THUMBNAIL_SIZE}px))`;
    this.grid.replaceChildren(...(order ? heads.map(([l, k]) => this.thumbnails[l]![k]!) : layers.flatMap(({ name }, l) => [
      h("span", { class: "quiet", title: name }, String(this.numberOf(l))), ...this.thumbnails[l]!, ...Array.from({ length: columnCount - this.thumbnails[l]!.length }, () => h("span")),
    ])));
  }

  /** The weight of a pair in a head, and true if it is only an upper bound. */
  private weight(layer: number, k: number, i: number, j: number): readonly [number, boolean] {
    const { queries, keys: names } = this.view;
    if (this.positionView) return [this.positionView.weight(layer, k, i, j), false];
    const { top, whole, cells: [rows, columns], keys, weights, map } = this.data[layer]!;
    if (whole && rows === queries.length && columns === names.length) return [this.values[map[(k * rows + i) * columns + j]!]!, false];
    const start = (k * queries.length + i) * top;
    for (let index = start; index < start + top; index++) if (keys[index] === j && weights[index] !== NONE) return [this.values[weights[index]!]!, false];
    const smallest = Math.abs(this.values[weights[start + top - 1]!]!);
    return smallest ? [Math.ceil(smallest * 1000) / 1000, true] : [0, false]; // rounded up to a tenth of a percent, as displayed
  }

  /** The position of a query or key in the sequence. */
  private position(side: Side, token: number): number {
    return this.view.positions?.[side][token] ?? token;
  }

  private createPicker(side: Side): HTMLInputElement {
    const positions = Array.from((side ? this.view.keys : this.view.queries), (_, token) => this.position(side, token));
    const [minimum, maximum] = [Math.min(...positions), Math.max(...positions)];
    const input = h("input", { type: "number", min: minimum, max: maximum, placeholder: `${minimum}–${maximum}`, change: () => {
      const position = Math.max(minimum, Math.min(Math.round(input.valueAsNumber), maximum));
      const token = positions.indexOf(position); // −1 if the query was not recorded
      this.select(side, token < 0 ? null : token);
    } });
    return input;
  }

  private async drawPair(): Promise<void> {
    const { queries, keys, layers } = this.view;
    const [query, key] = this.selectedTokens;
    this.pickers.forEach((input, side) => {
      const token = this.selectedTokens[side]!;
      input.value = token === null ? "" : String(this.position(side as Side, token));
      input.nextElementSibling!.textContent = token === null ? "" : tokenText((side ? keys : queries)[token]!);
    });
    this.pairs.replaceChildren();
    this.pairs.hidden = query === null || key === null;
    if (query === null || key === null) return;
    if (this.positionView) await Promise.all(layers.map((_, layer) => this.positionView!.unpack(layer)));
    if (query !== this.selectedTokens[0] || key !== this.selectedTokens[1]) return;
    const widest = layers.reduce((longest, { heads }) => (heads.length > longest.length ? heads : longest), layers[0]!.heads);
    this.pairs.replaceChildren(h("table", { class: "pairs" },
      h("thead", {}, h("tr", {}, h("th"), ...widest.map((head) => h("th", { scope: "col" }, String(head))))),
      h("tbody", {}, ...layers.map(({ name, heads }, l) => h("tr", {}, h("th", { scope: "row", title: name }, String(this.numberOf(l))), ...heads.map((_, k) => {
        const [weight, isBound] = this.weight(l, k, query, key);
        const cell = h("td", {}, isBound ? `< ${percent(weight, 1)}` : this.percent(weight));
        if (!isBound) cell.style.setProperty("--weight", Math.abs(weight).toFixed(3));
        if (this.signed) cell.style.setProperty("--glow", `color-mix(in srgb, ${signColour(weight)} 60%, transparent)`);
        return cell;
      }))))));
  }
}
