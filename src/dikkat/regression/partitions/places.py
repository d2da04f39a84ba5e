"""Training rows in partitions, sorted so that the rows at one place are in one partition, and joined there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dikkat.errors import InputError
from dikkat.problem.arithmetic import log_profile
from dikkat.regression.joined import Array, Joined, Whole, spatial_order
from dikkat.regression.joined import join as join_rows
from dikkat.regression.moments import Window
from dikkat.regression.partitions.graphs import Later, here, kept, later

_T = TypeVar("_T")
_SAMPLE = 64  # rows of a partition among which the ends of the pieces are sought, for each piece
_FEW = 16  # places of a piece that everybody knows


def only_at_hand() -> InputError:
    """The error for what is not there of rows in partitions."""
    return InputError(
        "X: got a Dask collection in fit, whose rows stay in their partitions; there are predict, score and save of "
        "such a model: expected an array or a frame in fit for all else"
    )


def at_hand(joined: Joined | Partitioned) -> Joined:
    """The same, of rows at hand.

    Raises:
        InputError: They are in partitions.
    """
    if isinstance(joined, Joined):
        return joined
    raise only_at_hand()


class Box(NamedTuple):
    """What is known of a piece without looking at it.

    Attributes:
        places: How many it has.
        weight: The sum of their weights.
        low: (d,), the least of each coordinate.
        high: (d,), the largest.
    """

    places: int
    weight: float
    low: Array
    high: Array

    def seen(self, query: Tensor, window: Window, floor: Tensor) -> Tensor:
        """(n,): of which queries the piece could have weight e^floor and more."""
        low, high, sigma = (torch.as_tensor(each).to(query) for each in (self.low, self.high, window.bandwidth))
        gap = torch.maximum(low - query, query - high).clamp(min=0) / sigma
        square = gap.square().sum(-1) * (1 - 1e-6)
        best = torch.zeros_like(square) if window.profile == "average" else log_profile(window.profile, square)
        found: Tensor = (best > -torch.inf) & (best + math.log(self.weight) >= floor)
        return found


class Frame(NamedTuple):
    """Where the values of all pieces begin, and their unit.

    Attributes:
        origin: (v,).
        unit: What they are divided by.
    """

    origin: Array
    unit: float

    def of(self, piece: Joined) -> Joined:
        """A piece in this frame."""
        moved = piece._replace(y=piece.y + (piece.origin - self.origin), origin=self.origin)
        return moved.in_unit(self.unit)


@dataclass(frozen=True)
class Partitioned:
    """The distinct places of rows in partitions, as `dikkat.regression.joined.Joined` has those of rows at hand.

    The pieces are in the order of the coordinates, the first one before all others: what lies in one, before what lies
    in the next.

    Attributes:
        pieces: A `Joined` each, with an origin of its own; they stay on Dask's workers.
        boxes: What is known of each.
        frame: What values are taken in.
        few: (k, d) and (k,): some places of each piece, and their weights.
        known: What is known of all places, in this frame.
        dtype: That of the coordinates.
    """

    pieces: list[Later]
    boxes: list[Box]
    frame: Frame
    few: tuple[Array, Array]
    known: Whole
    dtype: np.dtype[Any]

    @property
    def feature(self) -> NDArray[np.intp]:
        """(d,), the feature that each coordinate is of."""
        return self.known.feature

    @property
    def features(self) -> int:
        """How many there are."""
        return self.known.features

    @property
    def numbers(self) -> int:
        """How many of them are numbers."""
        return self.known.numbers

    @property
    def places(self) -> int:
        """How many there are."""
        return self.known.places

    @property
    def total(self) -> float:
        """The sum of the weights."""
        return self.known.weight

    @property
    def origin(self) -> Array:
        """(v,), from where values are taken."""
        return self.frame.origin

    def mean(self) -> Array:
        """(v,), of all values."""
        found: Array = self.frame.origin + self.frame.unit * self.known.value / self.known.weight
        return found

    @property
    def first(self) -> Array:
        """(d,): the lower corner, which is a place along a coordinate that is constant."""
        return self._low.astype(np.float64)

    @property
    def widest(self) -> Array:
        """(d,), the ranges."""
        high: Array = np.max([box.high for box in self.boxes], 0).astype(np.float64)
        return high - self.first

    @property
    def _low(self) -> Array:
        low: Array = np.min([box.low for box in self.boxes], 0)
        return low

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and (name in Joined._fields or hasattr(Joined, name)):
            raise only_at_hand()
        raise AttributeError(name)

    def varies(self) -> NDArray[np.bool_]:
        """(d,), of each coordinate whether it does."""
        return np.asarray(self.widest > 0)

    def whole(self) -> Whole:
        """What a search has to know of all places together."""
        return self.known

    def variance(self) -> float:
        """Of all values, the mean over the outputs."""
        return self.known.variance

    def numeric(self, look: Callable[[Array, Array], _T]) -> list[_T]:
        """What a function makes of each feature that is a number: one worker gets the whole of one at a time."""
        found = []
        for c in range(self.numbers):
            columns = [later(_column, piece, c) for piece in self.pieces]
            found += here([later(_looked, look, *columns)])
        return found

    def in_unit(self, unit: float) -> Partitioned:
        """With values in another unit."""
        known = self.known._replace(
            value=self.known.value / unit,
            within=self.known.within / unit**2,
            variance=self.known.variance / unit**2,
        )
        return replace(self, frame=self.frame._replace(unit=self.frame.unit * unit), known=known)

    def ranked(self, ranks: NDArray[np.intp]) -> Joined:
        """The places that have these ranks by their coordinates, at hand."""
        ends = np.cumsum([0, *(box.places for box in self.boxes)])
        parts = []
        for piece, (begin, end) in zip(self.pieces, pairwise(ends), strict=True):
            own = ranks[(ranks >= begin) & (ranks < end)] - begin
            if len(own):
                parts.append(later(_ranked, piece, own, self.frame))
        found = here(parts)
        x, y, within, weight = (np.concatenate([part[k] for part in found]) for k in range(4))
        together: Joined = found[0]._replace(x=x, y=y, within=within, weight=weight)
        return together.some(spatial_order(x))


def join(
    blocks: Sequence[tuple[Later, Later, Later]],
    feature: NDArray[np.intp],
    numbers: int,
    center: Array,
) -> Partitioned:
    """Rows in blocks of x (n, d), y (n, v) and weights (n,), at least one of them positive.

    Rows go to pieces between ends that a sample gives, as many as there are blocks, in the order of their coordinates:
    so rows at one place meet, and neighbours lie together.
    """
    count = len(blocks)
    drawn = here([later(_drawn, x, weight, _SAMPLE * count) for x, _, weight in blocks])
    ends = _ends(np.concatenate(drawn), count)
    cut = [later(_cut, *block, ends, parts=len(ends) + 1) for block in blocks]
    own = feature, numbers, center
    made = kept([later(_together, *own, *(parts[j] for parts in cut)) for j in range(len(ends) + 1)])
    seen = [(piece, found) for piece, found in zip(made, here([later(_seen, piece) for piece in made]), strict=True)]
    pieces, found = zip(*((piece, found) for piece, found in seen if found is not None), strict=True)
    boxes, least, largest, few, weights, dtypes = zip(*found, strict=True)
    low, high = np.min(least, 0), np.max(largest, 0)
    frame = Frame(np.where(low > 0, low, np.where(high < 0, high, 0.0)), 1.0)
    corner, width = np.min([box.low for box in boxes], 0), np.max([box.high for box in boxes], 0)
    width = width.astype(np.float64) - corner
    parts = here([later(_summed, piece, frame, corner, width) for piece in pieces])
    known = _whole(parts, width, feature, numbers)
    return Partitioned(
        list(pieces), list(boxes), frame, (np.concatenate(few), np.concatenate(weights)), known, dtypes[0]
    )


class _Sums(NamedTuple):
    """Of a piece: numbers of places, Σ W, and of y and of the coordinates the weighted means and squares about them."""

    places: int
    weight: float
    within: Array
    value: Array
    squares: Array
    x: Array
    x_squares: Array

    def __add__(self, other: _Sums) -> _Sums:  # type: ignore[override]
        """Of both pieces."""
        weight = self.weight + other.weight
        share = other.weight / weight
        moved = self.weight * share
        y, x = other.value - self.value, other.x - self.x
        return _Sums(
            self.places + other.places,
            weight,
            self.within + other.within,
            self.value + share * y,
            self.squares + other.squares + moved * y**2,
            self.x + share * x,
            self.x_squares + other.x_squares + moved * x**2,
        )


def _whole(parts: Sequence[_Sums], width: Array, feature: NDArray[np.intp], numbers: int) -> Whole:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    within = float(total.within.mean()) / total.weight
    return Whole(
        total.places,
        total.weight,
        total.weight * total.value,
        within,
        within + float(total.squares.mean()) / total.weight,
        width * np.sqrt(total.x_squares / total.weight),
        feature,
        numbers,
    )


def _summed(piece: Joined, frame: Frame, corner: Array, width: Array) -> _Sums:
    piece, weight = frame.of(piece), piece.weight[:, None]
    x = (piece.x.astype(np.float64) - corner) / np.where(width > 0, width, 1.0)

    def spread(numbers: Array) -> tuple[Array, Array]:
        mean = numbers[0] + (weight * (numbers - numbers[0])).sum(0) / piece.total
        return mean, (weight * (numbers - mean) ** 2).sum(0)

    return _Sums(piece.places, piece.total, (weight * piece.within).sum(0), *spread(piece.y), *spread(x))


def _drawn(x: Array, weight: Array, count: int) -> Array:
    """Some of a block's rows."""
    there = np.flatnonzero(weight > 0)
    drawn: Array = x[np.random.default_rng(0).choice(there, min(count, len(there)), replace=False)]
    return drawn


