"""The front door: compare a query with every key, normalise over the keys, average the values."""

import math
from typing import Any, get_args

import keras
from keras import ops

from dikkat.call import probability
from dikkat.frameworks.keras.additive import additive
from dikkat.frameworks.keras.backend import as_tensor, check_concrete, features, kind, product, shape_of, wide
from dikkat.frameworks.keras.checks import Call, Shape, check_name, leading, same
from dikkat.frameworks.keras.masking import check_restrictions, softmax, visible
from dikkat.frameworks.keras.scores import Score, check_score
from dikkat.scores import Pair, Profile


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
    r"""Attention: for each query the average of the values, weighted by how its score with their keys compares.

    $$ o_i = \sum_j w_{ij} v_j, \qquad
       w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    V_i are the keys that query i may see: the intersection of all restrictions. A row that sees no key has weights 0,
    output 0 and gradient 0. Keys that no query of a batch element sees have no effect, whatever they hold.

    Leading dimensions broadcast; heads are the last of them, (B, H, n, d). Float16 and bfloat16 are accumulated in
    float32. Values of `valid_lens` and `exclude` are checked where they can be read: in eager tensors on the CPU.

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

    Source:
        Bahdanau, Cho and Bengio 2015, section 3.1; Vaswani et al. 2017, section 3.2.

    Example:
        >>> from keras import ops
        >>> from dikkat.frameworks.keras import ScaledDot
        >>> q, k, v = ops.zeros((2, 1, 5)), ops.zeros((2, 3, 5)), ops.reshape(range(6), (2, 3, 1))
        >>> output = attend(q, k, ops.cast(v, "float32"), score=ScaledDot(), valid_lens=ops.array([2, 3]))
        >>> ops.convert_to_numpy(output).ravel().tolist()
        [0.5, 4.0]
    """
    given = (query, key, value, valid_lens, mask, key_bias, exclude)
    check_concrete("attend", "Attention(score)(query, key, value)", *given)
    query, key, value = features("query", query), features("key", key), features("value", value)
    limits = {
        "valid_lens": as_tensor(valid_lens),
        "mask": as_tensor(mask),
        "causal": causal,
        "key_bias": as_tensor(key_bias),
        "exclude": as_tensor(exclude),
    }
    check_score(score)
    call = check_call(query, key, value, **limits)
    if not score.built:
        score.build(shape_of(query), shape_of(key))
    shown = visible(len(call.lead), ops.shape(query)[-2], ops.shape(key)[-2], **limits)
    # Before the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
    query, key, value = hide(query, key, value, shown)
    query, key, weight = score.project_query(query), score.project_key(key), score.pair_weight()
    compared = compare(query, key, pair=score.pair, weight=weight, profile=score.profile)
    if key_bias is not None:
        compared = compared + ops.expand_dims(ops.cast(limits["key_bias"], compared.dtype), -2)
    output, weights = pool(compared, value, shown, dropout=dropout, seed_generator=seed_generator)
    return (output, weights) if return_weights else output


def attention_weights(query: Any, key: Any, *, score: Score, **limits: Any) -> Any:
    """The weights alone.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k).
        score: The scoring function.
        **limits: `valid_lens`, `mask`, `causal`, `key_bias`, `exclude`.

    Returns:
        (..., n, m) in the dtype of `query`; each row sums to 1, or to 0 where it sees no key.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes or values that do not fit.

    Example:
        >>> from keras import ops
        >>> from dikkat.frameworks.keras import Dot
        >>> weights = attention_weights(ops.zeros((1, 2)), ops.zeros((4, 2)), score=Dot(), valid_lens=2)
        >>> ops.convert_to_numpy(weights).tolist()
        [[0.5, 0.5, 0.0, 0.0]]
    """
    query, key = features("query", query), features("key", key)
    nothing = ops.cast(key[..., :0], query.dtype)
    return attend(query, key, nothing, score=score, return_weights=True, **limits)[1]


