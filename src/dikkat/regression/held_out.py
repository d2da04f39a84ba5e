"""Rows that are held out in turn, and how well they are predicted."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dikkat.regression.joined import Array, Joined

FOLDS = 5
"""The usual number of folds."""


class LeftOut(NamedTuple):
    """Each training row predicted from others.

    Attributes:
        predicted: (n,) or (n, outputs), NaN for a row of weight 0.
        error: The mean squared error, the mean over the outputs; NaN where there is but one row.
        r2: The share of the variance that these predictions explain, at most 1, the mean over the outputs; NaN where
            there is no variance.
    """

    predicted: Array
    error: float
    r2: float


def nothing(y: Array) -> LeftOut:
    """The prediction of a single row, from none."""
    return LeftOut(np.full(y.shape, np.nan), math.nan, math.nan)


def judged(predicted: Array, y: Array, weight: Array, joined: Joined) -> LeftOut:
    """Predictions of the training rows, with their error and R²."""
    known = joined.place >= 0
    squares = ((y - predicted) ** 2).reshape(len(y), -1)[known]
    error, variance = np.average(squares, axis=0, weights=weight[known]), joined.variances()
    explained = 1 - error / variance if (variance > 0).all() else np.array(math.nan)
    return LeftOut(predicted, float(error.mean()), float(explained.mean()))


def folds_of(joined: Joined, y: Array, weight: Array, count: int) -> NDArray[np.intp]:
    """The fold of each row, (n,), at random, and the same whatever the order of the rows; −1 for a row of weight 0.

    Copies of a row, which a search leaves out together, are in one fold. Of fewer rows than folds each is one.
    """
    rows, y = np.flatnonzero(joined.place >= 0), y.reshape(len(y), -1)
    rows = rows[np.lexsort([weight[rows], joined.place[rows], *y[rows].T[::-1]])]
    place, repeat, values = joined.place[rows], joined.repeat[rows], y[rows]
    copies = joined.repeats.out == joined.repeats.weight
    copy = (place[1:] == place[:-1]) & (values[1:] == values[:-1]).all(1) & np.append(copies, True)[repeat[1:]]
    label = np.cumsum(np.append(True, ~copy)) - 1
    fold = np.random.default_rng(0).permutation(label[-1] + 1) % min(count, label[-1] + 1)
    found = np.full(len(y), -1, np.intp)
    found[rows] = fold[label]
    return found
