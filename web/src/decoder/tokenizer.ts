/** Text to token numbers and back, as `dikkat.translation.text.tokenizer` and `.capitals` do it. */
import { Forms } from "./forms";

export const PAD = 0;
export const UNKNOWN = 1;
export const BEGIN = 2;
export const END = 3;

export interface Encoded {
  readonly ids: readonly number[];
  /** The pieces as the sentence spells them. */
  readonly pieces: readonly string[];
  /** Their places in the sentence. */
  readonly spans: readonly Span[];
}

/** The first place, and the one behind the last. */
export type Span = readonly [first: number, last: number];

interface Stored {
  model: { type: string; vocab: Record<string, number>; merges?: (string | [string, string])[] };
  decoder: { decoders?: { pattern?: { String?: string } }[] };
}

// White space as Python has it; JavaScript's \s differs.
export const SPACE = "\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
/** White space of Python's `str.split`. */
export const BLANK = `${SPACE}\\x1c-\\x1f`;
const BLANKS = new RegExp(`[${BLANK}]+`, "gu");
/** A text with single spaces, and none at its ends. */
export const oneSpaced = (text: string): string => text.replace(BLANKS, " ").replace(/^ | $/gu, "");
const LETTER = "[\\p{L}\\p{M}]";
const INSIDE = "\\p{L}\\p{M}\\p{N}"; // of words
/** Characters of slots: neither of words nor marks. */
export const SLOT = "\\x01-\\x08\\x0e-\\x1b";
/** The character of each slot. */
export const SLOTS = [...Array(28).keys()].map((code) => String.fromCharCode(code)).filter((character) => new RegExp(`[${SLOT}]`).test(character));
// Without regard to case, of which ſ is one of s.
const ELIDED =
  `(?<!${LETTER})(?:[cdjlmnstſCDJLMNST]|[qQ][uU]|[jJ][uU][sſS][qQ][uU]|[lL][oO][rR][sſS][qQ][uU]|` +
  `[pP][uU][iI][sſS][qQ][uU]|[qQ][uU][oO][iI][qQ][uU])['’](?=${LETTER})`;
const WORD = `(?:${ELIDED}|[${INSIDE}]+(?:(?:['’\\-]|(?<=\\p{N})[.,:](?=\\p{N}))[${INSIDE}]+)*)`;
const MARK = `[${SPACE}]?(?:\\.{2,}|[^${SPACE}${INSIDE}])(?:[${SPACE}](?=[${INSIDE}]|$))?`;
const PIECES = new RegExp(`${WORD}|${MARK}|(?! )[${SPACE}]`, "gu");
const BYTE_PIECES = new RegExp(
  `[${SPACE}]?${ELIDED.replace("['’]", "'")}|[${SPACE}]?${LETTER}+|[${SPACE}]?\\p{N}|` +
  `[${SPACE}]?[${SLOT}]|[${SPACE}]?[^${SPACE}\\p{L}\\p{M}\\p{N}${SLOT}]+|[${SPACE}]+`, "gu",
);
const LETTERS = /\p{L}[^\ufffd]*/u; // of a label, without bytes that are no letter
const IS_SPACE = new RegExp(`[${SPACE}]`, "u");
const INNER = new RegExp(`[${INSIDE}]`, "u");
const stripped = (text: string): string => text.replace(new RegExp(`^[${SPACE}]+|[${SPACE}]+$`, "gu"), "");
const bare = (piece: string): string => stripped(piece).toLowerCase().replaceAll("’", "'");

/** Capitals of beginnings, in the other case: a word there is read as within. */
class Capitals {
  private readonly begins: RegExp | null;
  private readonly names: ReadonlySet<string>;
  /** Whether several sentences often stood in a line. */
  readonly several: boolean;

  constructor(stored: Stored) {
    const carried = stored.decoder.decoders?.[0]?.pattern?.String ?? "";
    const [, marks = "", names = ""] = carried.split("\0");
    this.names = new Set(names.split(" "));
    this.several = marks.includes("\r");
    const after = [...marks].filter((mark) => mark !== "\n" && mark !== "\r").map((mark) => mark.replace(/[\\^$.*+?()[\]{}|/\-]/u, "\\$&")).join("");
    const beginnings = [
      ...(marks.includes("\n") ? ["^"] : []), ...(after ? [`[${after}][^${INSIDE}${SLOT}${SPACE}]{0,8}[${SPACE}]`] : []),
    ];
    this.begins = beginnings.length ? new RegExp(`((?:${beginnings.join("|")})[^${INSIDE}${SLOT}]{0,8})(${WORD})`, "gu") : null;
  }

