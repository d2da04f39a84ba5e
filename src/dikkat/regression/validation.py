"""Checks of settings and data before any work, each an error in one sentence."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_array

from dikkat.regression.bandwidth import Searched
from dikkat.regression.coding import largest
from dikkat.regression.columns import Column
from dikkat.regression.joined import Array, Joined
from dikkat.regression.moments import Profile
from dikkat.regression.rules import Rule

Order = Literal["constant", "linear"]
Neighbors = int | Literal["auto"] | None


_LEAST = 1e-150  # whose square is a number
_RULES = (*get_args(Rule), *get_args(Searched))


def check_settings(kernel: object, bandwidth: object, order: object, ridge: object, neighbors: object = None) -> None:
    """The settings that a file holds too: all but the device, which is the machine's own."""
    for name, given, names in (("kernel", kernel, Profile), ("order", order, Order)):
        if not isinstance(given, str) or given not in get_args(names):
            raise ValueError(f"{name}: got {given!r}; expected {_listed(get_args(names))}")
    if not (isinstance(bandwidth, str) and bandwidth in _RULES) and not _are_positive(bandwidth):
        raise _not_positive(bandwidth)
    if not (isinstance(ridge, str) and ridge == "auto") and (
        isinstance(ridge, bool) or not isinstance(ridge, Real) or not 0 <= float(ridge) < math.inf
    ):
        raise ValueError(f"ridge: got {ridge!r}; expected a number of rows, at least 0, or 'auto'")
    _check_neighbors(neighbors, bandwidth)


def _check_neighbors(neighbors: object, bandwidth: object) -> None:
    if neighbors is None:
        return
    if not (_is_count(neighbors) or (isinstance(neighbors, str) and neighbors == "auto")):
        raise ValueError(
            f"neighbors: got {neighbors!r}; expected a whole number of at least 2, 'auto', or None for the same "
            "bandwidth everywhere"
        )
    if neighbors == "auto" and not (isinstance(bandwidth, str) and bandwidth in get_args(Searched)):
        raise ValueError(
            f"neighbors: got 'auto' with the bandwidth {bandwidth!r}; expected one that is searched for, "
            f"{_listed(get_args(Searched))}, or a number of neighbours"
        )


def _is_count(neighbors: object) -> bool:
    return isinstance(neighbors, Integral) and not isinstance(neighbors, bool) and int(neighbors) >= 2


def check_neighbors(neighbors: object, joined: Joined) -> None:
    """Refuse more neighbours than rows, of which those with the same numbers are one."""
    if isinstance(neighbors, Integral) and not joined.numbers:
        raise ValueError(f"neighbors: got {neighbors!r}, and no column of numbers; expected None")
    if isinstance(neighbors, Integral) and int(neighbors) >= (different := joined.different):
        raise ValueError(
            f"neighbors: got {neighbors!r} of n_samples = {different} with different numbers; expected fewer"
        )


def check_device(device: object) -> None:
    """Refuse a device that is not here."""
    try:
        kind = torch.device(cast(str, device)).type
    except (RuntimeError, TypeError):
        kind = None
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device: got {device!r}; expected 'cpu', 'cuda' or a numbered one, such as 'cuda:1'")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: got {device!r}, and PyTorch sees no such device here; expected 'cpu'")


