/** Panel of one decoding step: weights that the reader can change, likely words, and vectors. */
import type { Opened } from "../decoder/search";
import { restored } from "../decoder/slots";
import { END, UNKNOWN } from "../decoder/tokenizer";
import type { Translation, Translator } from "../decoder/translator";
import { drawStrip } from "../pictures/strip";
import { createTable } from "../pictures/table";
import { activeIn, h, numberWords, shorten, makeVisible } from "./dom";
import { number, percent, t, type Phrase } from "./strings";

const MAX_WORD_WIDTH = 280; // in pixels, over all lines
const LIKELY = 0.01; // the panel hides less likely words except the first two
const MAX_VOTES = 5; // listed words
const MAX_ROWS = 60; // words of a long sentence, the ones with the largest weights

interface StepListeners {
  readonly open: (step: number) => void;
  /** Pins a weight, or unpins it (null). `live` is true while the reader drags a slider. */
  readonly pin: (step: number, position: number, weight: number | null, live: boolean) => void;
  readonly pick: (step: number, token: number) => void;
  readonly hover: (position: number | null) => void;
}

interface Row {
  readonly element: HTMLElement;
  readonly score: HTMLElement;
  readonly slider: HTMLInputElement;
  readonly percentField: HTMLInputElement;
  readonly unpinButton: HTMLButtonElement;
}

export class StepPanel {
  readonly element = h("section", { class: "card step", "aria-labelledby": "step-title" });
  private readonly title = h("h2", { id: "step-title" });
  private readonly previousButton: HTMLButtonElement;
  private readonly nextButton: HTMLButtonElement;
  private readonly rows = h("div", { class: "weights" });
  private readonly choices = h("ol", { class: "choices" });
  private readonly unlikely = h("ol", { class: "choices" });
  private readonly moreChoices = h("details", {}, h("summary", {}, t("more-words")), this.unlikely);
  private readonly vectors = h("div", { class: "vectors" });
  private readonly vectorDetails = h("details", {}, h("summary", {}, t("step-vectors")), h("p", { class: "help" }, t("step-vectors-help")), this.vectors);
  private readonly shownRows = new Map<number, Row>();
  private readonly error = h("p", { class: "trouble", role: "alert" });
  /** The field with an unfinished edit. */
  private writing: HTMLInputElement | null = null;
  /** Source position of the last changed weight; null after the reader selected a word. */
  private changedPosition: number | null = null;
  private sourceTokens: readonly string[] = [];
  private translation: Translation | null = null;
  private step = 0;

  constructor(private readonly translator: Translator, private readonly listeners: StepListeners) {
    const stepButton = (phrase: Phrase, offset: number, symbol: string): HTMLButtonElement =>
      h("button", { type: "button", class: "icon", "aria-label": t(phrase), title: t(phrase), click: () => listeners.open(this.step + offset) }, symbol);
    this.previousButton = stepButton("previous-step", -1, "‹");
    this.nextButton = stepButton("next-step", 1, "›");
    this.element.append(
      h("header", {}, this.title, h("div", { class: "tools" }, this.previousButton, this.nextButton)),
      h(
        "div",
        { class: "halves" },
        h("div", {}, h("h3", {}, t("attention-weights")), h("p", { class: "help" }, t(translator.network.attends ? "attention-weights-help" : "no-attention")), this.rows),
        h("div", {}, h("h3", {}, t("likely")), h("p", { class: "help" }, t("likely-help")), this.choices, this.moreChoices),
      ),
      this.vectorDetails,
    );
    this.vectorDetails.addEventListener("toggle", () => {
      this.element.classList.toggle("scored", this.vectorDetails.open);
      this.drawVectors();
    });
  }

  show(translation: Translation, step: number, pins: ReadonlyMap<number, number>): void {
    this.translation = translation;
    this.step = step;
    const { steps, targetTokens } = translation;
    const word = targetTokens[step] ? `“${makeVisible(targetTokens[step])}”` : t("end");
    this.title.replaceChildren(`${t("step", step + 1, steps.length)}: `, h("span", { dir: "auto", class: "term" }, word));
    const hadFocus = [this.previousButton, this.nextButton].includes(activeIn(this.element) as HTMLButtonElement);
    this.previousButton.disabled = step === 0;
    this.nextButton.disabled = step + 1 >= steps.length;
    if (hadFocus && this.nextButton.disabled) this.previousButton.focus(); // a disabled button loses focus
    else if (hadFocus && this.previousButton.disabled) this.nextButton.focus();
    const decodingStep = steps[step]!;
    if (this.translator.network.attends) this.showWeights(translation, decodingStep, pins);
    this.showChoices(decodingStep);
    this.drawVectors();
  }

