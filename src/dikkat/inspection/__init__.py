"""Weights and summaries on request: of one call, or of every call of a model that runs."""

from dikkat.inspection.attentions import attentions
from dikkat.inspection.front import inspect
from dikkat.inspection.recording import record
from dikkat.inspection.request import Inspection, Requesting
from dikkat.inspection.timestamps import Timestamps, token_timestamps
from dikkat.inspection.trace import Attentions, Trace

__all__ = [
    "Attentions",
    "Inspection",
    "Requesting",
    "Timestamps",
    "Trace",
    "attentions",
    "inspect",
    "record",
    "token_timestamps",
]
