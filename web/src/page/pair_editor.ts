/** The form with which a reader corrects a translation, and the lists of the reader's corrections and terms. */
import type { StoredPair } from "../decoder/memory";
import { Refusal } from "../decoder/refusal";
import { LONGEST_TERM, termOf } from "../decoder/terms";
import type { Translation } from "../decoder/translator";
import { h, isolated } from "./dom";
import { saveText, tsvOf } from "./save";
import { spoken, t } from "./strings";
import type { Kind, UserPairs } from "./user_pairs";

export interface EditorListeners {
  /** Called when a correction is saved, before translations change. */
  readonly corrected: () => void;
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
  private readonly details = { corrections: h("details", { class: "notes", hidden: true }), terms: h("details", { class: "notes" }) };
  private texts: readonly [source: string, target: string] = ["", ""]; // of the corrected translation

  constructor(private readonly pairs: UserPairs, attends: boolean, private readonly listeners: EditorListeners) {
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
    }, h("label", { for: "right", class: "title" }, t("right")), this.field, this.trouble,
      h("div", { class: "tools" }, h("button", { type: "submit" }, t("save-correction")), h("button", { type: "button", class: "plain", click: () => this.close() }, t("cancel"))));
    this.lists = attends ? [this.details.terms, this.details.corrections] : [this.details.corrections];
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

  private open(): void {
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
    const [source, target] = [this.texts[0], this.field.value.trim()];
    let replaced: readonly StoredPair[];
    try {
      replaced = await this.pairs.correct(source, target);
      this.status.textContent = [t("corrected"), ...replaced.filter((pair) => pair.target !== target).map((pair) => t("replaces", isolated(pair.source), isolated(pair.target)))].join(" ");
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      this.trouble.textContent = t(error.reason, error.detail);
      return;
    }
    this.close();
    this.listeners.corrected();
    this.pairs.add("corrections", source, target, replaced.map((pair) => pair.source));
  }

  private show(): void {
    const { corrections, terms } = this.pairs.lists;
    this.details.corrections.hidden = !corrections.length;
    this.details.corrections.replaceChildren(
      h("summary", {}, t("corrections", corrections.length)), h("p", { class: "help" }, t(this.pairs.isStored ? "corrections-kept" : "corrections-help")), this.list("corrections"),
      h("div", { class: "tools" }, h("button", { type: "button", class: "plain", click: () => saveText(tsvOf(corrections), "corrections.tsv", "text/tab-separated-values") }, t("save-tsv")),
        h("span", { class: "quiet" }, "dikkat correct my-model corrections.tsv")));
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
      h("button", { type: "button", class: "icon small", "aria-label": t("remove", source), title: t("remove", source), click: () => remove(source) }, "×"))));
  }

  private termForm(): HTMLElement {
    const inputs = (["term-source", "term-target"] as const).map((phrase) => h("input", { type: "text", dir: "auto", "aria-label": t(phrase), placeholder: t(phrase), autocomplete: "off", spellcheck: "false" }));
    const message = h("p", { class: "quiet", role: "status" });
    const add = (event: Event): void => {
      event.preventDefault();
      const [source, target] = inputs.map((input) => termOf(input.value));
      const wrong = inputs.find((_, k) => ![source, target][k]);
      message.textContent = wrong?.value.trim() ? t("term-invalid", LONGEST_TERM.toLocaleString(spoken())) : "";
      message.classList.toggle("trouble", !!wrong);
      wrong?.focus();
      if (!source || !target) return;
      const replaced = this.pairs.lists.terms.find((pair) => pair[0] === source && pair[1] !== target);
      this.pairs.add("terms", source, target, []);
      this.details.terms.querySelector("input")!.focus();
      this.details.terms.querySelector("p[role=status]")!.textContent = replaced ? t("term-replaced", isolated(source), isolated(replaced[1])) : "";
    };
    return h("form", { submit: add }, h("div", { class: "tools" }, ...inputs, h("button", { type: "submit" }, t("add"))), message);
  }
}