  /** Shows an error message next to the last change; "" removes it. */
  showError(message: string): void {
    this.error.textContent = message;
    if (!message) return this.error.remove();
    const row = this.changedPosition === null ? undefined : this.shownRows.get(this.changedPosition);
    if (row) row.element.after(this.error);
    else this.choices.before(this.error);
    this.error.scrollIntoView({ block: "nearest" });
  }

  private pin(position: number, weight: number | null, live = false): void {
    this.changedPosition = position;
    this.listeners.pin(this.step, position, weight, live);
  }

  private showWeights(translation: Translation, { scores, weights }: Opened, pins: ReadonlyMap<number, number>): void {
    const readable = [...weights.keys()].filter((position) => scores[position]! > -Infinity); // positions of the step's sentence
    const positions = [...readable].sort((a, b) => weights[b]! - weights[a]!).slice(0, MAX_ROWS).concat([...pins.keys()]);
    const listed = [...new Set(positions)].filter((position) => position < weights.length).sort((a, b) => a - b);
    if (this.sourceTokens !== translation.sourceTokens || listed.some((position) => !this.shownRows.has(position))) {
      // Only another sentence gets new rows, because replacing a row would end a drag in it.
      const isSameSentence = this.sourceTokens.length === translation.sourceTokens.length && this.sourceTokens.every((word, k) => word === translation.sourceTokens[k]);
      if (!isSameSentence || listed.some((position) => !this.shownRows.has(position))) {
        this.shownRows.clear();
        const words = numberWords(translation.sourceTokens);
        for (const position of listed) this.shownRows.set(position, this.createRow(words[position]!, position));
        this.rows.replaceChildren(this.createHeader(), ...[...this.shownRows.values()].map((row) => row.element));
      }
      this.sourceTokens = translation.sourceTokens;
    }
    const lowest = Math.min(...readable.map((position) => scores[position]!));
    const span = Math.max(...scores) - lowest || 1;
    for (const [position, row] of this.shownRows) {
      const weight = weights[position]!;
      row.score.textContent = number(scores[position]!);
      row.score.style.setProperty("--share", String((scores[position]! - lowest) / span));
      row.element.style.setProperty("--share", String(weight));
      row.element.classList.toggle("pinned", pins.has(position));
      row.unpinButton.hidden = !pins.has(position);
      if (activeIn(this.element) !== row.slider) row.slider.value = String(Math.round(weight * 1000) / 10);
      row.slider.setAttribute("aria-valuetext", percent(weight, 1));
      if (this.writing !== row.percentField) row.percentField.value = number(weight * 100, 1);
    }
  }

  private createHeader(): HTMLElement {
    return h("div", { class: "weight-row head", "aria-hidden": "true" },
      h("span", {}, t("word")), h("span", { class: "score" }, t("score-column")), h("span", {}, t("weight")), h("span", {}, "%"));
  }

  private createRow(word: string, position: number): Row {
    const { listeners } = this;
    const short = shorten(word, MAX_WORD_WIDTH, 16);
    const score = h("span", { class: "score-bar" });
    const slider = h("input", { type: "range", min: 0, max: 100, step: 0.5, "aria-label": t("weight-of", word) });
    const percentField = h("input", { type: "text", inputmode: "decimal", class: "number", autocomplete: "off", "aria-label": t("percent-of", word) });
    const unpinButton = h("button", { type: "button", class: "icon small", "aria-label": t("unpin", word), title: t("unpin", word), click: () => {
      slider.focus(); // the button disappears
      this.pin(position, null);
    } }, "×");
    const pinSliderValue = (live: boolean) => (): void => {
      // Pinned weights sum to at most 100 %.
      const pinnedSum = [...this.shownRows].filter(([otherPosition, row]) => otherPosition !== position && row.element.classList.contains("pinned"))
        .reduce((sum, [, row]) => sum + Number(row.slider.value), 0);
      const maximum = Math.max(0, 100 - pinnedSum);
      if (Number(slider.value) > maximum) slider.value = String(maximum);
      this.pin(position, Math.min(Number(slider.value), maximum) / 100, live);
    };
    slider.addEventListener("input", pinSliderValue(true));
    slider.addEventListener("change", pinSliderValue(false));
    const discardEdit = (): void => {
      this.writing = null;
      percentField.value = number(100 * (this.translation?.steps[this.step]?.weights[position] ?? 0), 1);
    };
    percentField.addEventListener("input", () => (this.writing = percentField));
    percentField.addEventListener("blur", () => this.writing === percentField && discardEdit());
    percentField.addEventListener("change", () => {
      const text = percentField.value.trim().replace(",", ".").replace(/^%|%$/g, "");
      const weight = text === "" ? NaN : Number(text) / 100;
      this.writing = null;
      if (weight >= 0 && weight <= 1) return this.pin(position, weight);
      discardEdit();
      this.changedPosition = position;
      this.showError(t(Number.isFinite(weight) ? "weight-range" : "weight-number"));
    });
    const element = h(
      "div",
      { class: "weight-row", "data-place": position, pointerenter: () => listeners.hover(position), pointerleave: () => listeners.hover(null) },
      h("span", { class: "term", dir: "auto", title: short === word ? null : word }, short), score, slider,
      h("span", { class: "typed" }, percentField, unpinButton),
    );
    return { element, score, slider, percentField, unpinButton };
  }

