"""The arguments that request weights and summaries, and the returned `Inspection`."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, TypedDict, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._core.summary import Asked
from dikkat.inspection.whole_numbers import as_python
from dikkat.scores import check_size
from dikkat.show.blocks import find_groups, matching_tokens, positions_outside, recorded_side
from dikkat.show.positions import TokenList, Tokens, tokens_of

Overview = int | tuple[int, int]
Pool = Literal["mean", "max"]
Span = slice | list[int] | range | Tensor | np.ndarray[Any, Any]


class Requesting(TypedDict, total=False):
    """The keyword arguments that select weights and summaries of a call.

    Attributes:
        weights: Whether to return all weights.
        rows: Queries whose weights to return, counted from 0, or from the end if negative.
        top_k: How many of each query's largest weights to return, at least 1; missing weights are 0 if there are fewer
            keys.
        sums: Whether to sum the weights of each key over the queries.
        entropy: Whether to return the entropy of each query's weights.
        argmax: Whether to return the key with the largest weight of each query.
        overview: Rows and columns of the pooled map, or one number for both; at most as many as queries and keys.
        pool: How the weights of a cell are pooled: "mean" or "max".
        spans: Keys by name, as a slice or a list of positions; the result has the total weight of each span.
        max_score: Whether to return the largest score of each query, with biases and after a soft cap, without a sink.
        blocks: Tokens with `dikkat.Grid` or `Times`, as in `Trace.tokens`: the result has the mean weights between
            words and square blocks of patches, at most 256 blocks of an axis. Calls of other lengths have none.
        heads: The selected heads (last leading dimension), counted like `rows`; all by default.
        queries: The selected queries, counted like `rows`, or a slice; all by default. A short sequence of a packed
            batch skips `rows` and `queries` beyond its end.
    """

    weights: bool
    rows: Sequence[int] | Tensor | None
    top_k: int | None
    sums: bool
    entropy: bool
    argmax: bool
    overview: Overview | None
    pool: Pool
    spans: Mapping[str, Span] | None
    max_score: bool
    blocks: Tokens | None
    heads: int | Sequence[int] | None
    queries: int | Sequence[int] | slice | None


@dataclass(frozen=True, repr=False)
class Inspection:
    """The requested summaries of the weights of one call, in float32 or float64; None for what was not requested.

    Attributes:
        lse: (..., n), the log-sum-exp of each query's scores; −∞ for a query that sees no key. None in the record of a
            recurrence.
        weights: (..., n, m), all weights.
        rows: (..., r, m), the weights of the queries in `rows`.
        top_weights: (..., n, k), the largest weights of each query, largest first.
        top_keys: (..., n, k) int64, the keys of `top_weights`; −1 if fewer keys have a weight above 0.
        sums: (..., m), the total weight of each key over all queries.
        entropy: (..., n), −Σ w log w in nats: 0 for a single key, log m for uniform weights.
        argmax: (..., n) int64, the first key with the largest weight; −1 for a query that sees no key.
        overview: (..., a, b), the weights pooled to cells.
        span_mass: (..., n, s), the total weight of each span, in the order of `spans`.
        max_score: (..., n), the largest score of each query; −∞ for a query that sees no key.
        blocks: (..., a, b), the mean weights between groups of queries and of keys: each word, and square blocks of the
            patches of each grid. Selected `queries` are not grouped.
        outside: (..., r, m), the weights of the queries that are in no grid, if blocks have several patches.
        query_groups: (n,) int64, the row of `blocks` of each query.
        key_groups: (m,) int64, the column of `blocks` of each key.
        change: (..., n), only in a difference of two recordings: half the sum of the absolute differences of a query's
            weights; NaN for padding.
        output: (..., n, d_v), the weighted mean of the values if `inspect` got values.
        hidden: (..., m), True for a key that no query sees, such as padding; with `weights` or `top_k`.
        heads: (h,) int64, the selected heads.
        queries: (n,) int64, the selected queries.
        shape: (..., n, m), the shape of all weights.
        positions: The positions of the first query and the first key in the model's sequence, which grows in
            `generate`. The key's position is −1 if keys are from another sequence, as in cross attention.
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
    span_mass: Tensor | None = None
    max_score: Tensor | None = None
    blocks: Tensor | None = None
    outside: Tensor | None = None
    query_groups: Tensor | None = None
    key_groups: Tensor | None = None
    change: Tensor | None = None
    output: Tensor | None = None
    hidden: Tensor | None = None
    heads: Tensor | None = None
    queries: Tensor | None = None
    shape: tuple[int, ...] = ()
    positions: tuple[int, int] = (0, 0)

    def __repr__(self) -> str:
        """Return the shapes of the tensors, and how to get all weights if they were not requested."""
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in self.tensors().items())
        hint = "" if self.weights is not None else ". weights=True would also return the weights"
        return f"Inspection of {shapes or 'nothing'}{hint}"

    def of_element(self, index: int) -> "Inspection":
        """Return one element of the first leading dimension."""
        tensors: dict[str, Any] = {name: self.tensors()[name][index] for name in self.tensors().keys() & _TRAILING}
        return replace(self, **tensors, shape=self.shape[1:])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of heads, queries and keys; 0 if a hand-made inspection does not determine a number."""
        shape, tensors = self.shape, self.tensors()
        if not shape:
            lead = next((t.shape[: t.ndim - _TRAILING[name]] for name, t in tensors.items() if name in _TRAILING), ())
            rows = [tensor.shape[-1] for name, tensor in tensors.items() if name in ("lse", "entropy", "argmax")]
            rows += [tensor.shape[-2] for name, tensor in tensors.items() if name in ("weights", "top_weights")]
            keys = [tensor.shape[-1] for name, tensor in tensors.items() if name in ("weights", "rows", "sums")]
            keys += [] if self.top_keys is None else [int(self.top_keys.max()) + 1 if self.top_keys.numel() else 0]
            shape = (*lead, next(iter(rows), 0), next(iter(keys), 0))
        return shape[-3] if len(shape) > 3 else 1, shape[-2], shape[-1]

    def of_batch(self, element: int) -> "Inspection":
        """Return one element of a batch, with a dimension for heads; all leading dimensions except the last are batch.

        Raises:
            ValueError: `element` is out of range.
        """
        heads, queries, keys = self.sizes
        batch_tensors = dict[str, Tensor]()
        for name, tensor in self.tensors().items():
            if name in _TRAILING:
                lead, own_shape = tensor.shape[: -_TRAILING[name]], tensor.shape[-_TRAILING[name] :]
                batch_tensors[name] = tensor.reshape(math.prod(lead) // max(1, heads), heads, *own_shape)
        count = min(map(len, batch_tensors.values()), default=0)
        if not -count <= element < count:
            raise ValueError(
                f"element: got {element}; expected {-count} to {count - 1}, as the batch has {count} elements"
            )
        tensors: dict[str, Any] = {name: tensor[element] for name, tensor in batch_tensors.items()}
        return replace(self, **tensors, shape=(1, heads, queries, keys))

    def of_head(self, head: int) -> "Inspection":
        """Return the recording of one head, without the heads dimension.

        Raises:
            IndexError: The head was not recorded.
        """
        heads = list(range(self.sizes[0])) if self.heads is None else self.heads.tolist()
        if head not in heads and not -len(heads) <= head < 0:
            raise IndexError(f"head: got {head}; expected one of {', '.join(map(str, heads))}")
        index = heads.index(head) if head >= 0 else head
        tensors: dict[str, Any] = {name: tensor.select(-1 - _TRAILING[name], index)
                                   for name, tensor in self.tensors().items()
                                   if name in _TRAILING and tensor.ndim > _TRAILING[name]}  # fmt: skip
        return replace(self, **tensors, heads=None, shape=(*self.shape[:-3], *self.shape[-2:]))

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if isinstance(value, Tensor)}


# The number of dimensions after the leading ones.
_TRAILING = {
    "lse": 1, "weights": 2, "rows": 2, "top_weights": 2, "top_keys": 2, "sums": 1, "entropy": 1, "argmax": 1,
    "overview": 2, "span_mass": 2, "max_score": 1, "blocks": 2,
    "outside": 2, "change": 1, "output": 2, "hidden": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """The checked keyword arguments of `Requesting`.

    Attributes:
        longest: The queries of the longest sequence in a packed batch; shorter sequences ignore indices beyond them.
        longest_keys: The keys of the sequence with the most keys in a packed batch, likewise for spans.
        first_key: The position of the first key, from which the positions of spans count.
        first_query: The position of the first query.
        tolerant: Whether `max_score` is None if the scores of a call are unknown. Otherwise an error is raised.
    """

    weights: bool = False
    rows: Sequence[int] | Tensor | None = None
    top_k: int | None = None
    sums: bool = False
    entropy: bool = False
    argmax: bool = False
    overview: Overview | None = None
    pool: Pool = "mean"
    spans: "Spans | Mapping[str, Span] | None" = None
    max_score: bool = False
    blocks: Tokens | None = None
    heads: int | Sequence[int] | None = None
    queries: int | Sequence[int] | slice | None = None
    longest: float = 0
    longest_keys: float = 0
    first_key: int = 0
    first_query: int = 0
    tolerant: bool = False

    def __post_init__(self) -> None:
        """Check the arguments that do not depend on the call."""
        for name in ("weights", "sums", "entropy", "argmax", "max_score"):
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
        if self.spans is not None and not isinstance(self.spans, Spans):
            object.__setattr__(self, "spans", Spans(span_positions(self.spans)))
        if self.blocks is not None:
            sequences = tokens_of(self.blocks)
            if not any(labels.parts for labels in sequences.values()):
                raise ValueError("blocks: got tokens without dikkat.Grid or Times; expected at least one of them")
            object.__setattr__(self, "blocks", sequences)

    @property
    def is_empty(self) -> bool:
        """True if nothing is requested."""
        return self == Request(pool=self.pool, heads=self.heads, queries=self.queries)

    @property
    def is_partial(self) -> bool:
        """True if heads or queries are selected."""
        return self.heads is not None or self.queries is not None

    @property
    def finds_hidden(self) -> bool:
        """True if the result has `hidden`, the keys that no query sees."""
        return self.weights or self.top_k is not None

    def _cells(self) -> tuple[int, int] | None:
        if self.overview is None or isinstance(self.overview, int):
            return None if self.overview is None else (self.overview, self.overview)
        if not isinstance(self.overview, tuple) or len(self.overview) != 2:
            raise TypeError(f"overview: got {self.overview!r}; expected a whole number of cells, or (rows, columns)")
        return self.overview

    def summary_spec(self, queries: int, keys: int) -> Asked:
        """Return the requested summaries of a call with `queries` queries and `keys` keys."""
        top, cells = min(max(self.top_k or 0, int(self.argmax)), max(1, keys)), self._cells()
        cells = None if cells is None else (min(cells[0], queries), min(cells[1], keys))
        by_largest = self.pool == "max" and cells is not None
        return Asked(top, self.sums or self.finds_hidden, self.entropy, cells, by_largest, self.max_score)

    def span_members(self, keys: int, like: Tensor) -> Tensor:
        """Return which keys are in each span, (m, s) ones and zeros."""
        spans = cast(Spans, self.spans)  # as `__post_init__` sets it
        if not self.tolerant:
            spans.check_last(max(self.first_key + keys, self.longest_keys) - 1)
        members = spans.members(like)[self.first_key : self.first_key + keys]
        return F.pad(members, (0, 0, 0, keys - len(members)))

    def find_blocks(self, queries: int, keys: int) -> "BlockGroups | None":
        """Return the groups of all queries and keys of a call; None if no block was requested or no tokens fit."""
        if self.blocks is None or self.first_key:
            return None
        sequences = [*cast(Mapping[str, TokenList], self.blocks).values()]
        is_grouped = self.queries is None and not self.first_query
        query_layouts = matching_tokens(sequences, queries, 0).parts if is_grouped else {}
        key_layouts = matching_tokens(sequences, keys, self.first_query).parts
        if not query_layouts and not key_layouts:
            return None
        side = recorded_side((query_layouts, key_layouts))
        outside = positions_outside(query_layouts, queries) if side > 1 and self.queries is None else None
        return BlockGroups(find_groups(query_layouts, queries, side), find_groups(key_layouts, keys, side), outside)

    def without_scores(self, reason: str) -> "Request":
        """Return the request without `max_score`.

        Raises:
            ValueError: The request is not tolerant.
        """
        if self.max_score and not self.tolerant:
            raise ValueError(f"max_score: got {reason}; expected max_score=False, or other layers")
        return replace(self, max_score=False)

    def row_indices(self, queries: int, device: torch.device) -> Tensor | None:
        """Return the indices in `rows`, counted from 0."""
        return _index_tensor("rows", self.rows, queries, device, self.longest)

    def selection(self, lead: Sequence[int], queries: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Return the selected heads and queries, counted from 0; None for all. A call without heads has one."""
        heads = lead[-1] if len(lead) > 1 else 1
        query_indices = _index_tensor("queries", self.queries, queries, device, self.longest)
        return _index_tensor("heads", self.heads, heads, device), query_indices


