/** The tab of stored translations: a searchable list. It draws pictures when the reader scrolls near them. */
import { isNowhere, NOWHERE, type Spot } from "../pictures/alignment";
import { drawNear, fold, h } from "./dom";
import { saveText } from "./save";
import { SentenceCard, type PackedAlignment, type Sentence } from "./sentence";
import { t } from "./strings";

const SCROLL_FRAMES = 5; // frames of repeated scrolling, because sentences above are still growing

/** The number of a sentence, from 1, and the highlighted word or pair in it. */
export interface Highlight {
  readonly sentence: number;
  readonly spot: Spot;
}

interface SentencesListeners {
  readonly highlightChanged: (highlight: Highlight | null) => void;
  /** Opens a text in the translator; null if the page has no translator. */
  readonly translate: ((text: string) => void) | null;
}

/** The sentences of a page: texts from its HTML, and tokens and weights from its JSON. */
export const sentencesIn = (page: Element, packedAlignments: readonly PackedAlignment[]): Sentence[] =>
  [...page.querySelectorAll(".sentence")].map((article, k) => {
    const find = (selector: string): HTMLElement | null => article.querySelector(selector);
    return { source: find(".source")!, target: find(".target")!, reference: find(".reference p"), score: find(".score"), packed: packedAlignments[k]! };
  });

export class SentencesTab {
  readonly element: HTMLElement;
  private readonly cards: SentenceCard[];
  private readonly readout = h("p", { class: "readout", role: "status" });
  private readonly count = h("p", { class: "quiet", id: "count", role: "status" });
  private readonly none = h("p", { class: "quiet", hidden: true }, t("no-matching-sentence"));
  private searchTexts: readonly string[] | null = null;

  constructor(sentences: readonly Sentence[], private highlight: Highlight | null, private readonly listeners: SentencesListeners) {
    const { translate } = listeners;
    this.cards = sentences.map((sentence, k) => {
      const card: SentenceCard = new SentenceCard(sentence, k + 1, {
        hover: (spot) => this.hover(card, spot),
        open: (spot) => this.toggleHighlight(card, spot),
        translate: translate && (() => translate(sentence.source.textContent!)),
      });
      return card;
    });
    this.element = h("main", { id: "room", keydown: (event: KeyboardEvent) => event.key === "Escape" && this.clearHighlight() },
      h("div", { class: "finder" },
        h("label", {}, h("span", { class: "unseen" }, t("find")),
          h("input", { id: "find", type: "search", placeholder: t("find"), autocomplete: "off", spellcheck: "false", dir: "auto",
            input: (event: Event) => this.find((event.target as HTMLInputElement).value) })),
        this.count,
        h("button", { type: "button", class: "plain", click: () => this.saveJson() }, t("save-json"))),
      h("p", { class: "help" }, t("sentences-help")),
      ...this.cards.map((card) => card.element), this.none, this.readout);
    this.find("");
    drawNear(this.element, this.cards, (card) => card.draw(this.pictureWidth));
    if (highlight && this.cards[highlight.sentence - 1]) this.restoreHighlight(highlight);
    else this.highlight = null;
  }

  private get pictureWidth(): number {
    const style = this.cards[0] && getComputedStyle(this.cards[0].element);
    return Math.max(220, this.element.clientWidth - 2 * (style ? Number.parseFloat(style.paddingLeft) || 0 : 0) - 2);
  }

  // --- highlighting

  private hover(card: SentenceCard, spot: Spot): void {
    card.highlight(spot);
    const highlight = isNowhere(spot) && this.highlight;
    this.readout.textContent = highlight ? this.cards[highlight.sentence - 1]!.spotText(highlight.spot) : card.spotText(spot);
  }

  /** Toggles the highlight of a spot. */
  private toggleHighlight(card: SentenceCard, spot: Spot): void {
    const isSame = this.highlight?.sentence === card.number && this.highlight.spot.target === spot.target && this.highlight.spot.source === spot.source;
    if (this.highlight) this.cards[this.highlight.sentence - 1]!.select(NOWHERE);
    this.highlight = isSame ? null : { sentence: card.number, spot };
    if (!isSame) card.select(spot);
    this.markHighlightedCard();
    this.listeners.highlightChanged(this.highlight);
    this.hover(card, NOWHERE);
  }

  private clearHighlight(): void {
    if (this.highlight) this.toggleHighlight(this.cards[this.highlight.sentence - 1]!, this.highlight.spot);
  }

  private markHighlightedCard(): void {
    for (const { element, number } of this.cards) element.classList.toggle("kept", number === this.highlight?.sentence);
  }

  /** Scrolls to the highlight in the address. */
  private restoreHighlight({ sentence, spot }: Highlight): void {
    const card = this.cards[sentence - 1]!;
    const { source, target } = card.alignment;
    const isInside = (spot.target === null || spot.target < target.length) && (spot.source === null || spot.source < source.length);
    this.highlight = { sentence, spot: isInside ? spot : NOWHERE };
    card.select(this.highlight.spot);
    this.markHighlightedCard();
    const scrollToCard = (frames: number): void => {
      card.element.scrollIntoView({ block: "center" });
      if (frames) requestAnimationFrame(() => scrollToCard(frames - 1));
      else this.hover(card, NOWHERE);
    };
    requestAnimationFrame(() => scrollToCard(SCROLL_FRAMES));
  }

  // --- searching

  private find(query: string): void {
    const words = fold(query).split(/\s+/u).filter(Boolean);
    if (words.length) this.searchTexts ??= this.cards.map(({ sentence: { source, target, reference } }) => fold([source, target, reference].map((element) => element?.textContent ?? "").join("\n")));
    let matchCount = 0;
    this.cards.forEach(({ element }, k) => {
      const matches = words.every((word) => this.searchTexts![k]!.includes(word));
      element.hidden = !matches;
      matchCount += Number(matches);
    });
    this.none.hidden = matchCount > 0 || !words.length;
    this.count.textContent = words.length ? t("matching-sentence-count", matchCount, this.cards.length) : t("sentence-count", this.cards.length);
  }

  private saveJson(): void {
    const sentences = this.cards.map(({ sentence: { source, target, reference, score }, alignment: aligned }) => ({
      source: source.textContent, target: target.textContent, reference: reference?.textContent ?? null, score: score?.textContent ?? null,
      source_tokens: aligned.source, target_tokens: aligned.target, weights: aligned.weights.map((row) => [...row]),
    }));
    saveText(JSON.stringify({ format: "dikkat sentences", version: 1, sentences }, null, 1), "dikkat.json", "application/json");
  }
}
