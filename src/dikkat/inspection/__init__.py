"""Attention weights and summaries of one call, or of all calls of a running model."""

from dikkat.inspection.calls import Attentions
from dikkat.inspection.changing import Changed, change
from dikkat.inspection.comparing import compare
from dikkat.inspection.effects import effects
from dikkat.inspection.output_attentions import attentions
from dikkat.inspection.recording import record
from dikkat.inspection.relevance import relevance
from dikkat.inspection.request import Inspection, Requesting
from dikkat.inspection.single_call import inspect
from dikkat.inspection.trace import Trace
from dikkat.inspection.watching import HeadStatistics, watch
from dikkat.show.positions import Grid, Times, Token, Words

__all__ = [
    "Attentions", "Changed", "Grid", "HeadStatistics", "Inspection", "Requesting", "Times", "Token", "Trace", "Words",
    "attentions", "change", "compare", "effects", "inspect", "record", "relevance", "watch",
]  # fmt: skip
