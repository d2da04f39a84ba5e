"""Layers over `attend`, batch first, serialisable, on every backend.

Each is called `layer(query, key, value, valid_lens=None, ...)`, with the further restrictions as keywords:
`attention_mask`, `causal`, `key_bias`, `exclude`. Keras's own masks are understood: a query, key or value that
`Embedding(mask_zero=True)` or `Masking` marks as padding takes no part, and the query's mask goes on to the output. All
restrictions intersect. A layer returns a tensor, or with `return_weights=True` the pair (output, weights). Dropout acts
on the weights, in training only.

Calls of Keras's own layers are understood: `layer([query, value])`, `layer([query, value, key])`, `mask=[query_mask,
value_mask]`, `use_causal_mask` and `return_attention_scores`. Without a list the order is query, key, value.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import keras
from keras import ops

from dikkat.call import probability
from dikkat.frameworks.keras.attention import Call, attend, check_call, check_score, hide, leading
from dikkat.frameworks.keras.backend import kind, product
from dikkat.frameworks.keras.blocks import Block, Linear, registered
from dikkat.frameworks.keras.masking import (
    Shape,
    as_tensor,
    check_mask,
    check_restrictions,
    features,
    masked_softmax,
    shape_of,
    visible,
)
from dikkat.frameworks.keras.scores import (
    Additive,
    Average,
    Bilinear,
    Gaussian,
    ScaledDot,
    Score,
    check_features,
    linear,
    size_of,
)
from dikkat.scores import whole

Masks = tuple[Any, Any, Any, Any, Any]  # of pairs: not ahead, and the caller's; of queries, of keys, of values


@registered
class MaskedSoftmax(Block):
    r"""Softmax over the last axis, over the first `valid_lens` entries of each row: `masked_softmax` as a layer.

    Example:
        >>> from keras import ops
        >>> weights = MaskedSoftmax()(ops.zeros((1, 2, 4)), ops.array([2]))
        >>> ops.convert_to_numpy(weights)[0, 0].tolist()
        [0.5, 0.5, 0.0, 0.0]
    """

    def call(self, scores: Any, valid_lens: Any = None) -> Any:
        """(..., n, m) and None, (B,) or (B, n) integers -> weights (..., n, m)."""
        return masked_softmax(scores, valid_lens)

    def compute_output_spec(self, scores: Any, valid_lens: Any = None) -> Any:
        """The shape and dtype of the weights."""
        *lead, queries, keys = shape_of(features("scores", scores))
        check_restrictions(tuple(lead), queries, keys, valid_lens=as_tensor(valid_lens))
        return keras.KerasTensor(scores.shape, scores.dtype)

    def compute_output_shape(self, scores_shape: Shape) -> Shape:
        """That of the scores."""
        return scores_shape


class _Called(Block):
    """A layer that can be called as Keras's own are, before what came reaches `call` under this library's names."""

    def __call__(
        self, query: Any, key: Any = None, value: Any = None, *args: Any, mask: Any = None, **options: Any
    ) -> Any:
        query, key, value = _ordered(query, key, value)
        return super().__call__(query, key, value, *args, **_named_masks(mask, options), **_renamed(options))


class _Attention(_Called):
    """A score and a dropout: what the layers with one head are."""

    def __init__(self, score: Score, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.score = score
        self.dropout, self.seed = probability(dropout), seed
        self.seed_generator = _seeds(self.dropout, seed)
        self.supports_masking = True

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Make the score's parameters, for queries and keys of these shapes."""
        if not self.score.built:
            self.score.build(query_shape, key_shape)

    def call(
        self,
        query: Any,
        key: Any,
        value: Any,
        valid_lens: Any = None,
        query_mask: Any = None,
        key_mask: Any = None,
        value_mask: Any = None,
        *,
        attention_mask: Any = None,
        causal: bool = False,
        key_bias: Any = None,
        exclude: Any = None,
        use_causal_mask: bool = False,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Attend: (..., n, d_q), (..., m, d_k), (..., m, d_v) -> (..., n, d_v).

        Args:
            query: (..., n, d_q).
            key: (..., m, d_k).
            value: (..., m, d_v).
            valid_lens: None, (B,) or (B, n) integers in 0 ... m: key j takes part where j < valid_len.
            query_mask: (..., n) booleans: a query where it is False sees no key. Keras passes the query's own mask.
            key_mask: (..., m) booleans: a key where it is False is seen by none. Keras passes the key's own mask.
            value_mask: (..., m) booleans, likewise.
            attention_mask: Booleans that broadcast to (..., n, m); True takes part.
            causal: Query i sees keys j <= i + m − n.
            key_bias: (..., m), added to the scores. −∞ hides a key.
            exclude: (..., n) integers: one key index that a row must not see, −1 for none.
            use_causal_mask: Keras's: query i sees keys j <= i, however many there are. With as many queries as keys it
                is what `causal` is.
            return_weights: Whether to return the weights too, as they are before dropout.
            training: Whether weights are dropped; Keras passes it.

        Returns:
            (..., n, d_v), or with `return_weights` the pair (output, weights (..., n, m)).

        Raises:
            TypeError: An argument of the wrong kind or dtype.
            ValueError: Shapes or values that do not fit.
        """
        tensors = query, key, value = _features(query, key, value)
        masks = _not_ahead(use_causal_mask, query, key), attention_mask, query_mask, key_mask, value_mask
        return attend(
            *tensors,
            score=self.score,
            valid_lens=valid_lens,
            mask=_joined(check_call(*tensors), *masks),
            causal=causal,
            key_bias=key_bias,
            exclude=exclude,
            dropout=self.dropout if training else 0.0,
            seed_generator=self.seed_generator,
            return_weights=return_weights,
        )

    def compute_output_spec(
        self,
        query: Any,
        key: Any,
        value: Any,
        valid_lens: Any = None,
        query_mask: Any = None,
        key_mask: Any = None,
        value_mask: Any = None,
        *,
        attention_mask: Any = None,
        causal: bool = False,
        key_bias: Any = None,
        exclude: Any = None,
        use_causal_mask: bool = False,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> Any:
        """The shapes and dtypes of what `call` returns, whatever is known of those that come in."""
        sizes = check_call(
            *_features(query, key, value),
            valid_lens=as_tensor(valid_lens),
            causal=causal,
            key_bias=as_tensor(key_bias),
            exclude=as_tensor(exclude),
        )
        masks = _not_ahead(use_causal_mask, query, key), attention_mask, query_mask, key_mask, value_mask
        _joined(sizes, *masks)
        output = keras.KerasTensor((*sizes.lead, sizes.queries, value.shape[-1]), value.dtype)
        return (output, keras.KerasTensor((*sizes.lead, *sizes[1:]), value.dtype)) if return_weights else output

    def compute_output_shape(self, query_shape: Shape, key_shape: Shape, value_shape: Shape) -> Shape:
        """(..., n, d_v)."""
        lead = leading({"query": query_shape, "key": key_shape, "value": value_shape})
        return (*lead, query_shape[-2], value_shape[-1])


@registered
class AverageAttention(_Attention):
    """Every visible value counts alike.

    Source: *Dive into Deep Learning*, section "Attention Pooling by Similarity", the constant kernel.

    Example:
        >>> from keras import ops
        >>> value = ops.array([[[1.0], [3.0], [100.0]]])
        >>> float(AverageAttention()(ops.zeros((1, 1, 5)), value, value, ops.array([2]))[0, 0, 0])
        2.0
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(Average(dtype=options.get("dtype")), **options)


@registered
class KernelAttention(_Attention):
    r"""Attention pooling with a Gaussian kernel: Nadaraya–Watson regression.

    $$ a(q, k) = -\tfrac12 \lVert (q - k) / \sigma \rVert^2 $$

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        TypeError: A bandwidth that is no number.
        ValueError: A bandwidth that is not positive and finite, or of the wrong shape.

    Source: Nadaraya 1964; Watson 1964.

    Example:
        >>> from keras import ops
        >>> x = ops.array([[0.0], [1.0]])
        >>> round(float(KernelAttention(bandwidth=0.5)(x, x, x)[0, 0]), 4)
        0.1192
    """

    arguments = ("learnable",)

    def __init__(self, bandwidth: float | Sequence[float] = 1.0, learnable: bool = False, **options: Any) -> None:
        super().__init__(Gaussian(bandwidth, learnable, dtype=options.get("dtype")), **options)
        self.learnable = learnable

    def get_config(self) -> dict[str, Any]:
        """The bandwidth that it was made with; a learned one is among the weights."""
        return super().get_config() | {"bandwidth": self.score.get_config()["bandwidth"]}


@registered
class AdditiveAttention(_Attention):
    r"""Attention with the score of Bahdanau: queries and keys of different sizes compared by a small network.

    $$ a(q, k) = w_v^\top \tanh(W_q q + W_k k) $$

    Args:
        num_hiddens: h.
        dropout: On the weights.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's `name`, `dtype` and `trainable`.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1 and appendix A.1.2.

    Example:
        >>> from keras import ops
        >>> layer = AdditiveAttention(num_hiddens=7)
        >>> query, key, value = ops.zeros((2, 1, 5)), ops.zeros((2, 11, 3)), ops.zeros((2, 11, 13))
        >>> tuple(layer(query, key, value, ops.array([2, 6])).shape)
        (2, 1, 13)
    """

    arguments = ("num_hiddens", "dropout", "seed")

    def __init__(self, num_hiddens: int, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(Additive(num_hiddens, dtype=options.get("dtype")), dropout, seed, **options)
        self.num_hiddens = num_hiddens


@registered
class DotProductAttention(_Attention):
    r"""Attention with the scaled dot product, $a(q, k) = \langle q, k \rangle / \sqrt{d}$.

    Args:
        dropout: On the weights.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's `name`, `dtype` and `trainable`.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> from keras import ops
        >>> x = ops.zeros((2, 3, 5))
        >>> tuple(DotProductAttention()(x, x, x, ops.array([2, 0])).shape)
        (2, 3, 5)
    """

    arguments = ("dropout", "seed")

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(ScaledDot(dtype=options.get("dtype")), dropout, seed, **options)


@registered
class BilinearAttention(_Attention):
    r"""Attention with the bilinear score, $a(q, k) = k^\top W_q q$.

    Args:
        dropout: On the weights.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's `name`, `dtype` and `trainable`.

    Source: Luong, Pham and Manning 2015, section 3.1, "general".

    Example:
        >>> from keras import ops
        >>> tuple(BilinearAttention()(ops.zeros((2, 1, 5)), ops.zeros((2, 7, 3)), ops.zeros((2, 7, 3))).shape)
        (2, 1, 3)
    """

    arguments = ("dropout", "seed")

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(Bilinear(dtype=options.get("dtype")), dropout, seed, **options)


@registered
class SelfAttention(Block):
    r"""A sequence attends to itself: softmax(Q Kᵀ / √d) V with Q, K, V projections of X. No output projection.

    Head h of token t is features h·d ... (h+1)·d of the token's projection, and the heads' outputs stand side by side.

    Args:
        key_dim: Features that queries and keys are projected to, over all heads.
        value_dim: Features that values are projected to, over all heads.
        num_heads: Number of heads; it divides both.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        ValueError: Sizes that the heads do not divide.

    Source: Vaswani et al. 2017, section 3.2.

    Example:
        >>> from keras import ops
        >>> tuple(SelfAttention(key_dim=6, value_dim=8, num_heads=2)(ops.zeros((2, 3, 5))).shape)
        (2, 3, 8)
    """

    arguments = ("key_dim", "value_dim", "num_heads")

    def __init__(self, key_dim: int, value_dim: int, num_heads: int = 1, **options: Any) -> None:
        super().__init__(**options)
        _check_heads(num_heads, key_dim=key_dim, value_dim=value_dim)
        self.key_dim, self.value_dim, self.num_heads = key_dim, value_dim, num_heads
        self.W_q = Linear(key_dim, use_bias=False, dtype=self.dtype_policy, name="W_q")
        self.W_k = Linear(key_dim, use_bias=False, dtype=self.dtype_policy, name="W_k")
        self.W_v = Linear(value_dim, use_bias=False, dtype=self.dtype_policy, name="W_v")
        self.score = ScaledDot(dtype=self.dtype_policy)
        self.supports_masking = True

    def __call__(self, x: Any, *args: Any, **options: Any) -> Any:
        """`call`, by Keras's names of the arguments too."""
        return super().__call__(x, *args, **_renamed(options, use_causal_mask="causal"))

    def build(self, x_shape: Shape) -> None:
        """Make the projections, for tokens of this shape."""
        for projection in (self.W_q, self.W_k, self.W_v):
            projection.build(x_shape)

    def call(
        self,
        x: Any,
        valid_lens: Any = None,
        mask: Any = None,
        x_mask: Any = None,
        *,
        attention_mask: Any = None,
        causal: bool = False,
        key_bias: Any = None,
        exclude: Any = None,
        return_weights: bool = False,
    ) -> Any:
        """Attend: (B, n, features) -> (B, n, value_dim).

        Args:
            x: (B, n, features).
            valid_lens: None, (B,) or (B, n) integers in 0 ... n.
            mask: (B, n) booleans: a token where it is False sees none and is seen by none. Keras passes the mask of x
                under this name where x is the only tensor of the call,
            x_mask: and under this one where it is not.
            attention_mask: Booleans (B, n, n), for all heads, or (B, heads, n, n); True takes part.
            causal: Token i sees tokens j <= i.
            key_bias: (B, n), added to the scores, or (B, heads, n). −∞ hides a token.
            exclude: (B, n) integers: one token that each must not see, −1 for none; or (B, heads, n).
            return_weights: Whether to return the weights too.

        Returns:
            (B, n, value_dim), or with `return_weights` the pair (output, weights (B, heads, n, n)).

        Raises:
            TypeError: An argument of the wrong kind or dtype.
            ValueError: Shapes or values that do not fit.
        """
        tensors, masks = self._own(x, attention_mask, mask, x_mask)
        _, limits = _limits(tensors, self.num_heads, masks, valid_lens, causal, key_bias, exclude)
        output, weights = _attend_heads(tensors, self._project, self.num_heads, self.score, limits)
        return (output, weights) if return_weights else output

    def _own(self, x: Any, attention_mask: Any, *masks: Any) -> tuple[tuple[Any, Any, Any], Masks]:
        """The sequence as query, key and value, and its masks as those of each."""
        x, given = features("x", x), [each for each in masks if each is not None]
        own = reduce(ops.logical_and, given) if given else None
        return (x, x, x), (None, attention_mask, own, own, None)

    def _project(self, *tensors: Any) -> tuple[Any, ...]:
        layers = self.W_q, self.W_k, self.W_v
        return tuple(linear(layer, tensor, "x") for layer, tensor in zip(layers, tensors, strict=True))

    def compute_output_spec(
        self,
        x: Any,
        valid_lens: Any = None,
        mask: Any = None,
        x_mask: Any = None,
        *,
        attention_mask: Any = None,
        return_weights: bool = False,
        **limits: Any,
    ) -> Any:
        """The shapes and dtypes of what `call` returns."""
        tensors, masks = self._own(x, attention_mask, mask, x_mask)
        sizes, _ = _limits(tensors, self.num_heads, masks, valid_lens, **limits)
        return _spec(sizes, self.value_dim, x.dtype, return_weights)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """(B, n, value_dim)."""
        return (*x_shape[:-1], self.value_dim)


@registered
class MultiHeadAttention(_Called):
    r"""Several heads attend side by side, each with a share of the projected features; one projection joins them.

    $$ o = W_o [o_1; \dots; o_H] + b_o, \qquad o_h = \mathrm{attend}(Q_h, K_h, V_h) $$

    Head h of token t is features h·d ... (h+1)·d of token t's projection. The parameters are those of
    `dikkat.MultiHeadAttention` and `torch.nn.MultiheadAttention`: `in_proj_weight` where queries, keys and values come
    in with `embed_dim` features and are projected to as many, else `q_proj_weight`, `k_proj_weight`, `v_proj_weight`;
    `in_proj_bias`; `out_proj`. A score with parameters, which all heads share, adds `score.*`.

    Args:
        embed_dim: Features of the query that comes in and of the output.
        num_heads: Number of heads; it divides `key_dim` and `value_dim`.
        key_dim: Features that queries and keys are projected to, over all heads; `embed_dim` if None.
        value_dim: Features that values are projected to, over all heads; `embed_dim` if None.
        score: Compares one head's queries and keys, of key_dim / num_heads features; the scaled dot product if None.
        dropout: On the weights.
        bias: Whether the projections have biases.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        TypeError: A score that is none.
        ValueError: Sizes that the heads do not divide.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> from keras import ops
        >>> layer, x = MultiHeadAttention(embed_dim=6, num_heads=2), ops.zeros((2, 3, 6))
        >>> output, weights = layer(x, x, x, ops.array([3, 1]), return_weights=True)
        >>> tuple(output.shape), tuple(weights.shape)
        ((2, 3, 6), (2, 2, 3, 3))
    """

    arguments = ("embed_dim", "num_heads", "key_dim", "value_dim", "score", "dropout", "bias", "seed")

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: Score | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.embed_dim = whole("embed_dim", embed_dim)
        self.key_dim = embed_dim if key_dim is None else key_dim
        self.value_dim = embed_dim if value_dim is None else value_dim
        _check_heads(num_heads, key_dim=self.key_dim, value_dim=self.value_dim)
        self.num_heads, self.bias = num_heads, bias
        self.score = ScaledDot(dtype=self.dtype_policy) if score is None else score
        check_score(self.score)
        self.dropout, self.seed = probability(dropout), seed
        self.seed_generator = _seeds(self.dropout, seed)
        self.out_proj = Linear(
            embed_dim, use_bias=bias, bias_initializer="zeros", dtype=self.dtype_policy, name="out_proj"
        )
        self.supports_masking = True

    def build(self, query_shape: Shape, key_shape: Shape, value_shape: Shape) -> None:
        """Make the projections, for tensors of these shapes."""
        check_features("query", query_shape, self.embed_dim)
        comes = [size_of(name, shape) for name, shape in (("key", key_shape), ("value", value_shape))]
        goes = self.key_dim, self.key_dim, self.value_dim
        # torch keeps one matrix where queries, keys and values come in with the same features, and three where not.
        self.in_proj_weight = None
        if {*comes, *goes} == {self.embed_dim}:
            self.in_proj_weight = self._matrix("in_proj_weight", 3 * self.embed_dim, self.embed_dim)
        else:
            self.q_proj_weight = self._matrix("q_proj_weight", goes[0], self.embed_dim)
            self.k_proj_weight = self._matrix("k_proj_weight", goes[1], comes[0])
            self.v_proj_weight = self._matrix("v_proj_weight", goes[2], comes[1])
        self.in_proj_bias = (
            self.add_weight(name="in_proj_bias", shape=(sum(goes),), initializer="zeros") if self.bias else None
        )
        self.out_proj.build((None, None, self.value_dim))
        if not self.score.built:  # one from a file is
            self.score.build(*[(None, None, self.key_dim // self.num_heads)] * 2)

    def _matrix(self, name: str, rows: int, columns: int) -> Any:
        return self.add_weight(name=name, shape=(rows, columns), initializer="glorot_uniform")

    def call(
        self,
        query: Any,
        key: Any,
        value: Any,
        valid_lens: Any = None,
        query_mask: Any = None,
        key_mask: Any = None,
        value_mask: Any = None,
        *,
        attention_mask: Any = None,
        causal: bool = False,
        key_bias: Any = None,
        exclude: Any = None,
        use_causal_mask: bool = False,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Attend with every head.

        Args:
            query: (B, n, embed_dim).
            key: (B, m, d_k).
            value: (B, m, d_v).
            valid_lens: None, (B,) or (B, n) integers in 0 ... m.
            query_mask: (B, n) booleans: a query where it is False sees no key. Keras passes the query's own mask.
            key_mask: (B, m) booleans: a key where it is False is seen by none. Keras passes the key's own mask.
            value_mask: (B, m) booleans, likewise.
            attention_mask: Booleans (B, n, m), for all heads, or (B, heads, n, m); True takes part.
            causal: Query i sees keys j <= i + m − n.
            key_bias: (B, m), added to the scores, or (B, heads, m). −∞ hides a key.
            exclude: (B, n) integers: one key index that a row must not see, −1 for none; or (B, heads, n).
            use_causal_mask: Keras's: query i sees keys j <= i, however many there are. With as many queries as keys it
                is what `causal` is.
            return_weights: Whether to return the weights too, as they are before dropout.
            training: Whether weights are dropped; Keras passes it.

        Returns:
            (B, n, embed_dim), or with `return_weights` the pair (output, weights (B, heads, n, m)).

        Raises:
            TypeError: An argument of the wrong kind or dtype.
            ValueError: Shapes or values that do not fit.
        """
        tensors = query, key, value = _features(query, key, value)
        masks = _not_ahead(use_causal_mask, query, key), attention_mask, query_mask, key_mask, value_mask
        _, limits = _limits(tensors, self.num_heads, masks, valid_lens, causal, key_bias, exclude)
        dropout = self.dropout if training else 0.0
        joined, weights = _attend_heads(
            tensors,
            self._project,
            self.num_heads,
            self.score,
            limits,
            dropout=dropout,
            seed_generator=self.seed_generator,
        )
        output = self.out_proj(joined)
        return (output, weights) if return_weights else output

    def _project(self, *tensors: Any) -> tuple[Any, ...]:
        if self.in_proj_weight is None:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        else:
            weights = ops.split(self.in_proj_weight, 3)
        projected = []
        for name, tensor, weight in zip(("query", "key", "value"), tensors, weights, strict=True):
            check_features(name, shape_of(tensor), weight.shape[-1])
            projected.append(product(tensor, ops.transpose(weight)))
        if self.in_proj_bias is None:
            return tuple(projected)
        biases = ops.split(self.in_proj_bias, [self.key_dim, 2 * self.key_dim])
        return tuple(tensor + bias for tensor, bias in zip(projected, biases, strict=True))

    def compute_output_spec(
        self,
        query: Any,
        key: Any,
        value: Any,
        valid_lens: Any = None,
        query_mask: Any = None,
        key_mask: Any = None,
        value_mask: Any = None,
        *,
        attention_mask: Any = None,
        use_causal_mask: bool = False,
        return_weights: bool = False,
        training: bool | None = None,
        **limits: Any,
    ) -> Any:
        """The shapes and dtypes of what `call` returns."""
        masks = _not_ahead(use_causal_mask, query, key), attention_mask, query_mask, key_mask, value_mask
        sizes, _ = _limits(_features(query, key, value), self.num_heads, masks, valid_lens, **limits)
        return _spec(sizes, self.embed_dim, value.dtype, return_weights)

    def compute_output_shape(self, query_shape: Shape, key_shape: Shape, value_shape: Shape) -> Shape:
        """(B, n, embed_dim)."""
        return (*query_shape[:-1], self.embed_dim)


def _ordered(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Query, key and value, of which the last two may be one; from a list in Keras's order, query, value and key."""
    if isinstance(query, list | tuple):
        if key is not None or value is not None or len(query) not in (2, 3):
            came = f"a list of {len(query)}" + ("" if key is None and value is None else ", and key or value beside it")
            raise TypeError(f"query: came {came}; allowed: a tensor, or the list [query, value] or [query, value, key]")
        query, value, key = (*query, None)[:3]
    if key is None and value is None:
        raise TypeError("value: came None; allowed: (..., m, d_v), which is the key too where no other comes")
    return query, value if key is None else key, key if value is None else value


def _named_masks(mask: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Keras's list of masks, by their names here."""
    if mask is None:
        return {}
    if not isinstance(mask, list | tuple) or len(mask) not in (2, 3):
        came = f"a list of {len(mask)}" if isinstance(mask, list | tuple) else type(mask).__name__
        raise TypeError(
            f"mask: came {came}; allowed: Keras's list [query_mask, value_mask] or [query_mask, value_mask, key_mask]; "
            "a mask of pairs is attention_mask"
        )
    named = dict(zip(("query_mask", "value_mask", "key_mask"), mask, strict=False))
    for name in named:
        if name in options:
            raise TypeError(f"{name}: came by its name and in the list mask; allowed: one of the two")
    return named


def _renamed(options: dict[str, Any], **further: str) -> dict[str, Any]:
    """Arguments that Keras names otherwise, by their names here."""
    own = {"return_attention_scores": "return_weights"} | further
    for alias, name in own.items():
        if alias in options and name in options:
            raise TypeError(f"{alias}: came beside {name}, which is the same; allowed: one of the two")
    return {own.get(name, name): value for name, value in options.items()}


def _seeds(dropout: float, seed: int | None) -> Any:
    return keras.random.SeedGenerator(seed, name="seed_generator") if dropout else None


def _not_ahead(wanted: bool, query: Any, key: Any) -> Any:
    """Pairs (n, m) as Keras's `use_causal_mask` shows them, aligned at the top left; None: all."""
    if not isinstance(wanted, bool):
        raise TypeError(f"use_causal_mask: came {type(wanted).__name__}; allowed: True or False")
    if not wanted or keras.utils.is_keras_tensor(query):
        return None
    queries, keys = (ops.arange(ops.shape(each)[-2]) for each in (query, key))
    return keys <= ops.expand_dims(queries, -1)


def _mask(name: str, mask: Any, shape: Shape) -> Any:
    """A mask as booleans; of integers, as Keras takes them, those that are not 0."""
    mask = as_tensor(mask)
    mask = ops.not_equal(mask, 0) if keras.backend.is_int_dtype(kind(mask)) else mask
    check_mask(name, mask, shape)
    return mask


def _features(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    return features("query", query), features("key", key), features("value", value)


def _padding(sizes: Call, query_mask: Any, key_mask: Any, value_mask: Any) -> list[Any]:
    """Masks of queries, keys and values as masks of pairs."""
    lead, queries, keys = sizes
    pairs = []
    for name, mask, length, axis in (
        ("query_mask", query_mask, queries, -1),
        ("key_mask", key_mask, keys, -2),
        ("value_mask", value_mask, keys, -2),
    ):
        if mask is not None:
            pairs.append(ops.expand_dims(_mask(name, mask, (*lead, length)), axis))
    return pairs


def _joined(sizes: Call, not_ahead: Any, attention_mask: Any, *padding: Any) -> Any:
    """All masks as one of pairs; None without any."""
    pairs = _padding(sizes, *padding) + ([] if not_ahead is None else [not_ahead])
    if attention_mask is not None:
        pairs.append(_mask("attention_mask", attention_mask, (*sizes.lead, *sizes[1:])))
    return reduce(ops.logical_and, pairs) if pairs else None


def _attend_heads(
    tensors: tuple[Any, Any, Any],
    project: Callable[..., tuple[Any, ...]],
    num_heads: int,
    score: Score,
    limits: dict[str, Any],
    **dropped: Any,
) -> tuple[Any, Any]:
    """Project query, key and value, attend with every head, and join the heads: the output and the weights.

    What nobody sees is set to 0 before the projections: a hidden NaN would reach their gradients as 0 · NaN.
    """
    rank = len(shape_of(tensors[0])) + 1
    queries, keys = (ops.shape(tensor)[-2] for tensor in tensors[:2])
    shown = visible(rank - 2, queries, keys, **limits)
    seen_by_any = ops.any(shown, axis=-3) if shown is not None and len(shape_of(shown)) == rank else shown
    query, key, value = (split_heads(each, num_heads) for each in project(*hide(*tensors, seen_by_any)))
    bias = limits["key_bias"]
    output, weights = attend(query, key, value, score=score, mask=shown, key_bias=bias, return_weights=True, **dropped)
    return join_heads(output), weights


def _limits(
    tensors: tuple[Any, Any, Any],
    num_heads: int,
    masks: Masks,
    valid_lens: Any = None,
    causal: bool = False,
    key_bias: Any = None,
    exclude: Any = None,
) -> tuple[Call, dict[str, Any]]:
    """The sizes of a call with heads, and its restrictions, checked: what holds for a batch element, for its heads."""
    shapes = [shape_of(tensor) for tensor in tensors]
    if len(shapes[0]) < 3 or len({len(shape) for shape in shapes}) > 1:
        came = ", ".join(map(str, shapes))
        raise ValueError(f"query, key, value: came with shapes {came}; allowed: each (B, length, features)")
    lead, queries, keys = check_call(*tensors)
    sizes = Call((*lead, num_heads), queries, keys)
    not_ahead, attention_mask, *padding = masks

    def spread(tensor: Any, axes: int) -> Any:
        tensor = as_tensor(tensor)
        alike = tensor is not None and len(shape_of(tensor)) == len(lead) + axes
        return ops.expand_dims(tensor, -1 - axes) if alike else tensor

    pairs = [spread(each, 2) for each in _padding(Call(lead, queries, keys), *padding)]
    if not_ahead is not None:
        pairs.append(not_ahead)
    if attention_mask is not None:
        pairs.append(_mask("attention_mask", spread(attention_mask, 2), (*sizes.lead, queries, keys)))
    limits = {
        "valid_lens": as_tensor(valid_lens),
        "mask": reduce(ops.logical_and, pairs) if pairs else None,
        "causal": causal,
        "key_bias": spread(key_bias, 1),
        "exclude": spread(exclude, 1),
    }
    check_restrictions(*sizes, **limits)
    return sizes, limits


def _spec(sizes: Call, size: int, dtype: str, return_weights: bool) -> Any:
    """The symbolic tensors that a layer with heads returns."""
    lead, queries, keys = sizes
    output = keras.KerasTensor((*lead[:-1], queries, size), dtype)
    return (output, keras.KerasTensor((*lead, queries, keys), dtype)) if return_weights else output


def split_heads(x: Any, num_heads: int) -> Any:
    """(..., n, heads · d) -> (..., heads, n, d): head h of token t is features h·d ... (h+1)·d of token t."""
    heads = ops.reshape(x, (*ops.shape(x)[:-1], num_heads, x.shape[-1] // num_heads))
    return ops.swapaxes(heads, -2, -3)


def join_heads(x: Any) -> Any:
    """(..., heads, n, d) -> (..., n, heads · d), the reverse of `split_heads`."""
    x = ops.swapaxes(x, -2, -3)
    return ops.reshape(x, (*ops.shape(x)[:-2], x.shape[-2] * x.shape[-1]))


def _check_heads(num_heads: int, **dims: int) -> None:
    whole("num_heads", num_heads)
    for name, dim in dims.items():
        if whole(name, dim) % num_heads:
            raise ValueError(
                f"{name}, num_heads: came {dim} and {num_heads}; allowed: the first a multiple of the second"
            )
