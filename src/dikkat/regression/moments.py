r"""Local moments: what every estimate here is made of.

Around a query x the keys x_j have the weights of attention with a distance score,

$$ w_j = \frac{W_j K(\delta_j)}{\sum_l W_l K(\delta_l)}, \qquad \delta_j = (x_j - x)/\sigma , $$

and the moments are the means of 1, y, δ, δδᵀ and δy under them. They are a state: a mean and a log-sum-exp, which
merges with the state over other keys. δ is taken from the points as they were given, so that no digits are lost where
their range is many bandwidths.

On a CPU they come from the compiled kernels of `dikkat.cpu.moments.launch`, and along one feature of many rows from
`dikkat.cpu.moments.sweep_launch`, which does not look at pairs; on other devices means from `attend`'s,
and the rest from tiles in plain PyTorch.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from dikkat import scores
from dikkat.attention import attention_state
from dikkat.cpu.moments import launch as moments_launch
from dikkat.cpu.moments import sweep_launch
from dikkat.masking import softmax
from dikkat.problem.arithmetic import log_profile
from dikkat.regression.joined import spatial_order
from dikkat.state import Pooled, State, join, log_sum_exp

Profile = Literal["gaussian", "epanechnikov"]

_INF = float("inf")
_TILE = 2**22  # elements of a tile's largest tensor
_ELEMENTS = 2**23  # of the moments of the queries that are worked on at once


@dataclass(frozen=True)
class Points:
    """Keys with their values; the faster if neighbours in space are mostly neighbours in memory.

    Attributes:
        key: (m, d).
        value: (m, v), of the same dtype.
        weight: (m,), positive: how often each counts.
        tiles: The same as the compiled kernels read them; None where these do not run.
        line: Many sorted keys of one feature in float64, as sweeps read them; None of others.
    """

    key: Tensor
    value: Tensor
    weight: Tensor
    tiles: moments_launch.Tiles | None = field(init=False, repr=False)
    line: sweep_launch.Line | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        run, own = moments_launch.runs(self.key), (self.key, self.value, self.weight)
        object.__setattr__(self, "tiles", moments_launch.tiles(*own) if run else None)
        object.__setattr__(self, "line", sweep_launch.line(*own) if run else None)

    def columns(self, degree: int) -> int:
        """The size of the moments of a query, without the log-sum-exp."""
        size, values = self.key.shape[1], self.value.shape[1]
        return values + degree * (size + size * size + size * values)


@dataclass(frozen=True)
class Window:
    """A kernel and how far it reaches.

    Attributes:
        profile: K as a function of the distance: a kernel of `dikkat.scores`.
        bandwidth: (d,), σ in the units of the keys; or (n, d), of each query its own.
        squared: Whether K² is meant.
        tolerance: The share of a query's whole weight that may be left out: 0 leaves out what is 0 in the dtype.
    """

    profile: Profile
    bandwidth: Tensor
    squared: bool = False
    tolerance: float = 0.0

    def of(self, queries: Any) -> "Window":
        """The window of some of the queries, given as an index."""
        return self if self.bandwidth.ndim == 1 else replace(self, bandwidth=self.bandwidth[queries])


class Moments(NamedTuple):
    """Moments of degree 0 of n queries. A query that no key reaches has lse −∞, and 0 otherwise.

    Attributes:
        lse: (n,), log Σ_j W_j K(δ_j).
        value: (n, v), the mean of y.
    """

    lse: Tensor
    value: Tensor


class LineMoments(NamedTuple):
    """Moments of degree 1 of n queries.

    Attributes:
        lse: (n,).
        value: (n, v).
        offset: (n, d), the mean of δ.
        spread: (n, d, d), of δδᵀ.
        cross: (n, d, v), of δy.
    """

    lse: Tensor
    value: Tensor
    offset: Tensor
    spread: Tensor
    cross: Tensor


def parts(count: int, columns: int) -> list[slice]:
    """So many queries in parts whose moments, of so many numbers each, take little memory at once."""
    size = max(1, _ELEMENTS // columns)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@overload
def moments(
    query: Tensor, points: Points, window: Window, *, degree: Literal[1], exclude: Tensor | None = None
) -> LineMoments: ...


@overload
def moments(
    query: Tensor, points: Points, window: Window, *, degree: int = 0, exclude: Tensor | None = None
) -> Moments | LineMoments: ...


def moments(
    query: Tensor, points: Points, window: Window, *, degree: int = 0, exclude: Tensor | None = None
) -> Moments | LineMoments:
    """The moments about each query (n, d); those of δ for degree 1 only.

    Args:
        query: (n, d), of the points' dtype, on their device.
        points: The keys.
        window: The kernel.
        degree: 0 or 1.
        exclude: (n,) integers, the place in `points` that a query must not see, or −1 for none.
    """
    if points.tiles is not None:
        settings = {"points": points, "tiles": points.tiles, "degree": degree}
        mean, lse = _in_order(_averages, query, {"exclude": exclude}, window=window, **settings)
    elif degree or window.bandwidth.ndim > 1 or (window.squared and window.profile != "gaussian"):
        mean, lse, _ = _features(query, points, window, degree, exclude)
    else:
        mean, lse, _ = _attended(query, points, window, exclude)
    if not degree:
        return Moments(lse, mean)
    size, values = query.shape[1], points.value.shape[1]
    value, offset, spread, cross = mean.split([values, size, size * size, size * values], 1)
    return LineMoments(lse, value, offset, spread.unflatten(1, (size, size)), cross.unflatten(1, (size, values)))


def sensitivity(
    query: Tensor,
    points: Points,
    window: Window,
    lse: Tensor,
    row: Tensor,
    fit: Tensor,
    exclude: Tensor | None = None,
) -> Tensor:
    r"""Σ_j w_j δ_jc² (u·z_j)(y_j − z_jᵀθ) with z = (1, δ), (n, d, v).

    For the Gaussian kernel, whose ∂ log K/∂ log σ_c is δ_c², that is how the local estimate uᵀ(…) changes with log σ_c.

    Args:
        query: (n, d).
        points: The keys.
        window: The kernel.
        lse: (n,), of the moments with the same arguments.
        row: (n, 1 + degree · d): u.
        fit: (n, 1 + degree · d, v): θ.
        exclude: As for `moments`.
    """
    if points.tiles is not None:
        by_query = {"lse": lse, "row": row, "fit": fit, "exclude": exclude}
        (found,) = _in_order(_sensitivity, query, by_query, points=points, tiles=points.tiles, window=window)
        return found
    found = query.new_zeros(len(query), points.key.shape[1], points.value.shape[1])
    lse = lse.masked_fill(lse == -_INF, 0.0)
    for rows, cols in _tiles(query, points):
        delta, scores = _scores(query, points, window, rows, cols, exclude)
        share = (scores - lse[rows, None]).exp()
        own = row[rows]
        lever = own[:, :1] + torch.einsum("nc,nmc->nm", own[:, 1:], delta[..., : own.shape[1] - 1])
        left = points.value[cols] - _heights(fit[rows], delta)
        found[rows] += torch.einsum("nm,nmc,nmv->ncv", share * lever, delta.square(), left)
    return found


def weights(query: Tensor, points: Points, window: Window) -> Tensor:
    """The weights themselves, (n, m), of the points in their order; 0 in the row of a query that no key reaches."""
    _, scores = _scores(query, points, window, slice(None), slice(None), None)
    return softmax(scores, None)[0]


def _averages(
    query: Tensor, *, exclude: Tensor | None, points: Points, tiles: moments_launch.Tiles, window: Window, degree: int
) -> tuple[Tensor, Tensor]:
    """Means and lse of ordered queries: from a sweep where it serves, else pair by pair."""

    def by_pairs(query: Tensor, window: Window, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
        return moments_launch.moments(
            query,
            tiles,
            window.profile,
            window.bandwidth,
            squared=window.squared,
            tolerance=window.tolerance,
            degree=degree,
            exclude=exclude,
        )

    found = _swept(query, points, window, 2 * degree, degree, exclude)
    if found is None:
        return by_pairs(query, window, exclude)
    lse, mass, value = found
    means = torch.cat([value[:, 0], mass, value[:, 1:].flatten(1)], 1)
    open_ = lse.isnan()
    if open_.any():
        means[open_], lse[open_] = by_pairs(query[open_], window.of(open_), None if exclude is None else exclude[open_])
    return means, lse


def _sensitivity(
    query: Tensor,
    *,
    lse: Tensor,
    row: Tensor,
    fit: Tensor,
    exclude: Tensor | None,
    points: Points,
    tiles: moments_launch.Tiles,
    window: Window,
) -> Tensor:
    """The sensitivities of ordered queries: from a sweep where it serves, else pair by pair."""

    def by_pairs(chosen: Tensor) -> Tensor:
        return moments_launch.sensitivity(
            query[chosen],
            tiles,
            window.of(chosen).bandwidth,
            lse[chosen],
            row[chosen],
            fit[chosen],
            tolerance=window.tolerance,
            exclude=None if exclude is None else exclude[chosen],
        )

    degree = row.shape[1] - 1
    swept = _swept(query, points, window, 2 + 2 * degree, 2 + degree, exclude)
    if swept is None:
        return by_pairs(torch.ones(len(query), dtype=torch.bool))
    weight, mass, value = swept
    # Σ_k (u·z)_k Σ w δ^(2+k) (y − zᵀθ): of powers of δ, and of those with y.
    found = query.new_zeros(len(query), points.value.shape[1])
    for k in range(1 + degree):
        left = value[:, 2 + k] - sum(fit[:, e] * mass[:, 1 + k + e, None] for e in range(1 + degree))
        found += row[:, k, None] * left
    found *= (weight - lse).exp()[:, None]
    open_ = weight.isnan()
    if open_.any():
        found[open_] = by_pairs(open_)[:, 0]
    return found[:, None]


def _swept(
    query: Tensor, points: Points, window: Window, mass_powers: int, value_powers: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The powers from a sweep, if it serves."""
    line = points.line
    if (
        line is None
        or window.bandwidth.ndim > 1
        or not sweep_launch.serves(query, line, window.profile, window.bandwidth, exclude)
    ):
        return None
    return sweep_launch.powers(
        query,
        line,
        window.profile,
        window.bandwidth,
        mass_powers,
        value_powers,
        squared=window.squared,
        tolerance=window.tolerance,
        exclude=exclude,
    )