class BlockGroups(NamedTuple):
    """The group of each query (n,) and key (m,), and the queries (r,) whose weights are recorded; None for none."""

    queries: Tensor
    keys: Tensor
    outside: Tensor | None

    def members(self, like: Tensor) -> Tensor:
        """Return the share of each key in the mean of its group, (m, b)."""
        shares = torch.nn.functional.one_hot(self.keys).to(like)
        return shares / shares.sum(0)


def span_positions(spans: Mapping[str, Span]) -> dict[str, Tensor]:
    """Return the positions of each span, in ascending order.

    Raises:
        TypeError: `spans` is not a mapping, or has no span.
        ValueError: A span is empty, or not a slice or list of positions from 0.
    """
    if not isinstance(spans, Mapping) or not spans:
        raise TypeError(f"spans: got {spans!r}; expected keys by name, such as {{'question': slice(0, 12)}}")
    positions = dict[str, Tensor]()
    for name, span in spans.items():
        span = as_python(span)
        if isinstance(span, slice):
            check_range("spans", span)
            positions[name] = torch.arange(span.start or 0, span.stop, span.step or 1)
        elif isinstance(span, list | range) and span and all(type(index) is int and index >= 0 for index in span):
            positions[name] = torch.tensor(sorted(set(span)))
        else:  # such as a pair of characters
            raise ValueError(f"spans: got {span!r} for {name!r}; expected a slice, or a list of token positions from "
                             "0, such as `positions` of dikkat.show.generation")  # fmt: skip
    return positions


