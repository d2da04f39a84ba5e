"""A fit that fails or is interrupted, at any line, leaves the estimator as it was; and long work hears of Ctrl-C."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import dikkat
from dikkat.regression import NadarayaWatson, base, estimator

SIZE = 2
METHODS = ["predict", "confidence_interval", "attention_weights", "effective_neighbors", "log_density"]


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


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


class Interrupting:
    """Raise at the line of this number that runs in the modules of the estimator, or in all files of a folder."""

    def __init__(self, at, error=KeyboardInterrupt, under=(base.__file__, estimator.__file__)):
        self.left, self.error, self.under, self.before = at, error, under, sys.gettrace()

    def __enter__(self):
        sys.settrace(self._calls)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _calls(self, frame, event, _):
        return self._lines if frame.f_code.co_filename.startswith(self.under) else None

    def _lines(self, frame, event, _):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise self.error
        return self._lines


def interrupted(make, call):
    """What a call leaves of new models, interrupted one line later each time, until it comes to its end."""
    for at in range(1, 500):
        model = make()
        try:
            with Interrupting(at):
                call(model)
        except KeyboardInterrupt:
            yield model
        else:
            assert at > 20
            return
    raise AssertionError("it never ended")


def test_the_first_fit_leaves_it_unfitted(tmp_path):
    x, y = rows()
    expected = answers(NadarayaWatson(bandwidth=1.0).fit(x, y), tmp_path)
    for model in interrupted(lambda: NadarayaWatson(bandwidth=1.0), lambda model: model.fit(x, y)):
        if vars(model).keys() == model.get_params().keys():
            with pytest.raises(NotFittedError):
                model.predict(x)
            with pytest.raises(NotFittedError):
                model.save(tmp_path / "model")
            model.fit(x, y)
        assert_same(answers(model, tmp_path), expected)  # the last step is the one that makes it fitted


def test_another_leaves_the_old_model_or_has_made_the_new_one(tmp_path):
    old, new = rows(), rows(11, seed=1)

    def fitted():
        return NadarayaWatson(bandwidth=1.0).fit(*old).set_params(kernel="epanechnikov", bandwidth=2.0)

    before, after = answers(fitted(), tmp_path), answers(fitted().fit(*new), tmp_path)
    for model in interrupted(fitted, lambda model: model.fit(*new)):
        if model.kernel_ == "gaussian":
            assert_same(answers(model, tmp_path), before)
            model.fit(*new)
        assert_same(answers(model, tmp_path), after)
        assert len(model.X_train_) == 11


def test_a_hundred_points_anywhere_in_a_refit_leave_the_old_model_whole(tmp_path):
    """At lines of the search, of the moments and of the launchers as well."""
    package, never = str(Path(dikkat.__file__).parent), 10**9
    (x, y), (other_x, other_y) = rows(7, size=SIZE), rows(9, seed=1, size=1)
    model = NadarayaWatson().fit(x, y)
    before, state = answers(model, tmp_path), dict(vars(model))
    for _ in range(2):  # what is made once and kept is made the first time
        with Interrupting(never, under=package) as counting:
            NadarayaWatson().fit(other_x, other_y)
    lines = never - counting.left
    assert lines > 5_000
    for number, at in enumerate(np.random.default_rng(0).integers(1, lines, 100).tolist()):
        error = (KeyboardInterrupt, MemoryError)[number % 2]
        with pytest.raises(error), Interrupting(at, error, package):
            model.fit(other_x, other_y)
        assert vars(model).keys() == state.keys()
        assert all(vars(model)[name] is value for name, value in state.items()), at
    assert_same(answers(model, tmp_path), before)


# Minutes of work on most machines, of pairs and of sweeps; it says each time when it has begun.
LONG = """
import threading
import numpy as np
from dikkat.regression import NadarayaWatson

for count, features, bandwidth, times in [(400_000, 3, 0.3, 1), (300_000, 1, 0.01, 999)]:
    x = np.random.default_rng(0).uniform(size=(count, features))
    model = NadarayaWatson(bandwidth=bandwidth, order="linear").fit(x, x[:, 0])
    model.predict(x[:20])  # the same kernels: an interrupt in a callback of their compiler is lost in ctypes
    if features == 1:
        model.predict(x)
    threading.Timer(1, lambda: print("at work", flush=True)).start()
    try:
        for _ in range(times):
            model.predict(x)
    except KeyboardInterrupt:
        print("stopped", flush=True)
"""


def test_long_work_hears_of_ctrl_c():
    with subprocess.Popen([sys.executable, "-c", LONG], stdout=subprocess.PIPE, text=True) as child:
        try:
            for _ in ("pairs", "sweeps"):
                assert child.stdout.readline() == "at work\n"
                child.send_signal(signal.SIGINT)
                assert child.stdout.readline() == "stopped\n"  # a second's work, on a machine that may be busy
        finally:
            child.kill()
