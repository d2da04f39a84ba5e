"""The record of a call of the recurrence, and the numbers of its kinds."""

import numpy as np

from dikkat._core.compiled.scoring import PAIRS
from dikkat._engine.record import Record

PANEL = 2
"""Vectors that a panel of a matrix is wide."""
GRU, LSTM = range(2)
CHOICES = (None, *PAIRS)
"""The pair functions by which a stack attends, in the order of their numbers."""
NOTHING, INNER, ADDITIVE, DISTANCE = range(len(CHOICES))

CALL = Record(
    numbers="""
        gates state memory_cell hidden_weight hidden_bias below_weight below_bias context_weight query_weight query_bias
        dropped key key_exp value reach weight kept states began saved cells contexts queries query_exp weights
        last_state last_cell states_grad contexts_grad weights_grad last_state_grad last_cell_grad gates_grad
        recurrent_grad state_grad cell_grad query_grad score_grad context_sums key_grad value_grad weight_grad
    """,
    integers="order lengths offsets seen packs",
    whole="""
        cell reverse layers hidden wide own batch task_rows tokens packings pair profile keys key_row features values
    """,
    real="folded single most largest",
    regions="""
        states cells gates recurrent reads unsaved queries exps contexts row_weights grads cell_grads by_score squares
    """,
)

_PACK = ("source", "into", "step", "columns", "group", "padded", "count", "panels", "transposed")
PACK, PANELS = np.dtype([(name, np.int64) for name in _PACK]), _PACK.index("panels")
"""A weight to be packed into panels: the addresses it is read from and written to, its rows' step, its columns, the
rows of a group without and with padding, the rows of a panel, the number of panels, and whether it is transposed."""