def _ends(sample: Array, pieces: int) -> Array:
    """Rows at which pieces of about the same size begin, but for the first; each once."""
    ordered = np.unique(sample, axis=0)  # in the order of the coordinates
    return ordered[np.unique(np.arange(1, pieces) * len(ordered) // pieces)] if len(ordered) else ordered


def _cut(x: Array, y: Array, weight: Array, ends: Array) -> list[tuple[Array, Array, Array]]:
    """A block's rows by the pieces that they belong to."""
    order = np.lexsort(x.T[::-1])
    x, y, weight = x[order], y[order], weight[order]
    places = [0, *(_place(x, end) for end in ends), len(x)]
    return [(x[i:j].copy(), y[i:j].copy(), weight[i:j].copy()) for i, j in pairwise(places)]


def _place(x: Array, row: Array) -> int:
    """How many of ordered rows come before one."""
    low, high = 0, len(x)
    for c, number in enumerate(row):
        column, start = x[low:high, c], low
        low, high = start + int(np.searchsorted(column, number)), start + int(np.searchsorted(column, number, "right"))
    return low


def _together(
    feature: NDArray[np.intp], numbers: int, center: Array, *parts: tuple[Array, Array, Array]
) -> Joined | None:
    """The places of a piece; None where there is no row with weight."""
    x, y, weight = (np.concatenate(each) for each in zip(*parts, strict=True))
    if not (weight > 0).any():
        return None
    return join_rows(x, y, weight, feature, numbers, center)._replace(place=np.empty(0, np.intp))


def _seen(piece: Joined | None) -> tuple[Box, Array, Array, Array, Array, np.dtype[Any]] | None:
    """A piece's box, the least and the largest of the values, some places with their weights, and the dtype."""
    if piece is None:
        return None
    values = piece.y + piece.origin
    some = np.unique(np.linspace(0, piece.places - 1, _FEW).astype(np.intp))
    box = Box(piece.places, piece.total, piece.x.min(0), piece.x.max(0))
    return box, values.min(0), values.max(0), piece.x[some], piece.weight[some], piece.x.dtype


def _column(piece: Joined, c: int) -> tuple[Array, Array]:
    return piece.x[:, c].astype(np.float64), piece.weight


def _looked(look: Callable[[Array, Array], _T], *columns: tuple[Array, Array]) -> _T:
    values, weights = (np.concatenate(each) for each in zip(*columns, strict=True))
    return look(values, weights)


def _ranked(piece: Joined, ranks: NDArray[np.intp], frame: Frame) -> Joined:
    return frame.of(piece.ranked(ranks))
