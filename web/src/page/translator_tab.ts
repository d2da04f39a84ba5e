/** The translator's tab: the text field, translations with their pictures, and steering. */
import { flagsOf } from "../decoder/confidence";
import { Refusal } from "../decoder/refusal";
import { normalised } from "../decoder/search";
import { LONGEST_TEXT } from "../decoder/lines";
import type { Translation, Translator } from "../decoder/translator";
import { isSame, NOWHERE, type Alignment, type Highlightable, type Picture, type Spot } from "../pictures/alignment";
import { drawLinks } from "../pictures/links";
import { drawHeatmap, spotText } from "../pictures/map";
import type { TileMap } from "../pictures/tiles/tilemap";
import { BEAMS, BESTS, type PageState } from "./address";
import { activeIn, h, isolateDirection, markChanges, numberWords, markTags, decodeReference, makeVisible } from "./dom";
import { MAX_SVG_CELLS, framePicture, createTileMap } from "./frame";
import { joinWords, wordIndexOf, type JoinedWords } from "./subwords";
import { PairEditor } from "./pair_editor";
import { runWithPauses } from "./pausing";
import { saveText } from "./save";
import { FREE, History, isFree, pick, pin } from "./steering";
import { StepPanel } from "./step";
import { number, percent, t, type Phrase } from "./strings";
import type { UserPairs } from "./user_pairs";

const FIRST_RESULT = 80; // milliseconds before the tab shows an unfinished translation; most searches end earlier
const TYPING_PAUSE = 90; // milliseconds between the last key and the search
const MAX_INPUT = 4 * LONGEST_TEXT; // letters in the text field
const LOW_CONFIDENCE = 0.5; // lower confidences have another colour
const MIN_PAIR_SHARE = 0.01; // smallest share of a stored pair in the readout
const READOUT_HEIGHT = 90; // pixels at the bottom of the window

type TranslatorState = Pick<PageState, "text" | "beam" | "best" | "html" | "steering" | "step" | "translationIndex">;

interface TranslatorListeners {
  readonly stateChanged: (state: TranslatorState) => void;
  /** True if the page's address contains the state, so the reader can copy a link. */
  readonly hasAddress: boolean;
  /** Called with the current translation, or null. */
  readonly translationChanged?: (translation: Translation | null) => void;
}

/** A tile map with its alignment and card. */
interface TileCard {
  readonly alignment: Alignment;
  readonly card: HTMLElement;
  readonly tiles: TileMap;
}

export class TranslatorTab {
  readonly element = h("main", { id: "room" });
  private readonly history = new History();
  private readonly text: HTMLTextAreaElement;
  private readonly result = h("p", { class: "result", dir: "auto", "aria-live": "polite" });
  private readonly confidenceText = h("p", { class: "facts" });
  private readonly flags = h("ul", { class: "flags quiet", hidden: true });
  private readonly editor: PairEditor;
  private readonly numbers = h("p", { class: "quiet numbers" });
  /** Both texts, at the top of the window while the input card is hidden. */
  private readonly stickyTexts = h("div", { class: "overhead", "aria-hidden": "true", hidden: true });
  private readonly alternatives = h("ol", { class: "others", hidden: true });
  private readonly error = h("p", { class: "trouble", role: "alert", hidden: true });
  private readonly changes = h("section", { class: "changes", hidden: true, "aria-label": t("changes") });
  private readonly readout = h("p", { class: "readout", role: "status" });
  private readonly pictures = h("div", { class: "pictures", hidden: true });
  private readonly introduction = h("p", { class: "card help", hidden: true }, t("introduction"));
  private readonly panel: StepPanel;
  private translations: Translation[] = [];
  private originalTarget = ""; // the translation without the reader's changes
  private drawnPictures: Highlightable[] = [];
  private alignment!: Alignment; // of the drawn pictures
  private tileCard: TileCard | null = null;
  private searchCount = 0;
  private lastRun: Promise<void> | null = null;
  private timer = 0;
  private width = 0;
  private state: TranslatorState;
  private showsSubwords = false; // true if pictures show subwords instead of words
  private isInputHidden = false; // true if the reader scrolled past the input card

