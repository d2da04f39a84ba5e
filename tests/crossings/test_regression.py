"""Every method of the estimators beside every two of their settings: of a fitted model, a loaded one, and a clone.

17,345 cells: estimator × two settings × method × state.

A setting or a method is a line of one of the lists, and so enters all rows. What an answer is to be comes from the
formulas of `slow_regression`, given the bandwidths that were found; or the setting is refused by its name.
"""

import copy
import itertools
import math
import pickle
import re
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from scipy.special import ndtr, softmax, stdtr
from sklearn.base import clone
from sklearn.metrics import r2_score
from sklearn.model_selection import GroupKFold, KFold

from crossings.slow_regression import Slow, band, quantile, widened
from dikkat.regression import (
    KernelClassifier,
    KernelDensity,
    KernelRegressor,
    NadarayaWatson,
    logistic,
    report,
    shapes,
    smooth,
)
from dikkat.regression.diagnostics import among, curve_along, hold_out, leave_out
from regression.dense import short_searches

ROWS, QUERIES, LEVEL, QUANTILES = 19, 3, 0.7, [0.3, 0.5, 0.8]
TOWNS, SIZES = ["Bonn", "Lyon", "Ulm"], ["L", "M", "S"]
WIDTHS = {"a": 0.9, "b": 7.0, "town": 0.4, "size": 0.5, "hour": 5.0}

# What a setting adds to the columns a and b, to the estimator's arguments, or to what it is given.
SETTINGS = {
    "two columns": {},
    "one column": {"without": "b"},
    "constant": {"order": "constant"},
    "epanechnikov": {"kernel": "epanechnikov"},
    "searched": {"bandwidth": "auto", "ridge": "auto"},
    "loo": {"bandwidth": "loo"},
    "silverman": {"bandwidth": "silverman"},
    "no ridge": {"ridge": 0.0},
    "metric": {"metric": "linear"},
    "one direction": {"metric": "linear", "n_components": 1},
    "cv": {"cv": 3},
    "category": {"column": "town"},
    "ordered": {"column": "size"},
    "periodic": {"column": "hour"},
    "weights": {"weighted": True},
    "precision": {"weights": "precision", "weighted": True},
    "two outputs": {"outputs": 2},
    "float32": {"dtype": np.float32},
    "frame": {"frame": True},
    "gaps": {"missing": "indicator", "gaps": True},
    "support": {"support": "of y"},
    "logarithm": {"logarithms": "auto", "bandwidth": "auto", "skewed": True},
}
CLIPPED = {"predict", "confidence", "jackknife+", "local", "split", "quantiles", "plot", "along"}
OF_DATA = {"without", "column", "weighted", "outputs", "dtype", "frame", "gaps", "skewed"}
COLUMNS = {"category", "ordered", "periodic"}
REPORTED = {"two columns", "cv", "frame", "gaps", "precision", "weights"}
DRAWN = {"frame", "gaps", "logarithm", "periodic", "support", "weights"}
SEARCHED = {"searched", "loo", "metric", "one direction", "logarithm"}

# Refused by name, whatever the estimator; the first that holds.
REFUSED_IN_FIT = {
    ("epanechnikov", "category"): "kernel: got 'epanechnikov' with categories",
    ("epanechnikov", "ordered"): "kernel: got 'epanechnikov' with categories",
    ("epanechnikov", "periodic"): "kernel: got 'epanechnikov' with categories",
    ("epanechnikov", "gaps"): "kernel: got 'epanechnikov' with categories",
    ("silverman", "metric"): "metric: got 'linear' with bandwidth='silverman'",
    ("silverman", "one direction"): "metric: got 'linear' with bandwidth='silverman'",
}
_TARGETS = {"jackknife+", "local", "split", "quantiles", "sample"}
_SHAPES = {"derivative", "argmin", "argmax", "difference"}
REFUSED = {
    ("split", "cv"): "method: got 'split', which draws random halves, with cv",
    ("gradient, error", "metric"): "return_std: got True with metric='linear'",
    ("gradient, error", "one direction"): "return_std: got True with metric='linear'",
    ("log_density", "one direction"): "metric: got 1 directions of 2 numeric columns",
    **{("log_density", kind): "X: got ordered or periodic features" for kind in ("ordered", "periodic")},
    **{("plot", setting): "ax: got axes; expected None" for setting in SETTINGS},
    **{(method, "two outputs"): r"got (one of )?2 targets" for method in (*_TARGETS, *_SHAPES, "plot")},
    **{
        (method, setting): "metric: got 'linear'; expected 'diagonal'"
        for method in _SHAPES for setting in ("metric", "one direction")
    },
    ("groups", "two outputs"): "got 2 targets",
    ("report", "two outputs"): "got 2 targets",
    **{(method, "two outputs"): r"y: got shape \(19, 2\)" for method in ("smooth", "smooth, groups")},
}  # fmt: skip

# Cells that are left out, and why.
LEFT_OUT = {
    "a setting twice": "two settings of the same argument exclude each other",
    "loo beside what is no part of a criterion": "it is a search as `searched` is; by folds, the same one",
    "a setting that an estimator has not": "a density has no y, and a classifier no ridge",
    "draws beside a support": "clipped values have no order; tests/regression/test_support.py has them",
    "missing='drop'": "a word of the command's: a frame has `dropna`",
    "a fitted model or a clone that refits": "a loaded one is the same to the last bit, which is checked; each is fits",
    "an argmax of two settings": "it is the argmin of −y",
    "a page beside two settings of the estimate alone": "its numbers are those of `predict` and `jackknife+`",
    "a picture of groups beside settings that do not change pictures": "the estimates are those of `predict`",
    "smooth of several columns, or with groups and a number of blocks": "it has one x, and one `cv`",
    "two settings of which one is searched, held out or in parts": "four searches each; alone they are there",
    "a half of rows with gaps, searched": "where none of its cells is missing it has a column less than the whole",
}
ONCE = {
    "split",
    "hold_out",
    "derivative",
    "argmin",
    "argmax",
    "difference",
    "groups",
    "smooth",
    "smooth, groups",
    "report",
}  # of one state
STATES = ("fitted", "loaded", "cloned")


@pytest.fixture(autouse=True, scope="module")
def searches():
    with short_searches(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "_POINTS", 21)
        yield


