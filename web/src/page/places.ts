/** Attention on images, between words, and along times: the map of a position of the sequence on the others. */
import { drawMap, grouped, Patches, ratioOf, type Shown } from "../pictures/patches";
import type { Listeners as Pointing, Look } from "../pictures/placed";
import { band, colourOf, css, filled, TINTS, type Scale } from "../pictures/scale";
import { Series } from "../pictures/series";
import { written, type Token } from "./columns";
import { h, isolated, s } from "./dom";
import type { View } from "./recorded";
import { percent, t, type Phrase } from "./strings";
import { Axis, countOf, Weights, type Grid, type Part, type Side, type Spot } from "./weights";

const OUTLINED = 0.05; // share of the positions with an outline
const FLAT = 3; // times the uniform weight: maps whose largest weight is less stay dim
const PEAKS = 0.005; // share of the positions whose weights may be beyond the scale
const FEW = 8; // most words outside parts of a sequence that is an image's, not a text's
const SAID = 5; // most positions in the read-out
const LEGEND = [0, 0.25, 0.5, 0.75, 1]; // shares of the band with a number
const BAND = 48; // steps of the colours in a saved drawing
const WIDE = 720; // of a drawing that is saved
const THUMB = 64; // most points of a small map
const ORIGINAL = 11; // rem of the most height of an original

interface Listeners {
  /** Called for the spot that is pointed at. */
  readonly look: (spot: Spot | null) => void;
  readonly choose: (spot: Spot | null) => void;
  /** Called when weights of a layer arrive, or the way they are drawn changes. */
  readonly changed: () => void;
  /** Called when small maps change. */
  readonly redraw: () => void;
}

/** A picture with the axes whose positions it has. */
interface Pictured {
  readonly sides: readonly Side[];
  readonly picture: Patches | Series;
}

/** A word with the axes that it is on. */
interface Word {
  readonly sides: readonly Side[];
  readonly position: number;
  readonly button: HTMLButtonElement;
}

export class Places {
  readonly element: HTMLElement;
  readonly hasImages: boolean;
  /** The spot that is kept first: the class token, the last word or time; null: the mean of all queries. */
  readonly first: Spot | null;
  /** Whether that is a class token, which a model reads after the last layer. */
  readonly startsAtClass: boolean;
  private readonly tokens: readonly [readonly Token[], readonly Token[]];
  private readonly parts: readonly [readonly Part[], readonly Part[]];
  private readonly signed: boolean;
  /** Whether queries and keys are the same positions. */
  private readonly same: boolean;
  private readonly hasSeveral: boolean; // images
  private readonly axes: readonly [Axis, Axis];
  private readonly layers: Weights[] = [];
  private readonly unpacking: Promise<void>[] = [];
  private readonly pictures: Pictured[] = [];
  private readonly words: Word[] = [];
  private readonly directions: [words: Side, parts: Side] = [0, 0];
  private readonly mean = h("button", { type: "button", click: () => this.listeners.choose(null) }, t("place-mean"));
  private readonly opacity = this.slider("place-opacity", 0, 1, 0.85);
  private readonly contrast = this.slider("place-contrast", -2, 2, 0);
  private readonly outline = this.check("place-outline", true);
  private readonly hide = this.check("place-hide", false);
  private readonly legend = h("div", { class: "band", role: "img" });
  private readonly share = h("p", { class: "quiet" });
  private readonly state: { layer: number; heads: readonly number[]; kept: Spot | null; scale: Scale | null } = { layer: 0, heads: [], kept: null, scale: null };

