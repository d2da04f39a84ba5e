/** A reader's corrections and terms, which the browser keeps for the next time if it can. */
import { Refusal } from "../decoder/refusal";
import { termOf, type Terms } from "../decoder/terms";
import type { Translation, Translator } from "../decoder/translator";
import { h, isolated } from "./dom";
import { saveText } from "./save";
import { t } from "./strings";

const SLICE = 24; // milliseconds of computing between two turns of the browser's event loop

type Pairs = readonly (readonly [source: string, target: string])[];
type Kind = "corrections" | "terms";
type Kept = Readonly<Record<Kind, Pairs>>;

/** Lists that the browser does not store, because it may not or cannot. */
const UNSTORED = new WeakMap<Translator, Kept>();
/** The number of times that corrections were applied: older runs stop. */
const RUNS = new WeakMap<Translator, number>();
const isPairs = (value: unknown): value is Pairs => Array.isArray(value) && value.every((pair) => Array.isArray(pair) && pair.length === 2 && pair.every((text) => typeof text === "string"));
const without = (pairs: Pairs, source: string): Pairs => pairs.filter(([other]) => other !== source);

/** Runs a generator with pauses for the browser's event loop, and returns its result; null if it stopped. */
async function paused<T>(going: Generator<unknown, T>, stops = (): boolean => false): Promise<T | null> {
  for (let since = performance.now(); !stops();) {
    const { done, value } = going.next();
    if (done) return value;
    if (performance.now() - since < SLICE) continue;
    await new Promise((resolve) => setTimeout(resolve));
    since = performance.now();
  }
  return null;
}

export interface NotesListeners {
  /** Called when translations may have changed. */
  readonly changed: () => void;
  /** Called before that, when a correction is saved. */
  readonly corrected: () => void;
  /** The shown translation, or null. */
  readonly shown: () => Translation | null;
}

export class Notes {
  readonly button: HTMLButtonElement;
  readonly form: HTMLElement;
  readonly lists: readonly HTMLElement[];
  readonly said = h("p", { class: "quiet", role: "status" });
  private kept: Kept;
  private readonly field = h("textarea", { id: "right", rows: 2, dir: "auto", spellcheck: "false", autocomplete: "off" });
  private readonly refused = h("p", { class: "trouble", role: "alert" });
  private readonly corrections = h("details", { class: "notes", hidden: true });
  private readonly termList = h("details", { class: "notes" });
  private readonly refusals = new Set<string>(); // listed corrections that this model cannot store
  private corrected: readonly [string, string] = ["", ""];

  /** @param name of what the browser keeps; null: it keeps nothing */
  constructor(private readonly translator: Translator, private readonly name: string | null, private readonly listeners: NotesListeners) {
    this.button = h("button", { type: "button", class: "correct", "aria-expanded": "false", click: () => this.open() }, t("correct"));
    this.form = h("form", {
      class: "correction", hidden: true,
      submit: (event: Event) => {
        event.preventDefault();
        void this.save();
      },
      keydown: (event: KeyboardEvent) => {
        if (event.key === "Escape") this.close();
        if (event.key !== "Enter" || event.isComposing || event.target !== this.field) return;
        event.preventDefault();
        void this.save();
      },
    }, h("label", { for: "right", class: "title" }, t("right")), this.field, this.refused,
      h("div", { class: "tools" }, h("button", { type: "submit" }, t("save-correction")), h("button", { type: "button", class: "plain", click: () => this.close() }, t("cancel"))));
    this.lists = translator.network.attends ? [this.termList, this.corrections] : [this.corrections];
    this.kept = this.read();
    this.show();
    if (name !== null) addEventListener("storage", (event) => (event.key === name || event.key === null) && this.form.isConnected && this.follow()); // another page's
  }

  get terms(): Terms {
    return this.kept.terms;
  }

  /** Shows the button for the shown translation; the field closes when the text changes. */
  update(): void {
    const texts = this.listeners.shown()?.texts;
    this.button.hidden = !texts?.[0].trim();
    if (!this.form.hidden && texts?.[0] !== this.corrected[0]) this.close(false);
    if (texts?.[0] !== this.corrected[0]) this.said.textContent = "";
  }

  // --- keeping

  private read(): Kept {
    const unstored = UNSTORED.get(this.translator);
    if (unstored) return unstored;
    try {
      const { corrections, terms } = JSON.parse(localStorage.getItem(this.name!)!) as Partial<Kept>;
      if (this.name !== null && isPairs(corrections) && isPairs(terms)) return { corrections, terms };
    } catch {
      // No storage, or nothing in it.
    }
    return { corrections: [], terms: [] };
  }

  /** Changes a list; the changes of other pages with this model stay. */
  private change(kind: Kind, change: (pairs: Pairs) => Pairs): void {
    const before = this.read();
    this.kept = { ...before, [kind]: change(before[kind]) };
    UNSTORED.set(this.translator, this.kept);
    try {
      if (this.name !== null) {
        localStorage.setItem(this.name, JSON.stringify(this.kept));
        UNSTORED.delete(this.translator);
      }
    } catch {
      // Full, or forbidden.
    }
    this.follow(false);
  }

