"""How keys come to queries, forward and backward: round the ring, or not at all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dikkat.distributed.blocks import Keys, Shard
from dikkat.distributed.order import Span
from dikkat.distributed.ranks import Message, Ranks, Ring, telling
from dikkat.problem.operator import Gradients, Output
from dikkat.state import Pooled, join

# A rank's keys travel in so many pieces, so that what is on its way is small beside what lies there; and in fewer where
# a piece would have less than so many bytes, or make fewer pairs than these, which a message costs anyway.
_PIECES, _LEAST, _PAIRS = 32, 2**18, 2**23
_KEYS, _GRADIENTS = 1, 2


@dataclass(frozen=True)
class Layout:
    """Where all keys lie.

    Attributes:
        ranks: The ranks.
        spans: For each rank, where its keys lie in the sequence.
        travels: Whether keys go round, so that each rank has queries of its own; else all ranks have all queries.
        pairs: How many pairs one key makes on the rank with the most queries.
    """

    ranks: Ranks
    spans: list[list[Span]]
    travels: bool
    pairs: int


def pooled(
    layout: Layout,
    shard: Shard,
    query: Tensor,
    key: Tensor,
    weight: Tensor | None,
    value: Tensor,
    key_bias: Tensor | None,
) -> Tensor:
    """The mean over all keys of the group, (..., n, d_v)."""
    mean: Tensor = _Pooled.apply(layout, shard, query, key, weight, value, key_bias)  # type: ignore[no-untyped-call]
    return mean


class _Pooled(torch.autograd.Function):
    """The states of all ranks' keys, joined; its backward makes the weights anew from the saved peaks and totals."""

    @staticmethod
    def forward(
        ctx: Any, layout: Layout, shard: Shard, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor,
        key_bias: Tensor | None,
    ) -> Tensor:  # fmt: skip
        own = Keys(layout.spans[layout.ranks.rank], key, value, key_bias)
        shard = shard.of(query, weight)
        state = shard.empty()
        with torch.autocast(query.device.type, enabled=False):
            if layout.travels:
                for keys in _round(layout, own):
                    shard.pool(keys, state)
            else:
                shard.pool(own, state)
                state = _joined(layout.ranks, state)
        ctx.layout, ctx.shard = layout, shard.bare()
        ctx.save_for_backward(query, key, weight, value, key_bias, *state)
        return state.mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, weight, value, key_bias, mean, peak, total = ctx.saved_tensors
        layout: Layout = ctx.layout
        shard: Shard = ctx.shard.of(query, weight)
        own = Keys(layout.spans[layout.ranks.rank], key, value, key_bias)
        kind = shard.problem.dtype
        by_query, by_key, by_weight, by_value, by_bias = (
            torch.zeros(0 if t is None else t.shape, dtype=kind, device=query.device)
            for t in (query, key, weight, value, key_bias)
        )
        into = Gradients(by_query, by_key, by_weight, by_value, by_bias)
        out = Output(mean, peak, total, mean.new_zeros(0))
        with torch.autocast(query.device.type, enabled=False):
            if layout.travels:
                for keys, sums in _round_and_home(layout, own, into):
                    shard.pull(keys, out, grad, sums)
            else:
                shard.pull(own, out, grad, into)
        found = (
            None if operand is None else sums.to(operand.dtype)
            for operand, sums in zip((query, key, weight, value, key_bias), into, strict=True)
        )
        return (None, None, *found)


def _joined(ranks: Ranks, state: Pooled) -> Pooled:
    """The states of all ranks, joined in the order of the ranks: (d_v + 2) numbers a query and head from each."""
    flat = torch.cat([state.mean, state.peak[..., None], state.total[..., None]], -1)
    size = state.mean.shape[-1]
    first, *rest = (Pooled(each[..., :size], each[..., size], each[..., size + 1]) for each in ranks.gather(flat))
    for other in rest:
        first = join(first, other)
    return first


