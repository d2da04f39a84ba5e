"""Dikkat's layers where a model has `torch.nn.MultiheadAttention`."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from dikkat._engine.addresses import check_dense
from dikkat.layers import AdditiveAttention, BilinearAttention, DotProductAttention, KernelAttention, MultiHeadAttention

__all__ = ["as_torch_attention"]

_LAYERS = (MultiHeadAttention, AdditiveAttention, BilinearAttention, DotProductAttention, KernelAttention)


def as_torch_attention(layer: nn.Module, batch_first: bool = False) -> nn.Module:
    """A layer that is called as `torch.nn.MultiheadAttention` is, and returns what that returns.

    So another score can be tried in a model that exists: in place of the `self_attn` of a
    `torch.nn.TransformerEncoderLayer`, or the `multihead_attn` of a `torch.nn.TransformerDecoderLayer`, in training and
    in evaluation. PyTorch's shortcut for evaluation, which knows dot products alone, is not taken then.

    The module's call is `(query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None,
    average_attn_weights=True, is_causal=False)`, of tensors (length, batch, features), or (batch, length, features)
    with `batch_first`, or without a batch. Masks are PyTorch's: `True` does *not* take part, and numbers are added to
    the scores: of each key by a `key_padding_mask`, of each pair by an `attn_mask`, (L, S) or (batch · heads, L, S),
    which may have a gradient. `is_causal` goes with an `attn_mask` and says that it is causal; the mask is what counts.

    Two things differ. A query that sees no key gives 0, where PyTorch gives NaN; and weights are those before dropout.

    Args:
        layer: A `MultiHeadAttention`, or one of the layers with one head: `AdditiveAttention`, `BilinearAttention`,
            `DotProductAttention`, `KernelAttention`. It is the module's `layer`, and its parameters are the module's.
        batch_first: Whether tensors come as (batch, length, features). As there, they do not unless it is said; it must
            be what the model around it was made with.

    Returns:
        The module. Its call returns (output, weights): weights are (batch, L, S), the mean of the heads', or
        (batch, heads, L, S) where `average_attn_weights` is False, or None where `need_weights` is False.

    Raises:
        TypeError: Not one of these layers.

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


class _Elsewhere:
    """A stand-in for the parameters that PyTorch looks at, which keeps it from a shortcut around the module."""

    weight = bias = None

    @classmethod
    def __torch_function__(cls, *_: Any) -> Any:
        return NotImplemented


class _TorchAttention(nn.Module):
    # Attributes that PyTorch's transformers read of their attention; the last four keep them from their shortcuts.
    batch_first: bool
    num_heads: int
    in_proj_weight = out_proj = _Elsewhere()
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
        """Attend: called as `torch.nn.MultiheadAttention` is."""
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            _check_features(name, tensor, query)
        if is_causal and attn_mask is None:
            raise ValueError("is_causal: got True without attn_mask; expected the mask that it describes as well")
        alone, turned = query.ndim == 2, query.ndim == 3 and not self.batch_first
        if alone:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = key_padding_mask[None] if key_padding_mask is not None else None
        elif turned:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        restrictions = self._restrictions(query, key, key_padding_mask, attn_mask)
        result = self.layer(query, key, value, return_weights=need_weights, **restrictions)
        output, weights = result if need_weights else (result, None)
        if weights is not None:
            weights = weights if weights.ndim == 4 else weights[:, None]
            weights = weights.mean(1) if average_attn_weights else weights
        if alone:
            return output[0], None if weights is None else weights[0]
        return output.transpose(0, 1) if turned else output, weights

    def _restrictions(
        self, query: Tensor, key: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> dict[str, Tensor | None]:
        """Translate PyTorch's two masks into the `mask`, the `bias` and the `key_bias` of `attend`."""
        batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        visible: Tensor | None = None  # (B or 1, heads or 1, L or 1, S), and so is the bias
        bias: Tensor | None = None
        key_bias: Tensor | None = None  # (B, 1, S)
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask, (queries, keys), (batch * self.num_heads, queries, keys))
            alike = attn_mask.ndim == 2
            attn_mask = attn_mask[None, None] if alike else attn_mask.unflatten(0, (batch, self.num_heads))
            visible, bias = (~attn_mask, None) if attn_mask.dtype == torch.bool else _parted(attn_mask)
        if key_padding_mask is not None:
            _check_mask("key_padding_mask", key_padding_mask, (batch, keys))
            if key_padding_mask.dtype == torch.bool:
                seen = ~key_padding_mask[:, None, None]
                visible = seen if visible is None else visible & seen
            else:
                key_bias = key_padding_mask[:, None]
        restrictions = {"mask": visible, "bias": bias, "key_bias": key_bias}
        if isinstance(self.layer, MultiHeadAttention):
            return restrictions
        return {name: None if each is None else each.squeeze(1) for name, each in restrictions.items()}

    def extra_repr(self) -> str:
        """The setting, for `print(module)`."""
        return f"batch_first={self.batch_first}"


def _check_features(name: str, tensor: Tensor, query: Tensor) -> None:
    check_dense(name, tensor)
    if tensor.ndim not in (2, 3) or tensor.ndim != query.ndim:
        raise ValueError(
            f"{name}: got shape {tuple(tensor.shape)}; expected 3 dimensions, or for all three 2, without a batch"
        )


def _check_mask(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        came = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: got {came}; expected a torch.Tensor of torch.bool, or of a floating-point type")
    check_dense(name, mask)
    if tuple(mask.shape) not in shapes:
        raise ValueError(f"{name}: got shape {tuple(mask.shape)}; expected {' or '.join(map(str, shapes))}")


def _parted(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split a mask of numbers into booleans, True where a pair takes part, and what is added to scores, if anything."""
    visible = mask != -math.inf
    added = mask.masked_fill(~visible, 0.0)
    # While it is compiled, nobody can look at the numbers.
    return visible, added if torch.compiler.is_compiling() or mask.requires_grad or bool(added.any()) else None
