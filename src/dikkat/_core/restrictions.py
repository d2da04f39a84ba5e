"""The visibility of a call's pairs: `Restrictions`, the one form in which every implementation reads it.

`restricting.restrict` makes it of a call's arguments. `visible(rows, cols)` is a tile of pairs, `seen()` the keys that
at least one query sees, `live()` the queries that see at least one key.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from dikkat._engine.pytorch_state import can_read_values


def are_finite(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True if every inner product, and value × gradient, is finite: hidden pairs then have no effect.

    False if values cannot be read.
    """
    if not can_read_values(query, key, value):
        return False
    most = torch.finfo(torch.promote_types(query.dtype, torch.float32)).max
    return are_moderate(value) and largest_magnitude(query) * largest_magnitude(key) * query.shape[-1] < most


_MODERATE: dict[torch.dtype, float] = {kind: torch.finfo(kind).max ** 0.25 for kind in (torch.float32, torch.float64)}


def are_moderate(value: Tensor) -> bool:
    """True if all |value| < max^¼, so that value × gradient is finite for every gradient below max^¾."""
    return largest_magnitude(value) < _MODERATE.get(value.dtype, _MODERATE[torch.float32])


def largest_magnitude(tensor: Tensor) -> float:
    if not tensor.numel():
        return 0.0
    low, high = tensor.detach().aminmax()
    size = max(-low.item(), high.item())
    return size if size == size else math.inf