  private showChoices({ likely, token, gain, slots }: Opened): void {
    const writable = likely.filter((candidate) => this.translator.target.slot(candidate.token) < slots.length);
    const candidates = writable.some((candidate) => candidate.token === token) ? writable : [...writable, { token, gain }];
    const focused = [this.choices, this.unlikely].some((list) => list.contains(activeIn(list)));
    const items = candidates.map((candidate) => {
      const share = Math.exp(candidate.gain);
      const isTaken = candidate.token === token;
      const button = h(
        "button",
        { type: "button", class: "choice", "aria-pressed": String(isTaken), click: () => {
          this.changedPosition = null;
          if (!isTaken) this.listeners.pick(this.step, candidate.token);
        } },
        h("span", { class: "term", dir: "auto" }, this.labelOf(candidate.token, slots)),
        h("span", { class: "share" }, share < 0.0005 ? `< ${percent(0.001, 1)}` : percent(share, share < 0.0995 ? 1 : 0)),
      );
      button.style.setProperty("--share", String(share));
      return { isLikely: isTaken || share >= LIKELY, item: h("li", {}, button) };
    });
    for (const item of items.slice(0, 2)) item.isLikely = true;
    this.choices.replaceChildren(...items.filter(({ isLikely }) => isLikely).map(({ item }) => item));
    this.unlikely.replaceChildren(...items.filter(({ isLikely }) => !isLikely).map(({ item }) => item));
    this.moreChoices.hidden = !this.unlikely.childElementCount;
    if (focused) this.choices.querySelector<HTMLButtonElement>("[aria-pressed=true]")?.focus();
  }

  private labelOf(token: number, slots: readonly string[]): string {
    if (token === END) return `⏎ ${t("end")}`;
    const previousIds = this.translation?.ids.slice(0, this.step) ?? [];
    const label = this.translator.target.labels([...previousIds.slice(previousIds.lastIndexOf(END) + 1), token]).at(-1)!;
    return makeVisible(token === UNKNOWN ? this.translation!.targetTokens[this.step]! : restored(label, slots));
  }

  /** The largest direct contributions of source words to the score of the step's word. */
  private createContributions({ weights, token, slots }: Opened): HTMLElement[] {
    const { network } = this.translator;
    if (!network.lexical || !this.translation) return [];
    const { sourceIds, sourceTokens } = this.translation;
    const votes = network.votes(sourceIds, weights, token);
    const largest = [...votes.keys()].sort((a, b) => Math.abs(votes[b]!) - Math.abs(votes[a]!)).slice(0, MAX_VOTES);
    const words = numberWords(sourceTokens);
    return [h("figure", {}, h("figcaption", {}, t("contributions", this.labelOf(token, slots))),
      createTable(t("contributions", this.labelOf(token, slots)), [t("word"), t("weight"), t("contribution")],
        // "+ 0" makes 0 of -0
        largest.map((position) => [makeVisible(words[position]!), percent(weights[position]!, 1), number(Math.round(votes[position]! * 100) / 100 + 0)])))];
  }

  private drawVectors(): void {
    const decodingStep = this.translation?.steps[this.step];
    if (!decodingStep || !this.vectorDetails.open) return;
    const gates = Object.entries(decodingStep.gates) as [Phrase, Float32Array][];
    const vectors: [Phrase, Float32Array][] = [
      ...(this.translator.network.attends ? [["query", decodingStep.query] as [Phrase, Float32Array]] : []),
      ["context", decodingStep.context], ...gates, ["state", decodingStep.state.hidden.at(-1)!],
    ];
    const mean = (vector: Float32Array): number => vector.reduce((a, b) => a + b, 0) / vector.length;
    this.vectors.replaceChildren(
      ...vectors.map(([name, vector]) =>
        h("figure", {}, h("figcaption", {}, h("span", {}, t(name)), h("span", { class: "quiet" }, t("mean", number(mean(vector))))), drawStrip(vector, t(name)))),
      ...this.createContributions(decodingStep),
      h("details", { class: "twin" }, h("summary", {}, t("table")),
        createTable(t("step-vectors"), [t("vector"), t("minimum"), t("mean-value"), t("maximum")],
          vectors.map(([name, vector]) => [t(name), ...[Math.min(...vector), mean(vector), Math.max(...vector)].map((value) => number(value, 3))]))),
    );
  }
}
