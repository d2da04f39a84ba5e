"""Checks of stored tensors: names, types and shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def misfits(expected: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Return a message for each missing, unexpected or different tensor, from {name: `describe`}.

    Example:
        >>> misfits({"a": "(3,)", "b": "()"}, {"a": "(2,)", "c": "()"})
        ['a: got (2,); expected (3,)', 'b: got nothing; expected ()', 'c: got (); expected nothing']
    """
    return [
        f"{name}: got {actual.get(name, 'nothing')}; expected {expected.get(name, 'nothing')}"
        for name in (*expected, *sorted(actual.keys() - expected.keys()))
        if actual.get(name) != expected.get(name)
    ]


def describe(tensor: Array | torch.Tensor) -> str:
    """Return dtype and shape as text, as `misfits` compares them.

    Example:
        >>> describe(torch.zeros(3, 5))
        'float32 (3, 5)'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def joined(faults: Sequence[str]) -> str:
    """Return the first five faults as one text."""
    return "; ".join(faults[:5]) + (" …" if faults[5:] else "")
