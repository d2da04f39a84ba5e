"""The records of hypotheses and of a compiled search, and the phases of the search."""

import numpy as np

from dikkat._engine.record import Record

CHUNK = 48
"""Rows of a task at most: they, and a block of weights, stay in a core's cache."""

_HYPOTHESES = {
    "doubles": "gains totals best_ended step_totals result_scores result_totals",
    "integers": """
        state tokens fewest limits open slots slot_bits next_rows next_tokens next_sentences next_missing step_tokens
        step_rows step_origins step_missing result_steps result_places result_ids result_rows
    """,
    "flags": "copies step_ended step_out result_ended",
    "whole": "sentences beam n_best",
    "real": "penalty",
}
HYPOTHESES = Record(**_HYPOTHESES | {"whole": f"{_HYPOTHESES['whole']} chosen"})
"""The hypotheses of B sentences, K places each, as `rules` reads them; R rows are the hypotheses that go on.

- An engine writes at each step: `tokens` and log-probabilities `gains` (R, K), best first; or the tables of
  `chosen` whole steps.
- It reads for each row: `next_tokens`, `next_sentences`, the slots that are missing, `next_missing`, and the row
  before it, `next_rows`.
- Sets of slots are whole numbers, a bit for each: the `slots` of a sentence (B), `slot_bits` of a token (V).
- The tables of all steps (T, B, K): tokens, log-probabilities, rows, places before, missing slots, which ended and
  which are over.
- The results (B, n_best): the last step, its place, the tokens and the rows of all steps (B, n_best, T).
"""

SEARCH = Record(
    numbers="""
        source_table target_table source_scales target_scales key key_exp key_peaks weight value weights weight_factors
        block_peaks block_sums block_gains quantized_scales
    """,
    doubles=_HYPOTHESES["doubles"],
    integers=f"""
        {_HYPOTHESES["integers"]} control phases parts buffers strides sources lengths key_counts chunk_first
        chunk_rows block_tokens quantized
    """,
    flags=_HYPOTHESES["flags"],
    whole=f"""
        {_HYPOTHESES["whole"]} phase_count part_count lstm longest positions chunks capacity blocks embedded hidden
        own directions layers encoder_layers readout lexical loop pair profile keys key_row features values
    """,
    real=f"{_HYPOTHESES['real']} scale folded single exp_limit largest",
    regions="block exps",
)

BUFFERS = (
    "embedded_source", "outputs", "outputs_below", "gates", "encoder_state", "encoder_cell", "final", "final_cell",
    "keys", "before", "cell_before", "after", "cell_after", "embedding", "context", "attended", "query", "readout",
)  # fmt: skip
"""The buffers of a search's phases, by the numbers under which the kernel has their addresses."""

READ, DENSE, ENCODE, KEYS, GATHER, ATTEND, CELL, RANK = range(8)
"""The kinds of phases."""
POSITIONS, SENTENCES, LIVE = range(3)
"""The rows of a phase: all positions of all sentences, the sentences, or the hypotheses that go on."""

_PHASE = (
    "kind", "rows", "blocks", "panels", "weight", "stride", "scales", "scale_stride", "bias", "part", "parts", "tanh",
    "adds", "out", "out_layer", "out_step", "layer",
)  # fmt: skip
PHASE = np.dtype([(name, np.int64) for name in _PHASE])
"""A phase: a matrix in blocks of panels, with what is read and where the results go.

Weight, scales and bias are addresses; the strides from a block to the next are in bytes."""

_PART = ("source", "layer", "step", "count", "first", "panels")
PART = np.dtype([(name, np.int64) for name in _PART])
"""A part of what a matrix is multiplied with: `count` numbers of each row of a buffer's layer, rows `step` apart, which
make `panels` of a block's panels from the `first` on."""

GOING, DONE, UNKNOWN_SCORES, FULL = range(4)
"""The status of a search: running, done, stopped by scores that are not finite, or out of room for another step."""
STATE = np.dtype(
    [(name, np.int64) for name in ("phase", "first", "tasks", "cost", "inner", "rows", "step", "room", "status")]
)
"""Where a search is, between two tasks: in which phase, from which ticket on, at which step."""

ENDED = 2e9
"""A device adds this to the log-probability of a hypothesis that ended, so that it keeps one of the first places."""

LINE = 64
"""Bytes of a cache line: each of the numbers that workers fight for has one of its own."""
TICKETS, PUBLISHED, FINISHED, OVER, BUDGET = (LINE * index for index in range(5))
"""Bytes from the address of `control`: tickets that are claimed, are published, are done; whether all is over; and how
much work is left until Python is to hear of Ctrl-C."""
CONTROL = 5 * LINE
