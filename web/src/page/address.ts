/** The state of the page as the fragment of its address, so a link restores the state. */
import { LONGEST_TEXT } from "../decoder/lines";
import type { Steering } from "./steering";
import type { Highlight } from "./sentences_tab";
import { LANGUAGES, type Language } from "./strings";

export type TabName = "sentences" | "comparison" | "calls" | "translate" | "playground";

const TRANSLATOR_TABS: readonly TabName[] = ["translate", "playground"];

export interface PageState {
  readonly tab: TabName;
  readonly highlight: Highlight | null;
  readonly text: string;
  readonly beam: number;
  readonly best: number;
  /** True if the text is HTML. */
  readonly html: boolean;
  readonly steering: Steering;
  /** Index of the selected step. */
  readonly step: number;
  readonly translationIndex: number;
  readonly language: Language | null;
  readonly theme: "auto" | "light" | "dark";
}

export const BEAMS = [1, 2, 3, 4, 5, 8, 10] as const;
export const BESTS = [1, 3, 5] as const;

/** The default tab: the translator if the address has a text, else the page's first tab. */
const defaultTab = (tabs: readonly TabName[], hasText: boolean): TabName => (hasText && tabs.includes("translate") ? "translate" : tabs[0]!);

/** @param tabs the page's tabs, the default first */
export function formatAddress(state: PageState, tabs = TRANSLATOR_TABS): string {
  const fields = new URLSearchParams();
  if (state.tab !== defaultTab(tabs, !!state.text)) fields.set("room", state.tab);
  if (state.highlight) {
    const { sentence, spot: { target, source } } = state.highlight;
    fields.set("s", `${sentence}${target === null ? "" : `.t${target + 1}`}${source === null ? "" : `.s${source + 1}`}`);
  }
  if (state.text && state.text.length <= LONGEST_TEXT) fields.set("text", state.text); // the translator rejects longer texts
  if (state.beam !== 5) fields.set("beam", String(state.beam));
  if (state.best !== 1) fields.set("best", String(state.best));
  if (state.html) fields.set("html", "1");
  if (state.steering.tokens.length) fields.set("words", state.steering.tokens.map((token, step) => `${token}${state.steering.pickedSteps.has(step) ? "!" : ""}`).join("."));
  const pins = [...state.steering.pins].flatMap(([step, weights]) =>
    [...weights].map(([position, weight]) => `${step}-${position}-${+weight.toFixed(4)}`));
  if (pins.length) fields.set("pins", pins.join(".."));
  if (state.step > 0) fields.set("step", String(state.step));
  if (state.translationIndex) fields.set("shown", String(state.translationIndex));
  if (state.language) fields.set("lang", state.language);
  if (state.theme !== "auto") fields.set("theme", state.theme);
  return fields.toString();
}

const allowedOr = <T>(value: unknown, allowed: readonly T[], otherwise: T): T =>
  allowed.includes(value as T) ? (value as T) : otherwise;

/** Parses a fragment. Malformed values become defaults; the search rejects impossible weights and words. */
export function parseAddress(hash: string, tabs = TRANSLATOR_TABS): PageState {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const pins = new Map<number, Map<number, number>>();
  for (const text of (fields.get("pins") ?? "").split("..").filter(Boolean)) {
    const match = /^(\d+)-(\d+)-(.*)$/.exec(text);
    const [step, position, weight] = match ? match.slice(1).map(Number) : [0, 0, NaN];
    pins.set(step!, (pins.get(step!) ?? new Map<number, number>()).set(position!, weight!));
  }
  const words = (fields.get("words") ?? "").split(".").filter(Boolean);
  return {
    tab: allowedOr(fields.get("room"), tabs, defaultTab(tabs, fields.has("text"))),
    highlight: parseHighlight(fields.get("s") ?? ""),
    text: fields.get("text") ?? "",
    beam: allowedOr(Number(fields.get("beam") ?? 5), BEAMS, 5),
    best: allowedOr(Number(fields.get("best") ?? 1), BESTS, 1),
    html: fields.get("html") === "1",
    steering: {
      tokens: words.map((word) => Number(word.replace("!", ""))),
      pickedSteps: new Set(words.flatMap((word, step) => (word.endsWith("!") ? [step] : []))),
      pins,
    },
    step: Math.max(0, Math.trunc(Number(fields.get("step") ?? 0)) || 0),
    translationIndex: Math.max(0, Math.trunc(Number(fields.get("shown") ?? 0)) || 0),
    language: allowedOr(fields.get("lang"), Object.keys(LANGUAGES) as Language[], null as never) ?? null,
    theme: allowedOr(fields.get("theme"), ["auto", "light", "dark"] as const, "auto"),
  };
}

/** Parses a sentence with an optional target and source word, counted from 1: 3, 3.t2, 3.s1, 3.t2.s1. */
function parseHighlight(text: string): Highlight | null {
  const match = /^([1-9]\d*)(?:\.t([1-9]\d*))?(?:\.s([1-9]\d*))?$/.exec(text);
  const index = (number: string | undefined): number | null => (number ? Number(number) - 1 : null);
  return match && { sentence: Number(match[1]), spot: { target: index(match[2]), source: index(match[3]) } };
}
