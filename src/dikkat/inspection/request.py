"""The request for weights, checked; and the answer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor

from dikkat._core.summary import Asked
from dikkat.scores import check_size

Overview = int | tuple[int, int]
Pool = Literal["mean", "max"]


class Requesting(TypedDict, total=False):
    """The keyword arguments that say what to return of the weights of a call.

    Attributes:
        weights: Whether to return the whole map of weights.
        rows: Which queries' weights, counted from 0, or from the end below 0.
        top_k: How many of each query's largest weights, from 1 on; where there are fewer keys, 0 for the rest.
        sums: Whether to sum the weights of each key over the queries.
        entropy: Whether to return the entropy of each query's weights.
        argmax: Whether to return the key with the largest weight of each query.
        overview: Rows and columns, or one number for both, that the map is pooled to; at most as many as there are
            queries and keys.
        pool: How the weights of a cell are pooled: "mean" or "max".
        heads: Which heads, the last leading dimension, all this is of; counted as rows are. All, where not given.
        queries: Which queries all this is of, counted as rows are, or a slice. All, where not given. A sequence of a
            packed batch has those of `rows` and `queries` that it is long enough for.
    """

    weights: bool
    rows: Sequence[int] | Tensor | None
    top_k: int | None
    sums: bool
    entropy: bool
    argmax: bool
    overview: Overview | None
    pool: Pool
    heads: int | Sequence[int] | None
    queries: int | Sequence[int] | slice | None


@dataclass(frozen=True)
class Inspection:
    """The requested summaries of the weights of one call, in float32 or float64; None for what was not requested.

    Attributes:
        lse: (..., n), the log-sum-exp of each query's scores; −∞ where it sees no key. None in the record of a
            recurrence, which has its weights alone.
        weights: (..., n, m), all weights.
        rows: (..., r, m), the weights of the chosen queries.
        top_weights: (..., n, k), the largest weights of each query, from the largest on.
        top_keys: (..., n, k) int64, the keys that have them; −1 where fewer keys have a weight above 0.
        sums: (..., m), for each key the sum of its weights over the queries: how much it was looked at in all.
        entropy: (..., n), −Σ w log w in nats: 0 for one key alone, log m for all alike.
        argmax: (..., n) int64, the key with the largest weight, the first of equal ones; −1 where there is none.
        overview: (..., a, b), the map of weights pooled to so many cells.
        output: (..., n, d_v), the weighted mean of the values, where `inspect` was given values.
        hidden: (..., m), whether no query sees a key, as of padding; with `weights` and `top_k`.
        heads: (h,) int64, the numbers of the heads that were chosen.
        queries: (n,) int64, the numbers of the queries that were chosen.
        shape: (..., n, m), the sizes of the map that all this is of.
        positions: The positions of the first query and of the first key in the sequence of the model, which grows in
            `generate`. The key's is −1 if keys are of another sequence, as in cross attention.
    """

    lse: Tensor | None = None
    weights: Tensor | None = None
    rows: Tensor | None = None
    top_weights: Tensor | None = None
    top_keys: Tensor | None = None
    sums: Tensor | None = None
    entropy: Tensor | None = None
    argmax: Tensor | None = None
    overview: Tensor | None = None
    output: Tensor | None = None
    hidden: Tensor | None = None
    heads: Tensor | None = None
    queries: Tensor | None = None
    shape: tuple[int, ...] = ()
    positions: tuple[int, int] = (0, 0)

    def of_element(self, index: int) -> "Inspection":
        """One element of the first leading dimension."""
        own: dict[str, Any] = {name: self.tensors()[name][index] for name in self.tensors().keys() & _OWN}
        return replace(self, **own, shape=self.shape[1:])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Heads, queries and keys; 0 for what nothing tells, of an inspection that was put together by hand."""
        shape, named = self.shape, self.tensors()
        if not shape:
            lead = next((each.shape[: each.ndim - _OWN[name]] for name, each in named.items() if name in _OWN), ())
            rows = [each.shape[-1] for name, each in named.items() if name in ("lse", "entropy", "argmax")]
            rows += [each.shape[-2] for name, each in named.items() if name in ("weights", "top_weights")]
            keys = [each.shape[-1] for name, each in named.items() if name in ("weights", "rows", "sums")]
            keys += [] if self.top_keys is None else [int(self.top_keys.max()) + 1 if self.top_keys.numel() else 0]
            shape = (*lead, next(iter(rows), 0), next(iter(keys), 0))
        return shape[-3] if len(shape) > 3 else 1, shape[-2], shape[-1]

    def of_batch(self, element: int) -> "Inspection":
        """One element of a batch, with a dimension for its heads: all leading dimensions but the last count as batch.

        Raises:
            ValueError: No such element.
        """
        heads, queries, keys = self.sizes
        batches = dict[str, Tensor]()
        for name, tensor in self.tensors().items():
            if name in _OWN:
                lead, rest = tensor.shape[: -_OWN[name]], tensor.shape[-_OWN[name] :]
                batches[name] = tensor.reshape(math.prod(lead) // max(1, heads), heads, *rest)
        count = min(map(len, batches.values()), default=0)
        if not -count <= element < count:
            raise ValueError(f"element: got {element}; expected {-count} to {count - 1}, as the batch has {count}")
        own: dict[str, Any] = {name: tensor[element] for name, tensor in batches.items()}
        return replace(self, **own, shape=(1, heads, queries, keys))

    def of_head(self, head: int) -> "Inspection":
        """One head of those that were recorded, by its number: the last leading dimension is gone.

        Raises:
            IndexError: It was not recorded.
        """
        heads = list(range(self.sizes[0])) if self.heads is None else self.heads.tolist()
        if head not in heads and not -len(heads) <= head < 0:
            raise IndexError(f"head: got {head}; expected one of {', '.join(map(str, heads))}")
        place = heads.index(head) if head >= 0 else head
        own: dict[str, Any] = {name: tensor.select(-1 - _OWN[name], place) for name, tensor in self.tensors().items()
                               if name in _OWN and tensor.ndim > _OWN[name]}  # fmt: skip
        return replace(self, **own, heads=None, shape=(*self.shape[:-3], *self.shape[-2:]))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that there are, by name."""
        named = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: tensor for name, tensor in named if isinstance(tensor, Tensor)}


# How many dimensions each has behind the leading ones.
_OWN = {
    "lse": 1, "weights": 2, "rows": 2, "top_weights": 2, "top_keys": 2, "sums": 1, "entropy": 1, "argmax": 1,
    "overview": 2, "output": 2, "hidden": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """The keywords of `inspect` and `record` that say what to return, checked.

    Attributes:
        longest: The queries of the longest sequence of a packed batch; shorter ones leave out the numbers beyond them.
    """

    weights: bool = False
    rows: Sequence[int] | Tensor | None = None
    top_k: int | None = None
    sums: bool = False
    entropy: bool = False
    argmax: bool = False
    overview: Overview | None = None
    pool: Pool = "mean"
    heads: int | Sequence[int] | None = None
    queries: int | Sequence[int] | slice | None = None
    longest: float = 0

    def __post_init__(self) -> None:
        """Check what can be checked without the call."""
        for name in ("weights", "sums", "entropy", "argmax"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"{name}: got {type(getattr(self, name)).__name__}; expected True or False")
        if self.top_k is not None:
            check_size("top_k", self.top_k)
        for size in self._cells() or ():
            check_size("overview", size)
        if self.pool not in ("mean", "max"):
            raise ValueError(f"pool: got {self.pool!r}; expected 'mean' or 'max'")
        for name in ("rows", "heads", "queries"):
            _indices(name, getattr(self, name))

    @property
    def is_empty(self) -> bool:
        """True where nothing is requested."""
        return self == Request(pool=self.pool, heads=self.heads, queries=self.queries)

    @property
    def is_of_some(self) -> bool:
        """True where heads or queries are chosen."""
        return self.heads is not None or self.queries is not None

    @property
    def tells_hidden(self) -> bool:
        """True where keys that no query sees are told."""
        return self.weights or self.top_k is not None

    def _cells(self) -> tuple[int, int] | None:
        if self.overview is None or isinstance(self.overview, int):
            return None if self.overview is None else (self.overview, self.overview)
        if not isinstance(self.overview, tuple) or len(self.overview) != 2:
            raise TypeError(f"overview: got {self.overview!r}; expected a whole number of cells, or (rows, columns)")
        return self.overview

    def asked(self, queries: int, keys: int) -> Asked:
        """The summaries that are requested of a call of so many queries and keys."""
        top, cells = min(max(self.top_k or 0, int(self.argmax)), max(1, keys)), self._cells()
        cells = None if cells is None else (min(cells[0], queries), min(cells[1], keys))
        return Asked(top, self.sums or self.tells_hidden, self.entropy, cells, self.pool == "max" and cells is not None)

    def chosen(self, queries: int, device: torch.device) -> Tensor | None:
        """The rows whose weights are requested of a call of so many queries, from 0 on."""
        return _places("rows", self.rows, queries, device, self.longest)

    def part(self, lead: Sequence[int], queries: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """The chosen heads and queries of a call, from 0 on; None for all. A call without heads has one."""
        heads = lead[-1] if len(lead) > 1 else 1
        chosen = _places("queries", self.queries, queries, device, self.longest)
        return _places("heads", self.heads, heads, device), chosen


def _indices(name: str, given: object) -> list[int]:
    listed = given.tolist() if isinstance(given, Tensor) else given
    listed = [listed] if type(listed) is int and name != "rows" else () if listed is None else listed
    if name == "queries" and isinstance(listed, slice):
        return []
    if not isinstance(listed, Sequence) or not all(type(each) is int for each in listed):
        raise TypeError(f"{name}: got {given!r}; expected a list of whole numbers, or such a tensor")
    return list(listed)


def _places(name: str, given: object, count: int, device: torch.device, longest: float = 0) -> Tensor | None:
    """The numbers chosen of so many, counted from 0; None where nothing was chosen."""
    if given is None:
        return None
    if isinstance(given, slice):
        return torch.arange(*given.indices(count), device=device)
    places, most = _indices(name, given), max(count, longest)
    for place in places:
        if not -most <= place < most:
            raise ValueError(f"{name}: got {place}; expected {-most} to {most - 1}, as there are {most}")
    places = [place for place in places if -count <= place < count]
    return torch.tensor(places, dtype=torch.int64, device=device) % max(1, count)