def made(estimator, names):
    """The data of settings, and the fitted models."""
    case = SimpleNamespace(
        names=names, columns=["a", "b"], weight=None, outputs=None, dtype=float, frame=False, gaps=False, skewed=False
    )
    given = {}
    for name in names:
        for key, value in SETTINGS[name].items():
            if key == "without":
                case.columns.remove(value)
            elif key == "column":
                case.columns.append(value)
            elif key == "weighted":
                case.weight = np.array([2.0, 1, 3, 1, 0, 1, 2, 1, 1, 3, 1, 1, 2, 1, 1, 1, 0, 1, 2])
            elif key in OF_DATA:
                setattr(case, key, value)
            else:
                given[key] = value
    random = np.random.default_rng(7)
    count = ROWS + QUERIES
    every = {
        "a": random.uniform(0, 3, count), "b": random.uniform(0, 20, count), "town": np.arange(count) % 3,
        "size": np.arange(count) // 2 % 3, "hour": random.uniform(0, 24, count),
    }  # fmt: skip
    every["a"][ROWS:], every["b"][ROWS:] = [0.8, 1.4, 2.2], [7.0, 11, 9]
    a, b = every["a"], every["b"]
    if case.skewed:
        every["a"] = np.exp(1.5 * a)
    cells = np.column_stack([every[name] for name in case.columns]).astype(case.dtype)
    for name, rows in {"a": [3, 8, 13, ROWS + 1], "b": [2, 5, 9, 12, 17, ROWS], "town": [7, 11, 15, ROWS + 2]}.items():
        if case.gaps and name in case.columns:
            cells[rows, case.columns.index(name)] = np.nan
    x, given_cells = np.split(cells, [ROWS])
    y = np.sin(2 * a) + 0.1 * b + 0.5 * every["town"] - 0.3 * every["size"]
    y = (y + 0.1 * random.normal(size=count))[:ROWS]
    case.y = y if case.outputs is None else np.column_stack([y, np.cos(y)])
    if "support" in names:
        given["support"] = (float(case.y.min()), float(case.y.max()))
    wide = 3 if "epanechnikov" in names else 1
    if given.get("metric"):
        given.setdefault("bandwidth", "auto")
    gaps = [name for name in ("a", "b") if case.gaps and name in case.columns]
    case.features = [*case.columns, *(f"{name} is missing" for name in gaps)]
    given.setdefault("bandwidth", [*(WIDTHS[name] * wide for name in case.columns), *[0.3] * len(gaps)])
    position = {name: name if case.frame else j for j, name in enumerate(case.columns)}
    if not case.frame and "town" in position:
        given["categorical_features"] = [position["town"]]
    if not case.frame and "size" in position:
        given["ordered_features"] = [position["size"]]
    if "hour" in position:
        given["periodic_features"] = {position["hour"]: 24}
    case.settings, kind = given, estimator
    if estimator is KernelRegressor:
        given.setdefault("ridge", 0.25)
        kind = NadarayaWatson if given.get("order") == "constant" else KernelRegressor
    if estimator is KernelClassifier:
        case.y = np.where(y > np.median(y), "high", "low")

    def form(cells):
        """X as the user has it, from numbers and indices of levels."""
        if not case.frame:
            return cells
        frame = pd.DataFrame(cells, columns=case.columns)
        for name, levels, ordered in (("town", TOWNS, False), ("size", SIZES, True)):
            if name in case.columns:
                codes = frame[name].fillna(-1).astype(int)
                frame[name] = pd.Categorical.from_codes(codes, levels, ordered=ordered)
        return frame

    case.form, case.given, case.rows, case.query = form, x, form(x), form(given_cells)
    case.x, case.cells = filled(x, x, case), filled(given_cells, x, case)
    case.fresh = kind(**given)
    case.fit = lambda model, rows=slice(None): model.fit(
        form(case.given[rows]), *([] if estimator is KernelDensity else [case.y[rows]]),
        sample_weight=None if case.weight is None else case.weight[rows],
    )  # fmt: skip
    try:
        fitted = case.fit(clone(case.fresh))
    except ValueError as error:
        case.error = str(error)
        return case
    case.error, case.models = None, {"fitted": fitted}
    if hasattr(fitted, "save"):
        with tempfile.TemporaryDirectory() as folder:
            fitted.save(Path(folder) / "model")
            case.models["loaded"] = type(fitted).load(Path(folder) / "model")
    else:
        case.models["loaded"] = pickle.loads(pickle.dumps(fitted))
    case.models["cloned"] = case.fit(clone(case.models["loaded"]))
    for state in ("loaded", "cloned"):
        assert case.models[state].columns_ == fitted.columns_
        for name in ("bandwidth_", "ridge_", "metric_", "X_train_", "y_train_", "folds_"):
            np.testing.assert_array_equal(getattr(case.models[state], name), getattr(fitted, name), err_msg=name)
    case.slow = Slow(fitted)
    return case


def filled(cells, x, case):
    """Numbers where cells are missing: the middle of the known ones, a level more, and a column that says where."""
    counts = np.ones(len(x), int) if case.weight is None else case.weight.astype(int)
    x, cells, more = x.astype(float), cells.astype(float), []
    lost, holes = np.isnan(x), np.isnan(cells)
    for j, name in enumerate(case.columns):
        if lost[:, j].any():
            known = np.repeat(x[~lost[:, j], j], counts[~lost[:, j]])
            cells[holes[:, j], j] = 3 if name == "town" else np.median(known)
            more += [holes[:, j]] * (name != "town")
    return np.column_stack([cells, *more])


def shaped(answer, case):
    return answer if case.outputs else answer[..., 0]


def judged(predicted, case, rows):
    """The error and R² of predictions of rows."""
    y, weight = case.slow.y[rows], case.slow.weight[rows]
    variance = np.average((case.slow.y - np.average(case.slow.y, 0, case.slow.weight)) ** 2, 0, case.slow.weight)
    error = np.average((y - predicted) ** 2, 0, weight)
    return [error.mean(), (1 - error / variance).mean()]


def within(predicted, case):
    """Predictions in the support."""
    return predicted.clip(*case.fresh.support) if "support" in case.names else predicted


def of_left_out(found, case):
    return [*found.predicted.reshape(ROWS, -1)[case.slow.there].ravel(), found.error, found.r2]


def expected_left_out_rows(case):
    return within(case.slow.y - case.slow.left_out[0], case)


def expected_left_out(case):
    predicted = expected_left_out_rows(case)
    return [*predicted.ravel(), *judged(predicted, case, slice(None))]


def refitted(case, rows):
    """A fit to some rows, by the same settings and the rows' own folds."""
    model, fitted = clone(case.fresh), case.models["fitted"]
    if case.gaps:  # the levels are those of all rows
        return Slow(fitted._refit(fitted._rows.take(rows)))
    if case.slow.folds is not None:
        own = [(np.flatnonzero(f[rows] == 1), np.flatnonzero(f[rows] == 2)) for f in fitted.folds_]
        model.set_params(cv=[each for each in own if len(each[0]) and len(each[1])])
    return Slow(case.fit(model, rows))


