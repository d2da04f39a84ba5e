import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from sklearn.model_selection import GroupKFold, PredefinedSplit, cross_val_predict

from dikkat.regression import KernelRegressor, NadarayaWatson
from dikkat.regression.diagnostics import among, curve_along, hold_out, leave_out


def test_nothing_is_left_of_one_row_and_nothing_to_explain_without_variance():
    one = leave_out(NadarayaWatson(bandwidth=1.0).fit([[2.0], [2.0]], [3.0, 3.0]))
    assert np.isnan([*one.predicted, one.error, one.r2]).all()
    two = leave_out(NadarayaWatson(bandwidth=1.0).fit([[2.0], [2.0]], [1.0, 3.0]))
    assert (two.predicted.tolist(), two.error) == ([3.0, 1.0], 4.0)
    flat = leave_out(NadarayaWatson(bandwidth=1.0).fit([[1.0], [2.0], [4.0]], [3.0, 3.0, 3.0]))
    assert flat.error == pytest.approx(0, abs=1e-20)
    assert np.isnan(flat.r2)


def test_along_a_feature_the_others_are_at_their_medians():
    random = np.random.default_rng(1)
    x = random.normal(size=(37, 3))
    model = NadarayaWatson(bandwidth=0.8).fit(x, random.normal(size=37))
    curve = curve_along(model, 1, "b")
    places = np.column_stack([np.full(201, np.median(x[:, 0])), curve.at, np.full(201, np.median(x[:, 2]))])
    assert (curve.name, curve.at[0], curve.at[-1]) == ("b", x[:, 1].min(), x[:, 1].max())
    np.testing.assert_array_equal(curve.estimate, model.predict(places))
    np.testing.assert_array_equal(curve.upper, model.confidence_interval(places)[1])
    np.testing.assert_array_equal(curve.data, x[:, 1])
    assert curve.values is None
    low, high, coverage = curve_along(model, 1, "b", 0.8).values
    (least, most), (lower, upper) = model.predict_interval(places, 0.8), model.confidence_interval(places)
    np.testing.assert_array_equal([low, high], [np.minimum(least, lower), np.maximum(most, upper)])
    assert coverage == 0.8


