import json

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.base import clone

from dikkat.errors import InputError
from dikkat.regression import KernelRegressor, NadarayaWatson, estimator
from dikkat.regression.files import VERSION


def data(rows=23, size=3, outputs=None, dtype=np.float64, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, size)).astype(dtype)
    return x, random.normal(size=rows if outputs is None else (rows, outputs)).astype(dtype)


def model_file(path, change=None, tensors=None, metadata=None):
    """A file like a saved one, with the content and the tensors changed."""
    NadarayaWatson(bandwidth=[1.0, 2.0, 0.5]).fit(*data()).save(path)
    with safe_open(path, framework="numpy") as file:
        content = json.loads(file.metadata()["dikkat"])
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    (change or (lambda content: None))(content)
    held |= tensors or {}
    held = {name: array for name, array in held.items() if array is not None}
    save_file(held, path, {"dikkat": json.dumps(content)} if metadata is None else metadata)
    return path


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("outputs", [None, 1, 2])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bandwidth": np.float32(0.7), "order": "linear"},
        {"bandwidth": np.array([1.0, 2.0, 0.5]), "kernel": "epanechnikov"},
    ],
)
def test_a_loaded_model_is_the_saved_one(tmp_path, settings, outputs, dtype):
    x, y = data(outputs=outputs, dtype=dtype)
    weight = np.random.default_rng(1).uniform(0, 2, len(x))
    weight[4] = 0
    model = NadarayaWatson(**settings).fit(x, y, weight)
    model.save(tmp_path / "model.safetensors")
    loaded = NadarayaWatson.load(tmp_path / "model.safetensors")
    query = data(17, seed=2)[0]
    for one, other in zip(model.predict(query, return_std=True), loaded.predict(query, return_std=True), strict=True):
        np.testing.assert_array_equal(other, one)
        assert one.dtype == other.dtype == dtype
    for name in ("X_train_", "y_train_", "sample_weight_", "bandwidth_"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert loaded.history_ == model.history_
    assert vars(loaded).keys() == vars(model).keys()
    np.testing.assert_array_equal(clone(loaded).bandwidth, model.bandwidth)


def test_loading_searches_no_bandwidth_and_changes_nothing(tmp_path, monkeypatch):
    x, y = data()
    NadarayaWatson(bandwidth="loo").fit(x, y).save(tmp_path / "one")
    monkeypatch.setattr(estimator, "chosen_bandwidths", lambda *_: pytest.fail("the bandwidth is searched again"))
    NadarayaWatson.load(tmp_path / "one").save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("names", [None, ["hour", "day"]])
def test_a_period_is_there_again(tmp_path, names):
    x = np.random.default_rng(1).uniform(0, 24, (41, 2))
    x = x if names is None else pd.DataFrame(x, columns=names)
    y = np.sin(np.asarray(x)[:, 0] * np.pi / 12)
    model = KernelRegressor(bandwidth=[2.0, 2.0], periodic_features={"hour" if names else 0: 24}).fit(x, y)
    model.save(tmp_path / "model")
    other = clone(KernelRegressor.load(tmp_path / "model")).fit(x, y)
    assert other.columns_ == model.columns_
    np.testing.assert_array_equal(other.predict(x), model.predict(x))


def put(**values):
    return lambda content: content.update(values)


def set_to(name, value):
    return lambda content: content["settings"].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(format="another"), "format: got 'another'; expected 'dikkat kernel regression'"),
        (
            put(columns=[{"kind": "number"}]),
            "columns: got [{'kind': 'number'}]; expected a kind for each column of X_train_",
        ),
        (
            put(columns=[{"kind": "category", "levels": ["a"], "origin": "", "log": []}] * 3),
            "expected positive and finite",
        ),
        (
            put(columns=[{"kind": "number", "levels": [], "origin": "", "log": [0.0, 0.0]}] * 3),
            "expected a kind for each column of X_train_",
        ),
        (put(target=3), "target: got 3; expected a name or null"),
        (put(version=7), f"version: got 7; expected {VERSION}. Use the dikkat that wrote it"),
        (put(estimator=3), "estimator: missing or of a wrong type"),
        (put(history=None), "history: missing or of a wrong type"),
        (
            put(history=[{"bandwidth": [1.0], "error": 0.5}]),
            "history: got an invalid entry; expected bandwidths and errors",
        ),
        (put(settings={}), "got the settings ; expected bandwidth, categorical_features, cv, kernel, logarithms"),
        (set_to("kernel", "cosine"), "kernel: got 'cosine'"),
        (set_to("bandwidth", -1.0), "bandwidth: got -1.0"),
        (set_to("kernel", "boxcar"), "kernel: got 'boxcar'; expected 'gaussian', 'epanechnikov'"),
        (set_to("bandwidth", "gcv"), "bandwidth: got 'gcv'; expected"),
        (set_to("extra", 1), "got the settings bandwidth, categorical_features, cv, extra, kernel"),
        (put(ridge=-1.0), "ridge: got -1.0; expected a number of at least 0"),
        (put(ridge="auto"), "ridge: got 'auto'; expected a number"),
        (set_to("ridge", -1.0), "ridge: got -1.0; expected a number of rows"),
        (put(feature_names=["a", "b", 3]), "; expected 3 texts"),
    ],
)
def test_content_that_does_not_fit(tmp_path, change, message):
    with pytest.raises(InputError, match=f"^{tmp_path / 'model'}: ") as caught:
        NadarayaWatson.load(model_file(tmp_path / "model", change))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["columns", "target", "ridge", "history", "settings"])