def _attended(query: Tensor, points: Points, window: Window, exclude: Tensor | None) -> State:
    """The state of y alone, by the attention of the device."""
    if window.profile == "epanechnikov":
        score: scores.Score = scores.Epanechnikov(window.bandwidth)
    else:  # the square of a Gaussian is a narrower one
        score = scores.Gaussian(window.bandwidth * (2**-0.5 if window.squared else 1.0))
    return attention_state(query, points.key, points.value, score=score, key_bias=points.weight.log(), exclude=exclude)


def _features(query: Tensor, points: Points, window: Window, degree: int, exclude: Tensor | None) -> State:
    """The state of the features y and, for degree 1, δ, δδᵀ, δy, in one row a query."""
    parts: dict[int, Pooled] = {}
    for rows, cols in _tiles(query, points):
        delta, scores = _scores(query, points, window, rows, cols, exclude)
        share, peak, total = softmax(scores, None)
        state = Pooled(_means(points.value[cols], delta, share, degree), peak, total)
        parts[rows.start] = join(parts[rows.start], state) if rows.start in parts else state
    if not parts:
        return State(query.new_zeros(0, points.columns(degree)), query.new_zeros(0))
    mean, peak, total = (torch.cat(each) for each in zip(*parts.values(), strict=True))
    return State(mean, *log_sum_exp(peak, total))


