import numpy as np
import pandas as pd
import pytest

from dikkat.regression import KernelClassifier, KernelRegressor, metric

ROWS, SIZE = 101, 3
QUICK = {"metric": "linear", "bandwidth": "loo", "ridge": 0.1}  # fewer searches


def _along_one(seed):
    """A wave along the sum of columns of different units."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(ROWS, SIZE))
    return x * np.arange(1, SIZE + 1) + 7, np.sin(2 * x.sum(1) / np.sqrt(SIZE)) + 0.2 * random.normal(size=ROWS)


def test_a_direction_is_found():
    (x, y), (new, right) = _along_one(0), _along_one(1)
    for count in (None, 1):
        model = KernelRegressor(metric="linear", n_components=count).fit(x, y)
        first = model.metric_[:, model.bandwidth_.argmin()] * np.arange(1, SIZE + 1)
        cosine = abs(first.sum()) / np.linalg.norm(first) / np.sqrt(SIZE)
        assert cosine > 0.99
        assert model.score(new, right) > 0.85
        assert model.metric_.shape == (SIZE, count or SIZE)
    assert KernelRegressor().fit(x, y).score(new, right) < 0.7


def test_units_and_the_order_of_columns_change_nothing():
    (x, y), (new, _) = _along_one(6), _along_one(7)
    turned = -3 * x[:, ::-1] + 100
    expected = KernelRegressor(metric="linear").fit(x, y).predict(new)
    found = KernelRegressor(metric="linear").fit(turned, y).predict(-3 * new[:, ::-1] + 100)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_values_at_random_teach_nothing():
    random = np.random.default_rng(8)
    x, y, new = random.normal(size=(151, 4)), random.normal(size=151), random.normal(size=(499, 4))
    model = KernelRegressor(metric="linear").fit(x, y)
    assert model.score(new, random.normal(size=499)) > -0.2
    classes = KernelClassifier(metric="linear").fit(x, random.integers(0, 2, 151))
    assert abs(np.mean(classes.predict(new) == random.integers(0, 2, 499)) - 0.5) < 0.07


def test_folds_learn_in_the_directions_that_they_are_asked_in(monkeypatch):
    (x, y), (new, right) = _along_one(2), _along_one(3)
    assert KernelRegressor(cv=3, **QUICK).fit(x, y).score(new, right) > 0.8
    monkeypatch.setattr(metric, "_MAX_ROWS", 83)  # of which the folds are those of the sample
    assert KernelRegressor(n_components=1, cv=3, **QUICK).fit(x, y).score(new, right) > 0.8


def test_halves_have_directions_of_their_own():
    (x, y), (new, right) = _along_one(2), _along_one(3)
    model = KernelRegressor(**QUICK).fit(x, y)
    lower, upper = model.predict_interval(new, method="split")
    assert 1 - np.var(right - (lower + upper) / 2) / np.var(right) > 0.7
    assert np.mean((lower <= right) & (right <= upper)) > 0.8  # of 101, by a search that rounding turns


def test_a_density_is_one_of_the_columns():
    x = np.random.default_rng(1).normal(size=(53, 1)) * 5
    at, step = np.linspace(-60, 60, 4001, retstep=True)
    for model in (KernelRegressor(**QUICK), KernelClassifier(metric="linear", prior=1.0)):
        density = np.exp(model.fit(x, (x[:, 0] > 1).astype(int)).log_density(at[:, None]))
        assert abs(density.sum() * step - 1) < 1e-6
    x, y = _along_one(2)
    x, y = x[:31], y[:31]
    for model, values in (
        (KernelRegressor(n_components=1, **QUICK), y),
        (KernelClassifier(metric="linear", n_components=1), y > 0),
    ):
        with pytest.raises(ValueError, match="metric: got 1 directions of 3 numeric columns"):
            model.fit(x, values).log_density(x)
    constant = np.hstack([x, np.ones((len(x), 1))])
    with pytest.raises(ValueError, match="as many directions as columns and no constant column"):
        KernelRegressor(**QUICK).fit(constant, y).log_density(constant)


def test_directions_have_names_and_no_reach_along_columns():
    model = KernelRegressor(n_components=1, **QUICK).fit(*_along_one(2))
    assert model.bandwidth_names_ == ["direction 1"]
    summary = model.summary(folds=0)
    assert {reach for *_, reach, _ in summary.features} == {""}
    assert "along 1 directions, with bandwidths" in str(summary)


def test_beside_categories(tmp_path):
    (x, y), random = _along_one(9), np.random.default_rng(9)
    town = random.choice(["Lyon", "Ulm"], ROWS)
    frame = pd.DataFrame(x, columns=list("abc")).assign(town=pd.Categorical(town))
    model = KernelRegressor(metric="linear").fit(frame, y * np.where(town == "Ulm", -1, 1))
    assert model.bandwidth_.shape == (SIZE + 1,)
    assert model.bandwidth_[-1] < 0.1
    assert np.isnan(model.gradient(frame[:2])[:, -1]).all()
    model.save(tmp_path / "model.safetensors")
    loaded = KernelRegressor.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(loaded.predict(frame), model.predict(frame))
    alone = KernelRegressor(metric="linear").fit(frame[["town"]], y)  # no number to turn
    assert alone.metric_ is None


def test_a_classifier_has_one_too():
    (x, y), (new, right) = _along_one(10), _along_one(11)
    model = KernelClassifier(metric="linear").fit(x, y > 0)
    assert model.score(new, right > 0) > KernelClassifier().fit(x, y > 0).score(new, right > 0) + 0.05


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"metric": "cosine"}, "metric: got 'cosine'; expected 'diagonal', 'linear'"),
        ({"metric": "linear", "bandwidth": 1.0}, "metric: got 'linear' with the bandwidth 1.0"),
        ({"metric": "linear", "n_components": 0}, "n_components: got 0; expected a whole number of at least 1"),
    ],
)
def test_bad_settings(settings, expected):
    for estimator in (KernelRegressor, KernelClassifier):
        with pytest.raises(ValueError, match=expected):
            estimator(**settings).fit([[0.0], [1.0], [2.0]], [0, 1, 0])


def test_a_damaged_metric_is_refused(tmp_path):
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "model.safetensors"
    x, y = _along_one(12)
    KernelRegressor(metric="linear", n_components=2).fit(x, y).save(path)
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    for changed, expected in ((tensors["metric_"][:2], "metric_: got"), (tensors["metric_"] * np.nan, "is not finite")):
        save_file(tensors | {"metric_": np.ascontiguousarray(changed)}, path, metadata)
        with pytest.raises(ValueError, match=expected):
            KernelRegressor.load(path)
