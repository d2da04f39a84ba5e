/** The page: header, tabs, and the address with its state. */
import { Refusal } from "../decoder/refusal";
import { Translator } from "../decoder/translator";
import { createPlayground } from "../lessons/playground";
import { parseAddress, formatAddress, type TabName, type PageState } from "./address";
import { createCallsTab, type CallsContent } from "./calls";
import { createComparisonTab, type Comparison } from "./comparison_tab";
import { h, useFontOf } from "./dom";
import { TranslatorTab } from "./translator_tab";
import type { PackedAlignment, Sentence } from "./sentence";
import { SentencesTab, sentencesIn } from "./sentences_tab";
import { LANGUAGES, languagePair, preferredLanguage, setLanguage, currentLanguage, t, type Language, type Phrase } from "./strings";
import { UserPairs } from "./user_pairs";

export interface Start {
  /** The heading; "" shows the languages. */
  readonly title: string;
  /** Codes of the translator's languages, such as "en" and "fr"; null if unknown. */
  readonly languages: readonly [string, string] | null;
  readonly examples: readonly string[];
  /** The model as base64 of a gzipped bundle, or null. */
  readonly model: string | null;
  readonly sentences: readonly Sentence[] | null;
  readonly calls: CallsContent | null;
  readonly compared: Comparison | null;
}

const tabsOf = ({ model, sentences, calls, compared }: Start): TabName[] =>
  [...(sentences ? ["sentences" as const] : []), ...(calls ? ["calls" as const] : []), ...(compared ? ["comparison" as const] : []), ...(model === null ? [] : ["translate" as const, "playground" as const])];

/** Builds the page in an element. */
export async function mount(container: HTMLElement, start: Start): Promise<void> {
  const tabs = tabsOf(start);
  let state: PageState = parseAddress(location.hash, tabs);
  if (!location.hash && start.examples[0]) state = { ...state, text: start.examples[0] };
  let ownFragment = ""; // the fragment that this page wrote itself
  let translator: Translator | null = null;
  let pairs: UserPairs | null = null;
  let modelError: Refusal | null = null;
  const browserLanguages = navigator.languages ?? [navigator.language];

  const updateAddress = (changes: Partial<PageState>): void => {
    state = { ...state, ...changes };
    ownFragment = formatAddress(state, tabs);
    history.replaceState(null, "", `#${ownFragment}`);
  };

  const update = (changes: Partial<PageState>): void => {
    updateAddress(changes);
    draw();
  };

  const draw = (): void => {
    setLanguage(state.language ?? preferredLanguage(browserLanguages));
    document.documentElement.lang = currentLanguage();
    document.documentElement.dataset["theme"] = state.theme;
    const languages = start.languages && languagePair(start.languages);
    const title = start.title || languages || t("translate");
    document.title = title;
    const focused = (document.activeElement as HTMLElement | null)?.id;
    const lead = state.tab === "translate" && h("p", { class: "lead quiet" }, t("lead", languages && start.title ? ` (${languages})` : ""));
    container.replaceChildren(createHeader(title, lead), createContent(), h("footer", { class: "foot" }, h("p", { class: "quiet" }, t(start.model === null ? "about-plain" : "about"))));
    if (focused) document.getElementById(focused)?.focus();
  };

  const selectMenu = <T extends string>(id: string, label: Phrase, values: readonly (readonly [T, string])[], selected: T, apply: (value: T) => void): HTMLElement =>
    h("label", {}, h("span", { class: "unseen" }, t(label)), h("select", { id, change: (event: Event) => apply((event.target as HTMLSelectElement).value as T) },
      ...values.map(([value, name]) => h("option", { value, selected: value === selected, lang: id === "language" ? value : null }, name))));

  const createHeader = (title: string, lead: HTMLElement | false): HTMLElement => {
    const createTabButton = (name: TabName): HTMLElement =>
      h("button", { type: "button", id: `to-${name}`, "aria-current": state.tab === name ? "page" : null, click: () => update({ tab: name }) }, t(name));
    return h("header", { class: "masthead" },
      h("h1", { dir: "auto" }, title),
      tabs.length > 1 && h("nav", { "aria-label": title }, ...tabs.map(createTabButton)),
      h("div", { class: "tools" },
        selectMenu("language", "language", Object.entries(LANGUAGES) as [Language, string][], currentLanguage(), (language) => update({ language })),
        selectMenu("theme", "theme", (["auto", "light", "dark"] as const).map((theme) => [theme, t(`theme-${theme}`)] as const), state.theme, (theme) => {
          updateAddress({ theme });
          document.documentElement.dataset["theme"] = theme;
        })),
      lead
    );
  };

  const createContent = (): HTMLElement => {
    if (state.tab === "playground") return createPlayground();
    if (state.tab === "comparison") return createComparisonTab(start.compared!);
    if (state.tab === "calls") return createCallsTab(start.calls!);
    if (state.tab === "sentences") {
      const translate = (text: string): void => {
        update({ ...parseAddress("", tabs), tab: "translate", text, highlight: state.highlight, language: state.language, theme: state.theme });
        window.scrollTo(0, 0);
      };
      return new SentencesTab(start.sentences!, state.highlight, { highlightChanged: (highlight) => updateAddress({ highlight }), translate: start.model === null ? null : translate }).element;
    }
    if (modelError) return h("main", { id: "room" }, h("p", { class: "card trouble", role: "alert" }, t(modelError.reason, modelError.detail)));
    if (!translator || !pairs) return h("main", { id: "room" }, h("p", { class: "card quiet", role: "status" }, t("loading")));
    return new TranslatorTab(translator, pairs, state, start.examples, { stateChanged: updateAddress, hasAddress: true }).element;
  };

  window.addEventListener("hashchange", () => {
    if (location.hash.replace(/^#/, "") === ownFragment) return;
    state = parseAddress(location.hash, tabs);
    draw();
  });
  useFontOf(container);
  draw();
  if (start.model === null) return;
  try {
    if (!start.model.trim()) throw new Refusal("no-model", "0");
    translator = await Translator.unpack(start.model);
    pairs = new UserPairs(translator, `dikkat ${translator.checksum}`);
  } catch (error) {
    modelError = error instanceof Refusal ? error : new Refusal("damaged", String(error));
  }
  if (state.tab === "translate") draw();
}

/** The JSON in a page, written by `dikkat.show`. */
interface Content {
  readonly examples?: readonly string[];
  readonly languages?: readonly [string, string];
  readonly sentences?: readonly PackedAlignment[];
  readonly calls?: CallsContent;
  readonly compared?: Comparison;
}

/** Starts a page written by `dikkat.show`. */
export function startPage(): void {
  const container = document.getElementById("dikkat");
  if (!container) return;
  const removedText = (id: string): string | null => {
    const element = document.getElementById(id);
    element?.remove(); // frees several megabytes
    return element && element.textContent;
  };
  const { examples = [], languages = null, sentences, calls = null, compared = null } = JSON.parse(removedText("dikkat-content") ?? "{}") as Content;
  void mount(container, {
    title: container.dataset["title"] ?? "dikkat", languages, examples, calls, compared,
    sentences: sentences ? sentencesIn(container, sentences) : null,
    model: removedText("dikkat-model"),
  });
}
