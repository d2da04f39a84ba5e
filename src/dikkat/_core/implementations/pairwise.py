"""The reference's arithmetic with a hand-written backward pass, for device calls with few pairs.

Such calls take as long as the host needs to launch their kernels, so it uses no more operations than plain PyTorch.
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
from dikkat._engine.addresses import are_batched
from dikkat._engine.local_gradients import local_gradients

_through_tanh, _through_clamp = torch.ops.aten.tanh_backward.grad_input, torch.ops.aten.hardtanh_backward


def make_fast_run(template: Problem) -> Callable[..., list[Tensor]] | None:
    """Return `reference.run` for calls in a problem's shapes, whose hidden keys and queries are 0."""
    restrictions = template.restrictions
    plain = template.pair != "distance" or template.profile == "gaussian"
    unsupported = (restrictions.starts, restrictions.bias, restrictions.key_bias, restrictions.exclude)
    if template.wants_state or template.softcap or not plain or any(t is not None for t in unsupported):
        return None
    # Memory traffic of the (..., n, m, h) tensor takes most of the time, so it has the operands' dtype.
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
    """Return mean, weights, tanh(q + k) or q − k (the key for inner products), and the values without hidden ones."""
    product = torch.bmm if len(template.lead) == 1 else torch.matmul
    key, value = key.to(dtype), value.to(dtype)
    pair_features = key
    if template.pair == "inner":
        scores = product(query.to(dtype), key.mT)
    elif weight is not None:
        pair_features = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()
        scores = torch.matmul(pair_features, weight.to(dtype))
    else:
        limit = farthest(query.shape[-1], dtype)
        pair_features = query.clamp(-limit, limit).unsqueeze(-2) - key.clamp(-limit, limit).unsqueeze(-3)
        scores = pair_features.square().sum(-1).mul_(-0.5)
    if hidden is None:
        weights = torch.softmax(scores, -1)
        return [product(weights, value), weights, pair_features, value]
    hidden_pairs = hidden.pairs()
    # Rows that see no key, or a NaN, are NaN at first; hidden pairs get weight 0.
    weights = torch.softmax(scores.masked_fill_(hidden_pairs, -math.inf), -1).masked_fill_(hidden_pairs, 0.0)
    value = value if hidden.keys is None else value.masked_fill(hidden.keys.unsqueeze(-1), 0.0)
    if not hidden.by_row:
        return [product(weights, value), weights, pair_features, value]
    # 0 · NaN is NaN: sums leave out numbers that are not finite, and rows that see one get NaN afterwards.
    size = value.shape[-1]
    value_and_flags = value.new_empty((*value.shape[:-1], 2 * size))
    finite = value_and_flags[..., :size]
    torch.nan_to_num(value, 0.0, 0.0, 0.0, out=finite)
    torch.ne(value, finite, out=value_and_flags[..., size:])
    sums = product(weights, value_and_flags)
    mean = sums[..., :size].masked_fill(sums[..., size:] > 0, math.nan)
    return [mean, weights, pair_features, finite]


class _Pairwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, template: Problem, dtype: torch.dtype, hidden: Hidden | None, *operands: Any) -> Any:
        mean, weights, pair_features, value = _forward(template, dtype, hidden, *operands)
        ctx.template, ctx.hidden = template, hidden
        ctx.save_for_backward(*operands, weights, pair_features, value)
        ctx.set_materialize_grads(False)
        return (mean, weights) if template.wants_weights else (mean,)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, weights_grad: Tensor | None = None) -> tuple[Tensor | None, ...]:
        query, key, weight, value, weights, pair_features, used_value = ctx.saved_tensors
        template, hidden = ctx.template, ctx.hidden
        if torch.is_grad_enabled() or are_batched(grad, weights_grad):
            operands, needed = (query, key, weight, value), ctx.needs_input_grad[3:]
            return None, None, None, *_recompute(template, hidden, operands, needed, (grad, weights_grad))
        product, by_row = torch.bmm if len(template.lead) == 1 else torch.matmul, hidden is not None and hidden.by_row
        value_grad = None
        if grad is not None:
            grad = grad.to(used_value.dtype)
            if hidden is not None and hidden.queries is not None:
                grad = grad.masked_fill(hidden.queries.unsqueeze(-1), 0.0)
            value_grad = product(weights.mT, grad).to(value.dtype)
            grad_through_mean = product(grad, used_value.mT)
            weights_grad = grad_through_mean if weights_grad is None else grad_through_mean + weights_grad
        if weights_grad is None:
            return (None,) * 6 + (value_grad,)
        score_grad = torch._softmax_backward_data(weights_grad, weights, -1, weights.dtype)
        if by_row:  # else NaN throughout rows that see one
            score_grad.masked_fill_(hidden.pairs(), 0.0)
        if template.pair == "inner":
            queries, keys = query.to(used_value.dtype), key.to(used_value.dtype)
            if by_row:  # a key hidden from a row adds 0 · key
                queries, keys = queries.nan_to_num(0.0, 0.0, 0.0), keys.nan_to_num(0.0, 0.0, 0.0)
            query_grad, key_grad = product(score_grad, keys), product(score_grad.mT, queries)
            return None, None, None, query_grad.to(query.dtype), key_grad.to(key.dtype), None, value_grad
        if by_row:
            pair_features = pair_features.nan_to_num(0.0, 0.0, 0.0)
        features, v_grad = pair_features.shape[-1], None
        if weight is not None:
            v_grad = torch.mv(pair_features.view(-1, features).t(), score_grad.view(-1)).to(weight.dtype)
            pair_grad = score_grad.unsqueeze(-1) * weight
            _through_tanh(pair_grad, pair_features, grad_input=pair_grad)
            query_grad, key_grad = pair_grad.sum(-2), pair_grad.sum(-3)
        else:
            pair_grad = score_grad.unsqueeze(-1) * pair_features
            limit = farthest(features, pair_features.dtype)
            query_grad = _through_clamp(pair_grad.sum(-2).neg_(), query, -limit, limit)
            key_grad = _through_clamp(pair_grad.sum(-3), key, -limit, limit)
        return None, None, None, query_grad.to(query.dtype), key_grad.to(key.dtype), v_grad, value_grad


def _recompute(template: Problem, hidden: Hidden | None, operands: Any, needed: Any, grads: Any) -> list[Tensor | None]:
    """Return the operands' gradients by the reference and autograd, for second derivatives and batched gradients."""
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
