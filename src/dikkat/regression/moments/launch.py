"""Local moments on a CPU: the calls of the kernels `kernel` (by pairs) and `sorted_sums` (along one feature)."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dikkat._engine import addresses, record
from dikkat._engine.record import BYTES, NUMPY, CallRecord, Ready, round_up
from dikkat.regression.moments.record import BINS, CALL, GROUP, PRICES, SORTED, TILE

# --- by pairs
# Queries of a task, which share tiles; fewer if most tiles are out of reach of most queries.
_ROWS, _FEW_ROWS = 32, 8
# Numbers in all sums of a task.
_MAX_SUMS = 2**15
# Operations of a task at most, about 0.1 s of a core; operations of a pair in addition to its columns.
_TASK_COST, _PAIR_COST = 2**28, 16
# Cached signatures of small calls for the same keys.
_MAX_READY = 16
# Base-2 logarithm of the smallest relative weight that the dtype can hold.
_LOG_TINY = {torch.float32: -150.0, torch.float64: -1075.0}

# --- along one feature
# Below these counts (keys; Gaussian keys or queries in half a bandwidth) pairs are as fast as sorted sums.
_MIN_KEYS, _MIN_DENSITY = 2048, 16
# Bandwidths between the first and the last query of a run: for the Gaussian, to keep its series short, and for
# Epanechnikov's kernel, whose first query must reach the key at the last query.
_SPANS = 0.5, 0.9
# Queries of a task; tasks of a call at most, because each task begins a new run.
_SORTED_ROWS, _SORTED_TASKS = 4096, 64
# The relative error of a weight by the truncated Gaussian series; the minimum weight of a query over the mean key's.
_SERIES_ERROR, _MIN_WEIGHT = 2.0**-53, 0.01
_EPS = 2.0**-52
# 1 − δ² and its square, by powers of δ.
_POLYNOMIAL, _SQUARE = [1.0, 0.0, -1.0], [1.0, 0.0, -2.0, 0.0, 1.0]

_LEAF_POINTS = 64  # leaves of so many points need no order

_observer: ContextVar[Callable[[int], None] | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Callable[[int], None]) -> Iterator[None]:
    """Report progress to `observer`: each call passes the number of newly finished pairs of a query and a key."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


Profile = Literal["gaussian", "epanechnikov"]


@dataclass(frozen=True)
class Window:
    """A kernel with its bandwidth, and the weight of distant keys that may be omitted."""

    profile: Profile  # K as a function of the distance: a kernel of `dikkat.scores`
    bandwidth: Tensor  # (d,), σ in the units of the keys; or (n, d), a σ for each query
    squared: bool = False  # whether the kernel is K²
    tolerance: float = 0.0  # the share of a query's weight that may be omitted; 0 omits only zeros of the dtype

    def of(self, queries: Any) -> Self:
        """Return the window of the queries at an index."""
        return self if self.bandwidth.ndim == 1 else replace(self, bandwidth=self.bandwidth[queries])


@dataclass(frozen=True)
class Tiles:
    """Keys, values and weights in tiles, by feature, and the boxes around the tiles' keys.

    Boxes beyond the last tile fill the last vector and are from ∞ to −∞.
    """

    key: Tensor  # (tiles, d, keys of a tile)
    value: Tensor  # (tiles, v, keys of a tile)
    weight: Tensor  # (tiles, keys of a tile); 0 beyond the last key
    low: Tensor  # (d, boxes): the least of each feature
    high: Tensor  # (d, boxes): the largest
    group_low: Tensor  # (d, boxes of groups): the least in a group of tiles
    group_high: Tensor  # (d, boxes of groups): the largest
    mass: Tensor  # (tiles,), the sum of each tile's weights
    ready: dict[tuple[Any, ...], Ready] = field(default_factory=dict, repr=False)  # small calls, by signature


@dataclass(frozen=True)
class Line:
    """Keys of one feature in float64, sorted."""

    key: Tensor  # (m,), ascending
    value: Tensor  # (v, m)
    weight: Tensor  # (m,)
    total: float  # the sum of the weights


