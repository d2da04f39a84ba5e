"""Plain PyTorch under plain autograd: the reference that tests compare the other implementations with.

It builds every (..., n, m) tensor, and (..., n, m, h) for additive and distance scores. Hidden pairs are left out of
every sum, forward and backward.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dikkat._core.arithmetic import cap, clip, dropout_scale, log_profile, pool, weighted_sum
from dikkat._core.problem import Examined, Problem, Result, scaled
from dikkat._core.restrictions import positions
from dikkat._core.softmax import softmax, softmax_weights
from dikkat.state import log_sum_exp

# Zeros for `baddbmm` calls without a bias.
_ZERO = {kind: torch.zeros((), dtype=kind, device="cpu") for kind in (torch.float32, torch.float64)}


def examine(problem: Problem) -> Examined:
    return Examined([])


def run(problem: Problem) -> Result:
    if problem.kept is None:
        problem = problem.in_wide_dtype()
    restrictions = problem.restrictions
    visible = restrictions.visible()
    # If all rows of a batch element see the same keys, the caller has set hidden keys to 0: plain products suffice.
    row_mask = visible if restrictions.vary_by_row() and not problem.finite else None
    # If no operand is broadcast, `bmm` skips the shape analysis of `matmul`, which small calls notice.
    product = torch.bmm if problem.kept is not None and len(problem.lead) == 1 else torch.matmul
    scores = pair_scores(problem, row_mask, product)
    scores = restrictions.biased(scores)
    if scores.shape[:-2] != problem.lead:  # a restriction may have leading dimensions that no query or key has
        scores = scores.expand(*problem.lead, *scores.shape[-2:])
    if problem.pair == "distance" and problem.profile != "gaussian":  # keys outside the support are hidden
        supported = scores != -float("inf")
        visible = supported if visible is None else visible & supported
        row_mask = visible
    weights = softmax_weights(scores, visible, plain=bool(problem.finite) and restrictions.leaves_some())
    lse, tail = log_sum_exp(*softmax(scores, visible)[1:]) if problem.wants_state else (None, None)
    scale = dropout_scale(problem)
    dropped = weights if scale is None else weights * scale
    mean = product(dropped, problem.value) if row_mask is None else _pool(dropped, problem.value, row_mask)
    if problem.finite and visible is not None and not restrictions.leaves_some():
        # The gradient of a row without a key may be NaN, and 0 · NaN must not reach the values' gradient.
        mean = torch.where(visible.any(-1, keepdim=True), mean, 0.0)
    return Result(mean, lse, weights if problem.wants_weights else None, tail)


def pair_scores(
    problem: Problem, visible: Tensor | None, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> Tensor:
    """Return the scores (..., n, m); those of hidden pairs are arbitrary, with gradient 0."""
    query, key = problem.query, problem.key
    if problem.pair == "inner":
        if problem.scale != 1.0:
            if visible is None and query.ndim == 3 and query.shape[0] == key.shape[0]:
                return _scaled_products(query, key, problem.scale)
            return pair_scores(problem.scaled(), visible, product)
        return cap(problem, product(query, key.mT) if visible is None else _inner(query, key, visible))
    return _pairwise(problem, clip(problem, query), clip(problem, key), problem.weight, visible)


def _pairwise(problem: Problem, query: Tensor, key: Tensor, weight: Tensor | None, visible: Tensor | None) -> Tensor:
    query, key = query.unsqueeze(-2), key.unsqueeze(-3)
    pairs = query + key if problem.pair == "additive" else query - key
    if visible is not None:
        pairs = torch.where(visible[..., None], pairs, 0.0)
    if problem.pair == "additive" and weight is not None:
        return weighted_sum(pairs.tanh_(), weight)
    return log_profile(problem.profile, pairs.square().sum(-1))


def make_fast_run(template: Problem) -> Callable[..., list[Tensor]] | None:
    """Return a fast `run` for operands of the template's shapes, or None if there is none.

    It requires finite operands, no restriction except lengths, and lengths of at least 1. For distance scores it also
    returns the scores, so that the caller can check them for overflow.
    """
    restrictions = template.restrictions
    if restrictions.causal or template.wants_state or (template.pair == "distance" and template.profile != "gaussian"):
        return None
    single_batch_dim, scale = len(template.lead) == 1, template.scale
    product = torch.bmm if single_batch_dim else torch.matmul
    keys, zero = positions(restrictions.keys), _ZERO[template.query.dtype]
    template = template.without_tensors()  # a program keeps no tensor of the call that made it
    lens_shape = () if restrictions.lens is None else (*restrictions.lens.shape, 1)

    def run(query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None) -> list[Tensor]:
        # An added −∞ needs no backward, and `baddbmm` adds it without another pass.
        bias = None if lens is None else torch.where(keys < lens.view(lens_shape), zero, -math.inf)
        inner = template.pair == "inner"
        if inner and single_batch_dim:  # no name keeps the scores, so that their memory is reused
            weights = torch.softmax(_scaled_products(query, key, scale, bias), -1)
        else:
            scores = product(*scaled(query, key.mT, scale)) if inner else _pairwise(template, query, key, weight, None)
            weights = torch.softmax(scores if bias is None else scores + bias, -1)
        pooled = [product(weights, value), weights]
        return [*pooled, scores] if template.pair == "distance" else pooled

    return run


def _scaled_products(query: Tensor, key: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """scale ⟨q_i, k_j⟩ + bias of (B, n, h) and (B, m, h), in one pass."""
    if bias is None:
        return torch.baddbmm(_ZERO[query.dtype], query, key.mT, beta=0, alpha=scale)
    return torch.baddbmm(bias, query, key.mT, alpha=scale)


def _inner(query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
    function = _Inner if torch.compiler.is_compiling() else _InnerWithJvp
    product: Tensor = function.apply(query, key, visible)  # type: ignore[no-untyped-call]
    return product


def _pool(weights: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    function = _Pool if torch.compiler.is_compiling() else _PoolWithJvp
    pooled: Tensor = function.apply(weights, value, visible)  # type: ignore[no-untyped-call]
    return pooled


# The two products below are each other's derivatives and leave hidden pairs out of the backward sums too: plain
# autograd would multiply a gradient of 0 by a hidden NaN.


class _Inner(torch.autograd.Function):
    """⟨a_i, b_j⟩ for visible pairs, 0 for hidden ones."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, visible: Tensor) -> Tensor:
        return torch.where(visible, a @ b.mT, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b, visible = ctx.saved_tensors
        grad = torch.where(visible, grad, 0.0)
        by_a, by_b = _pool(grad, b, visible), _pool(grad.mT, a, _transposed(visible, grad))
        return by_a.sum_to_size(a.shape), by_b.sum_to_size(b.shape), None


class _Pool(torch.autograd.Function):
    """Σ_j w_ij v_j over the visible j; w of hidden pairs is 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights: Tensor, value: Tensor, visible: Tensor) -> Tensor:
        return pool(weights, value, visible)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        weights, value, visible = ctx.saved_tensors
        weights_grad = _inner(grad, value, visible)
        value_grad = _pool(weights.mT, grad, _transposed(visible, weights))
        return weights_grad.sum_to_size(weights.shape), value_grad.sum_to_size(value.shape), None


# Forward mode is in subclasses, because torch.compile traces no function that has `jvp`.


class _InnerWithJvp(_Inner):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, a_tangent: Tensor | None, b_tangent: Tensor | None, _: None) -> Tensor:
        a, b, visible = ctx.saved_tensors
        return _inner(_zero(a_tangent, a), b, visible) + _inner(a, _zero(b_tangent, b), visible)


class _PoolWithJvp(_Pool):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, weights_tangent: Tensor | None, value_tangent: Tensor | None, _: None) -> Tensor:
        weights, value, visible = ctx.saved_tensors
        through_weights = _pool(_zero(weights_tangent, weights), value, visible)
        return through_weights + _pool(weights, _zero(value_tangent, value), visible)


def _zero(tangent: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if tangent is None else tangent


def _transposed(visible: Tensor, like: Tensor) -> Tensor:
    return visible.expand(*visible.shape[:-2], *like.shape[-2:]).mT
