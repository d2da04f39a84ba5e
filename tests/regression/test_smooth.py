import re

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GroupKFold

from dikkat.regression import KernelRegressor, lowess, smooth
from dikkat.regression.diagnostics import leave_out

X = np.array([0.3, 2.9, 1.1, 1.1, 4.7, 3.7, 0.7, 5.3, 2.3, 4.1, 6.1, 1.9, 3.1])
Y = np.array([1.3, 0.7, 2.9, 2.3, -1.1, -0.7, 1.9, -0.2, 9.7, -1.3, 1.1, 2.2, 0.4])
# By statsmodels 0.15.0.
LOWESS = {
    (2 / 3, 3): [
        1.6278334801711434, 1.9126193983515445, 2.1446755767065766, 2.1446755767065766, 1.82947843742983,
        1.4638528879125874, 0.6617167819957709, 0.35302041179471366, -0.43546411598948387, -0.5499954757820241,
        -0.3592400971462124, -0.01837632816650281, 0.5115841323545295,
    ],
    (0.4, 0): [
        1.2831646184102712, 1.9352123892475597, 2.5999999999999996, 2.5999999999999996, 4.741213235413487,
        4.557386403838473, 2.2042818387718586, 0.7292439453815492, -0.6548977305120455, -1.0041360728216782,
        -0.8155234461182614, -0.13256050118476037, 1.055893906094481,
    ],
    (1.0, 1): [
        2.585251799451771, 2.2895598925155416, 1.9840229539679148, 1.9840229539679148, 1.3623497206520316,
        1.051745418360938, 0.5819581895231599, 0.4110327604682203, 0.06301185786047948, -0.04953833208209356,
        -0.19586907042401316, -0.31011040886523067, -0.3825793411120265,
    ],
}  # fmt: skip


def test_texts_that_are_dates():
    days = pd.date_range("2024-03-01", periods=13)
    texts, at = days.strftime("%Y-%m-%d"), ["2024-03-07", "2024-03-02"]
    dated = smooth(days, Y, at=days[[6, 1]])
    for x, positions in ((texts, at), (texts.tolist(), days[[6, 1]]), (days, at), (texts.to_numpy(), np.array(at))):
        found = smooth(x, Y, at=positions)
        np.testing.assert_array_equal(found.y, dated.y)
        np.testing.assert_array_equal(found.x, dated.x)
        np.testing.assert_array_equal(lowess(Y, x, xvals=positions), lowess(Y, days, xvals=days[[6, 1]]))
    for x, message in (
        (days.strftime("%d/%m/%Y"), "x: got '01/03/2024'; expected numbers, or dates such as '2024-01-31'"),
        (days.strftime("%Y-%m"), r"x: got '2024-03'; expected .*pandas.to_datetime\(x, format='%d/%m/%Y'\)"),
        (["1", "?", *range(11)], r"x: got '\?'; expected numbers, or dates"),
        ([*texts[:9], None, "n/a", *texts[:2]], "x: got 'n/a'; expected numbers, or dates such as"),
    ):
        with pytest.raises(ValueError, match=message):
            smooth(x, Y)
    with pytest.raises(ValueError, match="at: got 'March'; expected dates like x, such as '2024-01-31'"):
        smooth(days, Y, at=["2024-03-02", None, "March"])


@pytest.mark.parametrize("robust", [0, 2])
def test_points_in_groups(robust):
    random = np.random.default_rng(0)
    x, group = np.repeat(np.arange(1.0, 24), 3), np.repeat([f"day {k}" for k in range(23)], 3)
    y = np.sin(x / 4) + np.repeat(random.normal(size=23), 3) + 0.1 * random.normal(size=69)
    model = KernelRegressor(cv=GroupKFold(5), logarithms=None, bandwidth=3.0)
    model.fit(x[:, None], y, groups=group)
    for _ in range(robust):
        size = np.abs(y - model.predict(x[:, None]))
        weight = np.maximum(1 - (size / (6 * np.median(size))) ** 2, 0) ** 2
        model.fit(x[:, None], y, weight * 1.0, groups=group)
    curve = smooth(x, y, at=[3.0, 7.5], groups=group, cv=GroupKFold(5), bandwidth=3.0, robust=robust)
    np.testing.assert_allclose([curve.lower, curve.upper], model.confidence_interval([[3.0], [7.5]]))
    with pytest.raises(ValueError, match=r"groups: got groups and cv=None; .* KernelRegressor\(cv=GroupKFold"):
        smooth(x, y, groups=group)
    with pytest.raises(ValueError, match=r"groups: got shape \(3,\); expected \(69,\)"):
        smooth(x, y, groups=group[:3], cv=GroupKFold(5))


