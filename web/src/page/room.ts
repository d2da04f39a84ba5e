/** The translator's room: the text field, translations with their pictures, and steering. */
import { flagsOf } from "../decoder/confidence";
import { Refusal } from "../decoder/refusal";
import { normalised } from "../decoder/search";
import { LONGEST_TEXT } from "../decoder/lines";
import type { Translation, Translator } from "../decoder/translator";
import { isSame, NOWHERE, type Aligned, type Picture, type Spot } from "../pictures/aligned";
import { links } from "../pictures/links";
import { map, spotText } from "../pictures/map";
import type { TileMap } from "../pictures/tiles/tilemap";
import { BEAMS, BESTS, type View } from "./address";
import { activeIn, h, isolated, marked, numbered, tagged, unescaped, visible } from "./dom";
import { DRAWN, framed, tiled } from "./frame";
import { joinWords, wordIndexOf, type JoinedWords } from "./joined_words";
import { PairEditor } from "./pair_editor";
import { paused } from "./pausing";
import { saveText } from "./save";
import { FREE, History, isFree, pick, pin } from "./steering";
import { StepPanel } from "./step";
import { number, percent, t, type Phrase } from "./strings";
import type { UserPairs } from "./user_pairs";

const FIRST = 80; // milliseconds before an unfinished translation is shown: most searches end earlier
const WAIT = 90; // milliseconds after a key before a search begins
const HELD = 4 * LONGEST_TEXT; // letters that the field takes in
const LOW = 0.5; // confidence below which it has another colour
const FOLLOWED = 0.01; // least share of a stored pair that is read out
const COVERED = 90; // pixels at the window's bottom that the read-out may cover

type Own = Pick<View, "text" | "beam" | "best" | "html" | "chosen" | "step" | "shown">;

interface RoomListeners {
  /** Called when the state of the room changes. */
  readonly changed: (own: Own) => void;
  /** True if the page's address holds the state, so that a link can be copied. */
  readonly linked: boolean;
  /** Called with the translation that is shown, or null. */
  readonly shown?: (translation: Translation | null) => void;
}

/** A tile map with its alignment and card. */
interface Large {
  readonly of: Aligned;
  readonly card: HTMLElement;
  readonly tiles: TileMap;
}

export class Room {
  readonly element = h("main", { id: "room" });
  private readonly history = new History();
  private readonly text: HTMLTextAreaElement;
  private readonly result = h("p", { class: "result", dir: "auto", "aria-live": "polite" });
  private readonly facts = h("p", { class: "facts" });
  private readonly flags = h("ul", { class: "flags quiet", hidden: true });
  private readonly editor: PairEditor;
  private readonly numbers = h("p", { class: "quiet numbers" });
  /** Both texts, at the window's top while the desk is out of sight. */
  private readonly overhead = h("div", { class: "overhead", "aria-hidden": "true", hidden: true });
  private readonly others = h("ol", { class: "others", hidden: true });
  private readonly trouble = h("p", { class: "trouble", role: "alert", hidden: true });
  private readonly changes = h("section", { class: "changes", hidden: true, "aria-label": t("changes") });
  private readonly readout = h("p", { class: "readout", role: "status" });
  private readonly pictures = h("div", { class: "pictures", hidden: true });
  private readonly beginning = h("p", { class: "card help", hidden: true }, t("to-begin"));
  private readonly panel: StepPanel;
  private translations: Translation[] = [];
  private free = ""; // the translation before anything was changed
  private drawn: Pick<Picture, "stress">[] = [];
  private alignment!: Aligned; // of the drawn pictures
  private large: Large | null = null;
  private turn = 0;
  private running: Promise<void> | null = null; // the last run
  private waiting = 0;
  private room = 0;
  private own: Own;
  private apart = false; // true while parts of words are drawn by themselves
  private away = false; // true while the desk is out of sight

