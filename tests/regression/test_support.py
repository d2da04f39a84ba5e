"""Intervals within the range of y, and with their coverage in each group."""

import warnings

import numpy as np
import pandas as pd
import pytest

from dikkat.regression import KernelRegressor, intervals, smooth, validation
from dikkat.regression.conditional import _sampled, _threshold
from dikkat.regression.diagnostics import curve_along, hold_out, leave_out

ROWS = 60
RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0, 5, (ROWS, 1))
Y = np.exp(RANDOM.normal(size=ROWS))


def test_answers_are_clipped_to_the_support():
    plain, bounded = (KernelRegressor(bandwidth=0.4, support=each).fit(X, Y) for each in (None, (0, 9.5)))
    at = np.linspace(-1, 6, 29)[:, None]
    answers = {
        "predict": lambda m: m.predict(at), "confidence": lambda m: m.confidence_interval(at),
        "quantiles": lambda m: m.predict_quantiles(at, [0.05, 0.5, 0.95]), "sample": lambda m: m.sample(at, 9, 0),
        **{method: lambda m, method=method: m.predict_interval(at, 0.95, method)
           for method in ("jackknife+", "local", "split")},
        "curve": lambda m: curve_along(m, 0, "x", 0.9).values[:2],
    }  # fmt: skip
    changed = 0
    for answer in answers.values():
        np.testing.assert_array_equal(answer(bounded), np.clip(answer(plain), 0, 9.5))
        changed += (np.asarray(answer(plain)) < 0).any()
    assert changed >= 5
    for accuracy in (leave_out, hold_out):
        clipped = np.clip(accuracy(plain).predicted, 0, 9.5)
        np.testing.assert_array_equal(accuracy(bounded).predicted, clipped)
        assert accuracy(bounded).error == pytest.approx(np.mean((Y - clipped) ** 2))
    assert smooth(X[:, 0], Y, support=(0, None), bandwidth=0.4, at=[-1.0, 2.0]).lower.min() == 0


def test_a_support_is_saved(tmp_path):
    model = KernelRegressor(bandwidth=0.4, support=(0, None)).fit(X, Y)
    model.save(tmp_path / "model")
    loaded = KernelRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_interval(X), model.predict_interval(X))


