"""The state of an attention over some of the keys, and the one rule by which states merge."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat._engine.addresses import check_dense


class State(NamedTuple):
    """A pooled result over some of the keys, which merges with the state over others.

    Attributes:
        mean: (..., n, d_v), the weighted mean of the values, float32 or float64; 0 in a row with no key.
        lse: (..., n), the natural logarithm of the sum of e^score over the keys; −∞ in a row with no key.
        tail: (..., n), what `lse` lost by rounding: lse + tail is the logarithm to all digits. It has no gradient, and
            None stands for 0. Without it two states of large scores would merge in the wrong proportion: at a score of
            −5·10⁹ neighbours in float32 are 512 apart, and whether a state is over one key or a hundred is all tail.
    """

    mean: Tensor
    lse: Tensor
    tail: Tensor | None = None


class Pooled(NamedTuple):
    """A state as it is computed with: its log-sum-exp is peak + log total.

    Attributes:
        mean: (..., n, d_v).
        peak: (..., n): of the scores' size, and so that `total` is of the size of the number of keys; −∞ in a row with
            no key. It has no gradient.
        total: (..., n), Σ e^(score − peak); 0 in a row with no key.
    """

    mean: Tensor
    peak: Tensor
    total: Tensor


def merge(a: State, b: State) -> State:
    r"""The state over two disjoint sets of keys from the states over each.

    With $p = \max(\ell_a, \ell_b)$, $w_x = e^{\ell_x - p}$, where $\ell$ is lse and tail together:

    $$ \mu = \frac{w_a \mu_a + w_b \mu_b}{w_a + w_b}, \qquad \ell = p + \log(w_a + w_b). $$

    Associative, commutative and differentiable, with the empty state (mean 0, lse −∞) as its neutral element.

    Args:
        a: State with mean (..., n, d_v) and lse (..., n), and perhaps a tail (..., n).
        b: The state over other keys.

    Returns:
        The state over both.

    Raises:
        TypeError: Something else than states, or a state of something else than tensors.
        ValueError: The shapes do not fit.

    Source: Milakov and Gimelshein 2018, section 3; Dao et al. 2022, section 3.1.

    Example:
        >>> q, k, v = torch.randn(2, 3), torch.randn(5, 3), torch.randn(5, 7)
        >>> score = dikkat.scores.Dot()
        >>> parts = [dikkat.attention_state(q, k[s], v[s], score=score) for s in (slice(0, 2), slice(2, 5))]
        >>> torch.allclose(dikkat.merge(*parts).mean, dikkat.attend(q, k, v, score=score), atol=1e-6)
        True
    """
    for name, state in (("a", a), ("b", b)):
        if not isinstance(state, State):
            raise TypeError(f"{name}: got {type(state).__name__}; expected a State, as dikkat.attention_state returns")
        for field, tensor in zip(State._fields, state, strict=True):
            if tensor is not None or field != "tail":
                check_dense(f"{name}.{field}", tensor)
        if state.mean.shape[:-1] != state.lse.shape:
            raise ValueError(
                f"{name}: got mean {tuple(state.mean.shape)} and lse {tuple(state.lse.shape)}; "
                "expected mean (..., n, d_v) and lse (..., n)"
            )
        if state.tail is not None and state.tail.shape != state.lse.shape:
            raise ValueError(
                f"{name}: got lse {tuple(state.lse.shape)} and tail {tuple(state.tail.shape)}; "
                "expected the same shape, or None for the tail"
            )
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"b: got mean {tuple(b.mean.shape)}; expected {tuple(a.mean.shape)}, the shape of a's")
    joined = join(_pooled(a), _pooled(b))
    return State(joined.mean, *log_sum_exp(joined.peak, joined.total))


def sunk(state: State, weights: Tensor | None, sink: Tensor) -> tuple[State, Tensor | None]:
    """A state and its weights with one more logit, (...) of (..., n), that no value goes with: a state of mean 0."""
    logit = sink.to(state.lse.dtype)[..., None].expand_as(state.lse)
    joined = merge(state, State(torch.zeros_like(state.mean), logit))
    if weights is None:
        return joined, None
    above = (state.lse - logit) + (0.0 if state.tail is None else state.tail)
    above = above.masked_fill(state.lse == -math.inf, -math.inf)
    share = torch.where(above > 0, 1 - (-above).sigmoid(), above.sigmoid())  # near 1 too its slope has all its digits
    return joined, weights * share[..., None]


def _pooled(state: State) -> Pooled:
    """The state about its own `lse`, without the gradient that a constant peak takes from it."""
    peak = state.lse.detach()
    empty = peak == -math.inf
    lost = 0.0 if state.tail is None else state.tail
    # e^0 or e^tail; the first difference is 0, and there for the gradient. The inner masked_fill keeps ∞ − ∞ away.
    log_total = (state.lse - peak).masked_fill(empty, 0.0) + lost
    return Pooled(state.mean, peak, log_total.exp().masked_fill(empty, 0.0))


def join(a: Pooled, b: Pooled) -> Pooled:
    """The one rule by which partial results are joined: about one peak, totals add, and means are weighed by them."""
    peak = torch.maximum(a.peak, b.peak)
    base = peak.masked_fill(peak == -math.inf, 0.0)
    share_a, share_b = a.total * (a.peak - base).exp(), b.total * (b.peak - base).exp()
    total = share_a + share_b
    whole = total.masked_fill(total == 0, 1.0)
    mean = (share_a / whole)[..., None] * a.mean + (share_b / whole)[..., None] * b.mean
    return Pooled(mean, peak, total)


def log_sum_exp(peak: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """peak + log total, and what of it rounding lost; −∞ and 0 in a row with no key. The peak has no gradient."""
    peak, empty = peak.detach(), total == 0
    base = peak.masked_fill(peak == -math.inf, 0.0)
    log_total = total.masked_fill(empty, 1.0).log()  # the inner of two, which keeps log's gradient at 0 away
    lse = log_total + base
    with torch.no_grad():  # Knuth's exact sum of two
        share = lse - base
        tail = (log_total - share) + (base - (lse - share))
        tail = tail.masked_fill(empty, 0.0)
    return lse.masked_fill(empty, -math.inf), tail
