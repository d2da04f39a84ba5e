r"""The additive comparison without tanh, in a shape that XLA fuses.

$$ \sum_h v_h \tanh(q_h + k_h) = \sum_h v_h - 2 \sum_h \frac{v_h}{1 + p_h}, \qquad p_h = e^{2 q_h} e^{2 k_h} $$

The exponentials belong to the query and to the key: they are computed n + m times, not n·m times. Two reciprocals fold
into one, u/a + v/b = (u·b + v·a)/(a·b). A loop goes over the features, some at a step, and carries the scores; the
backward goes over them once more. So what stands in memory is of the size of the scores, and never (…, n, m, h). Few
numbers are computed all at once: there a loop takes longer, and above all longer to compile.
"""

import math
from collections.abc import Callable
from operator import add, mul
from typing import Any

import keras
from keras import ops

Tensor = Any
Parts = Any  # a query's, a key's and the weight's

_TOGETHER = 16  # features of a step of the forward; even
# max|q| + max|k| up to which two denominators may be multiplied, each below 1 + e^60. In float32 their product can
# overflow, and two reciprocals become 0; but only where it is beyond e^88, both denominators are beyond e^28, and what
# is lost is below e^-28 of a weight.
_SAFE = 30.0
_FEW = 2**16  # pairs times features, up to which all are computed at once


def differentiated(forward: Callable[..., Tensor], gradient: Callable[..., Parts]) -> Callable[..., Tensor]:
    """A function of tensors with a gradient of its own, made of the same tensors and the upstream gradient."""
    own = {"jax": _in_jax, "torch": _in_torch, "tensorflow": _in_tensorflow}
    return own[keras.backend.backend()](forward, gradient)


def _in_jax(forward: Callable[..., Tensor], gradient: Callable[..., Parts]) -> Callable[..., Tensor]:
    import jax

    function = jax.custom_vjp(forward)
    function.defvjp(
        lambda *tensors: (forward(*tensors), tensors), lambda tensors, upstream: gradient(*tensors, upstream)
    )
    # Called outside a program, JAX would compile the loop within anew at every call; this way, once a shape.
    compiled: Callable[..., Tensor] = jax.jit(function)
    return compiled


def _in_torch(own_forward: Callable[..., Tensor], own_gradient: Callable[..., Parts]) -> Callable[..., Tensor]:
    import torch

    class Compared(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*tensors: Tensor) -> Tensor:
            return own_forward(*tensors)

        @staticmethod
        def setup_context(ctx: Any, inputs: Parts, output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, upstream: Tensor) -> Parts:
            return own_gradient(*ctx.saved_tensors, upstream)

    return lambda *tensors: Compared.apply(*tensors)


