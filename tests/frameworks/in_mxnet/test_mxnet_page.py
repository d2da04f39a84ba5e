"""What docs/frameworks.md shows of MXNet."""

from pathlib import Path

import numpy as np
import page
import pytest
import torch


def test_a_layer_of_pytorch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = page.run("import torch", "from mxnet")
    tensors = [torch.from_numpy(found[name].asnumpy()) for name in ("query", "key", "value")]
    with torch.no_grad():
        expected, weights = found["trained"](*tensors, torch.tensor([2, 6]), return_weights=True)
    np.testing.assert_allclose(found["output"].asnumpy(), expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(found["weights"].asnumpy(), weights.numpy(), atol=1e-5)