  exchanged(text: string, names: ReadonlySet<string> = new Set()): string {
    if (!this.begins) return text;
    return text.replace(this.begins, (_, before: string, word: string) => {
      const first = String.fromCodePoint(word.codePointAt(0)!);
      const [small, large] = [first.toLowerCase(), first.toUpperCase()];
      const rest = word.slice(first.length);
      const back = [...small].length === 1 && [...large].length === 1 && small.toUpperCase() === large &&
        large.toLowerCase() === small && (first === small || first === large) && !/^\p{M}/u.test(rest);
      if (!back || this.names.has(large + rest) || names.has(large + rest)) return before + word;
      return before + (first === large ? small : large) + rest;
    });
  }
}

/** A text made of an original one, with the place there of each UTF-16 unit. */
export interface Placed {
  readonly text: string;
  readonly places: readonly Span[];
  readonly original: string;
}

const placeOf = ({ places }: Placed, [first, last]: Span): Span => [places[first]![0], places[last - 1]![1]];

// A run of white space, or a character with the marks and letters that can join it.
const CLUSTER = new RegExp(`(?<blank>[${SPACE}]{2,}|[\\t-\\r])|[^][\\p{M}\\u1161-\\u1175\\u11a8-\\u11c2]*`, "gu");

/** Compose a text to NFC, collapse its white space and trim it; single no-break spaces and the like stay. */
function normalise(placed: Placed): Placed {
  let all = "";
  const places: Span[] = [];
  for (const { 0: cluster, index, groups } of placed.text.matchAll(CLUSTER)) {
    const written = groups!["blank"] ? " " : cluster.normalize("NFC");
    all += written;
    places.push(...Array<Span>(written.length).fill(placeOf(placed, [index, index + cluster.length])));
  }
  const text = stripped(all);
  const start = all.indexOf(text);
  return text === placed.text ? placed : { text, places: places.slice(start, start + text.length), original: placed.original };
}

export abstract class Tokenizer {
  protected readonly numbers: Map<string, number>;
  protected readonly tokens: string[];
  protected readonly capitals: Capitals;
  /** Bare pieces of the training text. */
  protected met: ReadonlySet<string>;
  private foundForms: Forms | null = null;
  private latest: { readonly key: string; readonly encoded: Encoded } | null = null;

  protected constructor(stored: Stored) {
    this.numbers = new Map(Object.entries(stored.model.vocab));
    this.tokens = [];
    for (const [token, number] of this.numbers) this.tokens[number] = token;
    this.capitals = new Capitals(stored);
    this.met = new Set(stored.decoder.decoders?.[1]?.pattern?.String?.slice(1).split(" "));
  }

  static from(json: string): Tokenizer {
    const stored = JSON.parse(json) as Stored;
    return stored.model.type === "BPE" ? new BytePairs(stored) : new Words(stored);
  }

  get size(): number {
    return this.tokens.length;
  }

  /** Whether several sentences often stood in a line of its training text. */
  get several(): boolean {
    return this.capitals.several;
  }

  /** Whether it cuts words into parts. */
  abstract readonly cuts: boolean;

  /** The tokens of a text. The latest ones stay in memory: candidates of a translation with terms have the same source. */
  encode(placed: Placed): Encoded {
    const key = JSON.stringify([placed.original, placed.text, placed.places]);
    if (this.latest?.key !== key) this.latest = { key, encoded: this.read(placed) };
    return this.latest.encoded;
  }

  protected abstract read(placed: Placed): Encoded;

  /** Words and marks, other than numbers, that no training sentence had. */
  unknown(placed: Placed): string[] {
    const { met } = this;
    const read = normalise(placed);
    const places = [...read.text.matchAll(PIECES)].map(({ 0: piece, index }) => withoutSpaces(read.text, [index, index + piece.length]));
    const isUnknown = (word: string): boolean => !!word && !/^\p{Nd}/u.test(word) && !met.has(word);
    return places.filter((place) => isUnknown(bare(read.text.slice(...place)))).map((place) => read.original.slice(...placeOf(read, place)));
  }

