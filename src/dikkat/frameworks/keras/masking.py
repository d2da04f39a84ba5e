"""Which keys a query may see, and the softmax over them."""

import math
from functools import reduce
from operator import and_
from typing import Any

import keras
from keras import ops

from dikkat.frameworks.keras.backend import as_tensor, check_concrete, features, kind, readable, shape_of, wide
from dikkat.frameworks.keras.checks import Shape, check_fit, same

_KINDS = {
    "int": ("an integer type (for example int32)", keras.backend.is_int_dtype),
    "float": ("a floating-point type", keras.backend.is_float_dtype),
    "bool": ("bool, True where a pair takes part", lambda dtype: dtype == "bool"),
}


def check_restrictions(
    lead: Shape,
    queries: int | None,
    keys: int | None,
    *,
    valid_lens: Any = None,
    mask: Any = None,
    causal: bool = False,
    key_bias: Any = None,
    exclude: Any = None,
) -> None:
    """A check that the restrictions of `attend` fit the sizes of a call, as far as shapes and values are known."""
    if not isinstance(causal, bool):
        raise TypeError(f"causal: got {type(causal).__name__}; expected True or False")
    if valid_lens is not None:
        _check_kind("valid_lens", valid_lens, "int")
        shape, expected = shape_of(valid_lens), [lead[:1], (*lead[:1], queries)]
        if not any(same(shape, each) for each in expected):
            raise ValueError(
                f"valid_lens: got shape {shape}; expected {expected[0]} (one length a batch element) or {expected[1]} "
                "(one a query), aligned with the first leading dimension and shared by the heads"
            )
        _check_range("valid_lens", valid_lens, 0, keys, "a length among the keys")
    if mask is not None:
        check_mask("mask", mask, (*lead, queries, keys))
    if key_bias is not None:
        _check_kind("key_bias", key_bias, "float")
        check_fit("key_bias", shape_of(key_bias), (*lead, keys))
    if exclude is not None:
        _check_kind("exclude", exclude, "int")
        check_fit("exclude", shape_of(exclude), (*lead, queries))
        last = None if keys is None else keys - 1
        _check_range("exclude", exclude, -1, last, "the index of a key, or -1 for none")


def _check_range(name: str, tensor: Any, low: int, high: int | None, meaning: str) -> None:
    """A check that whole numbers lie in a range, where they and the range are known."""
    if high is None or not readable(tensor):
        return
    values = ops.convert_to_numpy(tensor)
    outside = values[(values < low) | (values > high)]
    if outside.size:
        raise ValueError(f"{name}: got {outside.flat[0]}; expected {low} to {high}, {meaning}")


def check_mask(name: str, mask: Any, shape: Shape) -> None:
    """A check that a mask is of booleans that broadcast to a shape."""
    _check_kind(name, mask, "bool")
    check_fit(name, shape_of(mask), shape)


def _check_kind(name: str, tensor: Any, required: str) -> None:
    expected, belongs = _KINDS[required]
    if not belongs(kind(tensor)):
        raise TypeError(f"{name}: got dtype {kind(tensor)}; expected {expected}")


def visible(
    lead: int,
    queries: Any,
    keys: Any,
    *,
    valid_lens: Any = None,
    mask: Any = None,
    causal: bool = False,
    key_bias: Any = None,
    exclude: Any = None,
) -> Any:
    """The pairs that take part, the intersection of the restrictions of `attend`; None where all do.

    Booleans that broadcast to (..., n, m), with one row where all queries see the same keys. `lead` counts the leading
    dimensions; n and m are integer tensors where they are not known before the call.
    """
    mask, key_bias, key = as_tensor(mask), as_tensor(key_bias), ops.arange(keys, dtype="int32")
    parts = []
    if valid_lens is not None:
        lens = ops.cast(valid_lens, "int32")
        lens = lens[..., None] if len(lens.shape) == min(lead, 1) else lens
        for _ in range(lead - 1):  # for the heads
            lens = lens[:, None]
        parts.append(key < lens[..., None])
    if causal:
        parts.append(key <= ops.arange(queries, dtype="int32")[:, None] + (keys - queries))
    if mask is not None:
        while len(mask.shape) < 2:  # whoever asks which keys are seen, or by whom, counts on both axes
            mask = mask[None]
        parts.append(mask)
    if key_bias is not None:
        parts.append((key_bias != -math.inf)[..., None, :])
    if exclude is not None:
        parts.append(key != ops.cast(exclude, "int32")[..., None])
    return reduce(and_, parts) if parts else None


def softmax(scores: Any, shown: Any = None) -> Any:
    """Weights over the visible keys, 0 in a row that sees none; `shown` is what `visible` returns."""
    if shown is not None:
        scores = ops.where(shown, scores, -float("inf"))
    if 0 in shape_of(scores):  # of which there is no maximum
        return scores
    peak = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    share = ops.exp(scores - ops.where(peak == -float("inf"), 0.0, peak))
    total = ops.sum(share, axis=-1, keepdims=True)
    # `== 0` and not `> 0`: a row of NaN is not an empty row.
    weights = share / ops.where(total == 0, 1.0, total)
    # In a row of NaN, what is hidden weighs nothing.
    return weights if shown is None else ops.where(shown, weights, 0.0)


def masked_softmax(scores: Any, valid_lens: Any = None) -> Any:
    r"""Softmax over the last axis, over the first `valid_lens` entries of each row.

    $$ w_{ij} = \frac{[j < L_i]\, e^{s_{ij}}}{\sum_{l < L_i} e^{s_{il}}} $$

    A row of length 0 has weights 0. Entries past the length have no effect, whatever they hold.

    Args:
        scores: (..., n, m), floating point.
        valid_lens: None, (B,) or (B, n) integers in 0 ... m, aligned with the first leading dimension (without leading
            dimensions: a scalar or (n,)).

    Returns:
        Weights (..., n, m) in the dtype of `scores`.

    Raises:
        TypeError: `scores` or `valid_lens` of the wrong kind.
        ValueError: `valid_lens` of the wrong shape or out of range.

    Source:
        Zhang et al., *Dive into Deep Learning*, section "Attention Scoring Functions", masked softmax.

    Example:
        >>> from keras import ops
        >>> weights = masked_softmax(ops.zeros((1, 2, 4)), ops.array([2]))
        >>> ops.convert_to_numpy(weights)[0, 0].tolist()
        [0.5, 0.5, 0.0, 0.0]
    """
    check_concrete("masked_softmax", "MaskedSoftmax()(scores, valid_lens)", scores, valid_lens)
    scores = features("scores", scores)
    valid_lens = as_tensor(valid_lens)
    *lead, queries, keys = shape_of(scores)
    check_restrictions(tuple(lead), queries, keys, valid_lens=valid_lens)
    sizes = ops.shape(scores)
    shown = visible(len(lead), *sizes[-2:], valid_lens=valid_lens)
    return ops.cast(softmax(ops.cast(scores, wide(scores)), shown), scores.dtype)