def compare(query: Any, key: Any, *, pair: Pair, weight: Any = None, profile: Profile = "gaussian") -> Any:
    r"""The pair functions, of queries and keys that are projected.

    | pair | score |
    | --- | --- |
    | `inner` | ⟨q, k⟩ |
    | `additive` | Σ_h v_h tanh(q_h + k_h) |
    | `distance` | g(‖q − k‖²), with g the `profile` |

    Args:
        query: (..., n, h).
        key: (..., m, h).
        pair: One of the three.
        weight: v, (h,): for `additive` only.
        profile: For `distance` only: "gaussian", "boxcar", "epanechnikov" or "triangular".

    Returns:
        Scores (..., n, m), float32 or float64.

    Raises:
        TypeError: A weight that is missing or too many.
        ValueError: Different numbers of features, or no such pair function or profile.

    Example:
        >>> from keras import ops
        >>> scores = compare(ops.ones((2, 3)), ops.ones((5, 3)), pair="inner")
        >>> tuple(scores.shape), float(scores[0, 0])
        ((2, 5), 3.0)
    """
    weight = as_tensor(weight)
    _check_compared(shape_of(query), shape_of(key), pair, None if weight is None else shape_of(weight), profile)
    dtype = wide(query, key)
    query, key = ops.cast(query, dtype), ops.cast(key, dtype)
    if pair == "inner":
        return product(query, ops.swapaxes(key, -1, -2))
    if pair == "additive":
        return additive(query, key, ops.cast(weight, dtype))
    square = ops.sum(ops.square(ops.expand_dims(query, -2) - ops.expand_dims(key, -3)), axis=-1)
    return _log_profile(profile, square)


def _check_compared(query: Shape, key: Shape, pair: str, weight: Shape | None, profile: str) -> None:
    check_name("pair", pair, get_args(Pair))
    check_name("profile", profile, get_args(Profile))
    if query[-1] != key[-1]:
        raise ValueError(
            f"query, key: got {query[-1]} and {key[-1]} features after projection; expected the same number (for "
            "different sizes: Bilinear, Additive)"
        )
    if (weight is None) == (pair == "additive"):
        got = "None" if weight is None else f"shape {weight}"
        raise TypeError(f"weight: got {got}; expected v, (h,), for pair 'additive', None for others")
    if weight is not None and not same(weight, query[-1:]):
        raise ValueError(f"weight: got shape {weight}; expected {query[-1:]}, one a feature")


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


def pool(
    scores: Any, value: Any, shown: Any = None, *, dropout: float = 0.0, seed_generator: Any = None
) -> tuple[Any, Any]:
    """Normalise over the visible keys and average the values.

    Args:
        scores: (..., n, m), as `compare` returns them; a score of −∞ hides a key.
        value: (..., m, d_v).
        shown: Broadcastable to (..., n, m), or None: what `visible` returns.
        dropout: The probability in 0 ... 1 that a weight is set to 0 in the average.
        seed_generator: For the dropout.

    Returns:
        The output (..., n, d_v) and the weights (..., n, m) before dropout, in the dtype of `value`.

    Example:
        >>> from keras import ops
        >>> output, weights = pool(ops.zeros((2, 4)), ops.ones((4, 3)))
        >>> tuple(output.shape), float(weights[0, 0])
        ((2, 3), 0.25)
    """
    weights = softmax(scores, shown)
    kept = keras.random.dropout(weights, probability(dropout), seed=seed_generator) if dropout else weights
    dtype = wide(kept, value)
    output = product(ops.cast(kept, dtype), ops.cast(value, dtype))
    return ops.cast(output, value.dtype), ops.cast(weights, value.dtype)


def hide(query: Any, key: Any, value: Any, shown: Any) -> tuple[Any, Any, Any]:
    """With 0 for the queries that see no key, and for the keys and values that no query sees.

    Args:
        query: (..., n, d_q).
        key: (..., m, d_k).
        value: (..., m, d_v).
        shown: What `visible` returns.
    """
    if shown is None:
        return query, key, value
    live = ops.expand_dims(ops.any(shown, axis=-1), -1)
    seen = ops.expand_dims(ops.any(shown, axis=-2), -1)
    return ops.where(live, query, 0.0), ops.where(seen, key, 0.0), ops.where(seen, value, 0.0)


def check_call(query: Any, key: Any, value: Any, **limits: Any) -> Call:
    """The sizes of a call, checked, with its restrictions.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes or values that do not fit.
    """
    named = {"query": query, "key": key, "value": value}
    shapes = {name: shape_of(tensor) for name, tensor in named.items()}
    keys, values = shapes["key"][-2], shapes["value"][-2]
    if None not in (keys, values) and keys != values:
        raise ValueError(
            f"value: got {values} rows (shape {shapes['value']}); expected {keys}, one for each key (shape "
            f"{shapes['key']})"
        )
    for name, tensor in named.items():
        if kind(tensor) != kind(query):
            raise TypeError(f"{name}: got dtype {kind(tensor)}; expected {kind(query)}, that of query")
    call = Call(leading(shapes), shapes["query"][-2], keys)
    check_restrictions(*call, **limits)
    return call
