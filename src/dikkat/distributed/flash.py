"""Blocks of inner products by PyTorch's fused kernel for CPUs, the one way to it that also tells the log-sum-exp.

`scaled_dot_product_attention` does not give it; the operator beneath does, and its backward takes the output and the
log-sum-exp over all keys of the call as readily as those over its own.
"""

import math
from typing import Any

import torch
from torch.backends.cuda import flash_sdp_enabled

from dikkat.backends.sdpa import fold, unfold, width
from dikkat.problem import Problem
from dikkat.problem.operator import Gradients, Kernel, Output
from dikkat.state import log_sum_exp

# They are PyTorch's own: where a version has them no longer, another kernel takes their place.
_forward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_backward: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)
# The largest score that any pair may have: a log-sum-exp in float32 is then rounded by 2⁻¹⁵ at most, and the weights
# made from it by as much of themselves.
_SCORE = 2.0**9


def knows(problem: Problem) -> bool:
    """Whether it serves blocks of a call."""
    there = _forward is not None and _backward is not None and flash_sdp_enabled()
    return there and problem.pair == "inner" and problem.query.is_cpu and not problem.dropout


def before(kernel: Kernel) -> Kernel:
    """The fused kernel for the blocks that it serves, and another kernel for the others."""

    def forward(problem: Problem) -> Output:
        return _pooled(problem) if _serves(problem) else kernel.forward(problem)

    def backward(problem: Problem, out: Output, grads: Output) -> Gradients:
        return _pulled(problem, out, grads) if _serves(problem) else kernel.backward(problem, out, grads)

    return Kernel(forward, backward, "flash")


def _serves(problem: Problem) -> bool:
    """Whether all is seen, and no score can be so large that a log-sum-exp has too few digits for it, or not finite."""
    limits = problem.limits
    restricted = (limits.lens, limits.mask, limits.key_bias, limits.exclude)
    if limits.causal or any(t is not None for t in restricted):
        return False
    if not (limits.queries and limits.keys and problem.value.shape[-1] and math.prod(problem.lead)):
        return False
    longest = [torch.linalg.vector_norm(side, dim=-1).amax() for side in (problem.query, problem.key)]
    return bool(longest[0] * longest[1] <= _SCORE)


def _pooled(problem: Problem) -> Output:
    lead, values = problem.lead, problem.value.shape[-1]
    size = width(problem.query, values)
    query, key, value = (fold(t, size, lead) for t in (problem.query, problem.key, problem.value))
    mean, lse = _forward(query, key, value, scale=1.0)
    peak = unfold(lse[..., None], 1, lead)[..., 0]
    return Output(unfold(mean, values, lead), peak, torch.ones_like(peak), peak.new_zeros(0))


def _pulled(problem: Problem, out: Output, grads: Output) -> Gradients:
    lead = problem.lead
    size = width(problem.query, problem.value.shape[-1])
    sides = (grads.mean, problem.query, problem.key, problem.value, out.mean)
    lse = fold(log_sum_exp(out.peak, out.total)[0][..., None], 1, lead)[..., 0]
    found = _backward(*(fold(t, size, lead) for t in sides), lse, 0.0, False, scale=1.0)
    operands = (problem.query, problem.key, problem.value)
    none = out.mean.new_zeros(0)
    query, key, value = (
        unfold(grad, t.shape[-1], lead).sum_to_size(t.shape) for grad, t in zip(found, operands, strict=True)
    )
    return Gradients(query, key, none, value, none)