  constructor(private readonly translator: Translator, private readonly pairs: UserPairs, view: Own, examples: readonly string[], private readonly listeners: RoomListeners) {
    this.own = view;
    this.history.clear(view.chosen);
    this.text = h("textarea", {
      id: "text", rows: 3, dir: "auto", placeholder: t("placeholder"), spellcheck: "false", autocomplete: "off",
      input: () => this.typed(this.text.value),
      keydown: (event: KeyboardEvent) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        event.preventDefault();
        void this.editor.open();
      },
      beforeinput: (event: InputEvent) => {
        const more = event.data ?? event.dataTransfer?.getData("text/plain") ?? "";
        if (this.text.value.length + more.length <= HELD) return;
        // Laying out a megabyte takes seconds, and the text would be refused anyway.
        event.preventDefault();
        this.complain(t("too-long", this.text.value.length + more.length));
      },
    });
    this.text.value = view.text.slice(0, HELD);
    this.panel = new StepPanel(translator, {
      open: (step) => this.open(step),
      pin: (step, place, weight, live) => this.steer(pin(this.history.now, this.best.ids, step, place, weight), step, live),
      pick: (step, token) => this.steer(pick(this.history.now, this.best.ids, step, token), step),
      hover: (place) => this.look(place === null ? NOWHERE
        : { target: wordIndexOf(this.words("target"), this.own.step), source: wordIndexOf(this.words("source"), place) }),
    });
    const choose = (label: Phrase, values: readonly number[], name: "beam" | "best", say: (value: number) => string): HTMLElement =>
      h("label", {}, h("span", {}, t(label)), h("select", {
        id: name,
        change: (event: Event) => {
          this.own = { ...this.own, [name]: Number((event.target as HTMLSelectElement).value), shown: 0 };
          void this.run();
        },
      }, ...values.map((value) => h("option", { value, selected: value === this.own[name] }, say(value)))));
    this.editor = new PairEditor(pairs, translator.network.attends, {
      corrected: () => this.corrected(), shown: () => this.best ?? null, settled: () => this.settled(),
    });
    pairs.changed = () => void this.run();
    const desk = h("section", { class: "card desk" },
      h("div", { class: "half" },
        h("label", { for: "text", class: "title" }, t("source")), this.text,
        examples.length ? h("p", { class: "examples" }, h("span", { class: "quiet" }, t("examples")), ...examples.map((example) =>
          h("button", { type: "button", class: "chip", dir: "auto", click: () => this.use(example) }, visible(example)))) : null),
      h("div", { class: "half" }, h("h2", { class: "title" }, t("target")), this.result, this.others, this.trouble, this.flags, this.editor.status, this.editor.form,
        h("div", { class: "tools below" }, this.facts, this.editor.button)),
      h("details", { class: "more" }, h("summary", {}, t("more")),
        h("div", { class: "tools" },
          choose("alternatives", BESTS, "best", (best) => (best === 1 ? t("the-best") : t("n-best", best))),
          choose("search", BEAMS, "beam", (beam) => (beam === 1 ? t("greedy") : t("beam", beam))),
          h("label", {}, h("input", {
            type: "checkbox", id: "html", checked: this.own.html,
            change: (event: Event) => {
              this.own = { ...this.own, html: (event.target as HTMLInputElement).checked };
              this.typed(this.text.value);
            },
          }), t("html")),
          translator.source.cuts && h("label", {}, h("input", {
            type: "checkbox", id: "parts",
            change: (event: Event) => {
              this.apart = (event.target as HTMLInputElement).checked;
              this.draw();
            },
          }), t("parts")),
          h("button", { type: "button", class: "plain", click: () => this.saveJson() }, t("save-json")),
          listeners.linked && h("button", { type: "button", class: "plain", click: (event: Event) => void this.copyLink(event.currentTarget as HTMLElement) }, t("link"))),
        this.numbers),
      ...this.editor.lists);
    this.element.append(this.overhead, desk, this.changes, this.beginning, this.pictures);
    new IntersectionObserver((entries) => {
      const { isIntersecting, boundingClientRect } = entries.at(-1)!;
      this.away = !isIntersecting && boundingClientRect.top < 0;  // scrolled past, not still below
      this.showOverhead();
    }).observe(desk.querySelector(".half + .half")!);
    new ResizeObserver(() => {
      const room = this.pictures.clientWidth;
      if (room && room !== this.room) this.draw();
    }).observe(this.pictures);
    void this.run();
  }

  private get best(): Translation {
    return this.translations[this.own.shown]!;
  }

  /** Translates another text. */
  use(text: string): void {
    this.text.value = text;
    this.typed(text);
  }

  private typed(text: string): void {
    this.own = { ...this.own, text, step: 0, shown: 0 };
    this.history.clear();
    clearTimeout(this.waiting);
    this.waiting = window.setTimeout(() => void this.run(), WAIT);
  }

  /** Gets ready for the next sentence: typing replaces this one. On a touch screen, a keyboard would hide the translation. */
  private corrected(): void {
    this.history.clear();
    if (!matchMedia("(pointer: fine)").matches) return;
    this.text.focus();
    this.text.select();
  }

  private steer(next: History["now"], step: number, live = false): void {
    this.history.push(next, live);
    this.own = { ...this.own, step, shown: 0 };
    void this.run(live);
  }

  // --- searching

  /** @param live true while a slider is dragged: the address stays, since browsers limit how often it may change */
  private run(live = false): Promise<void> {
    return (this.running = this.search(live));
  }

  /** True if the translation of the present text is shown, also after newer runs; false if there is none, or the text changes. */
  private async settled(): Promise<boolean> {
    const { text } = this.own;
    if (this.best?.source !== text) void this.run();
    for (let ended = null; ended !== this.running; ) await (ended = this.running);
    return this.own.text === text && this.best?.source === text;
  }

  private async search(live: boolean): Promise<void> {
    const mine = ++this.turn;
    clearTimeout(this.waiting);
    const chosen = this.history.now;
    this.own = { ...this.own, chosen };
    if (!live) this.listeners.changed(this.own);
    this.complain("");
    this.panel.showError("");
    const options = { beam: this.own.beam, best: Math.min(this.own.best, this.own.beam), chosen, terms: this.pairs.lists.terms };
    const started = performance.now();
    try {
      const translations = await paused(this.translator.translating(this.own.text, options, this.own.html ? unescaped : null), () => mine !== this.turn, (text) => {
        this.result.textContent = text();
        this.result.classList.add("forming");
        this.facts.textContent = ""; // of the translation before
        this.flags.hidden = true;
      }, FIRST);
      if (!translations) return;
      this.translations = translations;
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      const steered = !isFree(chosen);
      const why = t(error.reason, error.detail, error.open);
      if (steered && this.translations.length && this.history.canUndo) {
        // An impossible change is undone; the translation before it stays.
        this.history.undo();
        this.own = { ...this.own, chosen: this.history.now };
        this.listeners.changed(this.own);
        this.show();
        this.panel.showError(why);
        return;
      }
      this.complain(why);
      this.translations = [];
    }
    if (isFree(chosen)) this.free = this.translations[0]?.target ?? "";
    this.show(performance.now() - started);
  }

  private complain(what: string): void {
    this.trouble.textContent = what;
    this.trouble.hidden = !what;
  }

  // --- showing

  private show(milliseconds: number | null = null): void {
    const { translations } = this;
    this.own = { ...this.own, shown: Math.min(this.own.shown, Math.max(0, translations.length - 1)) };
    this.result.classList.remove("forming");
    this.result.classList.toggle("quiet", !translations.length);
    this.result.replaceChildren(...(translations.length ? this.written(this.best) : [this.trouble.hidden ? t("nothing") : ""]));
    this.others.hidden = translations.length < 2;
    this.result.hidden = translations.length > 1;
    this.others.replaceChildren(...translations.map((translation, k) => h("li", {}, h("button", {
      type: "button", "aria-pressed": String(k === this.own.shown), click: () => this.choose(k),
    }, h("span", { dir: "auto" }, ...(translation.target ? this.written(translation) : ["—"])), h("span", { class: "quiet" }, flagOf(translation) ?? percent(translation.confidence ?? sureness(translation), 1))))));
    const { beam, best } = this.own;
    const sure = translations.length && (flagOf(this.best) ?? (this.best.ids.length && t(...this.sure(translations.length > 1 ? 1 : 0))));
    this.facts.textContent = translations.length ? [sure, best > beam && t("few", beam)].filter(Boolean).join(" · ") : "";
    this.facts.classList.toggle("low", !!translations.length && (this.best.confidence ?? 1) < LOW);
    this.showFlags();
    this.editor.update();
    this.numbers.textContent = [
      translations.length && `${t("score")} ${number(this.best.score)}`, t(this.translator.confidence ? "confidence-is" : "ranked"), milliseconds !== null && t("speed", Math.round(milliseconds)),
    ].filter(Boolean).join(" · ");
    this.showChanges();
    if (translations.length) this.own = { ...this.own, step: Math.min(this.own.step, Math.max(0, this.best.steps.length - 1)) };
    this.pictures.hidden = !translations.length;
    this.beginning.hidden = !!translations.length || !this.trouble.hidden;
    this.showOverhead();
    this.listeners.shown?.(translations.length ? this.best : null);
    this.draw();
    // The redrawn page may have pushed the focused element out of sight.
    this.pictures.querySelector(":focus-visible")?.scrollIntoView({ block: "nearest" });
  }

  private sure(digits: number): [Phrase, string] {
    const { confidence } = this.best;
    return confidence === null ? ["sure", percent(sureness(this.best), digits)] : ["confidence", percent(confidence, digits)];
  }

  /** Shows the reasons with words to check the translation; the other ones are shown in place of its confidence. */
  private showFlags(): void {
    const flags = this.translations.length ? [...flagsOf(this.best)].filter(([, words]) => words.length) : [];
    this.flags.hidden = !flags.length;
    this.flags.replaceChildren(...flags.map(([flag, words]) => h("li", {}, t(flag),
      ...[...new Set(words)].flatMap((word) => [" ", h("u", { title: flag === "unknown words" ? t("a-guess") : null, dir: "auto" }, visible(shortened(word)))]))));
  }

  /** The text of a translation, with what the reader's changes made of it in <mark>. */
  private written({ target }: Translation): (HTMLElement | string)[] {
    if (!isFree(this.history.now) && this.free) return marked(target, this.free, this.own.html);
    return this.own.html ? tagged(target) : [target];
  }

  private showOverhead(): void {
    this.overhead.hidden = !this.away || !this.translations.length;
    if (this.overhead.hidden) return;
    this.overhead.replaceChildren(h("div", { class: "card" }, h("p", { dir: "auto", class: "quiet" }, this.own.text), h("p", { dir: "auto" }, ...this.written(this.best))));
    const text = this.overhead.querySelector("p:last-child")!;
    // Of a text that is too long, the part around the opened word is in view.
    text.scrollTop = (text.scrollHeight * (this.own.step + 0.5)) / Math.max(1, this.best.steps.length) - text.clientHeight / 2;
  }

  private choose(shown: number): void {
    this.own = { ...this.own, shown, step: 0 };
    this.listeners.changed(this.own);
    this.show();
    this.others.querySelectorAll("button")[shown]?.focus();
  }

  private showChanges(): void {
    const { now } = this.history;
    const button = (phrase: Phrase, able: boolean, act: () => void): HTMLButtonElement =>
      h("button", { type: "button", class: "plain", disabled: !able, click: () => {
        act();
        void this.run();
      } }, t(phrase));
    const list: string[] = [];
    const held: string[] = [];
    if (this.translations.length) {
      const { sourceTokens, targetTokens } = this.best;
      const read = numbered(sourceTokens);
      held.push(...now.tokens.flatMap((_, step) => (now.picked.has(step) ? [] : [visible(targetTokens[step] || t("end"))])));
      const steps = [...new Set([...now.pins.keys(), ...now.picked])].sort((a, b) => a - b);
      for (const step of steps) {
        for (const [position, weight] of now.pins.get(step) ?? []) {
          list.push(t("change-pin", step + 1, read[position] ?? "?", percent(weight, weight * 1000 % 10 ? 1 : 0)));
        }
        if (now.picked.has(step)) list.push(t("change-word", step + 1, visible(targetTokens[step] || t("end"))));
      }
    }
    const had = this.changes.contains(activeIn(this.changes)) ? activeIn(this.changes)!.textContent : null;
    this.changes.hidden = isFree(now) && !this.history.canRedo && !this.history.canUndo;
    this.changes.replaceChildren(
      h("h2", {}, t("changes")),
      h("ul", {}, ...list.map((change) => h("li", { dir: "auto" }, change))),
      ...(held.length ? [h("p", { class: "quiet", dir: "auto" }, t("held", held.join(" ")))] : []),
      ...(!isFree(now) && this.free && this.free !== this.best?.target ? [h("p", { class: "quiet", dir: "auto" }, t("was", this.free))] : []),
      h("div", { class: "tools" },
        button("undo", this.history.canUndo, () => this.history.undo()),
        button("redo", this.history.canRedo, () => this.history.redo()),
        button("clear", !isFree(now), () => this.history.push(FREE))),
    );
    if (had !== null) {
      // Focus returns to the same button, or to the first that is enabled.
      const able = [...this.changes.querySelectorAll<HTMLButtonElement>("button:not(:disabled)")];
      (able.find((button) => button.textContent === had) ?? able[0])?.focus();
    }
  }

  private words(side: "source" | "target"): JoinedWords {
    return joinWords(this.best[`${side}Tokens`], this.translator[side].cuts && !this.apart);
  }

  /** What is drawn: of a word's parts the mean, at a word's parts the sum. */
  private aligned(): Aligned {
    const [source, target] = [this.words("source"), this.words("target")];
    const { steps } = this.best;
    const { now } = this.history;
    const weightsOf = (parts: readonly number[]): Float64Array => {
      const weights = new Float64Array(source.parts.length), rows = parts.map((step) => steps[step]!.weights);
      source.parts.forEach((positions, k) => {
        for (const row of rows) for (const position of positions) weights[k]! += row[position]! / rows.length;
      });
      return weights;
    };
    return {
      source: source.words, target: target.words, weights: target.parts.map(weightsOf),
      changed: new Set([...now.pins.keys(), ...now.picked].map((step) => wordIndexOf(target, step)!)),
    };
  }

  private draw(): void {
    this.drawn = [];
    if (!this.translations.length) return;
    const aligned = this.alignment = this.aligned();
    const focus = this.focused();
    this.room = this.pictures.clientWidth;
    const listeners = { look: (spot: Spot) => this.look(spot), open: (spot: Spot) => this.opened(spot) };
    const cells = aligned.source.length * aligned.target.length;
    const inside = Math.max(220, this.room - 2 * padding(this.element));
    let cards: HTMLElement[] = [];
    if (!this.translator.network.attends) cards = [h("section", { class: "card" }, h("p", { class: "help" }, t("no-attention")))];
    else if (cells > DRAWN) {
      if (!this.large || !isSame(this.large.of, aligned)) this.large = this.tiled(aligned);
      const { card, tiles } = this.large;
      this.drawn = [{ stress: (spot) => tiles.stress(spot.target, spot.source) }];
      cards = [card];
    } else if (cells) {
      const [first, second] = [links(aligned, inside, listeners), map(aligned, inside, listeners)];
      this.drawn = [first, second];
      cards = [this.card("links", first, aligned), this.card("map", second, aligned)];
    }
    const { steps } = this.best;
    if (steps.length) this.panel.show(this.best, this.own.step, this.history.now.pins.get(this.own.step) ?? new Map());
    const isShown = this.panel.element.parentElement === this.pictures;
    // The panel is not moved, so that a drag in it goes on; nor is a large map, which keeps its zoom.
    for (const element of [...this.pictures.children]) if (element !== this.panel.element && element !== cards[0]) element.remove();
    if (!isShown) this.pictures.append(this.panel.element);
    this.panel.element.hidden = !steps.length;
    if (cards[0] && cards[0].parentElement !== this.pictures) this.pictures.prepend(cards[0]);
    cards[0]?.after(this.readout);
    if (cards[1]) this.pictures.append(cards[1]);
    this.look(NOWHERE);
    if (focus) this.refocus(focus);
  }

  /** Selector of the focused picture, to restore focus after redrawing. */
  private focused(): string | null {
    const active = activeIn(this.pictures);
    if (!active || !this.pictures.contains(active)) return null;
    if (active.closest(".map")) return "svg.map";
    const words = [...this.pictures.querySelectorAll(".links .written")];
    return words.includes(active) ? `.links .written:nth-of-type(${words.indexOf(active) + 1})` : null;
  }

  private refocus(where: string): void {
    if (where === "svg.map") this.pictures.querySelector<SVGElement>(where)?.focus();
    else [...this.pictures.querySelectorAll<SVGElement>(".links .written")][wordIndexOf(this.words("target"), this.own.step) ?? 0]?.focus();
  }

  private card(phrase: "links" | "map", picture: Picture, aligned: Aligned): HTMLElement {
    const { tools, body } = framed(picture, aligned, `dikkat-${phrase}`);
    return h("section", { class: `card ${phrase}-card` },
      h("header", {}, h("h2", {}, t(phrase)), tools), h("p", { class: "help" }, t(`${phrase}-help`)), body);
  }

  /** A card with a tile map, for long texts. */
  private tiled(aligned: Aligned): Large {
    const tiles = tiled(aligned, (target, source) => this.opened({ target, source }));
    const card = h("section", { class: "card map-card" }, h("header", {}, h("h2", {}, t("map"))),
      h("p", { class: "help" }, t("too-long-for-links", aligned.target.length, aligned.source.length)), h("p", { class: "help" }, t("tiles-help")), tiles.element);
    return { of: aligned, card, tiles };
  }

  private look(spot: Spot): void {
    const there = this.translations.length ? wordIndexOf(this.words("target"), this.own.step) : null;
    for (const picture of this.drawn) picture.stress(spot, there);
    this.readout.textContent = this.translations.length ? [spotText(this.alignment, spot), this.followed(spot)].filter(Boolean).join(" · ") : "";
    const here = this.pictures.querySelector(".weight-row:hover, .weight-row:focus-within, .word:hover, .word:focus, .ring[visibility=visible]");
    const above = !!here && here.getBoundingClientRect().bottom > innerHeight - COVERED;
    this.readout.classList.toggle("above", above);
    this.readout.style.top = above && !this.overhead.hidden ? `${this.overhead.firstElementChild!.getBoundingClientRect().bottom + 8}px` : "";
  }

  /** The stored pairs with the largest shares of a word's probability. */
  private followed({ target, source }: Spot): string {
    const [step] = target === null || source !== null ? [] : this.words("target").parts[target]!;
    const sources = step === undefined ? [] : this.best.steps[step]!.sources.filter(({ weight }) => weight >= FOLLOWED).slice(0, 2);
    return sources.length ? t("follows", sources.map((source) => `“${isolated(shortened(source.source))}” → “${isolated(shortened(source.target))}” ${percent(source.weight)}`).join(", ")) : "";
  }

  private opened(spot: Spot): void {
    const [step, position] = [this.words("target").parts[spot.target ?? -1]?.[0], this.words("source").parts[spot.source ?? -1]?.[0]];
    if (step !== undefined) this.open(step);
    if (step !== undefined && position !== undefined) {
      this.panel.element.querySelector<HTMLInputElement>(`[data-place="${position}"] input[type=range]`)?.focus();
    }
  }

  private open(step: number): void {
    this.own = { ...this.own, step };
    this.listeners.changed(this.own);
    this.panel.show(this.best, step, this.history.now.pins.get(step) ?? new Map());
    this.showOverhead();
    this.look(NOWHERE);
  }

  // --- saving

  private saveJson(): void {
    const { now } = this.history;
    const content = {
      format: "dikkat page", version: 1, source: this.own.text,
      changes: {
        words: [...now.picked].map((step) => ({ step, token: now.tokens[step] })),
        weights: [...now.pins].flatMap(([step, weights]) => [...weights].map(([position, weight]) => ({ step, place: position, weight }))),
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
      // Browsers offer no clipboard to pages served over http.
      const field = h("input", { type: "text", class: "address", readonly: true, value: location.href, "aria-label": t("link-here"), title: t("link-here"), blur: () => field.remove() });
      button.after(field);
      return field.select();
    }
    const before = button.textContent;
    button.textContent = t("copied");
    setTimeout(() => (button.textContent = before), 1500);
  }
}

/** Why a translation has no confidence: its probability is high because it repeats, or says nothing about the missing rest. */
const flagOf = ({ repeated, finished }: Translation): string | null => (repeated ? t("repeated") : finished ? null : t("cut"));

/** A share for each word, e^(log-probability ÷ (5 + words)). */
const sureness = ({ score, ids, finished }: Translation): number => Math.exp(normalised(score, ids.length + Number(finished), 1) / 6);

const shortened = (word: string): string => (word.length > 40 ? `${[...word.slice(0, 80)].slice(0, 40).join("")}…` : word);

/** Horizontal padding of a card, in pixels. */
function padding(room: HTMLElement): number {
  const probe = room.querySelector(".card");
  return (probe && Number.parseFloat(getComputedStyle(probe).paddingLeft)) || 20; // no style before the room is in a page
}
