/** Sentences of a line, as `dikkat.translation.text.lines` finds them. */
import { LETTER } from "./alignment";
import { SPACE } from "./tokenizer";

/** The most characters of a text. */
export const LONGEST_TEXT = 10_000;

const SHORT = "\\p{L}|\\p{L}\\.\\p{L}|Mr|Mrs|Ms|Dr|St|No|Nr|Prof|Mme|bzw|vs|cf|p|pp|vgl";
const END = new RegExp(
  `(?<=(?:[!?…]|(?<!(?<![${LETTER}])(?:${SHORT}))\\.)["'”’»)\\]]{0,4})` +
  `([${SPACE}]+)(?=["'“„«(\\[¿¡–\\-]*[${SPACE}]?[\\p{Lu}\\p{Lo}\\p{N}])|(?<=[。！？])(?=[^」』”）${SPACE}])`, "gu",
);

/** The sentences of a line, and the space behind each. */
export function sentencesOf(line: string): { sentence: string; space: string }[] {
  const ends = [...line.matchAll(END), { 0: "", index: line.length }];
  return ends.map(({ 0: space, index }, k) => {
    const before = ends[k - 1];
    return { sentence: line.slice(before ? before.index + before[0].length : 0, index), space };
  });
}
