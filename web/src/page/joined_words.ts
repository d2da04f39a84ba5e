/** Parts of words as the words that they make. */

export interface JoinedWords {
  readonly words: readonly string[];
  /** The numbers of each word's parts. */
  readonly parts: readonly number[][];
}

/** @param together false: every part is by itself, as its label has it */
export function joinWords(labels: readonly string[], together: boolean): JoinedWords {
  const words: string[] = [];
  const parts: number[][] = [];
  labels.forEach((label, place) => {
    if (!label) return; // the end of a sentence, behind which another one stands
    const before = words.at(-1) ?? "";
    const goesOn = together && /^·./u.test(label);
    const text = goesOn ? label.slice(1) : label;
    if (goesOn && (before === "␣" || /[\p{L}\p{M}\p{N}]$/u.test(before))) {
      words[words.length - 1] = before === "␣" ? text : before + text;
      parts.at(-1)!.push(place);
    } else {
      words.push(text);
      parts.push([place]);
    }
  });
  return { words, parts };
}

/** The word that a part is of. */
export function wordIndexOf({ parts }: JoinedWords, part: number | null): number | null {
  const found = part === null ? -1 : parts.findIndex((own) => own.includes(part));
  return found < 0 ? null : found;
}