def at_gaps(x, fit):
    """Cells with the medians of a fit's own rows where they are missing."""
    x = x.copy()
    for j, column in enumerate(fit.model.columns_):
        if column.is_gap:
            x[x[:, j] == 1, int(column.origin)] = fit.model.columns_[int(column.origin)].levels[0]
    return x


def expected_hold_out(case):
    predicted = np.full((ROWS, case.slow.y.shape[1]), np.nan)
    for rest, held in KFold(2).split(case.x):
        fit = refitted(case, rest)
        predicted[held] = fit.predict(at_gaps(case.x[held].astype(float), fit))
    predicted = within(predicted[case.slow.there], case)
    return [*predicted.ravel(), *judged(predicted, case, slice(None))]


def expected_split(case):
    model = case.models["fitted"]
    fold = model._smoother.joined.folds(2)
    half, held = refitted(case, np.flatnonzero(fold == 0)), np.flatnonzero(fold == 1)
    old, new = (at_gaps(x.astype(float), half) for x in (case.x[held], case.cells))
    weight = np.ones(len(held)) if case.weight is None else case.weight[held]
    unit = model._rows.unit_weight / half.unit
    precise = half.precise and weight / half.unit, half.precise and np.full(len(new), unit)
    growth, further = (
        np.array(
            [half.growth(*each) for each in zip(half.at(x), exact if half.precise else np.ones(len(x)), strict=True)]
        )
        for x, exact in zip((old, new), precise, strict=True)
    )
    errors = np.abs(case.y[held] - half.predict(old)[:, 0]) / growth
    weight = np.ones(len(held)) if half.precise else weight
    center, reach = half.predict(new)[:, 0], quantile(errors, weight, LEVEL) * further
    return widened(center - reach, center + reach, LEVEL, case.slow.unknown(case.cells.astype(float)))


def as_drawn(case):
    """A check of draws: each is one of the values there are, as often as it is to be, but for what is unknown."""

    def check(drawn):
        cells = case.cells.astype(float)
        for row, place, unknown in zip(drawn, case.slow.at(cells), case.slow.unknown(cells)[:, 0], strict=True):
            values, share = case.slow.distribution(place)
            if np.isinf(values).all():
                assert np.isinf(row).all()
                continue
            if unknown:
                below = stdtr(5, (np.sort(row)[:, None] - values) / math.sqrt(unknown)) @ (share / share.sum())
                assert np.abs(below - (np.arange(len(row)) + 0.5) / len(row)).max() < 1.95 / math.sqrt(len(row))
                continue
            near = np.abs(row[:, None] - values).argmin(1)
            np.testing.assert_allclose(row, values[near], rtol=1e-4, atol=1e-4)
            order = np.argsort(values)
            often = np.cumsum(np.bincount(near, minlength=len(values))[order]) / len(row)
            assert np.abs(often - np.cumsum(share[order]) / share.sum()).max() < 1.95 / math.sqrt(len(row))

    return check


def middle(case):
    """Places along the first column, the others at their medians or most frequent levels."""
    at = np.tile(others(case), (201, 1))
    at[:, 0] = spaced(case)
    return at


def others(case):
    """The medians or most frequent levels of the columns."""
    there = case.x[case.slow.there].astype(float)
    at = np.median(there, 0)
    for j, name in enumerate(case.features):
        if name in ("town", "size") or name not in WIDTHS:
            at[j] = np.bincount(there[:, j].astype(int)).argmax()
    return at


def spaced(case):
    """Even steps over the first column of the rows with weight, or over its logarithm."""
    x = case.x[case.slow.there, 0].astype(float)
    at = np.geomspace if 0 in case.slow.logs else np.linspace
    return at(x.min(), x.max(), 201)


def drawn_line(model):
    figure = pyplot.figure()
    try:
        return model.plot(figure.gca()).lines[1].get_xydata()
    finally:
        pyplot.close(figure)


def line_of_plot(case):
    at = spaced(case)
    return np.column_stack([at, case.slow.predict(at[:, None])[:, 0]])


def along_first(model):
    curve = curve_along(model, 0, "a")
    return [curve.estimate[::50].ravel(), curve.lower[::50].ravel()]


def top(weights, k=4):
    """The largest weights, and how many there are: of equal ones any may be among them."""
    return [*np.sort(weights, 1)[:, -k:], (weights > 0).sum(1).clip(max=k)]


def by_first(case):
    order = np.flatnonzero(case.slow.there)
    order = order[np.argsort(case.x[order, 0], kind="stable")]
    return case.slow.attention(case.x[order].astype(float))[:, order]


def ordered_first(model, case):
    return among(model, case.x[:, 0]).weights


def named(case):
    """The features by their names in an answer, with the cells that numbers stand for."""
    names = case.columns if case.frame else ["x"] if len(case.columns) == 1 else [f"x{j}" for j in range(9)]
    levels = {"town": TOWNS, "size": SIZES} if case.frame else {name: [0.0, 1.0, 2.0] for name in ("town", "size")}
    for j, name in enumerate(case.features):
        if name in levels:
            yield names[j], lambda value, of=[*levels[name], "(missing)"]: of[int(value)]
        elif name in WIDTHS:
            yield names[j], lambda value: value
        else:
            origin = case.columns.index(name.split()[0])
            yield f"{names[origin]} is missing", lambda value: ["known", "missing"][int(value)]


def distances(case):
    """A function from a row of X to how much each training row differs from it, in units of the estimate."""
    there, slow, x = case.x[case.slow.there].astype(float), case.slow, case.x.astype(float)
    is_category = np.array([name not in WIDTHS or name in ("town", "size") for name in case.features])
    middle = np.median(there, 0)
    for j in np.flatnonzero(is_category):
        middle[j] = np.bincount(there[:, j].astype(int)).argmax()

    def differ(rows, place):
        rows, place = slow.compared(rows), slow.compared(place[None])[0]
        away = np.where(is_category, rows != place, np.abs(rows - place))
        around = np.array([name == "hour" for name in case.features])
        return np.where(around, np.minimum(away, 24 - away), away)

    estimate = slow.predict if isinstance(case.fresh, KernelRegressor) else lambda rows: classes(case, rows)
    without = [np.where(np.arange(there.shape[1]) == j, middle, there) for j in range(there.shape[1])]
    moved = np.array([np.sqrt(np.mean((estimate(x) - estimate(there)) ** 2)) for x in without])
    size = np.sqrt(np.mean(differ(there, middle) ** 2, 0))
    scale = np.divide(moved, size, out=np.zeros_like(size), where=size > 0)
    return lambda place: np.sqrt(((differ(x, place) * scale) ** 2).sum(1))


