"""Rows in the partitions of Dask collections: the same answers as of rows at hand."""

import os
import signal
import threading
import time

import dask
import dask.array as da
import dask.dataframe as dd
import dense
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import r2_score

from dikkat.errors import InputError
from dikkat.regression import NadarayaWatson, bandwidth
from dikkat.regression.criterion import Criterion
from dikkat.regression.moments import Window
from dikkat.regression.partitions.criterion import PartitionedCriterion
from dikkat.regression.partitions.places import Box

SIGMA = np.array([0.7, 1.3])
BLOCKS = (50, 0, 71, 1, 109)  # rows of each partition
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def here():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def few(monkeypatch):
    """So few rows that are looked at together that most searches go over partitions."""
    monkeypatch.setattr(bandwidth, "_PLACES", 100)


def _rows(outputs=(), dtype=np.float64):
    """Each place is there twice or more, in other partitions as well."""
    random = np.random.default_rng(0)
    count = sum(BLOCKS)
    x = random.uniform(0, 4, (170, 2))[random.integers(0, 170, count)]
    noise = random.normal(size=(count, *outputs))
    y = np.sin(2 * x[:, 0]).reshape(-1, *(1 for _ in outputs)) + 0.3 * noise + 5
    return x.astype(dtype), y, random.integers(0, 3, count).astype(dtype), random.uniform(-1, 5, (23, 2)).astype(dtype)


def _parted(*arrays):
    return [da.from_array(array, chunks=(BLOCKS, *array.shape[1:])) for array in arrays]


@pytest.mark.parametrize("order", dense.ORDERS)
@pytest.mark.parametrize("kernel", ["gaussian", "epanechnikov", "average"])
@pytest.mark.parametrize("outputs", [(), (2,)])
def test_predictions_are_those_of_rows_at_hand(kernel, order, outputs):
    x, y, weight, query = _rows(outputs)
    settings = {"bandwidth": SIGMA, "order": order, "out_of_reach": "nearest"}
    wanted = NadarayaWatson(kernel, **settings).fit(x, y, weight)
    model = NadarayaWatson(kernel, **settings).fit(*_parted(x, y, weight))
    for found in (model.predict(query), model.predict(da.from_array(query, chunks=(11, 1)))):
        assert found.shape == (23, *outputs)
        np.testing.assert_allclose(found, wanted.predict(query), rtol=1e-10)
    made = wanted.predict(da.from_array(query, chunks=(11, 2)))
    np.testing.assert_allclose(made, wanted.predict(query), rtol=1e-10)
    parted = model.score(*_parted(x, y, weight))
    assert parted == pytest.approx(wanted.score(x, y, weight), rel=1e-10)


def test_frames_single_precision_and_what_nobody_reaches():
    x, y, _, query = _rows(dtype=np.float32)
    frame = dd.from_pandas(pd.DataFrame(x, columns=["a", "b"]).assign(y=y), npartitions=4)
    queries = pd.DataFrame(query, columns=["a", "b"])
    model = NadarayaWatson("boxcar", bandwidth=0.4).fit(frame[["a", "b"]], frame["y"])
    assert model.target_name_ == "y"
    assert list(model.feature_names_in_) == ["a", "b"]
    found = model.predict(dd.from_pandas(queries, npartitions=2)).compute()
    wanted = NadarayaWatson("boxcar", bandwidth=0.4).fit(pd.DataFrame(x, columns=["a", "b"]), y)
    with pytest.warns(UserWarning, match="no training row in reach"):
        expected = wanted.predict(queries)
    assert found.dtype == expected.dtype == np.float32
    assert 0 < np.isnan(expected).sum() < 23
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.warns(UserWarning, match="rows of X have no training row in reach"):
        score = model.score(dd.from_pandas(queries, npartitions=2), dd.from_pandas(queries["a"], npartitions=2))
    filled = np.where(np.isnan(expected), y.astype(np.float64).mean(), expected)
    assert score == pytest.approx(r2_score(queries["a"], filled), rel=1e-5)
    with pytest.warns(UserWarning, match="no training row in reach"):
        assert model.score(queries, queries["a"]) == pytest.approx(score, rel=1e-5)


