"""Weights that sum to 1, and states that merge in proportion, whatever the size of the scores."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from test_numba import Projected
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core.implementations import chunked
from dikkat.recurrent import AttentionalGRU

FLOAT32_EPS = torch.finfo(torch.float32).eps
WAYS = ["reference", "chunked", "numba"]
QUERIES, KEYS, VALUES = 5, 307, 3


def _far(distance: float) -> Callable[[], tuple[scores.Score, Tensor, Tensor]]:
    """Queries so far from keys in [0, 1] that neighbouring scores are further apart than their logarithms."""
    return lambda: (scores.Gaussian(1.0), distance * torch.ones(QUERIES, 3), torch.rand(KEYS, 3))


def _product(size: float) -> tuple[scores.Score, Tensor, Tensor]:
    return scores.Dot(), size * (1 + torch.rand(QUERIES, 5)), size * (1 + torch.rand(KEYS, 5).round(decimals=1))


def _additive(size: float) -> tuple[scores.Score, Tensor, Tensor]:
    return Projected(size * torch.randn(19)), torch.randn(QUERIES, 19), torch.randn(KEYS, 19)


LARGE: dict[str, Callable[[], tuple[scores.Score, Tensor, Tensor]]] = {
    **{f"a distance of {distance:g}": _far(distance) for distance in (1e3, 3e3, 1e5, 1e12, 5e18)},
    **{f"products of {size:g}²": lambda size=size: _product(size) for size in (50.0, 1e9, 3e18)},
    **{f"v of {size:g}": lambda size=size: _additive(size) for size in (1.0, 64.0, 1e6, 1e30)},
}


@pytest.mark.parametrize("large", LARGE)
@pytest.mark.parametrize("impl", WAYS)
def test_weights_and_the_gradients_of_values_sum_to_one(impl: str, large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(chunked, "_TILE", 1024)  # several tiles
    score, query, key = LARGE[large]()
    value = torch.randn(KEYS, VALUES, requires_grad=True)
    out, weights = dikkat.attend(query, key, value, score=score, impl=impl, return_weights=True)
    bound = (KEYS + 4) * FLOAT32_EPS
    assert (weights.double().sum(-1) - 1).abs().max() <= bound
    assert weights.min() >= 0
    assert weights.max() <= 1 + 4 * FLOAT32_EPS
    upstream = torch.randn(QUERIES, VALUES)
    (found,) = torch.autograd.grad(out, value, upstream)
    expected = upstream.double().sum(0)
    assert ((found.double().sum(0) - expected).abs() <= bound * upstream.double().abs().sum(0)).all()
    # As the weights, which come from the forward pass, have it. Additive scores are rounded otherwise there.
    if not isinstance(score, Projected):
        exact = weights.detach().double().mT @ upstream.double()
        assert (found - exact).abs().max() <= 16 * FLOAT32_EPS * upstream.abs().sum(0).max()


@kit.each("large", [name for name in LARGE if not name.startswith("v of")])
@kit.each("impl", WAYS)
def test_states_of_large_scores_merge_in_proportion(impl: str, large: str) -> None:
    """The parts' scores are the whole's to the last bit, so that the merged mean may differ by rounding alone."""
    torch.manual_seed(1)
    score, query, key = LARGE[large]()
    value = torch.randn(KEYS, VALUES)
    edges = [0, 1, 101, 103, KEYS]
    merged = dikkat.State(torch.zeros(QUERIES, VALUES), torch.full((QUERIES,), -math.inf))
    for a, b in itertools.pairwise(edges):
        merged = dikkat.merge(merged, dikkat.attention_state(query, key[a:b], value[a:b], score=score, impl=impl))
    whole = dikkat.attend(query, key, value, score=score, impl="reference")
    assert (merged.mean - whole).abs().max() <= 32 * FLOAT32_EPS * value.abs().max()
    exact = _log_sum_exp(query, key) if isinstance(score, scores.Gaussian) else None
    assert merged.tail is not None
    assert merged.tail.dtype == merged.lse.dtype == torch.float32
    if exact is not None:
        found = merged.lse.double() + merged.tail.double()
        assert ((found - exact).abs() <= 4 * FLOAT32_EPS * exact.abs()).all()


def _log_sum_exp(query: Tensor, key: Tensor) -> Tensor:
    return (-(query.double()[:, None] - key.double()).square().sum(-1) / 2).logsumexp(-1)


def test_the_tail_is_what_the_logarithm_lost() -> None:
    """A hundred keys with one score of −5·10⁹, at which float32 numbers are 512 apart: log 100 is all tail."""
    key = torch.zeros(100, 1)
    state = dikkat.attention_state(torch.full((1, 1), 1e5), key, key, score=scores.Gaussian(1.0))
    assert state.lse.item() == -5e9
    assert state.tail is not None
    assert state.tail.item() == pytest.approx(math.log(100), rel=1e-6)
    one = dikkat.attention_state(torch.full((1, 1), 1e5), key[:1], key[:1] + 1, score=scores.Gaussian(1.0))
    assert dikkat.merge(state, one).mean.item() == pytest.approx(1 / 101, rel=1e-5)
    plain = dikkat.merge(dikkat.State(state.mean, state.lse), dikkat.State(one.mean, one.lse))
    assert plain.mean.item() == pytest.approx(1 / 2)  # as those have it who keep the logarithm alone


def test_merging_has_the_gradients_of_the_whole_at_large_scores() -> None:
    torch.manual_seed(2)
    query = torch.full((2, 3), 1e7, dtype=torch.float64)
    key, value = torch.rand(11, 3, dtype=torch.float64), torch.randn(11, 2, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True)
    for impl in WAYS:
        parts = [
            dikkat.attention_state(query, key[s], value[s], key_bias=bias[s], score=scores.Gaussian(1.0), impl=impl)
            for s in (slice(0, 4), slice(4, 11))
        ]
        merged = dikkat.merge(*parts)
        whole = dikkat.attention_state(query, key, value, key_bias=bias, score=scores.Gaussian(1.0), impl="reference")
        for found, wanted in ((merged.mean.sin().sum(), whole.mean.sin().sum()), (merged.lse.sum(), whole.lse.sum())):
            grads = torch.autograd.grad(found, (value, bias), retain_graph=True, allow_unused=True)
            exact = torch.autograd.grad(wanted, (value, bias), retain_graph=True, allow_unused=True)
            for leaf, one, other in zip((value, bias), grads, exact, strict=True):
                one, other = (torch.zeros_like(leaf) if t is None else t for t in (one, other))
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_tail_has_the_shape_of_its_logarithm() -> None:
    state = dikkat.State(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"b: got lse \(2,\) and tail \(1,\); expected the same shape, or None"):
        dikkat.merge(state, dikkat.State(state.mean, state.lse, torch.zeros(1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("impl", WAYS)
def test_the_nearest_key_wins_where_squared_distances_overflow(impl: str, dtype: torch.dtype) -> None:
    """The square of 10³⁰ is no float32 number, nor that of 10³⁰⁰ a float64 one: no reason to see no key."""
    size = 1e30 if dtype == torch.float32 else 1e300
    query = torch.tensor([[size, 0.0], [-size, size], [1.0, 1.0]], dtype=dtype, requires_grad=True)
    key = torch.tensor([[0.0, 0.0], [size, 1.0], [-size, size / 2], [size, -size]], dtype=dtype)
    value = torch.arange(1, 5, dtype=dtype)[:, None].requires_grad_()
    out, weights = dikkat.attend(query, key, value, score=scores.Gaussian(1.0), impl=impl, return_weights=True)
    assert weights.sum(-1).tolist() == [1.0, 1.0, 1.0]
    assert out.flatten().tolist() == [2.0, 3.0, 1.0]
    grads = torch.autograd.grad(out.sum(), (query, value))
    assert grads[0].isfinite().all()
    assert grads[1].flatten().tolist() == [1.0, 1.0, 1.0, 0.0]
    # All of them out of reach.
    alone = dikkat.attend(query[:1] + size, key[:1], value[:1], score=scores.Gaussian(1.0), impl=impl)
    assert alone.item() == 1.0


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_the_recurrence_sees_keys_whose_squared_distances_overflow(impl: str) -> None:
    torch.manual_seed(3)
    module = AttentionalGRU(2, 7, 7, scores.Gaussian(1.0))
    memory = module.prepare(torch.full((3, 5, 7), 1e25))
    _, contexts, weights, _ = module(torch.randn(3, 4, 2), memory, torch.zeros(1, 3, 7), return_weights=True, impl=impl)
    torch.testing.assert_close(weights, torch.full((3, 4, 5), 0.2))
    torch.testing.assert_close(contexts, torch.full((3, 4, 7), 1e25))


@pytest.mark.parametrize("impl", ["auto", "reference", "chunked", "numba"])
@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
def test_what_nobody_sees_reaches_no_parameter(impl: str, queries: int, keys: int) -> None:
    """Without a query no key is seen, and without a key no query sees: NaN in them is hidden from the projections."""
    made = {
        scores.Additive(key_size=3, query_size=2, num_hiddens=7): 2,
        scores.Bilinear(key_size=3, query_size=2): 2,
        scores.VectorSum(3): 3,
        scores.Gaussian([1.0, 2.0, 3.0], learnable=True): 3,
        scores.Epanechnikov(2.0, learnable=True): 3,
    }
    for score, features in made.items():
        query = torch.full((2, queries, features), math.nan, requires_grad=True)
        key, value = (torch.full((2, keys, size), math.nan, requires_grad=True) for size in (3, 11))
        out = dikkat.attend(query, key, value, score=score, impl=impl)
        leaves = [query, key, value, *score.parameters()]
        found = torch.autograd.grad(out.sum(), leaves, allow_unused=True)
        assert not any(grad.any() for grad in found if grad is not None), type(score).__name__
