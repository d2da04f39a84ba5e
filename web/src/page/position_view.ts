/** A view of the attention of one position, drawn on images, words and time series. */
import { drawMap, groupGrids, Patches, ratioOf, type ModelImage } from "../pictures/patches";
import type { Listeners as Pointing, WeightStyle } from "../pictures/position_picture";
import { colourGradient, colourOf, cssColour, fillOf, TINTS, type Scale } from "../pictures/scale";
import { Series } from "../pictures/series";
import { tokenText } from "./columns";
import { h, isolateDirection, s } from "./dom";
import type { Side, Spot, Token, View } from "./view_data";
import { percent, t, type Phrase } from "./strings";
import { Axis, countOf, isGrid, Weights, type Grid, type Layout } from "./weights";

const OUTLINED_SHARE = 0.05; // share of the positions with an outline
const MIN_SCALE = 3; // minimum scale in uniform weights: maps with smaller weights stay dim
const PEAK_SHARE = 0.005; // share of the positions whose weights may exceed the scale
const MAX_IMAGE_WORDS = 8; // a sequence with more words is a text with images
const MAX_LISTED = 5; // positions in the readout
const LEGEND_SHARES = [0, 0.25, 0.5, 0.75, 1]; // shares of the colour band that have a number
const LEGEND_STEPS = 48; // colours of the band in a saved drawing
const DRAWING_WIDTH = 720; // of a saved drawing
const THUMBNAIL_SIZE = 64; // points of a thumbnail's side
const MAX_ORIGINAL_HEIGHT = 11; // in rem

interface Listeners {
  /** Called when the pointer or the focus moves to another spot. */
  readonly hover: (spot: Spot | null) => void;
  readonly select: (spot: Spot | null) => void;
  /** Called when the weights of a layer are unpacked, or a control changes their style. */
  readonly update: () => void;
  /** Called when the thumbnails change. */
  readonly redraw: () => void;
}

/** A picture, and the axes of its positions. */
interface AxisPicture {
  readonly sides: readonly Side[];
  readonly picture: Patches | Series;
}

/** The button of a word, and the axes of its position. */
interface WordButton {
  readonly sides: readonly Side[];
  readonly position: number;
  readonly button: HTMLButtonElement;
}

export class PositionView {
  readonly element: HTMLElement;
  readonly hasImages: boolean;
  /** The spot selected at the start: the class token, the last word or time; null: the mean of all queries. */
  readonly initialSpot: Spot | null;
  /** True if `initialSpot` is a class token, which the model reads after the last layer. */
  readonly startsAtClass: boolean;
  private readonly tokens: readonly [readonly Token[], readonly Token[]];
  private readonly layouts: readonly [readonly Layout[], readonly Layout[]];
  private readonly signed: boolean;
  /** True if queries and keys are the same positions. */
  private readonly sharesAxis: boolean;
  private readonly hasSeveralImages: boolean;
  private readonly axes: readonly [Axis, Axis];
  private readonly layers: Weights[] = [];
  private readonly unpacking: Promise<void>[] = [];
  private readonly pictures: AxisPicture[] = [];
  private readonly words: WordButton[] = [];
  private readonly directions: [words: Side, layouts: Side] = [0, 0];
  private readonly meanButton = h("button", { type: "button", click: () => this.listeners.select(null) }, t("position-mean"));
  private readonly opacity = this.createSlider("position-opacity", 0, 1, 0.85);
  private readonly contrast = this.createSlider("position-contrast", -2, 2, 0);
  private readonly outline = this.createCheckbox("position-outline", true);
  private readonly hideSinks = this.createCheckbox("position-hide-sinks", false);
  private readonly legend = h("div", { class: "band", role: "img" });
  private readonly share = h("p", { class: "quiet" });
  private readonly state: { layer: number; heads: readonly number[]; selectedSpot: Spot | null; scale: Scale | null } = { layer: 0, heads: [], selectedSpot: null, scale: null };

