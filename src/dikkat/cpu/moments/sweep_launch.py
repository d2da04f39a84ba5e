"""Local moments along one feature: when a sweep serves, and how its calls are made."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dikkat.cpu.engine.record import Call
from dikkat.cpu.moments.launch import told
from dikkat.cpu.moments.record import SWEEP
from dikkat.cpu.scoring import PROFILES

# Fewer keys, and fewer of them or of queries in half a bandwidth of the Gaussian's, are seen pair by pair as fast.
_KEYS, _DENSE = 2048, 16
# Bandwidths between the first and the last query of a run: of the Gaussian, whose series is the shorter, and of others,
# where the first must see the last one's place.
_SPANS = 0.5, 0.9
# Queries of a task; and most tasks of a call, since each begins with a run of its own.
_ROWS, _TASKS = 4096, 64
# A weight's relative error where the Gaussian's series is cut; the share of the mean key's weight that a query must
# meet at least.
_CUT, _MET = 2.0**-53, 0.01
_EPS = 2.0**-52
# On the left of a query and on its right: the kernels that end, by powers of δ; and their squares.
_POLYNOMIALS = {
    ("boxcar", False): ([1.0], [1.0]),
    ("boxcar", True): ([1.0], [1.0]),
    ("epanechnikov", False): ([1.0, 0.0, -1.0], [1.0, 0.0, -1.0]),
    ("epanechnikov", True): ([1.0, 0.0, -2.0, 0.0, 1.0], [1.0, 0.0, -2.0, 0.0, 1.0]),
    ("triangular", False): ([1.0, 1.0], [1.0, -1.0]),
    ("triangular", True): ([1.0, 2.0, 1.0], [1.0, -2.0, 1.0]),
}


@dataclass(frozen=True)
class Line:
    """Keys of one feature in float64, sorted.

    Attributes:
        key: (m,), ascending.
        value: (v, m).
        weight: (m,).
        total: The sum of the weights.
    """

    key: Tensor
    value: Tensor
    weight: Tensor
    total: float


def line(key: Tensor, value: Tensor, weight: Tensor) -> Line | None:
    """Keys (m, 1), values (m, v) and weights (m,) for sweeps; None where these are not for them."""
    if key.shape[1] != 1 or key.dtype != torch.float64 or len(key) < _KEYS or not _is_sorted(key[:, 0]):
        return None
    return Line(key[:, 0].contiguous(), value.mT.contiguous(), weight.contiguous(), float(weight.sum()))


def serves(query: Tensor, points: Line, profile: str, bandwidth: Tensor, exclude: Tensor | None) -> bool:
    """Whether sweeps have the answers to sorted queries (n, 1), and sooner."""
    if profile not in PROFILES or query.dtype != torch.float64 or not len(query):
        return False
    sigma = float(bandwidth)
    if profile == "gaussian" and min(_density(query[:, 0], sigma), _density(points.key, sigma)) < _DENSE:
        return False
    if exclude is None:
        return True
    # Then what a query does not see lies between its two sides.
    ascends = bool((exclude[1:] > exclude[:-1]).all()) and int(exclude[0]) >= 0
    return ascends and bool((points.key[exclude] == query[:, 0]).all())


def powers(
    query: Tensor, points: Line, profile: str, bandwidth: Tensor, mass_powers: int, value_powers: int, *,
    squared: bool, tolerance: float, exclude: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What a kernel weighs about sorted queries (n, 1), and the means of powers of δ under it.

    Returns:
        log Σ_j W_j K_j, (n,), −∞ where there is none, and NaN where a Gaussian's answer is to be found pair by pair;
        the means of δ, δ², … (n, mass_powers); and those of y, δ y, … (n, 1 + value_powers, v).
    """
    call = _Sweep(query, points, profile, bandwidth, mass_powers, value_powers, squared, tolerance, exclude)
    found, values = call.run_all(), points.value.shape[0]
    mass, value = found[:, 1 : 1 + mass_powers], found[:, 1 + mass_powers : -2]
    value = value.reshape(len(query), values, 1 + value_powers).mT
    if call.unit != 1:
        mass = mass * call.unit ** torch.arange(1.0, mass_powers + 1, dtype=torch.float64)
        value = value * call.unit ** torch.arange(1.0 + value_powers, dtype=torch.float64)[:, None]
    return found[:, 0], mass, value


