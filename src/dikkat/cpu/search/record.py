"""What the launcher and the kernels of a beam search both know: the record of a step, and numbers of tokens."""

from dikkat.cpu.engine.record import Record

UNKNOWN, END, SPECIAL = 1, 3, 4
"""Of the tokens that come first in every vocabulary, the two that may come out, and how many there are."""
GROUP = 4
"""Rows of a task."""

CALL = Record(
    numbers="scores bias",
    doubles="gains totals kept step_totals",
    integers="""
        tokens open limits step_tokens step_rows step_origins next_rows next_tokens next_sentences outcome
    """,
    flags="copies may_end step_ended step_out",
    whole="rows size count half sentences beam n_best length",
    real="penalty",
    regions="vector",
)
