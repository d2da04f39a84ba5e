"""Checks of stored tensors: names, types and shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def misfits(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The tensors that are missing, too many, or of another shape or type, by descriptions of each.

    Example:
        >>> misfits({"a": "(3,)", "b": "()"}, {"a": "(2,)", "c": "()"})
        ['a: got (2,); expected (3,)', 'b: got nothing; expected ()', 'c: got (); expected nothing']
    """
    return [
        f"{name}: got {found.get(name, 'nothing')}; expected {expected.get(name, 'nothing')}"
        for name in (*expected, *sorted(found.keys() - expected.keys()))
        if found.get(name) != expected.get(name)
    ]


def described(tensor: Array | torch.Tensor) -> str:
    """Type and shape, as `misfits` compares them.

    Example:
        >>> described(torch.zeros(3, 5))
        'float32 (3, 5)'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def joined(faults: Sequence[str]) -> str:
    """The first five faults, as one text."""
    return "; ".join(faults[:5]) + (" …" if faults[5:] else "")