  /** The inflected forms of the training text's words. */
  get forms(): Forms {
    return (this.foundForms ??= new Forms([...this.met].filter((piece) => /^\p{L}+$/u.test(piece))));
  }

  /** Whether the training text has a word or a mark, in any case. */
  knows(piece: string): boolean {
    return this.met.has(bare(piece));
  }

  /** The text of tokens before the capitals of beginnings are exchanged. */
  protected abstract raw(ids: readonly number[], replace: readonly (string | null)[]): string;
  /** Label of a token without a text. */
  protected abstract label(id: number): string;

  /** Text as a person would write it; `replace` has a word in place of a token, or null. */
  decode(ids: readonly number[], replace: readonly (string | null)[] = []): string {
    return this.capitals.exchanged(this.raw(ids, replace), capital(replace));
  }

  /** Whether a token begins a word: marks, digits and later parts of a word do not. */
  beginsWord(id: number): boolean {
    const label = this.label(id);
    return !label.startsWith("·") && /\p{L}/u.test(label);
  }

  /** The tokens of a text as labels for a picture, with capitals as the text has them. */
  labels(ids: readonly number[], replace: readonly (string | null)[] = []): string[] {
    const raw = this.raw(ids, replace);
    const text = this.capitals.exchanged(raw, capital(replace));
    let end = 0;
    return ids.map((id, k) => (replace[k] ?? this.label(id)).replace(LETTERS, (letters) => {
      const start = raw.indexOf(letters, end);
      if (start < 0) return letters;
      end = start + letters.length;
      return text.slice(start, end);
    }));
  }

  /** The number of the slot that a token stands for; −1: none. */
  slot(id: number): number {
    return SLOTS.indexOf(this.label(id));
  }
}

// --- whole words

class Words extends Tokenizer {
  readonly cuts = false;
  /** The most frequent piece of those that differ in case and spaces alone. */
  private readonly nearest = new Map<string, number>();

  constructor(stored: Stored) {
    super(stored);
    this.tokens.forEach((token, number) => {
      if (!this.nearest.has(bare(token))) this.nearest.set(bare(token), number);
    });
    this.met = new Set(this.nearest.keys());
  }

  protected read(placed: Placed): Encoded {
    const read = normalise(placed);
    const padded = ` ${read.text} `;
    const pieces = [...` ${this.capitals.exchanged(read.text)} `.matchAll(PIECES)].map(({ 0: piece, index }) => {
      const [first, last] = withoutSpaces(padded, [index, index + piece.length]);
      const id = this.numbers.get(piece) ?? this.nearest.get(bare(padded.slice(first, last))) ?? UNKNOWN;
      return { id, span: placeOf(read, [first - 1, last - 1]) };
    });
    return { ids: pieces.map(({ id }) => id), pieces: pieces.map(({ span }) => read.original.slice(...span)), spans: pieces.map(({ span }) => span) };
  }

  protected raw(ids: readonly number[], replace: readonly (string | null)[]): string {
    let text = "";
    ids.forEach((id, k) => {
      const word = replace[k] ?? (id === UNKNOWN ? this.tokens[UNKNOWN]! : null);
      if (word === null && (id === PAD || id === BEGIN || id === END)) return;
      const piece = word === null ? this.tokens[id]! : apart(word);
      const [starts, ended] = [INNER.test(first(piece)), INNER.test(last(text))];
      if (!starts && IS_SPACE.test(last(text))) text = text.slice(0, -1);
      text += starts && ended ? ` ${piece}` : piece;
    });
    return text.replace(/^ /u, "").replace(/ $/u, "").replace(/^ /u, "");
  }

  protected label(id: number): string {
    return stripped(this.tokens[id]!) || "␣";
  }
}

function withoutSpaces(sentence: string, [first, last]: Span): Span {
  const piece = sentence.slice(first, last);
  const letters = stripped(piece);
  const start = first + piece.indexOf(letters);
  return letters ? [start, start + letters.length] : [first, last];
}

