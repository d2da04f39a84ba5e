"""The request for weights, checked; and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypedDict

import torch
from torch import Tensor

from dikkat.problem.summary import Asked
from dikkat.scores import whole

Overview = int | tuple[int, int]
Pool = Literal["mean", "max"]


class Requesting(TypedDict, total=False):
    """The keyword arguments that say what to return of the weights of a call.

    Attributes:
        rows: Which queries' weights, counted from 0, or from the end below 0.
        top_k: How many of each query's largest weights, from 1 to m.
        sums: Whether to sum the weights of each key over the queries.
        entropy: Whether to return the entropy of each query's weights.
        argmax: Whether to return the key with the largest weight of each query.
        overview: Rows and columns, or one number for both, that the map is pooled to; at most as many as there are
            queries and keys.
        pool: How the weights of a cell are pooled: "mean" or "max".
    """

    rows: Sequence[int] | Tensor | None
    top_k: int | None
    sums: bool
    entropy: bool
    argmax: bool
    overview: Overview | None
    pool: Pool


@dataclass(frozen=True)
class Inspection:
    """The requested summaries of the weights of one call, in float32 or float64; None for what was not requested.

    Attributes:
        lse: (..., n), the log-sum-exp of each query's scores; −∞ where it sees no key. None in the record of a
            recurrence, which has its weights alone.
        rows: (..., r, m), the weights of the chosen queries.
        top_weights: (..., n, k), the largest weights of each query, from the largest on.
        top_keys: (..., n, k) int64, the keys that have them; −1 where fewer keys have a weight above 0.
        sums: (..., m), for each key the sum of its weights over the queries: how much it was looked at in all.
        entropy: (..., n), −Σ w log w in nats: 0 for one key alone, log m for all alike.
        argmax: (..., n) int64, the key with the largest weight, the first of equal ones; −1 where there is none.
        overview: (..., a, b), the map of weights pooled to so many cells.
        output: (..., n, d_v), the weighted mean of the values, where `inspect` was given values.
    """

    lse: Tensor | None = None
    rows: Tensor | None = None
    top_weights: Tensor | None = None
    top_keys: Tensor | None = None
    sums: Tensor | None = None
    entropy: Tensor | None = None
    argmax: Tensor | None = None
    overview: Tensor | None = None
    output: Tensor | None = None

    def of_element(self, index: int) -> "Inspection":
        """One element of the first leading dimension."""
        return Inspection(**{name: tensor[index] for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that there are, by name."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: tensor for name, tensor in named if tensor is not None}


@dataclass(frozen=True)
class Request:
    """The keywords of `inspect` and `record` that say what to return, checked."""

    rows: Sequence[int] | Tensor | None = None
    top_k: int | None = None
    sums: bool = False
    entropy: bool = False
    argmax: bool = False
    overview: Overview | None = None
    pool: Pool = "mean"

    def __post_init__(self) -> None:
        """Check what can be checked without the call."""
        for name in ("sums", "entropy", "argmax"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name}: got {type(getattr(self, name)).__name__}; expected True or False")
        if self.top_k is not None:
            whole("top_k", self.top_k)
        for size in self._cells() or ():
            whole("overview", size)
        if self.pool not in ("mean", "max"):
            raise ValueError(f"pool: got {self.pool!r}; expected 'mean' or 'max'")
        self._indices()

    def _cells(self) -> tuple[int, int] | None:
        if self.overview is None or isinstance(self.overview, int):
            return None if self.overview is None else (self.overview, self.overview)
        if not isinstance(self.overview, tuple) or len(self.overview) != 2:
            raise TypeError(f"overview: got {self.overview!r}; expected a whole number of cells, or (rows, columns)")
        return self.overview

    def _indices(self) -> list[int]:
        given = self.rows.tolist() if isinstance(self.rows, Tensor) else self.rows or ()
        if not isinstance(given, Sequence) or not all(type(row) is int for row in given):
            raise TypeError(f"rows: got {self.rows!r}; expected a list of whole numbers, or such a tensor")
        return list(given)

    def asked(self, queries: int, keys: int) -> Asked:
        """The summaries that are requested of a call of so many queries and keys.

        Raises:
            ValueError: There are fewer keys than `top_k`.
        """
        if self.top_k is not None and self.top_k > keys:
            raise ValueError(f"top_k: got {self.top_k}; expected 1 to {keys}, the number of keys")
        top, cells = max(self.top_k or 0, int(self.argmax)), self._cells()
        cells = None if cells is None else (min(cells[0], queries), min(cells[1], keys))
        return Asked(top, self.sums, self.entropy, cells, self.pool == "max" and cells is not None)

    def chosen(self, queries: int, device: torch.device) -> Tensor | None:
        """The chosen rows of a call of so many queries, from 0 on.

        Raises:
            ValueError: A row past the end.
        """
        rows = self._indices()
        for row in rows:
            if not -queries <= row < queries:
                raise ValueError(f"rows: got {row}; expected {-queries} to {queries - 1}, as there are {queries}")
        return None if self.rows is None else torch.tensor(rows, dtype=torch.int64, device=device) % queries