def _is_sorted(numbers: Tensor) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())


def _density(places: Tensor, sigma: float) -> float:
    """How many sorted places there are in half a bandwidth where there are some."""
    cell = ((places - places[0]) * (2 / sigma)).floor()
    return len(places) / (1 + int(torch.count_nonzero(cell[1:] != cell[:-1])))


class _Sweep(Call):
    def __init__(
        self, query: Tensor, points: Line, profile: str, bandwidth: Tensor, mass_powers: int, value_powers: int,
        squared: bool, tolerance: float, exclude: Tensor | None,
    ) -> None:  # fmt: skip
        super().__init__(SWEEP, torch.float64)
        gaussian, values = profile == "gaussian", points.value.shape[0]
        # The square of a Gaussian is a narrower one, whose δ is in another unit.
        self.unit = 2**-0.5 if gaussian and squared else 1.0
        left, right = ([1.0], [1.0]) if gaussian else _POLYNOMIALS[profile, squared]
        span, order, limit, floor = _SPANS[not gaussian], 0, 1.0, 0.0
        if gaussian:
            limit, order, floor = _series(points, max(tolerance, _EPS), span)
        self.fields |= {
            "queries": len(query),
            "keys": len(points.key),
            "values": values,
            "order": order,
            "degree": len(left) - 1,
            "terms": max(mass_powers, value_powers) + (order if gaussian else len(left)),
            "mass_powers": mass_powers,
            "value_powers": value_powers,
            "columns": 1 + mass_powers + values * (1 + value_powers) + 2,
            "profile": PROFILES.index(profile),
            "squared": squared,
            "closed": profile == "boxcar",
            "scale": 1 / (float(bandwidth) * self.unit),
            "span": span,
            "limit": limit,
            "floor": floor,
        }
        named = {"query": query[:, 0].contiguous(), "key": points.key, "value": points.value, "weight": points.weight}
        named |= {name: torch.tensor(each, dtype=torch.float64) for name, each in (("left", left), ("right", right))}
        if exclude is not None:
            named["exclude"] = exclude.contiguous()
        for name, tensor in named.items():
            self.point(name, tensor)

    def run_all(self) -> Tensor:
        """(queries, columns)."""
        from dikkat.cpu.moments import sweep

        fields, columns = self.fields, 1 + self.fields["values"]
        count, terms = fields["queries"], fields["terms"]
        found = self.new("powers", count, fields["columns"])
        rows = fields["rows"] = max(_ROWS, -(-count // _TASKS))
        sizes = {"sums": columns * terms * self.lanes, "before": columns * terms, "behind": columns * terms}
        parts = self.run_by_parts(
            sweep.sweeps, -(-count // rows), 1, **sizes, shifted=terms, factors=max(1, fields["order"])
        )
        told(parts, rows, count, fields["keys"])
        return found


def _series(points: Line, tolerance: float, span: float) -> tuple[float, int, float]:
    """How far the Gaussian is looked at, in bandwidths; its terms; and the least weight that a query must have met.

    What lies beyond weighs at most as much as the tolerance allows a query of that weight. Within, the series is cut
    where what is left of it, $|ut|^p e^{|ut|}/p!$, is below `_CUT` of the weight, $e^{ut}$.
    """
    mean = points.total / len(points.key)
    limit = math.sqrt(2 * math.log(len(points.key) / (_MET * tolerance)))
    farthest = limit + span / 2
    exponent, order = farthest * span / 2, 1
    while order * math.log(exponent) - math.lgamma(order + 1) + 2 * exponent > math.log(_CUT):
        order += 1
    return farthest, order, _MET * mean
