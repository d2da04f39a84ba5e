r"""The additive comparison without tanh, in a shape that XLA fuses.

$$ \sum_h v_h \tanh(q_h + k_h) = \sum_h v_h - 2 \sum_h \frac{v_h}{1 + p_h}, \qquad p_h = e^{2 q_h} e^{2 k_h} $$

The exponentials belong to the query and to the key: they are computed n + m times, not n·m times. Two reciprocals fold
into one, u/a + v/b = (u·b + v·a)/(a·b). A loop goes over the features, some at a step, and carries the scores; the
backward goes over them once more. So what stands in memory is of the size of the scores, and never (…, n, m, h). Few
numbers are computed all at once: there a loop takes longer, and above all longer to compile.
"""

import math
from collections.abc import Callable
from typing import Any

from keras import ops

Tensor = Any
Parts = Any  # a query's, a key's and the weight's

_TOGETHER = 16  # features of a step of the forward; even
# max|q| + max|k| up to which two denominators may be multiplied, each below 1 + e^60. In float32 their product can
# overflow, and two reciprocals become 0; but only where it is beyond e^88, both denominators are beyond e^28, and what
# is lost is below e^-28 of a weight.
_SAFE = 30.0
_FEW = 2**16  # pairs times features, up to which all are computed at once


def differentiated(
    forward: Callable[..., Tensor], gradient: Callable[..., tuple[Tensor, ...]]
) -> Callable[..., Tensor]:
    """A function with a gradient of its own.

    Args:
        forward: From tensors to a tensor.
        gradient: From the same tensors and the upstream gradient to the gradient of each.
    """

    @ops.custom_gradient
    def function(*tensors: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        def backward(*arguments: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
            # Where the framework hands the upstream gradient over by its place, it comes alone.
            (upstream,) = arguments if upstream is None else (upstream,)
            return gradient(*tensors, upstream)

        return forward(*tensors), backward

    wrapped: Callable[..., Tensor] = function
    return wrapped


def additive(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    r"""Σ_h v_h tanh(q_h + k_h) of every query with every key.

    Args:
        query: (..., n, h), projected; float32 or float64.
        key: (..., m, h), projected, of the same dtype; leading dimensions broadcast.
        weight: v, (h,), of the same dtype.

    Returns:
        (..., n, m), of that dtype. The gradient is computed anew, from the same three tensors.

    Source: Bahdanau, Cho and Bengio 2015, appendix A.1.2.
    """
    if query.shape[:-2] != key.shape[:-2]:  # brought together here, where differentiation takes them apart again
        query = query + ops.zeros_like(key[..., :1, :1])
        key = key + ops.zeros_like(query[..., :1, :1])
    return (at_once if _are_few(query, key) else _in_a_loop)(query, key, weight)


def at_once(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """As `additive`, of all features at once: for few numbers, and for a decoder, which has one query at a step.

    There the pairs' features take no more memory than the keys', and with n = 1 the n·m values of tanh are hardly more
    than n + m exponentials. Over many steps they would take more: so the gradient computes them again.
    """
    return _at_once(query, key, weight)


def _are_few(query: Tensor, key: Tensor) -> bool:
    """Whether there are few numbers; what is known at the first call alone may be many."""
    sizes = (*query.shape, key.shape[-2])
    return None not in sizes and math.prod(sizes) <= _FEW


def _scores_at_once(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    return ops.sum(weight * ops.tanh(_pairs(query, key)), -1)


def _gradient_at_once(query: Tensor, key: Tensor, weight: Tensor, upstream: Tensor) -> Parts:
    argument, upstream = _pairs(query, key), ops.expand_dims(upstream, -1)
    share = upstream * weight * _slope(argument)
    of_weight = ops.reshape(upstream * ops.tanh(argument), (-1, weight.shape[0]))
    return ops.sum(share, -2), ops.sum(share, -3), ops.sum(of_weight, 0)


def _pairs(query: Tensor, key: Tensor) -> Tensor:
    """(..., n, h) and (..., m, h) -> (..., n, m, h)."""
    return ops.expand_dims(query, -2) + ops.expand_dims(key, -3)


def _slope(argument: Tensor) -> Tensor:
    """Of tanh; 1 − tanh² would have no digits left where tanh is saturated."""
    small = ops.exp(-2 * ops.abs(argument))
    return 4 * small / ((1 + small) * (1 + small))


def _scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    def folded(parts: Parts, total: Tensor) -> Tensor:
        queries, keys, weights = parts
        for first in range(0, _TOGETHER, 2):
            one, other = (1 + _outer(queries[i], keys[i], ops.multiply) for i in (first, first + 1))
            total = total - 2 * (weights[first] * other + weights[first + 1] * one) / (one * other)
        return total

    def plain(parts: Parts, total: Tensor) -> Tensor:
        queries, keys, weights = parts
        for i in range(_TOGETHER):
            total = total + weights[i] * ops.tanh(_outer(queries[i], keys[i], ops.add))
        return total

    def run(step: Callable[[Parts, Tensor], Tensor], one: Tensor, other: Tensor, first: Tensor) -> Tensor:
        parts = [_parted(each, _TOGETHER) for each in (one, other, weight)]
        start = first + ops.zeros_like(_outer(query[..., 0], key[..., 0], ops.add))
        return ops.fori_loop(0, parts[0].shape[0], lambda i, total: step([part[i] for part in parts], total), start)

    return ops.cond(
        _safe(query, key),
        lambda: run(folded, ops.exp(2 * query), ops.exp(2 * key), ops.sum(weight)),
        lambda: run(plain, query, key, ops.zeros_like(weight[0])),
    )


def _gradient(query: Tensor, key: Tensor, weight: Tensor, upstream: Tensor) -> Parts:
    """With the upstream gradient g and r = 1/(1 + p), dq = Σ_m 4 v g p r², dk = Σ_n of the same, dv = Σ g (1 − 2r)."""

    def folded(parts: Parts) -> Parts:
        one, other, v = parts
        # p is a product, so that its factors come out of the sums: what remains are products of a matrix with vectors.
        share = 1 / (1 + _outer(one, other, ops.multiply))
        share = upstream * share * share
        sums = ops.matmul(share, ops.stack([other, ops.ones_like(other)], -1))
        by_key = ops.matmul(ops.expand_dims(one, -2), share)[..., 0, :]
        by_query, alone = sums[..., 0], sums[..., 1]
        total = ops.sum(upstream) - 2 * ops.sum(alone + one * by_query)  # r = (1 + p) r²
        return 4 * v * one * by_query, 4 * v * other * by_key, total

    def plain(parts: Parts) -> Parts:
        one, other, v = parts
        argument = _outer(one, other, ops.add)
        share = upstream * v * _slope(argument)
        return ops.sum(share, -1), ops.sum(share, -2), ops.sum(upstream * ops.tanh(argument))

    def run(step: Callable[[Parts], Parts], one: Tensor, other: Tensor) -> Parts:
        parts = tuple(ops.moveaxis(each, -1, 0) for each in (one, other, weight))

        def collect(_: Parts, features: Parts) -> tuple[Parts, Parts]:
            found = step(features)
            return found, found

        # TensorFlow's scan wants what it collects to look like what it carries; nothing is carried.
        return ops.scan(collect, tuple(ops.zeros_like(part[0]) for part in parts), parts)[1]

    found = ops.cond(
        _safe(query, key),
        lambda: run(folded, ops.exp(2 * query), ops.exp(2 * key)),
        lambda: run(plain, query, key),
    )
    return tuple(ops.moveaxis(each, 0, -1) for each in found)


_at_once, _in_a_loop = differentiated(_scores_at_once, _gradient_at_once), differentiated(_scores, _gradient)


def _safe(query: Tensor, key: Tensor) -> Tensor:
    """Whether denominators may be folded; decided on the device, as NaN comes out as no."""
    return ops.max(ops.abs(query), initial=0.0) + ops.max(ops.abs(key), initial=0.0) <= _SAFE


def _outer(query: Tensor, key: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """(..., n) and (..., m) -> (..., n, m)."""
    return combine(ops.expand_dims(query, -1), ops.expand_dims(key, -2))


def _parted(x: Tensor, together: int) -> Tensor:
    """(..., h) -> (steps, features of a step, ...), with features of 0 at the end."""
    moved, steps = ops.moveaxis(x, -1, 0), -(-x.shape[-1] // together)
    padded = ops.pad(moved, [[0, steps * together - x.shape[-1]]] + [[0, 0]] * (len(x.shape) - 1))
    return ops.reshape(padded, (steps, together, *ops.shape(moved)[1:]))
