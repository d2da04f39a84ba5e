"""Local moments on a CPU: how points and windows become what the compiled kernels of `kernel` read."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.engine.record import BYTES, NUMPY, Call, up
from dikkat.cpu.moments.record import BINS, CALL, GROUP, PRICES, TILE, WINDOWS

# Queries of a task, which look at the same tiles; and fewer, where most tiles are out of reach of most queries.
_ROWS, _FEW_ROWS = 32, 8
# Numbers that all sums of a task take.
_SUMS = 2**15
# The most operations of a task, about a tenth of a second of a core; operations of a pair beside its columns.
_TASK, _PAIR = 2**28, 16
# Smaller relative weights, as powers of 2, are 0 in the type.
_LEAST = {torch.float32: -150.0, torch.float64: -1075.0}

_watcher: ContextVar[Callable[[int], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Callable[[int], None]) -> Iterator[None]:
    """Report progress to a function: how many more pairs of a query and a key are done."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def told(parts: Iterator[int], rows: int, queries: int, keys: int) -> None:
    """Do all parts of a call, whose tasks are so many rows each; who watches hears of the pairs."""
    watcher, seen = _watcher.get(), 0
    for done in parts:
        if watcher is not None:
            watcher((min(done * rows, queries) - seen) * keys)
            seen = done * rows


@dataclass(frozen=True)
class Tiles:
    """Keys, values and weights in tiles, feature by feature, and the boxes around the tiles' keys.

    Attributes:
        key: (tiles, d, keys of a tile).
        value: (tiles, v, keys of a tile).
        weight: (tiles, keys of a tile); 0 beyond the last key.
        low: (d, tiles, and perhaps some more): the least of each feature; ∞ beyond the last tile.
        high: Likewise, the largest; −∞.
        group_low: (d, groups, and perhaps some more): likewise of groups of tiles.
        group_high: Likewise.
        mass: (tiles,), the sum of each one's weights.
    """

    key: Tensor
    value: Tensor
    weight: Tensor
    low: Tensor
    high: Tensor
    group_low: Tensor
    group_high: Tensor
    mass: Tensor


def runs(tensor: Tensor) -> bool:
    """Whether the compiled kernels take tensors of this kind."""
    return tensor.dtype in NUMPY and not addresses.obstacles([tensor])