  constructor(private readonly view: View, private readonly images: readonly ModelImage[], private readonly listeners: Listeners) {
    const { queries, keys, kind, lead } = view;
    this.tokens = [queries, keys];
    this.layouts = view.parts!;
    const block = view.layers[0]!.maps!.block;
    this.axes = [new Axis(queries.length, this.layouts[0], block), new Axis(keys.length, this.layouts[1], block)];
    this.signed = lead === "change";
    const grids = this.layouts.flat().filter(isGrid);
    [this.hasImages, this.hasSeveralImages] = [grids.length > 0, new Set(grids.map(({ number }) => number)).size > 1];
    this.sharesAxis = kind !== "cross" && queries.length === keys.length && JSON.stringify(this.layouts[0]) === JSON.stringify(this.layouts[1]);
    const { words } = this.axes[0];
    const lastWord = words.filter((position) => !queries[position]![1]).at(-1) ?? words.at(-1);
    const isText = words.length > (kind === "cross" ? 0 : MAX_IMAGE_WORDS);
    this.initialSpot = isText || this.layouts[0].some((layout) => layout.kind === "times") ? [0, queries.length - 1] : words.length ? [0, words[0]!] : null;
    if (isText) {
      this.initialSpot = [0, lastWord!];
      this.directions[1] = 1;
    }
    this.startsAtClass = !isText && this.sharesAxis && !!this.initialSpot && this.isWord(this.initialSpot[1], 0);
    const rows = this.sharesAxis ? [this.createWordRow([0, 1])] : [this.createWordRow([0]), this.createWordRow([1])];
    if (this.sharesAxis) this.addPictures([0, 1]);
    else for (const side of [1, 0] as const) this.addPictures([side]);
    const createDirectionChoices = (label: Phrase, kinds: readonly (0 | 1)[]): HTMLElement => {
      const choices = ([0, 1] as const).map((side) => h("button", { type: "button", "aria-pressed": String(this.directions[kinds[0]!] === side), click: () => {
        for (const kind of kinds) this.directions[kind] = side;
        choices.forEach((choice, k) => choice.setAttribute("aria-pressed", String(k === side)));
        const { selectedSpot } = this.state;
        if (selectedSpot && kinds.includes(this.isWord(selectedSpot[1], selectedSpot[0]) ? 0 : 1)) listeners.select([side, selectedSpot[1]]);
      } }, t(side ? "position-attended" : "position-attends")));
      return h("div", { class: "choices", role: "group", "aria-label": t(label) }, h("span", { class: "quiet" }, t(label)), ...choices);
    };
    const directions = !this.sharesAxis ? [] : isText ? [createDirectionChoices("position-words", [0]), createDirectionChoices("position-patches", [1])] : [createDirectionChoices("position-direction", [0, 1])];
    this.element = h("div", { class: "places" },
      h("div", { class: "shown" }, ...this.pictures.map(({ picture }) => picture.element)),
      h("div", { class: "aside" }, ...rows, ...directions, h("div", { class: "strength" }, this.hasImages && this.legend, this.share),
        this.hasImages && h("div", { class: "controls" }, this.opacity.label, this.contrast.label),
        h("div", { class: "choices" }, this.hasImages && this.outline.label, !this.signed && this.hideSinks.label),
        ...this.createOriginals()));
  }

  // --- building

  private createSlider(label: Phrase, min: number, max: number, value: number): { readonly label: HTMLElement; readonly input: HTMLInputElement } {
    const input = h("input", { type: "range", min, max, step: 0.05, value, input: () => this.listeners.update(), change: () => this.listeners.redraw() });
    return { label: h("label", {}, t(label), input), input };
  }

  private createCheckbox(label: Phrase, checked: boolean): { readonly label: HTMLElement; readonly input: HTMLInputElement } {
    const input = h("input", { type: "checkbox", checked, change: () => {
      this.listeners.update();
      this.listeners.redraw();
    } });
    return { label: h("label", {}, input, ` ${t(label)}`), input };
  }

  private layoutAt(side: Side, position: number): Layout | undefined {
    return this.layouts[side].find((layout) => position >= layout.start && position < layout.start + countOf(layout));
  }

