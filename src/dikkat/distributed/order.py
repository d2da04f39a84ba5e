"""Which positions of a sequence lie on which rank."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Order = Literal["contiguous", "zigzag"]
ORDERS: tuple[str, ...] = get_args(Order)


class Span(NamedTuple):
    """Neighbours in the sequence that are neighbours on their rank.

    Attributes:
        first: The position of the first in the sequence.
        start: Its row on the rank.
        stop: The row after the last.
    """

    first: int
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        """The rows on the rank."""
        return slice(self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def piece(self, index: int, count: int) -> "Span":
        """One of so many pieces, as even as can be."""
        start, stop = (self.start + len_ * (len(self)) // count for len_ in (index, index + 1))
        return Span(self.first + start - self.start, start, stop)


def spans(lengths: Sequence[int], order: str) -> list[list[Span]]:
    """For each rank what lies on it, given how many positions each rank has.

    With "contiguous" order rank 0 has the beginning of the sequence. With "zigzag" order each rank has two spans: rank
    0 the very beginning and the very end, the last rank the two that meet in the middle; so under causality, where late
    queries see most, all ranks have about the same to do.
    """
    if order == "contiguous":
        laps = [list(enumerate(lengths))]
    else:
        laps = [[(r, -(-size // 2)) for r, size in enumerate(lengths)]]
        laps.append([(r, size // 2) for r, size in reversed(list(enumerate(lengths)))])
    found: list[list[Span]] = [[] for _ in lengths]
    first = 0
    for lap in laps:
        for rank, size in lap:
            start = found[rank][-1].stop if found[rank] else 0
            found[rank].append(Span(first, start, start + size))
            first += size
    return found


def shard_lengths(length: int, world: int) -> list[int]:
    """How many positions of a sequence each of so many ranks has, as even as can be."""
    return [(rank + 1) * length // world - rank * length // world for rank in range(world)]


def positions(length: int, rank: int, world: int, order: Order = "contiguous") -> Tensor:
    """The positions of a sequence that lie on a rank, in the order in which they lie there.

    `x[..., positions(length, rank, world), :]` is what the rank brings to `attend`.

    Args:
        length: Positions in the whole sequence.
        rank: The rank, from 0.
        world: How many ranks there are.
        order: "contiguous", or "zigzag", which evens the work out where queries see no later keys.

    Returns:
        (about length / world,) integers.

    Raises:
        ValueError: A rank or an order that there is not.

    Example:
        >>> [positions(8, rank, 2, "zigzag").tolist() for rank in range(2)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_order(order)
    if not 0 <= rank < world:
        raise ValueError(f"rank: got {rank} of {world}; expected 0 to {world - 1}")
    own = spans(shard_lengths(length, world), order)[rank]
    return torch.cat([torch.arange(span.first, span.first + len(span)) for span in own])


def check_order(order: str) -> None:
    """Validate the name of an order."""
    if order not in ORDERS:
        raise ValueError(f"order: got {order!r}; expected {' or '.join(map(repr, ORDERS))}")


def runs(own: list[Span]) -> Iterator[Span]:
    """Spans without the empty ones, and those that follow each other as one."""
    last: Span | None = None
    for span in own:
        if not len(span):
            continue
        if last and (last.first + len(last), last.stop) == (span.first, span.start):
            last = Span(last.first, last.start, span.stop)
            continue
        if last:
            yield last
        last = span
    if last:
        yield last
