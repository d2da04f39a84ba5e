"""Bandwidths that are chosen: how fast, how good, whether they are bandwidths at all; and R² in folds."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.kit.report import spread
from benchmarks.regression import formulas
from benchmarks.regression.contest import LONGEST, Entrant, Plan, Record, attempt, contest, two_at_a_time
from benchmarks.regression.data import CURVES, TABLES, Data, curve, problem
from benchmarks.regression.peers import (
    FDA,
    ORDERS,
    OURS,
    STATSMODELS,
    Order,
    fda_bandwidth,
    ours,
    statsmodels_bandwidth,
    statsmodels_predictions,
    statsmodels_regression,
    statsmodels_worst,
)

Array = np.ndarray

# Leave-one-out -------------------------------------------------------------------------------------------------------

# Its search is among given numbers: so many, of Silverman's bandwidth, evenly in the logarithm.
CANDIDATES = (0.05, 2.0, 12)


def bandwidth(plan: Plan) -> Iterator[Record]:
    """Seconds until there is a leave-one-out bandwidth, and its error by the formula."""
    for count in (plan.size(1_000, 60), plan.size(10_000, 120)):
        for name in CURVES:
            yield from _bandwidths(name, count, held=not plan.quick and count > 1_000)


def _bandwidths(name: str, count: int, held: bool) -> Iterator[Record]:
    data = curve(name, count)
    common = {"curve": name, "points": count}

    def judge(width: Array) -> Record:
        if not is_bandwidth(width):
            return {"not_run": f"bandwidth {width[0]}"}
        return {"bandwidth": float(width[0]), "left_out_error": formulas.left_out(*data, width)}

    ours(data, "loo")  # what is compiled at first
    entrants = [
        Entrant(OURS, lambda: fitted(data, "constant"), judge),
        Entrant(STATSMODELS, partial(statsmodels_bandwidth, *data, "constant"), judge),
    ]
    low, high, candidates = CANDIDATES
    among = np.geomspace(low, high, candidates) * silverman(data.key[:, 0])
    # A matrix of all pairs for each candidate, some GB: on one of the large curves, to know.
    if held and name != next(iter(CURVES)):
        yield {**common, "who": FDA, "not_run": "too slow: done for one curve of this size"}
    else:
        entrants.append(Entrant(FDA, partial(fda_bandwidth, *data, among), judge, {"candidates": candidates}))
    yield from (common | record for record in contest(entrants))


def silverman(x: Array) -> float:
    return float(1.06 * x.std() * len(x) ** -0.2)


def fitted(data: Data, order: Order) -> Array:
    from dikkat.regression import NadarayaWatson

    return np.asarray(NadarayaWatson(bandwidth="loo", order=order, ridge=0).fit(*data).bandwidth_)


def is_bandwidth(width: Array) -> bool:
    return bool(np.all(np.isfinite(width) & (width > 0)))


# Small problems ------------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Array], Any]] = {
    "negative": lambda width: np.any(width < 0),
    "zero": lambda width: np.any(width == 0),
    "infinite": lambda width: np.any(np.isinf(width)),
    "NaN": lambda width: np.any(np.isnan(width)),
}


def problems(plan: Plan) -> Iterator[Record]:
    """Of random small problems, of linear order: how many have a bandwidth that is none."""
    count = plan.size(200, 18)
    numbers = range(count)
    mine = [_outcome(lambda number=number: fitted(problem(number)[1], "linear")) for number in numbers]
    theirs = list(two_at_a_time(their_outcome, [(number,) for number in numbers]))
    for who, outcomes in ((OURS, mine), (STATSMODELS, theirs)):
        for kind in dict.fromkeys(problem(number)[0] for number in numbers):
            of = [outcome for number, outcome in zip(numbers, outcomes, strict=True) if problem(number)[0] == kind]
            yield {"who": who, "kind": kind, "points": 50, **tally(of)}


def their_outcome(number: int) -> str | list[float]:
    return _outcome(lambda: statsmodels_bandwidth(*problem(number)[1], "linear"))


def _outcome(run: Callable[[], Array]) -> str | list[float]:
    """A bandwidth, or why there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, width, why = attempt(run, LONGEST)
    return why if width is None else [float(number) for number in width]  # type: ignore[return-value]


def tally(outcomes: Sequence[str | list[float]]) -> Record:
    """How many are wrong, and in what way; one may be so in several."""
    widths = [np.array(outcome) for outcome in outcomes if not isinstance(outcome, str)]
    whys = [outcome for outcome in outcomes if isinstance(outcome, str)]
    return {
        "problems": len(outcomes),
        "wrong": sum(not is_bandwidth(width) for width in widths) + len(whys),
        **{name: sum(bool(has(width)) for width in widths) for name, has in FAULTS.items()},
        "none": len(whys),
        "reasons": sorted(set(whys)),
    }


# Quality -------------------------------------------------------------------------------------------------------------

FOLDS = 5


