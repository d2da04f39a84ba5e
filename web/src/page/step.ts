/** Panel of one decoding step: weights to steer, likely words, inner vectors. */
import type { Opened } from "../decoder/search";
import { restored } from "../decoder/slots";
import { END, UNKNOWN } from "../decoder/tokenizer";
import type { Translation, Translator } from "../decoder/translator";
import { strip } from "../pictures/strip";
import { table } from "../pictures/table";
import { activeIn, h, numbered, shortened, visible } from "./dom";
import { number, percent, t, type Phrase } from "./strings";

const WIDEST = 280; // pixels of a word, broken into lines
const LIKELY = 0.01; // words that are less likely stand behind "more words", but for the first two
const VOTES = 5; // words listed with what they add to a score
const ROWS = 60; // most words listed of a long sentence: those with the largest weights

interface StepListeners {
  readonly go: (step: number) => void;
  /** Pins a weight, or releases it (null); `live` while a slider is dragged. */
  readonly pin: (step: number, position: number, weight: number | null, live: boolean) => void;
  readonly pick: (step: number, token: number) => void;
  readonly look: (position: number | null) => void;
}

interface Row {
  readonly element: HTMLElement;
  readonly score: HTMLElement;
  readonly slider: HTMLInputElement;
  readonly typed: HTMLInputElement;
  readonly free: HTMLButtonElement;
}

export class StepPanel {
  readonly element = h("section", { class: "card step", "aria-labelledby": "step-title" });
  private readonly title = h("h2", { id: "step-title" });
  private readonly back: HTMLButtonElement;
  private readonly forth: HTMLButtonElement;
  private readonly rows = h("div", { class: "weights" });
  private readonly choices = h("ol", { class: "choices" });
  private readonly unlikely = h("ol", { class: "choices" });
  private readonly more = h("details", {}, h("summary", {}, t("more-words")), this.unlikely);
  private readonly vectors = h("div", { class: "vectors" });
  private readonly inside = h("details", {}, h("summary", {}, t("inside")), h("p", { class: "help" }, t("inside-help")), this.vectors);
  private readonly shown = new Map<number, Row>();
  private readonly refusal = h("p", { class: "trouble", role: "alert" });
  /** The field with an edit that is not yet entered. */
  private writing: HTMLInputElement | null = null;
  /** Source position of the last changed weight; null after a word was chosen. */
  private changed: number | null = null;
  private of: readonly string[] = [];
  private translation: Translation | null = null;
  private step = 0;

  constructor(private readonly translator: Translator, private readonly listeners: StepListeners) {
    const turn = (phrase: Phrase, by: number, sign: string): HTMLButtonElement =>
      h("button", { type: "button", class: "icon", "aria-label": t(phrase), title: t(phrase), click: () => listeners.go(this.step + by) }, sign);
    this.back = turn("before", -1, "‹");
    this.forth = turn("after", 1, "›");
    this.element.append(
      h("header", {}, this.title, h("div", { class: "tools" }, this.back, this.forth)),
      h(
        "div",
        { class: "halves" },
        h("div", {}, h("h3", {}, t("where")), h("p", { class: "help" }, t(translator.network.attends ? "where-help" : "no-attention")), this.rows),
        h("div", {}, h("h3", {}, t("likely")), h("p", { class: "help" }, t("likely-help")), this.choices, this.more),
      ),
      this.inside,
    );
    this.inside.addEventListener("toggle", () => {
      this.element.classList.toggle("scored", this.inside.open);
      this.drawVectors();
    });
  }

  show(translation: Translation, step: number, pins: ReadonlyMap<number, number>): void {
    this.translation = translation;
    this.step = step;
    const { steps, targetTokens } = translation;
    const word = targetTokens[step] ? `“${visible(targetTokens[step])}”` : t("end");
    this.title.replaceChildren(`${t("step", step + 1, steps.length)}: `, h("span", { dir: "auto", class: "term" }, word));
    const turned = [this.back, this.forth].includes(activeIn(this.element) as HTMLButtonElement);
    this.back.disabled = step === 0;
    this.forth.disabled = step + 1 >= steps.length;
    if (turned && this.forth.disabled) this.back.focus(); // a disabled button loses focus
    else if (turned && this.back.disabled) this.forth.focus();
    const opened = steps[step]!;
    if (this.translator.network.attends) this.showWeights(translation, opened, pins);
    this.showChoices(opened);
    this.drawVectors();
  }

