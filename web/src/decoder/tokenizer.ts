/** Text to token numbers and back, as `dikkat.translation.text.tokenizer` and `.orthography` do it. */

export const PAD = 0;
export const UNKNOWN = 1;
export const BEGIN = 2;
export const END = 3;

export interface Encoded {
  readonly ids: number[];
  /** The pieces as the sentence spells them. */
  readonly pieces: string[];
  /** Their places in the sentence. */
  readonly spans: Span[];
}

/** The first place, and the one behind the last. */
export type Span = readonly [first: number, last: number];

interface Stored {
  model: { type: string; vocab: Record<string, number>; merges?: (string | [string, string])[] };
  decoder: { decoders?: Step[] };
}

interface Step {
  type: string;
  pattern?: { Regex?: string; String?: string };
  content?: string;
}

// White space as Python has it; JavaScript's \s differs.
export const SPACE = "\\t-\\r \\u0085\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const LETTER = "[\\p{L}\\p{M}]";
// Without regard to case, of which ſ is one of s.
const ELIDED =
  `(?<!${LETTER})(?:[cdjlmnstſCDJLMNST]|[qQ][uU]|[jJ][uU][sſS][qQ][uU]|[lL][oO][rR][sſS][qQ][uU]|` +
  `[pP][uU][iI][sſS][qQ][uU]|[qQ][uU][oO][iI][qQ][uU])'(?=${LETTER})`;
const WORDS = new RegExp(
  `${ELIDED}|${LETTER}+(?:['-](?:${LETTER}|\\p{N})+)*|\\p{N}+(?:[.,:]\\p{N}+)*|\\.{2,}|[^${SPACE}]`, "gu",
);
const BYTE_PIECES = new RegExp(
  ` ?${ELIDED}| ?${LETTER}+| ?\\p{N}| ?[^${SPACE}\\p{L}\\p{M}\\p{N}]+|[${SPACE}]+`, "gu",
);
const BLANK = new RegExp(`[${SPACE}]`, "u");

interface Letter {
  readonly text: string;
  readonly span: Span;
}

/** Letters of a sentence in composed form. What several became stands, as in the library, in the place of the first. */
function composed(sentence: string): Letter[] {
  const letters: Letter[] = [];
  for (const { 0: given, index } of sentence.matchAll(/[^][\p{M}\u1160-\u11ff]*/gu)) {
    const written = given.normalize("NFC");
    let at = index;
    for (const text of written) {
      letters.push({ text, span: [at, at + text.length] });
      if (written.length === given.length) at += text.length;
    }
  }
  return letters;
}

const across = (letters: readonly Letter[]): Span => [letters[0]!.span[0], letters.at(-1)!.span[1]];

export abstract class Tokenizer {
  protected readonly numbers: Map<string, number>;
  protected readonly tokens: string[];

  protected constructor(stored: Stored) {
    this.numbers = new Map(Object.entries(stored.model.vocab));
    this.tokens = [];
    for (const [token, number] of this.numbers) this.tokens[number] = token;
  }

  static from(json: string): Tokenizer {
    const stored = JSON.parse(json) as Stored;
    return stored.model.type === "BPE" ? new BytePairs(stored) : new Words(stored);
  }

  get size(): number {
    return this.tokens.length;
  }

  abstract encode(sentence: string): Encoded;
  /** Text with spaces and capitals restored; `replace` has a word in place of a token, or null. */
  abstract decode(ids: readonly number[], replace?: readonly (string | null)[]): string;
  /** Label of a token in a picture. */
  abstract label(id: number): string;
}

// --- whole words

class Words extends Tokenizer {
  private readonly steps: ((text: string) => string)[];

  constructor(stored: Stored) {
    super(stored);
    this.steps = orthography(stored.decoder.decoders ?? []);
  }

  encode(sentence: string): Encoded {
    const letters = composed(sentence);
    // Letter by letter, as the library does it: a capital sigma at the end of a word becomes σ, not ς.
    let lower = "";
    const places: number[] = [];
    letters.forEach(({ text }, place) => {
      const small = text === "’" ? "'" : text.toLowerCase();
      for (let k = 0; k < small.length; k++) places.push(place);
      lower += small;
    });
    const ids: number[] = [];
    const pieces: string[] = [];
    const spans: Span[] = [];
    for (const { 0: word, index } of lower.matchAll(WORDS)) {
      const own = letters.slice(places[index], places[index + word.length]);
      ids.push(this.numbers.get(word) ?? UNKNOWN);
      pieces.push(own.map(({ text }) => text).join(""));
      spans.push(across(own));
    }
    return { ids, pieces, spans };
  }

  decode(ids: readonly number[], replace: readonly (string | null)[] = []): string {
    let text = "";
    ids.forEach((id, k) => {
      const word = replace[k] ?? null;
      if (word !== null) text += ` ${word}`;
      else if (id !== PAD && id !== BEGIN && id !== END) text += ` ${this.tokens[id]}`;
    });
    for (const step of this.steps) text = step(text);
    return text.replace(/" ([^"]+) "/g, '"$1"');
  }

  label(id: number): string {
    return this.tokens[id]!;
  }
}