def broadcast(*shapes: torch.Size) -> torch.Size:
    """`torch.broadcast_shapes`, which costs a decoder's step 40 µs; raises ValueError."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    out: list[int] = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = 1
        for size in sizes:
            if wide != 1 and size not in (1, wide):
                raise ValueError(f"shapes {', '.join(str(tuple(shape)) for shape in shapes)} do not broadcast")
            wide = size if size != 1 else wide
        out.append(wide)
    return torch.Size(reversed(out))


_ALL = slice(None)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# How many of a restriction's last dimensions are its own: those before them are the call's leading dimensions.
OWN_DIMENSIONS = {"lens": 1, "starts": 1, "mask": 2, "bias": 2, "key_bias": 1, "exclude": 1}


@dataclass(frozen=True)
class Restrictions:
    """The restrictions of one call, each with the call's leading dimensions (or ones in their place)."""

    queries: int  # n, the number of queries
    keys: int  # m, the number of keys
    device: torch.device  # where the call runs
    lens: Tensor | None = None  # (..., n or 1) integers: key j takes part where j < lens
    starts: Tensor | None = None  # (..., n or 1) integers: key j takes part where j >= starts
    mask: Tensor | None = None  # (..., n or 1, m or 1) booleans, True takes part
    causal: bool = False  # query i sees keys j <= i + m - n
    bias: Tensor | None = None  # (..., n or 1, m or 1), added to the scores; -inf hides a pair
    key_bias: Tensor | None = None  # (..., m), added to the scores; -inf hides a key
    exclude: Tensor | None = None  # (..., n or 1) integers: the one key index that a row must not see; -1 for none
    # The shortest and the longest length, if known; `replace` forgets them.
    extremes: tuple[int, int] | None = field(default=None, init=False)
    # Whether a bias of -inf may hide a pair: False where all are known to be finite.
    bias_hides: bool = field(default=True, init=False)

    def unchecked_copy(self, **fields: Any) -> "Restrictions":
        made = object.__new__(Restrictions)
        made.__dict__.update(self.__dict__, **fields)
        return made

    def visible(self, rows: slice = _ALL, cols: slice = _ALL) -> Tensor | None:
        """The visible pairs, broadcastable to (..., rows, cols); one row if all queries see alike; None for all."""
        if not self._restricts():
            return None
        on_cpu = self.extremes is not None and self.device.type == "cpu"
        key = positions(self.keys) if on_cpu else torch.arange(self.keys, device=self.device)
        if cols is not _ALL:  # sliced after it is made: slice bounds would specialise a compiled graph to one length
            key = key[cols]
        parts: list[Tensor] = []
        if self.lens is not None:
            parts.append(key < _rows(self.lens, rows).unsqueeze(-1))
        if self.starts is not None:
            parts.append(key >= _rows(self.starts, rows).unsqueeze(-1))
        if self.causal:
            query = torch.arange(self.queries, device=self.device)[rows]
            parts.append(key <= (query + self.keys - self.queries)[:, None])
        if self.mask is not None:
            parts.append(pairs_of(self.mask, rows, cols))
        if self._by_bias():
            parts.append(self.bias_of(rows, cols) != -math.inf)
        if self.key_bias is not None:
            parts.append((self.key_bias[..., cols] != -math.inf)[..., None, :])
        if self.exclude is not None:
            parts.append(key != _rows(self.exclude, rows)[..., None])
        return reduce(torch.logical_and, parts)

    def biased(self, scores: Tensor, rows: slice = _ALL, cols: slice = _ALL) -> Tensor:
        if self.bias is not None:
            scores = scores + self.bias_of(rows, cols)
        return scores if self.key_bias is None else scores + self.key_bias[..., None, cols]

    def bias_of(self, rows: slice, cols: slice) -> Any:
        return None if self.bias is None else pairs_of(self.bias, rows, cols)

    def _by_bias(self) -> bool:
        return self.bias is not None and self.bias_hides

    def _by_pair(self) -> bool:
        """True where visibility is given pair by pair, by a mask or a bias of −∞."""
        return self.mask is not None or self._by_bias()

    def vary_by_row(self) -> bool:
        """True where two queries of one batch element may see different keys."""
        by_lens = any(table is not None and table.shape[-1] != 1 for table in (self.lens, self.starts))
        by_mask = self.mask is not None and self.mask.shape[-2] != 1
        by_bias = self.bias is not None and self.bias_hides and self.bias.shape[-2] != 1
        by_exclude = self.exclude is not None and self.exclude.shape[-1] != 1
        return self.queries > 1 and (self.causal or by_lens or by_mask or by_bias or by_exclude)

    def leaves_some(self) -> bool:
        """True where it is known that every query sees a key."""
        others = not self._by_pair() and self.starts is self.key_bias is self.exclude is None
        by_lens = self.lens is None or (self.extremes is not None and self.extremes[0] > 0)
        return others and by_lens and self.keys >= (self.queries if self.causal else 1)

    def may_hide(self) -> bool:
        """True where any pair may be hidden; without queries every key is hidden, and without keys every query."""
        return self._restricts() or not (self.queries and self.keys)

    def _restricts(self) -> bool:
        others = self._by_pair() or any(t is not None for t in (self.starts, self.key_bias, self.exclude))
        return self.causal or self.lens is not None or others

    def seen_and_live(self) -> tuple[Tensor, Tensor]:
        """`seen()` and `live()`, which a mask yields in one pass."""
        return self._by_pairs() if self._by_pair() else (self.seen(), self.live())

    def seen(self) -> Tensor:
        """(..., m) booleans: the keys that at least one query of their batch element sees."""
        if self._by_pair():
            return self._by_pairs()[0]
        limit = self._limit()
        key = torch.arange(self.keys, device=self.device)
        if self.exclude is self.starts is None:
            some = (key < limit.amax(-1, keepdim=True)) if self.queries else torch.zeros_like(key, dtype=torch.bool)
        else:
            start = self._start(limit)
            count = _rows_over(limit, self.keys) - _rows_over(start, self.keys)
            some = count > (0 if self.exclude is None else _rows_at(self.exclude, start, limit, self.keys))
        return some if self.key_bias is None else some & (self.key_bias != -math.inf)

    def live(self) -> Tensor:
        """(..., n or 1) booleans: the queries that see at least one key."""
        if self._by_pair():
            return self._by_pairs()[1]
        limit = self._limit()
        start = self._start(limit)
        if self.key_bias is None and self.exclude is None:
            return limit > start
        allowed = torch.ones(self.keys, device=self.device) if self.key_bias is None else (self.key_bias != -math.inf)
        before = torch.nn.functional.pad(allowed.to(torch.int64).cumsum(-1), (1, 0))
        count = gather(before, limit) - gather(before, start)
        if self.exclude is not None:
            excluded = (self.exclude >= start) & (self.exclude < limit)
            count = count - torch.where(excluded, gather(allowed.to(torch.int64), self.exclude.clamp(min=0)), 0)
        return count > 0

    def _limit(self) -> Tensor:
        """(..., n) integers: row i sees keys below limit_i, as lengths and causality have it, in 0 ... m."""
        limit = torch.full((self.queries,), self.keys, dtype=torch.int64, device=self.device)
        if self.causal:
            limit = torch.arange(self.queries, device=self.device) + (1 + self.keys - self.queries)
        if self.lens is not None:
            limit = torch.minimum(limit, self.lens)
        return limit.clamp(0, self.keys)

    def _start(self, limit: Tensor) -> Tensor:
        return torch.zeros_like(limit) if self.starts is None else torch.minimum(self.starts, limit)

    def _by_pairs(self) -> tuple[Tensor, Tensor]:
        """`seen_and_live()` by way of all pairs, in blocks of rows, which bound the memory."""
        lead = [t.shape[:-1] for t in (self.lens, self.starts, self.key_bias, self.exclude) if t is not None]
        lead += [pairs.shape[:-2] for pairs in (self.mask, self.bias) if pairs is not None]
        blocks = [slice(None)]
        if self.vary_by_row() and not torch.compiler.is_compiling():  # a loop would specialise the graph
            step = max(1, 2**24 // max(1, math.prod(broadcast(*lead)) * self.keys))
            blocks = [slice(start, start + step) for start in range(0, self.queries, step)]
        seen = torch.zeros(self.keys, dtype=torch.bool, device=self.device)
        live = []
        for rows in blocks:
            block = self.visible(rows)
            if block is not None:
                seen = seen | block.any(-2)
                live.append(block.any(-1))
        return seen, torch.cat(live, -1)


def _rows(table: Tensor, rows: slice) -> Tensor:
    return table if rows is _ALL or table.shape[-1] == 1 else table[..., rows]


def pairs_of(pairs: Tensor, rows: slice, cols: slice) -> Tensor:
    """Rows and columns of (..., n or 1, m or 1)."""
    pairs = pairs if rows is _ALL or pairs.shape[-2] == 1 else pairs[..., rows, :]
    return pairs if cols is _ALL or pairs.shape[-1] == 1 else pairs[..., cols]


def gather(table: Tensor, index: Tensor) -> Tensor:
    """Gather along the last dimension, where leading dimensions broadcast."""
    lead = broadcast(table.shape[:-1], index.shape[:-1])
    inside = index.clamp(max=max(0, table.shape[-1] - 1))
    if not table.shape[-1]:
        return torch.zeros((*lead, index.shape[-1]), dtype=table.dtype, device=table.device)
    return table.expand(*lead, -1).gather(-1, inside.expand(*lead, -1))


def _rows_over(limit: Tensor, keys: int) -> Tensor:
    """(..., m): the number of rows with a limit above each key."""
    histogram = torch.zeros((*limit.shape[:-1], keys + 1), dtype=torch.int64, device=limit.device)
    histogram = histogram.scatter_add(-1, limit, torch.ones_like(limit))
    return histogram.flip(-1).cumsum(-1).flip(-1)[..., 1:]


def _rows_at(exclude: Tensor, start: Tensor, limit: Tensor, keys: int) -> Tensor:
    """(..., m): the number of rows that would see each key, were it not the one they exclude."""
    exclude, start, limit = torch.broadcast_tensors(exclude, start, limit)
    counted = ((exclude >= start) & (exclude < limit)).to(torch.int64)
    index = exclude.clamp(0, max(0, keys - 1))
    histogram = torch.zeros((*limit.shape[:-1], max(1, keys)), dtype=torch.int64, device=limit.device)
    return histogram.scatter_add(-1, index, counted)[..., :keys]


# Constant tensors, by device and content; read only.
_TABLES: dict[tuple[torch.device, Any], Tensor] = {}
_CPU = torch.device("cpu")


def _table(device: torch.device, name: Any, least: int, make: Callable[[], Tensor]) -> Tensor:
    """A constant tensor of at least `least` numbers, shared by all calls on a device."""
    on_cuda = device.type == "cuda"
    if on_cuda and torch.cuda.is_current_stream_capturing():
        return make()  # a graph outlives the tables, and its memory is not to be shared
    table = _TABLES.get((device, name))  # other threads may exchange it meanwhile
    if table is not None and len(table) >= least:
        return table
    with torch.inference_mode(False):
        table = make()
    if on_cuda:  # once, so that other streams find it written
        torch.cuda.current_stream(device).synchronize()
    if len(_TABLES) >= 64:
        _TABLES.clear()
    _TABLES[device, name] = table
    return table


def positions(count: int, device: torch.device = _CPU) -> Tensor:
    """0 ... count − 1 on a device."""
    table = _table(device, None, count, lambda: torch.arange(2 * count, device=device))
    return table.narrow(0, 0, count)


def _later(queries: int, keys: int, device: torch.device) -> Tensor:
    """(n, m) booleans: the pairs that causality hides."""

    def make() -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1 + keys - queries)

    return make() if queries * keys > _FEW else _table(device, (queries, keys), 0, make)