class Statsmodels:
    """`KernelReg` with fit and predict."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def fit(self, key: Array, value: Array) -> "Statsmodels":
        self.model = statsmodels_regression((key, value), "cv_ls", self.order)
        return self

    def predict(self, query: Array) -> Array:
        return statsmodels_predictions(self.model, query)


def _ours(order: Order) -> Any:
    from dikkat.regression import NadarayaWatson

    return NadarayaWatson(order=order)


def _searched(model: Any, grid: dict[str, Any]) -> Any:
    """Standardised, and chosen within what it is fitted to."""
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), model)
    name = pipeline.steps[-1][0]
    inner = KFold(FOLDS, shuffle=True, random_state=1)
    return GridSearchCV(pipeline, {f"{name}__{key}": values for key, values in grid.items()}, cv=inner)


def _neighbours() -> Any:
    from sklearn.neighbors import KNeighborsRegressor

    counts = [1, 2, 3, 5, 7, 10, 15, 20, 30, 50]
    return _searched(KNeighborsRegressor(), {"n_neighbors": counts, "weights": ["uniform", "distance"]})


def _ridge() -> Any:
    """It has no intercept, so the values are standardised as well."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.preprocessing import StandardScaler

    grid = {"alpha": np.logspace(-4, 1, 6), "gamma": np.logspace(-3, 1, 9)}
    return TransformedTargetRegressor(_searched(KernelRidge(kernel="rbf"), grid), transformer=StandardScaler())


def _line() -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression()


NEIGHBOURS = "k nearest neighbours"
METHODS: dict[str, Callable[[], Any]] = {
    f"{OURS}, constant": partial(_ours, "constant"),
    f"{OURS}, linear": partial(_ours, "linear"),
    f"{STATSMODELS}, constant": partial(Statsmodels, "constant"),
    f"{STATSMODELS}, linear": partial(Statsmodels, "linear"),
    NEIGHBOURS: _neighbours,
    "kernel ridge": _ridge,
    "linear regression": _line,
}


def quality(plan: Plan) -> Iterator[Record]:
    """R² in the folds, which are the same for all; whatever is chosen is chosen within the other folds."""
    for order in ORDERS:
        ours(curve("sine", 60), "loo", order=order)  # what is compiled at first
    for table in plan.size(list(TABLES), ["Friedman 2", "Engel"]):
        for method in METHODS:
            record = {"table": table, "method": method, **_scored(method, table, plan)}
            said = record.get("not_run") or f"{record['r2']['mean']:.3f}"
            print(f"  {table}, {method}: {said}", flush=True)
            yield record


def _scored(method: str, table: str, plan: Plan) -> Record:
    tasks = [(method, table, fold, plan) for fold in range(FOLDS)]
    if not method.startswith(STATSMODELS):
        return summary([score(*task) for task in tasks])
    data = loaded(table, plan)
    inside = np.arange(len(data.value)) % FOLDS == 0
    order = next(order for order in ORDERS if method.endswith(order))
    worst = statsmodels_worst((data.key[~inside], data.value[~inside]), order)
    if worst > plan.patience:
        return {"not_run": f"too slow: fits of up to {worst:.0f} s are to be expected"}
    return summary(list(two_at_a_time(score, tasks)))


def loaded(table: str, plan: Plan) -> Data:
    """In an order that has nothing to do with the rows' own."""
    data = TABLES[table]()
    order = np.random.default_rng(0).permutation(len(data.value))[: plan.size(len(data.value), 60)]
    return Data(data.key[order], data.value[order])


def score(method: str, table: str, fold: int, plan: Plan) -> Record:
    """Of one fold: R², the seconds of fitting and predicting, and how many predictions were no numbers.

    For those stands the mean of what was learnt from: a NaN is no R².
    """
    data = loaded(table, plan)
    inside = np.arange(len(data.value)) % FOLDS == fold
    key, value, right = data.key[~inside], data.value[~inside], data.value[inside]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit_seconds, model, why = attempt(lambda: METHODS[method]().fit(key, value), LONGEST)
        if model is None:
            return {"why": why}
        predict_seconds, came, why = attempt(lambda: model.predict(data.key[inside]), LONGEST)
    if came is None:
        return {"why": why}
    finite = np.isfinite(came)
    left = right - np.where(finite, came, value.mean())
    return {
        "r2": float(1 - np.square(left).sum() / np.square(right - right.mean()).sum()),
        "fit_seconds": fit_seconds,
        "predict_seconds": predict_seconds,
        "not_finite": int((~finite).sum()),
        "rows": len(data.value),
        "columns": data.key.shape[1],
    }


def summary(scores: Sequence[Record]) -> Record:
    """Over the folds; none where one of them has none."""
    whys = [one["why"] for one in scores if "why" in one]
    if whys:
        return {"not_run": f"{len(whys)} of {len(scores)} folds: {whys[0]}"}
    r2 = [one["r2"] for one in scores]
    return {
        "r2": {"mean": float(np.mean(r2)), "min": min(r2), "max": max(r2), "folds": len(r2)},
        "fit_seconds": spread([one["fit_seconds"] for one in scores]),
        "predict_seconds": spread([one["predict_seconds"] for one in scores]),
        "not_finite": sum(one["not_finite"] for one in scores),
        "rows": scores[0]["rows"],
        "columns": scores[0]["columns"],
    }
