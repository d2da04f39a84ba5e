/** The page: its head, its rooms, and the address that says what is seen. */
import { Refusal } from "../decoder/refusal";
import { Translator } from "../decoder/translator";
import { playground } from "../lessons/playground";
import { read, written, type View } from "./address";
import { h, writeAs } from "./dom";
import { Room } from "./room";
import { LANGUAGES, preferred, speak, spoken, t, type Language, type Phrase } from "./strings";

export interface Start {
  readonly title: string;
  readonly examples: readonly string[];
  /** The model as base64 of a gzipped bundle; empty: a page without one. */
  readonly model: string;
}

/** Make a page of an element. */
export async function mount(place: HTMLElement, start: Start): Promise<void> {
  let view: View = read(location.hash);
  if (!location.hash && start.examples[0]) view = { ...view, text: start.examples[0] };
  let ours = ""; // the part of the address that this page wrote itself
  let translator: Translator | null = null;
  let trouble: Refusal | null = null;
  const systems = navigator.languages ?? [navigator.language];

  const note = (more: Partial<View>): void => {
    view = { ...view, ...more };
    ours = written(view);
    history.replaceState(null, "", `#${ours}`);
  };

  const draw = (): void => {
    speak(view.language ?? preferred(systems));
    document.documentElement.lang = spoken();
    document.documentElement.dataset["theme"] = view.theme;
    document.title = start.title;
    const focused = (document.activeElement as HTMLElement | null)?.id;
    place.replaceChildren(head(), content(), h("footer", { class: "foot" }, h("p", { class: "quiet" }, t("about"))));
    if (focused) document.getElementById(focused)?.focus();
  };

  const choose = <T extends string>(id: string, label: Phrase, values: readonly (readonly [T, string])[], now: T, act: (value: T) => void): HTMLElement =>
    h("label", {}, h("span", { class: "unseen" }, t(label)), h("select", { id, change: (event: Event) => act((event.target as HTMLSelectElement).value as T) },
      ...values.map(([value, name]) => h("option", { value, selected: value === now, lang: id === "language" ? value : null }, name))));

  const head = (): HTMLElement => {
    const room = (name: View["room"]): HTMLElement =>
      h("button", { type: "button", id: `to-${name}`, "aria-current": view.room === name ? "page" : null, click: () => {
        note({ room: name });
        draw();
      } }, t(name));
    return h("header", { class: "masthead" },
      h("h1", { dir: "auto" }, start.title),
      h("nav", { "aria-label": start.title }, room("translate"), room("playground")),
      h("div", { class: "tools" },
        choose("language", "language", Object.entries(LANGUAGES) as [Language, string][], spoken(), (language) => {
          note({ language });
          draw();
        }),
        choose("theme", "theme", (["auto", "light", "dark"] as const).map((each) => [each, t(`theme-${each}`)] as const), view.theme, (theme) => {
          note({ theme });
          draw();
        })),
    );
  };

  const content = (): HTMLElement => {
    if (view.room === "playground") return playground();
    if (trouble) return h("main", { id: "room" }, h("p", { class: "card trouble", role: "alert" }, t(trouble.reason, trouble.detail)));
    if (!translator) return h("main", { id: "room" }, h("p", { class: "card quiet", role: "status" }, t("loading")));
    return new Room(translator, view, start.examples, { changed: note, linked: true }).element;
  };

  window.addEventListener("hashchange", () => {
    if (location.hash.replace(/^#/, "") === ours) return;
    view = read(location.hash);
    draw();
  });
  writeAs(place);
  draw();
  try {
    if (!start.model.trim()) throw new Refusal("no-model", "0");
    translator = await Translator.unpack(start.model);
  } catch (error) {
    trouble = error instanceof Refusal ? error : new Refusal("damaged", String(error));
  }
  draw();
}

/** A page that Python wrote begins by itself. */
export function begin(): void {
  const place = document.getElementById("dikkat");
  if (!place) return;
  const content = (id: string): string => document.getElementById(id)?.textContent ?? "";
  const model = content("dikkat-model");
  document.getElementById("dikkat-model")?.remove(); // a copy of some megabytes that nobody needs any more
  void mount(place, {
    title: place.dataset["title"] ?? "dikkat",
    examples: JSON.parse(content("dikkat-examples") || "[]") as string[],
    model,
  });
}