_FEW = 2**20


class Hidden:
    """The keys and queries that lengths, causality and a mask hide, in few operations and without reading a value.

    Attributes:
        keys: (..., m or 1) booleans, the keys that no query of their batch element sees; None if each is seen.
        queries: (..., n or 1) booleans, the queries that see no key; None if each sees one.
        by_row: Whether two queries of one batch element may see different keys.
    """

    def __init__(
        self, queries: int, keys: int, device: torch.device, lens: Tensor | None, mask: Tensor | None, causal: bool
    ) -> None:
        self._size, self._lens, self._mask, self._causal = (queries, keys, device), lens, mask, causal
        self._pairs: Tensor | None = None
        self.keys: Tensor | None = None
        self.queries: Tensor | None = None
        by_lens, by_mask = lens is not None and lens.shape[-1] > 1, mask is not None and mask.shape[-2] > 1
        self.by_row = queries > 1 and (causal or by_lens or by_mask)
        if mask is not None or (causal and queries > keys) or by_lens:
            pairs = self.pairs()
            self.keys = pairs.all(-2) if pairs.shape[-2] > 1 else pairs[..., 0, :]
            self.queries = pairs.all(-1) if mask is not None else pairs[..., 0]
        elif lens is not None:  # the last query sees all keys below the length, with causality too
            self.keys = positions(keys, device) >= lens
            self.queries = self.keys[..., :1]  # with the first key all are hidden
            self._pairs = None if causal else self.keys.unsqueeze(-2)

    def pairs(self) -> Tensor:
        """(..., n or 1, m or 1) booleans: the pairs that take no part."""
        if self._pairs is None:
            parts = [_later(*self._size)] if self._causal else []
            if self._lens is not None:
                parts.append(positions(self._size[1], self._size[2]) >= self._lens.unsqueeze(-1))
            if self._mask is not None:
                parts.append(~self._mask)
            self._pairs = reduce(torch.logical_or, parts)
        return self._pairs