def test_categories_are_for_rows_at_hand():
    x = np.array([[1.0, 0.0], [2.0, 1.0], [1.0, 2.0], [2.0, 3.0]])
    model = NadarayaWatson(bandwidth=[0.5, 1.0], categorical_features=[0]).fit(x, [1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match="a model with columns of categories"):
        model.predict(da.from_array(x))


@pytest.mark.parametrize(
    ("kernel", "order", "by"),
    [
        ("gaussian", "constant", "loo"),
        ("gaussian", "linear", "loo"),
        ("gaussian", "constant", "loo-1se"),
        ("gaussian", "constant", "aic"),
        ("epanechnikov", "constant", "loo"),
        ("boxcar", "linear", "silverman"),
    ],
)
def test_bandwidths_are_those_of_rows_at_hand(kernel, order, by, few):
    x, y, weight, _ = _rows((2,))
    wanted = NadarayaWatson(kernel, bandwidth=by, order=order).fit(x, y, weight)
    model = NadarayaWatson(kernel, bandwidth=by, order=order).fit(*_parted(x, y, weight))
    np.testing.assert_allclose(model.bandwidth_, wanted.bandwidth_, rtol=1e-6)
    assert model.ridge_ == pytest.approx(wanted.ridge_, rel=1e-5)
    for found, expected in zip(model.history_[-1:], wanted.history_[-1:], strict=True):
        assert found["error"] == pytest.approx(expected["error"], rel=1e-10)


def test_few_rows_are_searched_together():
    x, y, weight, _ = _rows()
    wanted = NadarayaWatson(bandwidth="loo-1se").fit(x, y, weight)
    model = NadarayaWatson(bandwidth="loo-1se").fit(*_parted(x, y, weight))
    np.testing.assert_allclose(model.bandwidth_, wanted.bandwidth_, rtol=1e-6)


def _places(x, y, weight):
    model = NadarayaWatson(bandwidth=SIGMA)
    return [
        each._smoother.joined
        for each in (model.fit(x, y, weight), NadarayaWatson(bandwidth=SIGMA).fit(*_parted(x, y, weight)))
    ]


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("kind", ["loo", "gcv"])
def test_criterion_and_gradient_are_sums_over_pairs_of_pieces(degree, kind):
    x, y, weight, _ = _rows((2,))
    joined, parted = _places(x, y, weight)
    assert len(parted.pieces) == 4  # there is one block without rows
    assert parted.places == joined.places
    how = ("gaussian", degree, CPU, None if degree else 0.0, kind)
    for sigma in ([0.1, 0.2], [0.5, 2.0]):
        t = np.log([*sigma, *[0.3] * degree])
        one, other = Criterion(joined, *how), PartitionedCriterion(parted, *how)
        wanted, found = one(t), other(t)
        assert found.error == pytest.approx(wanted.error, rel=1e-11)
        assert other.freedom(found) == pytest.approx(one.freedom(wanted), rel=1e-11)
        for mine, theirs in zip(other.gradient(found), one.gradient(wanted), strict=True):
            # of a criterion without a derivative, differences of rounded numbers
            np.testing.assert_allclose(mine, theirs, rtol=1e-9 if kind == "loo" else 1e-5, atol=1e-9)
        for mine, theirs in zip(other.excess(found, other(t + 0.1)), one.excess(wanted, one(t + 0.1)), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-9)


def test_pieces_are_in_the_order_of_the_coordinates():
    random = np.random.default_rng(1)
    x = np.column_stack([np.full(300, 2.0), random.integers(0, 9, 300), random.normal(size=300)])
    blocks = da.from_array(x, chunks=(60, 3))
    model = NadarayaWatson(bandwidth=1.0).fit(blocks, blocks[:, 2])
    joined = NadarayaWatson(bandwidth=1.0).fit(x, x[:, 2])._smoother.joined
    parted = model._smoother.joined
    assert len(parted.pieces) == 5
    pieces = [np.unique(piece.x, axis=0) for piece in dask.compute(*parted.pieces)]
    np.testing.assert_array_equal(np.concatenate(pieces), np.unique(x, axis=0))
    np.testing.assert_allclose(parted.known.spread, joined.spread(), rtol=1e-13)
    assert parted.known.variance == pytest.approx(joined.variance(), rel=1e-13)
    some = np.array([0, 61, 62, 299])
    np.testing.assert_array_equal(np.sort(parted.ranked(some).x, 0), np.sort(joined.ranked(some).x, 0))


def test_far_pieces_are_not_looked_at():
    box = Box(9, 9.0, np.array([1.0, 0.0]), np.array([2.0, 5.0]))
    query = torch.tensor([[0.5, 3.0], [-3.0, 3.0], [1.5, 7.0]], dtype=torch.float64)
    floor = torch.full((3,), -6.0, dtype=torch.float64)
    sigma = torch.tensor([1.0, 1.0], dtype=torch.float64)
    # −0.5²/2 + log 9 = 2.07, −4²/2 + log 9 = −5.8, −2²/2 + log 9 = 0.2
    assert box.seen(query, Window("gaussian", sigma), floor).tolist() == [True, True, True]
    assert box.seen(query, Window("gaussian", sigma), floor + 0.3).tolist() == [True, False, True]
    assert box.seen(query, Window("boxcar", sigma), floor).tolist() == [True, False, False]
    assert box.seen(query, Window("average", sigma), floor).tolist() == [True, True, True]


def test_tolerance_bounds_what_is_left_out():
    x, y, weight, _ = _rows()
    exact, rough = (
        NadarayaWatson(bandwidth=0.1, tolerance=each).fit(*_parted(x, y, weight)).predict(x) for each in (0.0, 0.01)
    )
    assert 0 < np.abs(rough - exact).max() <= 0.01 * np.ptp(y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": (3, np.nan)}, "X: got nan in partition 0; expected finite numbers"),
        ({"y": (60, np.inf)}, "y: got inf in partition 2; expected finite numbers"),
        ({"weight": (130, -1.0)}, "sample_weight: got in partition 4"),
    ],
)
def test_a_partition_with_what_is_no_number(change, message):
    x, y, weight, _ = _rows()
    given = {"x": x, "y": y, "weight": weight}
    for name, (row, wrong) in change.items():
        given[name][row] = wrong
    with pytest.raises(ValueError, match=message):
        NadarayaWatson(bandwidth=1.0).fit(*_parted(*given.values()))


