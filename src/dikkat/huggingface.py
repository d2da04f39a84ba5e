"""Dikkat's attention for Hugging Face's transformers: `attn_implementation="dikkat"`."""

import functools
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dikkat._core import recording_hooks
from dikkat.attention import attend
from dikkat.extras import require_extra
from dikkat.scores import Dot

__all__ = ["register_transformers"]

_NAME = "dikkat"

# Arguments that models pass on to losses, recorders and masks. They do not change weights beyond the masks.
_IGNORED = {
    "auxiliary_logits", "auxiliary_loss_weight", "cu_seq_lens_k", "cu_seq_lens_q", "ignore_index", "logits_to_keep",
    "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states", "output_router_logits",
    "position_ids", "seq_idx", "shift_labels", "sliding_window", "token_type_ids",
}  # fmt: skip


def register_transformers() -> None:
    """Register `attn_implementation="dikkat"` with Hugging Face's transformers, in this process.

    The attention is registered with `AttentionInterface`, and its masks with `AttentionMaskInterface`. Supported are:

    - masks for causality, padding on either side, sliding windows, growing and static caches
    - heads that share their keys, soft caps (Gemma 2), sinks (gpt-oss)
    - biases of pairs, from the model (T5) or from a mask of numbers
    - `output_attentions=True`, which returns the weights before dropout

    Unsupported models and arguments raise ValueError. A model that computes its own attention (transformers then has no
    "sdpa" either) raises when you construct it or call `set_attn_implementation`, because this function wraps
    `PreTrainedModel.get_correct_attn_implementation`. Selected keys (`indices`) and paged caches raise in the layer.

    The output is 0 for a query that sees no key, such as left padding.

    Raises:
        ModuleNotFoundError: transformers is not installed.

    Example:
        >>> dikkat.register_transformers()
        >>> from transformers import AutoModel, GPT2Config
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, attn_implementation="dikkat")
        >>> model = AutoModel.from_config(config)
    """
    with require_extra("transformers"):
        from transformers import AttentionInterface, AttentionMaskInterface
    _reject_unsupported_models()
    AttentionInterface.register(_NAME, _forward)
    AttentionMaskInterface.register(_NAME, _mask)


@functools.cache
def _reject_unsupported_models() -> None:
    """Wrap transformers' check of `attn_implementation`, so that it rejects models that would not call `_forward`."""
    from transformers import PreTrainedModel

    original = PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(original)
    def checked(self: Any, requested_attention: str | None, *positional: Any, **named: Any) -> str:
        modules = {base.__module__ for base in type(self).__mro__} & sys.modules.keys()
        tables = [name for key in modules for name in vars(sys.modules[key]) if name.endswith("_ATTENTION_CLASSES")]
        supported = (self._supports_sdpa or self._supports_attention_backend) and not tables
        if requested_attention == _NAME and not supported:
            raise ValueError(
                f"attn_implementation: got 'dikkat' for {type(self).__name__}; expected 'eager', because transformers "
                "computes some of this model's attention itself"
            )
        return str(original(self, requested_attention, *positional, **named))

    PreTrainedModel.get_correct_attn_implementation = checked


def _mask(**request: Any) -> Tensor | None:
    """Return the mask of pairs, (B, 1, n, m); None if every query sees all keys."""
    from transformers.masking_utils import sdpa_mask

    mask: Tensor | None = sdpa_mask(**request)
    if mask is None:
        # transformers may omit the mask because PyTorch's `is_causal` suffices. But `is_causal` aligns at the top left,
        # which is wrong for a static cache with free slots, and some layers are not causal. So request eager's mask.
        mask = sdpa_mask(**request | {"allow_is_causal_skip": False})
        first, keys = request.get("q_offset", 0), request["kv_length"] + request.get("kv_offset", 0)
        if mask is not None and isinstance(first, int) and not torch.compiler.is_compiling():
            mask.is_causal = first + request["q_length"] == keys  # type: ignore[union-attr]
    return mask


def _forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, position_bias: Tensor | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, output_attentions: bool | None = False, **options: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Compute one layer's attention for transformers: (B, H, n, d), (B, H', m, d) -> (B, n, H, d)."""
    options["compressor"] = getattr(module, "compressor", None)  # DeepSeek V4's concatenates numbers and boolean masks
    for name, option in options.items():
        if option is not None and not isinstance(option, bool) and name not in _IGNORED:
            raise ValueError(
                f"{name}: got {type(option).__name__} from {type(module).__name__}; expected None, because "
                "attn_implementation='dikkat' does not support it; use 'eager'"
            )
    from transformers.utils.output_capturing import _active_collector  # records layers without `output_attentions`

    wants_weights = bool(output_attentions) or any("attentions" in name for name in _active_collector.get() or ())
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    causal = position_bias is None and getattr(attention_mask, "is_causal", False)
    if causal and attention_mask is not None and attention_mask.shape[-2:] == (query.shape[-2], key.shape[-2]):
        attention_mask = None
    elif attention_mask is not None:
        attention_mask, causal = attention_mask[..., : key.shape[-2]], False
        if attention_mask.dtype != torch.bool:
            position_bias = attention_mask if position_bias is None else position_bias + attention_mask
            attention_mask = None
    bias = None if position_bias is None else position_bias.to(query.dtype)
    shape, group_size = query.shape, query.shape[1] // key.shape[1]
    by_head = all(tensor is None or tensor.ndim == 4 for tensor in (attention_mask, bias))
    observer = recording_hooks.current_observer()
    grouping: AbstractContextManager[None] | None = None
    if group_size > 1 and shape[2] == 1 and s_aux is None and by_head:
        grouping = nullcontext() if observer is None else observer.as_heads()
    if grouping is not None:
        # Treat heads that share keys as queries of one head, so that keys need not be repeated for each new token.
        query, attention_mask, bias = (_group_heads(tensor, group_size) for tensor in (query, attention_mask, bias))
        causal = False
    elif group_size > 1:
        key, value = key.repeat_interleave(group_size, dim=1), value.repeat_interleave(group_size, dim=1)
    with grouping or nullcontext():
        result = attend(
            query, key, value, score=Dot(softcap), mask=attention_mask, causal=causal, bias=bias, sink=s_aux,
            dropout=dropout, return_weights=wants_weights,
        )  # fmt: skip
    output, weights = result if isinstance(result, tuple) else (result, None)
    weights = None if weights is None else weights.reshape(*shape[:3], weights.shape[-1])
    return output.reshape(*shape[:3], output.shape[-1]).transpose(1, 2).contiguous(), weights


def _group_heads(heads: Any, group_size: int) -> Any:
    """Reshape (B, H, 1, ...), one query per head, to (B, H', group_size, ...), queries of the heads that have keys."""
    return heads if heads is None or heads.shape[1] == 1 else heads.unflatten(1, (-1, group_size)).squeeze(3)
