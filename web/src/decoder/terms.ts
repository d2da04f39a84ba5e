/** Terms: words whose translations the reader gives, as `dikkat.translation.terms` and `.decoding.term_use` use them. */
import { LETTER_OF_UNSPACED, unitsOf } from "./alignment";
import { commonPrefix, type Forms } from "./forms";
import { compareTerms, lengthOf, withFirst } from "./letters";
import { LONGEST_TEXT } from "./lines";
import { SPAN } from "./slots";
import { oneSpaced, SLOT, SPACE, type Span, type Tokenizer } from "./tokenizer";

export type Terms = readonly (readonly [source: string, target: string])[];

/** An occurrence of a source term in a text. */
interface Occurrence {
  readonly span: Span;
  readonly source: string;
  readonly target: string;
}

/** Yields candidates for a target text, and gets the index of the likeliest one. */
type Choice<T> = Generator<string[], T, number>;

const LINKED = 0.5; // share of the largest weight on a term from which a word may be its translation
const TOGETHER = 0.7; // weight on a term from which a neighbouring word is replaced too
const SHORT = 3; // letters, at most, of words that are not replaced together with a longer neighbour
const UNLINKED = 0.2; // weight on a term below which no word is replaced, and the term is inserted
const LONGEST_FORM = 6; // times the letters of a term, at most, that a form of it has
const MOST_TERMS = 50; // of a sentence
const MOST_INSERTIONS = 100; // where a term can be inserted: each is a line to score
/** The most characters of a term. */
export const LONGEST_TERM = 1000;
const ELIDED = /(\p{L}{1,6})['’]$/u;
const MAY_ELIDE = new RegExp(`(?<!\\p{L})(\\p{L}{0,5})[aeiou][${SPACE}]$`, "u");
const INSIDE = /[\p{L}\p{N}]/u;
const IN_SLOT = new RegExp(`[${SLOT}]`);

/** A term without superfluous spaces; null if it has no letter or digit, or is too long. */
export function termOf(text: string): string | null {
  const term = oneSpaced(text);
  return INSIDE.test(term) && !IN_SLOT.test(term) && lengthOf(term) <= LONGEST_TERM ? term : null;
}

const keyOf = (unit: string): string => unit.replace(/['’]+$/u, "").toLowerCase().replaceAll("ß", "ss").replaceAll("i\u0307", "i").replaceAll("ı", "i");
const overlaps = ([start, end]: Span, used: readonly Span[]): boolean => used.some(([first, last]) => start < last && first < end);
const spansIn = (text: string): Span[] => [...text.matchAll(SPAN)].map(({ 0: span, index }) => [index, index + span.length]);
const bare = (word: string): string => word.replace(/^['’]+|['’]+$/gu, "").toLowerCase();

function matches(term: string, text: string): boolean {
  const capitals = [term, term.replaceAll("i", "İ")].map((word) => word.toUpperCase());
  return text === term || capitals.some((word) => text === withFirst(term, () => [...word][0]!) || (lengthOf(term) > 1 && text === word));
}

function endsWord(text: string, end: number): boolean {
  const [before, after] = [text.slice(0, end).match(/[^]$/u)?.[0] ?? "", text.slice(end).match(/^[^]/u)?.[0] ?? ""];
  return !(INSIDE.test(before) && INSIDE.test(after)) || LETTER_OF_UNSPACED.test(before) || LETTER_OF_UNSPACED.test(after);
}

/** The terms in a text, in order and without overlaps; none is a part of an address or placeholder. */
export function occurrences(terms: Terms, text: string): Occurrence[] {
  const results: Occurrence[] = [], spans = spansIn(text), { spans: units } = unitsOf(text, false), byFirstUnit = new Map<string, string[]>();
  const targets = new Map(terms);
  for (const term of [...targets.keys()].sort(compareTerms)) {
    const first = keyOf(term.slice(...(unitsOf(term, false).spans[0] ?? [0, 0])));
    byFirstUnit.set(first, [...(byFirstUnit.get(first) ?? []), term]);
  }
  let end = 0;
  for (const [start, unitEnd] of units) {
    if (start < end) continue;
    const source = byFirstUnit.get(keyOf(text.slice(start, unitEnd)))?.find((term) => {
      const stop = start + term.length;
      return matches(term, text.slice(start, stop)) && endsWord(text, stop) &&
        spans.every(([first, last]) => stop <= first || last <= start || (start <= first && last <= stop));
    });
    if (!source) continue;
    end = start + source.length;
    results.push({ span: [start, end], source, target: targets.get(source)! });
  }
  return results;
}

/** The spans of a term in a text; its words may have other forms. */
function spansOf(text: string, term: string, forms: Forms): Span[] {
  const [termWords, { spans }] = [unitsOf(term, false).spans.map((span) => bare(term.slice(...span))), unitsOf(text, false)];
  const words = spans.map((span) => bare(text.slice(...span)));
  const results: Span[] = [];
  for (let k = 0, last = termWords.length - 1; last >= 0 && k + last < words.length; k++) {
    if (!termWords.every((word, n) => forms.areForms(word, words[k + n]!))) continue;
    results.push([spans[k]![0], spans[k + last]![1]]);
    k += last;
  }
  return results;
}

/**
 * The occurrences of each target term's source terms, and its spans in the target, longer terms first. The spans do not
 * overlap: a term inside a longer one does not count.
 */
function matched(terms: Terms, source: string, target: string, forms: Forms): { sources: Occurrence[]; spans: Span[] }[] {
  const all = occurrences(terms, source), used: Span[] = [];
  return [...new Set(all.map((occurrence) => occurrence.target))].sort(compareTerms).map((term) => {
    const spans = spansOf(target, term, forms).filter((span) => !overlaps(span, used));
    used.push(...spans);
    return { sources: all.filter((occurrence) => occurrence.target === term), spans };
  });
}

/** The spans of used terms in the source and in the target. */
export const usedSpans = (terms: Terms, source: string, target: string, forms: Forms): [Span, Span][] =>
  matched(terms, source, target, forms).flatMap(({ sources, spans }) => spans.slice(0, sources.length).map((span, k): [Span, Span] => [sources[k]!.span, span]));

/** A translation's text, into which terms are written one by one. */
export class Line {
  readonly unused: string[] = [];
  private readonly pending: Occurrence[] = [];
  private used: Span[] = [];

  /** @param isFixed whether the text is of a stored pair, and stays */
  constructor(terms: Terms, private readonly source: string, public target: string, private readonly tokenizer: Tokenizer, isFixed: boolean) {
    for (const { sources, spans } of matched(terms, source, target, tokenizer.forms)) {
      this.used.push(...spans);
      const missing = sources.slice(spans.length);
      if (isFixed) this.unused.push(...missing.map((occurrence) => occurrence.source));
      else this.pending.push(...missing);
    }
    const excess = this.pending.splice(Math.max(0, MOST_TERMS - this.used.length));
    this.unused.push(...excess.map((occurrence) => occurrence.source));
  }

  get isDone(): boolean {
    return !this.pending.length;
  }

  private replace([start, end]: Span, text: string): void {
    const shift = text.length - (end - start);
    this.used = this.used.map(([first, last]) => (first >= end ? [first + shift, last + shift] : [first, last]));
    this.target = this.target.slice(0, start) + text + this.target.slice(end);
  }

  /**
   * Uses the next term.
   * @param weights how much each unit of the target comes from each one of the source
   */
  *useNext(weights: readonly (readonly number[])[]): Choice<void> {
    const term = this.pending.shift()!;
    let text = term.target, [start, end] = [0, 0];
    if (lengthOf(this.target) + LONGEST_FORM * lengthOf(text) > LONGEST_TEXT) {
      this.unused.push(term.source);
      return;
    }
    const replaced = this.replaced(term, weights);
    if (replaced) {
      start = replaced[0];
      if (/^\p{Lu}/u.test(this.target.slice(start)) && !INSIDE.test(this.target.slice(0, start))) text = withFirst(text, (letter) => letter.toUpperCase());
      this.replace(replaced, text);
    } else {
      const ends = [0, ...unitsOf(this.target, false).spans.map(([, last]) => last)];
      if (ends.length > MOST_INSERTIONS) {
        this.unused.push(term.source);
        return;
      }
      const inserted = (at: number): string => (at ? `${this.target.slice(0, at)} ${text}${this.target.slice(at)}` : `${text} ${this.target}`);
      const at = ends[yield ends.map(inserted)]!;
      start = at + Number(at > 0);
      this.replace([at, at], at ? ` ${text}` : text + (this.target ? " " : ""));
    }
    end = start + text.length;
    for (const [first, last] of [...unitsOf(text, false).spans].reverse()) {
      const options = this.cased(text.slice(first, last)).map((form) => text.slice(0, first) + form + text.slice(last));
      const elisions = first ? [] : elided(this.target.slice(0, start), this.tokenizer);
      const choices = [[start, ""] as const, ...elisions].flatMap(([from, head]) => options.filter((option) => !elisions.length || fits(this.target.slice(0, from) + head, option)).map((option) => ({ from, head, option })));
      const index = choices.length > 1 ? yield choices.map(({ from, head, option }) => this.target.slice(0, from) + head + option + this.target.slice(end)) : 0;
      const { from, head, option } = choices[index]!;
      this.replace([from, end], head + option);
      [start, text] = [from + head.length, option];
      end = start + text.length;
    }
    this.used.push([start, end]);
  }

  /** The span of the target's words that come from a term; null if there are none. */
  private replaced({ span: term }: Occurrence, weights: readonly (readonly number[])[]): Span | null {
    const { spans, isWord } = unitsOf(this.target, false);
    const columns = unitsOf(this.source, false).spans.map((span) => overlaps(span, [term]));
    const linked = weights.map((row) => row.reduce((sum, weight, k) => sum + (columns[k] ? weight : 0), 0));
    const fixed = [...this.used, ...spansIn(this.target)];
    const isFree = spans.map((span, k) => isWord[k]! && !overlaps(span, fixed));
    const lengths = spans.map((span) => lengthOf(this.target.slice(...span)));
    const free = [...spans.keys()].filter((k) => isFree[k]);
    const largest = Math.max(0, ...free.map((k) => linked[k]!));
    if (largest < UNLINKED) return null;
    // Articles and auxiliary verbs come from the term too: the longest word with a large weight is its translation.
    const seed = free.filter((k) => linked[k]! >= LINKED * largest).reduce((best, k) => (lengths[k]! - lengths[best]! || linked[k]! - linked[best]!) > 0 ? k : best);
    const endOfRun = (step: number): number => {
      for (let last = seed; ;) {
        const next = [last + step, last + 2 * step].find((k) => isFree[k] && linked[k]! > TOGETHER && lengths[k]! > SHORT);
        if (next === undefined) return last;
        last = next;
      }
    };
    const [start, end] = [spans[endOfRun(-1)]![0], spans[endOfRun(1)]![1]];
    return [start, end - Number(/['’]/.test(this.target[end - 1]!) && end - start > 1)];
  }

  /** The forms of a word with its capitals. */
  private cased(word: string): string[] {
    const lower = word.toLowerCase();
    if (lengthOf(lower) !== lengthOf(word) || !/^\p{L}/u.test(word)) return [word];
    return this.tokenizer.forms.of(lower).map((form) => {
      const shared = commonPrefix(lower, form);
      return [...[...word].slice(0, shared), ...[...form].slice(shared)].join("");
    });
  }
}

/** Other forms of the word before a term, such as `l'` for `la`, with their starts in the text. */
export function elided(before: string, tokenizer: Tokenizer): (readonly [from: number, head: string])[] {
  const elision = ELIDED.exec(before), word = MAY_ELIDE.exec(before);
  if (elision) return [..."aeiou"].filter((vowel) => tokenizer.knows(elision[1] + vowel)).map((vowel) => [elision.index, `${elision[1]}${vowel} `]);
  return word && tokenizer.knows(`${word[1]}'`) ? [[word.index, word[1] + (before.includes("’") ? "’" : "'")]] : [];
}

/** Whether a text may follow a word with or without an elision; both may precede an h. */
function fits(before: string, text: string): boolean {
  const first = text.normalize("NFD")[0]!.toLowerCase();
  return first === "h" || "aeiou".includes(first) === /['’]$/.test(before);
}