def as_nearest(case):
    """A check of rows: those that differ least in what moves the estimate, with their cells, values and weights."""
    weights, rough = case.slow.attention(case.q), 2e-3 if "float32" in case.names else 1e-6
    distance_to = distances(case)

    def check(found):
        for query, own in found.groupby("query"):
            rows, distance = own["row"].to_numpy(), distance_to(case.q[query])
            right = np.sort(distance[weights[query] > 0])[:4]
            np.testing.assert_allclose(own["differs by"], right, rtol=rough, atol=rough)
            np.testing.assert_allclose(own["differs by"], distance[rows], rtol=rough, atol=rough)
            np.testing.assert_allclose(own["weight"], weights[query, rows], rtol=rough, atol=rough)
            targets = own[["y"] if case.outputs is None else ["y0", "y1"]].to_numpy()
            np.testing.assert_array_equal(targets, case.y.reshape(ROWS, -1)[rows])
            for j, (name, cell) in enumerate(named(case)):
                cells = [cell(value) for value in case.x[rows, j].astype(float)]
                if name.endswith("is missing"):
                    assert name not in own
                    continue
                gaps = dict(zip(case.features, case.x[rows].T, strict=True)).get(
                    f"{case.features[j]} is missing", rows * 0
                )
                cells = [None if gap else each for gap, each in zip(gaps, cells, strict=True)]
                assert [None if pd.isna(each) else each for each in own[name]] == cells
        assert sorted(set(found["query"])) == list(range(QUERIES))

    return check


def as_summary(case):
    """A check of a summary: each feature's range and bandwidth, and how well rows are predicted from the others."""
    model, rough = case.models["fitted"], 2e-3 if "float32" in case.names else 1e-6
    there, slow = case.x[case.slow.there].astype(float), case.slow
    widths = dict(zip(model.bandwidth_names_, model.bandwidth_, strict=True))

    def reach(j, own, name):
        if name not in widths:
            return ""
        width, levels = widths[name], {"town": 3 + case.gaps, "size": 1, "hour": 0}.get(own, 0 if own in WIDTHS else 2)
        if levels:
            most = 1 if levels == 1 else (levels - 1) / levels
            alike = "steps" if slow.steps else "no influence"
            return alike if width >= most * (1 - 1e-6) else f"λ {width:.4g}"
        log = slow.logs.get(j)
        values, suffix = (np.log(there[:, j] + log[1]), " of its logarithm") if log else (there[:, j], "")
        if width > 1e3 * (24 if own == "hour" else np.ptp(values)):
            if own == "hour":
                return "a wave" if slow.steps else "no influence"
            return (f"a line{suffix}" if log else "a straight line") if slow.linear else "no influence"
        return f"{width:.4g}{suffix}"

    def check(found):
        expected = []
        for j, (name, cell) in enumerate(named(case)):
            ends = [cell(each) for each in (there[:, j].min(), there[:, j].max())]
            ends = [each if isinstance(each, str) else f"{each:.4g}" for each in ends]
            if case.features[j] == "size":
                ends = [str(cell(each)) for each in (there[:, j].min(), there[:, j].max())]
            if case.features[j] == "town" or case.features[j] not in WIDTHS:
                ends = ["", ""]
            expected.append((name, *ends, reach(j, case.features[j], name)))
        assert [each[:4] for each in found.features] == expected
        moved, middle = [float(each[4]) for each in found.features], np.median(there, 0)
        for j, kind in enumerate(column.is_category for column in model.columns_):
            middle[j] = np.bincount(there[:, j].astype(int)).argmax() if kind else middle[j]
        for j in range(there.shape[1]):
            without = np.where(np.arange(there.shape[1]) == j, middle, there)
            change = np.sqrt(np.mean((slow.predict(without) - slow.predict(there)) ** 2))
            np.testing.assert_allclose(moved[j], change, rtol=6e-3, atol=rough)
        error = expected_left_out(case)[-2]
        np.testing.assert_allclose(found.left_out.error, error, rtol=rough, atol=rough)
        assert found.held_out is None
        weighted = "" if slow.there.all() else f", {slow.there.sum()} of them with weight"
        assert found.rows[0] == f"rows: {ROWS}{weighted}"
        said = {line.split(":")[0].split(" (")[0]: float(line.split()[-1]) for line in found.rows[1:]}
        np.testing.assert_allclose(said["leave-one-out"], math.sqrt(error), rtol=max(rough, 1e-3))
        np.testing.assert_allclose(said["effective degrees of freedom"], slow.trace(), atol=0.0501 + rough)

    return check


