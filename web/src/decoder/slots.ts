/** Slots for numbers, addresses and placeholders, as `dikkat.translation.text.slots` has them. */
import { SLOT, SLOTS, SPACE, type Placed, type Span } from "./tokenizer";

/**
 * The record of a training: slots in a sentence at most, and how the training pairs write each shape ("groups": with the
 * groups in order, so each is a slot; null: not alike).
 */
export interface StoredSlots {
  readonly most: number;
  readonly shapes: Readonly<Record<string, { readonly written: readonly (number | string)[] | "groups" | null }>>;
}

/** A text with a character for each slot, and the texts of the slots. */
export interface Masked extends Placed {
  readonly parts: readonly string[];
  /** The places of the slots in the original. */
  readonly cuts: readonly Span[];
}

const BEFORE = "(?<![\\p{L}\\p{M}\\p{N}_])(?<!\\p{N}[.,:/'’\\-])";
const AFTER = "(?![\\p{L}\\p{M}\\p{N}_])(?![.,:/'’\\-]\\p{N})";
const OUTSIDE = `${SPACE}<>"«»“”()`;
const FACE = "\\u{1F000}-\\u{1FAFF}\\u2600-\\u27BF";
export const SPAN = new RegExp(
  `(?<url>(?:https?://|www\\.)(?:[^${OUTSIDE}]|\\([^${OUTSIDE}]*\\))*(?:[^${OUTSIDE}.,;:!?'’\\]]|\\([^${OUTSIDE}]*\\)))` +
  `|(?<email>[\\p{L}\\p{N}._+\\-]{1,64}@[\\p{L}\\p{N}\\-]+(?:\\.[\\p{L}\\p{N}\\-]+)+)` +
  `|(?<printf>%(?:\\([\\p{L}\\p{N}_.\\-]{1,64}\\)|[0-9]{1,2}\\$)?[\\-+#]{0,4}[0-9]{0,9}(?:\\.[0-9]{1,9})?(?:hh?|ll?|[Lzjt])?` +
  `[diufFeEgGxXoscpaA@](?![\\p{L}\\p{N}]))|(?<percent>%(?:[0-9]{1,2}|[A-Z_][A-Z0-9_]+%?)(?![\\p{L}\\p{N}]))` +
  `|(?<brace>[$#]?\\{\\{[^{}]{0,200}\\}\\}|[$#]?\\{[^{}${SPACE}]{0,200}\\}` +
  `|\\{[\\p{L}\\p{N}_]{1,64}(?:,[${SPACE}]?[\\p{L}\\p{N}_.#%\\-]{1,64}){1,3}\\})|(?<dollar>(?<![\\p{L}\\p{N}])\\$[A-Za-z_][A-Za-z0-9_]*)` +
  `|(?<tag></?[0-9]+[${SPACE}]?/?>|</?[A-Za-z][A-Za-z0-9:.\\-]{0,64}(?:[${SPACE}][^<>]{0,200})?/?>)` +
  `|(?<entity>&(?:#[0-9]{1,8}|#x[0-9A-Fa-f]{1,8}|[A-Za-z][A-Za-z0-9]{1,31});)|(?<emoji>[${FACE}][${FACE}\\uFE0F\\u200D]*)` +
  `|(?<number>${BEFORE}(?:\\p{Nd}{1,3}(?:[ \\u00A0\\u202F]\\p{Nd}{3})+(?!\\p{Nd})(?:[.,]\\p{Nd}+)?` +
  `|\\p{Nd}+(?:[.,:/'’\\p{L}\\-]\\p{Nd}+)*)${AFTER})`, "gu",
);
const CHARACTER = new RegExp(`[${SLOT}]`, "gu");
const SEPARATOR = /^[^\p{L}\p{M}\p{N}_]/u; // that a model may write between two groups of digits
const EDGES = [[/^[\p{L}\p{N}]/u, new RegExp(BEFORE, "uy")], [/[\p{L}\p{N}]$/u, new RegExp(AFTER, "uy")]] as const;

/** Write the texts of slots in place of their characters; a slot without a text gives nothing. */
export const restored = (text: string, parts: readonly string[]): string =>
  text.replace(CHARACTER, (character) => parts[SLOTS.indexOf(character)] ?? "");

/** Restore a translation, with a space between a slot's text and a neighbour if both have a letter or digit there. */
export function writtenOut(text: string, parts: readonly string[]): string {
  let [written, isAfterSlot] = ["", false];
  for (const character of text) {
    const added = restored(character, parts);
    const isSlot = SLOTS.indexOf(character) in parts;
    const touches = (isSlot || isAfterSlot) && /[\p{L}\p{N}]$/u.test(written) && /^[\p{L}\p{N}]/u.test(added);
    written += (touches ? " " : "") + added;
    isAfterSlot = isSlot;
  }
  return written;
}

export class Slots {
  constructor(private readonly stored: StoredSlots = { most: 0, shapes: {} }) {}