def test_curves_are_short_and_become_frames():
    curve = smooth(X, Y, at=[1.0, 2.5])
    assert repr(curve) == "Smooth(2 positions from 1 to 2.5, level 0.95)"
    frame = curve.to_frame()
    assert frame.columns.tolist() == ["x", "y", "lower", "upper"]
    np.testing.assert_array_equal(frame["upper"], curve.upper)
    dated = smooth(pd.date_range("2024-03-01", periods=13), Y)
    assert repr(dated) == "Smooth(201 positions from 2024-03-01 to 2024-03-13, level 0.95)"
    left_out = leave_out(KernelRegressor(bandwidth=1.0).fit(X[:, None], Y))
    assert re.fullmatch(r"LeftOut\(13 predictions, error [\d.]+, r2 [-\d.]+\)", repr(left_out))
    np.testing.assert_array_equal(left_out.to_frame()["predicted"], left_out.predicted)
    both = leave_out(KernelRegressor(bandwidth=1.0).fit(X[:, None], np.column_stack([Y, X])))
    np.testing.assert_array_equal(both.to_frame()[["predicted0", "predicted1"]], both.predicted)


@pytest.mark.parametrize(("frac", "it"), LOWESS)
def test_lowess_by_statsmodels(frac, it):
    found = lowess(Y, X, frac, it)
    np.testing.assert_array_equal(found[:, 0], np.sort(X))
    np.testing.assert_allclose(found[:, 1], LOWESS[frac, it], atol=1e-10)


# By statsmodels 0.15.0, with xvals=AT.
AT = [5.5, 0.1, 1.1, 3.3, 3.3, 7.0]
LOWESS_AT = {
    (2 / 3, 3): [
        0.10164330473821037, 1.4659274462167828, 2.1446755767065766, 0.06683518374206457, 0.06683518374206457,
        1.2647810928872858,
    ],
    (0.4, 0): [
        0.1595602484251965, 0.9587274570759641, 2.5999999999999996, 0.022296778230858835, 0.022296778230858835,
        2.444999315759641,
    ],
}  # fmt: skip


@pytest.mark.parametrize(("frac", "it"), LOWESS_AT)
def test_lowess_at_other_positions_by_statsmodels(frac, it):
    np.testing.assert_allclose(lowess(Y, X, frac, it, xvals=AT), LOWESS_AT[frac, it], rtol=1e-12)


def test_points_that_lack_a_cell_are_left_out():
    x, y, weight = np.append(X, [np.nan, 2.0, 2.0]), np.append(Y, [7.0, np.nan, 7.0]), np.ones(16)
    weight[:13], weight[15] = np.arange(13) % 3, np.nan
    with pytest.warns(
        UserWarning, match="x, y, sample_weight: got 3 of 16 rows with a missing cell, which are left out"
    ):
        found = smooth(x, y, sample_weight=weight, at=X)
    np.testing.assert_array_equal(found.y, smooth(X, Y, sample_weight=weight[:13], at=X).y)
    with pytest.warns(UserWarning, match="x, y: got 2 of 15 rows"):
        np.testing.assert_array_equal(lowess(y[:15], x[:15]), lowess(Y, X))


def test_dates_of_every_kind_are_days():
    days = pd.date_range("2024-03-30", periods=13, tz="Europe/Berlin").normalize()  # one day of 23 hours
    moments = days.tz_convert("UTC").tz_localize(None)
    hours = (moments - moments[0]) / pd.Timedelta("1D")
    expected = smooth(hours, Y)
    for x in (days, pd.Series(days), moments.to_numpy("datetime64[s]"), days.to_pydatetime().tolist()):
        found = smooth(x, Y)
        np.testing.assert_allclose(found.y, expected.y, atol=1e-9)
        assert found.bandwidth == pytest.approx(expected.bandwidth)
        assert found.x[0] == moments[0].to_datetime64()
    plain = [day.date() for day in days]
    np.testing.assert_allclose(smooth(plain, Y).y, smooth(np.arange(13), Y).y, atol=1e-9)
    np.testing.assert_allclose(lowess(Y, plain)[:, 1], lowess(Y, np.arange(13))[:, 1])
    np.testing.assert_allclose(lowess(Y, plain, xvals=plain[3:5]), lowess(Y, np.arange(13))[3:5, 1])


def test_lowess_at_one_place_gives_a_value_back():
    np.testing.assert_array_equal(lowess([5.0, 5.0], [1.0, 1.0]), [[1.0, 5.0], [1.0, 5.0]])


