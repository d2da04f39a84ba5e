/** Lines of several sentences, and what is carried over as it is, as `dikkat.translation.text.lines` has it. */
import { LETTER, type Units } from "./alignment";
import { BLANKS, carry, type Tagged } from "./markup";
import { INSIDE, SPACE } from "./tokenizer";

const SHORT = "\\p{L}|\\p{L}\\.\\p{L}|Mr|Mrs|Ms|Dr|St|No|Nr|Prof|Mme|bzw|vs|cf|p|pp|vgl";
const END = new RegExp(
  `(?<=(?:[!?…]|(?<!(?<![${LETTER}])(?:${SHORT}))\\.)["'”’»)\\]]{0,4})` +
  `([${SPACE}]+)(?=["'“„«(\\[¿¡–\\-]*[${SPACE}]?[\\p{Lu}\\p{Lo}\\p{N}])|(?<=[。！？])(?=[^」』”）${SPACE}])`, "gu",
);
const FACE = "\\u{1F000}-\\u{1FAFF}\\u2600-\\u27BF";
const KEEP = new RegExp(
  `(?:https?://|www\\.)[^${SPACE}<>"«»“”]*[^${SPACE}<>"«»“”.,;:!?)\\]]` +
  `|[${LETTER}.+\\-]{1,64}@[${LETTER}\\-]+(?:\\.[${LETTER}\\-]+)+` +
  `|%(?:\\p{Nd}+\\$)?[\\-+#0]*\\p{Nd}*(?:\\.\\p{Nd}+)?(?:[diufeEgGxXosc]|@)(?![\\p{L}\\p{N}])` +
  `|\\$?\\{\\{?[^{}${SPACE}]{0,200}\\}\\}?|</?\\p{Nd}+[${SPACE}]*/?>|&[${LETTER}]+;` +
  `|[${FACE}][\\uFE0F\\u{1F3FB}-\\u{1F3FF}]?(?:\\u200D[${FACE}]\\uFE0F?)*` +
  `|\\p{N}(?:[\\p{N}.,:/\\-]*\\p{N})`, "gu",
);
const MARK = "\ue000"; // of private use
const PLACED = new RegExp(
  `(?:(?<=(?<left>[${INSIDE}]))|(?<=(?<open>[(\\[{«“„¿¡${SPACE}]))|)[${SPACE}]*${MARK}[${SPACE}]*` +
  `(?:(?=(?<right>[${INSIDE}]))|(?=(?<shut>[)\\]}»”.,;:!?…${SPACE}]))|)`, "gu",
);
const BESIDE = new RegExp(`(?<=([${SPACE}]?))${MARK}(?=([${SPACE}]?))`, "gu");
const CHARACTERS: Readonly<Record<string, string>> = { "&amp;": "&", "&lt;": "<", "&gt;": ">" };

/** The sentences of a line, and the space behind each. */
export function sentencesOf(line: string): { sentence: string; space: string }[] {
  const ends = [...line.matchAll(END), { 0: "", index: line.length }];
  return ends.map(({ 0: space, index }, k) => {
    const before = ends[k - 1];
    return { sentence: line.slice(before ? before.index + before[0].length : 0, index), space };
  });
}

export const keptIn = (text: string): string[] => text.match(KEEP) ?? [];

/** Whether a translation has not each of what is to be kept, as often; of numbers the digits count. */
export function isLost(source: string, target: string): boolean {
  const counted = (text: string): string =>
    keptIn(text).map((each) => (/^\p{Nd}/u.test(each) ? each.replace(/\P{Nd}/gu, "") : each)).sort().join("\n");
  return !(source + target).includes(MARK) && !!counted(source) && counted(source) !== counted(target);
}

/** A sentence with a mark in the place of what is kept; its text without the marks, and their places in it. */
export function takenOut(sentence: string): { marked: string; text: string; root: Tagged } {
  const marked = sentence.replace(KEEP, MARK);
  const places: number[] = [];
  let text = "";
  marked.split(MARK).forEach((part, k) => {
    if (k) places.push(text.length);
    text += BLANKS.test(part[0] ?? "") && (!text || BLANKS.test(text.at(-1)!)) ? part.slice(1) : part;
  });
  const inside = places.map((place) => place + Number(text[place] === " ")) // behind a space, and not before it
    .map((first) => ({ opening: MARK, closing: "", first, last: first, inside: [] }));
  while (BLANKS.test(text.at(-1) ?? "")) text = text.slice(0, -1);
  return { marked, text, root: { opening: "", closing: "", first: 0, last: text.length, inside } };
}

/** A translation of the text between the marks, with what was kept where its own neighbours went. */
export function putBack(
  sentence: string, marked: string, root: Tagged, target: string, weights: readonly (readonly number[])[], source: Units, units: Units,
): string {
  const written = carry(root, target, weights, source, units).replace(/&(?:amp|lt|gt);/g, (each) => CHARACTERS[each]!);
  const [kept, beside] = [keptIn(sentence), [...marked.matchAll(BESIDE)]];
  let [next, spaced] = [0, -1];
  return written.replace(PLACED, (...found: unknown[]) => {
    const [mark, at, groups] = [found[0] as string, found.at(-3) as number, found.at(-1) as Record<string, string | undefined>];
    const [, before, after] = beside[next]!;
    const [starts, ends] = [at === 0 || at === spaced, at + mark.length === written.length];
    const left = !starts && (before || groups["left"]) && !groups["open"] ? " " : "";
    const right = !ends && (after || groups["right"]) && !groups["shut"] ? " " : "";
    spaced = right ? at + mark.length : -1;
    return left + kept[next++]! + right;
  });
}