  /** Replace spans of a source by slots. With a target, only spans that it has, in both; else the second result has the texts to write. */
  mask(...given: [source: string, target?: string]): [Masked, Masked] {
    const [source, target = ""] = given.map((text = "") => text.replace(CHARACTER, " ")) as [string, string];
    const [read, taken, parts]: [Span[], Span[], string[]] = [[], [], []];
    for (const span of spansOf(source)) {
      const [cuts, texts] = this.slotsOf(span);
      const places = given.length > 1 ? find(texts, target, taken) : [];
      if (read.length + cuts.length > this.stored.most || (given.length > 1 && !places.length)) continue;
      read.push(...cuts);
      taken.push(...places);
      parts.push(...texts);
    }
    return [masked(source, read, read.map((place) => source.slice(...place))), masked(target, taken, parts)];
  }

  /** Whether a text with slots has no letter, and no counted shape of which the model writes a part. */
  copies({ text, original, cuts }: Masked): boolean {
    const isSlot = ({ place }: Found): boolean => cuts.some((cut) => cut[0] === place[0] && cut[1] === place[1]);
    const isCounted = ({ exact, coarse }: Found): boolean => Boolean(this.stored.shapes[exact] ?? this.stored.shapes[coarse]);
    return !/\p{L}/u.test(text) && !spansOf(original).some((span) => !isSlot(span) && isCounted(span));
  }

  /** The places of a span's slots, and their texts in a translation; none if the model translates the span. */
  private slotsOf({ place, exact, coarse, groups, groupPlaces, separators }: Found): [readonly Span[], readonly string[]] {
    const { shapes } = this.stored;
    const kinds = [...coarse].slice(1);
    const texts = shapes[coarse]?.written ?? null;
    const inOrder = texts && texts !== "groups" ? [0, ...separators.flatMap((each, k) => [texts[kinds.indexOf(each)]!, k + 1])] : texts;
    const written = shapes[exact] ? shapes[exact].written : coarse ? inOrder : [0];
    if (written === "groups") return [groupPlaces, groups];
    return written ? [[place], [written.map((each) => (typeof each === "number" ? groups[each] : each)).join("")]] : [[], []];
  }
}

/** A span with the names of its shapes; only numbers have a coarse one. */
interface Found {
  readonly place: Span;
  readonly exact: string;
  readonly coarse: string;
  readonly groups: readonly string[];
  readonly groupPlaces: readonly Span[];
  readonly separators: readonly string[];
}

function spansOf(text: string): Found[] {
  return [...text.matchAll(SPAN)].map(({ 0: span, index, groups: named }) => {
    const place = [index, index + span.length] as const;
    const kind = Object.keys(named!).find((name) => named![name] !== undefined)!;
    const isBare = kind === "brace" && !/\p{L}/u.test(span); // no name, which could be translated
    if (kind !== "number") return { place, exact: isBare ? "{}" : kind, coarse: "", groups: [span], groupPlaces: [place], separators: [] };
    const runs = [...span.matchAll(/\p{Nd}+/gu)];
    const groups = runs.map(([digits]) => digits);
    const groupPlaces = runs.map(({ 0: digits, index: start }) => [index + start, index + start + digits.length] as const);
    const separators = span.match(/\P{Nd}/gu) ?? [];
    const nines = groups.map((group) => "9".repeat([...group].length));
    const exact = separators.length ? `#${separators.map((each, k) => each + nines[k + 1]!).join("")}` : nines[0]!.slice(0, 5);
    const kinds = [...new Set(separators)].sort((one, other) => one.codePointAt(0)! - other.codePointAt(0)!);
    return { place, exact, coarse: `~${kinds.join("")}`, groups, groupPlaces, separators };
  });
}

function masked(text: string, cuts: readonly Span[], parts: readonly string[]): Masked {
  const letters = text.split("").map((letter, at) => ({ letter, place: [at, at + 1] as Span }));
  for (const slot of [...cuts.keys()].sort((one, other) => cuts[other]![0] - cuts[one]![0])) {
    const [start, end] = cuts[slot]!;
    letters.splice(start, end - start, { letter: SLOTS[slot]!, place: cuts[slot]! });
  }
  return { text: letters.map(({ letter }) => letter).join(""), places: letters.map(({ place }) => place), original: text, parts, cuts };
}

/** The first places of texts, with a separator between two, that are not taken and no part of a longer word; else none. */
function find(texts: readonly string[], target: string, taken: readonly Span[]): Span[] {
  const [text] = texts;
  if (text === undefined) return [];
  const isFree = (start: number, end: number): boolean => !taken.some(([first, last]) => start < last && first < end);
  const isWhole = (...ends: Span): boolean => EDGES.every(([inside, edge], side) => {
    edge.lastIndex = ends[side]!;
    return !inside.test(target.slice(...ends)) || edge.test(target);
  });
  for (let start = target.indexOf(text); start >= 0; start = target.indexOf(text, start + 1)) {
    const places: Span[] = [];
    let end = start;
    for (const each of texts) {
      const first = end + (places.length ? (SEPARATOR.exec(target.slice(end))?.[0].length ?? 0) : 0);
      if ((places.length && first === end) || !target.startsWith(each, first)) break;
      places.push([first, (end = first + each.length)]);
    }
    if (places.length === texts.length && isFree(start, end) && isWhole(start, end)) return places;
  }
  return [];
}
