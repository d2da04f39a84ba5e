"""A kernel of a given bandwidth over places in partitions."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from dikkat.regression.joined import Array, Joined
from dikkat.regression.local import local_fit, ridge_of
from dikkat.regression.moments import Points, Profile, Window, moments, parts, state, unpacked
from dikkat.regression.partitions.graphs import Later, here, later, merged, tree
from dikkat.regression.partitions.places import Box, Frame, Partitioned, only_at_hand
from dikkat.regression.smoother import Smoother
from dikkat.state import State


class PartitionedSmoother:
    """What predictions are computed from, as `dikkat.regression.smoother.Smoother` is of rows at hand.

    Args:
        joined: The training rows.
        profile: The kernel.
        degree: 0 for the constant order, 1 for the linear one.
        bandwidth: (d,), one for each coordinate; infinite for the kernel "average".
        ridge: ρ of the linear order.
        tolerance: The share of a query's weight that may be left out.
        device: Where to compute.
    """

    def __init__(
        self,
        joined: Partitioned,
        profile: Profile,
        degree: int,
        bandwidth: Array,
        ridge: float,
        tolerance: float,
        device: torch.device,
    ) -> None:
        self.joined, self.profile, self.degree, self.bandwidth = joined, profile, degree, bandwidth
        self.ridge, self.tolerance, self.device = ridge, tolerance, device
        spread = joined.known.spread
        sigma = np.where(spread > 0, spread, 1.0) if profile == "average" else bandwidth
        # Half of what may be left out is left out of a piece, and half are far pieces.
        share = math.log(max(tolerance / 2, np.finfo(np.float64).tiny) / len(joined.pieces))
        slopes = slice(joined.numbers)
        ridges = ridge_of(torch.tensor(ridge), *(torch.tensor(each[slopes]) for each in (spread, sigma)))
        self._task = _Task(
            joined.frame, joined.dtype, profile, degree, sigma, ridges.numpy(), tolerance / 2, device, share
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and (hasattr(Smoother, name) or name == "_points"):
            raise only_at_hand()
        raise AttributeError(name)

    def estimate(self, query: Array) -> tuple[Array, NDArray[np.bool_]]:
        """The estimates (n, v) of queries at hand, and who has one, (n,)."""
        columns = len(self.joined.origin) * (1 + self.degree * query.shape[1]) + self.degree * query.shape[1] ** 2
        found = here([self.estimates(later(np.asarray, query[rows])) for rows in parts(len(query), columns)])
        if not found:
            return np.empty((0, len(self.joined.origin))), np.empty(0, bool)
        mean, reached = (np.concatenate(each) for each in zip(*found, strict=True))
        return mean, reached

    def estimates(self, query: Later) -> Later:
        """The same, still to be made: of a partition of queries."""
        task, joined = self._task, self.joined
        floor = later(task.floor, query, joined.few)
        found = [
            later(partial(task.state, box), query, floor, piece)
            for piece, box in zip(joined.pieces, joined.boxes, strict=True)
        ]
        return later(task.answer, query, tree(merged, found))

    def nearest_spread(self, query: Array, deviates: bool = False) -> tuple[Array, Array]:
        """The mean of the nearest places of queries at hand, (n, v), and nothing of deviations."""
        (found,) = here([self.nearest(later(np.asarray, query))])
        return found, np.full_like(found, np.nan)

    def nearest(self, query: Later) -> Later:
        """The mean of the nearest places, still to be made."""
        sigma = np.where(np.isfinite(self.bandwidth), self.bandwidth, 1.0)
        scale = sigma.min() / sigma
        scale = scale / max(float(np.abs(self.joined.widest * scale).max()), np.finfo(np.float64).tiny)
        near = partial(_near, scale, self.joined.first)
        return later(_mean, tree(_nearer, [later(near, query, piece) for piece in self.joined.pieces]))


class _Task(NamedTuple):
    """What is done where the pieces are, and all that has to be known for it."""

    frame: Frame
    dtype: np.dtype[Any]
    profile: Profile
    degree: int
    bandwidth: Array
    ridge: Array
    tolerance: float
    device: torch.device
    share: float

    def _tensor(self, array: Array) -> Tensor:
        return torch.tensor(array.astype(self.dtype), device=self.device)

    def _window(self) -> Window:
        return Window(self.profile, self._tensor(self.bandwidth), tolerance=self.tolerance)

    def _points(self, piece: Joined) -> Points:
        piece = self.frame.of(piece)
        return Points(*map(self._tensor, (piece.x, piece.y, piece.weight)))

    def floor(self, query: Array, few: tuple[Array, Array]) -> Tensor:
        """Below which logarithm of its weight a piece does not count: by what a few places weigh."""
        key, weight = map(self._tensor, few)
        found = moments(self._tensor(query), Points(key, key[:, :1], weight), self._window())
        return found.lse + self.share

    def state(self, box: Box, query: Array, floor: Tensor, piece: Joined) -> State:
        queries, window = self._tensor(query), self._window()
        seen, values = box.seen(queries, window, floor), len(self.frame.origin)
        size = queries.shape[1]
        columns = values + self.degree * (size + size * size + size * values)
        mean, lse = queries.new_zeros(len(queries), columns), torch.full_like(floor, -math.inf)
        if seen.any():
            mean[seen], lse[seen], _ = state(queries[seen], self._points(piece), window, degree=self.degree)
        return State(mean, lse)

    def answer(self, query: Array, found: State) -> tuple[Array, NDArray[np.bool_]]:
        """The estimates, and who has one."""
        fit = local_fit(unpacked(found, query.shape[1], self.degree), self._tensor(self.ridge)).estimate
        mean: Array = fit.double().cpu().numpy() + self.frame.origin
        return mean, np.isfinite(found.lse.cpu().numpy()) & np.isfinite(mean).all(1)


class _Near(NamedTuple):
    """The nearest places of n queries.

    Attributes:
        distance: (n,), in the scaled distance.
        weight: (n,), the sum of the weights of those that are as near.
        value: (n, v), the weighted sum of their values.
    """

    distance: Array
    weight: Array
    value: Array


def _near(scale: Array, corner: Array, query: Array, piece: Joined) -> _Near:
    """Of a piece."""
    if not len(query):
        return _Near(np.empty(0), np.empty(0), np.empty((0, len(piece.origin))))
    with np.errstate(over="ignore"):
        scaled = np.clip((query - corner) * scale, -1e150, 1e150)
    tree = cKDTree((piece.x.astype(np.float64) - corner) * scale)
    distance, _ = tree.query(scaled)
    found = tree.query_ball_point(scaled, distance * (1 + 1e-12))
    values = piece.y + piece.origin
    weight = np.array([piece.weight[places].sum() for places in found])
    value = np.array([piece.weight[places] @ values[places] for places in found]).reshape(len(query), -1)
    return _Near(distance, weight, value)


def _nearer(a: _Near, b: _Near) -> _Near:
    """Of both pieces; of places that are as near, both."""
    least = np.minimum(a.distance, b.distance)
    shares = [each.distance <= least * (1 + 1e-12) for each in (a, b)]
    weight = np.where(shares[0], a.weight, 0.0) + np.where(shares[1], b.weight, 0.0)
    value = np.where(shares[0][:, None], a.value, 0.0) + np.where(shares[1][:, None], b.value, 0.0)
    return _Near(least, weight, value)


def _mean(near: _Near) -> Array:
    found: Array = near.value / near.weight[:, None]
    return found
