"""What a change in the CPU kernels could get wrong in silence, and other sizes and numbers would not show."""

import pytest
import torch
from test_numba import PAIRS, Projected, assert_close, furthest, plain_made, simple
from torch import Tensor

import dikkat
import kit
from dikkat import scores


@pytest.mark.parametrize("keys", [31, 293])
def test_the_largest_score_may_be_anywhere(keys: int) -> None:
    """Row i has its two largest scores, far above the others, at keys i and i + 1: every place in every tile."""
    made = torch.zeros(keys, keys, dtype=torch.float64)
    rows = torch.arange(keys)
    made[rows, rows], made[rows, (rows + 1) % keys] = 300.0, 299.0
    weights = dikkat.attention_weights(torch.eye(keys), made.mT.float(), score=scores.Dot(), impl="numba")
    torch.testing.assert_close(weights.double(), made.softmax(-1), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("queries", [67, 97, 101])
@pytest.mark.parametrize("case", PAIRS)
def test_rows_that_do_not_divide_among_threads(case: str, queries: int) -> None:
    """One batch element, whose rows several tasks share: each has its own rows' gradients and a share of the keys'."""
    score, leaves, _ = plain_made(case, 13, queries, 71, 5)
    one = {name: tensor[:1].detach().requires_grad_() for name, tensor in leaves.items()}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        found = simple((score, one, {}), "numba")
    finally:
        torch.set_num_threads(threads)
    assert_close(found, simple((score, one, {}), "reference"))


@kit.each("dtype", [torch.float32, torch.float64])
@kit.each("impl", ["reference", "chunked", "numba"])
@kit.each("kernel", [scores.Boxcar, scores.Epanechnikov, scores.Triangular])
def test_a_key_on_the_edge_of_the_support(kernel: type[scores.Score], impl: str, dtype: torch.dtype) -> None:
    """At r = 1 a slope has a pole; there, and beyond, a pair has weight 0 (a boxcar's beyond) and no gradient."""
    key = torch.tensor([0.0, 0.25, -0.5, 1.0, -1.0, 2.0, 3.0], dtype=dtype)[:, None].requires_grad_()
    query = torch.zeros(1, 1, dtype=dtype, requires_grad=True)
    value = torch.arange(7, dtype=dtype)[:, None].requires_grad_()
    out = dikkat.attend(query, key, value, score=kernel(1.0), impl=impl)
    found = torch.autograd.grad(out.sum(), (query, key, value))
    # From the formula, and the derivative of K by r.
    r = torch.tensor([0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    away = torch.tensor([0.0, 0.25, -0.5, 1.0, -1.0, 2.0, 3.0], dtype=torch.float64)
    shape, slope = {
        scores.Boxcar: ((r <= 1).double(), 0 * r),
        scores.Epanechnikov: ((1 - r * r).clamp(min=0), -2 * r * (r < 1)),
        scores.Triangular: ((1 - r).clamp(min=0), -1.0 * ((r > 0) & (r < 1))),
    }[kernel]
    weights, number = shape / shape.sum(), torch.arange(7, dtype=torch.float64)
    mean = (weights * number).sum()
    by_key = slope * away.sign() * (number - mean) / shape.sum()
    tolerance = 8 * torch.finfo(dtype).eps
    for one, other in zip((out, *found), (mean, -by_key.sum(), by_key, weights), strict=True):
        torch.testing.assert_close(one.double().flatten(), other.flatten(), rtol=0, atol=8 * tolerance)


@pytest.mark.parametrize("first_is_small", [True, False])
def test_the_weights_gradient_where_features_are_small_in_some_keys_alone(first_is_small: bool) -> None:
    """tanh of a small sum is computed as such, tile by tile; what is small in one tile may be large in the next."""
    torch.manual_seed(0)
    query, key, value = 1e-3 * torch.randn(11, 19), torch.randn(197, 19), torch.randn(197, 3)
    key[:67] *= 1e-3 if first_is_small else 1.0
    key[67:] *= 1.0 if first_is_small else 1e-3
    v = torch.randn(19)

    def gradient(dtype: torch.dtype, impl: str) -> Tensor:
        score = Projected(v.to(dtype))
        given = (tensor.to(dtype) for tensor in (query, key, value))
        out = dikkat.attend(*given, score=score, impl=impl)
        return torch.autograd.grad((out * torch.arange(out.numel()).reshape(out.shape).cos()).sum(), score.v)[0]

    def terms() -> Tensor:
        """The largest sum of the absolute values that a feature's gradient sums up: those of the pairs."""
        features = (query.double()[:, None] + key.double()).tanh()
        scores = (features @ v.double()).requires_grad_()
        out = scores.softmax(-1) @ value.double()
        by_score = torch.autograd.grad((out * torch.arange(out.numel()).reshape(out.shape).cos()).sum(), scores)[0]
        return torch.einsum("nm,nmh->h", by_score.abs(), features.abs()).max()

    exact, scale = gradient(torch.float64, "reference"), terms()
    assert furthest(gradient(torch.float64, "numba"), exact) <= 1e-12 * exact.abs().max()
    plain = furthest(gradient(torch.float32, "reference"), exact)
    assert furthest(gradient(torch.float32, "numba"), exact) <= 2 * plain + 4 * torch.finfo().eps * scale
