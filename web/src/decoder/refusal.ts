/** Reasons for refusing a text, a change or a file; `strings.ts` has a phrase for each. */
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

/** Input that cannot be used. */
export class Refusal extends Error {
  constructor(
    readonly reason: Reason,
    readonly detail: string = "",
  ) {
    super(detail ? `${reason}: ${detail}` : reason);
  }
}
