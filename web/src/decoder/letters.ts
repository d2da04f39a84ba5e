/** Texts as sequences of code points, as Python counts and sorts them: a letter beyond U+FFFF is two units of a JavaScript string. */

export const lengthOf = (text: string): number => [...text].length;

/** A text with another first letter. */
export function withFirst(text: string, change: (letter: string) => string): string {
  const [first = ""] = text;
  return change(first) + text.slice(first.length);
}

/** The order of two texts by their code points. */
export function compare(one: string, other: string): number {
  let k = 0;
  while (k < one.length && one[k] === other[k]) k++;
  return (one.codePointAt(k) ?? -1) - (other.codePointAt(k) ?? -1);
}

/** The order of two terms: more letters first. */
export const compareTerms = (one: string, other: string): number => lengthOf(other) - lengthOf(one) || compare(one, other);
