"""Summaries of the weights that need no matrix of them: the request, and the answer."""

from typing import NamedTuple

import torch
from torch import Tensor


class Asked(NamedTuple):
    """Which summaries are asked for.

    Attributes:
        top: How many of the largest weights of each query; 0 for none.
        sums: Whether for each key's sum over the queries.
        entropy: Whether for each query's entropy.
        cells: Rows and columns of the map that the weights are pooled to; None for none.
        by_largest: Whether a cell has the largest of its weights, and not their mean.
    """

    top: int = 0
    sums: bool = False
    entropy: bool = False
    cells: tuple[int, int] | None = None
    by_largest: bool = False


class Summary(NamedTuple):
    """The answer, float32 or float64; None for what was not asked for.

    Attributes:
        lse: (..., n), log-sum-exp of the scores.
        top_weights: (..., n, k), from the largest on.
        top_keys: (..., n, k) int64, whose weights those are, the first of equal ones first; any where they are 0.
        sums: (..., m).
        entropy: (..., n), in nats.
        cells: (..., rows, columns).
        mean: (..., n, d_v), of the values.
    """

    lse: Tensor
    top_weights: Tensor | None = None
    top_keys: Tensor | None = None
    sums: Tensor | None = None
    entropy: Tensor | None = None
    cells: Tensor | None = None
    mean: Tensor | None = None


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
