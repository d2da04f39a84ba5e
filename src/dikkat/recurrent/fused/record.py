"""The record of a call of the recurrence, and the numbers of its kinds of cells and scores."""

import numpy as np

from dikkat._core.compiled.scoring import PAIRS
from dikkat._engine.record import Record

PANEL = 2
"""The width of a panel in vectors."""
GRU, LSTM = range(2)
CHOICES = (None, *PAIRS)
"""The pair functions of a stack's score, in the order of their numbers; None without attention."""
NOTHING, INNER, ADDITIVE, DISTANCE = range(len(CHOICES))

CALL = Record(
    numbers="""
        gates state memory_cell hidden_weight hidden_bias below_weight below_bias context_weight query_weight query_bias
        state_factors key key_exp value key_peaks weight weight_factors states states_before saved cells contexts
        queries query_exp weights last_state last_cell states_grad contexts_grad weights_grad last_state_grad
        last_cell_grad gates_grad recurrent_grad state_grad cell_grad query_grad score_grad context_sums key_grad
        value_grad weight_grad
    """,
    integers="order lengths offsets key_counts packs",
    whole="""
        cell reverse layers hidden gate_row unpadded batch task_rows step_rows packings pair profile keys key_row
        features values
    """,
    real="folded single exp_limit largest",
    regions="""
        states cells gates recurrent inputs unsaved queries exps contexts row_weights grads cell_grads by_score squares
    """,
)

_PACK = ("source", "target", "step", "columns", "group_rows", "padded_rows", "panel_rows", "panels", "transposed")
PACK, PANELS = np.dtype([(name, np.int64) for name in _PACK]), _PACK.index("panels")
"""A weight to pack: the addresses to read and write, the step between rows, columns, a group's rows without and with
padding, a panel's rows, the number of panels, and whether it is transposed."""
