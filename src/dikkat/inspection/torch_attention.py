"""Inspects calls of PyTorch's attention functions."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._core import validation
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat.inspection.edits import Edits
from dikkat.inspection.origins import Origin, Streams
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.row_blocks import hidden_by_bias
from dikkat.inspection.single_call import inspect_problem, summarise_weights
from dikkat.scores import Dot


def fused_arguments(*arguments: Any, **keywords: Any) -> dict[str, Any]:
    """Return the arguments of a call of `scaled_dot_product_attention` by name."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return dict(zip(names, arguments, strict=False)) | keywords


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


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute without gradients, `__torch_function__` and autocast, which would round weights to half precision."""
    cpu, cuda = (torch.autocast(device, enabled=False) for device in ("cpu", "cuda"))
    with torch.no_grad(), torch._C.DisableTorchFunction(), cpu, cuda:
        yield


def weights_of_one_query(inputs: Mapping[str, Any]) -> Tensor:
    """Return the weights (B, H, m) of PyTorch's `scaled_dot_product_attention` for the only query of each head.

    The queries are (B, H, 1, d), or (B, G, g, d) for G key heads with g query heads each.
    """
    query, key, attn_mask, scale = (inputs.get(name) for name in ("query", "key", "attn_mask", "scale"))
    assert query is not None
    assert key is not None
    heads, dtype = key.shape[1], torch.promote_types(query.dtype, torch.float32)
    scaled = query.reshape(len(query), heads, -1, query.shape[-1]).to(dtype)
    scaled = scaled * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = scaled @ key.to(dtype).mT
    if attn_mask is not None:
        mask = attn_mask if attn_mask.shape[1] == 1 else attn_mask.reshape(len(attn_mask), heads, -1, key.shape[-2])
        is_boolean = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask if is_boolean else hidden_by_bias(mask), -math.inf)
        scores = scores if is_boolean else scores + mask
    weights: Tensor = scores.softmax(-1).nan_to_num(0.0).flatten(1, 2)
    return weights


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


def group_heads(streams: Streams, *arguments: Any, **keywords: Any) -> dict[str, Any]:
    """Return arguments by name. Queries (B, H', g, d) of one position become H' · g heads.

    If the keys have one position, too, dikkat does not know the positions.
    """
    inputs = fused_arguments(*arguments, **keywords)
    if _has_one_position(streams[0]) and not _has_one_position(streams[1]):
        inputs["enable_gqa"] = True
        for name in ("query", "attn_mask"):
            if isinstance(inputs.get(name), Tensor) and inputs[name].shape[1:3] != (1, 1):
                inputs[name] = inputs[name].flatten(1, 2)[:, :, None]
    return inputs


def _has_one_position(origin: Origin) -> bool:
    rows = origin.query_positions
    return rows is not None and rows.ndim == 2 and rows.shape[1] > 1 and bool((rows == rows[:, :1]).all())


def run_heads(problem: Problem, run: Callable[[], Result]) -> tuple[Result, Callable[[Request], Inspection]]:
    """Return the result of a call whose queries (B, H', g, d) are heads, and a function that inspects it."""
    with torch.no_grad():
        full: Any = run_problem(replace(problem, wants_state=True, wants_weights=True, dropout=0.0, seeds=None))
    result = run() if problem.records or problem.dropout or problem.wants_weights else Result(full.mean, None, None)
    weights, lse = full.weights.flatten(1, 2).unsqueeze(2), full.lse.flatten(1, 2).unsqueeze(2)
    return result, lambda request: inspect_weights(weights, request, lse)


def inspect_fused(inputs: dict[str, Any], edits: Edits, request: Request) -> Inspection:
    """Return the requested summaries of a call of `scaled_dot_product_attention` with these arguments."""
    edits = [bound for bound in edits if bound.edit.is_shown]
    return inspect_problem(problem_of_fused(**inputs), request, edits=edits)
