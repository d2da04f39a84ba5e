/** Inflected forms of a word, by endings that other words exchange too, as `dikkat.translation.text.forms` finds them. */

import { compare, lengthOf } from "./letters";

const STEM = 3; // letters, at least, that all forms of a word share
const OLD_ENDING = 3; // letters of a word, at most, that a form replaces
const NEW_ENDING = 12; // letters, at most, of a form's ending
const [STEM_OF_REPLACED, STEM_OF_SHORTER] = [4, 5]; // letters, at least, shared with a form that replaces or lacks the last ones
const SHARED = 5 / 8; // of the word's letters, at least, that all forms share
const [PART, LINKING] = [4, 2]; // letters of a word at the end of a compound, at least; between the words, at most
const [ENDING_WORDS, ENDING_SHARE] = [20, 1 / 125]; // words, at least, that have an ending which is a word too; their share
const [SUPPORT, MOST] = [3, 60]; // words that exchange the same endings; forms of a word

const backwards = (word: string): string => [...word].reverse().join("");

export class Forms {
  private readonly words: ReadonlySet<string>;
  private readonly sorted: readonly string[];
  private readonly reversed: readonly string[];
  private readonly supports = new Map<string, number>();

  constructor(words: Iterable<string>) {
    this.words = new Set(words);
    this.sorted = [...this.words].sort();
    this.reversed = [...this.words].map(backwards).sort();
  }

  /** A word and its forms, the most similar ones first. */
  of(word: string): string[] {
    const prefix = [...word].slice(0, Math.max(STEM, lengthOf(word) - OLD_ENDING)).join("");
    const forms = [...within(this.sorted, prefix)].filter((form) => form !== word && this.areForms(word, form));
    const endingLength = (form: string): number => lengthOf(form) - commonPrefix(word, form);
    return [word, ...forms.sort((one, other) => endingLength(one) - endingLength(other) || compare(one, other))].slice(0, MOST);
  }

  areForms(word: string, form: string): boolean {
    if (word === form) return true;
    const stem = commonPrefix(word, form), [letters, formLetters] = [[...word], [...form]];
    const endingOf = (all: readonly string[], start: number): string => all.slice(start).join("");
    if (stem < letters.length && stem < Math.max(stem === formLetters.length ? STEM_OF_SHORTER : STEM_OF_REPLACED, SHARED * letters.length)) return false;
    for (let start = stem; start <= Math.min(stem + LINKING, formLetters.length - PART); start++) if (this.isPart(endingOf(formLetters, start))) return false;
    for (let length = stem; length >= Math.max(STEM, letters.length - OLD_ENDING); length--) {
      if (formLetters.length - length <= NEW_ENDING && this.support(endingOf(letters, length), endingOf(formLetters, length)) >= SUPPORT) return true;
    }
    return false;
  }

  /** Whether an ending is a word of compounds: few words have it. */
  private isPart(ending: string): boolean {
    if (lengthOf(ending) < PART || !this.words.has(ending)) return false;
    let left = Math.ceil(Math.max(ENDING_WORDS, ENDING_SHARE * this.words.size));
    for (const _ of within(this.reversed, backwards(ending))) if (!--left) return false;
    return true;
  }

  /** The stems that have both endings, up to `SUPPORT`. */
  private support(old: string, now: string): number {
    const name = `${old} ${now}`;
    const known = this.supports.get(name);
    if (known !== undefined) return known;
    let count = 0;
    const [rarer, common] = lengthOf(now) >= lengthOf(old) ? [now, old] : [old, now];
    for (const reversed of within(this.reversed, backwards(rarer))) {
      const stem = backwards(reversed.slice(rarer.length));
      count += Number(lengthOf(stem) >= STEM && this.words.has(stem + common));
      if (count >= SUPPORT) break;
    }
    this.supports.set(name, count);
    return count;
  }
}

/** The sorted words with a prefix. */
function* within(words: readonly string[], prefix: string): Generator<string> {
  let [low, high] = [0, words.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (words[middle]! < prefix) low = middle + 1;
    else high = middle;
  }
  for (; words[low]?.startsWith(prefix); low++) yield words[low]!;
}

/** The number of letters that two words begin with. */
export function commonPrefix(one: string, other: string): number {
  const others = [...other];
  let shared = 0;
  for (const letter of one) {
    if (letter !== others[shared]) break;
    shared++;
  }
  return shared;
}
