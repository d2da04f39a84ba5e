"""Summaries of attention weights, computed without a weight matrix: the request and the result."""

from typing import NamedTuple

import torch
from torch import Tensor


class Asked(NamedTuple):
    """The requested summaries."""

    top: int = 0  # the number of largest weights for each query; 0 for none
    sums: bool = False  # whether to sum each key's weights over the queries
    entropy: bool = False  # whether to compute each query's entropy
    cells: tuple[int, int] | None = None  # rows and columns of the pooled map; None for none
    by_largest: bool = False  # whether a cell has the maximum of its weights instead of their mean
    peak: bool = False  # whether to return each query's largest score


class Summary(NamedTuple):
    """The requested summaries, float32 or float64; None for summaries that were not requested."""

    lse: Tensor  # (..., n), log-sum-exp of the scores
    top_weights: Tensor | None = None  # (..., n, k), largest first
    # (..., n, k) int64, the keys of `top_weights`; lower keys first among equal weights, any key at weight 0.
    top_keys: Tensor | None = None
    sums: Tensor | None = None  # (..., m)
    entropy: Tensor | None = None  # (..., n), in nats
    cells: Tensor | None = None  # (..., rows, columns)
    mean: Tensor | None = None  # (..., n, d_v), the weighted mean of the values
    peak: Tensor | None = None  # (..., n), −∞ for a query that sees no key


def cell_edges(length: int, cells: int) -> list[int]:
    """Return the first position of each cell, and the end of the last: position i is in cell ⌊i · cells / length⌋.

    Example:
        >>> cell_edges(7, 3)
        [0, 3, 5, 7]
    """
    return [-(-cell * length // max(1, cells)) for cell in range(cells + 1)]


def cell_sizes(queries: int, keys: int, cells: tuple[int, int]) -> Tensor:
    """Return the number of pairs in each cell of a map, (rows, columns)."""
    rows, cols = (
        torch.tensor(cell_edges(*axis), device="cpu").diff() for axis in zip((queries, keys), cells, strict=True)
    )
    return rows[:, None] * cols
