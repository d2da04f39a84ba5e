"""A fit that fails or is interrupted, at any line of it, leaves the estimator as it was."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from dikkat.regression import NadarayaWatson, estimator
from dikkat.regression.smoother import Smoother

SIZE = 2
METHODS = ["predict", "confidence_band", "attention_weights", "effective_neighbors", "log_density"]


def rows(count=23, seed=0, size=SIZE):
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, size))
    return pd.DataFrame(x, columns=[f"x{seed}{c}" for c in range(size)]), random.normal(size=count)


def answers(model, folder):
    """What every method says, and a saved and loaded copy too."""
    query = pd.DataFrame(np.random.default_rng(9).normal(size=(5, SIZE)), columns=list(model.feature_names_in_))
    model.save(folder / "model")
    found = [
        getattr(each, method)(query) for each in (model, NadarayaWatson.load(folder / "model")) for method in METHODS
    ]
    return [np.asarray(answer) for answer in found] + [np.array(model.effective_degrees_of_freedom())]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


class Interrupting:
    """Raises at the so-manieth line that the estimator's module runs."""

    def __init__(self, at):
        self.left, self.before = at, sys.gettrace()

    def __enter__(self):
        sys.settrace(self._calls)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _calls(self, frame, event, _):
        return self._lines if frame.f_code.co_filename == estimator.__file__ else None

    def _lines(self, frame, event, _):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._lines


def interrupted(call):
    """Run a call again and again, interrupted one line later each time, until it comes to its end."""
    for at in range(1, 500):
        try:
            with Interrupting(at):
                call()
        except KeyboardInterrupt:
            yield at
        else:
            assert at > 20
            return
    raise AssertionError("it never ended")


def test_the_first_fit_leaves_it_unfitted(tmp_path):
    model, (x, y) = NadarayaWatson(bandwidth=1.0), rows()
    for _ in interrupted(lambda: model.fit(x, y)):
        if vars(model).keys() == model.get_params().keys():
            with pytest.raises(NotFittedError):
                model.predict(x)
            with pytest.raises(NotFittedError):
                model.save(tmp_path / "model")
        else:  # after the one step that makes it fitted
            same(answers(model, tmp_path), answers(NadarayaWatson(bandwidth=1.0).fit(x, y), tmp_path))
            model = NadarayaWatson(bandwidth=1.0)


@pytest.mark.parametrize("how", ["fit", "partial_fit"])
def test_another_leaves_the_old_model_or_has_made_the_new_one(tmp_path, how):
    old, new = rows(), rows(11, seed=0 if how == "partial_fit" else 1)

    def fitted():
        return NadarayaWatson(bandwidth=1.0).fit(*old).set_params(kernel="boxcar", bandwidth=2.0)

    before = answers(fitted(), tmp_path)
    after = answers(getattr(fitted(), how)(*new), tmp_path)
    model = fitted()
    for _ in interrupted(lambda: getattr(model, how)(*new)):
        done = model.kernel_ == "boxcar"
        same(answers(model, tmp_path), after if done else before)
        assert len(model.X_train_) == (len(old[1]) if not done else 11 if how == "fit" else 34)
        if done:
            model = fitted()
    assert len(model.X_train_) == (11 if how == "fit" else 34)
    same(answers(model, tmp_path), after)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    ("place", "name"),
    [(estimator, "join"), (estimator, "leave_one_out"), (Smoother, "__init__"), (Smoother, "arrange")],
)
def test_whatever_breaks_within(tmp_path, monkeypatch, place, name, error):
    def broken(*_, **__):
        raise error

    model, (x, y) = NadarayaWatson().fit(*rows()), rows(seed=1, size=3)
    before = answers(model, tmp_path)
    fresh = NadarayaWatson()
    with monkeypatch.context() as patched:
        patched.setattr(place, name, broken)
        for each in (model, fresh):
            with pytest.raises(error):
                each.fit(x, y)
        with pytest.raises(error):
            model.partial_fit(*rows())
    same(answers(model, tmp_path), before)
    with pytest.raises(NotFittedError):
        fresh.predict(x)
    model.partial_fit(*rows())
    assert len(model.X_train_) == 46


def test_data_that_are_refused_change_nothing(tmp_path):
    model, (x, y) = NadarayaWatson(bandwidth=1.0).fit(*rows()), rows(seed=1, size=3)
    before = answers(model, tmp_path)
    for weight in (np.zeros(23), -np.ones(23), np.ones(5)):
        with pytest.raises(ValueError, match="sample_weight: came"):
            model.fit(x, y, weight)
    with pytest.raises(ValueError, match="came with shape"):
        model.set_params(bandwidth=[1.0, 2.0]).fit(x, y)
    same(answers(model.set_params(bandwidth=1.0), tmp_path), before)
