"""Adapts PyTorch's own attention functions to the requests of `inspect`."""

import inspect
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._core import validation
from dikkat.inspection.front import inspected, of_all_weights
from dikkat.inspection.request import Inspection, Request
from dikkat.scores import Dot


def of_weights(weights: Tensor, request: Request, lse: Tensor | None = None) -> Inspection:
    """The requested summaries of weights (..., n, m) that are all there; and their log-sum-exp, where it is known."""
    heads, queries = request.part(weights.shape[:-2], weights.shape[-2], weights.device)
    if heads is not None and weights.ndim > 3:
        weights, lse = weights[..., heads, :, :], None if lse is None else lse[..., heads, :]
    if queries is not None:
        weights, lse = weights[..., queries, :], None if lse is None else lse[..., queries]
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    some = wide[..., 0:0].sum(-1) if lse is None else lse
    seen = of_all_weights(some, wide, request)
    return replace(seen, lse=lse, heads=heads, queries=queries, shape=tuple(wide.shape))


def of_dot_product(
    query: Tensor, key: Tensor, mask: Tensor | None, request: Request, *, causal: bool = False
) -> Inspection:
    """The requested summaries of softmax(Q Kᵀ + mask): query (..., n, d) with its scale, key (..., m, d)."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(dtype), key.to(dtype)
    (queries, keys), lead = (query.shape[-2], key.shape[-2]), torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    lens, bias = None, None
    if mask is not None and mask.dtype != torch.bool:
        bias = mask.to(dtype)
        mask = None
    if causal and queries != keys:
        lens = torch.arange(1, queries + 1, device=query.device).clamp(max=keys).expand(*lead[:1], queries)
    problem = validation.problem_of_call(
        query, key, key.new_zeros(*key.shape[:-1], 1), Dot(),
        validation.Requested(wants_state=True, wants_weights=True),
        valid_lens=lens, mask=mask, causal=causal and queries == keys, bias=bias,
    )  # fmt: skip
    return inspected(problem, request)


def of_fused_function(
    request: Request,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Inspection:
    """The requested summaries of a call of `torch.nn.functional.scaled_dot_product_attention`."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wide = query.to(torch.promote_types(query.dtype, torch.float32))
    return of_dot_product(wide * scale, key.to(wide.dtype), attn_mask, request, causal=is_causal)


_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def of_multi_head_function(request: Request, *arguments: object, **named: object) -> Inspection:
    """The requested summaries of each head of a call of `torch.nn.functional.multi_head_attention_forward`."""
    given = given_to_heads(*arguments, **named)
    query, key, mask = heads_of(given)
    seen = of_dot_product(query / math.sqrt(query.shape[-1]), key, mask, request)
    return seen.of_element(0) if given["query"].ndim == 2 else seen


def given_to_heads(*arguments: object, **named: object) -> dict[str, Any]:
    """The arguments of a call of `multi_head_attention_forward`, by name."""
    bound = _SIGNATURE.bind(*arguments, **named)
    bound.apply_defaults()
    return bound.arguments


def heads_of(given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries and keys (B, H, length, d) of a call of `multi_head_attention_forward`, and its masks in one."""
    query, key, heads = given["query"], given["key"], given["num_heads"]
    attn_mask, padding = given["attn_mask"], given["key_padding_mask"]
    if query.ndim == 2:
        query, key, padding = query[:, None], key[:, None], None if padding is None else padding[None]
    query, key = _projected(given, query, key)
    if given["bias_k"] is not None:
        key = torch.cat([key, given["bias_k"].expand(1, key.shape[1], -1)])
    if given["add_zero_attn"]:
        key = torch.cat([key, key.new_zeros(1, *key.shape[1:])])
    # (length, batch, heads · d) -> (batch, heads, length, d)
    query, key = (t.unflatten(-1, (heads, -1)).permute(1, 2, 0, 3) for t in (query, key))
    if given["static_k"] is not None:
        key = given["static_k"].unflatten(0, (len(query), heads))
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask.unflatten(0, (len(query), heads))
    padding = None if padding is None else padding[:, None, None]
    mask = _joined(*(_padded(part, key.shape[-2]) for part in (attn_mask, padding)))
    return query, key, mask


def _projected(given: dict[str, Tensor], query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as the function projects them."""
    weights: tuple[Tensor, ...]
    if given["use_separate_proj_weight"]:
        weights = given["q_proj_weight"], given["k_proj_weight"]
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = (None, None) if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    return F.linear(query, weights[0], biases[0]), F.linear(key, weights[1], biases[1])


def _padded(mask: Tensor | None, keys: int) -> Tensor | None:
    """PyTorch's mask in the form of `attend`, extended to the keys that its layer appends."""
    if mask is None:
        return None
    mask = F.pad(mask, (0, keys - mask.shape[-1]))
    return ~mask if mask.dtype == torch.bool else mask


def _joined(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Both masks."""
    if one is None or other is None:
        return other if one is None else one
    if one.dtype == other.dtype == torch.bool:
        return one & other
    numbers = [
        torch.zeros_like(m, dtype=torch.get_default_dtype()).masked_fill(~m, -math.inf) if m.dtype == torch.bool else m
        for m in (one, other)
    ]
    return numbers[0] + numbers[1]
