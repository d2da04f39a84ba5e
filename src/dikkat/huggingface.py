"""Hugging Face's transformers with dikkat's attention: `attn_implementation="dikkat"`."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat.attention import attend
from dikkat.extras import needing
from dikkat.scores import Dot

__all__ = ["register_transformers"]

_NAME = "dikkat"


def register_transformers() -> None:
    """Make `attn_implementation="dikkat"` known to Hugging Face's transformers, in this process.

    It is registered with `AttentionInterface`, and so are its masks with `AttentionMaskInterface`, without which a
    model would lose its causality and its padding. What a model restricts comes as those masks: padding on either side,
    sliding windows, caches. Heads that share their keys are served. Where a model adds a bias to every pair, as T5
    does, or its user gives a mask of numbers, PyTorch's fused function computes the call, which alone takes such.
    `dikkat.record` sees both. With `output_attentions=True` the layers return their weights, before dropout.

    What is not served is refused by name when it runs: capped scores (`softcap`), sinks (`s_aux`), paged caches.

    A query that sees no key, as at the padding on the left, gives 0.

    Raises:
        ModuleNotFoundError: transformers is not installed.

    Example:
        >>> import dikkat
        >>> dikkat.register_transformers()
        >>> from transformers import AutoModel, GPT2Config
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, attn_implementation="dikkat")
        >>> model = AutoModel.from_config(config)
    """
    with needing("transformers"):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    AttentionInterface.register(_NAME, _forward)
    AttentionMaskInterface.register(_NAME, sdpa_mask)


def _forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool | None = False,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """One layer's attention, as transformers calls it: (B, H, n, d), (B, H', m, d) -> (B, n, H, d)."""
    for name in ("softcap", "s_aux", "cache"):
        if more.get(name) is not None:
            raise ValueError(
                f"{name}: got {type(more[name]).__name__} from {type(module).__name__}; expected None: "
                "attn_implementation='dikkat' does not have it, 'eager' does"
            )
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        attention_mask = attention_mask[..., : key.shape[-2]]
        if attention_mask.dtype != torch.bool:
            position_bias = attention_mask if position_bias is None else position_bias + attention_mask
            attention_mask = None
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[-2] > 1
    weights = None
    if position_bias is not None:
        mask = _seen(query, key) if causal else attention_mask
        output = _biased(query, key, value, position_bias, mask, dropout)
    elif output_attentions:
        output, weights = attend(
            query, key, value, score=Dot(), mask=attention_mask, causal=causal, dropout=dropout, return_weights=True
        )
    else:
        output = attend(query, key, value, score=Dot(), mask=attention_mask, causal=causal, dropout=dropout)
    return output.transpose(1, 2).contiguous(), weights


def _seen(query: Tensor, key: Tensor) -> Tensor:
    """Who sees whom under causality, (n, m)."""
    queries, keys = query.shape[-2], key.shape[-2]
    return torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)


def _biased(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Attention with a bias for each pair, by PyTorch's fused function; 0 where a query sees no key."""
    live = None
    if mask is not None:
        live = mask.any(-1, keepdim=True)
        bias = torch.where(mask | ~live, bias, -math.inf)  # a row of −∞ alone would be NaN, its gradient too
    output = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.to(query.dtype), dropout_p=dropout, scale=1.0
    )
    return output if live is None else output.masked_fill(~live, 0.0)
