"""Attention for few queries or small calls: one compiled call that reads operands without packing them."""

import math
from collections.abc import Callable, Hashable
from typing import Any, Self

import torch
from torch import Tensor

from dikkat._core.arithmetic import farthest
from dikkat._core.implementations.numba import launch
from dikkat._core.implementations.numba.launch import ProblemRecord
from dikkat._core.implementations.numba.record import FEW
from dikkat._core.operators import Gradients, Kernel, Output
from dikkat._core.problem import Examined, Problem, Result
from dikkat._engine import addresses
from dikkat._engine.record import FENCE, Ready, round_up
from dikkat.state import log_sum_exp

# Up to this many queries, or pairs times features, packing keys costs more than it saves: measured on 18 shapes, on one
# and two threads of an EPYC.
_QUERIES, _SMALL = 4, {"additive": 2**17, "distance": 2**19}
# The largest 2x for which a product of four 1 + e^{2x} is finite.
_EXPONENT_LIMITS = {torch.float32: 20.0, torch.float64: 170.0}
# Records by shapes, so that a call only fills in addresses, and the largest number of records.
_RECORDS: dict[Hashable, dict[Any, Any]] = {}
_MAX_RECORDS = 256
# Pairs times features below which waking a second thread costs more than it saves.
_ONE_THREAD = 2**15


def examine(problem: Problem) -> Examined:
    restrictions, lead, weight = problem.restrictions, problem.lead, problem.weight
    operands = (problem.query, problem.key, problem.value)
    reasons = addresses.tensor_obstacles([*operands, weight, restrictions.lens])
    if problem.dropout:
        reasons.append("it has no dropout")
    if problem.softcap:
        reasons.append("it has no soft cap")
    if problem.profile != "gaussian":
        reasons.append(f"it has no {problem.profile} kernel")
    extras = (restrictions.starts, restrictions.mask, restrictions.bias, restrictions.key_bias, restrictions.exclude)
    if any(t is not None for t in extras):
        reasons.append("it takes lengths and causality, and no other restriction")
    if any(t.shape[:-2] != lead for t in operands):
        reasons.append("query, key and value must have all leading dimensions: it broadcasts none")
    if not lead.numel() * restrictions.queries * restrictions.keys * problem.query.shape[-1]:
        reasons.append("it takes no empty tensors")
    if weight is not None and weight.numel() != weight.shape[-1]:
        reasons.append("it takes one weight for all batch elements")
    return Examined(reasons)


def is_quicker(problem: Problem) -> bool:
    """Return whether these kernels beat the packing kernels for additive and distance scores."""
    queries, features = problem.query.shape[-2:]
    pairs = problem.lead.numel() * queries * problem.restrictions.keys
    return problem.packed is None and (queries <= _QUERIES or pairs * features <= _SMALL[problem.pair])


def run(problem: Problem) -> Result:
    problem = problem.in_wide_dtype()
    if not (problem.wants_state or problem.records):
        mean, weights = _pooled(_FewRecord.of(problem), problem)
        return Result(mean, None, weights)
    mean, peak, total, weights = _KERNEL.run(problem)
    lse, tail = log_sum_exp(peak, total) if problem.wants_state else (None, None)
    return Result(mean, lse, weights if problem.wants_weights else None, tail)


def make_fast_run(problem: Problem) -> Callable[..., list[Tensor] | None] | None:
    """Return a function (query, key, weight, value, lens) -> [mean, weights], or None for operands with gradients."""
    from dikkat._core.implementations.numba import few_kernel

    if problem.wants_state or problem.records or FENCE:
        return None
    call, rows = _FewRecord(problem), (*problem.lead, problem.restrictions.queries)
    outputs = {"mean": (*rows, problem.value.shape[-1])}
    if problem.wants_weights:
        outputs["weights"] = (*rows, problem.restrictions.keys)
    return Ready(call, few_kernel.forward, call.rows, ("query", "key", "weight", "value", "lens"), outputs)


