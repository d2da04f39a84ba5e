/** The tab with two models, or epochs of a training, that translate the same sentences side by side. */
import { unitsOf } from "../decoder/alignment";
import { isNowhere, type Spot } from "../pictures/alignment";
import { spotText } from "../pictures/map";
import { drawNear, h } from "./dom";
import { createPicture } from "./frame";
import { unpack, type PackedAlignment } from "./sentence";
import { t } from "./strings";

type Version = readonly [...PackedAlignment, text: string];

/** Translations by two sides, written by `dikkat.show.comparison`. */
export interface Comparison {
  /** The name and the epochs of each side. A single model has no epochs. */
  readonly sides: readonly { readonly name: string; readonly epochs: readonly number[] }[];
  readonly languages: readonly [source: string, target: string];
  readonly sentences: readonly { readonly source: string; readonly versions: readonly (readonly Version[])[] }[];
}

/** A text whose words outside the longest common subsequence with another text are in <mark>. */
function withDifferences(text: string, otherText: string): (HTMLElement | string)[] {
  const [spans, otherWords] = [unitsOf(text).spans, unitsOf(otherText).spans.map((span) => otherText.slice(...span))];
  const words = spans.map((span) => text.slice(...span));
  const lengths = words.map(() => new Uint16Array(otherWords.length + 1)).concat(new Uint16Array(otherWords.length + 1));
  for (let i = words.length - 1; i >= 0; i--) {
    for (let j = otherWords.length - 1; j >= 0; j--) {
      lengths[i]![j] = words[i] === otherWords[j] ? lengths[i + 1]![j + 1]! + 1 : Math.max(lengths[i + 1]![j]!, lengths[i]![j + 1]!);
    }
  }
  const pieces: (HTMLElement | string)[] = [];
  let end = 0;
  for (let [i, j] = [0, 0]; i < words.length; ) {
    if (words[i] === otherWords[j]) [i, j] = [i + 1, j + 1];
    else if (j < otherWords.length && lengths[i]![j + 1]! >= lengths[i + 1]![j]!) j++;
    else {
      pieces.push(text.slice(end, spans[i]![0]), h("mark", {}, words[i]!));
      end = spans[i++]![1];
    }
  }
  return [...pieces, text.slice(end)];
}

/** A sentence with its translations by both sides. */
class Card {
  readonly element: HTMLElement;
  private readonly columns = [h("div"), h("div")] as const;
  private drawnVersions: readonly Version[] = [];
  private width = 0;

  constructor(
    private readonly sentence: Comparison["sentences"][number], private readonly number: number,
    private readonly languages: readonly [string, string], private readonly showReadout: (text: string) => void,
  ) {
    this.element = h("article", { class: "card sentence", "aria-label": t("sentence", number) },
      h("p", { class: "source", dir: "auto", lang: languages[0] }, sentence.source), h("div", { class: "sides" }, ...this.columns));
  }

  /** The translations of the selected versions. */
  versions(selected: readonly number[]): Version[] {
    return selected.map((version, side) => this.sentence.versions[side]![version]!);
  }

  show(selected: readonly number[], names: readonly string[]): void {
    const versions = this.versions(selected), width = this.columns[0].clientWidth;
    this.columns.forEach((column, side) => {
      const [version, otherVersion] = [versions[side]!, versions[1 - side]!];
      const target = h("p", { class: "target", dir: "auto", lang: this.languages[1] }, ...withDifferences(version[3], otherVersion[3]));
      if (this.drawnVersions[side] === version && this.width === width) return column.querySelector(".target")!.replaceWith(target);
      const { tools, body } = this.draw(version, side, width);
      column.replaceChildren(h("header", {}, h("h3", { dir: "auto" }, names[side]!), tools ? h("div", { class: "tools" }, tools) : null), target, body ?? "");
    });
    [this.drawnVersions, this.width] = [versions, width];
  }

  private draw([source, target, weights]: Version, side: number, width: number): Partial<ReturnType<typeof createPicture>> {
    const alignment = unpack([source, target, weights], this.languages);
    if (!target.length) return {};
    const hover = (spot: Spot): void => {
      drawing.picture.highlight(spot, null);
      this.showReadout(isNowhere(spot) ? "" : spotText(alignment, spot));
    };
    const drawing = createPicture(alignment, width, { hover, open: hover }, `dikkat-${this.number}-${side + 1}`);
    return drawing;
  }
}

export function createComparisonTab({ sides, languages, sentences }: Comparison): HTMLElement {
  const selected = sides.map(() => 0);
  const epochOf = (side: number): string => t("epoch", sides[side]!.epochs[selected[side]!]!);
  const namesOfSides = (): string[] => sides.map(({ name, epochs }, side) => (epochs.length ? `${name} · ${epochOf(side)}` : name));
  const readout = h("p", { class: "readout", role: "status" });
  const count = h("p", { class: "quiet", id: "differing", role: "status" });
  const cards = sentences.map((sentence, k) => new Card(sentence, k + 1, languages, (text) => (readout.textContent = text)));
  const sliders = sides.map(({ name, epochs }, side) => {
    if (!epochs.length) return null;
    const label = h("span", {});
    const slider = h("input", { type: "range", id: `epoch-${side}`, min: 0, max: epochs.length - 1, value: 0, "aria-label": name, input: () => select(Number(slider.value)) });
    const select = (version: number): void => {
      selected[side] = version;
      label.textContent = epochOf(side);
      slider.setAttribute("aria-valuetext", label.textContent);
      for (const card of nearCards) card.show(selected, namesOfSides());
      countDifferences();
    };
    return { element: h("label", {}, label, slider), select };
  });
  const countDifferences = (): void => {
    const differing = cards.filter((card) => new Set(card.versions(selected).map((version) => version[3])).size > 1).length;
    count.textContent = t("different-translations", differing, cards.length);
  };
  const tab = h("main", { id: "room" }, h("div", { class: "finder" }, ...sliders.map((slider) => slider && slider.element), count),
    h("p", { class: "help" }, t(sliders.some(Boolean) ? "epochs-help" : "differences-help")), ...cards.map((card) => card.element), readout);
  const nearCards = drawNear(tab, cards, (card) => card.show(selected, namesOfSides()));
  for (const slider of sliders) slider?.select(0);
  countDifferences();
  return tab;
}
