/** Tags of a sentence, which go over to its translation, as `dikkat.translation.text.markup` has it. */
import type { Units } from "./alignment";
import { Refusal } from "./refusal";
import { BLANK, type Span } from "./tokenizer";

/** What a reference in HTML, such as `&amp;`, stands for. */
export type Entities = (reference: string) => string;

/** A tag with what stands in it. */
export interface Tagged {
  /** The tag as it was written, or a comment, a script or a style, whole. */
  readonly opening: string;
  /** Its end; empty for a tag that has none, such as `<br>`. */
  closing: string;
  /** The first character of the text in it. */
  readonly first: number;
  /** The one behind the last. */
  last: number;
  readonly inside: Tagged[];
}

// White space and the letters of names as Python's `re` has them.
const LETTER = "\\p{L}\\p{N}_";
export const TAG = new RegExp(
  `<!--(?:>|->|[^]*?--!?>)|<\\?[^]*?\\?>|<!\\[CDATA\\[[^]*?\\]\\]>|<![^>]*>|` +
  `<(?<raw>script|style)(?![${LETTER}])[^>]*>[^]*?</\\k<raw>(?=[${BLANK}/>])[^>]*>|` +
  `<(?<ends>/?)(?<name>[a-zİı][${LETTER}.-]*(?::[${LETTER}.-]+)?)(?<rest>(?=[${BLANK}/>])(?:[^<>"']|"[^"]*"|'[^']*')*)>`, "giu",
);
const VALUE = new RegExp(`=[${BLANK}]*[^${BLANK}"'=]+$`, "u"); // without quotes: its last slash is its own
const REFERENCE = /&(?:#\d+|#x[\da-f]+|[a-z][a-z\d]*);?/gi;
const BLANKS = new RegExp(`[${BLANK}]`, "u");
const VOID = new Set("area base br col embed hr img input link meta source track wbr".split(" "));
/** Tags before and behind which words are two. */
const PARTING = new Set(
  ("address article aside blockquote br caption dd div dl dt figcaption figure footer h1 h2 h3 h4 h5 h6 header hr li " +
  "main nav ol option p pre section table td th tr ul").split(" "),
);
const DEEPEST = 100;

/** Parts a sentence in HTML into its text, references resolved, and its tags, all in one without a name. */
export function parse(marked: string, entities: Entities): { text: string; root: Tagged } {
  const root: Tagged = { opening: "", closing: "", first: 0, last: 0, inside: [] };
  const path = [root];
  const names = [""];
  let [text, end, parted] = ["", 0, false];
  const read = (until: number): void => {
    const piece = marked.slice(end, until).replace(REFERENCE, entities);
    if (!piece) return;
    if (parted && text && !BLANKS.test(text.at(-1)!) && !BLANKS.test(piece[0]!)) text += " ";
    text += piece;
    parted = false;
  };
  for (const { 0: tag, index, groups } of marked.matchAll(TAG)) {
    read(index);
    end = index + tag.length;
    const name = groups!["name"]?.toLowerCase() ?? "";
    const rest = groups!["rest"] ?? "";
    parted ||= PARTING.has(name);
    if (groups!["ends"]) {
      const open = names.pop()!;
      if (!open) throw new Refusal("tag-stray", tag);
      if (name !== open) throw new Refusal("tag-crossed", tag, `<${open}>`);
      const element = path.pop()!;
      element.closing = tag;
      element.last = text.length;
      continue;
    }
    const element = { opening: tag, closing: "", first: text.length, last: text.length, inside: [] };
    path.at(-1)!.inside.push(element);
    if (!name || VOID.has(name) || (rest.endsWith("/") && !VALUE.test(rest))) continue;
    path.push(element);
    names.push(name);
    if (path.length > DEEPEST) throw new Refusal("tag-deep", tag);
  }
  if (path.length > 1) throw new Refusal("tag-unclosed", path.at(-1)!.opening);
  read(marked.length);
  root.last = text.length;
  return { text, root };
}

export const escaped = (text: string): string => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

/** The tags without a text. */
const bare = ({ opening, inside, closing }: Tagged): string => opening + inside.map(bare).join("") + closing;

/**
 * The translation in HTML, with the tags of its source, each once, nested as they were. An element goes around the run
 * of words that come from its own more likely than not, or else around the one that most does; a tag without a text
 * before the word that comes from the one behind it.
 * @param weights how probably each unit of the target (a row) comes from each of the source
 */
export function carry(root: Tagged, target: string, weights: readonly (readonly number[])[], source: Units, units: Units): string {
  const { spans } = units;
  if (!spans.length || !source.spans.length) return bare(root) + escaped(target);

  /** The text of the units `within` an element, with the elements in it. */
  const filled = (element: Tagged, within: Span, characters: Span): string => {
    const childSpans = places(element, weights, source, units, within);
    const inOrder = element.inside.map((child, k) => [child, childSpans[k]!] as const).sort(([, a], [, b]) => a[0] - b[0] || a[1] - b[1]);
    let [written, at] = ["", characters[0]];
    for (const [child, [first, last]] of inOrder) {
      let [start, stop] = [spans[first]?.[0] ?? 0, spans[last - 1]?.[1] ?? 0];
      if (first === last) start = stop = first < within[1] ? start : Math.max(at, stop);
      const inner = first === last ? child.inside.map(bare).join("") : filled(child, [first, last], [start, stop]);
      written += escaped(target.slice(at, start)) + child.opening + inner + child.closing;
      at = stop;
    }
    return written + escaped(target.slice(at, characters[1]));
  };
  return filled(root, [0, spans.length], [0, target.length]);
}

/** The target units of each element in another, none of which overlap; an empty run for a tag without a text. */
function places(element: Tagged, weights: readonly (readonly number[])[], source: Units, units: Units, within: Span): Span[] {
  const rows = weights.slice(...within);
  const begun = element.inside.map(({ first, last }) =>
    source.spans.flatMap(([start], index) => (first <= start && start < last ? [index] : [])));
  // A part of a word stands for the word.
  const covered = element.inside.map(({ first, last }, k) => begun[k]!.length ? begun[k]! :
    source.spans.flatMap(([start, end], index) => (start < first && first < last && last <= end ? [index] : [])));
  const gains = covered.map((chosen) => {
    const onlyWords = chosen.every((index) => source.isWord[index]); // a full stop comes with a full stop
    return rows.map((row, k) =>
      (onlyWords && !units.isWord[within[0] + k] ? 0 : chosen.reduce((sum, index) => sum + row[index]!, 0)) - 0.5);
  });
  const most = gains.map((row) => Math.max(...row));
  const order = [...covered.keys()].filter((index) => covered[index]!.length).sort((a, b) => most[b]! - most[a]!);
  const childSpans: (Span | null)[] = covered.map(() => null);
  let free: Span[] = [within]; // runs of units that no element has yet
  for (const certain of [true, false]) {
    for (const index of order) {
      if (childSpans[index]) continue;
      const runs = free.map(([first, last]) => bestRun(gains[index]!, within[0], first, last));
      const best = runs.reduce<Run | null>((one, other) => (one && one.total > other.total ? one : other), null);
      if (!best || (best.total <= 0 && (certain || !begun[index]!.length))) continue;
      const { first, last } = best;
      childSpans[index] = [first, last];
      free = free
        .flatMap(([start, stop]): Span[] => [[start, Math.min(stop, first)], [Math.max(start, last), stop]])
        .filter(([start, stop]) => start < stop);
    }
  }
  const used = childSpans.filter((span) => span !== null);
  return childSpans.map((span, k) => span ?? point(rows, source, element.inside[k]!.first, element.last, within, used));
}

interface Run {
  readonly total: number;
  readonly first: number;
  readonly last: number;
}

/** The run of the largest sum between two places, of one unit at least; `gains` begin at a place of their own. */
function bestRun(gains: readonly number[], begin: number, first: number, last: number): Run {
  let best = { total: -Infinity, first, last: first };
  let [total, start] = [0, first];
  for (let unit = first; unit < last; unit++) {
    if (total <= 0) [total, start] = [0, unit];
    total += gains[unit - begin]!;
    if (total > best.total) best = { total, first: start, last: unit + 1 };
  }
  return best;
}

/** The place before the unit that comes from the source's next one, if that is in the same element. */
function point(rows: readonly (readonly number[])[], source: Units, first: number, last: number, within: Span, used: readonly Span[]): Span {
  const following = source.spans.findIndex(([start]) => first <= start && start < last);
  let position = within[1];
  if (following >= 0) {
    const shares = rows.map((row) => row[following]!);
    position = within[0] + shares.indexOf(Math.max(...shares));
  }
  const inside = used.find(([start, stop]) => start < position && position < stop)?.[0] ?? position;
  return [inside, inside];
}
