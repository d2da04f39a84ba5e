/** Room of stored translations: a searchable list whose pictures are drawn near the window. */
import { isNowhere, NOWHERE, type Spot } from "../pictures/aligned";
import { drawNear, fold, h } from "./dom";
import { saveText } from "./save";
import { SentenceCard, type Packed, type Sentence } from "./sentence";
import { t } from "./strings";

const SETTLING = 5; // frames of scrolling again, since sentences above still grow to their heights

/** A sentence, counted from 1, and the highlight in it. */
export interface Kept {
  readonly sentence: number;
  readonly spot: Spot;
}

interface SentencesListeners {
  readonly kept: (kept: Kept | null) => void;
  /** Open a text in the translator; null: the page has none. */
  readonly translate: ((text: string) => void) | null;
}

/** The sentences of a page: texts from its HTML, tokens and weights from its JSON. */
export const sentencesIn = (page: Element, packed: readonly Packed[]): Sentence[] =>
  [...page.querySelectorAll(".sentence")].map((article, k) => {
    const found = (what: string): HTMLElement | null => article.querySelector(what);
    return { source: found(".source")!, target: found(".target")!, reference: found(".reference p"), score: found(".score"), packed: packed[k]! };
  });

export class Sentences {
  readonly element: HTMLElement;
  private readonly cards: SentenceCard[];
  private readonly readout = h("p", { class: "readout", role: "status" });
  private readonly count = h("p", { class: "quiet", id: "count", role: "status" });
  private readonly none = h("p", { class: "quiet", hidden: true }, t("none-found"));
  private folded: readonly string[] | null = null;

  constructor(all: readonly Sentence[], private kept: Kept | null, private readonly listeners: SentencesListeners) {
    const { translate } = listeners;
    this.cards = all.map((each, k) => {
      const card: SentenceCard = new SentenceCard(each, k + 1, {
        look: (spot) => this.look(card, spot),
        keep: (spot) => this.keep(card, spot),
        translate: translate && (() => translate(each.source.textContent!)),
      });
      return card;
    });
    this.element = h("main", { id: "room", keydown: (event: KeyboardEvent) => event.key === "Escape" && this.forget() },
      h("div", { class: "finder" },
        h("label", {}, h("span", { class: "unseen" }, t("find")),
          h("input", { id: "find", type: "search", placeholder: t("find"), autocomplete: "off", spellcheck: "false", dir: "auto",
            input: (event: Event) => this.find((event.target as HTMLInputElement).value) })),
        this.count,
        h("button", { type: "button", class: "plain", click: () => this.saveJson() }, t("save-json"))),
      h("p", { class: "help" }, t("sentences-help")),
      ...this.cards.map((card) => card.element), this.none, this.readout);
    this.find("");
    drawNear(this.element, this.cards, (card) => card.draw(this.inside));
    if (kept && this.cards[kept.sentence - 1]) this.stay(kept);
    else this.kept = null;
  }

  private get inside(): number {
    const style = this.cards[0] && getComputedStyle(this.cards[0].element);
    return Math.max(220, this.element.clientWidth - 2 * (style ? Number.parseFloat(style.paddingLeft) || 0 : 0) - 2);
  }

  // --- looking

  private look(card: SentenceCard, spot: Spot): void {
    card.stress(spot);
    const at = isNowhere(spot) && this.kept;
    this.readout.textContent = at ? this.cards[at.sentence - 1]!.spotText(at.spot) : card.spotText(spot);
  }

  /** Toggles the highlight of a place. */
  private keep(card: SentenceCard, spot: Spot): void {
    const again = this.kept?.sentence === card.number && this.kept.spot.target === spot.target && this.kept.spot.source === spot.source;
    if (this.kept) this.cards[this.kept.sentence - 1]!.keep(NOWHERE);
    this.kept = again ? null : { sentence: card.number, spot };
    if (!again) card.keep(spot);
    this.mark();
    this.listeners.kept(this.kept);
    this.look(card, NOWHERE);
  }

  private forget(): void {
    if (this.kept) this.keep(this.cards[this.kept.sentence - 1]!, this.kept.spot);
  }

  private mark(): void {
    for (const { element, number } of this.cards) element.classList.toggle("kept", number === this.kept?.sentence);
  }

  /** Scrolls to the sentence of an address. */
  private stay({ sentence, spot }: Kept): void {
    const card = this.cards[sentence - 1]!;
    const { source, target } = card.aligned;
    const there = (spot.target === null || spot.target < target.length) && (spot.source === null || spot.source < source.length);
    this.kept = { sentence, spot: there ? spot : NOWHERE };
    card.keep(this.kept.spot);
    this.mark();
    const settle = (frames: number): void => {
      card.element.scrollIntoView({ block: "center" });
      if (frames) requestAnimationFrame(() => settle(frames - 1));
      else this.look(card, NOWHERE);
    };
    requestAnimationFrame(() => settle(SETTLING));
  }

  // --- finding

  private find(wanted: string): void {
    const words = fold(wanted).split(/\s+/u).filter(Boolean);
    if (words.length) this.folded ??= this.cards.map(({ given: { source, target, reference } }) => fold([source, target, reference].map((each) => each?.textContent ?? "").join("\n")));
    let found = 0;
    this.cards.forEach(({ element }, k) => {
      const there = words.every((word) => this.folded![k]!.includes(word));
      element.hidden = !there;
      found += Number(there);
    });
    this.none.hidden = found > 0 || !words.length;
    this.count.textContent = words.length ? t("count-found", found, this.cards.length) : t("count", this.cards.length);
  }

  private saveJson(): void {
    const sentences = this.cards.map(({ given: { source, target, reference, score }, aligned }) => ({
      source: source.textContent, target: target.textContent, reference: reference?.textContent ?? null, score: score?.textContent ?? null,
      source_tokens: aligned.source, target_tokens: aligned.target, weights: aligned.weights.map((row) => [...row]),
    }));
    saveText(JSON.stringify({ format: "dikkat sentences", version: 1, sentences }, null, 1), "dikkat.json", "application/json");
  }
}
