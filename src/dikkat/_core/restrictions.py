"""Which keys a query may see.

Every restriction of a call (lengths, a mask, causality, weights of zero, an excluded key) is brought into one form
here, `Restrictions`, and read in one way everywhere else: `visible(rows, cols)` for a tile of pairs, `seen()` for the
keys that at least one query sees, `live()` for the queries that see at least one key.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from numbers import Integral
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from dikkat._engine.addresses import check_dense, searchsorted
from dikkat._engine.pytorch_state import can_read_values, extremes


def are_finite(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True where every inner product is finite, those of values with a gradient too: what is hidden then has no effect.

    A product that overflows would come to ∞ − ∞ where it is hidden by adding −∞, and to 0 · ∞ on the way back. False
    where values cannot be read.
    """
    if not can_read_values(query, key, value):
        return False
    most = torch.finfo(torch.promote_types(query.dtype, torch.float32)).max
    return are_moderate(value) and largest_magnitude(query) * largest_magnitude(key) * query.shape[-1] < most


_MODERATE: dict[torch.dtype, float] = {kind: torch.finfo(kind).max ** 0.25 for kind in (torch.float32, torch.float64)}


def are_moderate(value: Tensor) -> bool:
    """True where products of values with a gradient are finite, as long as that is below the cube of this bound."""
    return largest_magnitude(value) < _MODERATE.get(value.dtype, _MODERATE[torch.float32])


def largest_magnitude(tensor: Tensor) -> float:
    """The largest absolute value; ∞ where something is NaN."""
    if not tensor.numel():
        return 0.0
    low, high = tensor.detach().aminmax()
    size = max(-low.item(), high.item())
    return size if size == size else math.inf


def broadcast(*shapes: torch.Size) -> torch.Size:
    """The shape that shapes broadcast to. `torch.broadcast_shapes` costs a decoder's step forty microseconds.

    Raises:
        ValueError: They do not broadcast.
    """
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


class Hiding(TypedDict, total=False):
    """The restrictions of a call over keys that have their lengths already."""

    mask: Tensor | None
    causal: bool
    window: tuple[int | None, int | None] | None
    segment_ids: Tensor | tuple[Tensor, Tensor] | None
    bias: Tensor | None
    key_bias: Tensor | None
    exclude: Tensor | None


class Restricting(Hiding, total=False):
    """The keyword arguments that say which keys a query may see; it sees those that all of them leave.

    A row that sees no key has weights 0, output 0 and gradient 0. Keys hidden from a query have no effect on it.

    Attributes:
        valid_lens: (B,) or (B, n) integers in 0 ... m, aligned with the first leading dimension and shared by the heads
            (without leading dimensions: a scalar or (n,)): key j takes part where j < valid_len.
        mask: Booleans that broadcast to (..., n, m); True takes part.
        causal: Query i sees keys j <= i + m − n.
        window: (left, right): query i sees keys p − left ... p + right, with p = i + m − n; None is no bound. What lies
            outside is skipped.
        segment_ids: (B, n) and (B, m) integers, or one tensor for both: a query sees keys of its own segment. The keys
            of a segment stand side by side.
        bias: Numbers that broadcast to (..., n, m), added to the scores, as they lie in memory. −∞ hides a pair.
        key_bias: (..., m), added to the scores: the log of a sample weight. −∞ hides a key.
        exclude: (..., n) integers: one key index that a row must not see, −1 for none (leave-one-out).
    """

    valid_lens: Tensor | int | None


def check_names(given: Mapping[str, object], allowed: type) -> None:
    """Check the names of keyword arguments against those of a typed dictionary."""
    unknown = given.keys() - allowed.__annotations__.keys()
    if unknown:
        theirs = "key_padding_mask is valid_lens, or a mask where True takes part; need_weights is return_weights"
        raise TypeError(
            f"{min(unknown)}: got an unknown argument; expected {', '.join(allowed.__annotations__)}"
            + f" (PyTorch's {theirs})" * ("mask" in allowed.__annotations__)
        )


_ALL = slice(None)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Keys of a window that reaches beyond every key; a position plus this number fits in an int64.
_FARTHEST = 2**62
# How many of a restriction's last dimensions are its own: those before them are the call's leading dimensions.
OWN_DIMENSIONS = {"lens": 1, "starts": 1, "mask": 2, "bias": 2, "key_bias": 1, "exclude": 1}