const FRAMES = {
  inside: ["(?<=[ ])", "(?=[ ]|$)"],
  start: ['(?:(?<=\\A[ ])|(?<=\\A[ ][\\"«“(][ ])|(?<=[ ][.!?][ ]))', ""],
  before: ["[ ](?=", "(?:[ ]|$))"],
  after: ["(?<=[ ]", ")[ ]"],
} as const;
const START = '(?:(?<=^ )|(?<=^ ["«“(] )|(?<= [.!?] ))';

const escaped = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");

/** The text of a pattern in a frame; null: of another frame. */
function framed(pattern: string, frame: keyof typeof FRAMES): string | null {
  const [before, after] = FRAMES[frame];
  if (!pattern.startsWith(before) || !pattern.endsWith(after)) return null;
  return pattern.slice(before.length, pattern.length - after.length).replace(/\\(.)/gsu, "$1");
}

/** Spacing and capitals of a language, from the decoding steps that Python's `orthography.learn` stored. */
function orthography(steps: readonly Step[]): ((text: string) => string)[] {
  const inside = new Map<string, string>();
  const rest: ((text: string) => string)[] = [];
  for (const step of steps.slice(2, -2)) {
    const pattern = step.pattern?.Regex ?? "";
    const content = step.content ?? "";
    const found = (["start", "inside", "before", "after"] as const)
      .map((frame) => [frame, framed(pattern, frame)] as const)
      .find(([, text]) => text !== null);
    if (!found) continue;
    const [frame, text] = found as [keyof typeof FRAMES, string];
    if (frame === "inside") {
      inside.set(text, content); // of which none makes the text of another
      continue;
    }
    const own = {
      start: `${START}${escaped(text)}`,
      before: ` (?=${escaped(text)}(?: |$))`,
      after: `(?<= ${escaped(text)}) `,
    }[frame];
    const matching = new RegExp(own, "gu");
    rest.push((whole) => whole.replace(matching, () => content));
  }
  return [
    (text) => text.replace(/(?<= )[^ ]+(?= |$)/gu, (word) => inside.get(word) ?? word),
    ...rest,
    (text) => text.replace(/(?<=[\p{L}\p{M}]') (?=[\p{L}\p{M}])/gu, ""),
    (text) => (text.startsWith(" ") ? text.slice(1) : text),
  ];
}

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

const LETTERS = byteLetters();
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

class BytePairs extends Tokenizer {
  private readonly ranks = new Map<string, number>();
  private readonly known = new Map<string, number[]>();

  constructor(stored: Stored) {
    super(stored);
    (stored.model.merges ?? []).forEach((merge, rank) => {
      this.ranks.set(typeof merge === "string" ? merge : merge.join(" "), rank);
    });
  }

  encode(sentence: string): Encoded {
    const letters: Letter[] = [];
    let blank: Span | null = null;
    for (const letter of composed(sentence)) {
      if (BLANK.test(letter.text)) blank = letter.span;
      else {
        if (!letters.length) letters.push({ text: " ", span: letter.span });
        else if (blank) letters.push({ text: " ", span: blank });
        letters.push(letter);
        blank = null;
      }
    }
    const text = letters.map((letter) => letter.text).join("");
    const ids = [...text.matchAll(BYTE_PIECES)].flatMap(([piece]) => this.parts(piece));
    const encoder = new TextEncoder();
    const bytes = letters.flatMap((letter) => Array.from(encoder.encode(letter.text), () => letter));
    let at = 0;
    const spans = ids.map((id) => across(bytes.slice(at, (at += this.tokens[id]!.length))));
    return { ids, pieces: ids.map((id) => this.label(id)), spans };
  }

  decode(ids: readonly number[]): string {
    const text = this.text(ids.filter((id) => id !== PAD && id !== BEGIN && id !== END));
    return text.startsWith(" ") ? text.slice(1) : text;
  }

  label(id: number): string {
    const text = this.text([id]);
    if (text.startsWith(" ")) return text.slice(1) || "␣";
    return !text || /^[\p{L}\p{N}]/u.test(text) ? `·${text}` : text;
  }

  private text(ids: readonly number[]): string {
    const bytes: number[] = [];
    for (const id of ids) {
      const token = this.tokens[id]!;
      const own = [...token].map((letter) => BYTES.get(letter));
      if (own.includes(undefined)) bytes.push(...new TextEncoder().encode(token));
      else bytes.push(...(own as number[]));
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
  }

  private parts(piece: string): number[] {
    const before = this.known.get(piece);
    if (before) return before;
    let parts = Array.from(new TextEncoder().encode(piece), (byte) => LETTERS[byte]!);
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
