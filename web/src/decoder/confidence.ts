/** Reasons to check a translation, and its confidence, as `dikkat.translation.confidence` computes it. */
import type { Translation } from "./translator";

/** A logistic regression of "chrF is at least 80". */
export interface StoredConfidence {
  readonly weights: Readonly<Record<string, number>>;
  readonly constant: number;
}

type Flag = "unknown words" | "repeated" | "cut" | "lost numbers" | "lost placeholders" | "invented numbers" | "unused terms";

/** The reasons to check a translation, with their words. */
export function flagsOf({ unknown, repeated, finished, lost, invented, unusedTerms }: Translation): ReadonlyMap<Flag, readonly string[]> {
  const isNumber = (text: string): boolean => /^\p{Nd}([^]*\p{Nd})?$/u.test(text);
  const flags: [Flag, boolean, readonly string[]][] = [
    ["unknown words", unknown.some((word) => /[\p{L}\p{N}]/u.test(word)), unknown], ["repeated", repeated, []], ["cut", !finished, []],
    ["lost numbers", lost.some(isNumber), lost.filter(isNumber)], ["lost placeholders", !lost.every(isNumber), lost.filter((text) => !isNumber(text))],
    ["invented numbers", invented.length > 0, invented], ["unused terms", unusedTerms.length > 0, unusedTerms],
  ];
  return new Map(flags.filter(([, applies]) => applies).map(([flag, , words]) => [flag, words]));
}

/** The probability that a translation is right; 1 for a copied line without letters. */
export function confidenceOf({ weights, constant }: StoredConfidence, { sourceTokens, targetTokens, score, unknown, repeated, finished, lost, invented }: Translation): number {
  if (!sourceTokens.length) return 1;
  const features: Record<string, number> = {
    "mean log-probability": score / (targetTokens.filter(Boolean).length + 1), "log of log-probability": Math.log1p(-Math.min(0, score)),
    "unknown words": Math.log1p(unknown.length), faults: Number(repeated || !finished || lost.length > 0 || invented.length > 0),
  };
  return 1 / (1 + Math.exp(-Object.entries(features).reduce((sum, [name, value]) => sum + weights[name]! * value, constant)));
}