@dataclass(frozen=True)
class Restrictions:
    """The restrictions of one call, each with the call's leading dimensions (or ones in their place).

    Attributes:
        queries: n, the number of queries.
        keys: m, the number of keys.
        lens: (..., n or 1) integers: key j takes part where j < lens.
        starts: (..., n or 1) integers: key j takes part where j >= starts.
        mask: (..., n or 1, m or 1) booleans, True takes part.
        causal: query i sees keys j <= i + m - n.
        bias: (..., n or 1, m or 1), added to the scores; -inf hides a pair.
        key_bias: (..., m), added to the scores; -inf hides a key.
        exclude: (..., n or 1) integers: the one key index that a row must not see; -1 for none.
        device: Where the call runs.
        extremes: The shortest and the longest length, where they are known.
        bias_hides: Whether a bias of -inf may hide a pair: False where all are known to be finite.
    """

    queries: int
    keys: int
    lens: Tensor | None
    starts: Tensor | None
    mask: Tensor | None
    causal: bool
    bias: Tensor | None
    key_bias: Tensor | None
    exclude: Tensor | None
    device: torch.device
    extremes: tuple[int, int] | None = field(default=None, init=False)  # so that `replace` forgets them
    bias_hides: bool = field(default=True, init=False)

    def unchecked_copy(self, **fields: Any) -> "Restrictions":
        """A copy with other tensors of the same shapes and types, without validation."""
        made = object.__new__(Restrictions)
        made.__dict__.update(self.__dict__, **fields)
        return made

    def visible(self, rows: slice = _ALL, cols: slice = _ALL) -> Tensor | None:
        """The pairs that take part, broadcastable to (..., rows, cols); None where all do.

        The row axis has length 1 where every query sees the same keys.
        """
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
        """The scores of a tile with what is added to them."""
        if self.bias is not None:
            scores = scores + self.bias_of(rows, cols)
        return scores if self.key_bias is None else scores + self.key_bias[..., None, cols]

    def bias_of(self, rows: slice, cols: slice) -> Any:
        """The bias of a tile, of a call that has one."""
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
        count = _take(before, limit) - _take(before, start)
        if self.exclude is not None:
            excluded = (self.exclude >= start) & (self.exclude < limit)
            count = count - torch.where(excluded, _take(allowed.to(torch.int64), self.exclude.clamp(min=0)), 0)
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
        """(..., n) integers, at most `limit`: row i sees no key below start_i."""
        return torch.zeros_like(limit) if self.starts is None else torch.minimum(self.starts, limit)

    def _by_pairs(self) -> tuple[Tensor, Tensor]:
        """The keys that are seen and the queries that are live, by way of the pairs: a mask may be anything.

        In blocks of rows, so that memory stays bounded.
        """
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


def _take(table: Tensor, index: Tensor) -> Tensor:
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


def restrict(
    lead: torch.Size, queries: int, keys: int, device: torch.device, **given: Unpack[Restricting]
) -> Restrictions:
    """Check the restrictions of a call and bring them into one form."""
    causal, valid_lens, mask = given.get("causal", False), given.get("valid_lens"), given.get("mask")
    bias, key_bias, exclude = given.get("bias"), given.get("key_bias"), given.get("exclude")
    if not isinstance(causal, bool | np.bool_):
        raise TypeError(f"causal: got {type(causal).__name__}; expected True or False")
    lens, known = (None, None) if valid_lens is None else _lens(valid_lens, lead, queries, keys, device)
    starts: Tensor | None = None
    for start, end in (
        _window(given.get("window"), lead, queries, keys, device),
        _segments(given.get("segment_ids"), lead, queries, keys, device),
    ):
        if start is not None:
            starts = start if starts is None else torch.maximum(starts, start)
        if end is not None:
            lens, known = (end if lens is None else torch.minimum(lens, end)), None
    restrictions = Restrictions(
        queries,
        keys,
        lens=lens,
        starts=starts,
        mask=None if mask is None else _mask(mask, lead, queries, keys, device),
        causal=bool(causal),
        bias=None if bias is None else _bias("bias", bias, (*lead, queries, keys), device),
        key_bias=None if key_bias is None else _key_bias(key_bias, lead, keys, device),
        exclude=None if exclude is None else _exclude(exclude, lead, queries, keys, device),
        device=device,
    )
    found: dict[str, Any] = {} if known is None else {"extremes": known}
    if bias is not None and bias.numel() and can_read_values(bias) and bool(bias.detach().amin() > -math.inf):
        found["bias_hides"] = False
    return restrictions.unchecked_copy(**found) if found else restrictions


