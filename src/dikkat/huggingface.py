"""Hugging Face's transformers with dikkat's attention: `attn_implementation="dikkat"`."""

import functools
import sys
from typing import Any

import torch
from torch import Tensor, nn

from dikkat._core import recording_hooks
from dikkat.attention import attend
from dikkat.extras import needing
from dikkat.scores import Dot

__all__ = ["register_transformers"]

_NAME = "dikkat"

# What models hand on to losses, recorders and masks; it changes no weight that the masks have not changed already.
_IGNORED = {
    "auxiliary_logits", "auxiliary_loss_weight", "cu_seq_lens_k", "cu_seq_lens_q", "ignore_index", "logits_to_keep",
    "max_length_k", "max_length_q", "num_items_in_batch", "output_hidden_states", "output_router_logits",
    "position_ids", "seq_idx", "shift_labels", "sliding_window", "token_type_ids",
}  # fmt: skip


def register_transformers() -> None:
    """Make `attn_implementation="dikkat"` known to Hugging Face's transformers, in this process.

    It is registered with `AttentionInterface`, and so are its masks with `AttentionMaskInterface`, without which a
    model would lose its causality and its padding. What a model restricts comes as those masks: padding on either side,
    sliding windows, caches that grow and static ones. Heads that share their keys are served, what a model adds to
    every pair, as T5 does, or its user gives as a mask of numbers, soft caps (Gemma 2) and sinks (gpt-oss). With
    `output_attentions=True` the layers return their weights, before dropout.

    What is not served is refused by name. A model that computes its attention itself, as those do that transformers
    does not give "sdpa" either, is refused when it is made, or `set_attn_implementation` is called; for that,
    `PreTrainedModel.get_correct_attn_implementation` is wrapped. What a layer asks for beyond these is
    refused when it runs: chosen keys (`indices`), paged caches.

    A query that sees no key, as at the padding on the left, gives 0.

    Raises:
        ModuleNotFoundError: transformers is not installed.

    Example:
        >>> dikkat.register_transformers()
        >>> from transformers import AutoModel, GPT2Config
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11, attn_implementation="dikkat")
        >>> model = AutoModel.from_config(config)
    """
    with needing("transformers"):
        from transformers import AttentionInterface, AttentionMaskInterface
    _refuse_models()
    AttentionInterface.register(_NAME, _forward)
    AttentionMaskInterface.register(_NAME, _mask)


@functools.cache
def _refuse_models() -> None:
    """Let transformers refuse, when it asks a model for its attention, those that would not call `_forward`."""
    from transformers import PreTrainedModel

    correct = PreTrainedModel.get_correct_attn_implementation

    @functools.wraps(correct)
    def checked(self: Any, requested_attention: str | None, *more: Any, **named: Any) -> str:
        modules = {base.__module__ for base in type(self).__mro__} & sys.modules.keys()
        tables = [name for each in modules for name in vars(sys.modules[each]) if name.endswith("_ATTENTION_CLASSES")]
        served = (self._supports_sdpa or self._supports_attention_backend) and not tables
        if requested_attention == _NAME and not served:
            raise ValueError(
                f"attn_implementation: got 'dikkat' for {type(self).__name__}; expected 'eager': transformers does not "
                "hand this model's attention to other functions, or not all of it"
            )
        return str(correct(self, requested_attention, *more, **named))

    PreTrainedModel.get_correct_attn_implementation = checked


def _mask(**request: Any) -> Tensor | None:
    """The mask of pairs, (B, 1, n, m); None where every query sees all keys."""
    from transformers.masking_utils import sdpa_mask

    mask: Tensor | None = sdpa_mask(**request)
    if mask is None:
        # No mask may mean that PyTorch's `is_causal` is enough. But `is_causal` is aligned at the top left, which is
        # wrong for a static cache with free places, and some layers are not causal: ask for the mask that eager
        # attention gets.
        mask = sdpa_mask(**request | {"allow_is_causal_skip": False})
        first, keys = request.get("q_offset", 0), request["kv_length"] + request.get("kv_offset", 0)
        if mask is not None and isinstance(first, int) and not torch.compiler.is_compiling():
            mask.is_causal = first + request["q_length"] == keys  # type: ignore[union-attr]
    return mask


def _forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, position_bias: Tensor | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, output_attentions: bool | None = False, **more: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """One layer's attention, as transformers calls it: (B, H, n, d), (B, H', m, d) -> (B, n, H, d)."""
    more["compressor"] = getattr(module, "compressor", None)  # DeepSeek V4's joins numbers to a mask of booleans
    for name, given in more.items():
        if given is not None and not isinstance(given, bool) and name not in _IGNORED:
            raise ValueError(
                f"{name}: got {type(given).__name__} from {type(module).__name__}; expected None: "
                "attn_implementation='dikkat' does not have it, 'eager' does"
            )
    from transformers.utils.output_capturing import _active_collector  # many layers are not told, yet looked at

    weighed = bool(output_attentions) or any("attentions" in name for name in _active_collector.get() or ())
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
    shape, shared = query.shape, query.shape[1] // key.shape[1]
    by_head = all(each is None or each.ndim == 4 for each in (attention_mask, bias))
    if shared > 1 and shape[2] == 1 and s_aux is None and by_head and not recording_hooks.current_observers():
        # The heads that share keys are the queries of one head, as keys need not be repeated for each new token then.
        query, attention_mask, bias = (_joined(each, shared) for each in (query, attention_mask, bias))
        causal = False
    elif shared > 1:
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    result = attend(
        query, key, value, score=Dot(softcap), mask=attention_mask, causal=causal, bias=bias, sink=s_aux,
        dropout=dropout, return_weights=weighed,
    )  # fmt: skip
    output, weights = result if isinstance(result, tuple) else (result, None)
    weights = None if weights is None else weights.reshape(*shape[:3], weights.shape[-1])
    return output.reshape(*shape[:3], output.shape[-1]).transpose(1, 2).contiguous(), weights


def _joined(heads: Any, shared: int) -> Any:
    """One query of each head, (B, H, 1, ...), as the queries of the heads that have keys, (B, H', shared, ...)."""
    return heads if heads is None or heads.shape[1] == 1 else heads.unflatten(1, (-1, shared)).squeeze(3)
