"""Predictions at a given bandwidth: whether all agree, how exact they are, how fast.

Who is timed starts from the arrays each time: nothing that one call found out is left for the next.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.kit.peers import SDPA
from benchmarks.kit.report import spread
from benchmarks.regression import formulas
from benchmarks.regression.contest import Entrant, Plan, Record, contest, failure
from benchmarks.regression.data import Data, cube, reach
from benchmarks.regression.peers import (
    CDIST,
    FDA,
    ORDERS,
    OURS,
    STATSMODELS,
    FirstPrediction,
    Order,
    Pool,
    chunked_cdist,
    differences,
    fda_regression,
    keops_compiled,
    ours,
    ours_anew,
    sdpa,
    statsmodels_predictions,
    statsmodels_regression,
)

Array = np.ndarray
AGREE = 1e-6
# An answer in float32 that is farther off, as a share of the values' range, has no speed.
OFF = 1e-5
# Queries whose answer is also computed in float64.
SAMPLE = 500
SHARE, TOLERANCE = 0.01, 1e-6
PLAIN = "plain differences"
ALL, BOUNDED = "gaussian, all keys", "gaussian, 1 %, tolerance 1e-6"
BOUNDED_WIDE = f"{BOUNDED}, float64"
ALL_COMPACT, COMPACT = "epanechnikov, all keys", "epanechnikov, 1 %"


def exact(order: Order) -> Callable[[Array, Array, Array, Array], Array]:
    return {"constant": formulas.constant, "linear": formulas.linear}[order]


def farthest(answer: Array, right: Array) -> float:
    """The largest difference; NaN where there is a NaN."""
    return float(np.max(np.abs(np.asarray(answer, float) - right)))


# Agreement -----------------------------------------------------------------------------------------------------------


def agreement(plan: Plan) -> Iterator[Record]:
    """Of the same bandwidth, in float64: the largest difference from the formula, and between the two libraries."""
    count, queries = plan.size(1_000, 60), plan.size(300, 20)
    for size, bandwidth in ((1, [0.05]), (3, [0.2, 0.25, 0.3])):
        data, query, width = cube(count, size), cube(queries, size, seed=1).key, np.array(bandwidth)
        for order in ORDERS:
            right = exact(order)(query, *data, width)
            came = {
                OURS: ours(data, width, order=order, ridge=0).predict(query),
                STATSMODELS: statsmodels_predictions(statsmodels_regression(data, width, order), query),
            }
            facts = {"order": order, "d": size, "keys": count, "queries": queries, "bandwidth": bandwidth}
            yield facts | {
                "largest_value": float(np.abs(data.value).max()),
                "between": farthest(came[OURS], came[STATSMODELS]),
                "from_formula": {who: farthest(answer, right) for who, answer in came.items()},
            }


# Dense ---------------------------------------------------------------------------------------------------------------


def dense(plan: Plan) -> Iterator[Record]:
    """Every key counts for every query: σ is the range of the keys. Then errors alone, of smaller bandwidths."""
    count = plan.size(100_000, 1_500)
    data, query = cube(count, 3, "float32"), cube(count, 3, "float32", seed=1).key
    ways: dict[str, Pool] = {SDPA: sdpa, CDIST: chunked_cdist}
    compiled: dict[str, float] = {}
    try:
        more, compiled = keops_compiled(data)
        ways |= more
        absent = []
    except Exception as error:  # no compiler, or none that it likes
        absent = [{"what": "speed", "who": "KeOps", "not_run": failure(error)}]
    own = judged(data, query, 1.0, plan)
    entrants = [Entrant(OURS, ours_anew(data, query, 1.0, tolerance=0), own)]
    for who, way in ways.items():
        facts = {"compile_seconds": compiled[who]} if who in compiled else {}
        entrants.append(Entrant(who, partial(way, query, *data, 1.0), own, facts))
    common = {"keys": count, "queries": count, "d": 3, "dtype": "float32", "range_over_bandwidth": 1}
    yield from ({"what": "speed", **common, **record} for record in contest(entrants))
    yield from absent
    yield from errors(plan, ways)


def errors(plan: Plan, ways: dict[str, Pool]) -> Iterator[Record]:
    """The largest error of some queries, and what the design allows: 2 × plain PyTorch's + 4·eps·max|y|."""
    keys, queries = plan.size(100_000, 1_000), plan.size(SAMPLE, 50)

    def of_ours(query: Array, key: Array, value: Array, bandwidth: float) -> Array:
        return np.asarray(ours((key, value), bandwidth, tolerance=0).predict(query))

    for size, ratio in ((3, 10), (3, 1000), (1, 1000)):
        data, query = cube(keys, size, "float32"), cube(queries, size, "float32", seed=1).key
        right = formulas.constant(query, *data, np.array(1 / ratio))
        plain = farthest(differences(query, *data, 1 / ratio), right)
        allowed = 2 * plain + 4 * float(np.finfo(np.float32).eps) * float(np.abs(data.value).max())
        common = {
            "what": "error",
            "allowed": allowed,
            "d": size,
            "range_over_bandwidth": ratio,
            "keys": keys,
            "queries": queries,
        }
        for who, way in {PLAIN: differences, OURS: of_ours, **ways}.items():
            record = {**common, "dtype": "float32", "who": who}
            try:
                answer = way(query, *data, 1 / ratio)
                yield record | {"error": _or_none(farthest(answer, right)), "not_finite": _bad(answer)}
            except Exception as error:
                yield record | {"not_run": failure(error)}


