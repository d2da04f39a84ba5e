"""Conversion of weights to NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Weights", "as_array"]

_EXPECTED = "a tensor, a NumPy array or nested lists of numbers"

Weights = torch.Tensor | NDArray[Any] | Sequence[Any]


def as_array(weights: Weights, name: str) -> NDArray[np.float64]:
    """Return weights of any real type and device as a float64 array.

    Example:
        >>> as_array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True), "weights")
        array([1., 1.])
    """
    if isinstance(weights, torch.Tensor):
        if weights.is_complex():
            raise TypeError(f"{name}: got dtype {weights.dtype}; expected real numbers")
        return weights.detach().to("cpu", torch.float64).numpy()
    if weights is None:
        raise TypeError(
            f"{name}: got None; expected {_EXPECTED}; see dikkat.record(model, weights=True, sums=True, entropy=True)"
        )
    try:
        array = np.asarray(weights)
    except ValueError as error:
        raise TypeError(f"{name}: got lists of unequal lengths; expected {_EXPECTED}") from error
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: got {type(weights).__name__} of dtype {array.dtype}; expected {_EXPECTED}")
    return np.asarray(array, np.float64)
