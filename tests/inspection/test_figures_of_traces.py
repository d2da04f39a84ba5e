"""Figures of a head's weights on the image of a grid."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("matplotlib")

import dikkat

IMAGE = np.zeros((20, 20))


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)


def weights_of(x: torch.Tensor) -> np.ndarray:
    """The weights (n, m) in float64."""
    x = x.double()
    return (x @ x.mT / x.shape[-1] ** 0.5).softmax(-1)[0, 0].numpy()


def shares_in(figure) -> np.ndarray:
    """The drawn weights as shares of the largest one, from their opacity."""
    opacity = figure.axes[0].images[1].get_array()[..., 3]
    return np.asarray((opacity / opacity.max()) ** 2).ravel()


def test_query_is_a_position():
    x = torch.randn(1, 1, 6, 5, generator=torch.Generator().manual_seed(3))
    with dikkat.record(model := Attention(), weights=True, queries=[3, 5]) as trace:
        model(x)
    trace.tokens = dikkat.Grid(2, 3, image=IMAGE)
    row = weights_of(x)[3]
    np.testing.assert_allclose(shares_in(trace.figure(0, 0, kind="image", query=3)), row / row.max(), atol=1e-5)
    with pytest.raises(IndexError, match="query: got 1; expected one of 3, 5"):
        trace.figure(0, 0, kind="image", query=1)


def test_mean_excludes_padding():
    torch.manual_seed(3)
    layer = nn.MultiheadAttention(8, 1, batch_first=True)
    x, hidden = torch.randn(1, 9, 8), torch.arange(9)[None] > 4
    with dikkat.record(layer, weights=True) as trace:
        _, expected = layer(x, x, x, key_padding_mask=hidden)
    trace.tokens = [dikkat.Grid(1, 5, image=IMAGE), "a", "b", "c", "d"]
    mean = expected[0, :5, :5].mean(0).detach().numpy()
    np.testing.assert_allclose(shares_in(trace.figure(0, 0, kind="image")), mean / mean.max(), atol=1e-5)


def test_rows_outside_of_grids_are_exact():
    x = torch.randn(1, 1, 401, 8, generator=torch.Generator().manual_seed(3))
    model = Attention()
    trace = dikkat.show.attention(model, x, tokens=["class token", dikkat.Grid(20, 20, image=IMAGE)])
    row = weights_of(x)[0, 1:]
    np.testing.assert_allclose(shares_in(trace.figure(0, 0, kind="image", query=0)), row / row.max(), atol=1e-4)
    for query in (5, None):
        with pytest.raises(ValueError, match="only the largest weights; expected a recording with weights=True"):
            trace.figure(0, 0, kind="image", query=query)


def test_blocks_of_single_patches_are_exact():
    """A page of a few patches has a block for each weight, in the order of the image."""
    x = torch.randn(1, 1, 18, 8, generator=torch.Generator().manual_seed(3))
    order = [int(cell) for cell in np.random.default_rng(3).permutation(17)]
    grid = dikkat.Grid(1, 17, image=IMAGE, order=order)
    trace = dikkat.show.attention(Attention(), x, tokens=["class token", grid])
    weights = weights_of(x)
    for query, row in ((0, weights[0]), (5, weights[5]), (None, weights.mean(0))):
        shares = shares_in(trace.figure(0, 0, kind="image", query=query))
        expected = row[1:][np.argsort(order)]
        np.testing.assert_allclose(shares, expected / expected.max(), atol=1e-4)
