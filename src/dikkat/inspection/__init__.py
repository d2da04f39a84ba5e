"""Weights and summaries on request: of one call, or of every call of a model that runs."""

from dikkat.inspection.front import inspect
from dikkat.inspection.recording import record
from dikkat.inspection.request import Inspection, Requesting
from dikkat.inspection.trace import Trace

__all__ = ["Inspection", "Requesting", "Trace", "inspect", "record"]