def runs(tensor: Tensor) -> bool:
    """Return True if the compiled kernels accept the tensor."""
    return tensor.is_cpu and tensor.dtype in NUMPY and not addresses.numba_obstacles()


def spatial_order(points: NDArray[Any]) -> NDArray[np.intp]:
    """Return an order of points (m, d) with neighbours mostly near each other: sorted, or by a k-d tree's leaves."""
    from scipy.spatial import cKDTree

    if points.shape[1] == 1:
        return points[:, 0].argsort(kind="stable")
    if len(points) <= _LEAF_POINTS:
        return np.arange(len(points))
    size = points.std(0)
    scaled = points / np.where(size > 0, size, 1)
    return np.asarray(cKDTree(scaled, leafsize=_LEAF_POINTS, compact_nodes=False).indices)


def tiles(key: Tensor, value: Tensor, weight: Tensor) -> Tiles:
    """Return tiles of keys (m, d), values (m, v) and weights (m,), which are in `spatial_order`."""
    lanes = BYTES // key.itemsize
    tile_keys = TILE * lanes
    count = -(-len(key) // tile_keys)
    padding = count * tile_keys - len(key)
    # The last tile is padded with one of its own keys, which does not stretch its box.
    keys = torch.cat([key, key[-1:].expand(padding, -1)]).reshape(count, tile_keys, key.shape[1])
    values, weights = (torch.nn.functional.pad(t, (*(0, 0) * (t.ndim - 1), 0, padding)) for t in (value, weight))
    groups = torch.arange(0, count, GROUP)
    lengths = (groups + GROUP).clamp(max=count) - groups
    boxes = []
    for extreme, reduction, fill in ((keys.amin(1), "min", math.inf), (keys.amax(1), "max", -math.inf)):
        for bound in (extreme, torch.segment_reduce(extreme, reduction, lengths=lengths)):
            filler = round_up(len(bound), lanes) - len(bound)
            boxes.append(torch.nn.functional.pad(bound.mT, (0, filler), value=fill).contiguous())
    low, group_low, high, group_high = boxes
    weights = weights.reshape(count, tile_keys)
    values = values.reshape(count, tile_keys, value.shape[1]).mT.contiguous()
    return Tiles(keys.mT.contiguous(), values, weights, low, high, group_low, group_high, weights.sum(1))


def line(key: Tensor, value: Tensor, weight: Tensor) -> Line | None:
    """Return keys (m, 1), values (m, v) and weights (m,) for sorted sums; None if sorted sums do not apply."""
    is_eligible = key.shape[1] == 1 and key.dtype == torch.float64 and len(key) >= _MIN_KEYS
    if not is_eligible or not bool((key[1:] >= key[:-1]).all()):
        return None
    return Line(key[:, 0].contiguous(), value.mT.contiguous(), weight.contiguous(), float(weight.sum()))


def moments(
    query: Tensor, points: Tiles, window: Window, degree: int, slopes: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return for each query a row of the means of y and, for degree 1, of δ, δδᵀ and δy; and the lse (n,).

    The means of δδᵀ and δy are of the first `slopes` rows.
    """
    size, values = points.key.shape[1], points.value.shape[1]
    columns = 1 + values + degree * (size + _products(slopes, size, values))
    result = _average(query, points, window, exclude, columns, degree=degree, slopes=slopes, held=size)
    lse, means = result[:, 0] * math.log(2), result[:, 1:]
    if not degree:
        return means, lse
    # Undo the kernel's order by feature, and its unit.
    blocks = [wide for c in range(slopes) for wide in (1, size - c, values)]
    value, *cols, rest = means.split([values, *blocks, size - slopes], 1)
    offset, cross = torch.cat([*cols[::3], rest], 1), torch.cat([value[:, :0], *cols[2::3]], 1)
    spread, unit = query.new_empty(len(query), slopes, size), _unit(window)
    for c, upper in enumerate(cols[1::3]):
        spread[:, c, c:], spread[:, c:, c] = upper, upper[:, : slopes - c]
    return torch.cat([value, offset / unit, spread.flatten(1) / unit**2, cross / unit], 1), lse


def fit_lines(
    query: Tensor, points: Tiles, window: Window, exclude: Tensor | None, ridge: Tensor, target: Tensor | None,
    second_ridge: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Fit a local line at each query; the symbols are those of `dikkat.regression.local`.

    Args:
        query: (n, d), sorted.
        points: The keys, values and weights.
        window: The kernel and its bandwidth.
        exclude: (n,), the key that each query does not see, or −1.
        ridge: (n, p), Λ S_0, which shrinks the first p slopes to `target`.
        target: (n, q, v) with q ≥ p, or None for 0. Slopes from p to q equal the target.
        second_ridge: ε.

    Returns:
        lse (n,), log S_0; u (n, 1 + p): the estimate is Σ_j w_j (u·z_j) y_j; θ (n, 1 + q, v), the height and slopes of
        the line of each output.
    """
    slopes, values, limits = ridge.shape[1], points.value.shape[1], torch.finfo(query.dtype)
    held = slopes if target is None else target.shape[1]
    columns = 1 + values + held + _products(slopes, held, values)
    operands = {"ridge": ridge} | ({} if target is None else {"target": target})
    result = _average(
        query, points, window, exclude, columns, 2 + slopes + (1 + held) * values, operands, degree=1, lines=True,
        slopes=slopes, held=held, second_ridge=second_ridge, rounding=32 * limits.eps, far_lse=math.log(limits.tiny),
    )  # fmt: skip
    lse, row, theta = result.split([1, 1 + slopes, (1 + held) * values], 1)
    return lse[:, 0], row, theta.unflatten(1, (1 + held, values))


def _products(slopes: int, held: int, values: int) -> int:
    """Return the number of products δδᵀ, on and above the diagonal, and δy of the first `slopes` coordinates."""
    return slopes * held - slopes * (slopes - 1) // 2 + slopes * values


def sensitivity(
    query: Tensor, points: Tiles, window: Window, lse: Tensor, row: Tensor, fit: Tensor, feature: Tensor,
    exclude: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return Σ_j w_j δ_j² (u·z_j)(y_j − z_jᵀθ) with z = (1, δ), (n, features, v): u is `row`, θ is `fit`.

    `feature` (d,) ascends from 0: δ² is the sum over the coordinates of a feature.
    """
    values, features = points.value.shape[1], int(feature[-1]) + 1
    unit, operands = _unit(window), {"lse": lse / math.log(2), "feature": feature}
    for name, terms in (("row", row.clone()), ("fit", fit.clone())):
        terms[:, 1:] /= unit  # the kernel's δ is larger by the unit, so that u·z and zᵀθ stay equal
        operands[name] = terms
    slopes, held = row.shape[1] - 1, fit.shape[1] - 1
    result = _average(
        query, points, window, exclude, features * values, operands=operands, degree=1, slopes=slopes, held=held
    )
    return result.reshape(len(query), features, values) / unit**2


def _run(call: CallRecord, kernel: Any, tasks: int, first: int, keys: int, **regions: int) -> None:
    """Run all tasks of `rows` queries each, `first` tasks in the first part; report finished pairs to the observer."""
    rows, queries, observer, reported = call.fields["rows"], call.fields["queries"], _observer.get(), 0
    for done in call.run_by_parts(kernel, tasks, first, **regions):
        if observer is not None:
            observer((min(done * rows, queries) - reported) * keys)
            reported = done * rows


def _average(
    query: Tensor, points: Tiles, window: Window, exclude: Tensor | None, columns: int, outputs: int = 0,
    operands: dict[str, Tensor] | None = None, **fields: float,
) -> Tensor:  # fmt: skip
    """Return `columns` numbers for each query, or `outputs` numbers computed from them."""
    from dikkat.regression.moments import kernel

    count, gaussian, lanes = len(query), window.profile == "gaussian", BYTES // query.itemsize
    inputs = {"query": query, "scale": _unit(window) / window.bandwidth, **(operands or {})}
    if exclude is not None:
        inputs["exclude"] = exclude
    (tiles, features, keys), values = points.key.shape, points.value.shape[1]
    keys *= tiles
    row_cost = keys * (_PAIR_COST + columns)
    # The sums of a task stay in the cache, and Ctrl-C does not wait for a task of a million keys.
    max_rows = min(_ROWS if gaussian else _FEW_ROWS, max(_ROWS // 4, _TASK_COST // row_cost))
    rows = max(1, min(max_rows, count, _MAX_SUMS // (lanes * columns)))
    tasks, first = -(-count // rows), _TASK_COST // (rows * row_cost)
    small = 0 < tasks <= first and not record.FENCE
    signature = rows, columns, window.profile, window.squared, window.tolerance, *fields.values(), *(
        (name, tensor.shape, tensor.dtype) for name, tensor in inputs.items()
    )  # fmt: skip
    ready = points.ready.get(signature) if small else None
    if ready is None:
        call = CallRecord(CALL, query.dtype)
        call.fields |= {
            "rows": rows, "queries": count, "features": features, "values": values, "tiles": tiles,
            "boxes": points.low.shape[1], "groups": points.group_low.shape[1], "columns": columns,
            "squared": window.squared, "stride": features if window.bandwidth.ndim > 1 else 0, "gaussian": gaussian,
            "tolerance": max(math.log2(window.tolerance) if window.tolerance else -math.inf, _LOG_TINY[query.dtype]),
            "unit": _unit(window), **fields,
        }  # fmt: skip
        for name in ("key", "value", "low", "high", "group_low", "group_high", "mass"):
            call.point(name, getattr(points, name))
        call.point("weight", points.weight.log2() if gaussian else points.weight)
        block, padded, slopes = TILE * lanes, round_up(rows, lanes), call.fields["slopes"]
        regions = {
            "sums": rows * columns * lanes, "weights": block, "weighted": block * max(1, values),
            "delta": block * features, "distances": call.fields["boxes"] + call.fields["groups"] + GROUP, "tails": BINS,
            "prices": PRICES, "peaks": rows, "spent": rows, "row_distances": padded, "transposed": padded * features,
            "scales": padded * features, "means": columns, "system": slopes**2, "right": slopes * (1 + values),
            "scaling": slopes,
        }  # fmt: skip
        shape = count, outputs or columns
        if not small:
            for name, tensor in inputs.items():
                call.point(name, tensor.contiguous())
            result = call.new("moments", *shape)
            _run(call, kernel.windows, tasks, first, keys, **regions)
            return result
        call.lay_out(**regions)
        if len(points.ready) == _MAX_READY:
            points.ready.clear()
        ready = points.ready[signature] = Ready(call, kernel.windows, tasks, tuple(inputs), {"moments": shape})
    results = cast("list[Tensor]", ready(*inputs.values()))  # None only for operands that are not plain
    if (observer := _observer.get()) is not None:
        observer(count * keys)
    return results[0]


def _unit(window: Window) -> float:
    """Return the unit of δ in which the Gaussian is 2^−δ²."""
    return math.sqrt(0.5 / math.log(2) * (2 if window.squared else 1)) if window.profile == "gaussian" else 1.0


def sorted_sums_are_faster(query: Tensor, points: Line, window: Window, exclude: Tensor | None) -> bool:
    """Return True if sorted sums apply to sorted queries (n, 1) and are faster than pairs."""
    if query.dtype != torch.float64 or not len(query):
        return False
    sigma = float(window.bandwidth)
    queries_are_keys = exclude is not None and len(query) == len(points.key)
    sides = [points.key] if queries_are_keys else [query[:, 0], points.key]
    if window.profile == "gaussian" and any(_density(side, sigma) < _MIN_DENSITY for side in sides):
        return False
    if exclude is None:
        return True
    # Then a query's excluded key is between its two sides.
    ascends = bool((exclude[1:] > exclude[:-1]).all()) and int(exclude[0]) >= 0
    return ascends and bool((points.key[exclude] == query[:, 0]).all())


def _density(numbers: Tensor, sigma: float) -> float:
    """Return the mean number of sorted points within half a bandwidth."""
    cell = ((numbers - numbers[0]) * (2 / sigma)).floor()
    return len(numbers) / (1 + int(torch.count_nonzero(cell[1:] != cell[:-1])))


def powers(
    query: Tensor, points: Line, window: Window, mass_powers: int, value_powers: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log Σ_j W_j K_j at sorted queries (n, 1), means of δ, δ², …, and of y, δ y, … (n, 1 + value_powers, v).

    log Σ_j W_j K_j is −∞ without weight, and NaN if the Gaussian's sums must come from pairs.
    """
    from dikkat.regression.moments import sorted_sums

    call, count, values = CallRecord(SORTED, torch.float64), len(query), points.value.shape[0]
    gaussian, squared = window.profile == "gaussian", window.squared
    # The square of a Gaussian is a narrower Gaussian, whose δ has another unit.
    unit = 2**-0.5 if gaussian and squared else 1.0
    polynomial, span = [1.0] if gaussian else _SQUARE if squared else _POLYNOMIAL, _SPANS[not gaussian]
    limit, order, floor = _series(points, max(window.tolerance, _EPS), span) if gaussian else (1.0, 0, 0.0)
    terms = max(mass_powers, value_powers) + (order if gaussian else len(polynomial))
    columns, rows = 1 + values, max(_SORTED_ROWS, -(-count // _SORTED_TASKS))
    call.fields |= {
        "rows": rows, "queries": count, "keys": len(points.key), "values": values, "order": order,
        "degree": len(polynomial) - 1, "terms": terms, "mass_powers": mass_powers, "value_powers": value_powers,
        "columns": 1 + mass_powers + values * (1 + value_powers) + 2, "gaussian": gaussian, "squared": squared,
        "scale": 1 / (float(window.bandwidth) * unit), "span": span, "limit": limit, "floor": floor,
    }  # fmt: skip
    for name in ("key", "value", "weight"):
        call.point(name, getattr(points, name))
    call.point("query", query[:, 0].contiguous())
    call.point("polynomial", torch.tensor(polynomial, dtype=torch.float64))
    if exclude is not None:
        call.point("exclude", exclude.contiguous())
    result = call.new("powers", count, call.fields["columns"])
    _run(
        call, sorted_sums.sorted_sums, -(-count // rows), 1, len(points.key), sums=columns * terms * call.lanes,
        before=columns * terms, behind=columns * terms, shifted=terms, factors=max(1, order),
    )  # fmt: skip
    mass, value = result[:, 1 : 1 + mass_powers], result[:, 1 + mass_powers : -2]
    value = value.reshape(count, values, 1 + value_powers).mT
    if unit != 1:
        mass = mass * unit ** torch.arange(1.0, mass_powers + 1, dtype=torch.float64)
        value = value * unit ** torch.arange(1.0 + value_powers, dtype=torch.float64)[:, None]
    return result[:, 0], mass, value


def _series(points: Line, tolerance: float, span: float) -> tuple[float, int, float]:
    """Return the Gaussian's reach in bandwidths, the terms of its series, and the minimum weight of a query.

    For a query of that weight, the tolerance covers all keys beyond the reach. Within the reach the series is truncated
    where the remainder, $|ut|^p e^{|ut|}/p!$, is below `_SERIES_ERROR` times the weight, $e^{ut}$.
    """
    mean = points.total / len(points.key)
    limit = math.sqrt(2 * math.log(len(points.key) / (_MIN_WEIGHT * tolerance)))
    farthest = limit + span / 2
    exponent, order = farthest * span / 2, 1
    while order * math.log(exponent) - math.lgamma(order + 1) + 2 * exponent > math.log(_SERIES_ERROR):
        order += 1
    return farthest, order, _MIN_WEIGHT * mean
