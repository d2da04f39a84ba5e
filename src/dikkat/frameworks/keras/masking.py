"""Which keys a query may see, and the softmax over them."""

from functools import reduce
from typing import Any

import keras
from keras import ops

from dikkat.frameworks.keras.backend import kind, readable, wide

Shape = tuple[int | None, ...]  # a length that is not known before the call is None


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
    """Whether the restrictions fit a call, as far as shapes and values are known.

    Args:
        lead: The leading dimensions of the call.
        queries: n.
        keys: m.
        valid_lens: As in `attend`, and so are the others.
        mask: (..., n, m).
        causal: Aligned bottom-right.
        key_bias: (..., m).
        exclude: (..., n).

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: One of the wrong shape or out of range.
    """
    if not isinstance(causal, bool):
        raise TypeError(f"causal: came {type(causal).__name__}; allowed: True or False")
    if valid_lens is not None:
        _check_kind("valid_lens", valid_lens, "int")
        allowed = [lead[:1], (*lead[:1], queries)]
        if not any(same(shape_of(valid_lens), shape) for shape in allowed):
            raise ValueError(
                f"valid_lens: came with shape {shape_of(valid_lens)}; allowed: {allowed[0]} (one length a batch "
                f"element) or {allowed[1]} (one a query), aligned with the first leading dimension, for all heads"
            )
        _check_range("valid_lens", valid_lens, 0, keys, "a length among the keys")
    if mask is not None:
        check_mask("mask", mask, (*lead, queries, keys))
    if key_bias is not None:
        _check_kind("key_bias", key_bias, "float")
        _check_fit("key_bias", key_bias, (*lead, keys))
    if exclude is not None:
        _check_kind("exclude", exclude, "int")
        _check_fit("exclude", exclude, (*lead, queries))
        _check_range("exclude", exclude, -1, None if keys is None else keys - 1, "the index of a key, or -1 for none")


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
    """The pairs that take part: the intersection of all restrictions.

    Args:
        lead: How many leading dimensions the call has.
        queries: n, a number or, where it is not known before the call, an integer tensor.
        keys: m, likewise.
        valid_lens: (B,) or (B, n) integers (no leading dimension: () or (n,)).
        mask: Booleans that broadcast to (..., n, m).
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m); −∞ hides a key.
        exclude: (..., n) integers, −1 for none.

    Returns:
        Booleans that broadcast to (..., n, m), the rows of length 1 where all queries see the same keys; None where
        all pairs take part.

    Example:
        >>> from keras import ops
        >>> visible(1, 1, 3, valid_lens=ops.array([2, 0])).shape == (2, 1, 3)
        True
    """
    key = ops.arange(keys, dtype="int32")
    parts = []
    if valid_lens is not None:
        lens = ops.cast(valid_lens, "int32")
        lens = ops.expand_dims(lens, -1) if len(shape_of(lens)) == min(lead, 1) else lens
        for _ in range(lead - 1):  # for the heads
            lens = ops.expand_dims(lens, 1)
        parts.append(key < ops.expand_dims(lens, -1))
    if causal:
        parts.append(key <= ops.expand_dims(ops.arange(queries, dtype="int32"), -1) + (keys - queries))
    if mask is not None:
        mask = ops.convert_to_tensor(mask)
        while len(shape_of(mask)) < 2:  # whoever asks which keys are seen, or by whom, counts on both axes
            mask = ops.expand_dims(mask, 0)
        parts.append(mask)
    if key_bias is not None:
        parts.append(ops.expand_dims(key_bias != -float("inf"), -2))
    if exclude is not None:
        parts.append(key != ops.expand_dims(ops.cast(exclude, "int32"), -1))
    return reduce(ops.logical_and, parts) if parts else None


