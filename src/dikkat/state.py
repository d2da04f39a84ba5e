"""States of attention over subsets of the keys, and the rule that merges two states.

`State` and `merge` are public. `Pooled` and `join` are the same in the form that the computation uses.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat._engine.addresses import check_dense


class State(NamedTuple):
    """A pooled result over some of the keys, which merges with a state over other keys.

    Attributes:
        mean: (..., n, d_v), the weighted mean of the values, float32 or float64; 0 in a row with no key.
        lse: (..., n), the natural logarithm of the sum of e^score over the keys; −∞ in a row with no key.
        tail: (..., n), the rounding error of `lse`: lse + tail is the logarithm to all digits. It has no gradient, and
            None means 0. Without it, two states of large scores would merge in the wrong proportion: near −5·10⁹
            float32 numbers are 512 apart, so only the tail distinguishes one key from a hundred keys.
    """

    mean: Tensor
    lse: Tensor
    tail: Tensor | None = None


class Pooled(NamedTuple):
    """A state in the form used for computation: its log-sum-exp is peak + log total.

    Attributes:
        mean: (..., n, d_v).
        peak: (..., n), about as large as the scores, so that `total` is about as large as the number of keys; −∞ in a
            row with no key. It has no gradient.
        total: (..., n), Σ e^(score − peak); 0 in a row with no key.
    """

    mean: Tensor
    peak: Tensor
    total: Tensor


def merge(a: State, b: State) -> State:
    r"""Return the state over two disjoint sets of keys from the state over each set.

    With $p = \max(\ell_a, \ell_b)$, $w_x = e^{\ell_x - p}$, where $\ell$ is lse + tail:

    $$ \mu = \frac{w_a \mu_a + w_b \mu_b}{w_a + w_b}, \qquad \ell = p + \log(w_a + w_b). $$

    The operation is associative, commutative and differentiable. The empty state (mean 0, lse −∞) is neutral.

    Args:
        a: State with mean (..., n, d_v), lse (..., n) and tail (..., n) or None.
        b: The state over other keys.

    Returns:
        The state over both sets.

    Raises:
        TypeError: An argument is not a state of tensors.
        ValueError: The shapes differ.

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
        raise ValueError(f"b: got mean {tuple(b.mean.shape)}; expected {tuple(a.mean.shape)}, as a")
    joined = join(_pooled(a), _pooled(b))
    return State(joined.mean, *log_sum_exp(joined.peak, joined.total))


def add_sink(state: State, weights: Tensor | None, sink: Tensor) -> tuple[State, Tensor | None]:
    """Add a sink to a state (..., n): one more logit (...), shared by all rows, whose value is 0; scale the weights."""
    logit = sink.to(state.lse.dtype)[..., None].expand_as(state.lse)
    joined = merge(state, State(torch.zeros_like(state.mean), logit))
    if weights is None:
        return joined, None
    log_ratio = (state.lse - logit) + (0.0 if state.tail is None else state.tail)  # of the keys to the sink
    log_ratio = log_ratio.masked_fill(state.lse == -math.inf, -math.inf)
    # The keys' share of the weight. 1 − sigmoid(−x) keeps the gradient exact near 1.
    share = torch.where(log_ratio > 0, 1 - (-log_ratio).sigmoid(), log_ratio.sigmoid())
    return joined, weights * share[..., None]


def _pooled(state: State) -> Pooled:
    """Return the state with its own `lse` as the peak, without losing the gradient of `lse`."""
    peak = state.lse.detach()
    empty = peak == -math.inf
    tail = 0.0 if state.tail is None else state.tail
    # lse − peak is 0, but carries the gradient of lse; ∞ − ∞ is replaced. So the total is e^tail.
    log_total = (state.lse - peak).masked_fill(empty, 0.0) + tail
    return Pooled(state.mean, peak, log_total.exp().masked_fill(empty, 0.0))


def join(a: Pooled, b: Pooled) -> Pooled:
    """Join two partial results: rescale both totals to the larger peak, add them, and weight the means by them."""
    peak = torch.maximum(a.peak, b.peak)
    base = peak.masked_fill(peak == -math.inf, 0.0)  # avoids ∞ − ∞ in rows without a key
    share_a, share_b = a.total * (a.peak - base).exp(), b.total * (b.peak - base).exp()
    total = share_a + share_b
    divisor = total.masked_fill(total == 0, 1.0)
    mean = (share_a / divisor)[..., None] * a.mean + (share_b / divisor)[..., None] * b.mean
    return Pooled(mean, peak, total)


def log_sum_exp(peak: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Return peak + log total and its rounding error; −∞ and 0 in a row with no key. The peak has no gradient."""
    peak, empty = peak.detach(), total == 0
    base = peak.masked_fill(peak == -math.inf, 0.0)
    log_total = total.masked_fill(empty, 1.0).log()  # avoids the gradient of log at 0
    lse = log_total + base
    with torch.no_grad():  # Knuth's exact sum of two
        added = lse - base
        tail = (log_total - added) + (base - (lse - added))
        tail = tail.masked_fill(empty, 0.0)
    return lse.masked_fill(empty, -math.inf), tail
