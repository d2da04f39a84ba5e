/** Which word translates which, as `dikkat.translation.decoding.alignment` and `.text.units` have it. */
import { softmax, type Network } from "./network";
import { forced, gainOf, type Read } from "./search";
import { SPAN } from "./slots";
import { BEGIN, SPACE, type Span } from "./tokenizer";

/** The words, marks and slots of a text: larger than pieces of words. */
export interface Units {
  readonly spans: readonly Span[];
  /** Of each, whether it is a word, and no mark. */
  readonly isWord: readonly boolean[];
}

export const LETTER = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
const UNSPACED = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar"].map((script) => `\\p{Script=${script}}`).join("");
const WORD = `(?=[${LETTER}])(?!\\p{Nd})[${UNSPACED}ーｰ][\\p{M}\\p{Join_Control}ﾞﾟ]*`;
const UNIT = new RegExp(`${WORD}|(?:(?!${WORD})[${LETTER}])+['’]?|[^${LETTER}${SPACE}]`, "gu");
const UNIT_OR_SPAN = new RegExp(`${SPAN.source}|${UNIT.source}`, "gu");
/** A letter of a script without spaces, at the beginning. */
export const LETTER_OF_UNSPACED = new RegExp(`^${WORD}`, "u");

/** Places of a step that are tried. */
const TRIED = 4;
/** The weight of attention itself. */
const ATTENTION = 0.01;

/** The units of a text: `l'homme.` has `l'`, `homme` and a full stop, `{a b}3.5` has two, or seven if spans are not one. */
export function unitsOf(text: string, wholeSpans = true): Units {
  const matches = [...text.matchAll(wholeSpans ? UNIT_OR_SPAN : UNIT)];
  return {
    spans: matches.map(({ 0: unit, index }) => [index, index + unit.length]),
    isWord: matches.map(([unit]) => /^[\p{L}\p{N}_]/u.test(unit)),
  };
}

/**
 * Where each token of a translation comes from: a row for each, by the root of its weights and by its probability if
 * the step had seen one position alone, of the places with the largest weights; and a little by attention itself.
 * Shankar and Sarawagi (2019), section 3. Yields between steps.
 */
export function* posteriors(network: Network, target: readonly number[], read: Read): Generator<void, Float64Array[]> {
  const { memory } = read;
  const positions = [...Array(memory.size).keys()];
  const rows: Float64Array[] = [];
  const steps = yield* forced(network, read, target);
  for (const [index, token] of target.entries()) {
    const [last, step] = [target[index - 1] ?? BEGIN, steps[index]];
    const state = steps[index - 1]?.state ?? read.state;
    const root = (position: number) => Math.log(step!.weights[position]!) / 2;
    const most = [...positions].sort((one, other) => root(other) - root(one)).slice(0, TRIED);
    const scores = network.tokenScores(network.alone(last, memory, state, most));
    const chances = softmax(most.map((position, index) => root(position) + gainOf(network, scores[index]!, token)));
    const chanceOf = (position: number) => chances[most.indexOf(position)] ?? 0;
    rows.push(Float64Array.from(positions, (position) => (1 - ATTENTION) * chanceOf(position) + ATTENTION * step!.weights[position]!));
    yield;
  }
  return rows;
}

/** Numbers of the pieces that each unit has a part of. */
function piecesOf({ spans }: Units, pieces: readonly Span[]): number[][] {
  const all = [...pieces.keys()];
  return spans.map(([start, end]) => all.filter((piece) => pieces[piece]![0] < end && start < pieces[piece]![1]));
}

/** Weights of units from those of pieces: of a unit's pieces the mean, at a unit's pieces the sum. */
export function ofUnits(
  weights: readonly Float64Array[], source: Units, sourcePieces: readonly Span[], target: Units, targetPieces: readonly Span[],
): number[][] {
  const read = piecesOf(source, sourcePieces);
  const units = sourcePieces.map(() => 0); // that a piece is a part of
  for (const piece of read.flat()) units[piece]!++;
  return piecesOf(target, targetPieces).map((rows) => {
    const mean = units.map((_, piece) => rows.reduce((sum, row) => sum + weights[row]![piece]!, 0) / Math.max(1, rows.length));
    return read.map((pieces) => pieces.reduce((sum, piece) => sum + mean[piece]! / units[piece]!, 0));
  });
}

/** Weights whose rows add up to 1, in which a source unit counts less the more units come from it. */
export function agreed(weights: readonly (readonly number[])[]): number[][] {
  const sums = (weights[0] ?? []).map((_, unit) => weights.reduce((sum, row) => sum + row[unit]!, 0));
  return weights.map((row) => {
    const shared = row.map((weight, unit) => weight / Math.sqrt(Math.max(sums[unit]!, 1e-9)));
    const sum = Math.max(shared.reduce((a, b) => a + b, 0), 1e-9);
    return shared.map((weight) => weight / sum);
  });
}