def _lens(
    valid_lens: Tensor | int, lead: torch.Size, queries: int, keys: int, device: torch.device
) -> tuple[Tensor, tuple[int, int] | None]:
    """The lengths, aligned with the leading dimensions, and their extremes where they can be read."""
    if isinstance(valid_lens, Integral) and not isinstance(valid_lens, bool):
        valid_lens = torch.tensor(int(valid_lens), device=device)
    if not isinstance(valid_lens, Tensor):
        raise TypeError(
            f"valid_lens: got {type(valid_lens).__name__}; expected a torch.Tensor of integers, as torch.tensor makes "
            "of a list"
        )
    _check_kind("valid_lens", valid_lens, device, integer=True)
    shape = tuple(valid_lens.shape)
    allowed = [tuple(lead[:1]), (*lead[:1], queries)]
    if shape not in allowed:
        raise ValueError(
            f"valid_lens: got shape {shape}; expected {allowed[0]} (one length a batch element) or {allowed[1]} "
            "(one a query), aligned with the first leading dimension and shared by the heads"
        )
    valid_lens = valid_lens.to(torch.int64)
    known = _check_range("valid_lens", valid_lens, 0, keys, "a length among the keys")
    return align(valid_lens, lead), known


def _window(
    window: tuple[int | None, int | None] | None, lead: torch.Size, queries: int, keys: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Each query's first key and one past its last, (..., n)."""
    left, right = check_window(window)
    if left is right is None:
        return None, None
    position = torch.arange(queries, device=device) + (keys - queries)
    position = position.reshape((1,) * len(lead) + (queries,))
    start = None if left is None else (position - left).clamp(0, keys)
    return start, None if right is None else (position + (right + 1)).clamp(0, keys)


def check_window(window: tuple[int | None, int | None] | None) -> tuple[int | None, int | None]:
    """Validate a window; return how many keys it has on the left and on the right, None for no bound."""
    if window is None:
        return None, None
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise TypeError(f"window: got {window!r}; expected (left, right), whole numbers of keys, or None for no bound")
    for side in window:
        if side is not None and (not isinstance(side, Integral) or isinstance(side, bool)):
            raise TypeError(f"window: got {side!r}; expected a whole number of keys, or None for no bound")
        if side is not None and side < 0:
            raise ValueError(f"window: got {side}; expected 0 or more keys, or None for no bound")
    left, right = (None if side is None else min(int(side), _FARTHEST) for side in window)
    return left, right


def _segments(
    segment_ids: Tensor | tuple[Tensor, Tensor] | None, lead: torch.Size, queries: int, keys: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """The first key of each query's segment and one past its last, (..., n)."""
    if segment_ids is None:
        return None, None
    pair = (segment_ids, segment_ids) if isinstance(segment_ids, Tensor) else segment_ids
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TypeError(f"segment_ids: got {type(pair).__name__}; expected a tensor, or a pair: of queries, of keys")
    for ids, count in zip(pair, (queries, keys), strict=True):
        _check_kind("segment_ids", ids, device, integer=True)
        if tuple(ids.shape) != (*lead[:1], count):
            raise ValueError(
                f"segment_ids: got shape {tuple(ids.shape)}; expected {(*lead[:1], count)}, one of each of {count} "
                "queries or keys, aligned with the first leading dimension and shared by the heads"
            )
    own, others = (ids.to(torch.int64) for ids in pair)
    ordered, order = others.sort(dim=-1, stable=True)
    if can_read_values(others) and bool((_changes(others) != _changes(ordered)).any()):
        raise ValueError("segment_ids: got keys of one segment apart; expected them side by side (for others: a mask)")
    place, past = (searchsorted(ordered, own.contiguous(), right=right) for right in (False, True))
    start = _take(order, place)
    return align(start, lead), align(start + (past - place), lead)  # no key where a segment has none


def _changes(ids: Tensor) -> Tensor:
    """How often neighbours differ."""
    return (ids[..., 1:] != ids[..., :-1]).sum(-1)


def align(valid_lens: Tensor, lead: torch.Size) -> Tensor:
    """Lengths (B,) or (B, n) with ones for the other leading dimensions: (B, 1, ..., n or 1)."""
    if valid_lens.ndim == len(lead[:1]):
        valid_lens = valid_lens[..., None]
    ones = (1,) * (len(lead) - 1)
    return valid_lens.reshape(*valid_lens.shape[:-1], *ones, valid_lens.shape[-1])


def _mask(mask: Tensor, lead: torch.Size, queries: int, keys: int, device: torch.device) -> Tensor:
    try:
        return _fit("mask", mask, (*lead, queries, keys), device, boolean=True)
    except ValueError as error:
        if mask.device != device or not lead or tuple(mask.shape) != (lead[0], keys):
            raise
        nones = "None, " * len(lead)
        raise ValueError(
            f"{error}; for keys that are hidden from every query of a batch element, mask[:, {nones}:]"
        ) from None


def _key_bias(key_bias: Tensor, lead: torch.Size, keys: int, device: torch.device) -> Tensor:
    bias = _bias("key_bias", key_bias, (*lead, keys), device)
    return bias.expand(*bias.shape[:-1], keys)


def _bias(name: str, bias: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    bias = _fit(name, bias, shape, device)
    if bias.dtype not in FLOATS:
        raise TypeError(f"{name}: got dtype {bias.dtype}; expected a floating-point type of 16 bits or more")
    return bias


def _exclude(exclude: Tensor, lead: torch.Size, queries: int, keys: int, device: torch.device) -> Tensor:
    _check_kind("exclude", exclude, device, integer=True)
    exclude = exclude.to(torch.int64)
    _check_range("exclude", exclude, -1, keys - 1, "the index of a key, or -1 for none")
    return _fit("exclude", exclude, (*lead, queries), device)


def _fit(name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device, *, boolean: bool = False) -> Tensor:
    """The tensor with as many dimensions as `shape`, to which it must broadcast."""
    _check_kind(name, tensor, device, boolean=boolean)
    if not fits(tensor.shape, shape):
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected one that broadcasts to {tuple(shape)}")
    return tensor.reshape((1,) * (len(shape) - tensor.ndim) + tuple(tensor.shape))


def fits(have: torch.Size, want: tuple[int, ...]) -> bool:
    """True where a shape broadcasts to another."""
    extra = len(want) - len(have)
    return extra >= 0 and all(own in (1, size) for own, size in zip(have, want[extra:], strict=True))


def _check_kind(
    name: str, tensor: Tensor, device: torch.device, *, integer: bool = False, boolean: bool = False
) -> None:
    check_dense(name, tensor)
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if integer and not whole:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected an integer type (for example torch.int64)")
    if boolean and tensor.dtype != torch.bool:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected torch.bool, True where a pair takes part")
    if tensor.device != device:
        raise ValueError(f"{name}: got a tensor on {tensor.device}; expected the query's device, {device}")


def _check_range(name: str, tensor: Tensor, low: int, high: int, meaning: str) -> tuple[int, int] | None:
    """The extremes of a tensor, checked; None of an empty one, or where values cannot be read."""
    if not tensor.numel() or not can_read_values(tensor):
        return None
    smallest, largest = extremes(tensor)
    if smallest < low or largest > high:
        came = smallest if smallest < low else largest
        raise ValueError(f"{name}: got {came}; expected {low} to {high}, {meaning}")
    return smallest, largest


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

    Args:
        queries: n, above 0.
        keys: m, above 0.
        device: Where the call runs.
        lens: (..., n or 1) integers, or None.
        mask: (..., n or 1, m or 1) booleans, True takes part, or None.
        causal: Whether query i sees keys j <= i + m − n alone.

    Attributes:
        keys: (..., m or 1) booleans, the keys that no query of their batch element sees; None where each is seen.
        queries: (..., n or 1) booleans, the queries that see no key; None where each sees one.
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
