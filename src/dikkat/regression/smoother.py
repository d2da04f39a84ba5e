"""A kernel of a given bandwidth over given rows: arrays in, arrays out, and nothing of scikit-learn."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from scipy.spatial import cKDTree
from torch import Tensor

from dikkat.regression.factors import local_bandwidth
from dikkat.regression.joined import Array
from dikkat.regression.local import Setting, has_unseen, local_fit, ridge_of, without_unseen
from dikkat.regression.moments import Points, Profile, Window, moments, parts, weights
from dikkat.regression.uncertainty import Band, Uncertainty

_DIGITS = 1e9  # largest |lse| whose rounding does not show in a difference of two


class Smoother:
    """The estimates, weights and densities of a fit."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.joined, self.profile, self.degree, self.bandwidth, self.ridge, self.device, self.factors = setting
        self._spread = self.joined.spread()
        self._points = self._points_of(self.joined.y, torch.from_numpy(self.joined.x).dtype)

    def estimate(self, query: Array) -> tuple[Array, NDArray[np.bool_]]:
        """The estimates (n, v) and who has one, (n,); computed in the dtype of the rows."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            found = moments(part, self._points, window, degree=self.degree)
            found = without_unseen(found, self.joined, part, window.bandwidth)
            return local_fit(found, self._ridge(window)).estimate, found.lse

        mean, lse = self._by_parts(query, self._points, work)
        return mean + self.joined.origin, np.isfinite(lse) & np.isfinite(mean).all(1)

    def spread(self, query: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """The estimates and the standard deviations about them, both (n, v), and who has them, (n,)."""
        mean, reached = self.estimate(query)
        return mean, self.uncertainty.deviation(query), reached

    def band(self, query: Array) -> tuple[Band, NDArray[np.bool_]]:
        """The band at queries, and True for those that have one, (n,)."""
        found = self.uncertainty.band(query)
        center = found.center + self.joined.origin
        return found._replace(center=center), np.isfinite(center).all(1) & self._is_reached(query)

    def neighbors(self, query: Array) -> Array:
        """(Σ_j W_j K_j)² / Σ_j W_j K_j², (n,); 0 where nobody is in reach."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            lse, squared = (moments(part, self._wide, replace(window, squared=each)).lse for each in (False, True))
            return (torch.where(lse.abs() < _DIGITS, (2 * lse - squared).exp(), 0.0),)

        return self._by_parts(query, self._wide, work)[0]

    def log_density(self, query: Array) -> Array:
        """log Σ_j W_j K_j, with K such that its integral over the numbers is 1, less log Σ_j W_j: (n,)."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            found = moments(part, self._points, window).lse - window.bandwidth[..., :size].log().sum(-1)
            return (found.masked_fill(has_unseen(self.joined, part), -math.inf),)

        size = self.joined.numbers
        scale = _log_constant(self.profile, size)
        mass = self._by_parts(query, self._points, work)[0]
        return np.asarray(mass - math.log(self.joined.weight.sum()) + scale)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """Deviations and bands; the rows' own errors are found at the first call."""
        return Uncertainty(self._setting)

    def trace(self) -> float:
        """The trace of the smoother matrix over the training rows, in float64."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part)
            found = moments(part, self._wide, window, degree=self.degree)
            return found.lse, local_fit(found, self._ridge(window)).row[:, 0]

        lse, own = self._by_parts(self.joined.x, self._wide, work)
        return float((np.exp(np.log(self.joined.weight) - lse) * own).sum())

    def attention(self, query: Array, row_weight: Array, top_k: int | None = None) -> Array | csr_array:
        """The weights of all training rows at each query; or the largest, sparse."""
        kept = np.flatnonzero(self.joined.place >= 0)
        place, weight = self.joined.place[kept], row_weight[kept]
        dtype, pieces = self.joined.x.dtype, list[Any]()
        for part, found in self.weights(query, self.joined.x[place], weight):
            lost = found.sum(1) == 0
            if lost.any():
                shares = self.nearest(query[part][lost]).toarray()
                found[lost] = shares[:, place] * (weight / self.joined.weight[place])
            if top_k is None:
                pieces.append(np.zeros((len(found), len(row_weight)), dtype))
                pieces[-1][:, kept] = found
                continue
            count = min(int(top_k), len(kept))
            columns = np.sort(np.argpartition(-found, count - 1, axis=1)[:, :count], axis=1)
            largest = np.take_along_axis(found, columns, 1).astype(dtype)
            ends = np.arange(len(found) + 1) * count
            pieces.append(
                csr_array((largest.ravel(), kept[columns].ravel(), ends), shape=(len(found), len(row_weight)))
            )
            pieces[-1].eliminate_zeros()
        return np.concatenate(pieces) if top_k is None else csr_array(vstack(pieces, format="csr"))

    def weights(self, query: Array, key: Array, weight: Array) -> Iterator[tuple[slice, Array]]:
        """The attention of some queries at a time to rows (m, d) with weights (m,)."""
        keys, counts = (torch.tensor(array, device=self.device) for array in (key, weight))
        points = Points(keys, keys[:, :0], counts.to(keys))
        for rows in parts(len(query), key.size):
            queries = torch.tensor(query[rows], device=self.device)
            yield rows, weights(queries, points, self._window(queries)).cpu().numpy()

    def nearest(self, query: Array) -> csr_array:
        """The shares (n, m) of the nearest places in the answer to each query: one, or all that are as near."""
        tree, scale = self._tree
        with np.errstate(over="ignore"):
            scaled = np.clip((query - self.joined.x[0].astype(np.float64)) * scale, -1e150, 1e150)
        distance, _ = tree.query(scaled)
        found = tree.query_ball_point(scaled, distance * (1 + 1e-12))
        counts = np.array([len(places) for places in found])
        places = np.concatenate(found).astype(np.intp)
        rows = np.repeat(np.arange(len(query)), counts)
        weight = self.joined.weight[places]
        share = weight / np.bincount(rows, weight)[rows]
        return csr_array((share, (rows, places)), shape=(len(query), len(self.joined.x)))

    def nearest_spread(self, query: Array, deviates: bool) -> tuple[Array, Array]:
        """The mean of the nearest places and, if asked for, the standard deviation about it, both (n, v)."""
        shares = self.nearest(query)
        mean: Array = shares @ self.joined.y + self.joined.origin
        return mean, self.uncertainty.deviation_from(query, shares @ self.joined.x) if deviates else mean

    @cached_property
    def _tree(self) -> tuple[cKDTree, Array]:
        """A tree of the places in a unit in which nothing overflows, and that scale."""
        x = self.joined.x.astype(np.float64) - self.joined.x[0]
        scale = self.bandwidth.min() / self.bandwidth
        scale = scale / max(float(np.abs(x * scale).max()), np.finfo(np.float64).tiny)
        return cKDTree(x * scale), scale

    def _points_of(self, value: Array, dtype: torch.dtype) -> Points:
        joined = self.joined
        return Points(
            *(torch.tensor(each, dtype=dtype, device=self.device) for each in (joined.x, value, joined.weight))
        )

    @cached_property
    def _wide(self) -> Points:
        """In float64, whatever the rows' dtype."""
        wide = self._points.key.dtype == torch.float64
        return self._points if wide else self._points_of(self.joined.y, torch.float64)

    def _is_reached(self, query: Array) -> NDArray[np.bool_]:
        if self.profile == "gaussian":
            return np.ones(len(query), dtype=bool)
        return self.neighbors(query) > 0

    def _ridge(self, window: Window) -> Tensor:
        bandwidth = window.bandwidth[..., : self.joined.numbers]
        amount, spread = (torch.tensor(each).to(bandwidth) for each in (self.ridge, self._spread))
        return ridge_of(amount, spread[: self.joined.numbers], bandwidth)

    def _window(self, query: Tensor) -> Window:
        bandwidth = local_bandwidth(torch.tensor(self.bandwidth).to(query), self.factors, query)
        return Window(self.profile, bandwidth)

    def _by_parts(self, query: Array, points: Points, work: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Array]:
        """The results of `work` for all queries, in float64, made a part at a time to save memory."""
        found = [
            [piece.double().cpu() for piece in work(torch.tensor(query[rows]).to(points.key))]
            for rows in parts(len(query), points.columns(self.degree))
        ]
        return [torch.cat(pieces).numpy() for pieces in zip(*found, strict=True)]


def _log_constant(profile: Profile, size: int) -> float:
    """The logarithm of what makes a kernel's integral over so many dimensions 1."""
    ball = size / 2 * math.log(math.pi) - math.lgamma(size / 2 + 1)
    if profile == "gaussian":
        return -size / 2 * math.log(2 * math.pi)
    return math.log((size + 2) / 2) - ball
