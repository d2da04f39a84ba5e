"""Numbers of layers, heads and positions, as users have them: Python's, and those of NumPy, pandas and PyTorch."""

from typing import Any


def as_python(value: Any) -> Any:
    """Return numbers of NumPy, pandas and PyTorch as Python's, also in lists and tuples; other values as they are."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return type(value)(map(as_python, value)) if type(value) in (list, tuple) else value
