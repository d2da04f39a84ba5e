/** Sentences of a line and parts of long sentences, as `dikkat.translation.text.capitals` and `.decoding.long_sentences` find them. */
import { LETTER } from "./alignment";
import { SPACE, type Span } from "./tokenizer";

/** The most characters of a text. */
export const LONGEST_TEXT = 10_000;

const SHORT = "\\p{L}|\\p{L}\\.\\p{L}|Mr|Mrs|Ms|Dr|St|No|Nr|Prof|Mme|bzw|vs|cf|p|pp|vgl";
const END = new RegExp(
  `(?<=(?:[!?…]|(?<!(?<![${LETTER}])(?:${SHORT}))\\.)["'”’»)\\]]{0,4})` +
  `([${SPACE}]+)(?=["'“„«(\\[¿¡–\\-]*[${SPACE}]?[\\p{Lu}\\p{Lo}\\p{N}])|(?<=[。！？])(?=[^」』”）${SPACE}])`, "gu",
);

/** The most source tokens that one search translates. */
const MOST_TOKENS = 256;
const SPACES_AT_END = new RegExp(`[${SPACE}]*$`, "u");

/** A sentence or a part of it, and the white space after it. */
interface Part {
  readonly sentence: string;
  readonly space: string;
}

/** The sentences of a line. */
export function sentencesOf(line: string): Part[] {
  const ends = [...line.matchAll(END), { 0: "", index: line.length }];
  return ends.map(({ 0: space, index }, k) => {
    const before = ends[k - 1];
    return { sentence: line.slice(before ? before.index + before[0].length : 0, index), space };
  });
}

/**
 * The parts of a line that are translated one by one: its sentences if `split`, and the parts of sentences with too many
 * tokens. A line or sentence of a stored pair is one part.
 * @param spansOf the spans of a sentence's tokens
 */
export function partsOf(line: string, split: boolean, spansOf: (sentence: string) => readonly Span[], isStored: (sentence: string) => boolean): Part[] {
  if (isStored(line)) return [{ sentence: line, space: "" }];
  return (split ? sentencesOf(line) : [{ sentence: line, space: "" }]).flatMap(({ sentence, space }) => {
    const isShort = new TextEncoder().encode(sentence).length <= MOST_TOKENS || isStored(sentence);
    const parts = isShort ? [{ sentence, space }] : divide(sentence, spansOf(sentence));
    return [...parts.slice(0, -1), { ...parts.at(-1)!, space }];
  });
}

/** Parts of a sentence with about equally many tokens. They end at white space, or in a long word between two characters. */
export function divide(sentence: string, spans: readonly Span[]): Part[] {
  const parts: Part[] = [];
  let [start, first] = [0, 0];
  while (spans.length - first > MOST_TOKENS) {
    const count = spans.length - first;
    const size = Math.ceil(count / Math.ceil(count / MOST_TOKENS));
    const ends = Array.from({ length: size }, (_, k) => first + size - k);
    const afterSpace = ends.slice(0, Math.floor(size / 2)).find((end) => SPACES_AT_END.exec(sentence[spans[end]![0] - 1] ?? "")![0]);
    first = afterSpace ?? ends.find((end) => spans[end - 1]![1] <= spans[end]![0]) ?? spans.length;
    const cut = spans[first]?.[0] ?? sentence.length;
    const space = SPACES_AT_END.exec(sentence.slice(start, cut))![0];
    parts.push({ sentence: sentence.slice(start, cut - space.length), space });
    start = cut;
  }
  return [...parts, { sentence: sentence.slice(start), space: "" }];
}
