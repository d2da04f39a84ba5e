/** Words joined from subword tokens. */

export interface JoinedWords {
  readonly words: readonly string[];
  /** The indices of each word's tokens. */
  readonly tokenIndices: readonly number[][];
}

/** @param joins false keeps every token as a word */
export function joinWords(labels: readonly string[], joins: boolean): JoinedWords {
  const words: string[] = [];
  const tokenIndices: number[][] = [];
  labels.forEach((label, tokenIndex) => {
    if (!label) return; // the end of a sentence that another sentence follows
    const previousWord = words.at(-1) ?? "";
    const continuesWord = joins && /^·./u.test(label);
    const text = continuesWord ? label.slice(1) : label;
    if (continuesWord && (previousWord === "␣" || /[\p{L}\p{M}\p{N}]$/u.test(previousWord))) {
      words[words.length - 1] = previousWord === "␣" ? text : previousWord + text;
      tokenIndices.at(-1)!.push(tokenIndex);
    } else {
      words.push(text);
      tokenIndices.push([tokenIndex]);
    }
  });
  return { words, tokenIndices };
}

/** The index of a token's word, or null. */
export function wordIndexOf({ tokenIndices }: JoinedWords, tokenIndex: number | null): number | null {
  const wordIndex = tokenIndex === null ? -1 : tokenIndices.findIndex((indices) => indices.includes(tokenIndex));
  return wordIndex < 0 ? null : wordIndex;
}
