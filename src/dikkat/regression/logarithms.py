"""Skewed columns of numbers that are compared by their logarithm, if rows are then predicted better.

A column qualifies if it has no negative number, more than five different values, and a skewness above 1. Its
coordinate is log(x + c), with c the smallest positive number in fit if the column contains 0, else 0. Between 0 and the
smallest number in fit the coordinate is the tangent of the logarithm at that number: it stays finite, and intervals
widen there as beyond other data. A number below 0 counts as 0, and has no slope.

Source: Box and Cox 1964, An analysis of transformations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dikkat.regression.columns import Column
from dikkat.regression.joined import Array, Rows

_GAIN = 0.97  # the largest criterion with logarithms, over that without, at which they are used
_LEAST_SKEWNESS, _FEWEST_VALUES = 1.0, 6


def with_useful_logarithms(rows: Rows, error_of: Callable[[Rows], float]) -> Rows:
    """Return rows with logarithms for skewed columns if that lowers `error_of`, else the rows."""
    has_weight, columns = rows.weight > 0, list(rows.columns or [Column()] * rows.x.shape[1])
    for j, column in enumerate(columns):
        numbers = rows.x[has_weight, j].astype(np.float64)
        if column.kind == "number" and _is_skewed(numbers, rows.weight[has_weight].astype(np.float64)):
            smallest = float(numbers.min())
            columns[j] = column._replace(log=(smallest, 0.0 if smallest else float(numbers[numbers > 0].min())))
    if not any(column.log for column in columns):
        return rows
    logarithms = rows._replace(columns=tuple(columns))
    return logarithms if error_of(logarithms) < _GAIN * error_of(rows) else rows


def without_logarithms(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns with all numbers compared as they are."""
    return tuple(column._replace(log=()) for column in columns)


def _is_skewed(numbers: Array, weight: Array) -> bool:
    if numbers.min() < 0 or len(np.unique(numbers)) < _FEWEST_VALUES:
        return False
    deviation = numbers / numbers.max()  # cubes of large numbers overflow
    deviation = deviation - np.average(deviation, weights=weight)
    second, third = (np.average(deviation**power, weights=weight) for power in (2, 3))
    return bool(third > _LEAST_SKEWNESS * second**1.5)
