"""Dask's collections: predicted partition by partition, by a model of rows at hand."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dikkat.errors import InputError
from dikkat.regression import NadarayaWatson

BLOCKS = (5, 0, 7, 1, 11)  # rows of each partition


@pytest.fixture(autouse=True)
def here():
    with dask.config.set(scheduler="synchronous"):
        yield


def _rows(outputs=()):
    random = np.random.default_rng(0)
    x = random.uniform(0, 4, (31, 2))
    return x, random.normal(size=(31, *outputs)), random.uniform(0, 4, (sum(BLOCKS), 2))


@pytest.mark.parametrize("outputs", [(), (2,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions_are_those_of_rows_at_hand(outputs, dtype):
    x, y, query = _rows(outputs)
    model = NadarayaWatson(bandwidth=0.7).fit(x.astype(dtype), y)
    parted = da.from_array(query.astype(dtype), chunks=(BLOCKS, (1, 1)))
    expected = model.predict(query.astype(dtype), return_std=True)
    found = model.predict(parted)
    assert (found.shape, found.dtype) == (expected[0].shape, dtype)
    for one, other in zip(model.predict(parted, return_std=True), expected, strict=True):
        np.testing.assert_allclose(one.compute(), other, rtol=1e-5 if dtype == np.float32 else 1e-12)


def test_frames_with_categories():
    x, y, query = _rows()
    towns = np.array(["Lyon", "Ulm"])
    homes, asked = (pd.DataFrame({"area": each[:, 0], "town": towns[(each[:, 1] > 2) * 1]}) for each in (x, query))
    model = NadarayaWatson(bandwidth=[0.7, 0.2], categorical_features=["town"]).fit(homes, y)
    found = model.predict(dd.from_pandas(asked, npartitions=3))
    np.testing.assert_allclose(found.compute(), model.predict(asked), rtol=1e-12)


def test_what_is_refused():
    x, y, query = _rows()
    parted = da.from_array(query, chunks=(BLOCKS, 2))
    for rows in ((parted, y), (x, da.from_array(y))):
        with pytest.raises(InputError, match=r"^[Xy]: got a Dask collection; expected rows in memory"):
            NadarayaWatson().fit(*rows)
    model = NadarayaWatson(bandwidth=1.0).fit(x, y)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(da.zeros((4, 3)))
    with pytest.raises(ValueError, match="X: got 1 dimensions; expected a Dask array or data frame of 2"):
        model.predict(parted[:, 0])
    with pytest.raises(ValueError, match="NaN"):
        model.predict(da.from_array(np.full((4, 2), np.nan))).compute()
