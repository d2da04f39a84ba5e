/** The attention of an answer to the passages of its prompt: the text, a bar for each token, and a table. */
import { bytesOfBase64, h, isolateDirection, makeVisible } from "./dom";
import { percent, t } from "./strings";

/** Attention weights of passages, written by `dikkat.inspection.generation`. */
export interface Passages {
  /** Pieces of the prompt with the index of their span; −1 between passages. */
  readonly prompt: readonly (readonly [text: string, span: number])[];
  readonly tokens: readonly string[];
  readonly spans: readonly (readonly [name: string, role: "" | "rest" | "first" | "answer" | "sink"])[];
  /** Each span's share of the prompt's tokens; 0 for the answer. */
  readonly even: readonly number[];
  /** The layer and the number of each head; −1 for the mean of all heads. */
  readonly heads: readonly (readonly [layer: number, head: number])[];
  /** (tokens, heads, spans), in 65535ths, as little-endian 16-bit numbers in base64. */
  readonly masses: string;
}

const UNITS = 65535;
const GREYS = { rest: 55, first: 72, answer: 40, sink: 40 }; // lightness

export function createPassages({ prompt, tokens, spans, even, heads, masses }: Passages): HTMLElement[] {
  const data = new Uint16Array(bytesOfBase64(masses).buffer);
  const names = spans.map(([name, role]) => (role ? t(`span-${role}`) : makeVisible(name)));
  const colours = spans.map(([, role], k) => (role ? `hsl(200 5% ${GREYS[role]}%)` : `hsl(${(175 + k * 137.5) % 360} 55% 50%)`));
  const isPassage = (k: number): boolean => !spans[k]![1];
  let selectedToken = -1; // −1 for all tokens

  const createHeadMenu = (dimension: 0 | 1, allLabel: string, label: (number: number) => string): HTMLSelectElement => {
    const numbers = [...new Set(heads.map((head) => head[dimension]))].sort((a, b) => a - b);
    return h("select", { change: () => draw(), "aria-label": t(dimension ? "heads" : "layers") },
      h("option", { value: "" }, allLabel), ...numbers.map((number) => h("option", { value: number }, label(number))));
  };
  const layer = createHeadMenu(0, t("all-layers"), (number) => t("view-layer", number));
  const head = createHeadMenu(1, t("all-heads"), (number) => t("head", number));
  const onlyPassages = h("input", { type: "checkbox", change: () => draw() });

  /** A row of masses. If only passages are selected, they are scaled to 1. */
  const scale = (row: readonly number[]): number[] => {
    if (!onlyPassages.checked) return [...row];
    const sum = row.reduce((sum, mass, k) => sum + (isPassage(k) ? mass : 0), 0);
    return row.map((mass, k) => (isPassage(k) && sum ? mass / sum : 0));
  };
  /** The row of even shares, then for each token its mean masses over the selected heads. */
  const shares = (): number[][] => {
    const selectedHeads = [...heads.keys()].filter((k) => [layer, head].every(({ value }, dimension) => !value || heads[k]![dimension] === Number(value)));
    return [even, ...tokens.map((_, token) => spans.map((_, span) =>
      selectedHeads.reduce((sum, k) => sum + data[(token * heads.length + k) * spans.length + span]!, 0) / (UNITS * Math.max(1, selectedHeads.length))))].map(scale);
  };

  const marks = prompt.map(([text, span]) => h(span < 0 ? "span" : "mark", { title: span < 0 ? null : names[span] }, text));
  prompt.forEach(([, span], k) => span < 0 || marks[k]!.style.setProperty("--chip", colours[span]!));
  const words = tokens.map((token, k) => h("button", { type: "button", click: () => draw(selectedToken === k ? -1 : k) }, makeVisible(token)));
  const readout = h("p", { class: "says", "aria-live": "polite" });
  const labels = [t("even-share"), ...tokens.map(makeVisible)];
  const bars = labels.map(() => h("div", { class: "read-bar" }, ...spans.map((_, k) => {
    const bar = h("i", {});
    bar.style.background = colours[k]!;
    return bar;
  })));
  const largestLabels = labels.map(() => h("span", { class: "quiet", dir: "auto" }));
  const cells = labels.map(() => spans.map(() => h("td")));

  const draw = (token = selectedToken): void => {
    selectedToken = token;
    const [evenly, ...rows] = shares() as [number[], ...number[][]];
    const masses = token < 0 ? spans.map((_, k) => rows.reduce((sum, row) => sum + row[k]!, 0) / rows.length) : rows[token]!;
    const largestPassage = (row: readonly number[]): number => row.reduce((best, mass, k) => (isPassage(k) && (best < 0 || mass > row[best]!) ? k : best), -1);
    const maxMass = Math.max(...masses.map((mass, k) => (isPassage(k) ? mass : 0)), 1e-9);
    prompt.forEach(([, span], k) => span < 0 || marks[k]!.style.setProperty("--share", (masses[span]! / maxMass).toFixed(3)));
    words.forEach((word, k) => word.setAttribute("aria-pressed", String(k === token)));
    const best = largestPassage(masses);
    const reader = token < 0 ? t("answer-read-most") : t("token-read-most", isolateDirection(makeVisible(tokens[token]!)));
    const selectedMenus = [layer, head].filter(({ value }) => value);
    const selection = selectedMenus.length ? `${selectedMenus.length > 1 ? t("view-head", layer.value, head.value) : selectedMenus[0]!.selectedOptions[0]!.text}: ` : "";
    readout.textContent = best < 0 ? "" : `${selection}${reader}: ${isolateDirection(names[best]!)} (${percent(masses[best]!)}; ${t("even-share")}: ${percent(evenly[best]!)})`;
    [evenly, ...rows].forEach((row, i) => {
      row.forEach((mass, k) => {
        const [bar, cell] = [bars[i]!.children[k] as HTMLElement, cells[i]![k]!];
        bar.style.flexGrow = String(mass);
        bar.title = `${names[k]}: ${percent(mass, 1)}`;
        cell.textContent = percent(mass);
        cell.style.setProperty("--weight", mass.toFixed(3));
      });
      const largest = largestPassage(row);
      largestLabels[i]!.textContent = largest < 0 || !i ? "" : `${percent(row[largest]!)} · ${names[largest]!}`;
    });
  };
  draw();

  const createControl = (input: HTMLElement, label: string): HTMLElement => h("label", {}, input, ` ${label}`);
  return [
    h("section", { class: "card views" },
      h("h2", {}, t("passages-title")), h("p", { class: "help" }, t("passages-help")),
      h("div", { class: "choices" }, ...(heads.length > 1 ? [layer, head] : []), createControl(onlyPassages, t("passages-only"))), readout,
      h("p", { class: "read-text", dir: "auto", tabindex: 0 }, ...marks), h("p", { class: "read-answer", dir: "auto" }, ...words)),
    h("section", { class: "card" }, h("h2", {}, t("passage-shares")), h("p", { class: "help" }, t("passage-shares-help")),
      h("div", { class: "read-bars" }, ...labels.flatMap((label, k) => [h(k ? "b" : "i", { dir: "auto" }, label), bars[k]!, largestLabels[k]!]))),
    h("section", { class: "card" }, h("h2", {}, t("passage-weights")),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": t("passage-weights") }, h("table", { class: "pairs" },
        h("thead", {}, h("tr", {}, h("td"), ...names.map((name) => h("th", { scope: "col", dir: "auto", title: name }, name)))),
        h("tbody", {}, ...labels.map((label, k) => h("tr", {}, h("th", { scope: "row", dir: "auto" }, k ? label : h("i", {}, label)), ...cells[k]!)))))),
  ];
}
