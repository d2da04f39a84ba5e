"""What docs/frameworks.md shows of Keras."""

from pathlib import Path

import numpy as np
import page
import pytest
import torch
from keras import ops


def test_a_layer_of_pytorch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = page.run("import torch", "import keras")
    tensors = [torch.from_numpy(ops.convert_to_numpy(found[name])) for name in ("query", "key", "value")]
    with torch.no_grad():
        expected = found["trained"](*tensors, torch.tensor([2, 6])).numpy()
    layer, arrays = found["layer"], [found[name] for name in ("query", "key", "value")]
    np.testing.assert_allclose(ops.convert_to_numpy(layer(*arrays, np.array([2, 6]))), expected, atol=1e-5)


def test_a_functional_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = page.run("import torch", "import keras", "words = ")["model"]
    words = np.array([[5, 6, 7, 0], [8, 0, 0, 0]])
    assert model(words).shape == (2, 1)
    # Padding takes no part, however much there is.
    np.testing.assert_allclose(*(ops.convert_to_numpy(model(each)) for each in (words[:, :3], words)), atol=1e-5)


def test_from_keras_own_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = page.run("import torch", "import keras", "query, value, key = ", "theirs = ")
    by_list = ops.convert_to_numpy(found["by_list"])
    for name in ("by_name", "in_our_order"):
        np.testing.assert_array_equal(ops.convert_to_numpy(found[name]), by_list)
    tensors = (found[name] for name in ("query", "key", "value"))
    ours, expected = found["ours"](*tensors), found["expected"]
    np.testing.assert_allclose(ops.convert_to_numpy(ours), ops.convert_to_numpy(expected), atol=2e-6)