  /** Shows why the last change was refused, beside it; "" removes the message. */
  refuse(why: string): void {
    this.refusal.textContent = why;
    if (!why) return this.refusal.remove();
    const row = this.changed === null ? undefined : this.shown.get(this.changed);
    if (row) row.element.after(this.refusal);
    else this.choices.before(this.refusal);
    this.refusal.scrollIntoView({ block: "nearest" });
  }

  private pin(position: number, weight: number | null, live = false): void {
    this.changed = position;
    this.listeners.pin(this.step, position, weight, live);
  }

  private showWeights(translation: Translation, { scores, weights }: Opened, pins: ReadonlyMap<number, number>): void {
    const seen = [...weights.keys()].filter((position) => scores[position]! > -Infinity); // those of the step's own sentence
    const positions = [...seen].sort((a, b) => weights[b]! - weights[a]!).slice(0, ROWS).concat([...pins.keys()]);
    const wanted = [...new Set(positions)].filter((position) => position < weights.length).sort((a, b) => a - b);
    if (this.of !== translation.sourceTokens || wanted.some((position) => !this.shown.has(position))) {
      // Rows are rebuilt only for another sentence: replacing one would end a drag in it.
      const same = this.of.length === translation.sourceTokens.length && this.of.every((word, k) => word === translation.sourceTokens[k]);
      if (!same || wanted.some((position) => !this.shown.has(position))) {
        this.shown.clear();
        const words = numbered(translation.sourceTokens);
        for (const position of wanted) this.shown.set(position, this.row(words[position]!, position));
        this.rows.replaceChildren(this.head(), ...[...this.shown.values()].map((row) => row.element));
      }
      this.of = translation.sourceTokens;
    }
    const low = Math.min(...seen.map((position) => scores[position]!));
    const span = Math.max(...scores) - low || 1;
    for (const [position, row] of this.shown) {
      const weight = weights[position]!;
      row.score.textContent = number(scores[position]!);
      row.score.style.setProperty("--share", String((scores[position]! - low) / span));
      row.element.style.setProperty("--share", String(weight));
      row.element.classList.toggle("pinned", pins.has(position));
      row.free.hidden = !pins.has(position);
      if (activeIn(this.element) !== row.slider) row.slider.value = String(Math.round(weight * 1000) / 10);
      row.slider.setAttribute("aria-valuetext", percent(weight, 1));
      if (this.writing !== row.typed) row.typed.value = number(weight * 100, 1);
    }
  }

  private head(): HTMLElement {
    return h("div", { class: "weight-row head", "aria-hidden": "true" },
      h("span", {}, t("word")), h("span", { class: "score" }, t("score-before")), h("span", {}, t("weight")), h("span", {}, "%"));
  }

  private row(word: string, position: number): Row {
    const { listeners } = this;
    const short = shortened(word, WIDEST, 16);
    const score = h("span", { class: "score-bar" });
    const slider = h("input", { type: "range", min: 0, max: 100, step: 0.5, "aria-label": t("weight-of", word) });
    const typed = h("input", { type: "text", inputmode: "decimal", class: "number", autocomplete: "off", "aria-label": t("percent-of", word) });
    const free = h("button", { type: "button", class: "icon small", "aria-label": t("unpin", word), title: t("unpin", word), click: () => {
      slider.focus(); // the button disappears
      this.pin(position, null);
    } }, "×");
    const dragged = (live: boolean) => (): void => {
      // Pinned weights sum to at most 100 %.
      const pinnedSum = [...this.shown].filter(([other, row]) => other !== position && row.element.classList.contains("pinned"))
        .reduce((sum, [, row]) => sum + Number(row.slider.value), 0);
      const most = Math.max(0, 100 - pinnedSum);
      if (Number(slider.value) > most) slider.value = String(most);
      this.pin(position, Math.min(Number(slider.value), most) / 100, live);
    };
    slider.addEventListener("input", dragged(true));
    slider.addEventListener("change", dragged(false));
    const takeBack = (): void => {
      this.writing = null;
      typed.value = number(100 * (this.translation?.steps[this.step]?.weights[position] ?? 0), 1);
    };
    typed.addEventListener("input", () => (this.writing = typed));
    typed.addEventListener("blur", () => this.writing === typed && takeBack());
    typed.addEventListener("change", () => {
      const written = typed.value.trim().replace(",", ".").replace(/^%|%$/g, "");
      const weight = written === "" ? NaN : Number(written) / 100;
      this.writing = null;
      if (weight >= 0 && weight <= 1) return this.pin(position, weight);
      takeBack();
      this.changed = position;
      this.refuse(t(Number.isFinite(weight) ? "weight-range" : "weight-number"));
    });
    const element = h(
      "div",
      { class: "weight-row", "data-place": position, pointerenter: () => listeners.look(position), pointerleave: () => listeners.look(null) },
      h("span", { class: "term", dir: "auto", title: short === word ? null : word }, short), score, slider,
      h("span", { class: "typed" }, typed, free),
    );
    return { element, score, slider, typed, free };
  }