  constructor(private readonly translator: Translator, private readonly pairs: UserPairs, view: TranslatorState, examples: readonly string[], private readonly listeners: TranslatorListeners) {
    this.state = view;
    this.history.clear(view.steering);
    this.text = h("textarea", {
      id: "text", rows: 3, dir: "auto", placeholder: t("placeholder"), spellcheck: "false", autocomplete: "off",
      input: () => this.updateText(this.text.value),
      keydown: (event: KeyboardEvent) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        event.preventDefault();
        void this.editor.open();
      },
      beforeinput: (event: InputEvent) => {
        const insertion = event.data ?? event.dataTransfer?.getData("text/plain") ?? "";
        if (this.text.value.length + insertion.length <= MAX_INPUT) return;
        // The layout of a megabyte takes seconds, and the translator rejects such a text.
        event.preventDefault();
        this.showError(t("too-long", this.text.value.length + insertion.length));
      },
    });
    this.text.value = view.text.slice(0, MAX_INPUT);
    this.panel = new StepPanel(translator, {
      open: (step) => this.openStep(step),
      pin: (step, position, weight, live) => this.steer(pin(this.history.current, this.best.ids, step, position, weight), step, live),
      pick: (step, token) => this.steer(pick(this.history.current, this.best.ids, step, token), step),
      hover: (position) => this.highlight(position === null ? NOWHERE
        : { target: wordIndexOf(this.joinedWords("target"), this.state.step), source: wordIndexOf(this.joinedWords("source"), position) }),
    });
    const selectMenu = (label: Phrase, values: readonly number[], name: "beam" | "best", labelOf: (value: number) => string): HTMLElement =>
      h("label", {}, h("span", {}, t(label)), h("select", {
        id: name,
        change: (event: Event) => {
          this.state = { ...this.state, [name]: Number((event.target as HTMLSelectElement).value), translationIndex: 0 };
          void this.run();
        },
      }, ...values.map((value) => h("option", { value, selected: value === this.state[name] }, labelOf(value)))));
    this.editor = new PairEditor(pairs, translator.network.attends, {
      beforeCorrection: () => this.prepareNextSentence(), translation: () => this.best ?? null, waitForTranslation: () => this.waitForTranslation(),
    });
    pairs.translationsChanged = () => void this.run();
    const inputCard = h("section", { class: "card desk" },
      h("div", { class: "half" },
        h("label", { for: "text", class: "title" }, t("source")), this.text,
        examples.length ? h("p", { class: "examples" }, h("span", { class: "quiet" }, t("examples")), ...examples.map((example) =>
          h("button", { type: "button", class: "chip", dir: "auto", click: () => this.setText(example) }, makeVisible(example)))) : null),
      h("div", { class: "half" }, h("h2", { class: "title" }, t("target")), this.result, this.alternatives, this.error, this.flags, this.editor.status, this.editor.form,
        h("div", { class: "tools below" }, this.confidenceText, this.editor.button)),
      h("details", { class: "more" }, h("summary", {}, t("more-options")),
        h("div", { class: "tools" },
          selectMenu("alternatives", BESTS, "best", (best) => (best === 1 ? t("best-translation") : t("best-translations", best))),
          selectMenu("search", BEAMS, "beam", (beam) => (beam === 1 ? t("greedy") : t("beam", beam))),
          h("label", {}, h("input", {
            type: "checkbox", id: "html", checked: this.state.html,
            change: (event: Event) => {
              this.state = { ...this.state, html: (event.target as HTMLInputElement).checked };
              this.updateText(this.text.value);
            },
          }), t("html")),
          translator.source.cuts && h("label", {}, h("input", {
            type: "checkbox", id: "parts",
            change: (event: Event) => {
              this.showsSubwords = (event.target as HTMLInputElement).checked;
              this.draw();
            },
          }), t("subwords")),
          h("button", { type: "button", class: "plain", click: () => this.saveJson() }, t("save-json")),
          listeners.hasAddress && h("button", { type: "button", class: "plain", click: (event: Event) => void this.copyLink(event.currentTarget as HTMLElement) }, t("link"))),
        this.numbers),
      ...this.editor.lists);
    this.element.append(this.stickyTexts, inputCard, this.changes, this.introduction, this.pictures);
    new IntersectionObserver((entries) => {
      const { isIntersecting, boundingClientRect } = entries.at(-1)!;
      this.isInputHidden = !isIntersecting && boundingClientRect.top < 0; // scrolled past
      this.showStickyTexts();
    }).observe(inputCard.querySelector(".half + .half")!);
    new ResizeObserver(() => {
      const width = this.pictures.clientWidth;
      if (width && width !== this.width) this.draw();
    }).observe(this.pictures);
    void this.run();
  }

  private get best(): Translation {
    return this.translations[this.state.translationIndex]!;
  }

  /** Translates another text. */
  setText(text: string): void {
    this.text.value = text;
    this.updateText(text);
  }

  private updateText(text: string): void {
    this.state = { ...this.state, text, step: 0, translationIndex: 0 };
    this.history.clear();
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.run(), TYPING_PAUSE);
  }

  /** Selects the text, so that typing replaces it. Not on touch screens, whose keyboard would hide the translation. */
  private prepareNextSentence(): void {
    this.history.clear();
    if (!matchMedia("(pointer: fine)").matches) return;
    this.text.focus();
    this.text.select();
  }

  private steer(steering: History["current"], step: number, live = false): void {
    this.history.push(steering, live);
    this.state = { ...this.state, step, translationIndex: 0 };
    void this.run(live);
  }

  // --- searching

  /** @param live true during a drag: the address then stays, because browsers limit its changes */
  private run(live = false): Promise<void> {
    return (this.lastRun = this.search(live));
  }

  /** Waits for the last run. Resolves to false if the text has no translation, or changed during the wait. */
  private async waitForTranslation(): Promise<boolean> {
    const { text } = this.state;
    if (this.best?.source !== text) void this.run();
    for (let ended = null; ended !== this.lastRun; ) await (ended = this.lastRun);
    return this.state.text === text && this.best?.source === text;
  }

  private async search(live: boolean): Promise<void> {
    const searchNumber = ++this.searchCount;
    clearTimeout(this.timer);
    const steering = this.history.current;
    this.state = { ...this.state, steering };
    if (!live) this.listeners.stateChanged(this.state);
    this.showError("");
    this.panel.showError("");
    const options = { beam: this.state.beam, best: Math.min(this.state.best, this.state.beam), chosen: steering, terms: this.pairs.lists.terms };
    const started = performance.now();
    try {
      const translations = await runWithPauses(this.translator.translating(this.state.text, options, this.state.html ? decodeReference : null), () => searchNumber !== this.searchCount, (text) => {
        this.result.textContent = text();
        this.result.classList.add("forming");
        this.confidenceText.textContent = ""; // for the previous translation
        this.flags.hidden = true;
      }, FIRST_RESULT);
      if (!translations) return;
      this.translations = translations;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const steered = !isFree(steering);
      const why = t(error.reason, error.detail, error.open);
      if (steered && this.translations.length && this.history.canUndo) {
        // An impossible change is undone, and the previous translation stays.
        this.history.undo();
        this.state = { ...this.state, steering: this.history.current };
        this.listeners.stateChanged(this.state);
        this.show();
        this.panel.showError(why);
        return;
      }
      this.showError(why);
      this.translations = [];
    }
    if (isFree(steering)) this.originalTarget = this.translations[0]?.target ?? "";
    this.show(performance.now() - started);
  }

  private showError(message: string): void {
    this.error.textContent = message;
    this.error.hidden = !message;
  }

  // --- showing

  private show(milliseconds: number | null = null): void {
    const { translations } = this;
    this.state = { ...this.state, translationIndex: Math.min(this.state.translationIndex, Math.max(0, translations.length - 1)) };
    this.result.classList.remove("forming");
    this.result.classList.toggle("quiet", !translations.length);
    this.result.replaceChildren(...(translations.length ? this.targetElements(this.best) : [this.error.hidden ? t("no-text") : ""]));
    this.alternatives.hidden = translations.length < 2;
    this.result.hidden = translations.length > 1;
    this.alternatives.replaceChildren(...translations.map((translation, k) => h("li", {}, h("button", {
      type: "button", "aria-pressed": String(k === this.state.translationIndex), click: () => this.showAlternative(k),
    }, h("span", { dir: "auto" }, ...(translation.target ? this.targetElements(translation) : ["—"])), h("span", { class: "quiet" }, flagOf(translation) ?? percent(translation.confidence ?? confidencePerWord(translation), 1))))));
    const { beam, best } = this.state;
    const confidence = translations.length && (flagOf(this.best) ?? (this.best.ids.length && t(...this.confidencePhrase(translations.length > 1 ? 1 : 0))));
    this.confidenceText.textContent = translations.length ? [confidence, best > beam && t("search-limit", beam)].filter(Boolean).join(" · ") : "";
    this.confidenceText.classList.toggle("low", !!translations.length && (this.best.confidence ?? 1) < LOW_CONFIDENCE);
    this.showFlags();
    this.editor.update();
    this.numbers.textContent = [
      translations.length && `${t("score")} ${number(this.best.score)}`, t(this.translator.confidence ? "confidence-definition" : "confidence-formula"), milliseconds !== null && t("search-time", Math.round(milliseconds)),
    ].filter(Boolean).join(" · ");
    this.showChanges();
    if (translations.length) this.state = { ...this.state, step: Math.min(this.state.step, Math.max(0, this.best.steps.length - 1)) };
    this.pictures.hidden = !translations.length;
    this.introduction.hidden = !!translations.length || !this.error.hidden;
    this.showStickyTexts();
    this.listeners.translationChanged?.(translations.length ? this.best : null);
    this.draw();
    // The new pictures may have moved the focused element out of the window.
    this.pictures.querySelector(":focus-visible")?.scrollIntoView({ block: "nearest" });
  }

  private confidencePhrase(digits: number): [Phrase, string] {
    const { confidence } = this.best;
    return confidence === null ? ["confidence-per-word", percent(confidencePerWord(this.best), digits)] : ["confidence", percent(confidence, digits)];
  }

  /** Lists the flags that name words. Flags without words replace the confidence. */
  private showFlags(): void {
    const flags = this.translations.length ? [...flagsOf(this.best)].filter(([, words]) => words.length) : [];
    this.flags.hidden = !flags.length;
    this.flags.replaceChildren(...flags.map(([flag, words]) => h("li", {}, t(flag),
      ...[...new Set(words)].flatMap((word) => [" ", h("u", { title: flag === "unknown words" ? t("untrained-word") : null, dir: "auto" }, makeVisible(shortenWord(word)))]))));
  }

  /** The text of a translation, with the effects of the reader's changes in <mark>. */
  private targetElements({ target }: Translation): (HTMLElement | string)[] {
    if (!isFree(this.history.current) && this.originalTarget) return markChanges(target, this.originalTarget, this.state.html);
    return this.state.html ? markTags(target) : [target];
  }

  private showStickyTexts(): void {
    this.stickyTexts.hidden = !this.isInputHidden || !this.translations.length;
    if (this.stickyTexts.hidden) return;
    this.stickyTexts.replaceChildren(h("div", { class: "card" }, h("p", { dir: "auto", class: "quiet" }, this.state.text), h("p", { dir: "auto" }, ...this.targetElements(this.best))));
    const text = this.stickyTexts.querySelector("p:last-child")!;
    // A long text scrolls to the opened word.
    text.scrollTop = (text.scrollHeight * (this.state.step + 0.5)) / Math.max(1, this.best.steps.length) - text.clientHeight / 2;
  }

  private showAlternative(index: number): void {
    this.state = { ...this.state, translationIndex: index, step: 0 };
    this.listeners.stateChanged(this.state);
    this.show();
    this.alternatives.querySelectorAll("button")[index]?.focus();
  }

  private showChanges(): void {
    const { current } = this.history;
    const button = (phrase: Phrase, isEnabled: boolean, edit: () => void): HTMLButtonElement =>
      h("button", { type: "button", class: "plain", disabled: !isEnabled, click: () => {
        edit();
        void this.run();
      } }, t(phrase));
    const list: string[] = [];
    const keptWords: string[] = [];
    if (this.translations.length) {
      const { sourceTokens, targetTokens } = this.best;
      const sourceWords = numberWords(sourceTokens);
      keptWords.push(...current.tokens.flatMap((_, step) => (current.pickedSteps.has(step) ? [] : [makeVisible(targetTokens[step] || t("end"))])));
      const steps = [...new Set([...current.pins.keys(), ...current.pickedSteps])].sort((a, b) => a - b);
      for (const step of steps) {
        for (const [position, weight] of current.pins.get(step) ?? []) {
          list.push(t("change-pin", step + 1, sourceWords[position] ?? "?", percent(weight, weight * 1000 % 10 ? 1 : 0)));
        }
        if (current.pickedSteps.has(step)) list.push(t("change-word", step + 1, makeVisible(targetTokens[step] || t("end"))));
      }
    }
    const focusedLabel = this.changes.contains(activeIn(this.changes)) ? activeIn(this.changes)!.textContent : null;
    this.changes.hidden = isFree(current) && !this.history.canRedo && !this.history.canUndo;
    this.changes.replaceChildren(
      h("h2", {}, t("changes")),
      h("ul", {}, ...list.map((change) => h("li", { dir: "auto" }, change))),
      ...(keptWords.length ? [h("p", { class: "quiet", dir: "auto" }, t("kept-words", keptWords.join(" ")))] : []),
      ...(!isFree(current) && this.originalTarget && this.originalTarget !== this.best?.target ? [h("p", { class: "quiet", dir: "auto" }, t("original-translation", this.originalTarget))] : []),
      h("div", { class: "tools" },
        button("undo", this.history.canUndo, () => this.history.undo()),
        button("redo", this.history.canRedo, () => this.history.redo()),
        button("clear", !isFree(current), () => this.history.push(FREE))),
    );
    if (focusedLabel !== null) {
      // Focus returns to the same button, or to the first enabled one.
      const enabledButtons = [...this.changes.querySelectorAll<HTMLButtonElement>("button:not(:disabled)")];
      (enabledButtons.find((button) => button.textContent === focusedLabel) ?? enabledButtons[0])?.focus();
    }
  }

  private joinedWords(side: "source" | "target"): JoinedWords {
    return joinWords(this.best[`${side}Tokens`], this.translator[side].cuts && !this.showsSubwords);
  }

  /** The alignment of joined words: means over the subwords of a target word, sums over the subwords of a source word. */
  private joinedAlignment(): Alignment {
    const [source, target] = [this.joinedWords("source"), this.joinedWords("target")];
    const { steps } = this.best;
    const { current } = this.history;
    const weightsOf = (targetTokens: readonly number[]): Float64Array => {
      const weights = new Float64Array(source.tokenIndices.length), rows = targetTokens.map((step) => steps[step]!.weights);
      source.tokenIndices.forEach((positions, k) => {
        for (const row of rows) for (const position of positions) weights[k]! += row[position]! / rows.length;
      });
      return weights;
    };
    return {
      source: source.words, target: target.words, weights: target.tokenIndices.map(weightsOf),
      changedWords: new Set([...current.pins.keys(), ...current.pickedSteps].map((step) => wordIndexOf(target, step)!)),
    };
  }

  private draw(): void {
    this.drawnPictures = [];
    if (!this.translations.length) return;
    const alignment = this.alignment = this.joinedAlignment();
    const focus = this.focusedSelector();
    this.width = this.pictures.clientWidth;
    const listeners = { hover: (spot: Spot) => this.highlight(spot), open: (spot: Spot) => this.openSpot(spot) };
    const cells = alignment.source.length * alignment.target.length;
    const pictureWidth = Math.max(220, this.width - 2 * cardPadding(this.element));
    let cards: HTMLElement[] = [];
    if (!this.translator.network.attends) cards = [h("section", { class: "card" }, h("p", { class: "help" }, t("no-attention")))];
    else if (cells > MAX_SVG_CELLS) {
      if (!this.tileCard || !isSame(this.tileCard.alignment, alignment)) this.tileCard = this.createTileCard(alignment);
      const { card, tiles } = this.tileCard;
      this.drawnPictures = [{ highlight: (spot) => tiles.highlight(spot.target, spot.source) }];
      cards = [card];
    } else if (cells) {
      const [linksPicture, mapPicture] = [drawLinks(alignment, pictureWidth, listeners), drawHeatmap(alignment, pictureWidth, listeners)];
      this.drawnPictures = [linksPicture, mapPicture];
      cards = [this.createCard("links", linksPicture, alignment), this.createCard("map", mapPicture, alignment)];
    }
    const { steps } = this.best;
    if (steps.length) this.panel.show(this.best, this.state.step, this.history.current.pins.get(this.state.step) ?? new Map());
    const hasPanel = this.panel.element.parentElement === this.pictures;
    // The panel and a large map stay in the document: moving them would end a drag, or reset the zoom.
    for (const element of [...this.pictures.children]) if (element !== this.panel.element && element !== cards[0]) element.remove();
    if (!hasPanel) this.pictures.append(this.panel.element);
    this.panel.element.hidden = !steps.length;
    if (cards[0] && cards[0].parentElement !== this.pictures) this.pictures.prepend(cards[0]);
    cards[0]?.after(this.readout);
    if (cards[1]) this.pictures.append(cards[1]);
    this.highlight(NOWHERE);
    if (focus) this.restoreFocus(focus);
  }

  /** The selector of the focused picture, which restores the focus after redrawing. */
  private focusedSelector(): string | null {
    const active = activeIn(this.pictures);
    if (!active || !this.pictures.contains(active)) return null;
    if (active.closest(".map")) return "svg.map";
    const words = [...this.pictures.querySelectorAll(".links .written")];
    return words.includes(active) ? `.links .written:nth-of-type(${words.indexOf(active) + 1})` : null;
  }

  private restoreFocus(selector: string): void {
    if (selector === "svg.map") this.pictures.querySelector<SVGElement>(selector)?.focus();
    else [...this.pictures.querySelectorAll<SVGElement>(".links .written")][wordIndexOf(this.joinedWords("target"), this.state.step) ?? 0]?.focus();
  }

  private createCard(phrase: "links" | "map", picture: Picture, alignment: Alignment): HTMLElement {
    const { tools, body } = framePicture(picture, alignment, `dikkat-${phrase}`);
    return h("section", { class: `card ${phrase}-card` },
      h("header", {}, h("h2", {}, t(phrase)), tools), h("p", { class: "help" }, t(`${phrase}-help`)), body);
  }

  /** A card with a tile map, for long texts. */
  private createTileCard(alignment: Alignment): TileCard {
    const tiles = createTileMap(alignment, (target, source) => this.openSpot({ target, source }));
    const card = h("section", { class: "card map-card" }, h("header", {}, h("h2", {}, t("map"))),
      h("p", { class: "help" }, t("too-long-for-links", alignment.target.length, alignment.source.length)), h("p", { class: "help" }, t("tiles-help")), tiles.element);
    return { alignment, card, tiles };
  }

  private highlight(spot: Spot): void {
    const openedWord = this.translations.length ? wordIndexOf(this.joinedWords("target"), this.state.step) : null;
    for (const picture of this.drawnPictures) picture.highlight(spot, openedWord);
    this.readout.textContent = this.translations.length ? [spotText(this.alignment, spot), this.sourcesText(spot)].filter(Boolean).join(" · ") : "";
    const activeElement = this.pictures.querySelector(".weight-row:hover, .weight-row:focus-within, .word:hover, .word:focus, .ring[visibility=visible]");
    const above = !!activeElement && activeElement.getBoundingClientRect().bottom > innerHeight - READOUT_HEIGHT;
    this.readout.classList.toggle("above", above);
    this.readout.style.top = above && !this.stickyTexts.hidden ? `${this.stickyTexts.firstElementChild!.getBoundingClientRect().bottom + 8}px` : "";
  }

  /** A sentence about the stored pairs with the largest shares of a word's probability. */
  private sourcesText({ target, source }: Spot): string {
    const [step] = target === null || source !== null ? [] : this.joinedWords("target").tokenIndices[target]!;
    const sources = step === undefined ? [] : this.best.steps[step]!.sources.filter(({ weight }) => weight >= MIN_PAIR_SHARE).slice(0, 2);
    return sources.length ? t("correction-used", sources.map((source) => `“${isolateDirection(shortenWord(source.source))}” → “${isolateDirection(shortenWord(source.target))}” ${percent(source.weight)}`).join(", ")) : "";
  }

  private openSpot(spot: Spot): void {
    const [step, position] = [this.joinedWords("target").tokenIndices[spot.target ?? -1]?.[0], this.joinedWords("source").tokenIndices[spot.source ?? -1]?.[0]];
    if (step !== undefined) this.openStep(step);
    if (step !== undefined && position !== undefined) {
      this.panel.element.querySelector<HTMLInputElement>(`[data-place="${position}"] input[type=range]`)?.focus();
    }
  }

  private openStep(step: number): void {
    this.state = { ...this.state, step };
    this.listeners.stateChanged(this.state);
    this.panel.show(this.best, step, this.history.current.pins.get(step) ?? new Map());
    this.showStickyTexts();
    this.highlight(NOWHERE);
  }

  // --- saving

  private saveJson(): void {
    const { current } = this.history;
    const content = {
      format: "dikkat page", version: 1, source: this.state.text,
      changes: {
        words: [...current.pickedSteps].map((step) => ({ step, token: current.tokens[step] })),
        weights: [...current.pins].flatMap(([step, weights]) => [...weights].map(([position, weight]) => ({ step, place: position, weight }))),
      },
      translations: this.translations.map((translation) => ({
        target: translation.target, score: translation.score, finished: translation.finished, repeated: translation.repeated, unknown: translation.unknown, confidence: translation.confidence, flags: [...flagsOf(translation).keys()],
        lost: translation.lost, invented: translation.invented, unused_terms: translation.unusedTerms, source_tokens: translation.sourceTokens, target_tokens: translation.targetTokens.filter(Boolean),
        weights: translation.ids.flatMap((_, k) => (translation.targetTokens[k] ? [[...translation.steps[k]!.weights]] : [])),
      })),
    };
    saveText(JSON.stringify(content, null, 1), "dikkat.json", "application/json");
  }

  private async copyLink(button: HTMLElement): Promise<void> {
    try {
      await navigator.clipboard.writeText(location.href);
    } catch {
      // Pages served over http have no access to the clipboard.
      const field = h("input", { type: "text", class: "address", readonly: true, value: location.href, "aria-label": t("copy-address"), title: t("copy-address"), blur: () => field.remove() });
      button.after(field);
      return field.select();
    }
    const label = button.textContent;
    button.textContent = t("copied");
    setTimeout(() => (button.textContent = label), 1500);
  }
}

/** The reason why a translation has no confidence: it repeats itself, or is incomplete. */
const flagOf = ({ repeated, finished }: Translation): string | null => (repeated ? t("repeated") : finished ? null : t("cut"));

/** The confidence per word, e^(log-probability ÷ (5 + words)). */
const confidencePerWord = ({ score, ids, finished }: Translation): number => Math.exp(normalised(score, ids.length + Number(finished), 1) / 6);

const shortenWord = (word: string): string => (word.length > 40 ? `${[...word.slice(0, 80)].slice(0, 40).join("")}…` : word);

/** The horizontal padding of a card, in pixels. */
function cardPadding(tab: HTMLElement): number {
  const card = tab.querySelector(".card");
  return (card && Number.parseFloat(getComputedStyle(card).paddingLeft)) || 20; // no style before the tab is in a page
}
