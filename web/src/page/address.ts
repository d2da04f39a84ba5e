/** The state of the page as the fragment of its address, so that a link restores it. */
import { LONGEST_TEXT } from "../decoder/lines";
import type { Steering } from "./steering";
import type { Kept } from "./sentences";
import { LANGUAGES, type Language } from "./strings";

export type RoomName = "sentences" | "comparison" | "calls" | "translate" | "playground";

/** Rooms of a translator's page. */
const LIVING: readonly RoomName[] = ["translate", "playground"];

export interface View {
  readonly room: RoomName;
  /** The highlighted word or pair in the list of sentences. */
  readonly kept: Kept | null;
  readonly text: string;
  readonly beam: number;
  readonly best: number;
  /** True if the text is HTML. */
  readonly html: boolean;
  readonly chosen: Steering;
  /** Index of the opened step. */
  readonly step: number;
  /** Index of the translation that is shown. */
  readonly shown: number;
  readonly language: Language | null;
  readonly theme: "auto" | "light" | "dark";
}

export const BEAMS = [1, 2, 3, 4, 5, 8, 10] as const;
export const BESTS = [1, 3, 5] as const;

/** Default room: the translator if the address has a text, else the page's first. */
const usual = (rooms: readonly RoomName[], text: boolean): RoomName => (text && rooms.includes("translate") ? "translate" : rooms[0]!);

/** @param rooms the page's rooms, the default first */
export function written(view: View, rooms = LIVING): string {
  const fields = new URLSearchParams();
  if (view.room !== usual(rooms, !!view.text)) fields.set("room", view.room);
  if (view.kept) {
    const { sentence, spot: { target, source } } = view.kept;
    fields.set("s", `${sentence}${target === null ? "" : `.t${target + 1}`}${source === null ? "" : `.s${source + 1}`}`);
  }
  if (view.text && view.text.length <= LONGEST_TEXT) fields.set("text", view.text); // longer texts are refused
  if (view.beam !== 5) fields.set("beam", String(view.beam));
  if (view.best !== 1) fields.set("best", String(view.best));
  if (view.html) fields.set("html", "1");
  if (view.chosen.tokens.length) fields.set("words", view.chosen.tokens.map((token, step) => `${token}${view.chosen.picked.has(step) ? "!" : ""}`).join("."));
  const pins = [...view.chosen.pins].flatMap(([step, weights]) =>
    [...weights].map(([position, weight]) => `${step}-${position}-${+weight.toFixed(4)}`));
  if (pins.length) fields.set("pins", pins.join(".."));
  if (view.step > 0) fields.set("step", String(view.step));
  if (view.shown) fields.set("shown", String(view.shown));
  if (view.language) fields.set("lang", view.language);
  if (view.theme !== "auto") fields.set("theme", view.theme);
  return fields.toString();
}

const oneOf = <T>(value: unknown, allowed: readonly T[], otherwise: T): T =>
  allowed.includes(value as T) ? (value as T) : otherwise;

/** Parses a fragment; malformed values become defaults, impossible weights and words are refused by the search. */
export function read(hash: string, rooms = LIVING): View {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  const pins = new Map<number, Map<number, number>>();
  for (const text of (fields.get("pins") ?? "").split("..").filter(Boolean)) {
    const match = /^(\d+)-(\d+)-(.*)$/.exec(text);
    const [step, position, weight] = match ? match.slice(1).map(Number) : [0, 0, NaN];
    pins.set(step!, (pins.get(step!) ?? new Map<number, number>()).set(position!, weight!));
  }
  const words = (fields.get("words") ?? "").split(".").filter(Boolean);
  return {
    room: oneOf(fields.get("room"), rooms, usual(rooms, fields.has("text"))),
    kept: keptAt(fields.get("s") ?? ""),
    text: fields.get("text") ?? "",
    beam: oneOf(Number(fields.get("beam") ?? 5), BEAMS, 5),
    best: oneOf(Number(fields.get("best") ?? 1), BESTS, 1),
    html: fields.get("html") === "1",
    chosen: {
      tokens: words.map((word) => Number(word.replace("!", ""))),
      picked: new Set(words.flatMap((word, step) => (word.endsWith("!") ? [step] : []))),
      pins,
    },
    step: Math.max(0, Math.trunc(Number(fields.get("step") ?? 0)) || 0),
    shown: Math.max(0, Math.trunc(Number(fields.get("shown") ?? 0)) || 0),
    language: oneOf(fields.get("lang"), Object.keys(LANGUAGES) as Language[], null as never) ?? null,
    theme: oneOf(fields.get("theme"), ["auto", "light", "dark"] as const, "auto"),
  };
}

/** Parses a sentence with an optional target and source word, counted from 1: 3, 3.t2, 3.s1, 3.t2.s1. */
function keptAt(text: string): Kept | null {
  const match = /^([1-9]\d*)(?:\.t([1-9]\d*))?(?:\.s([1-9]\d*))?$/.exec(text);
  const at = (number: string | undefined): number | null => (number ? Number(number) - 1 : null);
  return match && { sentence: Number(match[1]), spot: { target: at(match[2]), source: at(match[3]) } };
}