def test_where_a_kernel_reaches_nobody_the_curve_has_no_band():
    model = NadarayaWatson("epanechnikov", bandwidth=1.0).fit([[0.0], [0.5], [9.0]], [1.0, 2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve = curve_along(model, 0, "x")
    alone = curve.at > 8
    gap = (curve.at > 2) & (curve.at < 7)
    np.testing.assert_array_equal(curve.estimate[gap], np.where(curve.at[gap] < 4.75, 2, 3))
    assert np.isnan(curve.lower[gap]).all()
    assert (curve.estimate[alone] == 3).all()
    assert np.isnan(curve.lower[alone]).all()
    assert np.isfinite(curve.lower[curve.at < 0.9]).all()


@pytest.mark.parametrize("at_once", [7_000, 2**24])
@pytest.mark.parametrize(("rows", "shown"), [(23, 23), (1009, 169)])
def test_attention_among_points_is_sorted_and_summed_over_groups(rows, shown, at_once, monkeypatch):
    monkeypatch.setattr("dikkat.regression.local._ELEMENTS", at_once)
    random = np.random.default_rng(2)
    x = random.uniform(0, 9, (rows, 1))
    weight = random.uniform(0.5, 2, rows)
    model = NadarayaWatson(bandwidth=0.3).fit(pd.DataFrame(x, columns=["x"]), x[:, 0], weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights, total, by = among(model, x[:, 0])
    assert weights.shape == (shown, shown)
    assert total == rows
    groups = np.array_split(np.argsort(x[:, 0]), shown)
    assert sum(len(group) < len(groups[0]) for group in groups) <= 5  # nearly all have the same size
    middle = np.array([x[group[len(group) // 2], 0] for group in groups])
    np.testing.assert_array_equal(by, middle)
    kernel = weight * np.exp(-(((middle[:, None] - x[:, 0]) / 0.3) ** 2) / 2)
    kernel /= kernel.sum(1, keepdims=True)
    expected = np.column_stack([kernel[:, group].sum(1) for group in groups])
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-15)


def test_noise_says_nothing_of_new_rows():
    """Though the bandwidths that were chosen by the error make it small."""
    random = np.random.default_rng(0)
    model = NadarayaWatson(bandwidth="loo").fit(random.normal(size=(80, 20)), random.normal(size=80))
    assert leave_out(model).r2 > 0.15
    assert hold_out(model).r2 < 0.1


def test_rows_are_held_out_with_their_copies_and_all_chosen_anew():
    random = np.random.default_rng(0)
    x, y = random.uniform(0, 5, (40, 1)).round(1), random.normal(size=40)
    y = y * 0.2 + np.sin(x[:, 0])
    x[20:25], y[20:25] = x[:5], y[:5]
    weight = random.uniform(0.5, 2, 40)
    weight[7] = 0
    model = NadarayaWatson(bandwidth="loo").fit(x, y, weight)
    found = hold_out(model, 3)
    assert np.isnan(found.predicted).tolist() == [row == 7 for row in range(40)]
    assert not np.allclose(hold_out(model, 3, random_state=1).predicted, found.predicted, equal_nan=True)
    error = np.average((y - np.nan_to_num(found.predicted)) ** 2, weights=weight)
    assert found.error == pytest.approx(error)
    np.testing.assert_allclose(found.predicted[20:25], found.predicted[:5], rtol=1e-12)
    each = hold_out(NadarayaWatson(bandwidth=0.3).fit(x, y, weight), 99)
    np.testing.assert_allclose(
        each.predicted, leave_out(NadarayaWatson(bandwidth=0.3).fit(x, y, weight)).predicted, rtol=1e-9
    )


def test_rows_are_held_out_as_a_splitter_says():
    random = np.random.default_rng(0)
    x, groups = random.uniform(0, 3, (41, 2)), np.arange(41) // 5
    y = np.sin(2 * x[:, 0]) + 0.2 * random.normal(size=41)
    model, splitter = KernelRegressor(bandwidth=0.7, ridge=0.3).fit(x, y), GroupKFold(3)
    found = hold_out(model, splitter, groups)
    expected = cross_val_predict(KernelRegressor(bandwidth=0.7, ridge=0.3), x, y, groups=groups, cv=splitter)
    np.testing.assert_allclose(found.predicted, expected, rtol=1e-9)
    assert found.error == pytest.approx(np.mean((y - expected) ** 2))
    first = hold_out(model, PredefinedSplit([0] * 20 + [-1] * 21))
    assert np.isnan(first.predicted[20:]).all()
    assert first.error == pytest.approx(np.mean((y - first.predicted)[:20] ** 2))
    with pytest.raises(ValueError, match="folds: got a PredefinedSplit with no row to learn from"):
        hold_out(model, PredefinedSplit([0] * 41))


def test_a_picture_of_a_model_along_its_feature():
    x = np.linspace(0, 3, 47)
    y = np.sin(x) + 0.1 * np.cos(99 * x)
    model, axes = KernelRegressor().fit(x[:, None], y), Figure().subplots()
    assert model.plot(axes, coverage=0.8) is axes
    points, line = (each.get_xydata() for each in axes.lines)
    np.testing.assert_array_equal(points, np.column_stack([x, y]))
    np.testing.assert_array_equal(line[:, 1], model.predict(line[:, :1]))
    lower, upper = model.predict_interval(line[:, :1], 0.8, "local")
    ends = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (lower.min(), upper.max())
    with pytest.raises(ValueError, match=r"ax: got axes; expected None.*features: 2"):
        model.fit(np.column_stack([x, x]), y).plot(axes)
