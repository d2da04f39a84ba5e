/** Slots for numbers, addresses and placeholders, as `dikkat.translation.text.slots` has them. */
import { SLOT, SLOTS, SPACE, type Placed, type Span } from "./tokenizer";

/** The record of a training: slots in a sentence at most, and how the training pairs write each shape (null: not alike). */
export interface StoredSlots {
  readonly most: number;
  readonly shapes: Readonly<Record<string, { readonly written: readonly (number | string)[] | null }>>;
}

/** A text with a character for each slot, and the texts of the slots. */
export interface Masked extends Placed {
  readonly parts: readonly string[];
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
/** Shapes of quantities, and the name for all of a kind. */
const COARSE = [
  [/^9+$/, "~"],
  [/^#(?<mark>[ \u00A0\u202F'’.,])999(?:\k<mark>999)*(?:(?!\k<mark>)(?<decimal>[.,]9)9*)?$/u, "~$<mark>999$<decimal>"],
  [/^#(?<mark>[.,])9+$/, "~$<mark>9"],
] as const;
const CHARACTER = new RegExp(`[${SLOT}]`, "gu");
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
  mask(...pair: [source: string, target?: string]): [Masked, Masked] {
    const [source, target = ""] = pair.map((text = "") => text.replace(CHARACTER, " ")) as [string, string];
    const [read, used, parts]: [Span[], Span[], string[]] = [[], [], []];
    for (const span of spansOf(source)) {
      const text = this.written(span);
      const place = pair.length > 1 && text !== null ? find(text, target, used) : null;
      if (text === null || read.length === this.stored.most || (pair.length > 1 && !place)) continue;
      if (place) used.push(place);
      read.push(span.place);
      parts.push(text);
    }
    return [masked(source, read, read.map((place) => source.slice(...place))), masked(target, used, parts)];
  }

  /** The spans of a source that its translation lacks, as it should write them; and its groups of digits that the source has in no form. */
  wrong(source: string, target: string): [lost: string[], invented: string[]] {
    const [lost, used, read] = [[] as string[], [] as Span[], digitGroups(source)];
    for (const span of spansOf(source.replace(CHARACTER, " "))) {
      const text = this.written(span);
      if (text === null) continue;
      for (const [group, count] of digitGroups(text)) read.set(group, Math.max(count, read.get(group) ?? 0));
      const place = find(text, target, used) ?? find(source.slice(...span.place), target, used);
      if (place) used.push(place);
      else lost.push(text);
    }
    return [lost, [...digitGroups(target)].flatMap(([group, count]) => Array<string>(Math.max(0, count - (read.get(group) ?? 0))).fill(group))];
  }

  /** Whether a text with slots has no letter, and no number of a shape that training has counted. */
  copies(text: string): boolean {
    const { shapes } = this.stored;
    return !/\p{L}/u.test(text) && !spansOf(text).some(({ exact, coarse }) => [exact, ...coarse].some((name) => shapes[name]));
  }

  /** The text of a span in a translation; null: the model translates it. */
  private written({ exact, coarse, groups, separators }: Found): string | null {
    const { shapes } = this.stored;
    const name = [exact, ...coarse].find((shape) => shapes[shape]);
    const kinds = [...new Set(separators)];
    const inOrder = (texts: readonly (number | string)[]) => [0, ...separators.flatMap((separator, k) => [texts[kinds.indexOf(separator)]!, k + 1])];
    const known = name === undefined ? kinds : shapes[name]!.written;
    const written = known && name !== exact ? inOrder(known) : known;
    return written ? written.map((part) => (typeof part === "number" ? groups[part] : part)).join("") : null;
  }
}

/** How often a text has each group of digits. */
function digitGroups(text: string): Map<string, number> {
  const counts = new Map<string, number>();
  for (const [group] of text.matchAll(/\p{Nd}+/gu)) counts.set(group, (counts.get(group) ?? 0) + 1);
  return counts;
}

/** A span with the names of its shapes; only quantities have coarse ones. */
interface Found {
  readonly place: Span;
  readonly exact: string;
  readonly coarse: readonly string[];
  readonly groups: readonly string[];
  readonly separators: readonly string[];
}

let latest: { readonly text: string; readonly spans: readonly Found[] } = { text: "", spans: [] };

/** The spans of a text. The latest ones stay in memory: candidates of a translation with terms have the same source. */
function spansOf(text: string): readonly Found[] {
  if (text !== latest.text) latest = { text, spans: readSpans(text) };
  return latest.spans;
}

function readSpans(text: string): Found[] {
  return [...text.matchAll(SPAN)].map(({ 0: span, index, groups: named }) => {
    const place = [index, index + span.length] as const;
    const kind = Object.keys(named!).find((name) => named![name] !== undefined)!;
    const isBare = kind === "brace" && !/\p{L}/u.test(span); // no name, which could be translated
    if (kind !== "number") return { place, exact: isBare ? "{}" : kind, coarse: [], groups: [span], separators: [] };
    const [groups, separators] = [span.match(/\p{Nd}+/gu)!, span.match(/\P{Nd}/gu) ?? []];
    const nines = span.replace(/\p{Nd}/gu, "9");
    const exact = separators.length ? `#${nines.replace(/^9+/, "")}` : nines.slice(0, 5);
    const coarse = COARSE.filter(([shape]) => shape.test(exact)).map(([shape, name]) => exact.replace(shape, name));
    return { place, exact, coarse, groups, separators };
  });
}

function masked(text: string, cuts: readonly Span[], parts: readonly string[]): Masked {
  const letters = text.split("").map((letter, at) => ({ letter, place: [at, at + 1] as Span }));
  for (const slot of [...cuts.keys()].sort((one, other) => cuts[other]![0] - cuts[one]![0])) {
    const [start, end] = cuts[slot]!;
    letters.splice(start, end - start, { letter: SLOTS[slot]!, place: cuts[slot]! });
  }
  return { text: letters.map(({ letter }) => letter).join(""), places: letters.map(({ place }) => place), original: text, parts };
}

/** The first place of a text that is not taken and no part of a longer word or number. */
function find(text: string, target: string, used: readonly Span[]): Span | null {
  const isFree = (start: number, end: number): boolean => !used.some(([first, last]) => start < last && first < end);
  const isWhole = (...ends: Span): boolean => EDGES.every(([inside, edge], side) => {
    edge.lastIndex = ends[side]!;
    return !inside.test(text) || edge.test(target);
  });
  for (let start = target.indexOf(text); start >= 0; start = target.indexOf(text, start + 1)) {
    if (isFree(start, start + text.length) && isWhole(start, start + text.length)) return [start, start + text.length];
  }
  return null;
}