def check_range(argument: str, positions: slice, *, can_be_open: bool = False) -> None:
    """Raise `ValueError` unless a slice has positions of a text; `can_be_open` allows it to have no end."""
    start, stop, step = positions.start or 0, positions.stop, positions.step or 1
    if stop is None and can_be_open:
        stop = sys.maxsize
    if any(type(number) is not int for number in (start, stop, step)) or not 0 <= start < stop or step < 1:
        raise ValueError(
            f"{argument}: got {positions}; expected a slice with 0 <= start < stop, both positions of the text"
        )


def find_keys(name: str, positions: Tensor, keys: Tensor) -> Tensor:
    """Return which of the keys at these positions (m,) are in a span, (m,) booleans."""
    Spans({name: positions}).check_last(int(keys.max()) if len(keys) else -1)
    return torch.isin(keys, positions)


class Spans:
    """Named spans of a text."""

    def __init__(self, positions: Mapping[str, Tensor]) -> None:
        self.names = tuple(positions)
        self._positions = torch.cat([*positions.values()])
        sizes = torch.tensor([len(span) for span in positions.values()])
        self._numbers = torch.arange(len(sizes)).repeat_interleave(sizes)  # of each position's span
        self._last = int(self._positions.max())
        self._members = torch.empty(0)

    def members(self, like: Tensor) -> Tensor:
        """Return whether each position up to the last one of all spans is in each span, (p, s) ones and zeros."""
        members = self._members  # which another thread may replace
        if members.dtype != like.dtype or members.device != like.device or not members.numel():
            members = torch.zeros(self._last + 1, len(self.names))
            members[self._positions, self._numbers] = 1
            self._members = members = members.to(like)
        return members

    def check_last(self, last: float) -> None:
        """Raise `ValueError` if a span ends after the position `last`."""
        if self._last > last:
            name = self.names[int(self._numbers[self._positions.argmax()])]
            raise ValueError(
                f"spans: got {name!r} up to position {self._last}; expected at most {last}, the text's last token"
            )


def _indices(name: str, value: object) -> list[int]:
    indices: Any = as_python(value)
    indices = [indices] if type(indices) is int and name != "rows" else () if indices is None else indices
    if name == "queries" and isinstance(indices, slice):
        return []
    if not isinstance(indices, Sequence) or not all(type(index) is int for index in indices):
        raise TypeError(f"{name}: got {value!r}; expected a list of whole numbers or a tensor")
    return list(indices)


def _index_tensor(name: str, value: object, count: int, device: torch.device, longest: float = 0) -> Tensor | None:
    """Return indices into `count` elements, counted from 0; None if `value` is None."""
    if value is None:
        return None
    if isinstance(value, slice):
        return torch.arange(*value.indices(count), device=device)
    indices, bound = _indices(name, value), max(count, longest)
    for index in indices:
        if not -bound <= index < bound:
            raise ValueError(f"{name}: got {index}; expected {-bound} to {bound - 1}")
    indices = [index for index in indices if -count <= index < count]
    return torch.tensor(indices, dtype=torch.int64, device=device) % max(1, count)
