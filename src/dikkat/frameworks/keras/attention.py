"""The front door: compare a query with every key, normalise over the keys, average the values."""

import math
from typing import Any

import keras
from keras import ops

from dikkat._core.validation import probability
from dikkat.frameworks.keras.backend import as_tensor, features, product, shape_of, wide
from dikkat.frameworks.keras.restrictions import check, hide, sizes_of, softmax, visible
from dikkat.frameworks.keras.scores import Score, check_score
from dikkat.scores import Profile


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    score: Score,
    valid_lens: Any = None,
    mask: Any = None,
    causal: bool = False,
    key_bias: Any = None,
    exclude: Any = None,
    dropout: float = 0.0,
    seed_generator: Any = None,
    return_weights: bool = False,
) -> Any:
    r"""Attention: for each query the average of the values, weighted by the softmax of its scores with the keys.

    $$ o_i = \sum_j w_{ij} v_j, \qquad
       w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    As `dikkat.attend`: V_i are the keys that query i may see, the intersection of all restrictions; a row that sees
    none has weights 0, output 0 and gradient 0; float16 and bfloat16 are accumulated in float32. Values of `valid_lens`
    and `exclude` are checked where they can be read: in eager tensors on the CPU.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k).
        value: (..., m, d_v).
        score: The scoring function a, of `dikkat.frameworks.keras.scores`; built for these sizes if it is not yet.
        valid_lens: (B,) or (B, n) integers in 0 ... m, aligned with the first leading dimension and shared by the heads
            (without leading dimensions: a scalar or (n,)): key j takes part where j < valid_len.
        mask: Booleans that broadcast to (..., n, m); True takes part.
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m), b, added to the scores: the log of a sample weight. −∞ hides a key.
        exclude: (..., n) integers: one key index that a row must not see, −1 for none (leave-one-out).
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0; the others grow by 1/(1 − dropout).
        seed_generator: A `keras.random.SeedGenerator` for the dropout; Keras's own global one if None.
        return_weights: Whether to return the weights too, as they are before dropout.

    Returns:
        (..., n, d_v) in the dtype of `value`; with `return_weights` the pair (output, weights (..., n, m)).

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes or values that do not fit.

    Example:
        >>> from keras import ops
        >>> from dikkat.frameworks.keras import ScaledDot
        >>> q, k, v = ops.zeros((2, 1, 5)), ops.zeros((2, 3, 5)), ops.reshape(range(6), (2, 3, 1))
        >>> output = attend(q, k, ops.cast(v, "float32"), score=ScaledDot(), valid_lens=ops.array([2, 3]))
        >>> ops.convert_to_numpy(output).ravel().tolist()
        [0.5, 4.0]
    """
    if any(map(keras.utils.is_keras_tensor, (query, key, value, valid_lens, mask, key_bias, exclude))):
        raise TypeError(
            "attend: got a symbolic tensor of a functional model; expected tensors with values. There, use the layer: "
            "Attention(score)(query, key, value)"
        )
    query, key, value = features("query", query), features("key", key), features("value", value)
    given = {"valid_lens": valid_lens, "mask": mask, "key_bias": key_bias, "exclude": exclude}
    restrictions = {"causal": causal, **{name: as_tensor(each) for name, each in given.items()}}
    check_score(score)
    sizes = sizes_of(query, key, value)
    check(sizes, **restrictions)
    if not score.built:
        score.build(shape_of(query), shape_of(key))
    shown = visible(len(sizes.lead), ops.shape(query)[-2], ops.shape(key)[-2], **restrictions)
    # Before the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
    query, key, value = hide(query, key, value, shown)
    compared = _compare(score, score.project_query(query), score.project_key(key))
    if key_bias is not None:
        compared = compared + ops.expand_dims(ops.cast(restrictions["key_bias"], compared.dtype), -2)
    weights = softmax(compared, shown)
    kept = keras.random.dropout(weights, probability(dropout), seed=seed_generator) if dropout else weights
    dtype = wide(kept, value)
    output = ops.cast(product(ops.cast(kept, dtype), ops.cast(value, dtype)), value.dtype)
    return (output, ops.cast(weights, value.dtype)) if return_weights else output


def _compare(score: Score, query: Any, key: Any) -> Any:
    """Scores (..., n, m), float32 or float64, of projected queries and keys."""
    dtype = wide(query, key)
    query, key = ops.cast(query, dtype), ops.cast(key, dtype)
    if score.pair == "inner":
        return product(query, ops.swapaxes(key, -1, -2))
    query, key = ops.expand_dims(query, -2), ops.expand_dims(key, -3)
    if score.pair == "additive":
        return ops.sum(ops.cast(score.pair_weight(), dtype) * ops.tanh(query + key), axis=-1)
    return _log_profile(score.profile, ops.sum(ops.square(query - key), axis=-1))


def _log_profile(profile: Profile, square: Any) -> Any:
    """The logarithm of a kernel as a function of the squared scaled distance; −∞ outside its support.

    NaN stays NaN, and where a branch is not taken, what it reads is replaced first, so that its gradient is finite.
    """
    if profile == "gaussian":
        return -0.5 * square
    if profile == "boxcar":
        return ops.where(square > 1, -math.inf, 0.0 * square)
    if profile == "triangular":  # whose tip has no slope
        at_zero = square == 0
        square = ops.where(at_zero, 0.0, ops.sqrt(ops.where(at_zero, 1.0, square)))
    outside = square >= 1
    return ops.where(outside, -math.inf, ops.log1p(-ops.where(outside, 0.0, square)))
