/** Cells of a notebook: a translator, or maps, as https://anywidget.dev asks for them; everything stays in a shadow of its own. */
import { Refusal } from "../decoder/refusal";
import { readBundle } from "../decoder/tensors";
import { Translator } from "../decoder/translator";
import { read, written } from "../page/address";
import { backgroundOf, h, writeAs } from "../page/dom";
import { Room } from "../page/room";
import { preferred, speak, t } from "../page/strings";
import { UserPairs } from "../page/user_pairs";
import { maps, type Panel } from "../pictures/tiles/panels";

/** State shared with Python; the names are those of `dikkat.show.notebook`. */
interface Traits {
  kind: "translator" | "maps";
  sheet: string;
  model: DataView;
  examples: string[];
  text: string;
  address: string;
  translation: string;
  panels: Panel[];
  across: number;
  scale: [number, number];
  values: DataView;
}

/** The part of anywidget's model that is used. */
export interface Model {
  get<K extends keyof Traits>(name: K): Traits[K];
  set<K extends keyof Traits>(name: K, value: Traits[K]): void;
  save_changes(): void;
  on(event: string, act: () => void): void;
  off(event: string, act: () => void): void;
}

type Cleanup = () => void;

export function render({ model, el }: { model: Model; el: HTMLElement }): Cleanup {
  const host = h("div", { class: "dikkat" });
  const root = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(model.get("sheet"));
  root.adoptedStyleSheets = [sheet];
  const place = h("div", { class: "notebook" });
  root.append(place);
  el.append(host);
  const forget = followed(el, host);
  writeAs(place);
  speak(preferred(navigator.languages ?? [navigator.language]));
  try {
    const leave = model.get("kind") === "maps" ? drawMaps(model, place) : translate(model, place);
    return () => {
      forget();
      leave();
    };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    place.replaceChildren(h("p", { class: "card trouble", role: "alert" }, t(error.reason, error.detail)));
    return forget;
  }
}

function translate(model: Model, place: HTMLElement): Cleanup {
  const translator = Translator.from(readBundle(bytesOf(model.get("model"))));
  let text = model.get("text");
  const address = read(model.get("address"));
  const own = address.text === text ? address : read(""); // changes belong to one sentence
  const room = new Room(translator, new UserPairs(translator, null), { ...own, text }, model.get("examples"), {
    linked: false,
    changed: (own) => {
      text = own.text;
      model.set("text", text);
      model.set("address", written({ ...own, room: "translate", kept: null, language: null, theme: "auto" }));
      model.save_changes();
    },
    shown: (translation) => {
      model.set("translation", translation?.target ?? "");
      model.save_changes();
    },
  });
  const follow = (): void => {
    if (model.get("text") !== text) room.use(model.get("text"));
  };
  model.on("change:text", follow);
  place.append(room.element);
  return () => model.off("change:text", follow);
}

function drawMaps(model: Model, place: HTMLElement): Cleanup {
  const bytes = bytesOf(model.get("values"));
  const values = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  place.append(maps({ panels: model.get("panels"), across: model.get("across"), range: model.get("scale"), values }));
  return () => undefined;
}

/** Bytes of a notebook's message, aligned to four for Float32Array. */
function bytesOf(view: DataView): Uint8Array {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  return bytes.byteOffset % 4 ? bytes.slice() : bytes;
}

/** Sets light or dark by the notebook's background, and follows its changes. */
function followed(el: HTMLElement, host: HTMLElement): Cleanup {
  const follow = (): void => {
    const [red = 255, green = 255, blue = 255] = (backgroundOf(el).match(/[\d.]+/g) ?? []).map(Number);
    host.dataset["theme"] = 0.3 * red + 0.59 * green + 0.11 * blue < 128 ? "dark" : "light";
  };
  const seen = new MutationObserver(follow);
  for (const each of [document.documentElement, document.body]) {
    seen.observe(each, { attributes: true, attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind"] });
  }
  // A theme's style sheet may load after its name changes, so look again whenever the cell is resized.
  const sized = new ResizeObserver(follow);
  sized.observe(host);
  follow();
  return () => {
    seen.disconnect();
    sized.disconnect();
  };
}