  private showChoices({ likely, token, gain, slots }: Opened): void {
    const possible = likely.filter((candidate) => this.translator.target.slot(candidate.token) < slots.length);
    const all = possible.some((candidate) => candidate.token === token) ? possible : [...possible, { token, gain }];
    const focused = [this.choices, this.unlikely].some((list) => list.contains(activeIn(list)));
    const items = all.map((candidate) => {
      const share = Math.exp(candidate.gain);
      const isTaken = candidate.token === token;
      const button = h(
        "button",
        { type: "button", class: "choice", "aria-pressed": String(isTaken), click: () => {
          this.changed = null;
          if (!isTaken) this.listeners.pick(this.step, candidate.token);
        } },
        h("span", { class: "term", dir: "auto" }, this.label(candidate.token, slots)),
        h("span", { class: "share" }, share < 0.0005 ? `< ${percent(0.001, 1)}` : percent(share, share < 0.0995 ? 1 : 0)),
      );
      button.style.setProperty("--share", String(share));
      return { first: isTaken || share >= LIKELY, item: h("li", {}, button) };
    });
    for (const item of items.slice(0, 2)) item.first = true;
    this.choices.replaceChildren(...items.filter(({ first }) => first).map(({ item }) => item));
    this.unlikely.replaceChildren(...items.filter(({ first }) => !first).map(({ item }) => item));
    this.more.hidden = !this.unlikely.childElementCount;
    if (focused) this.choices.querySelector<HTMLButtonElement>("[aria-pressed=true]")?.focus();
  }

  private label(token: number, slots: readonly string[]): string {
    if (token === END) return `⏎ ${t("end")}`;
    const before = this.translation?.ids.slice(0, this.step) ?? [];
    const label = this.translator.target.labels([...before.slice(before.lastIndexOf(END) + 1), token]).at(-1)!;
    return visible(token === UNKNOWN ? this.translation!.targetTokens[this.step]! : restored(label, slots));
  }

  /** What source words add to the score of the word that is written, the largest first. */
  private votes({ weights, token, slots }: Opened): HTMLElement[] {
    const { network } = this.translator;
    if (!network.lexical || !this.translation) return [];
    const { sourceIds, sourceTokens } = this.translation;
    const votes = network.votes(sourceIds, weights, token);
    const first = [...votes.keys()].sort((a, b) => Math.abs(votes[b]!) - Math.abs(votes[a]!)).slice(0, VOTES);
    const words = numbered(sourceTokens);
    return [h("figure", {}, h("figcaption", {}, t("votes", this.label(token, slots))),
      table(t("votes", this.label(token, slots)), [t("word"), t("weight"), t("vote")],
        // "+ 0" makes 0 of -0
        first.map((position) => [visible(words[position]!), percent(weights[position]!, 1), number(Math.round(votes[position]! * 100) / 100 + 0)])))];
  }

  private drawVectors(): void {
    const opened = this.translation?.steps[this.step];
    if (!opened || !this.inside.open) return;
    const gates = Object.entries(opened.gates) as [Phrase, Float32Array][];
    const vectors: [Phrase, Float32Array][] = [
      ...(this.translator.network.attends ? [["query", opened.query] as [Phrase, Float32Array]] : []),
      ["context", opened.context], ...gates, ["state", opened.state.hidden.at(-1)!],
    ];
    const mean = (vector: Float32Array): number => vector.reduce((a, b) => a + b, 0) / vector.length;
    this.vectors.replaceChildren(
      ...vectors.map(([name, vector]) =>
        h("figure", {}, h("figcaption", {}, h("span", {}, t(name)), h("span", { class: "quiet" }, t("mean", number(mean(vector))))), strip(vector, t(name)))),
      ...this.votes(opened),
      h("details", { class: "twin" }, h("summary", {}, t("table")),
        table(t("inside"), [t("vector"), t("least"), t("average"), t("most")],
          vectors.map(([name, vector]) => [t(name), ...[Math.min(...vector), mean(vector), Math.max(...vector)].map((value) => number(value, 3))]))),
    );
  }
}
