"""Lattices of patches: rows of an image with separators between them."""

import numpy as np
import pytest
import torch
from PIL import Image

import dikkat
from dikkat.inspection.calls import Call
from dikkat.inspection.request import Inspection

GREY = Image.new("L", (32, 32))


def trace_of(weights: torch.Tensor) -> dikkat.Trace:
    """A trace of one call with weights (B, H, n, m)."""
    trace = dikkat.Trace()
    trace.add(Inspection(weights=weights, shape=tuple(weights.shape)), Call("layer", 0, 0, "self"))
    return trace


def test_rows_with_separators_are_one_lattice():
    """4 × 4 patches with a separator after each row have the distances and neighbours of one grid."""
    rows = [entry for k in range(4) for entry in (dikkat.Grid(1, 4, image=GREY, box=(0, 8 * k, 32, 8 * k + 8)), "\n")]
    weights, generator = torch.zeros(1, 1, 20, 20), torch.Generator().manual_seed(1)
    patches = torch.tensor([5 * row + column for row in range(4) for column in range(4)])
    shares = torch.rand(16, 16, generator=generator).mul(3).softmax(-1)
    weights[0, 0, patches[:, None], patches] = shares
    weights[0, 0, 4::5, 4::5] = torch.eye(4)
    trace = trace_of(weights)
    trace.tokens = rows
    cells = np.stack(np.divmod(np.arange(16), 4), -1)
    lengths = np.linalg.norm(cells[:, None] - cells, axis=-1)
    expected = (shares.numpy() * lengths).sum(-1).mean()
    assert float(trace.distances()["distance"][0]) == pytest.approx(expected, abs=1e-6)
    assert float(trace.scores()["column"][0]) >= 0  # NaN for grids of one row
    labels = [token.text for token in trace.tokens["self"]]
    assert labels[3:6] == ["row 1, column 4", "\n", "row 2, column 1"]
    trace.tokens = [dikkat.Grid(1, 4, image=GREY, box=(8, 0, 32, 8)), "\n", *rows[2:]]
    assert trace.tokens["self"][5].text == "image 2, row 1, column 1"