def page_of(model, case):
    """A page without held-out rows; pictures take most of its time, and are drawn beside one setting."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if "two columns" not in case.names:
            patch.setattr(report, "effects", lambda *_: pyplot.Figure())
        model.report(Path(folder) / "page.html", folds=0, **COVERAGE.get(type(case.fresh), {"coverage": LEVEL}))
        return (Path(folder) / "page.html").read_text(), model.summary(folds=0)._repr_html_()


COVERAGE = {KernelClassifier: {}}


def without_row(model, row):
    """A slow fit of the other rows, with the same bandwidths."""
    reduced = copy.copy(model)
    for name in ("X_train_", "y_train_", "sample_weight_"):
        setattr(reduced, name, np.delete(getattr(model, name), row, 0))
    reduced.folds_ = None if model.folds_ is None else np.delete(model.folds_, row, 1)
    return Slow(reduced)


def as_page(case):
    """A check of a page: its summary, the worst rows by a model without each of them, and the rows most like these."""
    model, slow, rough = case.models["fitted"], case.slow, 2e-3 if "float32" in case.names else 1e-3
    is_regressor, rows = isinstance(case.fresh, KernelRegressor), np.flatnonzero(case.slow.there)
    faults = np.abs(slow.y - expected_left_out_rows(case))[:, 0] if is_regressor else -left_out_classes(case)
    distance_to = distances(case)

    def check(found):
        page, summary = found
        assert summary in page
        assert page.count("<svg") == 1
        examples = re.findall(r"<h3>Row (\d+): (.*?)</h3><table>(.*?)</table>", page)
        right = np.sort(faults)[::-1][: len(examples)]
        own = [faults[rows == int(row)][0] for row, *_ in examples]
        assert len(examples) == 3
        np.testing.assert_allclose(own, right, rtol=1e-6 if rough < 2e-3 else 2e-3, atol=1e-9)
        for row, text, table in examples:
            at = case.x[[int(row)]].astype(float)
            if not is_regressor:
                label, probability = text.split(", with probability ")
                assert label == case.y[int(row)]
                assert abs(float(probability) + faults[rows == int(row)][0]) < 6e-4 + rough * (rough > 1e-3)
            elif row == examples[0][0] or "two columns" in case.names:
                numbers = [
                    float(each.replace(",", "")) for each in re.findall(r"-?(?:inf|[\d.,]+(?:e[+-]\d+)?)\b", text)
                ]
                without = without_row(model, int(row))
                ends = np.ravel(without.jackknife(at, LEVEL))
                expected = [*within(np.array([without.predict(at)[0, 0], *ends]), case)]
                observed, predicted, coverage, *ends = numbers
                np.testing.assert_allclose([observed, coverage], [case.y[int(row)], 100 * LEVEL], rtol=1e-3)
                np.testing.assert_allclose(
                    [predicted, *ends], expected, rtol=rough, atol=2e-3 if rough > 1e-3 else 1e-4
                )
            shares = slow.attention(at)[0]
            shares[int(row)] = 0
            shares /= max(shares.sum(), 1e-300)
            distance = distance_to(at[0])
            lines = [re.findall("<td>(.*?)</td>", line) for line in re.findall("<tr>(.*?)</tr>", table)]
            names = [name for name, _ in named(case) if not name.endswith("is missing")]
            assert lines[0] == ["row", "y", "differs by", "weight", *names]
            like = [int(line[0]) for line in lines[1:]]
            np.testing.assert_allclose(distance[like], np.sort(distance[shares > 0])[:5], rtol=rough, atol=rough)
            np.testing.assert_allclose([float(line[2]) for line in lines[1:]], distance[like], rtol=rough, atol=rough)
            np.testing.assert_allclose(
                [float(line[3]) for line in lines[1:]], shares[like], atol=6e-4 + 2 * (rough - 1e-3)
            )
            values = [line[1] if not is_regressor else float(line[1]) for line in lines[1:]]
            assert values == (list(case.y[like]) if not is_regressor else pytest.approx(case.y[like], rel=1e-3))

    return check


def along(case):
    """The columns that have a slope: the first, and the hours."""
    return [j for j, name in enumerate(case.columns) if j == 0 or name == "hour"]


def determined(estimates):
    """Slopes with their ends; NaN for those of fewer rows than terms, which are of the second ridge."""
    return [np.where(np.isinf(ends[2]), [[np.nan], [-np.inf], [np.inf]], ends) for ends in estimates]


def expected_extrema(case, sign, row):
    """A check of the extrema along columns: on a fine grid of the slow curve, and where random curves have theirs.

    Positions are counted in the steps at which dikkat looks for the minimum.
    """
    slow, count, outside, tolerance = case.slow, 2 * shapes._POINTS, (1 - LEVEL) / 2, 0.04
    steps, answers = np.arange(count), []
    for j in along(case):
        there = case.x[slow.there, j].astype(float)
        at = (np.geomspace if j in slow.logs else np.linspace)(there.min(), there.max(), count)
        if case.columns[j] == "hour":  # one period around the extremum of the estimate
            at = np.linspace(0, 24, count)
            at += at[(sign * slow.predict(beside(row, j, at))[:, 0]).argmin()] - 12
        fine = np.interp(np.arange(4 * count - 3) / 4, steps, at)
        minima = slow.minima(beside(row, j, at), j, sign)
        answers.append((j, at, minima, slow.minimum(beside(row, j, fine), j, sign) / 4))

    def check(found):
        for one, (j, at, minima, best) in zip(found, answers, strict=True):
            if minima is None:
                assert one is None
                continue
            if case.columns[j] == "hour":
                assert 0 <= one.value < 24
                one = np.array(one) - 24 * np.floor((one.value - at[0]) / 24)
            value, lower, upper = np.interp(np.array(one, float), at, steps)
            assert abs(value - np.clip(best, lower, upper)) < 2, (one, best)
            for end, lost in ((lower, minima - lower), (upper, upper - minima)):
                assert np.mean(lost < -1) - tolerance < outside < np.mean(lost < 1) + tolerance, (one, end)

    return check


def beside(row, j, at):
    """Rows with the values of one column, and of the others in a row."""
    return np.where(np.arange(len(row)) == j, at[:, None], row)


def extremum(verb, j, row):
    """An extremum along a column, among others at their medians or in a row of X; None without a known noise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="feature: got a curve that may be")
        try:
            return verb(j, row, LEVEL)
        except ValueError as error:
            if "feature: got a curve through the rows, which shows no noise" not in str(error):
                raise


def group_of(case):
    """The column of groups: the first category, or the last column, which is none."""
    return next((j for j, name in enumerate(case.columns) if name in ("town", "size")), len(case.columns) - 1)


def slow_group(case, j, code):
    """A slow fit of the rows of one group, without its column if it has a fit of the same bandwidths."""
    fitted, rows = case.models["fitted"], np.flatnonzero((case.x[:, j] == code) & case.slow.there)
    if case.gaps or SEARCHED & set(case.names) or {"category", "ordered"} <= set(case.names):
        return Slow(fitted._refit(fitted._rows.take(rows))), []
    given = dict(case.settings)
    for name in ("categorical_features", "ordered_features"):
        if name in given:
            given[name] = [other - (other > j) for other in given[name] if other != j]
    if not case.frame and "periodic_features" in given:
        given["periodic_features"] = {other - (other > j): 24 for other in given["periodic_features"]}
    if not isinstance(given["bandwidth"], str):
        given["bandwidth"] = [width for other, width in enumerate(given["bandwidth"]) if other != j]
    if case.slow.folds is not None:
        own = [(np.flatnonzero(f[rows] == 1), np.flatnonzero(f[rows] == 2)) for f in fitted.folds_]
        given["cv"] = [each for each in own if len(each[0]) and len(each[1])]
    x = case.rows.iloc[rows].drop(columns=case.columns[j]) if case.frame else np.delete(case.rows[rows], j, 1)
    weight = None if case.weight is None else case.weight[rows]
    return Slow(type(case.fresh)(**given).fit(x, case.y[rows], weight)), [j]


def expected_difference(case):
    j, at, curves = group_of(case), None, []
    there = case.x[:, 0].astype(float)
    groups = [there[(case.x[:, j] == code) & case.slow.there] for code in (0, 2)]
    low, high = max(map(np.min, groups)), min(map(np.max, groups))
    column = case.slow.model.columns_[0]
    at = column.grid(low, high, shapes._POINTS)
    for code in (0, 2):
        points = np.tile(others(case), (len(at), 1))
        points[:, 0], points[:, j] = at, code
        slow, dropped = slow_group(case, j, code)
        curves.append((slow, np.delete(points, dropped, 1), 0))
    center, half = band(curves, LEVEL)
    return np.array([at, center, center - half, center + half])


def difference(model, case):
    j = group_of(case)
    levels = {"town": TOWNS, "size": SIZES}.get(case.columns[j], []) if case.frame else [0.0, 1.0, 2.0]
    found = model.difference(j, levels[::2], 0, LEVEL)
    return np.array([found.x, found.y, found.lower, found.upper])


