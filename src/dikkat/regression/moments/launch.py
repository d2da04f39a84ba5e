"""Local moments on a CPU: the calls of the kernels `kernel` (by pairs) and `sorted_sums` (along one feature)."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dikkat._engine import addresses, record
from dikkat._engine.record import BYTES, NUMPY, CallRecord, Ready, round_up
from dikkat.regression.moments.record import BINS, CALL, GROUP, PRICES, SORTED, TILE

# --- by pairs
# Queries of a task, which look at the same tiles; and fewer, where most tiles are out of reach of most queries.
_ROWS, _FEW_ROWS = 32, 8
# Numbers that all sums of a task take.
_SUMS = 2**15
# The most operations of a task, about a tenth of a second of a core; operations of a pair beside its columns.
_TASK, _PAIR = 2**28, 16
# Signatures of small calls that are kept for some keys.
_READY = 16
# Base-2 logarithm of the smallest relative weight that the dtype can hold.
_LEAST = {torch.float32: -150.0, torch.float64: -1075.0}

# --- along one feature
# With fewer keys, or fewer of them or of queries in half a bandwidth of the Gaussian's, pairs are as fast.
_KEYS, _DENSE = 2048, 16
# Bandwidths between the first and the last query of a run: of the Gaussian, whose series is the shorter, and of
# Epanechnikov's kernel, where the first must see the last one's key.
_SPANS = 0.5, 0.9
# Queries of a task; and most tasks of a call, since each begins with a run of its own.
_SORTED_ROWS, _SORTED_TASKS = 4096, 64
# A weight's relative error where the Gaussian's series is cut; the share of the mean key's weight that a query must
# meet at least.
_CUT, _MET = 2.0**-53, 0.01
_EPS = 2.0**-52
# 1 − δ² and its square, by powers of δ.
_POLYNOMIAL, _SQUARE = [1.0, 0.0, -1.0], [1.0, 0.0, -2.0, 0.0, 1.0]

_NEIGHBOURS = 64  # points, which are near each other anyway

_observer: ContextVar[Callable[[int], None] | None] = ContextVar("observer", default=None)


@contextmanager
def observed(observer: Callable[[int], None]) -> Iterator[None]:
    """Report progress to a function: how many more pairs of a query and a key are done."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


Profile = Literal["gaussian", "epanechnikov"]


@dataclass(frozen=True)
class Window:
    """A kernel and how far it reaches."""

    profile: Profile  # K as a function of the distance: a kernel of `dikkat.scores`
    bandwidth: Tensor  # (d,), σ in the units of the keys; or (n, d), of each query its own
    squared: bool = False  # whether K² is meant
    tolerance: float = 0.0  # the share of a query's whole weight that may be omitted: 0 omits what is 0 in the dtype

    def of(self, queries: Any) -> Self:
        """The window of some of the queries, given as an index."""
        return self if self.bandwidth.ndim == 1 else replace(self, bandwidth=self.bandwidth[queries])


@dataclass(frozen=True)
class Tiles:
    """Keys, values and weights in tiles, feature by feature, and the boxes around the tiles' keys.

    Boxes beyond the last tile, which fill a vector, are from ∞ to −∞.
    """

    key: Tensor  # (tiles, d, keys of a tile)
    value: Tensor  # (tiles, v, keys of a tile)
    weight: Tensor  # (tiles, keys of a tile); 0 beyond the last key
    low: Tensor  # (d, tiles, and perhaps some more): the least of each feature
    high: Tensor  # (d, tiles, and perhaps some more): the largest
    group_low: Tensor  # (d, groups, and perhaps some more): the least in a group of tiles
    group_high: Tensor  # (d, groups, and perhaps some more): the largest
    mass: Tensor  # (tiles,), the sum of each one's weights
    ready: dict[tuple[Any, ...], Ready] = field(default_factory=dict, repr=False)  # small calls, by signature


@dataclass(frozen=True)
class Line:
    """Keys of one feature in float64, sorted."""

    key: Tensor  # (m,), ascending
    value: Tensor  # (v, m)
    weight: Tensor  # (m,)
    total: float  # the sum of the weights