def softmax(scores: Any, shown: Any = None) -> Any:
    """Weights over the visible keys, 0 in a row that sees none; a score of −∞ is a weight of 0.

    Args:
        scores: (..., n, m), float32 or float64.
        shown: Broadcastable to (..., n, m), or None: what `visible` returns.
    """
    if shown is not None:
        scores = ops.where(shown, scores, -float("inf"))
    if 0 in shape_of(scores):  # of which there is no maximum
        return scores
    peak = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    share = ops.exp(scores - ops.where(peak == -float("inf"), 0.0, peak))
    total = ops.sum(share, axis=-1, keepdims=True)
    # `== 0` and not `> 0`: a row of NaN is not an empty row.
    weights = share / ops.where(total == 0, 1.0, total)
    return (
        weights if shown is None else ops.where(shown, weights, 0.0)
    )  # in a row of NaN, what is hidden weighs nothing


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
    scores = features("scores", scores)
    valid_lens = as_tensor(valid_lens)
    *lead, queries, keys = shape_of(scores)
    check_restrictions(tuple(lead), queries, keys, valid_lens=valid_lens)
    sizes = ops.shape(scores)
    shown = visible(len(lead), *sizes[-2:], valid_lens=valid_lens)
    return ops.cast(softmax(ops.cast(scores, wide(scores)), shown), scores.dtype)


def as_tensor(value: Any) -> Any:
    """A tensor of the backend from what came; None and symbolic tensors as they are."""
    return value if value is None or keras.utils.is_keras_tensor(value) else ops.convert_to_tensor(value)


def shape_of(tensor: Any) -> Shape:
    """What is known of a tensor's shape."""
    return tuple(tensor.shape)


def features(name: str, tensor: Any) -> Any:
    """A tensor (..., length, features), in a type that is computed with."""
    tensor = as_tensor(tensor)
    if tensor is None or not keras.backend.is_float_dtype(kind(tensor)):
        came = "None" if tensor is None else f"dtype {kind(tensor)}"
        raise TypeError(f"{name}: came with {came}; allowed: float16, bfloat16, float32, float64")
    if len(shape_of(tensor)) < 2:
        raise ValueError(f"{name}: came with shape {shape_of(tensor)}; allowed: (..., length, features)")
    return tensor


def same(shape: Shape, other: Shape) -> bool:
    """Whether two shapes may be equal, as far as they are known."""
    return len(shape) == len(other) and all(
        have is None or want is None or have == want for have, want in zip(shape, other, strict=True)
    )


def _check_fit(name: str, tensor: Any, shape: Shape) -> None:
    came = shape_of(tensor)
    own = shape[max(0, len(shape) - len(came)) :]
    if len(came) > len(shape) or any(
        have not in (1, None, want) and want is not None for have, want in zip(came, own, strict=True)
    ):
        raise ValueError(f"{name}: came with shape {came}; allowed: one that broadcasts to {shape}")


def check_mask(name: str, mask: Any, shape: Shape) -> None:
    """Whether a mask is of booleans that broadcast to a shape."""
    _check_kind(name, mask, "bool")
    _check_fit(name, mask, shape)


_KINDS = {
    "int": ("an integer type (for example int32)", keras.backend.is_int_dtype),
    "float": ("a floating-point type", keras.backend.is_float_dtype),
    "bool": ("bool, True where a pair takes part", lambda dtype: dtype == "bool"),
}


def _check_kind(name: str, tensor: Any, wanted: str) -> None:
    allowed, belongs = _KINDS[wanted]
    if not belongs(kind(tensor)):
        raise TypeError(f"{name}: came with dtype {kind(tensor)}; allowed: {allowed}")


def _check_range(name: str, tensor: Any, low: int, high: int | None, meaning: str) -> None:
    if high is None or not readable(tensor):
        return
    values = ops.convert_to_numpy(tensor)
    wrong = values[(values < low) | (values > high)]
    if wrong.size:
        raise ValueError(f"{name}: came {wrong.flat[0]}; allowed: {low} to {high}, {meaning}")