def drawn_groups(model, case):
    """The curves of groups along the first column."""
    figure = model.plot(by=group_of(case))
    name = next(named(case))[0]
    axes = next(axes for axes in figure.axes if axes.get_xlabel() == name)
    return np.array([line.get_xydata() for line in axes.lines if len(line.get_xdata()) == 201])


def expected_groups(case):
    j, points, curves = group_of(case), middle(case), []
    for code in range(len(case.slow.model.columns_[j].levels)):
        points[:, j] = code
        curves.append(np.column_stack([points[:, 0], within(case.slow.predict(points)[:, 0], case)]))
    return np.array(curves)


def one_width(case):
    """The settings of a fit to the first column, without indicators."""
    width = case.settings["bandwidth"]
    return case.settings | {"bandwidth": width[0] if isinstance(width, list) else width}


def smoothed(case, groups=None):
    """The curve of `smooth` at queries, with its ends."""
    x, settings = case.rows["a"] if case.frame else case.rows[:, 0], one_width(case)
    if groups is not None:
        settings["cv"] = GroupKFold(3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="x, y.*: got .* rows with a missing cell")
        curve = smooth(x, case.y, LEVEL, at=case.q[:, 0], sample_weight=case.weight, groups=groups, **settings)
    return [curve.y, curve.lower, curve.upper]


def expected_smooth(case, groups=None):
    """The slow curve of a fit to the rows that have all cells."""
    x, settings = case.given.astype(float), {"logarithms": None} | one_width(case)
    there = ~np.isnan(x[:, 0])
    x, y, weight = (None if each is None else each[there] for each in (x, case.y, case.weight))
    if groups is not None:
        settings["cv"] = list(GroupKFold(3).split(x, y, groups[there]))
    slow = Slow(KernelRegressor(**settings).fit(x, y, weight))
    curve = [slow.predict(case.q[:, :1]), *slow.confidence_interval(case.q[:, :1], LEVEL)]
    return [within(each[:, 0], case) for each in curve]


SQUADS = np.array(["red", "blue", "green", "red", "grey"] * ROWS)[:ROWS]


# What is asked of a model, and what is expected.
REGRESSOR = {
    "predict": (lambda m, c: m.predict(c.query), lambda c: shaped(c.slow.predict(c.q), c)),
    "std": (lambda m, c: m.predict(c.query, return_std=True)[1], lambda c: shaped(c.slow.std(c.q), c)),
    "gradient": (lambda m, c: m.gradient(c.query), lambda c: shaped(c.slow.gradient(c.q), c)),
    "gradient, error": (
        lambda m, c: m.gradient(c.query, return_std=True)[1], lambda c: shaped(c.slow.gradient(c.q, True), c)
    ),
    "confidence": (
        lambda m, c: m.confidence_interval(c.query, 0.8), lambda c: shaped(c.slow.confidence_interval(c.q, 0.8), c)
    ),
    "jackknife+": (lambda m, c: m.predict_interval(c.query, LEVEL), lambda c: c.slow.jackknife(c.q, LEVEL)),
    "local": (
        lambda m, c: m.predict_interval(c.query, LEVEL, "local"),
        lambda c: c.slow.quantiles(c.q, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).T,
    ),
    "split": (lambda m, c: m.predict_interval(c.query, LEVEL, "split"), expected_split),
    "quantiles": (lambda m, c: m.predict_quantiles(c.query, QUANTILES), lambda c: c.slow.quantiles(c.q, QUANTILES)),
    "sample": (lambda m, c: m.sample(c.query, 400, random_state=1), as_drawn),
    "score": (
        lambda m, c: m.score(c.rows, c.y),
        lambda c: r2_score(c.y.reshape(ROWS, -1), c.slow.predict(c.x.astype(float))),
    ),
    "degrees of freedom": (lambda m, c: m.effective_degrees_of_freedom(), lambda c: c.slow.trace()),
    "plot": (lambda m, c: drawn_line(m), line_of_plot),
    "derivative": (
        lambda m, c: determined([m.derivative(c.query, j, LEVEL) for j in along(c)]),
        lambda c: determined([c.slow.derivative(c.q, j, LEVEL) for j in along(c)]),
    ),
    "argmin": (
        lambda m, c: [extremum(m.argmin, j, None) for j in along(c)],
        lambda c: expected_extrema(c, 1, others(c)),
    ),
    "argmax": (
        lambda m, c: [extremum(m.argmax, j, c.query[:1]) for j in along(c)],
        lambda c: expected_extrema(c, -1, c.q[0]),
    ),
    "difference": (difference, expected_difference),
    "groups": (drawn_groups, expected_groups),
    "smooth": (lambda _, c: smoothed(c), expected_smooth),
    "smooth, groups": (lambda _, c: smoothed(c, SQUADS), lambda c: expected_smooth(c, SQUADS)),
    "leave_out": (lambda m, c: of_left_out(leave_out(m), c), expected_left_out),
    "hold_out": (lambda m, c: of_left_out(hold_out(m, KFold(2)), c), expected_hold_out),
    "along": (
        lambda m, c: along_first(m),
        lambda c: [
            c.slow.predict(middle(c)[::50]).ravel(),
            np.where(np.isinf(ends := c.slow.confidence_interval(middle(c)[::50], 0.95)[0]), np.nan, ends).ravel(),
        ],
    ),
    "among": (ordered_first, by_first),
    "nearest": (lambda m, c: m.nearest(c.query, k=4), as_nearest),
    "summary": (lambda m, c: m.summary(folds=0), as_summary),
    "report": (page_of, as_page),
}  # fmt: skip
ANY = {
    "attention_weights": (lambda m, c: m.attention_weights(c.query), lambda c: c.slow.attention(c.q)),
    "largest weights": (
        lambda m, c: np.concatenate(top(m.attention_weights(c.query, top_k=4).toarray())),
        lambda c: np.concatenate(top(c.slow.attention(c.q))),
    ),
    "effective_neighbors": (lambda m, c: m.effective_neighbors(c.query), lambda c: c.slow.neighbors(c.q)),
    "log_density": (lambda m, c: m.log_density(c.query), lambda c: c.slow.log_density(c.q)),
}  # fmt: skip


def classes(case, x=None):
    """The shares of the classes about queries, with what a plane or all rows say."""
    slow, model, x = case.slow, case.models["fitted"], case.q if x is None else x
    if model.order == "linear":
        plane = model._plane
        query = model._coordinates(x)
        prior = softmax((query - plane.center) / plane.spread @ plane.slope + plane.height, 1)
    else:
        prior = np.tile((slow.weight @ slow.y + 1) / (slow.weight.sum() + 2), (len(x), 1))
    mass = np.array([slow.weight * slow.near(place, slow.sigma) for place in slow.at(x)])
    return (mass @ slow.y + model.prior_ * prior) / (mass.sum(1, keepdims=True) + model.prior_)


