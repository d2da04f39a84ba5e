"""What attention looks at, on request: weights and summaries of a call, or of every call of a model that runs."""

from dikkat.inspection.front import inspect
from dikkat.inspection.request import Inspection

__all__ = ["Inspection", "inspect"]
