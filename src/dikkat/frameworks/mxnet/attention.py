"""The front door: compare a query with every key, normalise over the keys, average the values; as `dikkat.attend`."""

from typing import Any, TypedDict, Unpack

import numpy
from mxnet import np, npx

from dikkat.call import probability
from dikkat.frameworks.contract import checks, scores
from dikkat.frameworks.contract.checks import Shape
from dikkat.frameworks.mxnet.backend import (
    Array,
    Booleans,
    MXNet,
    cast,
    check_features,
    check_semantics,
    kind,
    on_device,
    product,
    where,
    wide,
)
from dikkat.frameworks.mxnet.masking import softmax, visible
from dikkat.frameworks.mxnet.scores import Score, check_score
from dikkat.scores import Pair, Profile


class Restricted(TypedDict, total=False):
    """The restrictions that every layer takes as keywords, beside `valid_lens`."""

    mask: Array | None
    causal: bool
    key_bias: Array | None
    exclude: Array | None


def attend(
    query: Array,
    key: Array,
    value: Array,
    *,
    score: Score,
    valid_lens: Array | int | None = None,
    mask: Array | None = None,
    causal: bool = False,
    key_bias: Array | None = None,
    exclude: Array | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> Any:
    r"""Attention: for each query the average of the values, weighted by how its score with their keys compares.

    $$ o_i = \sum_j w_{ij} v_j, \qquad
       w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    V_i are the keys that query i may see: the intersection of all restrictions. A row that sees no key has weights 0,
    output 0 and gradient 0. Keys that no query of a batch element sees have no effect, whatever they hold.

    Leading dimensions broadcast; heads are the last of them, (B, H, n, d). Float16 is accumulated in float32. Scores
    of many pairs are compared in blocks: no array of (..., n, m, features) is kept.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k), of the same dtype.
        value: (..., m, d_v), of the same dtype.
        score: The scoring function a, of `dikkat.frameworks.mxnet.scores`.
        valid_lens: (B,) or (B, n) whole numbers in 0 ... m, of any dtype of numbers, aligned with the first leading
            dimension and shared by the heads (without leading dimensions: a scalar or (n,)): key j takes part where
            j < valid_len.
        mask: Booleans, or 0 and 1, that broadcast to (..., n, m); True, or 1, takes part.
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m), b, added to the scores: the log of a sample weight. −∞ hides a key.
        exclude: (..., n) whole numbers: one key index that a row must not see, −1 for none (leave-one-out).
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0; the others grow by 1/(1 − dropout).
        return_weights: Whether to return the weights too, as they are before dropout.

    Returns:
        (..., n, d_v) in the dtype of `value`; with `return_weights` the pair (output, weights (..., n, m)).

    Raises:
        RuntimeError: MXNet's NumPy semantics are off.
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes or values that do not fit.

    Source:
        Bahdanau, Cho and Bengio 2015, section 3.1; Vaswani et al. 2017, section 3.2.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import attend, scores
        >>> q, k, v = np.zeros((2, 1, 5)), np.zeros((2, 3, 5)), np.arange(6.0).reshape(2, 3, 1)
        >>> attend(q, k, v, score=scores.ScaledDot(), valid_lens=np.array([2, 3])).reshape(-1)
        array([0.5, 4. ])
    """
    check_semantics()
    check_score(score)
    lead = check_call(query, key, value)
    limits: Restricted = {"mask": mask, "causal": causal, "key_bias": key_bias, "exclude": exclude}
    shown = visible(lead, query.shape[-2], key.shape[-2], valid_lens=valid_lens, **limits)
    query, key, value = hide(query, key, value, shown)
    output, weights = attend_projected(
        score.project_query(query),
        score.project_key(key),
        value,
        score,
        shown,
        lead,
        key_bias=key_bias,
        dropout=dropout,
    )
    return (output, weights) if return_weights else output


def attention_weights(
    query: Array,
    key: Array,
    *,
    score: Score,
    valid_lens: Array | int | None = None,
    **restricted: Unpack[Restricted],
) -> Array:
    r"""The weights alone.

    $$ w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k).
        score: The scoring function.
        valid_lens: (B,) or (B, n).
        **restricted: `mask`, `causal`, `key_bias` and `exclude`.

    Returns:
        (..., n, m) in the dtype of `query`; each row sums to 1, or to 0 where it sees no key.

    Raises:
        RuntimeError: MXNet's NumPy semantics are off.
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes or values that do not fit.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import attention_weights, scores
        >>> attention_weights(np.zeros((1, 2)), np.zeros((4, 2)), score=scores.Dot(), valid_lens=2)
        array([[0.5, 0.5, 0. , 0. ]])
    """
    check_features("key", key)
    nothing = np.zeros((*key.shape[:-1], 1), dtype=key.dtype, ctx=key.ctx)
    return attend(query, key, nothing, score=score, valid_lens=valid_lens, return_weights=True, **restricted)[1]


def compare(query: Array, key: Array, *, pair: Pair, weight: Array = None, profile: Profile = "gaussian") -> Array:
    """The scores of projected queries and keys: one of the three pair functions.

    Args:
        query: (..., n, h), projected, floating point.
        key: (..., m, h), projected; leading dimensions broadcast.
        pair: "inner", ⟨q, k⟩; "additive", Σ_h v_h tanh(q_h + k_h); or "distance", g(‖q − k‖²).
        weight: v, (h,), for "additive".
        profile: Which g, for "distance": "gaussian", "boxcar", "epanechnikov" or "triangular".

    Returns:
        (..., n, m), float32 or float64.

    Raises:
        TypeError: No arrays, or a weight that is missing or too many.
        ValueError: Shapes that do not fit, or no such pair function or profile.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> compare(np.zeros((1, 2)), np.array([[0.0, 0.0], [3.0, 4.0]]), pair="distance")
        array([[ -0. , -12.5]])
    """
    for name, tensor in (("query", query), ("key", key)):
        check_features(name, tensor)
    checks.check_compared(query.shape, key.shape, pair, None if weight is None else weight.shape, profile)
    lead = len(checks.leading({"query": query.shape, "key": key.shape}))
    return scores.compare(MXNet(), rank(query, lead), rank(key, lead), pair, weight, profile)


def pool(
    scores: Array, value: Array, shown: Booleans | Array | None = None, *, dropout: float = 0.0
) -> tuple[Array, Array]:
    """Normalise scores over the visible keys, and average the values with them.

    Args:
        scores: (..., n, m), floating point.
        value: (..., m, d_v); leading dimensions broadcast.
        shown: Booleans of NumPy or MXNet that broadcast to (..., n, m), as `masking.visible` makes them; None: all.
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0.

    Returns:
        Output (..., n, d_v) and weights (..., n, m) before dropout, both in the dtype of `value`.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> pool(np.zeros((1, 2)), np.array([[1.0], [3.0]]))
        (array([[2.]]), array([[0.5, 0.5]]))
    """
    dtype, narrow = wide(scores, value), kind(value)
    weights = softmax(cast(scores, dtype), shown)
    kept = drop(weights, probability(dropout))
    return cast(product(kept, cast(value, dtype)), narrow), cast(weights, narrow)


def drop(tensor: Array, probability: float) -> Array:
    """Each entry set to 0 with this probability, the others scaled, so that its mean stays; in training or not."""
    if not probability:
        return tensor
    if probability == 1:  # where MXNet divides by 0
        return 0 * tensor
    return npx.dropout(tensor, p=probability, mode="always")


def attend_projected(
    query: Array,
    key: Array,
    value: Array,
    score: Score,
    shown: Booleans | None,
    lead: Shape,
    *,
    key_bias: Array | None = None,
    dropout: float = 0.0,
) -> tuple[Array, Array]:
    """Attention of projected queries and keys, with 0 where nobody sees them; `lead` are the call's leading dimensions.

    Returns:
        Output and weights, in the dtype of `value`.
    """
    compared = compare(query, key, pair=score.pair, weight=score.pair_weight(), profile=score.profile)
    if key_bias is not None:
        compared = compared + cast(key_bias, kind(compared))[..., None, :]
    whole = (*lead, *compared.shape[-2:])
    if compared.shape != whole:  # a restriction or a value may have leading dimensions that no query or key has
        compared = np.broadcast_to(compared, whole)
    return pool(compared, value, reached(score, compared, shown), dropout=dropout)


def reached(score: Score, compared: Array, shown: Booleans | Array | None) -> Booleans | Array | None:
    """The pairs that take part: those that are shown, and not beyond a kernel's support, where the score is −∞."""
    if score.pair != "distance" or score.profile == "gaussian":
        return shown
    within = compared != -numpy.inf
    return within if shown is None else within * on_device(shown, compared)


def check_call(query: Array, key: Array, value: Array) -> Shape:
    """What holds for the arrays of every call.

    Returns:
        The leading dimensions.

    Raises:
        TypeError: An array of another dtype.
        ValueError: Shapes that do not fit.
    """
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        check_features(name, tensor)
    call = checks.check_call(
        {name: each.shape for name, each in named.items()}, {name: kind(each) for name, each in named.items()}
    )
    for name in ("key", "value"):
        if named[name].ctx != query.ctx:
            raise ValueError(f"{name}: got an array on {named[name].ctx}; expected {query.ctx}, where query is")
    return call.lead


def rank(tensor: Array, lead: int) -> Array:
    """With `lead` leading dimensions before its own two."""
    missing = lead + 2 - tensor.ndim
    return tensor.reshape((1,) * missing + tensor.shape) if missing else tensor


def hide(query: Array, key: Array, value: Array, shown: Booleans | None) -> tuple[Array, Array, Array]:
    """With 0 for queries that see nobody, and for keys and values that nobody sees.

    Before the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
    """
    if shown is None:
        return query, key, value
    rows = shown.any(-1), shown.any(-2), shown.any(-2)
    query, key, value = (
        tensor if live.all() else where(live[..., None], tensor, 0.0)
        for tensor, live in zip((query, key, value), rows, strict=True)
    )
    return query, key, value