def left_out_classes(case):
    """The share of each row's class by the other rows, or the mean over the folds that test it."""
    slow, model, count = case.slow, case.models["fitted"], len(case.slow.rows)
    label, x = slow.y.argmax(1), model._coordinates(model.X_train_)[slow.there].astype(float)
    mass = np.array([slow.weight * slow.near(place, slow.sigma) for place in slow.rows])
    same = label[:, None] == label
    if slow.folds is None:
        alike = (slow.rows[:, None] == slow.rows).all(2)
        out = np.where(alike.sum(1) > 1, np.minimum(slow.weight, 1), slow.weight)  # copies of a place are rows
        mass = mass - np.diag(out)
        prior = (slow.weight @ same - out + 1) / (slow.weight.sum() - out + 2)
        if model.order == "linear":
            alike = np.unique(np.column_stack([x, label]), axis=0, return_inverse=True)[1].ravel()
            _, first = np.unique(alike, return_index=True)  # the plane leaves out equal rows together
            prior = logistic.plane(x[first], label[first], np.bincount(alike, slow.weight), 2)[1][alike]
        return ((mass * same).sum(1) + model.prior_ * prior) / (mass.sum(1) + model.prior_)
    shares = np.full((len(slow.folds), count), np.nan)
    for share, fold in zip(shares, slow.folds, strict=True):
        learned, tested = fold == 1, fold == 2
        near, weight = mass[tested][:, learned], slow.weight[learned]
        prior = (weight @ same[learned][:, tested] + 1) / (weight.sum() + 2)
        if model.order == "linear":
            by_plane = logistic.plane(x[learned], label[learned], weight, 2)[0].shares(x[tested])
            by_plane = by_plane[np.arange(tested.sum()), label[tested]]
            prior = np.where(by_plane > 0, by_plane, prior)
        right = (near * same[tested][:, learned]).sum(1)
        share[tested] = (right + model.prior_ * prior) / (near.sum(1) + model.prior_)
    return np.nanmean(shares, 0)


CLASSIFIER = {
    "predict_proba": (lambda m, c: m.predict_proba(c.query), classes),
    "predict_log_proba": (lambda m, c: m.predict_log_proba(c.query), lambda c: np.log(classes(c))),
    "predict": (lambda m, c: m.predict(c.query) == "low", lambda c: classes(c).argmax(1) == 1),
    "report": (page_of, as_page),
    "score": (
        lambda m, c: m.score(c.query, ["low"] * QUERIES), lambda c: np.mean(classes(c).argmax(1) == 1)
    ),
}  # fmt: skip


def as_spread(case):
    """A check of rows that are drawn: each column's values are as often below its rows as they are to be."""

    def check(drawn):
        for j, name in enumerate(case.columns):
            slow = case.slow
            if name == "town":
                cells = np.array([TOWNS.index(each) if case.frame else each for each in drawn[:, j]], float)
                here = slow.weight @ (case.x[slow.there, j, None] == np.arange(3)) / slow.weight.sum()
                rate = case.models["fitted"].bandwidth_[j]
                expected = here * (1 - rate) + (1 - here) * rate / 2
                found = np.mean(cells[:, None] == np.arange(3), 0)
            else:
                x, cells = case.x[slow.there, j].astype(float), drawn[:, j].astype(float)
                away = (x[:, None] - x) / case.models["fitted"].bandwidth_[j]
                below = ndtr(away) if slow.kernel == "gaussian" else _below(away, slow.size)
                expected = below @ slow.weight / slow.weight.sum()
                found = np.mean(cells <= x[:, None], 1)
            assert np.abs(found - expected).max() < 1.95 / math.sqrt(len(drawn))

    return check


def _below(away, size):
    """The share of a kernel 1 − r² in so many dimensions that lies below a coordinate."""
    at = np.linspace(-1, 1, 20001)
    height = np.maximum(1 - at**2, 0) ** ((size + 1) / 2)
    return np.interp(away, at, np.cumsum(height) / height.sum())


DENSITY = {
    "score_samples": (lambda m, c: m.score_samples(c.query), lambda c: c.slow.log_density(c.q)),
    "score": (lambda m, c: m.score(c.query), lambda c: c.slow.log_density(c.q).sum()),
    "sample": (lambda m, c: m.sample(1000, random_state=1), as_spread),
}
ESTIMATORS = {KernelRegressor: REGRESSOR | ANY, KernelClassifier: CLASSIFIER | ANY, KernelDensity: DENSITY | ANY}


def arguments(name):
    return {key for key in SETTINGS[name] if key not in OF_DATA}


def pairs(estimator):
    """Every setting alone (beside two columns), and with every other one."""
    known = set(estimator().get_params())
    serve = [name for name in SETTINGS if arguments(name) <= known]
    serve = [name for name in serve if estimator is KernelRegressor or name != "two outputs"]
    if estimator is KernelDensity:
        serve = [name for name in serve if name not in ("ordered", "periodic")]
    if estimator is not KernelRegressor:
        serve = [name for name in serve if name != "loo"]
    chosen = [pair for pair in itertools.combinations(serve, 2) if not arguments(pair[0]) & arguments(pair[1])]
    criteria = [pair for pair in chosen if "loo" in pair]
    kept = {"two columns", "constant", "weights"}
    left = [pair for pair in criteria if not kept & set(pair) and pair not in REFUSED_IN_FIT]
    return [pair for pair in chosen if pair not in left]


def states(method, names):
    if method == "sample" and "support" in names:
        return ()
    if method == "report" and not REPORTED & set(names):
        return ()
    if method.startswith("smooth") and ("one column" not in names or COLUMNS & set(names)):
        return ()
    if (method == "smooth, groups" and "cv" in names) or (method == "argmax" and "two columns" not in names):
        return ()
    if method == "groups" and not ("two columns" in names or ("category" in names and DRAWN & set(names))):
        return ()
    dear = {"hold_out", *(["split"] if "gaps" in names else [])}
    if method in dear and SEARCHED & set(names) and "two columns" not in names:
        return ()
    return ("loaded",) if method in ONCE else STATES


CELLS = [
    (estimator, names, method)
    for estimator, methods in ESTIMATORS.items()
    for names in pairs(estimator)
    for method in methods
    if states(method, names)
]
PAIRS = list(dict.fromkeys((estimator, names) for estimator, names, _ in CELLS))
COUNT = sum(len(states(method, names)) for _, names, method in CELLS)