def judged(
    data: Data, query: Array, bandwidth: float, plan: Plan, kernel: str = "gaussian", off: float = OFF
) -> Callable[[Array], Record]:
    """A judge of some of the answers."""
    some = np.linspace(0, len(query) - 1, plan.size(SAMPLE, 50)).astype(int)
    right = formulas.constant(query[some], *data, np.array(bandwidth), kernel)
    return partial(judge, some, right, float(np.ptp(data.value)), off)


def judge(some: Any, right: Array, span: float, off: float, answer: Array) -> Record:
    """How far some of the answers are from the right ones, as a share of the values' range, and whether too far."""
    error = farthest(answer[some], right) / span
    record: Record = {"error_of_range": _or_none(error)}
    return record if error <= off else record | {"not_run": "disagrees with float64"}


def _or_none(number: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return number if np.isfinite(number) else None


def _bad(answer: Array) -> int:
    return int(np.size(answer) - np.isfinite(answer).sum())


# Narrow --------------------------------------------------------------------------------------------------------------


def narrow(plan: Plan) -> Iterator[Record]:
    """A bandwidth that reaches a hundredth of the keys, beside one that reaches all; and the Epanechnikov kernel."""
    count = plan.size(100_000, 3_000)
    data, query = cube(count, 3, "float32"), cube(count, 3, "float32", seed=1).key
    radius, width = reach(SHARE, 3, TOLERANCE)
    some = query[: plan.size(SAMPLE, 50)]
    keys, weight = formulas.reach(some, data.key, width, radius)
    common = {"keys": count, "queries": count, "d": 3}
    yield {
        "what": "reach",
        **common,
        "radius": radius,
        "bandwidth": width,
        "share_of_keys": keys,
        "share_of_weight_beyond": 1 - weight,
    }
    entrants, firsts = [], {}
    for who, kernel, bandwidth, tolerance, dtype in (
        (ALL, "gaussian", 1.0, 0.0, "float32"),
        ("gaussian, 1 %, tolerance 0", "gaussian", width, 0.0, "float32"),
        (BOUNDED, "gaussian", width, TOLERANCE, "float32"),
        # Where rounding does not hide what was left out: at most the tolerance.
        (BOUNDED_WIDE, "gaussian", width, TOLERANCE, "float64"),
        (ALL_COMPACT, "epanechnikov", 2.0, 0.0, "float32"),
        (COMPACT, "epanechnikov", radius, 0.0, "float32"),
    ):
        wide, places = Data(*(array.astype(dtype) for array in data)), query.astype(dtype)
        first = firsts[who] = FirstPrediction(wide, places, bandwidth, kernel=kernel, tolerance=tolerance)
        facts = {"kernel": kernel, "bandwidth": bandwidth, "tolerance": tolerance, "dtype": dtype}
        off = tolerance + (OFF if dtype == "float32" else 0.0)
        own = judged(wide, places, bandwidth, plan, kernel, off)
        entrants.append(Entrant(who, first.predict, own, facts, before=first.fit))
    for record in contest(entrants):
        yield {"what": "speed", **common, **record, "fit_seconds": spread(firsts[record["who"]].fit_seconds)}


# Linear, and for scale -----------------------------------------------------------------------------------------------


def linear(plan: Plan) -> Iterator[Record]:
    """Orders side by side at the large size, and everybody at one that everybody can."""
    count = plan.size(100_000, 1_500)
    data, query = cube(count, 3, "float32"), cube(count, 3, "float32", seed=1).key
    some = np.linspace(0, count - 1, plan.size(50, 10)).astype(int)
    entrants = []
    for order in ORDERS:
        right = exact(order)(query[some], *data, np.ones(3))
        own = partial(judge, some, right, float(np.ptp(data.value)), 10 * OFF)
        entrants.append(Entrant(order, ours_anew(data, query, 1.0, order=order, ridge=0, tolerance=0), own))
    common = {"what": "orders", "keys": count, "queries": count, "d": 3, "dtype": "float32"}
    yield from ({**common, "order": record["who"], **record, "who": OURS} for record in contest(entrants))
    yield from _for_scale(plan)


def _for_scale(plan: Plan) -> Iterator[Record]:
    """In float64, with statsmodels and scikit-fda, who hold a matrix, or go query by query."""
    keys, queries, width = plan.size(10_000, 300), plan.size(1_000, 40), 0.2
    data, query = cube(keys, 3), cube(queries, 3, seed=1).key
    for order in ORDERS:
        right = exact(order)(query, *data, np.full(3, width))
        own = partial(judge, slice(None), right, float(np.ptp(data.value)), AGREE)
        entrants = [
            Entrant(OURS, ours_anew(data, query, width, order=order, ridge=0, tolerance=0), own),
            Entrant(STATSMODELS, partial(_statsmodels, data, width, order, query), own),
            Entrant(FDA, partial(_fda, data, width, order, query), own),
        ]
        common = {"what": "scale", "keys": keys, "queries": queries, "d": 3, "dtype": "float64", "order": order}
        yield from (common | record for record in contest(entrants))


def _statsmodels(data: Data, width: float, order: Order, query: Array) -> Array:
    return statsmodels_predictions(statsmodels_regression(data, np.full(data.key.shape[1], width), order), query)


def _fda(data: Data, width: float, order: Order, query: Array) -> Array:
    return np.asarray(fda_regression(data, width, order).predict(query))