def test_a_partition_with_other_columns():
    frames = [pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}), pd.DataFrame({"a": [1.0], "c": [3.0]})]
    parts = dd.from_map(lambda place: frames[place], [0, 1], meta=frames[0].iloc[:0])
    with pytest.raises(ValueError, match="X: got in partition 1 the columns a, c; expected a, b"):
        NadarayaWatson(bandwidth=1.0).fit(parts, parts.map_partitions(lambda part: part["a"], meta=("y", float)))
    text = dd.from_pandas(pd.DataFrame({"a": ["u", "v"]}), npartitions=1)
    with pytest.raises(ValueError, match="X: got 'u' in partition 0; expected finite numbers"):
        NadarayaWatson(bandwidth=1.0).fit(text, text["a"])


def test_what_does_not_fit():
    x, y, weight, query = _rows()
    blocks, values, weights = _parted(x, y, weight)
    model = NadarayaWatson(bandwidth=1.0)
    with pytest.raises(ValueError, match="y: got 10 rows; expected 231, as X has"):
        model.fit(blocks, values[:10])
    with pytest.raises(ValueError, match="y: got ndarray beside a Dask collection"):
        model.fit(blocks, y)
    with pytest.raises(ValueError, match="X: got no row in 5 partitions"):
        model.fit(blocks[blocks[:, 0] > 9], values[blocks[:, 0] > 9])
    with pytest.raises(ValueError, match=r"y: got in partition \d \d+ rows; expected \d+, as X has"):
        model.fit(blocks[blocks[:, 0] > 1], values[blocks[:, 0] > 2])
    with pytest.raises(ValueError, match="sample_weight: got zeros alone"):
        model.fit(blocks, values, 0 * weights)
    with pytest.raises(ValueError, match="neighbors: got 3 beside a Dask collection"):
        NadarayaWatson(bandwidth=1.0, neighbors=3).fit(blocks, values)
    with pytest.raises(ValueError, match="missing: got 'drop' beside a Dask collection"):
        NadarayaWatson(missing="drop").fit(blocks, values)
    with pytest.raises(ValueError, match="got a Dask collection in partial_fit"):
        model.fit(x, y).partial_fit(blocks, values)
    model.fit(blocks, values)
    with pytest.raises(ValueError, match="X has 1 features, but NadarayaWatson is expecting 2"):
        model.predict(blocks[:, :1])
    for ask in (model.confidence_band, model.attention_weights, model.effective_neighbors, model.gradient):
        with pytest.raises(InputError, match="got a Dask collection in fit"):
            ask(query)
    with pytest.raises(InputError, match="got a Dask collection in fit"):
        model.predict(blocks, return_std=True)


def test_a_saved_model_has_all_rows(tmp_path):
    x, y, weight, query = _rows()
    model = NadarayaWatson(bandwidth=SIGMA).fit(*_parted(x, y, weight))
    model.save(tmp_path / "model")
    loaded = NadarayaWatson.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.X_train_, x)
    np.testing.assert_allclose(loaded.predict(query), model.predict(query), rtol=1e-12)


def _slow_at_first(block):
    """A partition that takes so long to read that a worker can die over it."""
    time.sleep(0.1)
    return block


@pytest.fixture(scope="module")
def cluster():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster,
        Client(cluster) as client,
    ):
        yield client


def test_a_worker_that_dies_in_fit_is_made_good(cluster):
    x, y, weight, query = _rows()
    wanted = NadarayaWatson(bandwidth="silverman").fit(x, y, weight)
    blocks = [each.map_blocks(_slow_at_first, dtype=each.dtype) for each in _parted(x, y, weight)]
    workers = sorted(cluster.run(os.getpid).values())
    killer = threading.Timer(0.5, os.kill, (workers[0], signal.SIGKILL))
    killer.start()
    with dask.config.set(scheduler=cluster):
        model = NadarayaWatson(bandwidth="silverman").fit(*blocks)
        killer.join()
        found = model.predict(query)
        searching = PartitionedCriterion(model._smoother.joined, "gaussian", 1, CPU)
        trial = searching(np.log(SIGMA))
        slope, _ = searching.gradient(trial)
    assert workers[0] not in cluster.run(os.getpid).values()
    np.testing.assert_allclose(model.bandwidth_, wanted.bandwidth_, rtol=1e-12)
    np.testing.assert_allclose(found, wanted.predict(query), rtol=1e-10)
    criterion = Criterion(wanted._smoother.joined, "gaussian", 1, CPU)
    assert trial.error == pytest.approx(criterion(np.log(SIGMA)).error, rel=1e-11)
    np.testing.assert_allclose(slope, criterion.gradient(criterion(np.log(SIGMA)))[0], rtol=1e-9)