def test_a_curve_is_that_of_the_estimator():
    curve, model = smooth(X, Y, 0.9, at=[5.0, 0.7]), KernelRegressor().fit(X[:, None], Y)
    np.testing.assert_array_equal(curve.x, [5.0, 0.7])
    np.testing.assert_array_equal(curve.y, model.predict([[5.0], [0.7]]))
    np.testing.assert_array_equal([curve.lower, curve.upper], model.confidence_interval([[5.0], [0.7]], 0.9))
    assert (curve.bandwidth, curve.level) == (model.bandwidth_[0], 0.9)
    np.testing.assert_array_equal(smooth(X, Y).x, np.linspace(0.3, 6.1, 201))


def test_an_outlier_does_not_bend_a_robust_curve():
    random = np.random.default_rng(0)
    x = np.linspace(0, 5, 101)
    y = np.sin(x) + 0.1 * random.normal(size=101)
    y[50] += 30
    plain, robust = (smooth(x, y, at=x, robust=passes) for passes in (0, 3))
    assert np.abs(robust.y - np.sin(x)).max() < 0.15 < 0.3 < np.abs(plain.y - np.sin(x)).max()
    weight = np.ones(101)
    weight[50] = 0  # more than six times as far off as the median
    alone = KernelRegressor().fit(x[:, None], y, weight).predict(x[:, None])
    assert np.abs(robust.y - alone).max() < 0.1


def test_a_picture_of_a_curve():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    curve = smooth(pd.Series(X, name="dose"), pd.Series(Y, name="effect"))
    assert curve.plot(axes, color="C3") is axes
    points, line = (line.get_xydata() for line in axes.lines)
    np.testing.assert_array_equal(points, np.column_stack([X, Y]))
    np.testing.assert_array_equal(line, np.column_stack([curve.x, curve.y]))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("dose", "effect")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["data", "estimate", "95 % confidence"]
    ends = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (curve.lower.min(), curve.upper.max())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smooth([[1.0]], [1.0]), r"x: got shape \(1, 1\); expected \(n,\) numbers, at least one"),
        (lambda: smooth(X, [np.inf, *Y[1:]]), "y: got 1 of 13 cells infinite"),
        (lambda: smooth(X, X * np.nan), "x, y: got 13 of 13 rows with a missing cell; expected complete rows"),
        (lambda: smooth(X, Y, at=[1.0, np.nan]), "at: got 1 of 2 rows with a missing cell; expected complete rows"),
        (lambda: smooth(X, ["a"] * 13), "y: got 'a'; expected numbers$"),
        (
            lambda: smooth(X, Y, sample_weight=Y[1:]),
            r"sample_weight: got shape \(12,\); expected \(13,\), one for each x",
        ),
        (lambda: smooth(X, Y, level=1.0), "level: got 1.0"),
        (lambda: smooth(X, Y, robust=-1), "robust: got -1"),
        (lambda: lowess(Y[1:], X), r"y: got shape \(12,\); expected \(13,\), one for each x"),
        (lambda: lowess(Y, X, frac=2), "frac: got 2"),
        (lambda: lowess(Y, X, it=0.5), "it: got 0.5"),
    ],
)
def test_arguments_that_are_none(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("sd", [0.02, 1e-12])
def test_confidence_intervals_of_what_is_nearly_straight(sd):
    """The ridge has a bias that is large beside so little noise, unless it is drawn to the plane."""
    x, places, held = np.arange(20.0), np.array([0, 1.9, 9.5, 17.1, 19]), []
    for seed in range(40):
        curve = smooth(x, x + sd * np.random.default_rng(seed).normal(size=20), at=places)
        held.append((curve.lower <= places) & (places <= curve.upper))
        assert ((curve.lower <= curve.y) & (curve.y <= curve.upper)).all()
    assert (np.mean(held, 0) > 0.85).all()


def test_lowess_of_many_points_in_one_place_does_not_hang_on_their_order():
    x, y = np.array([1.0] * 15 + [2, 3, 4, 5]), np.arange(19.0)
    turned = np.random.default_rng(0).permutation(19)
    found = lowess(y, x, frac=0.5, it=0)
    np.testing.assert_allclose(lowess(y[turned], x[turned], frac=0.5, it=0), found, rtol=1e-12)
    assert found[0, 1] == 7  # the mean of 0 to 14
    np.testing.assert_array_equal(lowess(y, np.full(19, 3.0), it=0)[:, 1], 9)
