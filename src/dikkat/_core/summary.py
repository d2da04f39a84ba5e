"""Summaries of the weights that need no matrix of them: the request, and the answer."""

from typing import NamedTuple

import torch
from torch import Tensor


class Asked(NamedTuple):
    """Which summaries are asked for."""

    top: int = 0  # how many of the largest weights of each query; 0 for none
    sums: bool = False  # whether for each key's sum over the queries
    entropy: bool = False  # whether for each query's entropy
    cells: tuple[int, int] | None = None  # rows and columns of the map that the weights are pooled to; None for none
    by_largest: bool = False  # whether a cell has the largest of its weights, and not their mean


class Summary(NamedTuple):
    """The answer, float32 or float64; None for what was not asked for."""

    lse: Tensor  # (..., n), log-sum-exp of the scores
    top_weights: Tensor | None = None  # (..., n, k), from the largest on
    # (..., n, k) int64, whose weights those are, the first of equal ones first; any where they are 0.
    top_keys: Tensor | None = None
    sums: Tensor | None = None  # (..., m)
    entropy: Tensor | None = None  # (..., n), in nats
    cells: Tensor | None = None  # (..., rows, columns)
    mean: Tensor | None = None  # (..., n, d_v), of the values


def cell_edges(length: int, cells: int) -> list[int]:
    """Where the cells of an axis begin, and where the last one ends: position i is in cell ⌊i · cells / length⌋.

    Example:
        >>> cell_edges(7, 3)
        [0, 3, 5, 7]
    """
    return [-(-cell * length // max(1, cells)) for cell in range(cells + 1)]


def cell_sizes(queries: int, keys: int, cells: tuple[int, int]) -> Tensor:
    """(rows, columns), the number of pairs in each cell of a map."""
    rows, cols = (
        torch.tensor(cell_edges(*axis), device="cpu").diff() for axis in zip((queries, keys), cells, strict=True)
    )
    return rows[:, None] * cols
