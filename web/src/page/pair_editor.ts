/** The form with which a reader corrects a translation, and the lists of the reader's corrections and terms. */
import { sentenceKey } from "../decoder/memory";
import { Refusal } from "../decoder/refusal";
import { LONGEST_TERM, termOf } from "../decoder/terms";
import type { Translation } from "../decoder/translator";
import { h, isolated } from "./dom";
import { saveText } from "./save";
import { spoken, t } from "./strings";
import { rowsOf, tsvOf } from "./table";
import type { Kind, UserPairs } from "./user_pairs";

interface EditorListeners {
  /** Called when a correction is saved, before translations change. */
  readonly corrected: () => void;
  /** Resolves to true when the translation of the present text is shown, to false if there is none or the text changes. */
  readonly settled: () => Promise<boolean>;
  /** The shown translation, or null. */
  readonly shown: () => Translation | null;
}

export class PairEditor {
  readonly button: HTMLButtonElement;
  readonly form: HTMLElement;
  readonly lists: readonly HTMLElement[];
  /** The result of the last correction. */
  readonly status = h("p", { class: "quiet", role: "status" });
  private readonly field = h("textarea", { id: "right", rows: 2, dir: "auto", spellcheck: "false", autocomplete: "off" });
  private readonly trouble = h("p", { class: "trouble", role: "alert" });
  private readonly outdated = h("ul", { class: "notes outdated", "aria-live": "polite", hidden: true });
  private readonly details = { corrections: h("details", { class: "notes", hidden: true }), terms: h("details", { class: "notes" }) };
  private texts: readonly [source: string, target: string] = ["", ""]; // of the corrected translation
  private isSaving = false;
  private listedTerms: UserPairs["lists"]["terms"] | null = null;

