/** Room of two models, or the epochs of a training, that translate the same sentences side by side. */
import { unitsOf } from "../decoder/alignment";
import { isNowhere, type Aligned, type Picture, type Spot } from "../pictures/aligned";
import { links } from "../pictures/links";
import { said } from "../pictures/map";
import { h, whenNear } from "./dom";
import { DRAWN, framed, tiled } from "./frame";
import { unpack, type Packed } from "./sentence";
import { t } from "./strings";

type Version = readonly [...Packed, text: string];

/** Translations of two sides; `dikkat.show.comparison` writes them. */
export interface Comparison {
  /** The name of each side, and the numbers of its epochs; none for one model. */
  readonly sides: readonly { readonly name: string; readonly epochs: readonly number[] }[];
  readonly languages: readonly [source: string, target: string];
  readonly sentences: readonly { readonly source: string; readonly versions: readonly (readonly Version[])[] }[];
}

/** The words of a text, those in <mark> that are not in a longest common subsequence with another text. */
export function withDifferences(text: string, other: string): (HTMLElement | string)[] {
  const [spans, others] = [unitsOf(text).spans, unitsOf(other).spans.map((span) => other.slice(...span))];
  const words = spans.map((span) => text.slice(...span));
  const lengths = words.map(() => new Uint16Array(others.length + 1)).concat(new Uint16Array(others.length + 1));
  for (let i = words.length - 1; i >= 0; i--) {
    for (let j = others.length - 1; j >= 0; j--) {
      lengths[i]![j] = words[i] === others[j] ? lengths[i + 1]![j + 1]! + 1 : Math.max(lengths[i + 1]![j]!, lengths[i]![j + 1]!);
    }
  }
  const parts: (HTMLElement | string)[] = [];
  let [i, j, end] = [0, 0, 0];
  while (i < words.length) {
    const [start, stop] = spans[i]!;
    if (words[i] === others[j]) [i, j] = [i + 1, j + 1];
    else if (j < others.length && lengths[i]![j + 1]! >= lengths[i + 1]![j]!) {
      j++;
      continue;
    } else {
      parts.push(text.slice(end, start), h("mark", {}, words[i++]!));
      end = stop;
    }
  }
  return [...parts, text.slice(end)];
}

/** A sentence with its translations by both sides. */
class Card {
  readonly element: HTMLElement;
  private readonly columns: readonly HTMLElement[];
  private readonly pictures: (Pick<Picture, "stress"> | null)[] = [null, null];
  private readonly drawn: (Version | null)[] = [null, null];
  private width = 0;

  constructor(
    private readonly given: Comparison["sentences"][number], private readonly number: number,
    private readonly languages: readonly [string, string], private readonly look: (said: string) => void,
  ) {
    this.columns = [0, 1].map(() => h("div"));
    this.element = h("article", { class: "card sentence", "aria-label": t("sentence", number) },
      h("p", { class: "source", dir: "auto", lang: languages[0] }, given.source), h("div", { class: "sides" }, ...this.columns));
  }

  versions(chosen: readonly number[]): readonly Version[] {
    return chosen.map((version, side) => this.given.versions[side]![version]!);
  }

  show(chosen: readonly number[], names: readonly string[]): void {
    const versions = this.versions(chosen);
    const width = this.columns[0]!.clientWidth;
    versions.forEach((version, side) => {
      const column = this.columns[side]!;
      const target = h("p", { class: "target", dir: "auto", lang: this.languages[1] }, ...withDifferences(version[3], versions[1 - side]![3]));
      if (this.drawn[side] === version && this.width === width) {
        column.querySelector(".target")!.replaceWith(target);
      } else {
        const aligned = unpack([version[0], version[1], version[2]], this.languages);
        const { tools, body } = this.picture(aligned, side, width);
        column.replaceChildren(h("header", {}, h("h3", { dir: "auto" }, names[side]!), tools && h("div", { class: "tools" }, tools)), target, body ?? "");
      }
    });
    [this.drawn[0], this.drawn[1]] = [versions[0]!, versions[1]!];
    this.width = width;
  }

  private picture(aligned: Aligned, side: number, width: number): { tools: HTMLElement | null; body: HTMLElement | null } {
    const look = (spot: Spot): void => {
      this.pictures[side]!.stress(spot, null);
      this.look(isNowhere(spot) ? "" : said(aligned, spot));
    };
    if (!aligned.target.length) return { tools: null, body: null };
    if (aligned.target.length * aligned.source.length > DRAWN) {
      const tiles = tiled(aligned, (target, source) => look({ target, source }));
      this.pictures[side] = { stress: (spot) => tiles.stress(spot.target, spot.source) };
      return { tools: null, body: tiles.element };
    }
    const picture = links(aligned, width, { look, open: look });
    this.pictures[side] = picture;
    return framed(picture, aligned, `dikkat-${this.number}-${side + 1}`);
  }
}

export function comparisonRoom({ sides, languages, sentences }: Comparison): HTMLElement {
  const chosen = sides.map(() => 0);
  const names = (): string[] => sides.map(({ name, epochs }, side) => (epochs.length ? `${name} · ${t("epoch", epochs[chosen[side]!]!)}` : name));
  const readout = h("p", { class: "readout", role: "status" });
  const count = h("p", { class: "quiet", id: "differing", role: "status" });
  const cards = sentences.map((given, k) => new Card(given, k + 1, languages, (text) => (readout.textContent = text)));
  const near = new Set<Card>();
  const draw = (): void => {
    for (const card of near) card.show(chosen, names());
    const differing = cards.filter((card) => new Set(card.versions(chosen).map((version) => version[3])).size > 1).length;
    count.textContent = t("differing", differing, cards.length);
  };
  const sliders = sides.map(({ name, epochs }, side) => {
    if (!epochs.length) return null;
    const label = h("span", {});
    const slider = h("input", { type: "range", id: `epoch-${side}`, min: 0, max: epochs.length - 1, value: 0, "aria-label": name, input: () => {
      chosen[side] = Number(slider.value);
      label.textContent = t("epoch", epochs[chosen[side]!]!);
      slider.setAttribute("aria-valuetext", label.textContent);
      draw();
    } });
    label.textContent = t("epoch", epochs[0]!);
    slider.setAttribute("aria-valuetext", label.textContent);
    return h("label", {}, label, slider);
  });
  const room = h("main", { id: "room" }, h("div", { class: "finder" }, ...sliders, count),
    h("p", { class: "help" }, t(sliders.some(Boolean) ? "epochs-help" : "differing-help")), ...cards.map((card) => card.element), readout);
  draw();
  let width = 0;
  new ResizeObserver(() => {
    if (!room.clientWidth || room.clientWidth === width) return;
    const first = !width;
    width = room.clientWidth;
    if (first) for (const card of cards) whenNear(card.element, () => {
      near.add(card);
      card.show(chosen, names());
    });
    else draw();
  }).observe(room);
  return room;
}
