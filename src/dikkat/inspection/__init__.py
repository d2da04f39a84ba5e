"""Weights and summaries on request: of one call, or of every call of a model that runs."""

from dikkat.inspection.front import inspect
from dikkat.inspection.recording import record
from dikkat.inspection.relevance import relevance
from dikkat.inspection.request import Inspection, Requesting
from dikkat.inspection.returned import attentions
from dikkat.inspection.trace import Attentions, Trace
from dikkat.show.views import Token

__all__ = ["Attentions", "Inspection", "Requesting", "Token", "Trace", "attentions", "inspect", "record", "relevance"]
