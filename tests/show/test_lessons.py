"""The playground of a page: its numbers against Python's."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

_SCRIPT = Path(__file__).parents[2] / "web" / "test" / "predict.mjs"
_NODE = shutil.which("node")
# Of the scaled distance r.
KERNELS = {
    "gaussian": lambda r: np.exp(-(r**2 - (r**2).min(1, keepdims=True)) / 2),  # no row is all 0
    "epanechnikov": lambda r: np.clip(1 - r**2, 0, None),
    "triangular": lambda r: np.clip(1 - r, 0, None),
    "boxcar": lambda r: 1.0 * (r <= 1),
}


@pytest.mark.skipif(_NODE is None, reason="no node here, which runs the page's arithmetic")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bandwidth", [0.05, 0.37, 2.0])
def test_kernel_regression_is_that_of_nadaraya_watson(kernel, bandwidth):
    random = np.random.default_rng(5)
    x, y = random.uniform(0, 5, 11).round(2), random.normal(size=11)
    queries = [*np.linspace(-1, 6, 23).tolist(), float(x[3]), float(x[3]) + bandwidth, 60.0]
    given = {"x": x.tolist(), "y": y.tolist(), "queries": queries, "kernel": kernel, "bandwidth": bandwidth}
    found = subprocess.run([_NODE, str(_SCRIPT)], input=json.dumps(given), capture_output=True, text=True, check=True)
    far = np.abs(np.array(queries)[:, None] - x) / bandwidth
    weights = KERNELS[kernel](far)
    with np.errstate(invalid="ignore"):  # NaN out of reach, which the page says in its own words
        expected = weights @ y / weights.sum(1)
    values = [np.nan if each["value"] is None else each["value"] for each in json.loads(found.stdout)]
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)
    assert not np.isnan(values).all()
    for each, value in zip(json.loads(found.stdout), values, strict=True):
        assert sum(each["weights"]) == pytest.approx(0 if np.isnan(value) else 1)
