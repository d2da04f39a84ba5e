/** What can be wrong with what a reader or a file gives; the page has a sentence for each, in every language. */
export type Reason =
  | "too-long"
  | "half-character"
  | "no-model"
  | "damaged"
  | "old-browser"
  | "not-numbers"
  | "weight-number"
  | "weight-range"
  | "weight-sum"
  | "weight-place"
  | "step-place"
  | "token-place";

/** Something that was given and cannot be used. */
export class Refusal extends Error {
  constructor(
    readonly reason: Reason,
    readonly detail: string = "",
  ) {
    super(detail ? `${reason}: ${detail}` : reason);
  }
}