def _in_tensorflow(forward: Callable[..., Tensor], gradient: Callable[..., Parts]) -> Callable[..., Tensor]:
    @ops.custom_gradient
    def function(*tensors: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        return forward(*tensors), lambda upstream: gradient(*tensors, upstream)

    return function


def additive(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Σ_h v_h tanh(q_h + k_h), (..., n, m), of projected queries (..., n, h) and keys (..., m, h) and v, (h,)."""
    if query.shape[:-2] != key.shape[:-2]:  # brought together here, where differentiation takes them apart again
        query = query + ops.zeros_like(key[..., :1, :1])
        key = key + ops.zeros_like(query[..., :1, :1])
    return (_at_once if _are_few(query, key) else _in_a_loop)(query, key, weight)


def _are_few(query: Tensor, key: Tensor) -> bool:
    """True of few numbers; a size that is not known before the call, None or a symbol of JAX's, may be many."""
    sizes = (*query.shape, key.shape[-2])
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= _FEW


def _scores_at_once(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    return ops.sum(weight * ops.tanh(_pairs(query, key)), -1)


def _gradient_at_once(query: Tensor, key: Tensor, weight: Tensor, upstream: Tensor) -> Parts:
    argument, upstream = _pairs(query, key), ops.expand_dims(upstream, -1)
    # The slope of tanh; 1 − tanh² would have no digits left where tanh is saturated.
    small = ops.exp(-2 * ops.abs(argument))
    share = upstream * weight * 4 * small / ((1 + small) * (1 + small))
    of_weight = ops.reshape(upstream * ops.tanh(argument), (-1, weight.shape[0]))
    return ops.sum(share, -2), ops.sum(share, -3), ops.sum(of_weight, 0)


def _pairs(query: Tensor, key: Tensor) -> Tensor:
    """(..., n, h) and (..., m, h) -> (..., n, m, h)."""
    return ops.expand_dims(query, -2) + ops.expand_dims(key, -3)


def _scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    def folded(parts: Parts, total: Tensor) -> Tensor:
        queries, keys, weights = parts
        for first in range(0, _TOGETHER, 2):
            one, other = (1 + _outer(queries[i], keys[i], mul) for i in (first, first + 1))
            total = total - 2 * (weights[first] * other + weights[first + 1] * one) / (one * other)
        return total

    def plain(parts: Parts, total: Tensor) -> Tensor:
        queries, keys, weights = parts
        for i in range(_TOGETHER):
            total = total + weights[i] * ops.tanh(_outer(queries[i], keys[i], add))
        return total

    def run(step: Callable[[Parts, Tensor], Tensor], one: Tensor, other: Tensor, first: Tensor) -> Tensor:
        parts = [_parted(each, _TOGETHER) for each in (one, other, weight)]
        start = first + ops.zeros_like(_outer(query[..., 0], key[..., 0], add))
        return ops.fori_loop(0, parts[0].shape[0], lambda i, total: step([part[i] for part in parts], total), start)

    return _either(
        query,
        key,
        lambda one, other: run(folded, one, other, ops.sum(weight)),
        lambda: run(plain, query, key, ops.zeros_like(weight[0])),
    )


def _gradient(query: Tensor, key: Tensor, weight: Tensor, upstream: Tensor) -> Parts:
    """The gradients: with upstream g and r = 1/(1 + p), dq = Σ_m 4 v g p r², dk = Σ_n 4 v g p r², dv = Σ g (1 − 2r)."""

    def folded(parts: Parts) -> Parts:
        one, other, v = parts
        # p is a product, so that its factors come out of the sums: what remains are products of a matrix with vectors.
        share = 1 / (1 + _outer(one, other, mul))
        share = upstream * share * share
        sums = ops.matmul(share, ops.stack([other, ops.ones_like(other)], -1))
        by_key = ops.matmul(ops.expand_dims(one, -2), share)[..., 0, :]
        by_query, alone = sums[..., 0], sums[..., 1]
        total = ops.sum(upstream) - 2 * ops.sum(alone + one * by_query)  # r = (1 + p) r²
        return 4 * v * one * by_query, 4 * v * other * by_key, total

    def plain(parts: Parts) -> Parts:
        one, other, v = parts
        # With the logistic function σ, tanh x = 2 σ(2x) − 1, and its slope is 4 σ(2x) σ(−2x).
        argument = _outer(2 * one, 2 * other, add)
        rising = upstream * ops.sigmoid(argument)
        share = rising * ops.sigmoid(-argument)
        return 4 * v * ops.sum(share, -1), 4 * v * ops.sum(share, -2), 2 * ops.sum(rising) - ops.sum(upstream)

    def run(step: Callable[[Parts], Parts], one: Tensor, other: Tensor) -> Parts:
        parts = tuple(_features_first(each) for each in (one, other, weight))

        def collect(_: Parts, features: Parts) -> tuple[Parts, Parts]:
            share = step(features)
            return share, share

        # TensorFlow's scan wants what it collects to look like what it carries; nothing is carried.
        return ops.scan(collect, tuple(ops.zeros_like(part[0]) for part in parts), parts)[1]

    gradients = _either(query, key, lambda one, other: run(folded, one, other), lambda: run(plain, query, key))
    return tuple(_features_last(each) for each in gradients)


_at_once = differentiated(_scores_at_once, _gradient_at_once)
_in_a_loop = differentiated(_scores, _gradient)


def _either(query: Tensor, key: Tensor, folded: Callable[[Tensor, Tensor], Any], plain: Callable[[], Any]) -> Any:
    """The result of the folded computation, from exponentials, where that is safe, else of the plain one."""
    if keras.backend.backend() == "torch":
        # Its transforms cannot ask for values; and without a compiler, folding is as many passes over memory.
        return plain()
    # Of NaN it is False.
    safe = sum(ops.max(ops.abs(each), initial=0.0) for each in (query, key)) <= _SAFE

    def exponentials() -> Any:
        # Under JAX's vmap both are computed, and a 0 of the one not taken must meet no ∞.
        one, other = (ops.exp(2 * ops.where(safe, each, 0.0)) for each in (query, key))
        return folded(one, other)

    return ops.cond(safe, exponentials, plain)


def _outer(query: Tensor, key: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """(..., n) and (..., m) -> (..., n, m)."""
    # By an operator: on TensorFlow, `keras.ops.add` takes (1, 1, m) beside (1, m, 1) for a bias, and returns (1, m, 1).
    return combine(ops.expand_dims(query, -1), ops.expand_dims(key, -2))


def _parted(x: Tensor, together: int) -> Tensor:
    """(..., h) -> (steps, features of a step, ...), padded with features of 0."""
    moved, steps = _features_first(x), -(-x.shape[-1] // together)
    padded = ops.pad(moved, [[0, steps * together - x.shape[-1]]] + [[0, 0]] * (len(x.shape) - 1))
    return ops.reshape(padded, (steps, together, *ops.shape(moved)[1:]))


def _features_first(x: Tensor) -> Tensor:
    """(..., h) -> (h, ...). Not by moveaxis, which PyTorch's vmap does not know."""
    last = len(x.shape) - 1
    return ops.transpose(x, (last, *range(last)))


def _features_last(x: Tensor) -> Tensor:
    """(h, ...) -> (..., h)."""
    return ops.transpose(x, (*range(1, len(x.shape)), 0))
