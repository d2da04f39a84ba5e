"""An adapter that makes dikkat's layers callable like `torch.nn.MultiheadAttention`."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from dikkat._engine.addresses import check_dense
from dikkat.layers import AdditiveAttention, BilinearAttention, DotProductAttention, KernelAttention, MultiHeadAttention

__all__ = ["as_torch_attention"]

_LAYERS = (MultiHeadAttention, AdditiveAttention, BilinearAttention, DotProductAttention, KernelAttention)


def as_torch_attention(layer: nn.Module, batch_first: bool = False) -> nn.Module:
    """Wrap a layer as a module with the arguments and results of `torch.nn.MultiheadAttention`.

    Use the module to try another score in an existing model: replace the `self_attn` of a
    `torch.nn.TransformerEncoderLayer`, or the `multihead_attn` of a `torch.nn.TransformerDecoderLayer`. Training and
    evaluation work. PyTorch's fast path for evaluation, which supports only dot products, is not used.

    The module's call is `(query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
    average_attn_weights=True, is_causal=False)`, with tensors (length, batch, features), or (batch, length, features)
    with `batch_first`, or without a batch. Masks follow PyTorch: `True` does *not* take part, and numbers are added to
    the scores. A `key_padding_mask` has one entry for each key. An `attn_mask` has one for each pair, (L, S) or
    (batch · heads, L, S), and may have a gradient. `is_causal` requires an `attn_mask` and only describes it.

    Two results differ from PyTorch's. A query that sees no key gives 0 instead of NaN, and the returned weights are the
    weights before dropout.

    Args:
        layer: A `MultiHeadAttention`, or one of the layers with one head: `AdditiveAttention`, `BilinearAttention`,
            `DotProductAttention`, `KernelAttention`. It becomes the module's attribute `layer`.
        batch_first: Whether tensors are (batch, length, features); False by default, as in PyTorch. It must equal the
            setting of the surrounding model.

    Returns:
        The module. Its call returns (output, weights): the weights (batch, L, S) are the mean over the heads, or
        (batch, heads, L, S) if `average_attn_weights` is False, or None if `need_weights` is False.

    Raises:
        TypeError: `layer` is not one of these layers.

    Example:
        >>> encoder = torch.nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
        >>> layer = dikkat.MultiHeadAttention(8, 2, score=dikkat.scores.Additive(4, 4, 5))
        >>> encoder.self_attn = dikkat.as_torch_attention(layer, batch_first=True)
        >>> encoder(torch.zeros(3, 7, 8)).shape
        torch.Size([3, 7, 8])
    """
    if not isinstance(layer, _LAYERS):
        raise TypeError(
            f"layer: got {type(layer).__name__}; expected an instance of {', '.join(c.__name__ for c in _LAYERS)}"
        )
    if not isinstance(batch_first, bool):
        raise TypeError(f"batch_first: got {type(batch_first).__name__}; expected True or False")
    return _TorchAttention(layer, batch_first)


class _NoParameter:
    """A placeholder for parameters that PyTorch inspects; it disables PyTorch's fast path around the module."""

    weight = bias = None

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        return NotImplemented


class _TorchAttention(nn.Module):
    # Attributes that PyTorch's transformer layers read; the last four disable their fast paths.
    batch_first: bool
    num_heads: int
    in_proj_weight = out_proj = _NoParameter()
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, layer: nn.Module, batch_first: bool) -> None:
        super().__init__()
        self.layer = layer
        self.batch_first = batch_first
        self.num_heads = layer.num_heads if isinstance(layer, MultiHeadAttention) else 1

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            _check_features(name, tensor, query)
        if is_causal and attn_mask is None:
            raise ValueError(
                "is_causal: got True without attn_mask; expected also the causal attn_mask, as is_causal is only a hint"
            )
        unbatched, transposed = query.ndim == 2, query.ndim == 3 and not self.batch_first
        if unbatched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = key_padding_mask[None] if key_padding_mask is not None else None
        elif transposed:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        restrictions = self._restrictions(query, key, key_padding_mask, attn_mask)
        result = self.layer(query, key, value, return_weights=need_weights, **restrictions)
        output, weights = result if need_weights else (result, None)
        if weights is not None:
            weights = weights if weights.ndim == 4 else weights[:, None]
            weights = weights.mean(1) if average_attn_weights else weights
        if unbatched:
            return output[0], None if weights is None else weights[0]
        return output.transpose(0, 1) if transposed else output, weights

    def _restrictions(
        self, query: Tensor, key: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> dict[str, Tensor | None]:
        batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        visible: Tensor | None = None  # (B or 1, heads or 1, L or 1, S), as the bias
        bias: Tensor | None = None
        key_bias: Tensor | None = None  # (B, 1, S)
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask, (queries, keys), (batch * self.num_heads, queries, keys))
            shared_by_heads = attn_mask.ndim == 2
            attn_mask = attn_mask[None, None] if shared_by_heads else attn_mask.unflatten(0, (batch, self.num_heads))
            visible, bias = (~attn_mask, None) if attn_mask.dtype == torch.bool else _split_mask(attn_mask)
        if key_padding_mask is not None:
            _check_mask("key_padding_mask", key_padding_mask, (batch, keys))
            if key_padding_mask.dtype == torch.bool:
                unpadded = ~key_padding_mask[:, None, None]
                visible = unpadded if visible is None else visible & unpadded
            else:
                key_bias = key_padding_mask[:, None]
        restrictions = {"mask": visible, "bias": bias, "key_bias": key_bias}
        if isinstance(self.layer, MultiHeadAttention):
            return restrictions
        return {name: None if tensor is None else tensor.squeeze(1) for name, tensor in restrictions.items()}

    def extra_repr(self) -> str:
        """Return the setting for `print(module)`."""
        return f"batch_first={self.batch_first}"


def _check_features(name: str, tensor: Tensor, query: Tensor) -> None:
    check_dense(name, tensor)
    if tensor.ndim not in (2, 3) or tensor.ndim != query.ndim:
        raise ValueError(
            f"{name}: got shape {tuple(tensor.shape)}; expected 3 dimensions, or 2 without a batch for all three"
        )


def _check_mask(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        got = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: got {got}; expected a torch.Tensor of torch.bool, or of a floating-point type")
    check_dense(name, mask)
    if tuple(mask.shape) not in shapes:
        raise ValueError(f"{name}: got shape {tuple(mask.shape)}; expected {' or '.join(map(str, shapes))}")


def _split_mask(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split a mask of numbers into booleans, True for pairs that take part, and numbers added to scores, or None."""
    visible = mask != -math.inf
    added = mask.masked_fill(~visible, 0.0)
    # Values cannot be read while PyTorch compiles.
    return visible, added if torch.compiler.is_compiling() or mask.requires_grad or bool(added.any()) else None