def check_count(name: str, given: object) -> None:
    """Refuse all but a whole number of at least 1, or None."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, Integral) or given < 1):
        raise ValueError(f"{name}: got {given!r}; expected a whole number of at least 1, or None for all")


def checked_weights(given: ArrayLike | None, x: Array) -> Array:
    """The weights of the rows x, (n,), in their dtype: 1 each for None."""
    if given is None:
        return np.ones(len(x), dtype=x.dtype)
    if isinstance(given, Real):
        given = np.full(len(x), given)
    with np.errstate(over="ignore"):
        weight: Array = check_array(given, ensure_2d=False, dtype=x.dtype, copy=True, input_name="sample_weight")
    if weight.shape != (len(x),):
        raise ValueError(f"sample_weight: got shape {weight.shape}; expected ({len(x)},), one for each row of X")
    if (weight < 0).any():
        raise ValueError(f"sample_weight: got {weight.min()}; expected numbers of at least 0")
    if not weight.any():
        raise ValueError("sample_weight: got zeros alone; expected at least one row whose weight is positive")
    return weight


def check_sizes(x: Array, values: Array, weight: Array) -> None:
    """Refuse data whose sums and squares are no numbers in their dtype."""
    limits, low, high = np.finfo(x.dtype), x.min(0).astype(np.float64), x.max(0).astype(np.float64)
    with np.errstate(over="ignore"):
        total, ranges = float(weight.sum(dtype=np.float64)), high - low
    widest, limit = int(ranges.argmax()), float(limits.max) / 2**22  # a bandwidth may be 10⁶ times as wide
    if ranges[widest] > limit:
        raise ValueError(
            f"X: got {low[widest]} and {high[widest]} in one column; expected in {x.dtype}, the dtype of X and "
            f"the answers: numbers that are {limit:.3g} apart. Bring it to another unit"
        )
    check_size("sample_weight", np.array(total), float(limits.max) / 2**10, x.dtype)
    total = max(total, 1.0)
    squares = math.sqrt(float(np.finfo(np.float64).max) / total) / 2**10
    check_size("y", values, min(float(limits.max) / total / 2**10, squares), x.dtype)
    apart = float(np.ptp(values, axis=0).max())
    if 0 < apart < _LEAST:
        raise ValueError(f"y: got values at most {apart} apart; expected {_LEAST} and more. Bring it to another unit")


def check_size(name: str, numbers: Array, limit: float, dtype: np.dtype[Any]) -> None:
    """Refuse numbers that are larger than a limit."""
    largest = float(np.abs(numbers).max())
    if largest > limit:
        raise ValueError(
            f"{name}: got {largest}; expected in {dtype}, the dtype of X and the answers: to {limit:.3g}. Bring "
            "it to another unit"
        )


def checked_bandwidth(bandwidth: Any, columns: Sequence[Column]) -> Any:
    """The bandwidth, where it is numbers such that they fit the columns: σ, or of a category λ."""
    if isinstance(bandwidth, str):
        return bandwidth
    coded = [column.coded for column in columns]
    given = np.asarray(bandwidth, np.float64)
    if any(coded) and given.shape != (len(coded),):
        raise ValueError(
            f"bandwidth: got shape {given.shape}; expected beside categories ({len(coded)},), one for each column: σ "
            "of numbers, λ of categories"
        )
    numbers = given[~np.array(coded, bool)] if any(coded) else given
    if not (numbers > 0).all():
        raise _not_positive(bandwidth)
    for number, column in zip(given, columns, strict=True) if any(coded) else ():
        if column.coded and number > largest(column):
            raise ValueError(
                f"bandwidth: got {number} for a column of {len(column.levels)} categories; expected λ of at most "
                f"{largest(column):.4g}, where it counts for nothing"
            )
    size = len(columns)
    if columns and given.shape not in ((), (size,)):
        raise ValueError(f"bandwidth: got shape {given.shape}; expected a number, or ({size},), one for each feature")
    return np.full(size, given) if columns else bandwidth


def _not_positive(bandwidth: object) -> ValueError:
    return ValueError(
        f"bandwidth: got {bandwidth!r}; expected a positive number in the units of X, one for each feature, or one of "
        f"{_listed(_RULES)}"
    )


def _are_positive(bandwidth: object) -> bool:
    """True for positive numbers; one of several may be 0, as a category's may."""
    if isinstance(bandwidth, bool | str):
        return False
    try:
        sigma = np.asarray(bandwidth, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return bool(sigma.size and (np.isfinite(sigma) & ((sigma > 0) | (sigma.ndim > 0) & (sigma == 0))).all())


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