  constructor(private readonly pairs: UserPairs, attends: boolean, private readonly listeners: EditorListeners) {
    this.button = h("button", { type: "button", class: "correct", title: "Ctrl+Enter", "aria-keyshortcuts": "Control+Enter Meta+Enter", "aria-expanded": "false", click: () => void this.open() }, t("correct"));
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
    }, h("label", { for: "right", class: "title" }, t("right")), this.field, this.trouble,
      h("div", { class: "tools" }, h("button", { type: "submit" }, t("save-correction")), h("button", { type: "button", class: "plain", click: () => this.close() }, t("cancel"))));
    this.lists = attends ? [this.outdated, this.details.terms, this.details.corrections] : [this.outdated, this.details.corrections];
    pairs.listed = () => this.show();
    this.show();
  }

  /** Shows the button for the shown translation; the form closes when the text changes. */
  update(): void {
    const source = this.listeners.shown()?.texts[0];
    this.button.hidden = !source?.trim();
    if (source === this.texts[0]) return;
    if (!this.form.hidden) this.toggle(false);
    this.status.textContent = "";
  }

  async open(): Promise<void> {
    if (!(await this.listeners.settled()) || this.button.hidden) return;
    this.texts = this.listeners.shown()!.texts;
    this.status.textContent = this.trouble.textContent = "";
    this.field.value = this.texts[1];
    this.toggle(true);
    this.field.focus();
  }

  private close(): void {
    this.toggle(false);
    this.button.focus();
  }

  private toggle(open: boolean): void {
    this.form.hidden = !open;
    this.button.classList.toggle("unseen", open);
    this.button.setAttribute("aria-expanded", String(open));
  }

  private async save(): Promise<void> {
    if (this.isSaving) return;
    this.isSaving = true;
    const [source, target] = [this.texts[0], this.field.value.trim()];
    try {
      const replaced = await this.pairs.correct(source, target, () => {
        this.close();
        this.listeners.corrected();
      });
      const lost = replaced.filter((pair) => pair.target !== target || pair.key !== sentenceKey(source));
      this.status.textContent = [t("corrected"), ...lost.map((pair) => t("replaces", isolated(pair.source), isolated(pair.target)))].join(" ");
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.trouble.textContent = t(error.reason, error.detail);
    } finally {
      this.isSaving = false;
    }
  }

  private show(): void {
    const { lists: { corrections, terms }, outdated } = this.pairs;
    this.outdated.hidden = !outdated.length;
    this.outdated.replaceChildren(...outdated.map(([[source, target], newer]) => h("li", {},
      h("span", { dir: "auto" }, t("outdated", isolated(target), isolated(newer.source), isolated(newer.target))), this.removeButton(source, () => this.pairs.remove("corrections", source)))));
    this.details.corrections.hidden = !corrections.length;
    this.details.corrections.replaceChildren(
      h("summary", {}, t("corrections", corrections.length)), h("p", { class: "help" }, t(this.pairs.isStored ? "corrections-kept" : "corrections-help")), this.list("corrections"),
      h("div", { class: "tools" }, h("button", { type: "button", class: "plain", click: () => saveText(tsvOf(corrections.map(([source, target]) => [source, target])), "corrections.tsv", "text/tab-separated-values") }, t("save-tsv")),
        h("code", { class: "quiet" }, "dikkat correct my-model corrections.tsv")));
    if (terms === this.listedTerms) return; // the form's message and texts stay
    this.listedTerms = terms;
    this.details.terms.replaceChildren(
      h("summary", {}, terms.length ? t("terms-count", terms.length) : t("terms")), h("p", { class: "help" }, t("terms-help")), this.list("terms"), this.termForm());
  }

  private list(kind: Kind): HTMLElement {
    const remove = (source: string): void => {
      this.pairs.remove(kind, source);
      (this.details[kind].hidden ? this.button : this.details[kind].querySelector<HTMLElement>("summary")!).focus();
    };
    return h("ul", { class: "pairs-list" }, ...this.pairs.lists[kind].map(([source, target]) => h("li", {},
      h("span", { dir: "auto", class: "quiet" }, source), h("span", { dir: "auto" }, target),
      this.removeButton(source, () => remove(source)))));
  }

  private removeButton(source: string, remove: () => void): HTMLElement {
    return h("button", { type: "button", class: "icon small", "aria-label": t("remove", source), title: t("remove", source), click: remove }, "×");
  }

  private termForm(): HTMLElement {
    const inputs = (["term-source", "term-target"] as const).map((phrase) => h("input", { type: "text", dir: "auto", "aria-label": t(phrase), placeholder: t(phrase), autocomplete: "off", spellcheck: "false" }));
    const message = h("p", { class: "quiet", role: "status" });
    const add = (event: Event): void => {
      event.preventDefault();
      const [source, target] = inputs.map((input) => termOf(input.value));
      if (source && target) return this.addTerms([[source, target]]);
      const wrong = inputs[source ? 1 : 0]!;
      message.textContent = wrong.value.trim() ? invalidTerm() : "";
      message.classList.add("trouble");
      wrong.focus();
    };
    inputs[0]!.addEventListener("paste", (event) => {
      const rows = rowsOf(event.clipboardData?.getData("text/plain") ?? "");
      if (!rows.length) return;
      event.preventDefault();
      this.addTerms(rows);
    });
    return h("form", { submit: add }, h("div", { class: "tools" }, ...inputs, h("button", { type: "submit" }, t("add"))), message);
  }

  /** Adds the valid terms of rows with a source and a target. */
  private addTerms(rows: readonly (readonly [source: string, target: string])[]): void {
    const terms = rows.map((row) => row.map(termOf)).filter((row) => row.every(Boolean)) as [string, string][];
    const targets = new Map(terms); // the last one of a source
    const replaced = [...this.pairs.lists.terms, ...terms].filter(([source, target]) => (targets.get(source) ?? target) !== target);
    this.pairs.addTerms(terms);
    this.details.terms.querySelector("input")!.focus();
    const message = this.details.terms.querySelector("p[role=status]")!;
    message.classList.toggle("trouble", terms.length < rows.length);
    message.textContent = [
      rows.length > 1 && t("terms-added", targets.size), terms.length < rows.length && invalidTerm(),
      ...new Set(replaced.map(([source, target]) => t("term-replaced", isolated(source), isolated(targets.get(source)!), isolated(target)))),
    ].filter(Boolean).join(" ");
  }
}

const invalidTerm = (): string => t("term-invalid", LONGEST_TERM.toLocaleString(spoken()));
