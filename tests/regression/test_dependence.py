"""Errors of neighbouring rows that are alike are told, and others are not: draws of known noise."""

import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.signal import lfilter
from sklearn.model_selection import GroupKFold

from dikkat.regression import KernelRegressor
from dikkat.regression.diagnostics import dependent_column, errors_are_alike, places_of

Array = NDArray[np.float64]
MEANS: dict[str, Callable[[Array], Array]] = {
    "sine": lambda x: np.sin(4 * np.pi * x),
    "bump": lambda x: 4 * np.exp(-(((x - 0.3) / 0.05) ** 2)) + x,
    "none": np.zeros_like,
}


def autoregressive(random: np.random.Generator, rows: int, memory: float = 0.6) -> Array:
    """A stationary series of variance 1, each number `memory` times the one before and noise."""
    noise = random.normal(size=rows)
    noise[0] /= (1 - memory**2) ** 0.5
    series: Array = lfilter([(1 - memory**2) ** 0.5], [1, -memory], noise)
    return series


def share_told(draw: Callable[[np.random.Generator], Array], mean: Callable[[Array], Array], even: bool) -> float:
    """Of 200 draws of 200 rows, those of which it is said that their errors are alike."""
    random, told = np.random.default_rng(3), []
    for _ in range(200):
        x = np.linspace(0, 1, 200) if even else random.random(200)
        y = mean(x)
        y[np.argsort(x)] += 0.3 * draw(random)
        told.append(errors_are_alike(x, y))
    return float(np.mean(told))


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("mean", MEANS)
def test_a_series_is_told_and_independent_errors_are_not(mean: str, even: bool) -> None:
    assert share_told(lambda random: autoregressive(random, 200), MEANS[mean], even) >= 0.9
    independent: list[Callable[[np.random.Generator], Array]] = [
        lambda random: random.normal(size=200),
        lambda random: random.normal(size=200) * np.linspace(0.2, 2.2, 200),
        lambda random: random.standard_t(3, size=200),
        lambda random: random.exponential(size=200) - 1,
    ]
    assert np.mean([share_told(draw, MEANS[mean], even) for draw in independent]) <= 0.03


@pytest.mark.parametrize("rows", [59, 397])
def test_rows_without_errors_and_few_rows_say_nothing(rows: int) -> None:
    x = np.linspace(-1, 1, rows)
    for y in (np.zeros(rows), 3 + x, 1e9 + 7 * x, np.sin(9 * x), np.sign(x)):
        assert not errors_are_alike(x, y)
    assert not errors_are_alike(np.ones(rows), autoregressive(np.random.default_rng(0), rows))
    assert errors_are_alike(x, autoregressive(np.random.default_rng(0), rows)) == (rows > 59)


@pytest.mark.parametrize(("period", "noise"), [(5, 0.7), (7, 0.3), (7, 0.7), (12, 0.3), (15, 0.3)])
def test_seasons_are_no_dependent_errors(period: int, noise: float) -> None:
    random, x = np.random.default_rng(3), np.arange(300.0)
    draws = (np.sin(2 * np.pi * x / period) + noise * random.normal(size=300) for _ in range(100))
    assert np.mean([errors_are_alike(x, y) for y in draws]) <= 0.08


def test_copies_of_rows_are_no_dependent_errors() -> None:
    told = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        x = random.random(200)
        y, some = np.sin(9 * x) + 0.3 * random.normal(size=200), random.integers(0, 200, 200)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            KernelRegressor().fit(x[some, None], y[some])
        told.append(len(caught))
    assert sum(told) <= 2


def test_a_warning_that_is_an_error_leaves_the_model_as_it_was() -> None:
    x, y = np.arange(300.0)[:, None], autoregressive(np.random.default_rng(1), 300)
    model = KernelRegressor()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            model.fit(x, y)
        assert not hasattr(model, "X_train_")
        KernelRegressor(bandwidth="silverman").fit(x, y)  # which looks at x alone