  constructor(private readonly view: View, private readonly images: readonly Shown[], private readonly listeners: Listeners) {
    const { queries, keys, kind, lead } = view;
    this.tokens = [queries, keys];
    this.parts = view.parts!;
    const block = view.layers[0]!.maps!.block;
    this.axes = [new Axis(queries.length, this.parts[0], block), new Axis(keys.length, this.parts[1], block)];
    this.signed = lead === "change";
    const grids = this.parts.flat().filter((part): part is Grid => part.kind === "grid");
    [this.hasImages, this.hasSeveral] = [grids.length > 0, new Set(grids.map(({ number }) => number)).size > 1];
    this.same = kind !== "cross" && queries.length === keys.length && JSON.stringify(this.parts[0]) === JSON.stringify(this.parts[1]);
    const { outside } = this.axes[0];
    const last = outside.filter((position) => !queries[position]![1]).at(-1) ?? outside.at(-1);
    const isText = outside.length > (kind === "cross" ? 0 : FEW);
    this.first = isText || this.parts[0].some((part) => part.kind === "times") ? [0, queries.length - 1] : outside.length ? [0, outside[0]!] : null;
    if (isText) {
      this.first = [0, last!];
      this.directions[1] = 1;
    }
    this.startsAtClass = !isText && this.same && !!this.first && this.isWord(this.first[1], 0);
    const rows = this.same ? [this.row([0, 1])] : [this.row([0]), this.row([1])];
    if (this.same) this.draw([0, 1]);
    else for (const side of [1, 0] as const) this.draw([side]);
    const direct = (label: Phrase, which: readonly (0 | 1)[]): HTMLElement => {
      const choices = ([0, 1] as const).map((side) => h("button", { type: "button", "aria-pressed": String(this.directions[which[0]!] === side), click: () => {
        for (const each of which) this.directions[each] = side;
        choices.forEach((choice, k) => choice.setAttribute("aria-pressed", String(k === side)));
        const { kept } = this.state;
        if (kept && which.includes(this.isWord(kept[1], kept[0]) ? 0 : 1)) listeners.choose([side, kept[1]]);
      } }, t(side ? "place-by" : "place-at")));
      return h("div", { class: "choices", role: "group", "aria-label": t(label) }, h("span", { class: "quiet" }, t(label)), ...choices);
    };
    const directions = !this.same ? [] : isText ? [direct("place-words", [0]), direct("place-patches", [1])] : [direct("place-both", [0, 1])];
    this.element = h("div", { class: "places" },
      h("div", { class: "shown" }, ...this.pictures.map(({ picture }) => picture.element)),
      h("div", { class: "aside" }, ...rows, ...directions, h("div", { class: "strength" }, this.hasImages && this.legend, this.share),
        this.hasImages && h("div", { class: "controls" }, this.opacity.label, this.contrast.label),
        h("div", { class: "choices" }, this.hasImages && this.outline.label, !this.signed && this.hide.label),
        ...this.originals()));
  }

  // --- making

  private slider(label: Phrase, min: number, max: number, value: number): { readonly label: HTMLElement; readonly input: HTMLInputElement } {
    const input = h("input", { type: "range", min, max, step: 0.05, value, input: () => this.listeners.changed(), change: () => this.listeners.redraw() });
    return { label: h("label", {}, t(label), input), input };
  }

  private check(label: Phrase, checked: boolean): { readonly label: HTMLElement; readonly input: HTMLInputElement } {
    const input = h("input", { type: "checkbox", checked, change: () => {
      this.listeners.changed();
      this.listeners.redraw();
    } });
    return { label: h("label", {}, input, ` ${t(label)}`), input };
  }

  private partAt(side: Side, position: number): Part | undefined {
    return this.parts[side].find((part) => position >= part.start && position < part.start + countOf(part));
  }

  private isWord(position: number, side: Side): boolean {
    return this.axes[side].rank[position]! >= 0;
  }

