"""A kernel of a given bandwidth over given rows: arrays in, arrays out, and nothing of scikit-learn."""

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial import cKDTree
from torch import Tensor

from dikkat.regression.joined import Array, Joined
from dikkat.regression.local import LocalFit, local_fit, noise_shares
from dikkat.regression.moments import Moments, Points, Profile, Window, moments, parts, squares, weights

_DIGITS = 1e9  # largest |lse| whose rounding does not show in a difference of two
_ALONE = 1e-5  # least share of the noise in the residuals; with less, the fit has as many numbers as points


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
        self._points = self._points_of(joined.y, torch.from_numpy(joined.x).dtype)

    def estimate(self, query: Array) -> tuple[Array, NDArray[np.bool_]]:
        """The estimates (n, v) and who has one, (n,); computed in the dtype of the rows."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            found = moments(part, self._points, self._window(part), degree=self.degree)
            return local_fit(found).estimate, found.lse

        mean, lse = self._by_parts(query, self._points, work)
        return mean + self.joined.origin, np.isfinite(lse) & np.isfinite(mean).all(1)

    def spread(self, query: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """The estimates and the standard deviations about them, both (n, v), and who has them, (n,)."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            found, fit = self._wide_fit(part)
            return fit.estimate[:, : self.joined.y.shape[1]], self._variance(part, fit).sqrt(), found.lse

        mean, deviation, lse = self._by_parts(query, self._wide, work)
        if self._points.key.dtype != torch.float64:  # the estimates are those that come without deviations
            narrow, reached = self.estimate(query)
            return narrow, deviation, reached
        return mean + self.joined.origin, deviation, np.isfinite(lse) & np.isfinite(mean).all(1)

    def standard_error(self, query: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """The estimates and their standard errors, both (n, v), and who has them, (n,).

        The error is infinite where no noise is left in the residuals to measure it by.
        """

        def work(part: Tensor) -> tuple[Tensor, ...]:
            found, fit = self._wide_fit(part)
            squared = moments(part, self._wide, self._window(part, squared=True), degree=self.degree)
            norm, left = (share[:, None] for share in noise_shares(found, squared))
            error = (self._variance(part, fit) * norm / left.clamp(min=_ALONE)).sqrt()
            estimate = fit.estimate[:, : self.joined.y.shape[1]]
            return estimate, torch.where(left > _ALONE, error, math.inf), found.lse

        mean, error, lse = self._by_parts(query, self._wide, work)
        return mean + self.joined.origin, error, (np.abs(lse) < _DIGITS) & np.isfinite(mean).all(1)

    def neighbors(self, query: Array) -> Array:
        """(Σ_j W_j K_j)² / Σ_j W_j K_j², (n,); 0 where nobody is in reach."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            lse, squared = (
                moments(part, self._wide, self._window(part, squared=squared)).lse for squared in (False, True)
            )
            return (torch.where(lse.abs() < _DIGITS, (2 * lse - squared).exp(), 0.0),)

        return self._by_parts(query, self._wide, work)[0]

    def log_density(self, query: Array) -> Array:
        """log Σ_j W_j K_j, with K such that its integral over the queries is 1, less log Σ_j W_j: (n,)."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            return (moments(part, self._points, self._window(part)).lse,)

        scale = _log_constant(self.profile, len(self.bandwidth)) - np.log(self.bandwidth).sum()
        mass = self._by_parts(query, self._points, work)[0]
        return np.asarray(mass - math.log(self.joined.weight.sum()) + scale)

    def trace(self) -> float:
        """Of the smoother matrix over the training rows; in float64."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            found = moments(part, self._wide, self._window(part), degree=self.degree)
            return found.lse, local_fit(found).row[:, 0]

        lse, own = self._by_parts(self.joined.x, self._wide, work)
        return float((np.exp(np.log(self.joined.weight) - lse) * own).sum())

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

    def nearest_spread(self, query: Array) -> tuple[Array, Array]:
        """The mean of the nearest places and the standard deviation there, both (n, v)."""
        shares, y = self.nearest(query), self.joined.y
        mean: Array = shares @ y
        about = y[shares.indices] - np.repeat(mean, np.diff(shares.indptr), axis=0)
        share = csr_array((shares.data, np.arange(shares.nnz), shares.indptr), shape=(len(query), shares.nnz))
        return mean + self.joined.origin, np.sqrt(share @ (about**2 + self.joined.within[shares.indices]))

    @cached_property
    def _tree(self) -> tuple[cKDTree, Array]:
        """Of the places in the scaled distance, in a unit in which nothing overflows; and that scale."""
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
        """In float64, whatever the rows' dtype; where values differ at one place, with the roots of `within` too."""
        within, y = self.joined.within, self.joined.y
        if self._points.key.dtype == torch.float64 and not within.any():
            return self._points
        return self._points_of(np.hstack([y, np.sqrt(within)]) if within.any() else y, torch.float64)

    def _wide_fit(self, query: Tensor) -> tuple[Moments, LocalFit]:
        found = moments(query, self._wide, self._window(query), degree=self.degree)
        return found, local_fit(found)

    def _variance(self, query: Tensor, fit: LocalFit) -> Tensor:
        """Σ_j w_j (y_j − z_jᵀθ)², (n, v): what the places' means do about the fit, and what values do about those."""
        theta, values = fit.theta.clone(), self.joined.y.shape[1]
        theta[..., values:] = 0
        found = squares(query, self._wide, self._window(query), theta)
        return found[:, :values] + found[:, values:].reshape(len(found), -1, values).sum(1)

    def _window(self, query: Tensor, squared: bool = False) -> Window:
        return Window(self.profile, torch.tensor(self.bandwidth).to(query), squared, self.tolerance)

    def _by_parts(self, query: Array, points: Points, work: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Array]:
        """What `work` makes of the queries, in float64, of so many at a time that their moments are small."""
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
    if profile == "boxcar":
        return -ball
    return math.log((size + 2) / 2 if profile == "epanechnikov" else size + 1) - ball