def _means(value: Tensor, delta: Tensor, share: Tensor, degree: int) -> Tensor:
    """A tile's features, from its keys' values, the differences and the shares."""
    found = [share @ value]
    if degree:
        weighted = share[..., None] * delta
        found += [
            weighted.sum(1),
            torch.einsum("nmc,nme->nce", weighted, delta).flatten(1),
            torch.einsum("nmc,mv->ncv", weighted, value).flatten(1),
        ]
    return torch.cat(found, 1)


def _heights(fit: Tensor, delta: Tensor) -> Tensor:
    """zᵀθ of each pair of a tile, (n, m, v) or (n, 1, v)."""
    return fit[:, :1] + torch.einsum("ncv,nmc->nmv", fit[:, 1:], delta[..., : fit.shape[1] - 1])


def _scores(
    query: Tensor, points: Points, window: Window, rows: slice, cols: slice, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """δ and the logarithm of the weights of a tile."""
    by = 1 / window.of(rows).bandwidth  # as the compiled kernels do
    delta = (points.key[cols] - query[rows, None]) * (by if by.ndim == 1 else by[:, None])
    square = delta.square().sum(-1)
    scores = log_profile(window.profile, square) * (2 if window.squared else 1) + points.weight[cols].log()
    if exclude is not None:
        places = torch.arange(cols.start, cols.stop, device=query.device)
        scores = scores.masked_fill(places == exclude[rows, None], -_INF)
    return delta, scores


def _in_order(
    kernel: Callable[..., Any], query: Tensor, by_query: Mapping[str, Tensor | None], *, window: Window, **more: Any
) -> list[Tensor]:
    """Call a compiled kernel with the queries, and what is given for each, in an order where neighbours are near."""
    order = torch.from_numpy(spatial_order(query.numpy()))
    ordered = {name: each if each is None else each[order] for name, each in by_query.items()}
    found = kernel(query[order], **ordered, window=window.of(order), **more)
    found = found if isinstance(found, tuple) else (found,)
    return [torch.empty_like(each).index_copy_(0, order, each) for each in found]


def _tiles(query: Tensor, points: Points) -> Iterator[tuple[slice, slice]]:
    queries, keys = len(query), len(points.key)
    pairs = max(1, _TILE // max(1, points.key.shape[1], points.value.shape[1]))
    rows = max(1, min(queries, int(pairs**0.5)))
    cols = max(1, min(keys, pairs // rows))
    for i in range(0, queries, rows):
        for j in range(0, keys, cols):
            yield slice(i, min(i + rows, queries)), slice(j, min(j + cols, keys))
