/** Notebook widgets for https://anywidget.dev: a translator, or maps. Each widget is inside a shadow root. */
import { Refusal } from "../decoder/refusal";
import { readBundle } from "../decoder/tensors";
import { Translator } from "../decoder/translator";
import { parseAddress, formatAddress } from "../page/address";
import { backgroundOf, h, useFontOf } from "../page/dom";
import { TranslatorTab } from "../page/translator_tab";
import { preferredLanguage, setLanguage, t } from "../page/strings";
import { UserPairs } from "../page/user_pairs";
import { createMapCard, type Panel } from "../pictures/tiles/panels";

/** State shared with Python, with the names of `dikkat.show.notebook`. */
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

/** The used methods of anywidget's model. */
export interface Model {
  get<K extends keyof Traits>(name: K): Traits[K];
  set<K extends keyof Traits>(name: K, value: Traits[K]): void;
  save_changes(): void;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
}

type Cleanup = () => void;

export function render({ model, el }: { model: Model; el: HTMLElement }): Cleanup {
  const host = h("div", { class: "dikkat" });
  const root = host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(model.get("sheet"));
  root.adoptedStyleSheets = [sheet];
  const container = h("div", { class: "notebook" });
  root.append(container);
  el.append(host);
  const stopFollowing = followTheme(el, host);
  useFontOf(container);
  setLanguage(preferredLanguage(navigator.languages ?? [navigator.language]));
  try {
    const cleanUp = model.get("kind") === "maps" ? drawMaps(model, container) : translate(model, container);
    return () => {
      stopFollowing();
      cleanUp();
    };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    container.replaceChildren(h("p", { class: "card trouble", role: "alert" }, t(error.reason, error.detail)));
    return stopFollowing;
  }
}

function translate(model: Model, container: HTMLElement): Cleanup {
  const translator = Translator.from(readBundle(bytesOf(model.get("model"))));
  let text = model.get("text");
  const address = parseAddress(model.get("address"));
  const initialState = address.text === text ? address : parseAddress(""); // the changes belong to the text of the address
  const tab = new TranslatorTab(translator, new UserPairs(translator, null), { ...initialState, text }, model.get("examples"), {
    hasAddress: false,
    stateChanged: (state) => {
      text = state.text;
      model.set("text", text);
      model.set("address", formatAddress({ ...state, tab: "translate", highlight: null, language: null, theme: "auto" }));
      model.save_changes();
    },
    translationChanged: (translation) => {
      model.set("translation", translation?.target ?? "");
      model.save_changes();
    },
  });
  const updateText = (): void => {
    if (model.get("text") !== text) tab.setText(model.get("text"));
  };
  model.on("change:text", updateText);
  container.append(tab.element);
  return () => model.off("change:text", updateText);
}

function drawMaps(model: Model, container: HTMLElement): Cleanup {
  const bytes = bytesOf(model.get("values"));
  const values = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  container.append(createMapCard({ panels: model.get("panels"), maxColumns: model.get("across"), range: model.get("scale"), values }));
  return () => undefined;
}

/** The bytes of a notebook's message, aligned to four bytes for Float32Array. */
function bytesOf(view: DataView): Uint8Array {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  return bytes.byteOffset % 4 ? bytes.slice() : bytes;
}

/** Sets the light or dark theme by the notebook's background, also when it changes. */
function followTheme(el: HTMLElement, host: HTMLElement): Cleanup {
  const updateTheme = (): void => {
    const [red = 255, green = 255, blue = 255] = (backgroundOf(el).match(/[\d.]+/g) ?? []).map(Number);
    host.dataset["theme"] = 0.3 * red + 0.59 * green + 0.11 * blue < 128 ? "dark" : "light";
  };
  const themeObserver = new MutationObserver(updateTheme);
  for (const element of [document.documentElement, document.body]) {
    themeObserver.observe(element, { attributes: true, attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind"] });
  }
  // A theme's style sheet may load after its name changes, so resizing the cell checks the background again.
  const sizeObserver = new ResizeObserver(updateTheme);
  sizeObserver.observe(host);
  updateTheme();
  return () => {
    themeObserver.disconnect();
    sizeObserver.disconnect();
  };
}
