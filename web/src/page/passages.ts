/** The passages of a prompt that each written token read: the text, a bar of passages for each token, and a table. */
import { h, isolated, visible } from "./dom";
import { percent, t } from "./strings";

/** `dikkat.inspection.generation` writes them. */
export interface Passages {
  /** Pieces of the prompt, with the index of their span; −1 between passages. */
  readonly prompt: readonly (readonly [text: string, span: number])[];
  readonly tokens: readonly string[];
  readonly spans: readonly (readonly [name: string, role: "" | "rest" | "first" | "answer" | "sink"])[];
  /** The share of the prompt's tokens of each span; 0 for the answer. */
  readonly even: readonly number[];
  /** The layer and the number of each head; −1 if the page has only the mean of all heads. */
  readonly heads: readonly (readonly [layer: number, head: number])[];
  /** (tokens, heads, spans), in 65535ths, as little-endian 16-bit numbers in base64. */
  readonly masses: string;
}

const UNITS = 65535;
const GREYS = { rest: 55, first: 72, answer: 40, sink: 40 }; // lightness

export function passagesOf({ prompt, tokens, spans, even, heads, masses }: Passages): HTMLElement[] {
  const data = new Uint16Array(Uint8Array.from(atob(masses), (letter) => letter.charCodeAt(0)).buffer);
  const names = spans.map(([name, role]) => (role ? t(`span-${role}`) : visible(name)));
  const colours = spans.map(([, role], k) => (role ? `hsl(200 5% ${GREYS[role]}%)` : `hsl(${(175 + k * 137.5) % 360} 55% 50%)`));
  const isPassage = (k: number): boolean => !spans[k]![1];
  let chosen = -1; // token; −1 for all

  const select = (which: 0 | 1, all: string, label: (each: number) => string): HTMLSelectElement => {
    const numbers = [...new Set(heads.map((head) => head[which]))].sort((one, other) => one - other);
    return h("select", { change: () => draw(), "aria-label": t(which ? "heads" : "layers") },
      h("option", { value: "" }, all), ...numbers.map((each) => h("option", { value: each }, label(each))));
  };
  const layer = select(0, t("all-layers"), (each) => t("view-layer", each));
  const head = select(1, t("view-all"), (each) => t("head", each));
  const alone = h("input", { type: "checkbox", change: () => draw() });

  /** A row of masses; if the reader wants only passages, their shares. */
  const scaled = (row: readonly number[]): number[] => {
    if (!alone.checked) return [...row];
    const sum = row.reduce((before, mass, k) => before + (isPassage(k) ? mass : 0), 0);
    return row.map((mass, k) => (isPassage(k) && sum ? mass / sum : 0));
  };
  /** The mean over the selected heads for each token and span, after the row of even shares. */
  const shares = (): number[][] => {
    const picked = [...heads.keys()].filter((k) => [layer, head].every(({ value }, which) => !value || heads[k]![which] === Number(value)));
    return [even, ...tokens.map((_, token) => spans.map((_, span) =>
      picked.reduce((sum, k) => sum + data[(token * heads.length + k) * spans.length + span]!, 0) / (UNITS * Math.max(1, picked.length))))].map(scaled);
  };

  const marks = prompt.map(([text, span]) => h(span < 0 ? "span" : "mark", { title: span < 0 ? null : names[span] }, text));
  prompt.forEach(([, span], k) => span < 0 || marks[k]!.style.setProperty("--chip", colours[span]!));
  const words = tokens.map((token, k) => h("button", { type: "button", click: () => draw(chosen === k ? -1 : k) }, visible(token)));
  const says = h("p", { class: "says", "aria-live": "polite" });
  const labels = [t("read-even"), ...tokens.map(visible)];
  const bars = labels.map(() => h("div", { class: "read-bar" }, ...spans.map((_, k) => {
    const bar = h("i", {});
    bar.style.background = colours[k]!;
    return bar;
  })));
  const largest = labels.map(() => h("span", { class: "quiet", dir: "auto" }));
  const cells = labels.map(() => spans.map(() => h("td")));

  const draw = (token = chosen): void => {
    chosen = token;
    const [evenly, ...rows] = shares() as [number[], ...number[][]];
    const shown = token < 0 ? spans.map((_, k) => rows.reduce((sum, row) => sum + row[k]!, 0) / rows.length) : rows[token]!;
    const most = (row: readonly number[]): number => row.reduce((best, mass, k) => (isPassage(k) && (best < 0 || mass > row[best]!) ? k : best), -1);
    const top = Math.max(...shown.map((mass, k) => (isPassage(k) ? mass : 0)), 1e-9);
    prompt.forEach(([, span], k) => span < 0 || marks[k]!.style.setProperty("--share", (shown[span]! / top).toFixed(3)));
    words.forEach((word, k) => word.setAttribute("aria-pressed", String(k === token)));
    const best = most(shown);
    const whose = token < 0 ? t("read-all") : t("read-one", isolated(visible(tokens[token]!)));
    const picked = [layer, head].filter(({ value }) => value);
    const which = picked.length ? `${picked.length > 1 ? t("view-head", layer.value, head.value) : picked[0]!.selectedOptions[0]!.text}: ` : "";
    says.textContent = best < 0 ? "" : `${which}${whose}: ${isolated(names[best]!)} (${percent(shown[best]!)}; ${t("read-even")}: ${percent(evenly[best]!)})`;
    [evenly, ...rows].forEach((row, i) => {
      row.forEach((mass, k) => {
        const [bar, cell] = [bars[i]!.children[k] as HTMLElement, cells[i]![k]!];
        bar.style.flexGrow = String(mass);
        bar.title = `${names[k]}: ${percent(mass, 1)}`;
        cell.textContent = percent(mass);
        cell.style.setProperty("--weight", mass.toFixed(3));
      });
      const own = most(row);
      largest[i]!.textContent = own < 0 || !i ? "" : `${percent(row[own]!)} · ${names[own]!}`;
    });
  };
  draw();

  const control = (input: HTMLElement, label: string): HTMLElement => h("label", {}, input, ` ${label}`);
  return [
    h("section", { class: "card views" },
      h("h2", {}, t("read-title")), h("p", { class: "help" }, t("read-help")),
      h("div", { class: "choices" }, ...(heads.length > 1 ? [layer, head] : []), control(alone, t("read-alone"))), says,
      h("p", { class: "read-text", dir: "auto", tabindex: 0 }, ...marks), h("p", { class: "read-answer", dir: "auto" }, ...words)),
    h("section", { class: "card" }, h("h2", {}, t("read-bars")), h("p", { class: "help" }, t("read-bars-help")),
      h("div", { class: "read-bars" }, ...labels.flatMap((label, k) => [h(k ? "b" : "i", { dir: "auto" }, label), bars[k]!, largest[k]!]))),
    h("section", { class: "card" }, h("h2", {}, t("read-table")),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("read-table") }, h("table", { class: "pairs" },
        h("thead", {}, h("tr", {}, h("td"), ...names.map((name) => h("th", { scope: "col", dir: "auto", title: name }, name)))),
        h("tbody", {}, ...labels.map((label, k) => h("tr", {}, h("th", { scope: "row", dir: "auto" }, k ? label : h("i", {}, label)), ...cells[k]!)))))),
  ];
}
