/** The page: header, rooms, and the address that holds its state. */
import { Refusal } from "../decoder/refusal";
import { Translator } from "../decoder/translator";
import { playground } from "../lessons/playground";
import { read, written, type RoomName, type View } from "./address";
import { callsTab, type CallsContent } from "./calls";
import { comparisonRoom, type Comparison } from "./comparison";
import { h, writeAs } from "./dom";
import { Room } from "./room";
import type { Packed, Sentence } from "./sentence";
import { Sentences, sentencesIn } from "./sentences";
import { LANGUAGES, pair, preferred, speak, spoken, t, type Language, type Phrase } from "./strings";
import { UserPairs } from "./user_pairs";

export interface Start {
  /** The heading; empty: the languages. */
  readonly title: string;
  /** Codes of the languages that are translated, such as "en" and "fr"; null: unknown. */
  readonly languages: readonly [string, string] | null;
  readonly examples: readonly string[];
  /** The model as base64 of a gzipped bundle, or null. */
  readonly model: string | null;
  readonly sentences: readonly Sentence[] | null;
  readonly calls: CallsContent | null;
  readonly compared: Comparison | null;
}

const roomsOf = ({ model, sentences, calls, compared }: Start): RoomName[] =>
  [...(sentences ? ["sentences" as const] : []), ...(calls ? ["calls" as const] : []), ...(compared ? ["comparison" as const] : []), ...(model === null ? [] : ["translate" as const, "playground" as const])];

/** Builds the page in an element. */
export async function mount(place: HTMLElement, start: Start): Promise<void> {
  const rooms = roomsOf(start);
  let view: View = read(location.hash, rooms);
  if (!location.hash && start.examples[0]) view = { ...view, text: start.examples[0] };
  let ours = ""; // the fragment this page wrote itself, to be ignored when it changes
  let translator: Translator | null = null;
  let pairs: UserPairs | null = null;
  let trouble: Refusal | null = null;
  const systems = navigator.languages ?? [navigator.language];

  const note = (more: Partial<View>): void => {
    view = { ...view, ...more };
    ours = written(view, rooms);
    history.replaceState(null, "", `#${ours}`);
  };

  const go = (more: Partial<View>): void => {
    note(more);
    draw();
  };

  const draw = (): void => {
    speak(view.language ?? preferred(systems));
    document.documentElement.lang = spoken();
    document.documentElement.dataset["theme"] = view.theme;
    const languages = start.languages && pair(start.languages);
    const title = start.title || languages || t("translate");
    document.title = title;
    const focused = (document.activeElement as HTMLElement | null)?.id;
    const lead = view.room === "translate" && h("p", { class: "lead quiet" }, t("lead", languages && start.title ? ` (${languages})` : ""));
    place.replaceChildren(head(title, lead), content(), h("footer", { class: "foot" }, h("p", { class: "quiet" }, t(start.model === null ? "about-plain" : "about"))));
    if (focused) document.getElementById(focused)?.focus();
  };

  const choose = <T extends string>(id: string, label: Phrase, values: readonly (readonly [T, string])[], now: T, act: (value: T) => void): HTMLElement =>
    h("label", {}, h("span", { class: "unseen" }, t(label)), h("select", { id, change: (event: Event) => act((event.target as HTMLSelectElement).value as T) },
      ...values.map(([value, name]) => h("option", { value, selected: value === now, lang: id === "language" ? value : null }, name))));

  const head = (title: string, lead: HTMLElement | false): HTMLElement => {
    const room = (name: RoomName): HTMLElement =>
      h("button", { type: "button", id: `to-${name}`, "aria-current": view.room === name ? "page" : null, click: () => go({ room: name }) }, t(name));
    return h("header", { class: "masthead" },
      h("h1", { dir: "auto" }, title),
      rooms.length > 1 && h("nav", { "aria-label": title }, ...rooms.map(room)),
      h("div", { class: "tools" },
        choose("language", "language", Object.entries(LANGUAGES) as [Language, string][], spoken(), (language) => go({ language })),
        choose("theme", "theme", (["auto", "light", "dark"] as const).map((each) => [each, t(`theme-${each}`)] as const), view.theme, (theme) => {
          note({ theme });
          document.documentElement.dataset["theme"] = theme;
        })),
      lead
    );
  };

  const content = (): HTMLElement => {
    if (view.room === "playground") return playground();
    if (view.room === "comparison") return comparisonRoom(start.compared!);
    if (view.room === "calls") return callsTab(start.calls!);
    if (view.room === "sentences") {
      const translate = (text: string): void => {
        go({ ...read("", rooms), room: "translate", text, kept: view.kept, language: view.language, theme: view.theme });
        window.scrollTo(0, 0);
      };
      return new Sentences(start.sentences!, view.kept, { kept: (kept) => note({ kept }), translate: start.model === null ? null : translate }).element;
    }
    if (trouble) return h("main", { id: "room" }, h("p", { class: "card trouble", role: "alert" }, t(trouble.reason, trouble.detail)));
    if (!translator || !pairs) return h("main", { id: "room" }, h("p", { class: "card quiet", role: "status" }, t("loading")));
    return new Room(translator, pairs, view, start.examples, { changed: note, linked: true }).element;
  };

  window.addEventListener("hashchange", () => {
    if (location.hash.replace(/^#/, "") === ours) return;
    view = read(location.hash, rooms);
    draw();
  });
  writeAs(place);
  draw();
  if (start.model === null) return;
  try {
    if (!start.model.trim()) throw new Refusal("no-model", "0");
    translator = await Translator.unpack(start.model);
    pairs = new UserPairs(translator, `dikkat ${translator.checksum}`);
  } catch (error) {
    trouble = error instanceof Refusal ? error : new Refusal("damaged", String(error));
  }
  if (view.room === "translate") draw();
}

/** JSON that Python writes into the page. */
interface Content {
  readonly examples?: readonly string[];
  readonly languages?: readonly [string, string];
  readonly sentences?: readonly Packed[];
  readonly calls?: CallsContent;
  readonly compared?: Comparison;
}

/** Starts a page that Python wrote. */
export function begin(): void {
  const place = document.getElementById("dikkat");
  if (!place) return;
  const taken = (id: string): string | null => {
    const element = document.getElementById(id);
    element?.remove(); // frees some megabytes
    return element && element.textContent;
  };
  const { examples = [], languages = null, sentences, calls = null, compared = null } = JSON.parse(taken("dikkat-content") ?? "{}") as Content;
  void mount(place, {
    title: place.dataset["title"] ?? "dikkat", languages, examples, calls, compared,
    sentences: sentences ? sentencesIn(place, sentences) : null,
    model: taken("dikkat-model"),
  });
}
