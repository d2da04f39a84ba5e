"""The records of hypotheses and of a compiled search, and the types of its phases and its progress."""

import numpy as np

from dikkat._engine.record import Record

CHUNK = 48
"""The most rows of a task: the rows and a block of weights stay in a core's cache."""

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
"""The hypotheses of B sentences with K places each, for `rules`. The R rows are the hypotheses that continue.

- An engine writes for each step `tokens` and log-probabilities `gains` (R, K), best first; or the tables of `chosen`
  whole steps.
- For each sentence (B): the `fewest` tokens, the most (`limits`), whether `<unk>` may be output (`copies`), and the
  number of `open` places, whose hypotheses have not ended. `best_ended` (B, n_best): the best scores of ended ones.
- `totals` (B, K): log-probabilities of the hypotheses that continue, −∞ for a free place.
- An engine reads for each row `next_tokens`, `next_sentences`, the missing slots `next_missing`, and the row of the
  step before, `next_rows`.
- Sets of slots are bits of an integer: the `slots` of a sentence (B), `slot_bits` of a token (V).
- `step_…` (T, B, K): tokens, log-probabilities, rows, old places, missing slots, and whether it ended or is out.
- `result_…` (B, n_best): the last step and its place; the tokens and rows of all steps (B, n_best, T).
"""

SEARCH = Record(
    numbers="""
        source_table target_table source_scales target_scales key key_exp key_peaks weight value weights weight_factors
        block_peaks block_sums block_gains quantized_scales state_keys state_biases block_weights nearest_scores
    """,
    doubles=f"{_HYPOTHESES['doubles']} nearest_weights",
    integers=f"""
        {_HYPOTHESES["integers"]} control phases terms buffers strides sources lengths key_counts chunk_first
        chunk_rows block_tokens quantized state_tokens block_states nearest_states
    """,
    flags=_HYPOTHESES["flags"],
    whole=f"""
        {_HYPOTHESES["whole"]} phase_count term_count lstm longest positions chunks capacity blocks embedded hidden
        direction_size directions layers encoder_layers readout lexical loop pair profile keys key_row features values
        nearest state_blocks state_size
    """,
    real=f"{_HYPOTHESES['real']} scale folded single exp_limit largest negligible",
    regions="block exps",
)
"""A compiled search. With a memory of stored states (`memory.states`), K = `nearest` is not 0:

- `state_keys` (N, `state_size`), `state_biases` and `state_tokens` (N,): the stored states.
- `block_weights` and `block_states` (R, `state_blocks`, K): a block's nearest states, by their log-weights + ‖q‖²/2.
- `nearest_states` and `nearest_weights` (T, R, K): the nearest states of each step and their weights.
- `nearest_scores` (R, K): the model's scores of their tokens.
"""

BUFFERS = (
    "embedded_source", "outputs", "outputs_below", "gates", "encoder_state", "encoder_cell", "final", "final_cell",
    "keys", "before", "cell_before", "after", "cell_after", "embedding", "context", "attended", "query", "readout",
    "probe",
)  # fmt: skip
"""The buffers of a search's phases, in the order of their numbers in the kernel."""

READ, DENSE, ENCODE, KEYS, GATHER, ATTEND, CELL, RANK, PROBE, NEAR = range(10)
"""The kinds of phases. The last two find the nearest stored states, and are never in int8."""
POSITIONS, SENTENCES, LIVE = range(3)
"""The rows of a phase: all positions of all sentences, all sentences, or the hypotheses that continue."""

_PHASE = (
    "kind", "rows", "blocks", "panels", "weight", "stride", "scales", "scale_stride", "bias", "first_term",
    "terms", "tanh", "adds", "out", "out_layer", "out_step", "layer",
)  # fmt: skip
PHASE = np.dtype([(name, np.int64) for name in _PHASE])
"""A phase: a matrix in blocks of panels, the terms of its product, and its output.

Weight, scales and bias are addresses. The strides between blocks are in bytes."""

_TERM = ("source", "layer", "step", "count", "first_panel", "panels")
TERM = np.dtype([(name, np.int64) for name in _TERM])
"""A term of a phase's product, which is a sum: `count` numbers of each row of a buffer's layer, rows `step` apart, and
the `panels` of a block, from `first_panel` on, that the product is added to."""

RUNNING, DONE, NONFINITE_SCORES, FULL = range(4)
"""The status of a search: running, done, stopped by scores that are not finite, or its tables of steps are full."""
_STATE = ("phase", "first_ticket", "tasks", "cost", "encoded", "rows", "step", "table_steps", "status")
STATE = np.dtype([(name, np.int64) for name in _STATE])
"""The progress of a search between two tasks: the phase, its first ticket, its tasks and the cost of a task; the
encoder's step, the rows and the decoder's step; the steps that tables have memory for; the status."""

ENDED = 2e9
"""A device adds this to the log-probability of an ended hypothesis, so that it keeps one of the first places."""

LINE = 64
"""Bytes of a cache line. Each counter that several workers write has its own."""
TICKETS, PUBLISHED, FINISHED, OVER, BUDGET = (LINE * index for index in range(5))
"""Bytes from the address of `control`: claimed tickets, published tickets, finished tickets, whether the run is over,
and the work left until Python checks for Ctrl-C."""
CONTROL = 5 * LINE
