/** Reasons for refusing a text, a change or a file; `strings.ts` has a phrase for each. */
type Reason =
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
  | "token-place"
  | "tag-unclosed"
  | "tag-stray"
  | "tag-crossed"
  | "tag-deep"
  | "tag-unattended"
  | "correction-empty"
  | "correction-letters";

/** Input that cannot be used. */
export class Refusal extends Error {
  constructor(
    readonly reason: Reason,
    readonly detail: string = "",
    /** The tag that is open at the refused one. */
    readonly open: string = "",
  ) {
    super(detail ? `${reason}: ${detail}` : reason);
  }
}