  private follow(again = true): void {
    if (again) this.kept = this.read();
    this.show();
    void this.apply(true);
  }

  /** Stores the listed corrections in the translator's memory, and removes the reader's other ones. Reports changes. */
  async apply(hasChanged = false): Promise<void> {
    const run = (RUNS.get(this.translator) ?? 0) + 1;
    RUNS.set(this.translator, run);
    const stops = (): boolean => RUNS.get(this.translator) !== run;
    const listed = new Set(this.kept.corrections.map((pair) => pair.join("\0")));
    this.translator.memory.retain(({ source, target }) => listed.has(`${source}\0${target}`));
    for (const [source, target] of this.kept.corrections) {
      const [known, name] = [this.translator.memory.find(source), `${source}\0${target}`];
      if (this.refusals.has(name) || (known?.source === source && known.target === target)) continue;
      hasChanged = true;
      try {
        await paused(this.translator.correcting(source, target), stops);
      } catch (error) {
        if (!(error instanceof Refusal)) throw error;
        this.refusals.add(name);
      }
      if (stops()) return;
    }
    if (hasChanged) this.listeners.changed();
  }

  // --- correcting

  private open(): void {
    this.corrected = this.listeners.shown()!.texts;
    this.said.textContent = this.refused.textContent = "";
    this.field.value = this.corrected[1];
    this.toggle(true);
    this.field.focus();
  }

  private close(focus = true): void {
    this.toggle(false);
    if (focus) this.button.focus();
  }

  private toggle(open: boolean): void {
    this.form.hidden = !open;
    this.button.classList.toggle("unseen", open);
    this.button.setAttribute("aria-expanded", String(open));
  }

  private async save(): Promise<void> {
    const [source, target] = [this.corrected[0], this.field.value.trim()];
    try {
      const { unknown, target: written } = (await paused(this.translator.correcting(source, target)))!;
      this.said.textContent = unknown.length ? t("cannot-write", unknown.join(", ")) : written === target ? t("corrected") : t("writes-as", isolated(written));
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.refused.textContent = t(error.reason, error.detail);
      return;
    }
    this.close();
    this.listeners.corrected();
    this.change("corrections", (pairs) => [...without(pairs, source), [source, target]]);
  }

  // --- lists

  private show(): void {
    const { corrections, terms } = this.kept;
    const removal = (kind: Kind, source: string): HTMLElement => h("button", {
      type: "button", class: "icon small", "aria-label": t("remove", source), title: t("remove", source),
      click: () => {
        this.change(kind, (pairs) => without(pairs, source));
        const list = kind === "terms" ? this.termList : this.corrections;
        (list.hidden ? this.button : list.querySelector<HTMLElement>("summary")!).focus();
      },
    }, "×");
    this.corrections.hidden = !corrections.length;
    this.corrections.replaceChildren(h("summary", {}, t("corrections", corrections.length)), h("p", { class: "help" }, t(this.name === null || UNSTORED.has(this.translator) ? "corrections-help" : "corrections-kept")),
      h("ul", { class: "pairs-list" }, ...corrections.map(([source, target]) => h("li", {}, h("span", { dir: "auto", class: "quiet" }, source), h("span", { dir: "auto" }, target), removal("corrections", source)))),
      h("div", { class: "tools" }, h("button", { type: "button", class: "plain", click: () => {
        const rows = corrections.map((pair) => pair.map((text) => text.replace(/\s+/gu, " ").trim()).join("\t"));
        saveText(rows.map((row) => `${row}\n`).join(""), "corrections.tsv", "text/tab-separated-values");
      } }, t("save-tsv")), h("span", { class: "quiet" }, "dikkat correct my-model corrections.tsv")));
    const inputs = (["term-source", "term-target"] as const).map((phrase) => h("input", { type: "text", dir: "auto", "aria-label": t(phrase), placeholder: t(phrase), autocomplete: "off", spellcheck: "false" }));
    this.termList.replaceChildren(h("summary", {}, terms.length ? t("terms-count", terms.length) : t("terms")), h("p", { class: "help" }, t("terms-help")),
      h("ul", { class: "pairs-list" }, ...terms.map(([source, target]) => h("li", {}, h("span", { dir: "auto" }, source), h("span", { dir: "auto" }, target), removal("terms", source)))),
      h("form", { class: "tools", submit: (event: Event) => {
        event.preventDefault();
        const [source, target] = inputs.map((input) => termOf(input.value));
        inputs.find((_, k) => ![source, target][k])?.focus();
        if (!source || !target) return;
        this.change("terms", (pairs) => [...without(pairs, source), [source, target]]);
        this.termList.querySelector("input")!.focus();
      } }, ...inputs, h("button", { type: "submit" }, t("add"))));
  }
}