def tiles(key: Tensor, value: Tensor, weight: Tensor) -> Tiles:
    """Keys (m, d), values (m, v) and weights (m,), neighbours near each other, in tiles."""
    lanes = BYTES // key.itemsize
    wide = TILE * lanes
    count = -(-len(key) // wide)
    more = count * wide - len(key)
    # The last tile is padded with one of its own keys, which does not stretch its box.
    keys = torch.cat([key, key[-1:].expand(more, -1)]).reshape(count, wide, key.shape[1])
    values, weights = (torch.nn.functional.pad(t, (*(0, 0) * (t.ndim - 1), 0, more)) for t in (value, weight))
    low, high = (extreme.mT for extreme in (keys.amin(1), keys.amax(1)))
    groups = torch.arange(0, count, GROUP)
    ends = (groups + GROUP).clamp(max=count)
    lengths = ends - groups
    group_low, group_high = (
        torch.segment_reduce(each.mT.contiguous(), how, lengths=lengths).mT
        for each, how in ((low, "min"), (high, "max"))
    )
    low, group_low = (_to_lanes(each, lanes, math.inf) for each in (low, group_low))
    high, group_high = (_to_lanes(each, lanes, -math.inf) for each in (high, group_high))
    weights = weights.reshape(count, wide)
    values = values.reshape(count, wide, value.shape[1]).mT.contiguous()
    return Tiles(keys.mT.contiguous(), values, weights, low, high, group_low, group_high, weights.sum(1))


def _to_lanes(boxes: Tensor, lanes: int, end: float) -> Tensor:
    """One side of boxes (d, count), filled up to whole vectors."""
    return torch.nn.functional.pad(boxes, (0, up(boxes.shape[1], lanes) - boxes.shape[1]), value=end).contiguous()


def moments(
    query: Tensor, points: Tiles, profile: str, bandwidth: Tensor, *, squared: bool, tolerance: float, degree: int,
    exclude: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The means of y and, for degree 1, of δ, δδᵀ and δy, a row a query; and the logarithms of what they weigh."""
    size, values = points.key.shape[1], points.value.shape[1]
    columns = 1 + values + degree * (size + size * (size + 1) // 2 + size * values)
    call = _Call(query, points, profile, bandwidth, squared, tolerance, degree, exclude)
    found = call.average(columns)
    lse, means = found[:, 0] * math.log(2), found[:, 1:]
    if not degree:
        return means, lse
    # Undo the kernel's order, feature by feature, and its unit.
    value, rest = means[:, :values], means[:, values:]
    offset, spread = query.new_empty(len(query), size), query.new_empty(len(query), size, size)
    cross = query.new_empty(len(query), size, values)
    start = 0
    for c in range(size):
        offset[:, c] = rest[:, start]
        above = rest[:, start + 1 : start + 1 + size - c]
        spread[:, c, c:], spread[:, c:, c] = above, above
        start += 1 + size - c
        cross[:, c] = rest[:, start : start + values]
        start += values
    unit = call.unit
    return torch.cat([value, offset / unit, spread.flatten(1) / unit**2, cross.flatten(1) / unit], 1), lse


def sensitivity(
    query: Tensor, points: Tiles, bandwidth: Tensor, lse: Tensor, row: Tensor, fit: Tensor, *, tolerance: float,
    exclude: Tensor | None,
) -> Tensor:  # fmt: skip
    """Σ_j w_j δ_jc² (u·z_j)(y_j − z_jᵀθ) with z = (1, δ), (n, d, v): u is a `row`, θ a `fit`."""
    size, values = points.key.shape[1], points.value.shape[1]
    call = _Call(query, points, "gaussian", bandwidth, False, tolerance, int(row.shape[1] > 1), exclude)
    for name, tensor in (("lse", lse / math.log(2)), ("row", call.scaled(row)), ("fit", call.scaled(fit))):
        call.point(name, tensor.contiguous())
    return call.average(size * values).reshape(len(query), size, values) / call.unit**2


class _Call(Call):
    """Points and a window as the record that the kernels read."""

    def __init__(
        self, query: Tensor, points: Tiles, profile: str, bandwidth: Tensor, squared: bool, tolerance: float,
        degree: int, exclude: Tensor | None,
    ) -> None:  # fmt: skip
        super().__init__(CALL, query.dtype)
        gaussian = profile == "gaussian"
        # The unit of δ, in which the Gaussian is 2^−δ².
        self.unit = math.sqrt(0.5 / math.log(2) * (2 if squared else 1)) if gaussian else 1.0
        self.fields |= {
            "queries": len(query),
            "features": points.key.shape[1],
            "values": points.value.shape[1],
            "tiles": points.key.shape[0],
            "boxes": points.low.shape[1],
            "groups": points.group_low.shape[1],
            "degree": degree,
            "squared": squared,
            "stride": bandwidth.shape[1] if bandwidth.ndim > 1 else 0,
            "profile": WINDOWS.index(profile),
            "tolerance": max(math.log2(tolerance) if tolerance else -math.inf, _LEAST[self.dtype]),
        }
        named = {
            "query": query,
            "key": points.key,
            "value": points.value,
            "weight": points.weight.log2() if gaussian else points.weight,
            "low": points.low,
            "high": points.high,
            "group_low": points.group_low,
            "group_high": points.group_high,
            "mass": points.mass,
            "scale": self.unit / bandwidth,
        }
        if exclude is not None:
            named["exclude"] = exclude
        for name, tensor in named.items():
            self.point(name, tensor.contiguous())

    def scaled(self, terms: Tensor) -> Tensor:
        """u or θ for the kernel, where δ is larger by the unit: u·z and zᵀθ come out the same."""
        terms = terms.clone()
        terms[:, 1:] /= self.unit
        return terms

    def average(self, columns: int) -> Tensor:
        """So many numbers of each query."""
        from dikkat.cpu.moments import kernel

        fields, lanes = self.fields, self.lanes
        found = self.new("moments", fields["queries"], columns)
        if not len(found):
            return found
        keys = fields["tiles"] * TILE * lanes
        row_cost = keys * (_PAIR + columns)
        # What is summed up for a task's rows stays near; and Ctrl-C does not wait for a task of a million keys.
        ends = WINDOWS[fields["profile"]] not in ("gaussian", "average")
        most = min(_FEW_ROWS if ends else _ROWS, max(_ROWS // 4, _TASK // row_cost))
        rows = max(1, min(most, len(found), _SUMS // (lanes * columns)))
        fields |= {"rows": rows, "columns": columns}
        wide, padded = TILE * lanes, up(rows, lanes)
        parts = self.run_by_parts(
            kernel.windows, -(-len(found) // rows), _TASK // (rows * row_cost),
            sums=rows * columns * lanes, weights=wide, weighted=wide * max(1, fields["values"]),
            delta=wide * fields["features"], near=fields["boxes"] + fields["groups"] + GROUP, tails=BINS,
            prices=PRICES, peaks=rows, spent=rows, apart=padded, across=padded * fields["features"],
            scales=padded * fields["features"],
        )  # fmt: skip
        told(parts, rows, len(found), keys)
        return found