class _FewRecord(ProblemRecord):
    def __init__(self, problem: Problem) -> None:
        super().__init__(FEW, problem)
        features, restrictions = problem.query.shape[-1], problem.restrictions
        padded, keys = round_up(features, self.lanes), round_up(restrictions.keys, self.lanes)
        self.fields |= {
            "padded": padded,
            "limit": _EXPONENT_LIMITS[self.dtype],
            "scale": problem.scale,
            "highest": farthest(features, self.dtype) if problem.pair == "distance" else math.inf,
        }
        self.rows = self.batch * restrictions.queries
        self.alone = self.rows * restrictions.keys * features <= _ONE_THREAD
        self.lay_out(
            query=padded, weight=padded, scores=keys, shares=keys, sums=self.lanes**2, spare=self.lanes, by_score=keys,
            query_sums=padded, weight_sums=padded,
        )  # fmt: skip

    @classmethod
    def of(cls, problem: Problem) -> Self:
        lens, restrictions = problem.restrictions.lens, problem.restrictions
        shapes = (
            problem.pair, problem.scale, problem.query.dtype, problem.query.shape, problem.key.shape,
            problem.value.shape, restrictions.causal, lens if lens is None else lens.shape,
        )  # fmt: skip
        if shapes not in _RECORDS and len(_RECORDS) >= _MAX_RECORDS:
            _RECORDS.clear()
        call = super().of(problem.unchecked_copy(kept=_RECORDS.setdefault(shapes, {})))
        for operand, tensor in (("query", problem.query), ("key", problem.key), ("value", problem.value)):
            call.point(operand, tensor.resolve_neg().contiguous())
        if problem.weight is not None:
            call.point("weight", problem.weight.resolve_neg().contiguous())
        if problem.restrictions.lens is not None:
            call.point("lens", problem.restrictions.lens.contiguous())
        return call


def _forward(problem: Problem) -> Output:
    call, rows = _FewRecord.of(problem), (*problem.lead, problem.restrictions.queries)
    peak, total = call.new("peak", *rows), call.new("total", *rows)
    mean, weights = _pooled(call, problem)
    return Output(mean, peak, total, problem.query.new_empty(0) if weights is None else weights)


def _pooled(call: _FewRecord, problem: Problem) -> tuple[Tensor, Tensor | None]:
    from dikkat._core.implementations.numba import few_kernel

    rows = (*problem.lead, problem.restrictions.queries)
    mean = call.new("mean", *rows, problem.value.shape[-1])
    weights = call.new("weights", *rows, problem.restrictions.keys) if problem.wants_weights else None
    call.run(few_kernel.forward, call.rows)
    return mean, weights


def _backward(problem: Problem, out: Output, grads: Output) -> Gradients:
    from dikkat._core.implementations.numba import few_kernel

    call = _FewRecord.of(problem)
    if problem.wants_weights:
        call.point("weights_grad", grads.weights.contiguous())
    row_grads = (("mean_grad", grads.mean), ("total_grad", grads.total))
    for name, tensor in (("mean", out.mean), ("peak", out.peak), ("total", out.total), *row_grads):
        call.point(name, tensor.contiguous())
    query_grad, key_grad = call.new("query_grad", *problem.query.shape), call.new("key_grad", *problem.key.shape)
    value_grad, weight_grad = call.new("value_grad", *problem.value.shape), torch.empty(0, device="cpu")
    if problem.weight is not None:
        by_task = call.new("weight_grad", call.batch, problem.query.shape[-1])
    call.run(few_kernel.backward, call.batch)
    if problem.weight is not None:
        weight_grad = by_task.sum(0).view(problem.weight.shape)
    nothing = torch.empty(0, device="cpu")
    return Gradients(query_grad, key_grad, weight_grad, value_grad, bias=nothing, key_bias=nothing)


_KERNEL = Kernel(_forward, _backward, "numba-few", launch.run.batched)
