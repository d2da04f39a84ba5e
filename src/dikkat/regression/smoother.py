"""A kernel of a given bandwidth over given rows: arrays in, arrays out, and nothing of scikit-learn."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from torch import Tensor

from dikkat import scores
from dikkat.attention import attention_weights
from dikkat.regression.joined import Array, Joined
from dikkat.regression.local import local_fit, noise_shares, residual_variance
from dikkat.regression.moments import Moments, Points, Profile, Window, arrange, moments

_SCORES = {
    "gaussian": scores.Gaussian,
    "epanechnikov": scores.Epanechnikov,
    "boxcar": scores.Boxcar,
    "triangular": scores.Triangular,
}
_ELEMENTS = 2**23  # of what is held for some queries at once
_ALONE = 1e-5  # of the noise left in the residuals: with less, as many numbers are fitted as points have a say


class Smoother:
    """What every answer is computed from.

    Args:
        joined: The training rows.
        profile: The kernel.
        degree: 0 for the constant order, 1 for the linear one.
        bandwidth: (d,); infinite for the kernel "average".
        tolerance: The share of a query's weight that may be left out.
        device: Where to compute.
    """

    def __init__(
        self,
        joined: Joined,
        profile: Profile,
        degree: int,
        bandwidth: Array,
        tolerance: float,
        device: torch.device,
    ) -> None:
        self.joined, self.profile, self.degree = joined, profile, degree
        self.tolerance, self.device = tolerance, device
        self.bandwidth = np.ones_like(bandwidth) if profile == "average" else bandwidth  # its line needs some unit

    def estimate(self, query: Array) -> tuple[Array, NDArray[np.bool_]]:
        """The estimates (n, v) and who has one, (n,); computed in the dtype of the rows."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            found = moments(part, self._points, self._window(part), degree=self.degree)
            return local_fit(found).estimate, found.lse

        mean, lse = self._by_parts(query, self._points, work)
        return mean + self.joined.centre, np.isfinite(lse) & np.isfinite(mean).all(1)

    def spread(self, query: Array) -> tuple[Array, Array, Array, NDArray[np.bool_]]:
        """The estimates, the standard deviations about them and the estimates' standard errors, all (n, v).

        In float64, whatever the rows' dtype: they are differences of squares.
        """
        values = self.joined.y.shape[1]

        def work(part: Tensor) -> tuple[Tensor, ...]:
            found, square = _apart(moments(part, self._squares, self._window(part), degree=self.degree), values)
            fit = local_fit(found)
            variance = residual_variance(found, fit, square)
            squared = moments(part, self._squares, self._window(part, squared=True), degree=self.degree)
            norm, left = noise_shares(found, squared)
            error = (variance * (norm / left)[:, None]).clamp(min=0).sqrt()
            return fit.estimate, variance.sqrt(), torch.where(left[:, None] > _ALONE, error, math.inf), found.lse

        mean, deviation, error, lse = self._by_parts(query, self._squares, work)
        return mean + self.joined.centre, deviation, error, np.isfinite(lse) & np.isfinite(mean).all(1)

    def neighbors(self, query: Array) -> Array:
        """(Σ_j W_j K_j)² / Σ_j W_j K_j², (n,); 0 where nobody is in reach."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            lse, squared = (
                moments(part, self._points, self._window(part, squared=squared)).lse for squared in (False, True)
            )
            return (torch.where(torch.isfinite(lse) & torch.isfinite(squared), (2 * lse - squared).exp(), 0.0),)

        return self._by_parts(query, self._points, work)[0]

    def log_mass(self, query: Array) -> Array:
        """log Σ_j W_j K_j, (n,)."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            return (moments(part, self._points, self._window(part)).lse,)

        return self._by_parts(query, self._points, work)[0]

    def trace(self) -> float:
        """Of the smoother matrix over the training rows; in float64."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            found = moments(part, self._squares, self._window(part), degree=self.degree)
            return found.lse, local_fit(found).row[:, 0]

        lse, own = self._by_parts(self.joined.x, self._squares, work)
        return float((np.exp(np.log(self.joined.weight) - lse) * own).sum())

    def weights(self, query: Array, key: Array, weight: Array) -> Iterator[tuple[slice, Array]]:
        """The attention of some queries at a time to rows (m, d) with weights (m,), in float64."""
        centre = self.joined.x.mean(0, dtype=np.float64)
        kind = {"dtype": torch.float64, "device": self.device}
        bandwidth = torch.tensor(self.bandwidth, **kind)
        score = scores.Average() if self.profile == "average" else _SCORES[self.profile](bandwidth)
        keys, bias = torch.tensor(key - centre, **kind), torch.tensor(np.log(weight), **kind)
        for rows in _slices(len(query), len(key)):
            queries = torch.tensor(query[rows] - centre, **kind)
            yield rows, attention_weights(queries, keys, score=score, key_bias=bias).cpu().numpy()

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

    @cached_property
    def _tree(self) -> tuple[cKDTree, Array]:
        """Of the places in the scaled distance, in a unit in which nothing overflows; and that scale."""
        x = self.joined.x.astype(np.float64) - self.joined.x[0]
        scale = self.bandwidth.min() / self.bandwidth
        scale = scale / max(float(np.abs(x * scale).max()), np.finfo(np.float64).tiny)
        return cKDTree(x * scale), scale

    @cached_property
    def _points(self) -> Points:
        kind = {"dtype": torch.from_numpy(self.joined.x[:0]).dtype, "device": self.device}
        joined = self.joined
        return arrange(*(torch.tensor(array, **kind) for array in (joined.x, joined.y, joined.weight)))

    @cached_property
    def _squares(self) -> Points:
        """With y and y² as values, in float64."""
        joined, points = self.joined, self._points
        value = torch.tensor(np.hstack([joined.y, joined.y**2 + joined.within]), device=self.device)
        return replace(points, key=points.key.double(), value=value[points.order], weight=points.weight.double())

    def _window(self, query: Tensor, squared: bool = False) -> Window:
        return Window(self.profile, torch.tensor(self.bandwidth).to(query), squared, self.tolerance)

    def _by_parts(self, query: Array, points: Points, work: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Any]:
        """What `work` makes of the queries, in float64, of so many at a time that their moments are small."""
        size, values = points.key.shape[1], points.value.shape[1]
        found = [
            [piece.double().cpu() for piece in work(torch.tensor(query[rows]).to(points.key))]
            for rows in _slices(len(query), values + self.degree * size * (1 + size + values))
        ]
        return [torch.cat(pieces).numpy() for pieces in zip(*found, strict=True)]


def _apart(found: Moments, values: int) -> tuple[Moments, Tensor]:
    """The moments of y, and the mean of y², from those of both."""
    cross = None if found.cross is None else found.cross[..., :values]
    return found._replace(value=found.value[:, :values], cross=cross), found.value[:, values:]


def _slices(count: int, elements: int) -> list[slice]:
    size = max(1, _ELEMENTS // elements)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
