"""The visible pairs of a call, as `Restrictions`, which every implementation reads.

`restricting.restrict` makes them from a call's arguments.
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
    limit = torch.finfo(torch.promote_types(query.dtype, torch.float32)).max
    return are_moderate(value) and largest_magnitude(query) * largest_magnitude(key) * query.shape[-1] < limit


_MODERATE: dict[torch.dtype, float] = {kind: torch.finfo(kind).max ** 0.25 for kind in (torch.float32, torch.float64)}


def are_moderate(value: Tensor) -> bool:
    """True if all |value| < max^¼, so that value × gradient is finite for every gradient below max^¾."""
    return largest_magnitude(value) < _MODERATE.get(value.dtype, _MODERATE[torch.float32])


def largest_magnitude(tensor: Tensor) -> float:
    if not tensor.numel():
        return 0.0
    numbers = tensor.detach()
    # `aminmax` copies a tensor that is not contiguous.
    low, high = numbers.aminmax() if numbers.is_contiguous() else (numbers.amin(), numbers.amax())
    largest = max(-low.item(), high.item())
    return largest if largest == largest else math.inf


def broadcast(*shapes: torch.Size) -> torch.Size:
    """Like `torch.broadcast_shapes`, which would cost a decoder step 40 µs; raises ValueError."""
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    out: list[int] = []
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        joined = 1
        for size in sizes:
            if joined != 1 and size not in (1, joined):
                raise ValueError(f"shapes {', '.join(str(tuple(shape)) for shape in shapes)} do not broadcast")
            joined = size if size != 1 else joined
        out.append(joined)
    return torch.Size(reversed(out))


_ALL = slice(None)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# The number of trailing dimensions of each restriction after the call's leading dimensions.
OWN_DIMENSIONS = {"lens": 1, "starts": 1, "mask": 2, "bias": 2, "key_bias": 1, "exclude": 1}


@dataclass(frozen=True)
class Restrictions:
    """The restrictions of one call, each with as many leading dimensions as the call, which broadcast."""

    queries: int  # n, the number of queries
    keys: int  # m, the number of keys
    device: torch.device  # where the call runs
    lens: Tensor | None = None  # (..., n or 1) integers: key j takes part where j < lens
    starts: Tensor | None = None  # (..., n or 1) integers: key j takes part where j >= starts
    mask: Tensor | None = None  # (..., n or 1, m or 1) booleans, True takes part
    causal: bool = False  # query i sees keys j <= i + m - n
    bias: Tensor | None = None  # (..., n or 1, m or 1), added to the scores; -inf hides a pair
    key_bias: Tensor | None = None  # (..., m), added to the scores; -inf hides a key
    exclude: Tensor | None = None  # (..., n or 1) integers: one key index hidden from the row; -1 for none
    # The shortest and the longest length, if known; `dataclasses.replace` resets them.
    extremes: tuple[int, int] | None = field(default=None, init=False)
    # Whether a bias of -inf may hide a pair: False if all biases are known to be finite.
    bias_hides: bool = field(default=True, init=False)

    def unchecked_copy(self, **fields: Any) -> "Restrictions":
        copy = object.__new__(Restrictions)
        copy.__dict__.update(self.__dict__, **fields)
        return copy

    def visible(self, rows: slice = _ALL, cols: slice = _ALL) -> Tensor | None:
        """Return the visible pairs of a tile, broadcastable to (..., rows, cols); None if none are hidden."""
        if not self._restricts():
            return None
        on_cpu = self.extremes is not None and self.device.type == "cpu"
        key = positions(self.keys) if on_cpu else torch.arange(self.keys, device=self.device)
        if cols is not _ALL:  # sliced after it is made: slice bounds would specialise a compiled graph to one length
            key = key[cols]
        masks: list[Tensor] = []
        if self.lens is not None:
            masks.append(key < _rows(self.lens, rows).unsqueeze(-1))
        if self.starts is not None:
            masks.append(key >= _rows(self.starts, rows).unsqueeze(-1))
        if self.causal:
            query = torch.arange(self.queries, device=self.device)[rows]
            masks.append(key <= (query + self.keys - self.queries)[:, None])
        if self.mask is not None:
            masks.append(pairs_of(self.mask, rows, cols))
        if self._by_bias():
            masks.append(self.bias_of(rows, cols) != -math.inf)
        if self.key_bias is not None:
            masks.append((self.key_bias[..., cols] != -math.inf)[..., None, :])
        if self.exclude is not None:
            masks.append(key != _rows(self.exclude, rows)[..., None])
        return reduce(torch.logical_and, masks)

    def biased(self, scores: Tensor, rows: slice = _ALL, cols: slice = _ALL) -> Tensor:
        if self.bias is not None:
            scores = scores + self.bias_of(rows, cols)
        return scores if self.key_bias is None else scores + self.key_bias[..., None, cols]

    def bias_of(self, rows: slice, cols: slice) -> Any:
        return None if self.bias is None else pairs_of(self.bias, rows, cols)

    def _by_bias(self) -> bool:
        return self.bias is not None and self.bias_hides

    def _by_pair(self) -> bool:
        """True if a mask or a bias of −∞ hides single pairs."""
        return self.mask is not None or self._by_bias()

    def vary_by_row(self) -> bool:
        """True if two queries of one batch element may see different keys."""
        by_lens = any(table is not None and table.shape[-1] != 1 for table in (self.lens, self.starts))
        by_mask = self.mask is not None and self.mask.shape[-2] != 1
        by_bias = self.bias is not None and self.bias_hides and self.bias.shape[-2] != 1
        by_exclude = self.exclude is not None and self.exclude.shape[-1] != 1
        return self.queries > 1 and (self.causal or by_lens or by_mask or by_bias or by_exclude)

    def leaves_some(self) -> bool:
        """True if every query certainly sees a key."""
        unhidden = not self._by_pair() and self.starts is self.key_bias is self.exclude is None
        lens_positive = self.lens is None or (self.extremes is not None and self.extremes[0] > 0)
        return unhidden and lens_positive and self.keys >= (self.queries if self.causal else 1)

    def may_hide(self) -> bool:
        """True if any pair may be hidden. Without queries every key is hidden, without keys every query."""
        return self._restricts() or not (self.queries and self.keys)

    def _restricts(self) -> bool:
        hides_more = self._by_pair() or any(t is not None for t in (self.starts, self.key_bias, self.exclude))
        return self.causal or self.lens is not None or hides_more

    def seen_and_live(self) -> tuple[Tensor, Tensor]:
        """Return `seen_keys()` and `live_queries()`; with a mask, one pass computes both."""
        return self._by_pairs() if self._by_pair() else (self.seen_keys(), self.live_queries())

    def seen_keys(self) -> Tensor:
        """Return (..., m) booleans: the keys that at least one query of their batch element sees."""
        if self._by_pair():
            return self._by_pairs()[0]
        limit = self._limit()
        key = torch.arange(self.keys, device=self.device)
        if self.exclude is self.starts is None:
            visible = (key < limit.amax(-1, keepdim=True)) if self.queries else torch.zeros_like(key, dtype=torch.bool)
        else:
            start = self._start(limit)
            count = _count_rows_beyond(limit, self.keys) - _count_rows_beyond(start, self.keys)
            visible = count > (0 if self.exclude is None else _rows_at(self.exclude, start, limit, self.keys))
        return visible if self.key_bias is None else visible & (self.key_bias != -math.inf)

    def live_queries(self) -> Tensor:
        """Return (..., n or 1) booleans: the queries that see at least one key."""
        if self._by_pair():
            return self._by_pairs()[1]
        limit = self._limit()
        start = self._start(limit)
        if self.key_bias is None and self.exclude is None:
            return limit > start
        allowed = torch.ones(self.keys, device=self.device) if self.key_bias is None else (self.key_bias != -math.inf)
        allowed_before = torch.nn.functional.pad(allowed.to(torch.int64).cumsum(-1), (1, 0))
        count = gather(allowed_before, limit) - gather(allowed_before, start)
        if self.exclude is not None:
            excluded = (self.exclude >= start) & (self.exclude < limit)
            count = count - torch.where(excluded, gather(allowed.to(torch.int64), self.exclude.clamp(min=0)), 0)
        return count > 0

    def _limit(self) -> Tensor:
        """Return (..., n) integers in 0 ... m: lengths and causality let row i see keys below limit_i."""
        limit = torch.full((self.queries,), self.keys, dtype=torch.int64, device=self.device)
        if self.causal:
            limit = torch.arange(self.queries, device=self.device) + (1 + self.keys - self.queries)
        if self.lens is not None:
            limit = torch.minimum(limit, self.lens)
        return limit.clamp(0, self.keys)

    def _start(self, limit: Tensor) -> Tensor:
        return torch.zeros_like(limit) if self.starts is None else torch.minimum(self.starts, limit)

    def _by_pairs(self) -> tuple[Tensor, Tensor]:
        """Compute `seen_and_live()` from all pairs, in blocks of rows to bound the memory."""
        leads = [t.shape[:-1] for t in (self.lens, self.starts, self.key_bias, self.exclude) if t is not None]
        leads += [pairs.shape[:-2] for pairs in (self.mask, self.bias) if pairs is not None]
        blocks = [slice(None)]
        if self.vary_by_row() and not torch.compiler.is_compiling():  # a loop would specialise the graph
            step = max(1, 2**24 // max(1, math.prod(broadcast(*leads)) * self.keys))
            blocks = [slice(start, start + step) for start in range(0, self.queries, step)]
        seen_keys = torch.zeros(self.keys, dtype=torch.bool, device=self.device)
        live_rows = []
        for rows in blocks:
            block = self.visible(rows)
            if block is not None:
                seen_keys = seen_keys | block.any(-2)
                live_rows.append(block.any(-1))
        return seen_keys, torch.cat(live_rows, -1)


def _rows(table: Tensor, rows: slice) -> Tensor:
    return table if rows is _ALL or table.shape[-1] == 1 else table[..., rows]


def pairs_of(pairs: Tensor, rows: slice, cols: slice) -> Tensor:
    pairs = pairs if rows is _ALL or pairs.shape[-2] == 1 else pairs[..., rows, :]
    return pairs if cols is _ALL or pairs.shape[-1] == 1 else pairs[..., cols]


def gather(table: Tensor, index: Tensor) -> Tensor:
    lead = broadcast(table.shape[:-1], index.shape[:-1])
    inside = index.clamp(max=max(0, table.shape[-1] - 1))
    if not table.shape[-1]:
        return torch.zeros((*lead, index.shape[-1]), dtype=table.dtype, device=table.device)
    return table.expand(*lead, -1).gather(-1, inside.expand(*lead, -1))


def _count_rows_beyond(limit: Tensor, keys: int) -> Tensor:
    """Return for each key j the number of rows whose limit exceeds j, (..., m)."""
    histogram = torch.zeros((*limit.shape[:-1], keys + 1), dtype=torch.int64, device=limit.device)
    histogram = histogram.scatter_add(-1, limit, torch.ones_like(limit))
    return histogram.flip(-1).cumsum(-1).flip(-1)[..., 1:]


def _rows_at(exclude: Tensor, start: Tensor, limit: Tensor, keys: int) -> Tensor:
    """Return (..., m): for each key the number of rows that exclude it and would otherwise see it."""
    exclude, start, limit = torch.broadcast_tensors(exclude, start, limit)
    counted = ((exclude >= start) & (exclude < limit)).to(torch.int64)
    index = exclude.clamp(0, max(0, keys - 1))
    histogram = torch.zeros((*limit.shape[:-1], max(1, keys)), dtype=torch.int64, device=limit.device)
    return histogram.scatter_add(-1, index, counted)[..., :keys]


# Read-only constant tensors, by device and content.
_TABLES: dict[tuple[torch.device, Any], Tensor] = {}
_CPU = torch.device("cpu")


def _table(device: torch.device, name: Any, min_size: int, make: Callable[[], Tensor]) -> Tensor:
    """Return a cached constant tensor of at least `min_size` numbers, shared by all calls on a device."""
    on_cuda = device.type == "cuda"
    if on_cuda and torch.cuda.is_current_stream_capturing():
        return make()  # a graph outlives the tables, and must not share its memory
    table = _TABLES.get((device, name))  # another thread may replace it
    if table is not None and len(table) >= min_size:
        return table
    with torch.inference_mode(False):
        table = make()
    if on_cuda:  # once, so that other streams read written values
        torch.cuda.current_stream(device).synchronize()
    if len(_TABLES) >= 64:
        _TABLES.clear()
    _TABLES[device, name] = table
    return table


def positions(count: int, device: torch.device = _CPU) -> Tensor:
    """Return 0 ... count − 1 on a device."""
    table = _table(device, None, count, lambda: torch.arange(2 * count, device=device))
    return table.narrow(0, 0, count)


def _later(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return (n, m) booleans: the pairs that causality hides."""

    def make() -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1 + keys - queries)

    return make() if queries * keys > _FEW else _table(device, (queries, keys), 0, make)


_FEW = 2**20


class Hidden:
    """The keys and queries that lengths, causality and a mask hide, computed in few operations without reading values.

    Attributes:
        keys: (..., m or 1) booleans, the keys that no query of their batch element sees; None if all are seen.
        queries: (..., n or 1) booleans, the queries that see no key; None if all see one.
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
        elif lens is not None:  # with causality too, the last query sees all keys below the length
            self.keys = positions(keys, device) >= lens
            self.queries = self.keys[..., :1]  # if the first key is hidden, all are
            self._pairs = None if causal else self.keys.unsqueeze(-2)

    def pairs(self) -> Tensor:
        """Return the hidden pairs, (..., n or 1, m or 1) booleans."""
        if self._pairs is None:
            masks = [_later(*self._size)] if self._causal else []
            if self._lens is not None:
                masks.append(positions(self._size[1], self._size[2]) >= self._lens.unsqueeze(-1))
            if self._mask is not None:
                masks.append(~self._mask)
            self._pairs = reduce(torch.logical_or, masks)
        return self._pairs