def test_fit_warns() -> None:
    random = np.random.default_rng(7)
    x = np.arange(300.0)[:, None]
    y = np.sin(x[:, 0] / 40) + 0.3 * autoregressive(random, 300)
    with pytest.warns(UserWarning, match="y: got rows whose errors correlate with their neighbours' along") as told:
        model = KernelRegressor().fit(x, y)
    assert told[0].filename == __file__
    with warnings.catch_warnings():  # a bandwidth as told, rows in any order as above, weights of 0, other errors
        warnings.simplefilter("error")
        thinned = KernelRegressor().fit(x[::6], y[::6])
        wide = KernelRegressor(bandwidth=thinned.bandwidth_).fit(x, y)
        KernelRegressor().fit(x, y, sample_weight=(np.arange(300) % 6 == 0).astype(float))
        KernelRegressor().fit(x, np.sin(x[:, 0] / 40) + 0.3 * random.normal(size=300))
    assert wide.bandwidth_[0] > 3 * model.bandwidth_[0]
    shuffled = random.permutation(300)
    with pytest.warns(UserWarning, match="correlate with their neighbours"):
        KernelRegressor().fit(x[shuffled], y[shuffled])


def _measured(repeats: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Places in two columns, measured so many times, each with an offset of its own."""
    random = np.random.default_rng(seed)
    places, offset = random.uniform(0, 9, (47, 2)), 2 * random.normal(size=47)
    group = np.repeat(np.arange(47), repeats)
    return places[group], places[group, 0] + offset[group] + 0.5 * random.normal(size=len(group)), group


def test_fit_warns_of_repeats_that_hide_errors() -> None:
    x, y, group = _measured(3)
    with pytest.warns(UserWarning, match="X: got rows at 47 places, equal or nearly equal in X, as") as told:
        model = KernelRegressor().fit(x, y)
    # A loop: how far off a place is that is left out, its repeats with it, beside a row alone.
    settings = {"bandwidth": model.bandwidth_, "ridge": model.ridge_}
    kept, gone = ([y[i] - _left_out(settings, x, y, alone(i)).predict(x[[i]])[0] for i in range(len(x))] for alone in (
        lambda i: np.arange(len(x)) == i, lambda i: group == group[i]
    ))  # fmt: skip
    beside, without = (np.sqrt(np.mean(np.square(each))) for each in (kept, gone))
    assert f"At a new place the error is {without:.3g}, not {beside:.3g}, and" in str(told[0].message)
    assert str(told[0].message).endswith("the place of each row as groups, with cv=GroupKFold(10)")
    with warnings.catch_warnings():  # by groups, the means, and where a place says nothing of its own
        warnings.simplefilter("error")
        KernelRegressor(cv=GroupKFold(5)).fit(x, y, groups=group)
        KernelRegressor().fit(x[::3], y.reshape(-1, 3).mean(1))
        KernelRegressor().fit(x, x[:, 0] + np.random.default_rng(1).normal(size=len(x)))


def _left_out(settings: dict, x: Array, y: Array, gone: Array) -> KernelRegressor:
    return KernelRegressor(**settings).fit(x[~gone], y[~gone])


@pytest.mark.parametrize("jitter", [0.0, 0.03])
@pytest.mark.parametrize(("columns", "repeats"), [(1, 5), (3, 3), (3, 5), (2, 20)])
def test_near_repeats_are_found_at_their_places(columns: int, repeats: int, jitter: float) -> None:
    random = np.random.default_rng(0)
    grid = np.column_stack([random.permutation(15).astype(float) for _ in range(columns)])
    place = np.repeat(np.arange(len(grid)), repeats)
    x = grid[place] + jitter * random.uniform(-1, 1, (len(place), columns))
    found = places_of(x, columns)
    assert found is not None
    np.testing.assert_array_equal(found[:, None] == found, place[:, None] == place)


def test_rows_without_places_have_none() -> None:
    random = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(9.0), np.arange(11.0)), -1).reshape(-1, 2)
    tables = [random.uniform(size=(60, d)) for d in (1, 2, 4)] + [random.lognormal(size=(80, d)) for d in (1, 3)]
    tables.append(7.0 * random.integers(0, 3, (400, 1)) + random.normal(size=(400, 1)))  # around three centers
    assert [places_of(x, x.shape[1]) for x in [*tables, grid, np.arange(70.0)[:, None], grid[:2]]] == [None] * 9


def test_places_in_one_dimension_may_overlap() -> None:
    random = np.random.default_rng(0)
    center, effect, place = random.uniform(0, 10, 20), random.normal(size=20), np.repeat(np.arange(20), 20)
    x = center[place] + 0.05 * random.normal(size=400)
    assert (np.diff(np.sort(center)) < 0.2).sum() >= 4  # closer than the places are wide
    with pytest.warns(UserWarning, match="nearly equal in X.*GroupKFold"):
        KernelRegressor().fit(x[:, None], np.sin(x) + effect[place] + 0.3 * random.normal(size=400))


def _by_date(random: np.random.Generator, memory: float) -> tuple[pd.DataFrame, Array]:
    day = np.arange(300)
    mean = 5 * np.sin(day / 28) + np.array([0, 1, 2, 1, 3, -4, -5])[day % 7]
    date = pd.date_range("2024-01-01", periods=300)
    return pd.DataFrame({"weekday": pd.Categorical(day % 7), "date": date}), mean + autoregressive(random, 300, memory)


def test_a_series_beside_other_columns_and_near_repeats_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="correlate with their neighbours' along 'date', .* cv=20,"):
        KernelRegressor().fit(*_by_date(np.random.default_rng(0), 0.6))
    x, y, group = _measured(4)
    x = x + 0.02 * np.random.default_rng(1).normal(size=x.shape)
    with pytest.warns(UserWarning, match="nearly equal in X.*GroupKFold"):
        KernelRegressor().fit(x, y)
    random = np.random.default_rng(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelRegressor().fit(*_by_date(random, 0.0))
        KernelRegressor(cv=GroupKFold(5)).fit(x, y, groups=group)
        other = random.uniform(size=(100, 3))
        KernelRegressor().fit(other, np.sin(6 * other[:, 0]) + other[:, 1] + 0.3 * random.normal(size=100))


def _panel(stores: int, memory: float, seed: int, same_hour: bool = True) -> tuple[pd.DataFrame, Array]:
    """Shuffled rows of stores, each with 200 days, its own level, phase and errors; the price has no effect."""
    random, day, store = (
        np.random.default_rng(seed),
        np.tile(np.arange(200.0), stores),
        np.repeat(np.arange(stores), 200),
    )
    errors = np.concatenate([autoregressive(random, 200, memory) for _ in range(stores)])
    y = 2 * np.sin(day / 28 + 0.3 * store) + store % 3 + errors
    date = pd.Timestamp("2024-01-01") + pd.to_timedelta(day + (0 if same_hour else random.random(len(day))), "D")
    x = pd.DataFrame({"price": random.random(len(day)), "store": pd.Categorical(store), "date": date})
    rows = random.permutation(len(day))
    return x.iloc[rows], y[rows]


@pytest.mark.parametrize("same_hour", [True, False])
@pytest.mark.parametrize("stores", [2, 3, 5])
def test_series_of_several_stores_are_warned_of(stores: int, same_hour: bool) -> None:
    with pytest.warns(UserWarning, match="correlate with their neighbours' along 'date'"):
        model = KernelRegressor().fit(*_panel(stores, 0.6, 0, same_hour))
    # At most 199 and 250 the rows are those of one store.
    assert [dependent_column(model, most) for most in (199, 250, 2000)] == [2] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelRegressor().fit(*_panel(stores, 0.0, 0, same_hour))


def test_independent_errors_at_rounded_numbers_are_no_dependence() -> None:
    columns = []
    for seed in range(10):
        random = np.random.default_rng(seed)
        age, group = random.integers(18, 95, 300).astype(float), random.integers(0, 3, 300)
        y = np.sin(age / 15) + group + 0.5 * random.normal(size=300)
        model = KernelRegressor().fit(pd.DataFrame({"age": age, "group": pd.Categorical(group)}), y)
        columns.append(dependent_column(model))
    assert columns.count(0) <= 1


def test_blocks_are_learned_without_the_rows_next_to_them() -> None:
    model = KernelRegressor(bandwidth=1.0, cv=4).fit(np.arange(20.0)[:, None], np.arange(20.0) % 3)
    tested, learned = model.folds_ == 2, model.folds_ == 1
    for block in range(4):
        own = np.arange(5 * block, 5 * block + 5)
        assert np.flatnonzero(tested[block]).tolist() == own.tolist()
        away = np.abs(np.arange(20)[:, None] - own).min(1)
        assert np.flatnonzero(learned[block]).tolist() == np.flatnonzero(away > 2).tolist()
