from pathlib import Path

import pytest

from processes import python

PEAK = """
import sys
from pathlib import Path
import numpy as np
from dikkat.regression import NadarayaWatson

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

def predict(count):
    random = np.random.default_rng(0)
    x, query = random.random((2, count, 2))
    return NadarayaWatson(sys.argv[1], bandwidth=0.1, order=sys.argv[2]).fit(x, x.sum(1)).predict(query)

predict(997)  # what is compiled and loaded at first is no part of it
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
answer = predict(10_000)
assert np.isfinite(answer).all()
print(memory("VmHWM") - before)
held = np.ones(2**25)  # 256 MiB, which the mark must show
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize(
    ("kernel", "order"), [("gaussian", "constant"), ("gaussian", "linear"), ("epanechnikov", "linear")]
)
def test_memory_grows_with_the_rows_and_not_with_rows_times_queries(kernel, order):
    grown, seen = map(float, python(PEAK, kernel, order).stdout.split())
    assert grown < 200 < seen  # a float64 for each pair is 763