  /** The words of an axis, with a sign for each part between them. */
  private row(sides: readonly Side[]): HTMLElement {
    const side = sides[0]!;
    const label = t(sides.length > 1 ? "place-tokens" : side ? "keys" : "queries");
    const children: HTMLElement[] = [];
    const own: HTMLButtonElement[] = [];
    for (let position = 0; position < this.tokens[side].length; position++) {
      const part = this.partAt(side, position);
      if (part) {
        const sign = part.kind === "times" ? "∿" : part.above ? "" : `▦${this.hasSeveral ? part.number + 1 : ""}`;
        if (sign) children.push(h("span", { class: "quiet", "aria-hidden": "true" }, sign));
        position += countOf(part) - 1;
        continue;
      }
      const token = this.tokens[side][position]!;
      const spot = (): Spot => [sides.length > 1 ? this.directions[0] : side, position];
      const button: HTMLButtonElement = h("button", {
        type: "button", dir: "auto", tabindex: own.length ? -1 : 0, class: token[2] && "continues",
        pointerenter: () => this.listeners.look(spot()), pointerleave: () => this.listeners.look(null), blur: () => this.listeners.look(null),
        focus: () => button.matches(":focus-visible") && this.listeners.look(spot()), click: () => this.listeners.choose(spot()),
      }, written(token));
      own.push(button);
      children.push(button);
      this.words.push({ sides, position, button });
    }
    const move = (event: KeyboardEvent): void => {
      const at = own.indexOf(event.target as HTMLButtonElement);
      const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: own.length - 1 }[event.key];
      if (at < 0 || to === undefined || !own[to]) return;
      own.forEach((each, k) => (each.tabIndex = k === to ? 0 : -1));
      own[to].focus();
      event.preventDefault();
    };
    const mean = side === 0 && !this.signed && this.mean;
    return h("div", { class: "words", role: "group", "aria-label": label, keydown: move, hidden: !own.length && !mean }, sides.length > 1 ? null : h("h3", {}, label), mean, ...children);
  }

  /** Makes the pictures of an axis, or of both. */
  private draw(sides: readonly Side[]): void {
    const side = sides[0]!;
    const make = (part: Part): readonly [string, Pointing] => {
      const spot = (position: number): Spot => [sides.length > 1 ? this.directions[1] : side, position];
      const label = [part.kind === "grid" ? this.nameOf(part) || t("place-image") : t("place-series"), this.same ? "" : t(side ? "keys" : "queries")].filter(Boolean).join(" · ");
      return [`${label}. ${t("patches-keys")}`, { look: (position) => this.listeners.look(position === null ? null : spot(position)), choose: (position) => this.listeners.choose(spot(position)) }];
    };
    for (const grids of grouped(this.parts[side].filter((part): part is Grid => part.kind === "grid"))) {
      this.pictures.push({ sides, picture: new Patches(this.images[grids[0]!.image] ?? null, grids, ...make(grids[0]!)) });
    }
    for (const part of this.parts[side]) if (part.kind === "times") this.pictures.push({ sides, picture: new Series(part, ...make(part)) });
  }

  /** The photographs of which the model saw a crop, with its frame; or the images without weights. */
  private originals(): HTMLElement[] {
    const used = new Set(this.parts.flat().flatMap((part) => (part.kind === "grid" ? [part.image] : [])));
    return [...used].filter((k) => this.images[k]).map((k) => {
      const image = this.images[k]!;
      const { source, width, height } = image.original ?? image;
      const frame = h("span", { hidden: !image.original });
      if (image.original) {
        const [left, top, right, bottom] = image.original.frame;
        const share = (part: number, all: number): string => `${(100 * part) / all}%`;
        Object.assign(frame.style, { left: share(left, width), top: share(top, height), width: share(right - left, width), height: share(bottom - top, height) });
      }
      const picture = h("div", {}, h("img", { src: source, alt: t(image.original ? "place-original" : "place-plain"), width, height }), frame);
      picture.style.setProperty("--wide", `${ORIGINAL * Math.min(2, width / height)}rem`);
      return h("figure", { class: "original" }, picture, h("figcaption", { class: "quiet" }, t(image.original ? "place-original" : "place-plain")));
    });
  }

  // --- names

  /** The number of a grid's image, if there are several. */
  private nameOf(part: Grid): string {
    return this.hasSeveral ? t("place-number", part.number + 1) : "";
  }

  /** The name of a position in a sentence. */
  name([side, position]: Spot): string {
    const part = this.partAt(side, position);
    if (part?.kind === "times") return t("place-time", written(this.tokens[side][position]!));
    if (part) {
      const k = position - part.start;
      return [this.nameOf(part), t("place-cell", part.above + Math.floor(k / part.columns) + 1, (k % part.columns) + 1)].filter(Boolean).join(", ");
    }
    return isolated(written(this.tokens[side][position]!));
  }

  // --- weights

  /** Unpacks the weights of a layer. */
  ready(layer: number): Promise<void> {
    return (this.unpacking[layer] ??= Weights.of(this.view.layers[layer]!.maps!, this.axes, this.signed).then((weights) => {
      this.layers[layer] = weights;
      if (layer === this.state.layer) this.listeners.changed();
    }));
  }

  /** The mean over heads of the weights of a spot, for each position of the other axis. */
  private valuesOf(layer: number, heads: readonly number[], spot: Spot | null): Float32Array {
    const all = heads.map((head) => this.layers[layer]!.of(head, spot, this.hide.input.checked));
    const [first, ...rest] = all.length ? all : [new Float32Array(this.tokens[spot?.[0] ? 0 : 1].length)];
    return rest.length ? first!.map((value, k) => rest.reduce((sum, each) => sum + each[k]!, value) / all.length) : first!;
  }

  /** The weight of a pair, of a layer that is unpacked. */
  weight(layer: number, head: number, query: number, key: number): number {
    return this.layers[layer]!.of(head, [0, query], false)[key]!;
  }

  private sinksOf(layer: number, heads: readonly number[]): Uint8Array {
    const weights = this.layers[layer]!;
    const [first, ...rest] = heads.map((head) => weights.sinks(head));
    return first ? first.map((is, key) => Number(is || rest.some((each) => each[key]))) : new Uint8Array(this.tokens[1].length);
  }

  /** The sizes of the weights of positions inside or outside of parts, from the smallest to the largest, without sinks. */
  private sizesOf(values: Float32Array, side: Side, inside: boolean, sinks: Uint8Array | null): Float32Array {
    return values.map(Math.abs).filter((_, position) => inside !== this.isWord(position, side) && !sinks?.[position]).sort();
  }

  /** The scale of some weights, for the positions inside or outside of parts: sinks and a few peaks do not darken the rest. */
  private scaleOf(values: Float32Array, side: Side, inside: boolean, sinks: Uint8Array | null): Scale {
    const sizes = this.sizesOf(values, side, inside, side ? sinks : null);
    const full = sizes.at(-1 - Math.floor(PEAKS * sizes.length)) ?? 0;
    return { full: this.signed ? full : Math.max(full, FLAT / values.length), gamma: 2 ** Number(this.contrast.input.value), signed: this.signed };
  }

  /** The smallest weight with an outline, of sorted sizes. The page's codes make nearly equal weights equal: those have none. */
  private outlinedFrom(sizes: Float32Array, least: number): number {
    const [from, next] = [1, 2].map((times) => sizes.at(-Math.ceil(times * OUTLINED * sizes.length)) ?? 0) as [number, number];
    return Math.max(from > next ? from : sizes.find((size) => size > from) ?? Infinity, least);
  }

  // --- showing

  /** Draws the weights of a spot in some heads, and returns them in words. */
  show(layer: number, heads: readonly number[], over: Spot | null, kept: Spot | null): string {
    const spot = over ?? kept;
    Object.assign(this.state, { layer, heads, kept });
    const weights = this.layers[layer];
    if (!weights) {
      void this.ready(layer);
      return t("loading-weights");
    }
    const values = this.valuesOf(layer, heads, spot);
    const side: Side = spot?.[0] ? 0 : 1; // of the values
    // Where no picture has the values, as of words that look at a region, pictures stay as they were.
    const base = this.pictures.some(({ sides }) => sides.includes(side)) ? spot : kept?.[0] ? null : kept;
    const shown = base === spot ? values : this.valuesOf(layer, heads, base);
    const shownSide: Side = base?.[0] ? 0 : 1;
    const sinks = this.signed ? null : this.sinksOf(layer, heads);
    const scale = this.scaleOf(shown, shownSide, true, sinks);
    const inside = this.sizesOf(shown, shownSide, true, null);
    const look: Omit<Look, "values" | "mark"> = {
      scale, opacity: Number(this.opacity.input.value), hidden: this.hide.input.checked && shownSide === 1, sinks: shownSide === 1 ? sinks : null,
      outlined: this.outline.input.checked ? this.outlinedFrom(inside, this.signed || shownSide === 0 ? Number.MIN_VALUE : 1 / shown.length) : Infinity,
    };
    for (const { sides, picture } of this.pictures) {
      picture.show({ ...look, values: sides.includes(shownSide) ? shown : null, mark: spot && sides.includes(spot[0]) ? spot[1] : null });
    }
    this.tint(values, side, spot, kept, sinks);
    this.state.scale = scale;
    this.drawLegend(scale, shown.length, (inside.at(-1) ?? 0) > scale.full);
    const [onWords, onParts] = [false, true].map((inside) => values.reduce((sum, value, position) => sum + (inside !== this.isWord(position, side) ? value : 0), 0)) as [number, number];
    const sum = this.view.layers[layer]!.whole ? onWords + onParts : 1; // codes are rounded
    this.share.textContent = [
      side === 1 && !this.signed && onWords && this.parts[1].length ? t("place-share", percent(onParts / sum), percent(onWords / sum)) : "",
      look.hidden && sinks?.some(Boolean) ? t("place-hidden", sinks.reduce((sum, is) => sum + is, 0)) : sinks?.some(Boolean) ? t("place-sinks") : "",
      this.view.layers[layer]!.whole ? "" : t("place-largest"),
      spot && weights.isPooled(spot) ? t("place-pooled", weights.block) : "",
    ].filter(Boolean).join(" ");
    return this.spotText(values, side, spot);
  }

  private tint(values: Float32Array, side: Side, spot: Spot | null, kept: Spot | null, sinks: Uint8Array | null): void {
    const { full, gamma } = this.scaleOf(values, side, false, sinks);
    this.mean.setAttribute("aria-pressed", String(!kept));
    for (const { sides, position, button } of this.words) {
      const has = sides.includes(side);
      const value = has ? values[position]! : 0;
      button.style.setProperty("--weight", (Math.min(1, Math.abs(value) / full) ** gamma).toFixed(3));
      button.classList.toggle("below", value < 0);
      button.classList.toggle("here", !!spot && sides.includes(spot[0]) && spot[1] === position);
      button.setAttribute("aria-pressed", String(!!kept && sides.includes(kept[0]) && kept[1] === position));
      button.classList.toggle("sink", sides.includes(1) && !!sinks?.[position]);
      button.title = has ? `${button.textContent}: ${this.percent(value)}` : "";
    }
  }

  private drawLegend(scale: Scale, count: number, isOver: boolean): void {
    this.legend.style.setProperty("--band", band(scale));
    const from = scale.signed ? -scale.full : 0;
    const uniform = (1 / count / scale.full) ** scale.gamma;
    const numbers = this.numbersOf(scale).map((text, k) => {
      const label = h("span", {}, `${k === LEGEND.length - 1 && isOver ? "≥ " : ""}${text}`);
      label.style.left = `${100 * LEGEND[k]!}%`;
      return label;
    });
    const mark = h("b", { title: t("place-uniform", percent(1 / count, 2)), hidden: scale.signed }, "▲");
    mark.style.left = `${100 * uniform}%`;
    this.legend.replaceChildren(h("i", {}), ...numbers, mark);
    this.legend.setAttribute("aria-label", t("place-legend", this.percent(from), this.percent(scale.full)));
  }

  /** The weights at the shares of the band that have numbers. */
  private numbersOf({ full, gamma, signed }: Scale): string[] {
    return LEGEND.map((share) => this.percent(signed ? full * (2 * share - 1) : full * share ** (1 / gamma)));
  }

  private percent(weight: number): string {
    const digits = Math.abs(weight) < 0.001 && weight ? 3 : Math.abs(weight) < 0.01 && weight ? 2 : 1;
    return `${this.signed && weight > 0 ? "+" : ""}${percent(weight, digits)}`;
  }

  private spotText(values: Float32Array, side: Side, spot: Spot | null): string {
    const sizes = values.map(Math.abs);
    const [least, largest] = [-SAID, -1].map((rank) => sizes.slice().sort().at(rank) ?? 0) as [number, number];
    const even = largest ? sizes.filter((size) => size === largest).length : 0;
    const most = even > SAID ? t("place-even", even, this.percent(largest)) : [...values.keys()].filter((position) => sizes[position] && sizes[position] >= least).sort((one, other) => sizes[other]! - sizes[one]!).slice(0, SAID)
      .map((position) => `${this.name([side, position])} (${this.percent(values[position]!)})`).join(" · ") || "—";
    return spot ? t(spot[0] ? "place-said-by" : "place-said", this.name(spot), most) : t("place-said-mean", most);
  }

  /** The weights of the kept spot in a head: its map on the pictures, or bars if there is none. The layer must be unpacked. */
  thumb(layer: number, head: number): HTMLCanvasElement {
    const { kept } = this.state;
    const side: Side = kept?.[0] ? 0 : 1;
    const groups = grouped(this.parts[side].filter((part): part is Grid => part.kind === "grid"));
    const values = this.valuesOf(layer, [head], kept);
    const sinks = side && !this.signed ? this.sinksOf(layer, [head]) : null;
    const look = { values, scale: this.scaleOf(values, side, true, sinks), sinks, hidden: this.hide.input.checked };
    const canvas = h("canvas", { class: groups.length ? "mapped" : "bars", width: THUMB * Math.max(1, groups.length), height: THUMB });
    const brush = canvas.getContext("2d")!;
    if (!groups.length) {
      const full = Math.max(...values.map(Math.abs)) || 1;
      values.forEach((value, k) => {
        brush.fillStyle = css([...TINTS[value < 0 ? 1 : 0], 1]);
        const tall = (Math.abs(value) / full) * THUMB;
        brush.fillRect((k * THUMB) / values.length, THUMB - tall, Math.max(0.5, THUMB / values.length), tall);
      });
    }
    brush.imageSmoothingEnabled = false;
    groups.forEach((grids, k) => {
      const image = this.images[grids[0]!.image];
      const [width, height] = image ? [image.width, image.height] : [grids[0]!.columns, grids[0]!.rows];
      const ratio = ratioOf(width, height);
      const [wide, tall] = [THUMB * Math.min(1, ratio), THUMB * Math.min(1, 1 / ratio)];
      const [x, y] = [k * THUMB + (THUMB - wide) / 2, (THUMB - tall) / 2];
      for (const grid of grids) {
        const [left, top, right, bottom] = image ? grid.box : [0, 0, width, height];
        drawMap(brush, grid, look, x + (left / width) * wide, y + (top / height) * tall, ((right - left) / width) * wide, ((bottom - top) / height) * tall);
      }
    });
    return canvas;
  }

  // --- saving

  /** The rows of a table: head, query, key and weight; of the mean of all queries, no query. */
  *table(): Generator<readonly [head: number, query: number | null, key: number, weight: number]> {
    const { layer, heads, kept } = this.state;
    for (const head of heads) {
      for (const [position, weight] of this.valuesOf(layer, [head], kept).entries()) {
        yield kept?.[0] ? [head, position, kept[1], weight] : [head, kept?.[1] ?? null, position, weight];
      }
    }
  }

  get isWithoutSinks(): boolean {
    return this.hide.input.checked;
  }

  /** All pictures below each other, with their scale, as SVG. */
  drawing(head: string): SVGSVGElement {
    const { kept } = this.state;
    const title = [head, kept ? `${this.name(kept)}: ${t(kept[0] ? "place-by" : "place-at")}` : t("place-mean"), this.isWithoutSinks ? t("place-hide") : ""].filter(Boolean).join(" · ");
    const label = (x: number, y: number, text: string, anchor = "start"): SVGElement =>
      s("text", { x, y, "text-anchor": anchor, "font-size": 13, "font-family": "sans-serif", fill: "currentColor" }, text);
    const lines = [title, this.view.note].filter(Boolean);
    let y = 12 + 16 * lines.length;
    const children: Element[] = lines.map((text, k) => label(0, 16 * (k + 1), text));
    for (const { picture } of this.pictures) {
      const [drawn, height] = picture.svg(WIDE);
      drawn.setAttribute("transform", `translate(0 ${y})`);
      children.push(drawn);
      y += height + 12;
    }
    if (this.hasImages) {
      const scale = this.state.scale!;
      const least = scale.signed ? -scale.full : 0;
      children.push(s("rect", { y, width: WIDE, height: 12, fill: "#555" }), ...Array.from({ length: BAND }, (_, k) =>
        s("rect", { x: (k * WIDE) / BAND, y, width: WIDE / BAND, height: 12, ...filled(colourOf(least + ((scale.full - least) * (k + 0.5)) / BAND, scale)) })),
        ...this.numbersOf(scale).map((text, k) => label(LEGEND[k]! * WIDE, y + 28, text, k === 0 ? "start" : k === LEGEND.length - 1 ? "end" : "middle")));
    }
    return s("svg", { viewBox: `0 0 ${WIDE} ${y + 36}` }, ...children);
  }
}
