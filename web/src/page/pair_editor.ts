/** The form to correct a translation, and the lists of the reader's corrections and terms. */
import { sentenceKey } from "../decoder/memory";
import { Refusal } from "../decoder/refusal";
import { LONGEST_TERM, termOf } from "../decoder/terms";
import type { Translation } from "../decoder/translator";
import { h, isolateDirection } from "./dom";
import { saveText } from "./save";
import { currentLanguage, t } from "./strings";
import { rowsOf, tsvOf } from "./table";
import type { Kind, UserPairs } from "./user_pairs";

interface EditorListeners {
  /** Called after a correction is saved and before translations change. */
  readonly beforeCorrection: () => void;
  /** Resolves to false if the text has no translation, or changed during the wait. */
  readonly waitForTranslation: () => Promise<boolean>;
  /** The current translation, or null. */
  readonly translation: () => Translation | null;
}

export class PairEditor {
  readonly button: HTMLButtonElement;
  readonly form: HTMLElement;
  readonly lists: readonly HTMLElement[];
  /** The result of the last correction. */
  readonly status = h("p", { class: "quiet", role: "status" });
  private readonly field = h("textarea", { id: "right", rows: 2, dir: "auto", spellcheck: "false", autocomplete: "off" });
  private readonly error = h("p", { class: "trouble", role: "alert" });
  private readonly outdated = h("ul", { class: "notes outdated", "aria-live": "polite", hidden: true });
  private readonly details = { corrections: h("details", { class: "notes", hidden: true }), terms: h("details", { class: "notes" }) };
  private texts: readonly [source: string, target: string] = ["", ""]; // of the translation in the form
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
    }, h("label", { for: "right", class: "title" }, t("right-translation")), this.field, this.error,
      h("div", { class: "tools" }, h("button", { type: "submit" }, t("save-correction")), h("button", { type: "button", class: "plain", click: () => this.close() }, t("cancel"))));
    this.lists = attends ? [this.outdated, this.details.terms, this.details.corrections] : [this.outdated, this.details.corrections];
    pairs.listsChanged = () => this.show();
    this.show();
  }

  /** Shows the button if there is a translation, and closes the form if the text changed. */
  update(): void {
    const source = this.listeners.translation()?.texts[0];
    this.button.hidden = !source?.trim();
    if (source === this.texts[0]) return;
    if (!this.form.hidden) this.toggle(false);
    this.status.textContent = "";
  }

  async open(): Promise<void> {
    if (!(await this.listeners.waitForTranslation()) || this.button.hidden) return;
    this.texts = this.listeners.translation()!.texts;
    this.status.textContent = this.error.textContent = "";
    this.field.value = this.texts[1];
    this.toggle(true);
    this.field.focus();
  }

  private close(): void {
    this.toggle(false);
    this.button.focus();
  }

  private toggle(isOpen: boolean): void {
    this.form.hidden = !isOpen;
    this.button.classList.toggle("unseen", isOpen);
    this.button.setAttribute("aria-expanded", String(isOpen));
  }

  private async save(): Promise<void> {
    if (this.isSaving) return;
    this.isSaving = true;
    const [source, target] = [this.texts[0], this.field.value.trim()];
    try {
      const replaced = await this.pairs.correct(source, target, () => {
        this.close();
        this.listeners.beforeCorrection();
      });
      const removed = replaced.filter((old) => old.target !== target || old.key !== sentenceKey(source));
      this.status.textContent = [t("correction-saved"), ...removed.map((old) => t("correction-replaced", isolateDirection(old.source), isolateDirection(old.target)))].join(" ");
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.error.textContent = t(error.reason, error.detail);
    } finally {
      this.isSaving = false;
    }
  }

  private show(): void {
    const { lists: { corrections, terms }, outdated } = this.pairs;
    this.outdated.hidden = !outdated.length;
    this.outdated.replaceChildren(...outdated.map(([[source, target], newer]) => h("li", {},
      h("span", { dir: "auto" }, t("correction-outdated", isolateDirection(target), isolateDirection(newer.source), isolateDirection(newer.target))), this.createRemoveButton(source, () => this.pairs.remove("corrections", source)))));
    this.details.corrections.hidden = !corrections.length;
    this.details.corrections.replaceChildren(
      h("summary", {}, t("corrections", corrections.length)), h("p", { class: "help" }, t(this.pairs.isStored ? "corrections-kept" : "corrections-help")), this.createList("corrections"),
      h("div", { class: "tools" }, h("button", { type: "button", class: "plain", click: () => saveText(tsvOf(corrections.map(([source, target]) => [source, target])), "corrections.tsv", "text/tab-separated-values") }, t("save-tsv")),
        h("code", { class: "quiet" }, "dikkat correct my-model corrections.tsv")));
    if (terms === this.listedTerms) return; // keeps the form's message and texts
    this.listedTerms = terms;
    this.details.terms.replaceChildren(
      h("summary", {}, terms.length ? t("terms-count", terms.length) : t("terms")), h("p", { class: "help" }, t("terms-help")), this.createList("terms"), this.createTermForm());
  }

  private createList(kind: Kind): HTMLElement {
    const remove = (source: string): void => {
      this.pairs.remove(kind, source);
      (this.details[kind].hidden ? this.button : this.details[kind].querySelector<HTMLElement>("summary")!).focus();
    };
    return h("ul", { class: "pairs-list" }, ...this.pairs.lists[kind].map(([source, target]) => h("li", {},
      h("span", { dir: "auto", class: "quiet" }, source), h("span", { dir: "auto" }, target),
      this.createRemoveButton(source, () => remove(source)))));
  }

  private createRemoveButton(source: string, remove: () => void): HTMLElement {
    return h("button", { type: "button", class: "icon small", "aria-label": t("remove", source), title: t("remove", source), click: remove }, "×");
  }

  private createTermForm(): HTMLElement {
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

  /** Adds the valid terms among rows of a source and a target. */
  private addTerms(rows: readonly (readonly [source: string, target: string])[]): void {
    const terms = rows.map((row) => row.map(termOf)).filter((row) => row.every(Boolean)) as [string, string][];
    const targets = new Map(terms); // the last target of each source
    const replaced = [...this.pairs.lists.terms, ...terms].filter(([source, target]) => (targets.get(source) ?? target) !== target);
    this.pairs.addTerms(terms);
    this.details.terms.querySelector("input")!.focus();
    const message = this.details.terms.querySelector("p[role=status]")!;
    message.classList.toggle("trouble", terms.length < rows.length);
    message.textContent = [
      rows.length > 1 && t("terms-added", targets.size), terms.length < rows.length && invalidTerm(),
      ...new Set(replaced.map(([source, target]) => t("term-replaced", isolateDirection(source), isolateDirection(targets.get(source)!), isolateDirection(target)))),
    ].filter(Boolean).join(" ");
  }
}

const invalidTerm = (): string => t("term-invalid", LONGEST_TERM.toLocaleString(currentLanguage()));