  private isWord(position: number, side: Side): boolean {
    return this.axes[side].rank[position]! >= 0;
  }

  /** The words of an axis, with a placeholder for each image or time axis between them. */
  private createWordRow(sides: readonly Side[]): HTMLElement {
    const side = sides[0]!;
    const label = t(sides.length > 1 ? "position-tokens" : side ? "keys" : "queries");
    const children: HTMLElement[] = [];
    const buttons: HTMLButtonElement[] = [];
    for (let position = 0; position < this.tokens[side].length; position++) {
      const layout = this.layoutAt(side, position);
      if (layout) {
        const placeholder = layout.kind === "times" ? "∿" : layout.above ? "" : `▦${this.hasSeveralImages ? layout.number + 1 : ""}`;
        if (placeholder) children.push(h("span", { class: "quiet", "aria-hidden": "true" }, placeholder));
        position += countOf(layout) - 1;
        continue;
      }
      const token = this.tokens[side][position]!;
      const spot = (): Spot => [sides.length > 1 ? this.directions[0] : side, position];
      const button: HTMLButtonElement = h("button", {
        type: "button", dir: "auto", tabindex: buttons.length ? -1 : 0, class: token[2] && "continues",
        pointerenter: () => this.listeners.hover(spot()), pointerleave: () => this.listeners.hover(null), blur: () => this.listeners.hover(null),
        focus: () => button.matches(":focus-visible") && this.listeners.hover(spot()), click: () => this.listeners.select(spot()),
      }, tokenText(token));
      buttons.push(button);
      children.push(button);
      this.words.push({ sides, position, button });
    }
    const moveFocus = (event: KeyboardEvent): void => {
      const current = buttons.indexOf(event.target as HTMLButtonElement);
      const target = { ArrowRight: current + 1, ArrowDown: current + 1, ArrowLeft: current - 1, ArrowUp: current - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (current < 0 || target === undefined || !buttons[target]) return;
      buttons.forEach((other, k) => (other.tabIndex = k === target ? 0 : -1));
      buttons[target].focus();
      event.preventDefault();
    };
    const meanButton = side === 0 && !this.signed && this.meanButton;
    return h("div", { class: "words", role: "group", "aria-label": label, keydown: moveFocus, hidden: !buttons.length && !meanButton }, sides.length > 1 ? null : h("h3", {}, label), meanButton, ...children);
  }

  /** Adds the pictures of one axis or of both axes. */
  private addPictures(sides: readonly Side[]): void {
    const side = sides[0]!;
    const labelAndListeners = (layout: Layout): readonly [string, Pointing] => {
      const spot = (position: number): Spot => [sides.length > 1 ? this.directions[1] : side, position];
      const label = [layout.kind === "grid" ? this.imageName(layout) || t("position-image") : t("position-series"), this.sharesAxis ? "" : t(side ? "keys" : "queries")].filter(Boolean).join(" · ");
      return [`${label}. ${t("patches-keys")}`, { hover: (position) => this.listeners.hover(position === null ? null : spot(position)), select: (position) => this.listeners.select(spot(position)) }];
    };
    for (const grids of groupGrids(this.layouts[side].filter(isGrid))) {
      this.pictures.push({ sides, picture: new Patches(this.images[grids[0]!.image] ?? null, grids, ...labelAndListeners(grids[0]!)) });
    }
    for (const layout of this.layouts[side]) if (layout.kind === "times") this.pictures.push({ sides, picture: new Series(layout, ...labelAndListeners(layout)) });
  }

  /** The original images, with a frame around the crop that the model saw; images without a crop have no frame. */
  private createOriginals(): HTMLElement[] {
    const imageNumbers = new Set(this.layouts.flat().filter(isGrid).map(({ image }) => image));
    return [...imageNumbers].filter((k) => this.images[k]).map((k) => {
      const image = this.images[k]!;
      const { source, width, height } = image.original ?? image;
      const frame = h("span", { hidden: !image.original });
      if (image.original) {
        const [left, top, right, bottom] = image.original.frame;
        const share = (length: number, total: number): string => `${(100 * length) / total}%`;
        Object.assign(frame.style, { left: share(left, width), top: share(top, height), width: share(right - left, width), height: share(bottom - top, height) });
      }
      const picture = h("div", {}, h("img", { src: source, alt: t(image.original ? "position-original" : "position-uncropped"), width, height }), frame);
      picture.style.setProperty("--wide", `${MAX_ORIGINAL_HEIGHT * Math.min(2, width / height)}rem`);
      return h("figure", { class: "original" }, picture, h("figcaption", { class: "quiet" }, t(image.original ? "position-original" : "position-uncropped")));
    });
  }

  // --- names

  /** The number of a grid's image, or "" if the page has one image. */
  private imageName(grid: Grid): string {
    return this.hasSeveralImages ? t("position-image-number", grid.number + 1) : "";
  }

  /** The name of a position in a sentence. */
  nameOf([side, position]: Spot): string {
    const layout = this.layoutAt(side, position);
    if (layout?.kind === "times") return t("position-time", tokenText(this.tokens[side][position]!));
    if (layout) {
      const k = position - layout.start;
      return [this.imageName(layout), t("position-cell", layout.above + Math.floor(k / layout.columns) + 1, (k % layout.columns) + 1)].filter(Boolean).join(", ");
    }
    return isolateDirection(tokenText(this.tokens[side][position]!));
  }

  // --- weights

  /** Unpacks the weights of a layer. */
  unpack(layer: number): Promise<void> {
    return (this.unpacking[layer] ??= Weights.unpack(this.view.layers[layer]!.maps!, this.axes, this.signed).then((weights) => {
      this.layers[layer] = weights;
      if (layer === this.state.layer) this.listeners.update();
    }));
  }

  /** Means over heads of a spot's weights, one for each position of the other axis. */
  private meanValues(layer: number, heads: readonly number[], spot: Spot | null): Float32Array {
    const headValues = heads.map((head) => this.layers[layer]!.weightsOf(head, spot, this.hideSinks.input.checked));
    const [firstHead, ...otherHeads] = headValues.length ? headValues : [new Float32Array(this.tokens[spot?.[0] ? 0 : 1].length)];
    return otherHeads.length ? firstHead!.map((value, k) => otherHeads.reduce((sum, headWeights) => sum + headWeights[k]!, value) / headValues.length) : firstHead!;
  }

  /** The weight of a pair. The layer must be unpacked. */
  weight(layer: number, head: number, query: number, key: number): number {
    return this.layers[layer]!.weightsOf(head, [0, query], false)[key]!;
  }

  private sinks(layer: number, heads: readonly number[]): Uint8Array {
    const weights = this.layers[layer]!;
    const [firstHead, ...otherHeads] = heads.map((head) => weights.sinks(head));
    return firstHead ? firstHead.map((isSink, key) => Number(isSink || otherHeads.some((headSinks) => headSinks[key]))) : new Uint8Array(this.tokens[1].length);
  }

  /** Sorted magnitudes of the weights of words, or of positions in layouts, without sinks. */
  private sizesOf(values: Float32Array, side: Side, inLayouts: boolean, sinks: Uint8Array | null): Float32Array {
    return values.map(Math.abs).filter((_, position) => inLayouts !== this.isWord(position, side) && !sinks?.[position]).sort();
  }

  /** The colour scale of words, or of positions in layouts. Sinks and a few peaks may exceed it. */
  private scaleOf(values: Float32Array, side: Side, inLayouts: boolean, sinks: Uint8Array | null): Scale {
    const sizes = this.sizesOf(values, side, inLayouts, side ? sinks : null);
    const peak = sizes.at(-1 - Math.floor(PEAK_SHARE * sizes.length)) ?? 0;
    return { max: this.signed ? peak : Math.max(peak, MIN_SCALE / values.length), gamma: 2 ** Number(this.contrast.input.value), signed: this.signed };
  }

  /** The smallest outlined magnitude. Quantized weights are often equal: equal ones at the limit get no outline. */
  private smallestOutlinedOf(sizes: Float32Array, minimum: number): number {
    const [limit, lower] = [1, 2].map((times) => sizes.at(-Math.ceil(times * OUTLINED_SHARE * sizes.length)) ?? 0) as [number, number];
    return Math.max(limit > lower ? limit : sizes.find((size) => size > limit) ?? Infinity, minimum);
  }

  // --- showing

  /** Draws the mean weights of a spot over heads, and returns a sentence about the largest ones. */
  show(layer: number, heads: readonly number[], hoveredSpot: Spot | null, selectedSpot: Spot | null): string {
    const spot = hoveredSpot ?? selectedSpot;
    Object.assign(this.state, { layer, heads, selectedSpot });
    const weights = this.layers[layer];
    if (!weights) {
      void this.unpack(layer);
      return t("loading-weights");
    }
    const values = this.meanValues(layer, heads, spot);
    const side: Side = spot?.[0] ? 0 : 1; // axis of the values
    // If no picture has positions on this axis, the pictures keep the weights of the selected spot.
    const pictureSpot = this.pictures.some(({ sides }) => sides.includes(side)) ? spot : selectedSpot?.[0] ? null : selectedSpot;
    const pictureValues = pictureSpot === spot ? values : this.meanValues(layer, heads, pictureSpot);
    const pictureSide: Side = pictureSpot?.[0] ? 0 : 1;
    const sinks = this.signed ? null : this.sinks(layer, heads);
    const scale = this.scaleOf(pictureValues, pictureSide, true, sinks);
    const sizes = this.sizesOf(pictureValues, pictureSide, true, null);
    const style: Omit<WeightStyle, "values" | "markedPosition"> = {
      scale, opacity: Number(this.opacity.input.value), hidesSinks: this.hideSinks.input.checked && pictureSide === 1, sinks: pictureSide === 1 ? sinks : null,
      minOutlined: this.outline.input.checked ? this.smallestOutlinedOf(sizes, this.signed || pictureSide === 0 ? Number.MIN_VALUE : 1 / pictureValues.length) : Infinity,
    };
    for (const { sides, picture } of this.pictures) {
      picture.show({ ...style, values: sides.includes(pictureSide) ? pictureValues : null, markedPosition: spot && sides.includes(spot[0]) ? spot[1] : null });
    }
    this.colourWords(values, side, spot, selectedSpot, sinks);
    this.state.scale = scale;
    this.drawLegend(scale, pictureValues.length, (sizes.at(-1) ?? 0) > scale.max);
    const [wordWeight, layoutWeight] = [false, true].map((inLayouts) => values.reduce((sum, value, position) => sum + (inLayouts !== this.isWord(position, side) ? value : 0), 0)) as [number, number];
    const sum = this.view.layers[layer]!.whole ? wordWeight + layoutWeight : 1; // rounded codes do not add up to 1
    this.share.textContent = [
      side === 1 && !this.signed && wordWeight && this.layouts[1].length ? t("position-share", percent(layoutWeight / sum), percent(wordWeight / sum)) : "",
      style.hidesSinks && sinks?.some(Boolean) ? t("position-hidden-sinks", sinks.reduce((sum, isSink) => sum + isSink, 0)) : sinks?.some(Boolean) ? t("position-sinks") : "",
      this.view.layers[layer]!.whole ? "" : t("position-largest"),
      spot && weights.isPooled(spot) ? t("position-pooled", weights.block) : "",
    ].filter(Boolean).join(" ");
    return this.spotText(values, side, spot);
  }

  private colourWords(values: Float32Array, side: Side, spot: Spot | null, selectedSpot: Spot | null, sinks: Uint8Array | null): void {
    const { max, gamma } = this.scaleOf(values, side, false, sinks);
    this.meanButton.setAttribute("aria-pressed", String(!selectedSpot));
    for (const { sides, position, button } of this.words) {
      const hasValues = sides.includes(side);
      const value = hasValues ? values[position]! : 0;
      button.style.setProperty("--weight", (Math.min(1, Math.abs(value) / max) ** gamma).toFixed(3));
      button.classList.toggle("below", value < 0);
      button.classList.toggle("here", !!spot && sides.includes(spot[0]) && spot[1] === position);
      button.setAttribute("aria-pressed", String(!!selectedSpot && sides.includes(selectedSpot[0]) && selectedSpot[1] === position));
      button.classList.toggle("sink", sides.includes(1) && !!sinks?.[position]);
      button.title = hasValues ? `${button.textContent}: ${this.percent(value)}` : "";
    }
  }

  private drawLegend(scale: Scale, count: number, hasPeaks: boolean): void {
    this.legend.style.setProperty("--band", colourGradient(scale));
    const minimum = scale.signed ? -scale.max : 0;
    const uniform = (1 / count / scale.max) ** scale.gamma;
    const numbers = this.numbersOf(scale).map((text, k) => {
      const label = h("span", {}, `${k === LEGEND_SHARES.length - 1 && hasPeaks ? "≥ " : ""}${text}`);
      label.style.left = `${100 * LEGEND_SHARES[k]!}%`;
      return label;
    });
    const mark = h("b", { title: t("position-uniform", percent(1 / count, 2)), hidden: scale.signed }, "▲");
    mark.style.left = `${100 * uniform}%`;
    this.legend.replaceChildren(h("i", {}), ...numbers, mark);
    this.legend.setAttribute("aria-label", t("position-legend", this.percent(minimum), this.percent(scale.max)));
  }

  /** The numbers below the colour band. */
  private numbersOf({ max, gamma, signed }: Scale): string[] {
    return LEGEND_SHARES.map((share) => this.percent(signed ? max * (2 * share - 1) : max * share ** (1 / gamma)));
  }

  private percent(weight: number): string {
    const digits = Math.abs(weight) < 0.001 && weight ? 3 : Math.abs(weight) < 0.01 && weight ? 2 : 1;
    return `${this.signed && weight > 0 ? "+" : ""}${percent(weight, digits)}`;
  }

  private spotText(values: Float32Array, side: Side, spot: Spot | null): string {
    const sizes = values.map(Math.abs);
    const [smallestListed, largest] = [-MAX_LISTED, -1].map((rank) => sizes.slice().sort().at(rank) ?? 0) as [number, number];
    const equalCount = largest ? sizes.filter((size) => size === largest).length : 0;
    const list = equalCount > MAX_LISTED ? t("position-equal-weights", equalCount, this.percent(largest)) : [...values.keys()].filter((position) => sizes[position] && sizes[position] >= smallestListed).sort((a, b) => sizes[b]! - sizes[a]!).slice(0, MAX_LISTED)
      .map((position) => `${this.nameOf([side, position])} (${this.percent(values[position]!)})`).join(" · ") || "—";
    return spot ? t(spot[0] ? "position-key-readout" : "position-query-readout", this.nameOf(spot), list) : t("position-mean-readout", list);
  }

  /** A thumbnail of the selected spot's weights in a head: maps of images, or bars. The layer must be unpacked. */
  drawThumbnail(layer: number, head: number): HTMLCanvasElement {
    const { selectedSpot } = this.state;
    const side: Side = selectedSpot?.[0] ? 0 : 1;
    const groups = groupGrids(this.layouts[side].filter(isGrid));
    const values = this.meanValues(layer, [head], selectedSpot);
    const sinks = side && !this.signed ? this.sinks(layer, [head]) : null;
    const style = { values, scale: this.scaleOf(values, side, true, sinks), sinks, hidesSinks: this.hideSinks.input.checked };
    const canvas = h("canvas", { class: groups.length ? "mapped" : "bars", width: THUMBNAIL_SIZE * Math.max(1, groups.length), height: THUMBNAIL_SIZE });
    const brush = canvas.getContext("2d")!;
    if (!groups.length) {
      const max = Math.max(...values.map(Math.abs)) || 1;
      values.forEach((value, k) => {
        brush.fillStyle = cssColour([...TINTS[value < 0 ? 1 : 0], 1]);
        const height = (Math.abs(value) / max) * THUMBNAIL_SIZE;
        brush.fillRect((k * THUMBNAIL_SIZE) / values.length, THUMBNAIL_SIZE - height, Math.max(0.5, THUMBNAIL_SIZE / values.length), height);
      });
    }
    brush.imageSmoothingEnabled = false;
    groups.forEach((grids, k) => {
      const image = this.images[grids[0]!.image];
      const [width, height] = image ? [image.width, image.height] : [grids[0]!.columns, grids[0]!.rows];
      const ratio = ratioOf(width, height);
      const [drawnWidth, drawnHeight] = [THUMBNAIL_SIZE * Math.min(1, ratio), THUMBNAIL_SIZE * Math.min(1, 1 / ratio)];
      const [x, y] = [k * THUMBNAIL_SIZE + (THUMBNAIL_SIZE - drawnWidth) / 2, (THUMBNAIL_SIZE - drawnHeight) / 2];
      for (const grid of grids) {
        const [left, top, right, bottom] = image ? grid.box : [0, 0, width, height];
        drawMap(brush, grid, style, x + (left / width) * drawnWidth, y + (top / height) * drawnHeight, ((right - left) / width) * drawnWidth, ((bottom - top) / height) * drawnHeight);
      }
    });
    return canvas;
  }

  // --- saving

  /** Rows of the saved table: head, query, key and weight. The query is null for the mean of all queries. */
  *table(): Generator<readonly [head: number, query: number | null, key: number, weight: number]> {
    const { layer, heads, selectedSpot } = this.state;
    for (const head of heads) {
      for (const [position, weight] of this.meanValues(layer, [head], selectedSpot).entries()) {
        yield selectedSpot?.[0] ? [head, position, selectedSpot[1], weight] : [head, selectedSpot?.[1] ?? null, position, weight];
      }
    }
  }

  get isWithoutSinks(): boolean {
    return this.hideSinks.input.checked;
  }

  /** All pictures in one column, with their colour scale, as SVG. */
  createDrawing(head: string): SVGSVGElement {
    const { selectedSpot } = this.state;
    const title = [head, selectedSpot ? `${this.nameOf(selectedSpot)}: ${t(selectedSpot[0] ? "position-attended" : "position-attends")}` : t("position-mean"), this.isWithoutSinks ? t("position-hide-sinks") : ""].filter(Boolean).join(" · ");
    const createLabel = (x: number, y: number, text: string, anchor = "start"): SVGElement =>
      s("text", { x, y, "text-anchor": anchor, "font-size": 13, "font-family": "sans-serif", fill: "currentColor" }, text);
    const lines = [title, this.view.note].filter(Boolean);
    let y = 12 + 16 * lines.length;
    const children: Element[] = lines.map((text, k) => createLabel(0, 16 * (k + 1), text));
    for (const { picture } of this.pictures) {
      const [element, height] = picture.createSvg(DRAWING_WIDTH);
      element.setAttribute("transform", `translate(0 ${y})`);
      children.push(element);
      y += height + 12;
    }
    if (this.hasImages) {
      const scale = this.state.scale!;
      const minimum = scale.signed ? -scale.max : 0;
      children.push(s("rect", { y, width: DRAWING_WIDTH, height: 12, fill: "#555" }), ...Array.from({ length: LEGEND_STEPS }, (_, k) =>
        s("rect", { x: (k * DRAWING_WIDTH) / LEGEND_STEPS, y, width: DRAWING_WIDTH / LEGEND_STEPS, height: 12, ...fillOf(colourOf(minimum + ((scale.max - minimum) * (k + 0.5)) / LEGEND_STEPS, scale)) })),
        ...this.numbersOf(scale).map((text, k) => createLabel(LEGEND_SHARES[k]! * DRAWING_WIDTH, y + 28, text, k === 0 ? "start" : k === LEGEND_SHARES.length - 1 ? "end" : "middle")));
    }
    return s("svg", { viewBox: `0 0 ${DRAWING_WIDTH} ${y + 36}` }, ...children);
  }
}
