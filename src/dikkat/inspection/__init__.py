"""What attention looks at, on request: weights and summaries of a call, or of every call of a model that runs."""

from dikkat.inspection.front import inspect
from dikkat.inspection.recording import record
from dikkat.inspection.request import Inspection
from dikkat.inspection.trace import Trace

__all__ = ["Inspection", "Trace", "inspect", "record"]
