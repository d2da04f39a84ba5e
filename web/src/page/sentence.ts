/** Card of a stored translation: its texts, with pictures drawn on demand. */
import { NOWHERE, type Aligned, type Picture, type Spot } from "../pictures/aligned";
import { map, spotText } from "../pictures/map";
import { h } from "./dom";
import { DRAWN, framed, pictured } from "./frame";
import { t } from "./strings";

/**
 * Source tokens, target tokens, and all weights, row by row: thousandths in two digits of base 36, or - for 0;
 * `dikkat.show.page` writes it.
 */
export type Packed = readonly [source: readonly string[], target: readonly string[], weights: string];

/** A sentence's elements in the HTML that Python wrote, and its packed data. */
export interface Sentence {
  readonly source: HTMLElement;
  readonly target: HTMLElement;
  readonly reference: HTMLElement | null;
  readonly score: HTMLElement | null;
  readonly packed: Packed;
}

interface CardListeners {
  readonly look: (spot: Spot) => void;
  readonly keep: (spot: Spot) => void;
  /** Opens the sentence in the translator; null on a page without a model. */
  readonly translate: (() => void) | null;
}

export class SentenceCard {
  readonly element: HTMLElement;
  private readonly pictures = h("div");
  private readonly details: HTMLDetailsElement;
  private readonly tools = h("div", { class: "tools" });
  private drawn: Pick<Picture, "stress">[] = [];
  private unpacked: Aligned | null = null;
  private kept: Spot = NOWHERE;
  private room = 0;

  constructor(readonly given: Sentence, readonly number: number, private readonly listeners: CardListeners) {
    const { source, target, reference, score } = given;
    this.details = h("details", { toggle: () => this.drawMap() }, h("summary", {}, t("map")));
    this.element = h("article", { class: "card sentence", id: `s=${number}`, "aria-label": t("sentence", number) },
      h("header", {},
        h("a", { class: "quiet", href: `#s=${number}`, click: (event: Event) => {
          event.preventDefault();
          listeners.keep(NOWHERE);
        } }, String(number)),
        score, this.tools),
      source, target, reference && h("div", { class: "reference" }, h("span", {}, t("reference")), reference), this.pictures);
  }

  get aligned(): Aligned {
    return (this.unpacked ??= unpack(this.given.packed, [this.given.source.lang, this.given.target.lang]));
  }

  /** @param room width for the pictures, in pixels */
  draw(room: number): void {
    if (room === this.room) return;
    this.room = room;
    const cells = this.aligned.source.length * this.aligned.target.length;
    if (cells > DRAWN && this.drawn.length) return; // a tile map resizes by itself and keeps its zoom
    const open = this.listeners.translate;
    const buttons: HTMLElement[] = open ? [h("button", { type: "button", class: "plain", click: open }, t("open"))] : [];
    if (cells) {
      const { picture, tools, body } = pictured(this.aligned, room, this.picked, `dikkat-${this.number}-links`);
      this.drawn = [picture];
      this.pictures.replaceChildren(body);
      if (tools) {
        buttons.push(tools);
        this.pictures.append(this.details);
        this.drawMap();
      }
    }
    this.tools.replaceChildren(...buttons);
    this.stress(NOWHERE);
  }

  private get picked(): { look: (spot: Spot) => void; open: (spot: Spot) => void } {
    return { look: this.listeners.look, open: this.listeners.keep };
  }

  private drawMap(): void {
    if (!this.details.open) return;
    const second = map(this.aligned, this.room, this.picked);
    const { tools, body } = framed(second, this.aligned, `dikkat-${this.number}-map`);
    this.drawn = [this.drawn[0]!, second];
    this.details.replaceChildren(this.details.firstElementChild!, h("div", { class: "tools" }, tools), body);
    this.stress(NOWHERE);
  }

  /** Sets the highlight shown while nothing is pointed at. */
  keep(spot: Spot): void {
    this.kept = spot;
    this.stress(NOWHERE);
  }

  stress(spot: Spot): void {
    const resting = spot.target === null && spot.source === null;
    const opened = this.kept.source === null ? this.kept.target : null;
    for (const picture of this.drawn) picture.stress(resting && opened === null ? this.kept : spot, opened);
  }

  spotText(spot: Spot): string {
    return spotText(this.aligned, spot);
  }
}

export function unpack([source, target, weights]: Packed, languages: readonly [string, string]): Aligned {
  const all = weights.match(/-|../g)?.map((each) => (each === "-" ? 0 : Number.parseInt(each, 36) / 1000)) ?? [];
  return {
    source, target, changed: new Set(), languages,
    weights: target.map((_, i) => Float64Array.from(source, (_, j) => all[i * source.length + j]!)),
  };
}