def test_content_that_lacks_a_part(tmp_path, name):
    path = model_file(tmp_path / "model", lambda content: content.pop(name) and None)
    with pytest.raises(InputError, match=f"^{path}: .*{name}"):
        NadarayaWatson.load(path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"y_train_": None}, "y_train_: got nothing; expected a tensor"),
        ({"surface_": np.zeros((4, 3))}, "surface_: got float64 (4, 3); expected float64 (7, 3), positive in row 1"),
        ({"extra": np.ones(2)}, "extra: got a tensor; expected nothing"),
        ({"X_train_": np.ones(23)}, "X_train_: got float64 (23,); expected float32 or float64 (rows, features)"),
        ({"X_train_": np.ones((23, 3), np.int64)}, "X_train_: got int64"),
        ({"y_train_": np.ones(19)}, "y_train_: got float64 (19,); expected float64 (23,) or (23, outputs)"),
        ({"y_train_": np.ones(23, np.float32)}, "y_train_: got float32 (23,)"),
        ({"sample_weight_": np.ones(19)}, "sample_weight_: got float64 (19,); expected float64 (23,)"),
        ({"bandwidth_": np.ones(2)}, "bandwidth_: got float64 (2,); expected float64 (3,)"),
        ({"X_train_": np.full((23, 3), np.nan)}, "X_train_: got NaN or infinity"),
        (
            {"sample_weight_": -np.ones(23)},
            "sample_weight_: got negative numbers, or only zeros; expected at least one",
        ),
        ({"bandwidth_": np.array([1.0, 0.0, 1.0])}, "expected positive and finite"),
        (
            {"bandwidth_": np.array([1.0, 1e-310, 1.0])},
            "bandwidth_: got [1.0, 1e-310, 1.0]; expected positive and finite in float64",
        ),
        ({"bandwidth_": np.array([1.0, np.nan, 1.0])}, "expected positive and finite"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path, tensors, message):
    with pytest.raises(InputError, match=f"^{tmp_path / 'model'}: ") as caught:
        NadarayaWatson.load(model_file(tmp_path / "model", tensors=tensors))
    assert message in str(caught.value)


@pytest.mark.parametrize("metadata", [{}, {"format": "pt"}, {"dikkat": "[]"}, {"dikkat": "{"}])
def test_a_safetensors_file_of_something_else(tmp_path, metadata):
    with pytest.raises(InputError, match=r"its metadata are not JSON|format: got None; expected 'dikkat kernel regr"):
        NadarayaWatson.load(model_file(tmp_path / "model", metadata=metadata))


def test_damaged_and_missing_files(tmp_path):
    path = model_file(tmp_path / "model")
    whole_file = path.read_bytes()
    for content in (b"", b"PK\x03\x04 a zip archive", whole_file[:-5], whole_file[:50]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="truncated, damaged, or not a safetensors file"):
            NadarayaWatson.load(path)
    with pytest.raises(FileNotFoundError):
        NadarayaWatson.load(tmp_path / "none")


class Smooth(NadarayaWatson):
    """With a setting of its own."""

    def __init__(self, kernel="gaussian", *, bandwidth=0.5, unit="m", order="constant"):
        super().__init__(kernel, bandwidth=bandwidth, order=order)
        self.unit = unit


def test_a_derived_class_loads_itself(tmp_path):
    model = Smooth(unit="mm").fit(*data())
    model.save(tmp_path / "model")
    loaded = Smooth.load(tmp_path / "model")
    assert type(loaded) is Smooth
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.predict(data(17)[0]), model.predict(data(17)[0]))
    with pytest.raises(InputError, match=r"model: got a saved Smooth; expected a NadarayaWatson. Use the load of its"):
        NadarayaWatson.load(tmp_path / "model")


def test_settings_after_fit_are_in_no_file(tmp_path):
    model = NadarayaWatson(bandwidth=0.5).fit(*data()).set_params(bandwidth="wide", logarithms="auto")
    model.save(tmp_path / "model")
    loaded = NadarayaWatson.load(tmp_path / "model")
    assert (loaded.bandwidth, loaded.logarithms) == (0.5, None)
