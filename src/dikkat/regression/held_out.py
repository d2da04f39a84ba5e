"""Rows that are held out in turn, and how well they are predicted."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dikkat.regression.joined import Array, Joined

FOLDS = 5
"""How many, unless somebody says otherwise."""


class LeftOut(NamedTuple):
    """Each training row predicted from others.

    Attributes:
        predicted: (n,) or (n, outputs), NaN for a row of weight 0.
        error: The mean squared error, the mean over the outputs; NaN where all rows are at one place.
        r2: The share of the variance that these predictions explain, at most 1, the mean over the outputs; NaN where
            there is no variance.
    """

    predicted: Array
    error: float
    r2: float


def nothing(y: Array) -> LeftOut:
    """Where all rows are at one place, and none can be predicted from others."""
    return LeftOut(np.full(y.shape, np.nan), math.nan, math.nan)


def judged(predicted: Array, y: Array, weight: Array, joined: Joined) -> LeftOut:
    """How good predictions of the training rows are.

    Args:
        predicted: (n,) or (n, outputs).
        y: Likewise.
        weight: (n,).
        joined: The same rows.
    """
    known = joined.place >= 0
    squares = ((y - predicted) ** 2).reshape(len(y), -1)[known]
    error, variance = np.average(squares, axis=0, weights=weight[known]), joined.variances()
    explained = 1 - error / variance if (variance > 0).all() else np.array(math.nan)
    return LeftOut(predicted, float(error.mean()), float(explained.mean()))


def folds_of(joined: Joined, count: int) -> NDArray[np.intp]:
    """The fold of each row, (n,), at random, and the same whatever the order of the rows; −1 for a row of weight 0.

    Rows at one place are in one fold. Of fewer places than folds each is one.
    """
    places = len(joined.x)
    by_coordinates = np.lexsort(joined.x.T[::-1])
    fold = np.empty(places, np.intp)
    fold[by_coordinates] = np.random.default_rng(0).permutation(places) % min(count, places)
    found: NDArray[np.intp] = np.where(joined.place >= 0, fold[joined.place], -1)
    return found