def runs(tensor: Tensor) -> bool:
    """True for tensors that the compiled kernels take."""
    return tensor.is_cpu and tensor.dtype in NUMPY and not addresses.without_numba()


def spatial_order(points: NDArray[Any]) -> NDArray[np.intp]:
    """An order of points (m, d) in which neighbours are mostly near each other: sorted, or a k-d tree's leaves."""
    from scipy.spatial import cKDTree

    if points.shape[1] == 1:
        return points[:, 0].argsort(kind="stable")
    if len(points) <= _NEIGHBOURS:
        return np.arange(len(points))
    size = points.std(0)
    scaled = points / np.where(size > 0, size, 1)
    return np.asarray(cKDTree(scaled, leafsize=_NEIGHBOURS, compact_nodes=False).indices)


def tiles(key: Tensor, value: Tensor, weight: Tensor) -> Tiles:
    """Keys (m, d), values (m, v) and weights (m,), neighbours near each other, in tiles."""
    lanes = BYTES // key.itemsize
    wide = TILE * lanes
    count = -(-len(key) // wide)
    more = count * wide - len(key)
    # The last tile is padded with one of its own keys, which does not stretch its box.
    keys = torch.cat([key, key[-1:].expand(more, -1)]).reshape(count, wide, key.shape[1])
    values, weights = (torch.nn.functional.pad(t, (*(0, 0) * (t.ndim - 1), 0, more)) for t in (value, weight))
    groups = torch.arange(0, count, GROUP)
    lengths = (groups + GROUP).clamp(max=count) - groups
    boxes = []
    for extreme, how, end in ((keys.amin(1), "min", math.inf), (keys.amax(1), "max", -math.inf)):
        for each in (extreme, torch.segment_reduce(extreme, how, lengths=lengths)):
            filler = round_up(len(each), lanes) - len(each)
            boxes.append(torch.nn.functional.pad(each.mT, (0, filler), value=end).contiguous())
    low, group_low, high, group_high = boxes
    weights = weights.reshape(count, wide)
    values = values.reshape(count, wide, value.shape[1]).mT.contiguous()
    return Tiles(keys.mT.contiguous(), values, weights, low, high, group_low, group_high, weights.sum(1))


def line(key: Tensor, value: Tensor, weight: Tensor) -> Line | None:
    """Keys (m, 1), values (m, v) and weights (m,) for sorted sums; None where these are not for them."""
    many = key.shape[1] == 1 and key.dtype == torch.float64 and len(key) >= _KEYS
    if not many or not bool((key[1:] >= key[:-1]).all()):
        return None
    return Line(key[:, 0].contiguous(), value.mT.contiguous(), weight.contiguous(), float(weight.sum()))


def moments(query: Tensor, points: Tiles, window: Window, degree: int, exclude: Tensor | None) -> tuple[Tensor, Tensor]:
    """The means of y and, for degree 1, of δ, δδᵀ and δy, a row a query; and the logarithms of what they weigh."""
    size, values = points.key.shape[1], points.value.shape[1]
    columns = 1 + values + degree * (size + size * (size + 1) // 2 + size * values)
    result = _average(query, points, window, exclude, columns, degree=degree)
    lse, means = result[:, 0] * math.log(2), result[:, 1:]
    if not degree:
        return means, lse
    # Undo the kernel's order, feature by feature, and its unit.
    value, *rest = means.split([values, *(wide for c in range(size) for wide in (1, size - c, values))], 1)
    offset, cross, spread = torch.cat(rest[::3], 1), torch.cat(rest[2::3], 1), query.new_empty(len(query), size, size)
    for c, above in enumerate(rest[1::3]):
        spread[:, c, c:], spread[:, c:, c] = above, above
    unit = _unit(window)
    return torch.cat([value, offset / unit, spread.flatten(1) / unit**2, cross / unit], 1), lse


def fits(
    query: Tensor, points: Tiles, window: Window, exclude: Tensor | None, ridge: Tensor, toward: Tensor | None,
    least: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The lse (n,), u (n, k) and θ (n, k, v) of local lines with Λ S_0 (n, p) toward slopes (n, p, v), and with ε."""
    size, values, limits = points.key.shape[1], points.value.shape[1], torch.finfo(query.dtype)
    terms, columns = 1 + size, 1 + values + size + size * (size + 1) // 2 + size * values
    drawn = {"ridge": ridge} | ({} if toward is None else {"toward": toward})
    result = _average(
        query, points, window, exclude, columns, 1 + terms * (1 + values), drawn, degree=1, lines=True,
        slopes=ridge.shape[1], least=least, rounding=32 * limits.eps, far=math.log(limits.tiny),
    )  # fmt: skip
    lse, row, theta = result.split([1, terms, terms * values], 1)
    return lse[:, 0], row, theta.unflatten(1, (terms, values))


def sensitivity(
    query: Tensor, points: Tiles, window: Window, lse: Tensor, row: Tensor, fit: Tensor, exclude: Tensor | None
) -> Tensor:
    """Σ_j w_j δ_jc² (u·z_j)(y_j − z_jᵀθ) with z = (1, δ), (n, d, v): u is a `row`, θ a `fit`."""
    size, values = points.key.shape[1], points.value.shape[1]
    unit, operands = _unit(window), {"lse": lse / math.log(2)}
    for name, terms in (("row", row.clone()), ("fit", fit.clone())):
        terms[:, 1:] /= unit  # the kernel's δ is larger by the unit: u·z and zᵀθ come out the same
        operands[name] = terms
    degree = int(row.shape[1] > 1)
    result = _average(query, points, window, exclude, size * values, operands=operands, degree=degree)
    return result.reshape(len(query), size, values) / unit**2


def _run(call: CallRecord, kernel: Any, tasks: int, first: int, keys: int, **regions: int) -> None:
    """Run all tasks of `rows` queries each, the first part of so many tasks; an observer hears of the pairs done."""
    rows, queries, observer, seen = call.fields["rows"], call.fields["queries"], _observer.get(), 0
    for done in call.run_by_parts(kernel, tasks, first, **regions):
        if observer is not None:
            observer((min(done * rows, queries) - seen) * keys)
            seen = done * rows


def _average(
    query: Tensor, points: Tiles, window: Window, exclude: Tensor | None, columns: int, wide: int = 0,
    operands: dict[str, Tensor] | None = None, **fields: float,
) -> Tensor:  # fmt: skip
    """So many numbers of each query, or `wide` others that are made of them."""
    from dikkat.regression.moments import kernel

    count, gaussian, lanes = len(query), window.profile == "gaussian", BYTES // query.itemsize
    given = {"query": query, "scale": _unit(window) / window.bandwidth, **(operands or {})}
    if exclude is not None:
        given["exclude"] = exclude
    (tiles, features, keys), values = points.key.shape, points.value.shape[1]
    keys *= tiles
    row_cost = keys * (_PAIR + columns)
    # What is summed up for a task's rows stays near; and Ctrl-C does not wait for a task of a million keys.
    most = min(_ROWS if gaussian else _FEW_ROWS, max(_ROWS // 4, _TASK // row_cost))
    rows = max(1, min(most, count, _SUMS // (lanes * columns)))
    tasks, first = -(-count // rows), _TASK // (rows * row_cost)
    small = 0 < tasks <= first and not record.FENCE
    signature = rows, columns, window.profile, window.squared, window.tolerance, *fields.values(), *(
        (name, each.shape, each.dtype) for name, each in given.items()
    )  # fmt: skip
    ready = points.ready.get(signature) if small else None
    if ready is None:
        call = CallRecord(CALL, query.dtype)
        call.fields |= {
            "rows": rows, "queries": count, "features": features, "values": values, "tiles": tiles,
            "boxes": points.low.shape[1], "groups": points.group_low.shape[1], "columns": columns,
            "squared": window.squared, "stride": features if window.bandwidth.ndim > 1 else 0, "gaussian": gaussian,
            "tolerance": max(math.log2(window.tolerance) if window.tolerance else -math.inf, _LEAST[query.dtype]),
            "unit": _unit(window), **fields,
        }  # fmt: skip
        for name in ("key", "value", "low", "high", "group_low", "group_high", "mass"):
            call.point(name, getattr(points, name))
        call.point("weight", points.weight.log2() if gaussian else points.weight)
        block, padded, slopes = TILE * lanes, round_up(rows, lanes), call.fields["slopes"]
        regions = {
            "sums": rows * columns * lanes, "weights": block, "weighted": block * max(1, values),
            "delta": block * features, "near": call.fields["boxes"] + call.fields["groups"] + GROUP, "tails": BINS,
            "prices": PRICES, "peaks": rows, "spent": rows, "apart": padded, "across": padded * features,
            "scales": padded * features, "means": columns, "system": slopes**2, "right": slopes * (1 + values),
            "by": slopes,
        }  # fmt: skip
        shape = count, wide or columns
        if not small:
            for name, each in given.items():
                call.point(name, each.contiguous())
            result = call.new("moments", *shape)
            _run(call, kernel.windows, tasks, first, keys, **regions)
            return result
        call.lay_out(**regions)
        if len(points.ready) == _READY:
            points.ready.clear()
        ready = points.ready[signature] = Ready(call, kernel.windows, tasks, tuple(given), {"moments": shape})
    made = ready(*given.values())
    assert made is not None  # operands of this room are plain
    if (observer := _observer.get()) is not None:
        observer(count * keys)
    return made[0]


def _unit(window: Window) -> float:
    """The unit of δ, in which the Gaussian is 2^−δ²."""
    return math.sqrt(0.5 / math.log(2) * (2 if window.squared else 1)) if window.profile == "gaussian" else 1.0


def is_sorted_quicker(query: Tensor, points: Line, window: Window, exclude: Tensor | None) -> bool:
    """True where sorted sums have the answers to sorted queries (n, 1), and sooner than pairs."""
    if query.dtype != torch.float64 or not len(query):
        return False
    sigma = float(window.bandwidth)
    every = exclude is not None and len(query) == len(points.key)  # the queries are the keys
    sides = [points.key] if every else [query[:, 0], points.key]
    if window.profile == "gaussian" and any(_density(side, sigma) < _DENSE for side in sides):
        return False
    if exclude is None:
        return True
    # Then the key that is excluded for a query lies between its two sides.
    ascends = bool((exclude[1:] > exclude[:-1]).all()) and int(exclude[0]) >= 0
    return ascends and bool((points.key[exclude] == query[:, 0]).all())


def _density(numbers: Tensor, sigma: float) -> float:
    """The mean number of sorted points within half a bandwidth."""
    cell = ((numbers - numbers[0]) * (2 / sigma)).floor()
    return len(numbers) / (1 + int(torch.count_nonzero(cell[1:] != cell[:-1])))


def powers(
    query: Tensor, points: Line, window: Window, mass_powers: int, value_powers: int, exclude: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums at sorted queries (n, 1): log Σ_j W_j K_j, means of δ, δ², …, and of y, δ y, … (n, 1 + value_powers, v).

    The first is −∞ where there is no weight, and NaN where a Gaussian's is to be found by pairs.
    """
    from dikkat.regression.moments import sorted_sums

    call, count, values = CallRecord(SORTED, torch.float64), len(query), points.value.shape[0]
    gaussian, squared = window.profile == "gaussian", window.squared
    # The square of a Gaussian is a narrower one, whose δ is in another unit.
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
    """The Gaussian's reach in bandwidths; its series' terms; and the least weight that a query must have met.

    Keys beyond weigh at most as much as the tolerance allows a query of that weight. Within, the series is cut
    where what is left of it, $|ut|^p e^{|ut|}/p!$, is below `_CUT` of the weight, $e^{ut}$.
    """
    mean = points.total / len(points.key)
    limit = math.sqrt(2 * math.log(len(points.key) / (_MET * tolerance)))
    farthest = limit + span / 2
    exponent, order = farthest * span / 2, 1
    while order * math.log(exponent) - math.lgamma(order + 1) + 2 * exponent > math.log(_CUT):
        order += 1
    return farthest, order, _MET * mean
