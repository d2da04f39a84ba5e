"""The reference's arithmetic with a backward of its own: what calls on a device are left to where pairs are few.

As many operations as the textbook's lines take, since there it is operations that take the time: each is a kernel that
the host launches.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dikkat._core.arithmetic import farthest
from dikkat._core.implementations import reference
from dikkat._core.problem import Problem
from dikkat._core.restrictions import Hidden
from dikkat._engine.addresses import many_at_once
from dikkat._engine.local_gradients import local_gradients

_through_tanh, _through_clamp = torch.ops.aten.tanh_backward.grad_input, torch.ops.aten.hardtanh_backward


def ready(template: Problem) -> Callable[..., list[Tensor]] | None:
    """`reference.run` for calls in the shapes of a problem, given what is hidden; its keys and queries are 0."""
    restrictions = template.restrictions
    plain = template.pair != "distance" or template.profile == "gaussian"
    others = (restrictions.starts, restrictions.bias, restrictions.key_bias, restrictions.exclude)
    if template.wants_state or template.softcap or not plain or any(each is not None for each in others):
        return None
    # What is built for each pair is as wide as the operands, as in plain PyTorch: to move it takes the time.
    dtype = template.narrow_dtype if template.pair == "additive" else template.dtype
    records, template = template.records, template.without_tensors()

    def run(query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, hidden: Hidden | None) -> list[Tensor]:
        if records:
            return list(_Pairwise.apply(template, dtype, hidden, query, key, weight, value))  # type: ignore[no-untyped-call]
        return _forward(template, dtype, hidden, query, key, weight, value)[:2]

    return run


def _forward(
    template: Problem, dtype: torch.dtype, hidden: Hidden | None,
    query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Mean and weights; and what a backward reads beside them: tanh(q + k) or q − k, and the values that it met."""
    product = torch.bmm if len(template.lead) == 1 else torch.matmul
    key, value = key.to(dtype), value.to(dtype)
    made = key
    if template.pair == "inner":
        scores = product(query.to(dtype), key.mT)
    elif weight is not None:
        made = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()
        scores = torch.matmul(made, weight.to(dtype))
    else:
        limit = farthest(query.shape[-1], dtype)
        made = query.clamp(-limit, limit).unsqueeze(-2) - key.clamp(-limit, limit).unsqueeze(-3)
        scores = made.square().sum(-1).mul_(-0.5)
    if hidden is None:
        weights = torch.softmax(scores, -1)
        return [product(weights, value), weights, made, value]
    pairs = hidden.pairs()
    # In a row that sees nothing, or a NaN, all are NaN for now; what is hidden weighs nothing.
    weights = torch.softmax(scores.masked_fill_(pairs, -math.inf), -1).masked_fill_(pairs, 0.0)
    value = value if hidden.keys is None else value.masked_fill(hidden.keys.unsqueeze(-1), 0.0)
    if not hidden.by_row:
        return [product(weights, value), weights, made, value]
    # 0 · NaN is NaN: what is not finite is left out of the sums, and makes the features of those that see it NaN.
    size = value.shape[-1]
    both = value.new_empty((*value.shape[:-1], 2 * size))
    finite = both[..., :size]
    torch.nan_to_num(value, 0.0, 0.0, 0.0, out=finite)
    torch.ne(value, finite, out=both[..., size:])
    sums = product(weights, both)
    mean = sums[..., :size].masked_fill(sums[..., size:] > 0, math.nan)
    return [mean, weights, made, finite]


class _Pairwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, template: Problem, dtype: torch.dtype, hidden: Hidden | None, *operands: Any) -> Any:
        mean, weights, made, value = _forward(template, dtype, hidden, *operands)
        ctx.template, ctx.hidden = template, hidden
        ctx.save_for_backward(*operands, weights, made, value)
        ctx.set_materialize_grads(False)
        return (mean, weights) if template.wants_weights else (mean,)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, by_weight: Tensor | None = None) -> tuple[Tensor | None, ...]:
        query, key, weight, value, weights, made, met = ctx.saved_tensors
        template, hidden = ctx.template, ctx.hidden
        if torch.is_grad_enabled() or many_at_once(grad, by_weight):
            operands, needed = (query, key, weight, value), ctx.needs_input_grad[3:]
            return None, None, None, *_recorded(template, hidden, operands, needed, (grad, by_weight))
        product, by_row = torch.bmm if len(template.lead) == 1 else torch.matmul, hidden is not None and hidden.by_row
        by_value = None
        if grad is not None:
            grad = grad.to(met.dtype)
            if hidden is not None and hidden.queries is not None:
                grad = grad.masked_fill(hidden.queries.unsqueeze(-1), 0.0)
            by_value = product(weights.mT, grad).to(value.dtype)
            through = product(grad, met.mT)
            by_weight = through if by_weight is None else through + by_weight
        if by_weight is None:
            return (None,) * 6 + (by_value,)
        by_score = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype)
        if by_row:  # in a row that sees a NaN all would be NaN
            by_score.masked_fill_(hidden.pairs(), 0.0)
        if template.pair == "inner":
            queries, keys = query.to(met.dtype), key.to(met.dtype)
            if by_row:  # what is hidden from some adds 0 times what it is
                queries, keys = queries.nan_to_num(0.0, 0.0, 0.0), keys.nan_to_num(0.0, 0.0, 0.0)
            by_query, by_key = product(by_score, keys), product(by_score.mT, queries)
            return None, None, None, by_query.to(query.dtype), by_key.to(key.dtype), None, by_value
        if by_row:
            made = made.nan_to_num(0.0, 0.0, 0.0)
        features, of_weight = made.shape[-1], None
        if weight is not None:
            of_weight = torch.mv(made.view(-1, features).t(), by_score.view(-1)).to(weight.dtype)
            by_pair = by_score.unsqueeze(-1) * weight
            _through_tanh(by_pair, made, grad_input=by_pair)
            by_query, by_key = by_pair.sum(-2), by_pair.sum(-3)
        else:
            by_pair = by_score.unsqueeze(-1) * made
            limit = farthest(features, made.dtype)
            by_query = _through_clamp(by_pair.sum(-2).neg_(), query, -limit, limit)
            by_key = _through_clamp(by_pair.sum(-3), key, -limit, limit)
        return None, None, None, by_query.to(query.dtype), by_key.to(key.dtype), of_weight, by_value


def _recorded(template: Problem, hidden: Hidden | None, operands: Any, needed: Any, grads: Any) -> list[Tensor | None]:
    """The gradients of the operands by the reference and autograd, which differentiate again, and many at once."""
    mask = None if hidden is None else ~hidden.pairs()
    restrictions = template.restrictions.unchecked_copy(lens=None, causal=False, mask=mask)
    lead = len(template.lead)

    def forward(query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor) -> tuple[Tensor, Tensor | None]:
        problem = template.unchecked_copy(
            query=query, key=key, weight=None if weight is None else weight[(None,) * lead], value=value,
            restrictions=restrictions, wants_weights=True,
        )  # fmt: skip
        result = reference.run(problem)
        return result.mean, result.weights

    return local_gradients(forward, operands, needed, grads)