const first = (text: string): string => (text ? String.fromCodePoint(text.codePointAt(0)!) : "");
const last = (text: string): string => text.slice(/[\udc00-\udfff]/.test(text.at(-1) ?? "") ? -2 : -1);
const letterOrDigit = /^[\p{L}\p{N}]/u;
const apart = (word: string): string =>
  `${letterOrDigit.test(first(word)) ? "" : " "}${word}${letterOrDigit.test(last(word)) ? "" : " "}`;
const capital = (replace: readonly (string | null)[]): ReadonlySet<string> =>
  new Set(["Unk", ...replace.filter((word) => word !== null && /^\p{Lu}/u.test(word)) as string[]]);

// --- parts of words

/** Letters that stand for the 256 bytes in byte-level vocabularies. */
function byteLetters(): string[] {
  const letters: string[] = [];
  let more = 256;
  for (let byte = 0; byte < 256; byte++) {
    const plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    letters.push(String.fromCodePoint(plain ? byte : more++));
  }
  return letters;
}

const BYTE_LETTERS = byteLetters();
const BYTES = new Map(BYTE_LETTERS.map((letter, byte) => [letter, byte]));

class BytePairs extends Tokenizer {
  readonly cuts = true;
  private readonly ranks = new Map<string, number>();
  private readonly known = new Map<string, number[]>();

  constructor(stored: Stored) {
    super(stored);
    (stored.model.merges ?? []).forEach((merge, rank) => {
      this.ranks.set(typeof merge === "string" ? merge : merge.join(" "), rank);
    });
  }

  protected read(placed: Placed): Encoded {
    const read = normalise(placed);
    if (!read.text) return { ids: [], pieces: [], spans: [] };
    const exchanged = this.capitals.exchanged(read.text);
    const ids = [...` ${exchanged}`.matchAll(BYTE_PIECES)].flatMap(([piece]) => this.parts(piece));
    const letters = [...exchanged.matchAll(/[^]/gu)].map(({ 0: letter, index }) => ({ letter, within: [index, index + letter.length] as const }));
    letters.unshift({ letter: " ", within: letters[0]!.within });
    const encoder = new TextEncoder();
    const bytes = letters.flatMap(({ letter, within }) => Array.from(encoder.encode(letter), () => within));
    let at = 0;
    const spans = ids.map((id) => {
      const spans = bytes.slice(at, (at += this.tokens[id]!.length));
      return placeOf(read, [spans[0]![0], spans.at(-1)![1]]);
    });
    return { ids, pieces: this.labels(ids), spans };
  }

  protected raw(ids: readonly number[]): string {
    return this.text(ids.filter((id) => id !== PAD && id !== BEGIN && id !== END)).replaceAll("\ufffd", "").replace(/^ /u, "");
  }

  protected label(id: number): string {
    const text = this.text([id]);
    if (text.startsWith(" ")) return text.slice(1) || "␣";
    return !text || /^[\p{L}\p{N}]/u.test(text) ? `·${text}` : text;
  }

  private text(ids: readonly number[]): string {
    const bytes: number[] = [];
    for (const id of ids) {
      const token = this.tokens[id]!;
      const values = [...token].map((letter) => BYTES.get(letter));
      if (values.includes(undefined)) bytes.push(...new TextEncoder().encode(token));
      else bytes.push(...(values as number[]));
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
  }

  private parts(piece: string): number[] {
    const before = this.known.get(piece);
    if (before) return before;
    let parts = Array.from(new TextEncoder().encode(piece), (byte) => BYTE_LETTERS[byte]!);
    for (;;) {
      let best = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        best = Math.min(best, this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity);
      }
      if (best === Infinity) break;
      const merged: string[] = [];
      for (let i = 0; i < parts.length; i++) {
        const pair = i + 1 < parts.length ? `${parts[i]} ${parts[i + 1]}` : "";
        if (this.ranks.get(pair) === best) {
          merged.push(parts[i]! + parts[i + 1]!);
          i++;
        } else merged.push(parts[i]!);
      }
      parts = merged;
    }
    const ids = parts.map((part) => this.numbers.get(part) ?? UNKNOWN);
    if (this.known.size < 10_000) this.known.set(piece, ids);
    return ids;
  }
}
