"""Inspects calls of PyTorch's attention functions."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._core import validation
from dikkat._core.problem import Problem
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.row_blocks import hidden_by_bias
from dikkat.inspection.single_call import summarise_weights
from dikkat.scores import Dot


def inspect_weights(weights: Tensor, request: Request, lse: Tensor | None = None) -> Inspection:
    """Return the requested summaries of weights (..., n, m), with their log-sum-exp `lse` if it is known."""
    heads, query_indices = request.selection(weights.shape[:-2], weights.shape[-2], weights.device)
    if heads is not None and weights.ndim > 3:
        weights, lse = weights[..., heads, :, :], None if lse is None else lse[..., heads, :]
    if query_indices is not None:
        weights, lse = weights[..., query_indices, :], None if lse is None else lse[..., query_indices]
    if lse is None:
        request = request.without_scores("weights whose scores dikkat does not know, as in a recurrence or with a sink")
    wide_weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    row_lse = wide_weights[..., 0:0].sum(-1) if lse is None else lse
    inspection = summarise_weights(row_lse, wide_weights, request)
    return replace(inspection, lse=lse, heads=heads, queries=query_indices, shape=tuple(wide_weights.shape))


def problem_of_fused(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *, with_values: bool = False,
) -> Problem:  # fmt: skip
    """Return a call of PyTorch's `scaled_dot_product_attention` as dikkat's, with its values if `with_values`."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], dim=-3) for t in (key, value))
    dtype = torch.promote_types(query.dtype, torch.float32)
    query = query.to(dtype) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    (queries, keys), lead = (query.shape[-2], key.shape[-2]), torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    lens, bias, mask = None, None, attn_mask
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        bias, mask = attn_mask.to(dtype), None
        bias = bias.masked_fill(hidden_by_bias(attn_mask), -math.inf)
    if is_causal and queries != keys:  # PyTorch aligns the diagonal with the first key
        lens = torch.arange(1, queries + 1, device=query.device).clamp(max=keys).expand(*lead[:1], queries)
    problem = validation.problem_of_call(
        query, key.to(dtype), value.to(dtype) if with_values else query.new_zeros(*key.shape[:-1], 1), Dot(),
        validation.Requested(), valid_lens=lens, causal=is_causal and lens is None,
        mask=mask, bias=bias,
    )  # fmt: skip
    return replace(problem, dropout=dropout_p if with_values else 0.0)


_MULTI_HEAD = F.multi_head_attention_forward
_SIGNATURE = inspect.signature(_MULTI_HEAD)


def call_multi_head(attend: Callable[..., Tensor], arguments: Mapping[str, Any]) -> Tensor:
    """Return the output of `multi_head_attention_forward` with `attend` as its `scaled_dot_product_attention`."""
    functions = {**_MULTI_HEAD.__globals__, "scaled_dot_product_attention": attend}
    forward = FunctionType(_MULTI_HEAD.__code__, functions)
    # With `need_weights`, PyTorch ignores the hint and uses the mask.
    causal = arguments["is_causal"] and not arguments["need_weights"]
    output: Tensor = forward(**{**arguments, "need_weights": False, "is_causal": causal})[0]
    return output


def multi_head_arguments(*arguments: object, **keywords: object) -> dict[str, Any]:
    """Return all arguments of a call of `multi_head_attention_forward` by name."""
    bound = _SIGNATURE.bind(*arguments, **keywords)
    bound.apply_defaults()
    return bound.arguments
