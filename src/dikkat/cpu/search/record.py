"""What the launcher and the kernels of a beam search both know: the record of a step."""

from dikkat.cpu.engine.record import Record

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