class _Pieces:
    """A rank's keys in pieces, each of which is a message: as many on every rank, and all of one size."""

    def __init__(self, layout: Layout, own: Keys) -> None:
        self.layout, self.own = layout, own
        tensors = self._tensors(own)
        rows = max(sum(map(len, spans)) for spans in layout.spans)
        each = sum(t.shape[:-2].numel() * t.shape[-1] * t.element_size() for t in tensors)
        self.count = max(1, min(_PIECES, rows, rows * each // _LEAST, rows * layout.pairs // _PAIRS))
        pieces = product(range(layout.ranks.world), range(self.count))
        self.rows = max(sum(map(len, self.spans(rank, index))) for rank, index in pieces)

    @staticmethod
    def _tensors(keys: Keys) -> list[Tensor]:
        """Key, value and bias, all as (..., rows, features)."""
        bias = [] if keys.key_bias is None else [keys.key_bias[..., None]]
        return [keys.key, keys.value, *bias]

    def ring(self, tag: int, dtype: torch.dtype | None = None) -> Ring:
        """The ring that messages of keys go round in, or of sums for them in a dtype."""
        like = [
            (torch.Size((*t.shape[:-2], self.rows, t.shape[-1])), dtype or t.dtype) for t in self._tensors(self.own)
        ]
        return Ring(self.layout.ranks, tag, like, self.own.key.device)

    def spans(self, rank: int, index: int) -> list[Span]:
        """Where a piece of a rank's keys lies in the sequence, by its rows on that rank."""
        return [span.piece(index, self.count) for span in self.layout.spans[rank]]

    def pack(self, index: int, message: Message) -> Message:
        """Write a piece of this rank's own keys."""
        for tensor, target in zip(self._tensors(self.own), message.tensors, strict=True):
            for span, rows in self._places(self.layout.ranks.rank, index):
                target[..., rows.rows, :] = tensor[..., span.rows, :]
        return message

    def unpack(self, index: int, message: Message, into: Gradients) -> None:
        """Read the sums for a piece of this rank's own keys."""
        targets = [into.key, into.value, into.key_bias[..., None]]
        for tensor, target in zip(message.tensors, targets, strict=False):
            for span, rows in self._places(self.layout.ranks.rank, index):
                target[..., span.rows, :] = tensor[..., rows.rows, :]

    def open(self, rank: int, index: int, message: Message) -> Keys:
        """A message as a piece of a rank's keys."""
        key, value, *bias = message.tensors
        spans = [rows for _, rows in self._places(rank, index)]
        return Keys(spans, key, value, bias[0][..., 0] if bias else None)

    def _places(self, rank: int, index: int) -> Iterator[tuple[Span, Span]]:
        """The spans of a piece, by their rows on the rank, and by their rows in the message."""
        start = 0
        for span in self.spans(rank, index):
            yield span, Span(span.first, start, start + len(span))
            start += len(span)


def _round(layout: Layout, own: Keys) -> Iterator[Keys]:
    """All ranks' keys, a piece of one at a time, the next on its way while one is worked on."""
    pieces, ranks = _Pieces(layout, own), layout.ranks
    ring = pieces.ring(_KEYS)
    message, spare = ring.message(), ring.message()
    with telling(ring):
        for index in range(pieces.count):
            pieces.pack(index, message)
            for hop in range(ranks.world):
                arrive = ring.shift(message, spare) if hop + 1 < ranks.world else None
                yield pieces.open((ranks.rank - hop) % ranks.world, index, message)
                if arrive:
                    message, spare = arrive(), message


def _round_and_home(layout: Layout, own: Keys, into: Gradients) -> Iterator[tuple[Keys, Gradients]]:
    """All ranks' keys as in `_round`, each with sums, which follow their keys round the ring, and home in the end."""
    pieces, ranks = _Pieces(layout, own), layout.ranks
    ring, sums = pieces.ring(_KEYS), pieces.ring(_GRADIENTS, into.query.dtype)
    message, spare = ring.message(), ring.message()
    mine, sent, coming = sums.message(), sums.message(), sums.message()
    with telling(ring, sums):
        for index in range(pieces.count):
            pieces.pack(index, message)
            add: Callable[[], Message] | None = None
            for hop in range(ranks.world):
                arrive = ring.shift(message, spare) if hop + 1 < ranks.world else None
                mine.bytes.zero_()
                key, value, *bias = mine.tensors
                by_bias = bias[0][..., 0] if bias else into.key_bias
                keys = pieces.open((ranks.rank - hop) % ranks.world, index, message)
                yield keys, Gradients(into.query, key, into.weight, value, by_bias)
                if add:
                    for own_sum, other in zip(mine.tensors, add().tensors, strict=True):
                        own_sum += other
                if ranks.world > 1:
                    add = sums.shift(mine, coming)
                    mine, sent = sent, mine
                if arrive:
                    message, spare = arrive(), message
            pieces.unpack(index, add() if add else mine, into)