@pytest.mark.parametrize(("y", "message"), [
    (Y, r"y: \d+ of 60 intervals end below 0, but no y does\. If y cannot be negative, set support=\(0, None\)\. This"),
    (np.where(np.arange(ROWS) == 3, 0, Y), r"set support=\(0, None\)\. This"),
    ((Y > 1) * 1.0, r"cannot be there, set support=\(0, 1\)\. A KernelClassifier returns probabilities of y = 1\."),
    (Y / Y.max(), r"set support=\(0, 1\)\. This message is not repeated$"),
    (Y / Y.max() / 10, r"set support=\(0, None\)\. This"),  # small numbers are not shares
])  # fmt: skip
def test_a_support_is_suggested(y, message, monkeypatch):
    monkeypatch.setattr(validation, "_SUGGESTED", set())
    model = KernelRegressor(bandwidth=0.4).fit(X, y)
    with pytest.warns(UserWarning, match=message):
        model.predict_interval(X)
    model.predict_interval(X[:40])  # the message is not repeated
    with pytest.warns(UserWarning, match="but no y does"):
        KernelRegressor(bandwidth=0.4).fit(X, pd.Series(y, name="dose")).predict_interval(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelRegressor(bandwidth=0.4, support=(0, None)).fit(X, y).predict_interval(X)
        KernelRegressor(bandwidth=0.4).fit(X, y + 100).predict_interval(X)
        KernelRegressor(bandwidth=0.4).fit(X, y - 1).predict_interval(X)


@pytest.mark.parametrize("support", [0, (1, 0), (0,), (None, None), ("a", None), "ab", (0, np.nan), (0, 0)])
def test_supports_that_are_none(support):
    with pytest.raises(ValueError, match=r"support: got .*; expected \(least, greatest\)"):
        KernelRegressor(support=support).fit(X, Y)


def test_a_row_outside_the_support():
    with pytest.raises(ValueError, match=r"y: got -1.0; expected numbers within support=\(0, None\)"):
        KernelRegressor(support=(0, None)).fit(X, np.where(np.arange(ROWS) == 3, -1, Y))
    counts = pd.Series(np.where(np.arange(ROWS) == 3, -1, 5)).astype("Int64")
    for y in (counts, counts.astype("Float64"), counts.tolist()):
        with pytest.raises(ValueError, match=r"y: got -1.0; expected numbers within support=\(0, None\)"):
            KernelRegressor(support=(0, None)).fit(X, y)


# --- groups


def table_of(seed, rows=90):
    random = np.random.default_rng(seed)
    table = pd.DataFrame({
        "x": random.uniform(0, 5, rows), "town": np.repeat(["Bonn", "Lyon", "Ulm"], rows // 3),
        "kind": random.choice(["flat", "house"], rows),
    })  # fmt: skip
    noise = np.select([table["town"] == "Bonn", table["town"] == "Lyon"], [0.1, 0.4], 1.6)
    noise = noise * np.where(table["kind"] == "flat", 1, 2)
    return table, (np.sin(table["x"]) + noise * random.normal(size=rows)).to_numpy()


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_one_category_has_the_quantiles_of_its_levels(coverage):
    table, y = table_of(0)
    model = KernelRegressor(bandwidth=[0.8, 0.6, 0.5]).fit(table, y)
    lower, upper = model.predict_interval(table, coverage, by="town")
    errors = np.abs(y - leave_out(model).predicted)
    for town in ("Bonn", "Lyon", "Ulm"):
        own = np.sort(errors[table["town"] == town])
        reach = own[int(np.ceil(coverage * (len(own) + 1) - 1e-9)) - 1]
        here = (table["town"] == town).to_numpy()
        np.testing.assert_allclose(upper[here] - model.predict(table)[here], reach, rtol=5e-3)  # growth is nearly 1
        np.testing.assert_allclose((lower + upper)[here] / 2, model.predict(table)[here], atol=1e-6)


def test_of_many_errors_each_level_keeps_a_sample(monkeypatch):
    """A rare level keeps all its errors, and the levels of many rows keep the same number of errors."""
    monkeypatch.setattr(intervals, "MOST_ERRORS", 45)
    table, y = table_of(3, 270)
    rare = np.flatnonzero(table["town"] == "Ulm")[:80]
    table, y = table.drop(index=rare).reset_index(drop=True), np.delete(y, rare)
    model = KernelRegressor(bandwidth=[0.8, 0.6, 0.5]).fit(table, y)
    _, upper = model.predict_interval(table, 0.8, by="town")
    errors, reach = np.abs(y - leave_out(model).predicted), upper - model.predict(table)
    few = (table["town"] == "Ulm").to_numpy()
    assert few.sum() == 10
    np.testing.assert_allclose(reach[few], np.sort(errors[few])[8], rtol=5e-3)  # the ninth of ten, with one more
    for town in ("Bonn", "Lyon"):
        here = (table["town"] == town).to_numpy()
        nearest = np.abs(errors[here] / reach[here].mean() - 1).min()
        assert nearest < 5e-3
        assert 0.6 < (errors[here] < reach[here]).mean() < 0.97
    chosen, scale = _sampled(np.repeat([0, 1, 2], [90, 90, 9]))
    assert np.bincount(chosen // 90).tolist() == [15, 15, 9]
    assert scale.tolist() == [6, 6, 1]


def test_levels_that_overlap_by_the_definition():
    """The largest error that lies at most on the regression of the quantile of all errors, with itself among them."""
    random = np.random.default_rng(1)
    features = np.column_stack([np.ones(40), random.integers(0, 2, 40), random.integers(0, 2, 40)]).astype(float)
    errors, at = random.exponential(size=40) * (1 + 2 * features[:, 1]), np.array([1.0, 1.0, 0.0])
    found = _threshold(features, errors, np.ones(40), at, 0.8, 1.0)

    def is_inside(error):
        from scipy.optimize import linprog

        phi, values = np.vstack([features, at]), np.append(errors, error)
        size = len(values)  # θ, and what is above and below
        cost = np.concatenate([np.zeros(3), np.full(size, 0.8), np.full(size, 0.2)])
        constraint = np.hstack([phi, np.eye(size), -np.eye(size)])
        bounds = [(None, None)] * 3 + [(0, None)] * (2 * size)
        theta = linprog(cost, A_eq=constraint, b_eq=values, bounds=bounds).x[:3]
        return error <= at @ theta + 1e-7

    assert is_inside(found * 0.999)
    assert not is_inside(found * 1.001)


@pytest.mark.filterwarnings("ignore:X. got")
def test_flags_that_are_missing_or_other_numbers():
    flags, y = np.repeat([True, False, None], [23, 23, 11]), np.random.default_rng(4).normal(size=57)
    table = pd.DataFrame({"x": np.linspace(0, 5, 57), "flag": flags})
    model = KernelRegressor(bandwidth=[1.0, 0.5, 0.5], missing="indicator").fit(table, y)
    assert model.columns_[1].levels == (0.5,)
    ends = np.array(model.predict_interval(table, by="flag"))
    assert np.isfinite(ends).all()
    lower, upper = ends[:, flags != True]  # noqa: E712  # False, and missing cells, which are rounded to it
    assert ((lower <= y[23:]) & (y[23:] <= upper)).mean() >= 0.85
    numbers = pd.DataFrame({"x": 2.5, "flag": [0.0, 1.0, 0.2, 0.7, -0.2, -1.0, 2.0, 5.0]})
    whole = KernelRegressor(bandwidth=[1.0, 0.5]).fit(table[:46].astype({"flag": bool}), y[:46])
    lower, upper = whole.predict_interval(numbers, by="flag")
    assert np.isinf(lower).tolist() == np.isinf(upper).tolist() == [False] * 4 + [True] * 4
    unknown = KernelRegressor(bandwidth=[1.0, 0.5], missing="indicator").fit(table[:46], y[:46])
    assert np.isinf(unknown.predict_interval(table[50:51], by="flag")).all()


def test_levels_with_few_rows_and_bad_groups():
    table, y = table_of(2)
    table.loc[[0, 1], "town"] = "Oslo"
    model = KernelRegressor(bandwidth=[0.8, 0.6, 0.5]).fit(table, y)
    lower, upper = model.predict_interval(table, by=["town", "kind"])
    few = table["town"] == "Oslo"
    assert np.isinf(upper - lower)[few].all()
    assert np.isfinite(upper - lower)[~few].all()
    with pytest.warns(UserWarning, match="a category in column 'town' that was not in fit"):
        ends = model.predict_interval(table[:3].assign(town="Rome"), by="town")
    assert np.isinf(ends).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of infinite and finite ends that widen
        gaps = KernelRegressor(bandwidth=[0.8, 0.6, 0.5, 0.3], missing="indicator").fit(
            table.assign(x=table["x"].where(table["x"] > 0.3)), y
        )
        ends = gaps.predict_interval(table.assign(x=np.nan), by="town")
    assert np.isinf(ends[0]).tolist() == few.tolist()
    for by, message in (
        ("x", "by: got 'x', which is number; expected a category"),
        ("size", "by: got 'size'; expected a name or position of 'x', 'town', 'kind'"),
        ([], "by: got no category"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict_interval(table, by=by)
    with pytest.raises(ValueError, match=r"method: got 'local' with by; expected 'jackknife\+'"):
        model.predict_interval(table, method="local", by="town")
