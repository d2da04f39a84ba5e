/** The card of a stored translation: its texts, and pictures drawn on demand. */
import { isNowhere, NOWHERE, type Alignment, type Highlightable, type Listeners, type Spot } from "../pictures/alignment";
import { drawHeatmap, spotText } from "../pictures/map";
import { h } from "./dom";
import { MAX_SVG_CELLS, framePicture, createPicture } from "./frame";
import { t } from "./strings";

/**
 * Source tokens, target tokens, and all weights row by row, written by `dikkat.show.page`.
 * A weight is a number of thousandths in two digits of base 36, or - for 0.
 */
export type PackedAlignment = readonly [source: readonly string[], target: readonly string[], weights: string];

/** The elements of a sentence in the page's HTML, and its packed data. */
export interface Sentence {
  readonly source: HTMLElement;
  readonly target: HTMLElement;
  readonly reference: HTMLElement | null;
  readonly score: HTMLElement | null;
  readonly packed: PackedAlignment;
}

interface CardListeners extends Listeners {
  /** Opens the sentence in the translator; null on a page without a model. */
  readonly translate: (() => void) | null;
}

export class SentenceCard {
  readonly element: HTMLElement;
  private readonly pictures = h("div");
  private readonly details: HTMLDetailsElement;
  private readonly tools = h("div", { class: "tools" });
  private drawnPictures: Highlightable[] = [];
  private alignmentCache: Alignment | null = null;
  private selectedSpot: Spot = NOWHERE;
  private width = 0;

  constructor(readonly sentence: Sentence, readonly number: number, private readonly listeners: CardListeners) {
    const { source, target, reference, score } = sentence;
    this.details = h("details", { toggle: () => this.drawMap() }, h("summary", {}, t("map")));
    this.element = h("article", { class: "card sentence", id: `s=${number}`, "aria-label": t("sentence", number) },
      h("header", {},
        h("a", { class: "quiet", href: `#s=${number}`, click: (event: Event) => {
          event.preventDefault();
          listeners.open(NOWHERE);
        } }, String(number)),
        score, this.tools),
      source, target, reference && h("div", { class: "reference" }, h("span", {}, t("reference")), reference), this.pictures);
  }

  get alignment(): Alignment {
    return (this.alignmentCache ??= unpack(this.sentence.packed, [this.sentence.source.lang, this.sentence.target.lang]));
  }

  /** @param width of the pictures, in pixels */
  draw(width: number): void {
    if (width === this.width) return;
    this.width = width;
    const cells = this.alignment.source.length * this.alignment.target.length;
    if (cells > MAX_SVG_CELLS && this.drawnPictures.length) return; // a tile map resizes itself and keeps its zoom
    const translate = this.listeners.translate;
    const buttons: HTMLElement[] = translate ? [h("button", { type: "button", class: "plain", click: translate }, t("open-in-translator"))] : [];
    if (cells) {
      const { picture, tools, body } = createPicture(this.alignment, width, this.listeners, `dikkat-${this.number}-links`);
      this.drawnPictures = [picture];
      this.pictures.replaceChildren(body);
      if (tools) {
        buttons.push(tools);
        this.pictures.append(this.details);
        this.drawMap();
      }
    }
    this.tools.replaceChildren(...buttons);
    this.highlight(NOWHERE);
  }

  private drawMap(): void {
    if (!this.details.open) return;
    const heatmap = drawHeatmap(this.alignment, this.width, this.listeners);
    const { tools, body } = framePicture(heatmap, this.alignment, `dikkat-${this.number}-map`);
    this.drawnPictures = [this.drawnPictures[0]!, heatmap];
    this.details.replaceChildren(this.details.firstElementChild!, h("div", { class: "tools" }, tools), body);
    this.highlight(NOWHERE);
  }

  /** Sets the highlight that is visible while the pointer is on no spot. */
  select(spot: Spot): void {
    this.selectedSpot = spot;
    this.highlight(NOWHERE);
  }

  highlight(spot: Spot): void {
    const isIdle = isNowhere(spot);
    const openedWord = this.selectedSpot.source === null ? this.selectedSpot.target : null;
    for (const picture of this.drawnPictures) picture.highlight(isIdle && openedWord === null ? this.selectedSpot : spot, openedWord);
  }

  spotText(spot: Spot): string {
    return spotText(this.alignment, spot);
  }
}

export function unpack([source, target, weights]: PackedAlignment, languages: readonly [string, string]): Alignment {
  const numbers = weights.match(/-|../g)?.map((code) => (code === "-" ? 0 : Number.parseInt(code, 36) / 1000)) ?? [];
  return {
    source, target, changedWords: new Set(), languages,
    weights: target.map((_, i) => Float64Array.from(source, (_, j) => numbers[i * source.length + j]!)),
  };
}