def refusals(method, names):
    """What the answer may be refused by, if it is to be."""
    if method == "plot" and "one column" in names:
        if "two outputs" in names:
            return "got 2 targets"
        names = [name for name in names if name in ("category", "ordered", "periodic", "gaps")]
    if method == "log_density" and "one column" in names:
        names = [name for name in names if name != "one direction"]
    if method in ("difference", "groups") and not {"category", "ordered"} & set(names):
        kind = "periodic" if "periodic" in names else "number"
        single = method == "groups" and "one column" in names and kind == "number"
        refused = (
            "but X has a single column of numbers"
            if single and "gaps" not in names
            else f", which is {kind}; expected a category"
        )
        return f"{refused}|got 2 targets"
    return "|".join({REFUSED[method, name] for name in names if (method, name) in REFUSED})


@pytest.mark.parametrize(
    ("estimator", "names"), [pytest.param(e, n, id=f"{e.__name__}-{'+'.join(n)}") for e, n in PAIRS]
)
def test_the_methods_beside_two_settings(estimator, names):
    case = made(estimator, names)
    if names in REFUSED_IN_FIT:
        assert case.error is not None
        assert REFUSED_IN_FIT[names] in case.error
        return
    assert case.error is None, case.error
    case.q = case.cells.astype(float)
    red = []
    for method in ESTIMATORS[estimator]:
        try:
            check(case, estimator, method)
        except (AssertionError, pytest.fail.Exception) as error:
            red.append(f"{method}: {error}")
    assert not red, "\n".join(red)


def check(case, estimator, method):
    """A method, in all states of a model."""
    ask, expect = ESTIMATORS[estimator][method]
    if not (asked := states(method, case.names)):
        return
    refused = refusals(method, case.names)
    expected = None if refused else expect(case)
    if "support" in case.names and method in CLIPPED and not refused:
        expected = clipped(np.asarray(expected), method, case)
    rough = 2e-3 if "float32" in case.names else 1e-5 if "no ridge" in case.names else 1e-6
    if method.startswith("gradient"):
        rough = max(rough, 1e-4)
    for state in asked:
        if refused:
            with pytest.raises(ValueError, match=refused):
                ask(case.models[state], case)
        elif callable(expected):
            expected(ask(case.models[state], case))
        else:
            np.testing.assert_allclose(ask(case.models[state], case), expected, rtol=rough, atol=rough, err_msg=state)


def clipped(expected, method, case):
    """Answers within the range of y; of a drawn line only its heights."""
    if method == "plot":
        return np.column_stack([expected[:, 0], expected[:, 1].clip(*case.fresh.support)])
    return expected.clip(*case.fresh.support)


def test_the_head_says_how_many_cells_there_are():
    assert f"{COUNT:,} cells" in __doc__
    assert all(LEFT_OUT.values())


DATED = [
    name
    for name in SETTINGS
    if name not in ("one column", "logarithm", "frame", "metric", "one direction", "two outputs")
]


@pytest.mark.parametrize("name", DATED)
def test_a_date_is_its_day_for_slopes_and_minima(name):
    case = made(KernelRegressor, ("two columns", name))
    seconds = np.round(86_400 * case.given[:, 0].astype(float))
    plain = pd.DataFrame({str(j): cells.astype(float) for j, cells in enumerate(case.given.T)})
    for key in ("categorical_features", "ordered_features", "periodic_features"):
        if key in case.settings:
            given = case.settings[key]
            case.settings[key] = {"2": 24} if key.startswith("periodic") else [str(j) for j in given]
    plain["0"] = seconds / 86_400
    dated, start = plain.copy(), pd.Timestamp("2024-03-01")
    dated["0"] = start + pd.to_timedelta(seconds, "s")
    models = [type(case.fresh)(**case.settings).fit(x, case.y, case.weight) for x in (plain, dated)]
    np.testing.assert_allclose(
        models[1].derivative(dated[5:9], 0, LEVEL), models[0].derivative(plain[5:9], 0, LEVEL), rtol=1e-6, atol=1e-7
    )
    for verb, row in ((KernelRegressor.argmin, None), (KernelRegressor.argmax, slice(6, 7))):
        found, expected = (
            extremum(verb.__get__(model), 0, None if row is None else x[row])
            for model, x in zip(models, (plain, dated), strict=True)
        )
        days = (pd.DatetimeIndex(expected) - start) / pd.Timedelta("1D")
        np.testing.assert_allclose(days, found, atol=1e-6)
    if name in ("category", "ordered"):
        bands = [model.difference("2", [0.0, 2.0], 0, LEVEL) for model in models]
        np.testing.assert_allclose((bands[1].x - np.datetime64(start, "us")) / np.timedelta64(1, "D"), bands[0].x)
        for end in ("y", "lower", "upper"):
            np.testing.assert_allclose(getattr(bands[1], end), getattr(bands[0], end), rtol=1e-6, atol=1e-7)


LINES = ("no ridge", "silverman", "metric", "one direction", "one column", "two outputs", "epanechnikov")
ON_A_DESIGN = [name for name, setting in SETTINGS.items() if not {"column", "gaps", "skewed", "order"} & set(setting)]


@pytest.mark.parametrize("name", [name for name in ON_A_DESIGN if name not in LINES])
def test_slopes_and_minima_on_a_surface(name):
    """A surface that equals y is the curve, at any bandwidth: of slopes (2 − 2a + b, …) here."""
    case = made(KernelRegressor, ("two columns", name))
    a, b = (each.ravel() for each in np.meshgrid([0.0, 1, 2], [0.0, 5, 10, 15]))
    x = np.tile(np.column_stack([a, b]), (2, 1))[: len(case.y)].astype(case.dtype)
    y = 1 + (x[:, 0] - 0.04 * x[:, 1] - 0.8) ** 2 - 0.01 * x[:, 1] ** 2
    case.settings |= {"bandwidth": "loo" if name == "loo" else "auto", "support": None}
    x = pd.DataFrame(x, columns=["a", "b"]) if case.frame else x
    model = type(case.fresh)(**case.settings).fit(x, y, case.weight)
    assert model._smoother.joined.num_terms
    at = np.array([[0.3, 4.0], [1.4, 11.0]])
    query = pd.DataFrame(at, columns=["a", "b"]) if case.frame else at
    a, b = at.T
    for j, slope in enumerate((2 * (a - 0.04 * b - 0.8), -0.08 * (a - 0.04 * b - 0.8) - 0.02 * b)):
        np.testing.assert_allclose(model.derivative(query, j).value, slope, atol=2e-3)
    assert extremum(model.argmin, 0, query[:1]).value == pytest.approx(0.8 + 0.04 * 4, abs=0.06)
