"""Layers over `attend`, batch first, serialisable, on every backend.

Each is called `layer(query, key, value, valid_lens=None, ...)`, with the further restrictions as keywords:
`attention_mask`, `causal`, `key_bias`, `exclude`. Keras's own masks are understood: a query, key or value that
`Embedding(mask_zero=True)` or `Masking` marks as padding takes no part, and the query's mask goes on to the output. All
restrictions intersect. A layer returns a tensor, or with `return_weights=True` the pair (output, weights). Dropout acts
on the weights, in training only.

Calls of Keras's own layers are understood: `layer([query, value])`, `layer([query, value, key])`, `mask=[query_mask,
value_mask]`, `use_causal_mask` and `return_attention_scores`. Without a list the order is query, key, value.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar

import keras
from keras import ops

from dikkat._core.validation import probability
from dikkat.frameworks.keras import attention
from dikkat.frameworks.keras.backend import Shape, as_tensor, features, kind, product, shape_of
from dikkat.frameworks.keras.restrictions import Sizes, check, check_mask, hide, leading, sizes_of, visible
from dikkat.frameworks.keras.scores import Additive, Bilinear, Gaussian, ScaledDot, Score, check_score, size_of
from dikkat.frameworks.keras.weights import Block, Linear, check_features, registered
from dikkat.layers import check_heads
from dikkat.scores import whole

Tensors = tuple[Any, Any, Any]


@registered
class Attention(Block):
    r"""Attention with any scoring function: `attend` as a layer, for functional models too.

    $$ o_i = \sum_j w_{ij} v_j, \qquad w_{ij} = \frac{e^{a(q_i, k_j)}}{\sum_l e^{a(q_i, k_l)}} $$

    Args:
        score: The scoring function a; its parameters are the layer's.
        dropout: On the weights.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        TypeError: A score that is none.

    Example:
        >>> import keras
        >>> from dikkat.frameworks.keras import Cosine
        >>> query, key = keras.Input((None, 5)), keras.Input((7, 5))
        >>> Attention(Cosine())(query, key).shape
        (None, None, 5)
    """

    arguments: ClassVar[tuple[str, ...]] = ("score", "dropout", "seed")
    num_heads: int | None = None  # None: there are no heads

    def __init__(self, score: Score, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        check_score(score)
        self.score = score
        self.dropout, self.seed = probability(dropout), seed
        self.seed_generator = keras.random.SeedGenerator(seed, name="seed_generator") if self.dropout else None

    def build(self, query_shape: Any, key_shape: Any = None, value_shape: Any = None) -> None:
        """Make the parameters, for tensors of these shapes, or of a list of them in Keras's order."""
        query_shape, key_shape, _ = _in_order(query_shape, key_shape, value_shape)
        if not self.score.built:
            self.score.build(query_shape, key_shape)

    def __call__(
        self, query: Any, key: Any = None, value: Any = None, *args: Any, mask: Any = None, **options: Any
    ) -> Any:
        """`call`, in Keras's order and by Keras's names of the arguments too."""
        query, key, value = _in_order(query, key, value)
        return super().__call__(query, key, value, *args, **_masks_by_name(mask, options), **_renamed(options))

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
        """Attend. With heads, the leading dimension is B alone, and a restriction holds for all heads.

        Args:
            query: (..., n, d_q).
            key: (..., m, d_k).
            value: (..., m, d_v).
            valid_lens: None, (B,) or (B, n) integers in 0 ... m: key j takes part where j < valid_len.
            query_mask: (..., n) booleans: a query where it is False sees no key. Keras passes the query's own mask.
            key_mask: (..., m) booleans: a key where it is False is seen by none. Keras passes the key's own mask.
            value_mask: (..., m) booleans: Keras passes the value's own mask, which acts as that of the key.
            attention_mask: Booleans that broadcast to (..., n, m), or (B, heads, n, m); True takes part.
            causal: Query i sees keys j <= i + m − n.
            key_bias: (..., m), or (B, heads, m), added to the scores. −∞ hides a key.
            exclude: (..., n), or (B, heads, n), integers: one key index that a row must not see, −1 for none.
            use_causal_mask: Keras's: query i sees keys j <= i, however many there are. With as many queries as keys it
                is what `causal` is.
            return_weights: Whether to return the weights too, as they are before dropout.
            training: Whether weights are dropped; Keras passes it.

        Returns:
            (..., n, d_v), or (B, n, embed_dim) with heads; with `return_weights` the pair (output, weights), these
            (..., n, m), or (B, heads, n, m).

        Raises:
            TypeError: An argument of the wrong kind or dtype.
            ValueError: Shapes or values that do not fit.
        """
        tensors, _, restrictions = self._checked(
            query, key, value, valid_lens, query_mask, key_mask, value_mask, attention_mask=attention_mask,
            use_causal_mask=use_causal_mask, causal=causal, key_bias=key_bias, exclude=exclude,
        )  # fmt: skip
        drop = {"dropout": self.dropout if training else 0.0, "seed_generator": self.seed_generator}
        output, weights = self.attend(tensors, restrictions, **drop)
        return (output, weights) if return_weights else output

    def _checked(
        self, query: Any, key: Any, value: Any, *masks: Any, use_causal_mask: bool = False, **restrictions: Any
    ) -> tuple[Tensors, Sizes, dict[str, Any]]:
        """The tensors of a call, its sizes and its restrictions."""
        if not isinstance(use_causal_mask, bool):
            raise TypeError(f"use_causal_mask: got {type(use_causal_mask).__name__}; expected True or False")
        tensors = features("query", query), features("key", key), features("value", value)
        ahead = None  # pairs (n, m) as Keras's `use_causal_mask` shows them, aligned at the top left
        if use_causal_mask and not keras.utils.is_keras_tensor(query):
            queries, keys = (ops.arange(ops.shape(each)[-2]) for each in tensors[:2])
            ahead = keys <= ops.expand_dims(queries, -1)
        return tensors, *_restrictions(tensors, self.num_heads, *masks, ahead=ahead, **restrictions)

    def attend(self, tensors: Tensors, restrictions: dict[str, Any], **drop: Any) -> tuple[Any, Any]:
        """The output and the weights, of checked tensors and restrictions."""
        query, key, value = tensors
        given = {"score": self.score, "return_weights": True, **drop, **restrictions}
        found: tuple[Any, Any] = attention.attend(query, key, value, **given)
        return found

    def size_out(self, value_shape: Shape) -> int | None:
        """The features of the output: d_v, or `embed_dim` with heads."""
        return value_shape[-1]

    def compute_output_spec(
        self, query: Any, key: Any = None, value: Any = None, *masks: Any, return_weights: bool = False,
        training: bool | None = None, **restrictions: Any,
    ) -> Any:  # fmt: skip
        """The shapes and dtypes of what `call` returns, whatever is known of those that come in."""
        query, key, value = _in_order(query, key, value)
        _, sizes, _ = self._checked(query, key, value, *masks, **restrictions)
        return _spec(sizes, self.num_heads, self.size_out(value.shape), value.dtype, return_weights)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The query's mask, of one or of Keras's list of them: that of the output."""
        return mask[0] if isinstance(mask, list | tuple) else mask

    def compute_output_shape(
        self, query_shape: Any = None, key_shape: Any = None, value_shape: Any = None, *, input_shape: Any = None
    ) -> Shape:
        """(..., n, features), of three shapes, or of a list of them in Keras's order."""
        query, key, value = _in_order(input_shape or query_shape, key_shape, value_shape)
        return (*leading(query=query, key=key, value=value), query[-2], self.size_out(value))


@registered
class KernelAttention(Attention):
    r"""Attention pooling with a Gaussian kernel: Nadaraya–Watson regression.

    $$ a(q, k) = -\tfrac12 \lVert (q - k) / \sigma \rVert^2 $$

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        TypeError: A bandwidth that is no number.
        ValueError: A bandwidth that is not positive and finite, or of the wrong shape.

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
class AdditiveAttention(Attention):
    r"""Attention with the score of Bahdanau: queries and keys of different sizes compared by a small network.

    $$ a(q, k) = w_v^\top \tanh(W_q q + W_k k) $$

    Args:
        num_hiddens: h.
        dropout: As of `Attention`.
        seed: As of `Attention`.
        **options: Keras's.

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
class DotProductAttention(Attention):
    r"""Attention with the scaled dot product, $a(q, k) = \langle q, k \rangle / \sqrt{d}$.

    Its arguments are those of `Attention`.

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
class BilinearAttention(Attention):
    r"""Attention with the bilinear score, $a(q, k) = k^\top W_q q$.

    Its arguments are those of `Attention`.

    Example:
        >>> from keras import ops
        >>> tuple(BilinearAttention()(ops.zeros((2, 1, 5)), ops.zeros((2, 7, 3)), ops.zeros((2, 7, 3))).shape)
        (2, 1, 3)
    """

    arguments = ("dropout", "seed")

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(Bilinear(dtype=options.get("dtype")), dropout, seed, **options)


@registered
class MultiHeadAttention(Attention):
    r"""Several heads attend side by side, each with a share of the projected features; one projection joins them.

    $$ o = W_o [o_1; \dots; o_H] + b_o, \qquad o_h = \mathrm{attend}(Q_h, K_h, V_h) $$

    Head h of token t is features h·d ... (h+1)·d of token t's projection. The parameters are those of
    `dikkat.MultiHeadAttention` and `torch.nn.MultiheadAttention`: `in_proj_weight` where queries, keys and values come
    in and are projected to `embed_dim` features, otherwise `q_proj_weight`, `k_proj_weight` and `v_proj_weight`.

    Args:
        embed_dim: Features of the queries and of the output.
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

    num_heads: int
    arguments = ("embed_dim", "num_heads", "key_dim", "value_dim", "score", "dropout", "bias", "seed")

    def __init__(
        self,
        embed_dim: int,
        *,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: Score | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(ScaledDot(dtype=options.get("dtype")) if score is None else score, dropout, seed, **options)
        self.embed_dim = whole("embed_dim", embed_dim)
        self.key_dim = embed_dim if key_dim is None else key_dim
        self.value_dim = embed_dim if value_dim is None else value_dim
        check_heads(num_heads, key_dim=self.key_dim, value_dim=self.value_dim)
        self.num_heads, self.bias = num_heads, bias
        self.out_proj = Linear(
            embed_dim, use_bias=bias, bias_initializer="zeros", dtype=self.dtype_policy, name="out_proj"
        )

    def build(self, query_shape: Any, key_shape: Any = None, value_shape: Any = None) -> None:
        """Make the projections, for tensors of these shapes, or of a list of them in Keras's order."""
        query_shape, key_shape, value_shape = _in_order(query_shape, key_shape, value_shape)
        check_features("query", query_shape, self.embed_dim)
        comes = self.embed_dim, size_of("key", key_shape), size_of("value", value_shape)
        goes = self.key_dim, self.key_dim, self.value_dim
        # torch keeps one matrix where queries, keys and values come in with the same features, and three where not.
        self.in_proj_weight = None
        if {*comes, *goes} == {self.embed_dim}:
            self.in_proj_weight = self._matrix("in_proj_weight", 3 * self.embed_dim, self.embed_dim)
        else:
            for name, rows, columns in zip("qkv", goes, comes, strict=True):
                setattr(self, f"{name}_proj_weight", self._matrix(f"{name}_proj_weight", rows, columns))
        self.in_proj_bias = (
            self.add_weight(name="in_proj_bias", shape=(sum(goes),), initializer="zeros") if self.bias else None
        )
        self.out_proj.build((None, None, self.value_dim))
        if not self.score.built:  # one from a file is
            self.score.build(*[(None, None, self.key_dim // self.num_heads)] * 2)

    def _matrix(self, name: str, rows: int, columns: int) -> Any:
        return self.add_weight(name=name, shape=(rows, columns), initializer="glorot_uniform")

    def attend(self, tensors: Tensors, restrictions: dict[str, Any], **drop: Any) -> tuple[Any, Any]:
        """The output (B, n, embed_dim) and the weights (B, heads, n, m)."""
        joined, weights = _attend_heads(tensors, self._project, self.num_heads, self.score, restrictions, **drop)
        return self.out_proj(joined), weights

    def size_out(self, value_shape: Shape) -> int:
        """`embed_dim`."""
        return self.embed_dim

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

    Example:
        >>> from keras import ops
        >>> tuple(SelfAttention(key_dim=6, value_dim=8, num_heads=2)(ops.zeros((2, 3, 5))).shape)
        (2, 3, 8)
    """

    arguments = ("key_dim", "value_dim", "num_heads")

    def __init__(self, key_dim: int, value_dim: int, num_heads: int = 1, **options: Any) -> None:
        super().__init__(**options)
        check_heads(num_heads, key_dim=key_dim, value_dim=value_dim)
        self.key_dim, self.value_dim, self.num_heads = key_dim, value_dim, num_heads
        self.W_q = Linear(key_dim, use_bias=False, dtype=self.dtype_policy, name="W_q")
        self.W_k = Linear(key_dim, use_bias=False, dtype=self.dtype_policy, name="W_k")
        self.W_v = Linear(value_dim, use_bias=False, dtype=self.dtype_policy, name="W_v")
        self.score = ScaledDot(dtype=self.dtype_policy)

    def build(self, x_shape: Shape) -> None:
        """Make the projections, for tokens of this shape."""
        for projection in (self.W_q, self.W_k, self.W_v):
            projection.build(x_shape)

    def __call__(self, x: Any, *args: Any, **options: Any) -> Any:
        """`call`, by Keras's names of the arguments too."""
        return super().__call__(x, *args, **_renamed(options, use_causal_mask="causal"))

    def call(
        self, x: Any, valid_lens: Any = None, mask: Any = None, x_mask: Any = None, *, return_weights: bool = False,
        attention_mask: Any = None, causal: bool = False, key_bias: Any = None, exclude: Any = None,
    ) -> Any:  # fmt: skip
        """Attend: (B, n, features) -> (B, n, value_dim).

        Args:
            x: (B, n, features).
            valid_lens: None, (B,) or (B, n) integers in 0 ... n.
            mask: (B, n) booleans: a token where it is False sees none and is seen by none. Keras passes the mask of x
                under this name where x is the only tensor of the call,
            x_mask: And under this one where it is not.
            return_weights: Whether to return the pair (output, weights (B, heads, n, n)).
            attention_mask: As of `Attention`.
            causal: As of `Attention`.
            key_bias: As of `Attention`.
            exclude: As of `Attention`.
        """
        tensors, _, restrictions = self._checked(
            x, valid_lens, mask, x_mask, attention_mask=attention_mask, causal=causal, key_bias=key_bias,
            exclude=exclude,
        )  # fmt: skip
        output, weights = _attend_heads(tensors, self._project, self.num_heads, self.score, restrictions)
        return (output, weights) if return_weights else output

    def _checked(
        self, x: Any, valid_lens: Any = None, mask: Any = None, x_mask: Any = None, **restrictions: Any
    ) -> tuple[Tensors, Sizes, dict[str, Any]]:
        given = [each for each in (mask, x_mask) if each is not None]
        own, tensors = reduce(ops.logical_and, given) if given else None, (features("x", x),) * 3
        return tensors, *_restrictions(tensors, self.num_heads, valid_lens, own, own, **restrictions)

    def _project(self, *tensors: Any) -> tuple[Any, ...]:
        layers = self.W_q, self.W_k, self.W_v
        for layer in layers:
            check_features("x", shape_of(tensors[0]), layer.weight.shape[-1])
        return tuple(layer(tensor) for layer, tensor in zip(layers, tensors, strict=True))

    def compute_output_spec(self, x: Any, *masks: Any, return_weights: bool = False, **restrictions: Any) -> Any:
        """The shapes and dtypes of what `call` returns."""
        _, sizes, _ = self._checked(x, *masks, **restrictions)
        return _spec(sizes, self.num_heads, self.value_dim, x.dtype, return_weights)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """(B, n, value_dim)."""
        return (*input_shape[:-1], self.value_dim)


def _attend_heads(
    tensors: Tensors, project: Any, num_heads: int, score: Score, restrictions: dict[str, Any], **drop: Any
) -> tuple[Any, Any]:
    """The output of all heads side by side, and their weights; `project` makes their queries, keys and values."""
    rank = len(shape_of(tensors[0])) + 1
    queries, keys = (ops.shape(tensor)[-2] for tensor in tensors[:2])
    shown = visible(rank - 2, queries, keys, **restrictions)
    seen_by_any = ops.any(shown, axis=-3) if shown is not None and len(shape_of(shown)) == rank else shown
    # Before the projections: a hidden NaN would reach their gradients as 0 · NaN.
    heads = []
    for x in project(*hide(*tensors, seen_by_any)):  # (B, n, heads · d) -> (B, heads, n, d)
        parted = ops.reshape(x, (*ops.shape(x)[:-1], num_heads, x.shape[-1] // num_heads))
        heads.append(ops.swapaxes(parted, -2, -3))
    output, weights = attention.attend(
        *heads, score=score, mask=shown, key_bias=restrictions["key_bias"], return_weights=True, **drop
    )
    output = ops.swapaxes(output, -2, -3)
    return ops.reshape(output, (*ops.shape(output)[:-2], output.shape[-2] * output.shape[-1])), weights


def _spec(sizes: Sizes, num_heads: int | None, features: int | None, dtype: str, return_weights: bool) -> Any:
    """The symbolic tensors that a layer returns: the output, and with `return_weights` the weights."""
    lead = sizes.lead if num_heads is None else sizes.lead[:-1]
    output = keras.KerasTensor((*lead, sizes.queries, features), dtype)
    return (output, keras.KerasTensor((*sizes.lead, *sizes[1:]), dtype)) if return_weights else output


def _restrictions(
    tensors: Tensors, num_heads: int | None, valid_lens: Any = None, query_mask: Any = None, key_mask: Any = None,
    value_mask: Any = None, *, attention_mask: Any = None, ahead: Any = None, causal: bool = False,
    key_bias: Any = None, exclude: Any = None,
) -> tuple[Sizes, dict[str, Any]]:  # fmt: skip
    """The sizes of a call and its restrictions, checked; those of a batch element hold for all its heads."""
    shapes = [shape_of(tensor) for tensor in tensors]
    if num_heads is not None and (len(shapes[0]) < 3 or len({len(shape) for shape in shapes}) > 1):
        got = ", ".join(map(str, shapes))
        raise ValueError(f"query, key, value: got shapes {got}; expected each (B, length, features)")
    own = sizes_of(*tensors)
    sizes = own if num_heads is None else own._replace(lead=(*own.lead, num_heads))

    def for_heads(tensor: Any, axes: int) -> Any:
        tensor = as_tensor(tensor)
        shared = num_heads is not None and tensor is not None and len(shape_of(tensor)) == len(own.lead) + axes
        return ops.expand_dims(tensor, -1 - axes) if shared else tensor

    padding = (
        ("query_mask", query_mask, own.queries, -1),
        ("key_mask", key_mask, own.keys, -2),
        ("value_mask", value_mask, own.keys, -2),
    )
    pairs = [
        for_heads(ops.expand_dims(_mask(name, mask, (*own.lead, length)), axis), 2)
        for name, mask, length, axis in padding
        if mask is not None
    ]
    if ahead is not None:
        pairs.append(ahead)
    if attention_mask is not None:
        pairs.append(_mask("attention_mask", for_heads(attention_mask, 2), (*sizes.lead, *sizes[1:])))
    restrictions = {
        "valid_lens": as_tensor(valid_lens),
        "mask": reduce(ops.logical_and, pairs) if pairs else None,
        "causal": causal,
        "key_bias": for_heads(key_bias, 1),
        "exclude": for_heads(exclude, 1),
    }
    check(sizes, **restrictions)
    return sizes, restrictions


def _mask(name: str, mask: Any, shape: Shape) -> Any:
    """A mask as booleans; of integers, as Keras takes them, those that are not 0."""
    mask = as_tensor(mask)
    mask = ops.not_equal(mask, 0) if keras.backend.is_int_dtype(kind(mask)) else mask
    check_mask(name, mask, shape)
    return mask


def _in_order(query: Any, key: Any, value: Any) -> Tensors:
    """Query, key and value, of which the last two may be one; from a list in Keras's order, query, value and key.

    Of shapes as of tensors: a list of them is one whose first member has a length itself.
    """
    if isinstance(query, list | tuple) and not (query and isinstance(query[0], int | None)):
        if key is not None or value is not None or len(query) not in (2, 3):
            got = f"a list of {len(query)}" + ("" if key is None and value is None else ", and key or value beside it")
            raise TypeError(f"query: got {got}; expected a tensor, or the list [query, value] or [query, value, key]")
        query, value, key = (*(tuple(each) if isinstance(each, list) else each for each in query), None)[:3]
    if key is None and value is None:
        raise TypeError("value: got None; expected (..., m, d_v), which is the key too where no other comes")
    return query, value if key is None else key, key if value is None else value


def _masks_by_name(mask: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Keras's list of masks, by their names here."""
    if mask is None:
        return {}
    if not isinstance(mask, list | tuple) or len(mask) not in (2, 3):
        got = f"a list of {len(mask)}" if isinstance(mask, list | tuple) else type(mask).__name__
        raise TypeError(
            f"mask: got {got}; expected Keras's list [query_mask, value_mask] or [query_mask, value_mask, key_mask]; "
            "a mask of pairs is attention_mask"
        )
    named = dict(zip(("query_mask", "value_mask", "key_mask"), mask, strict=False))
    for name in named:
        if name in options:
            raise TypeError(f"{name}: got one by its name and one in the list mask; expected one of the two")
    return named


def _renamed(options: dict[str, Any], **further: str) -> dict[str, Any]:
    """Arguments that Keras names otherwise, by their names here."""
    own = {"return_attention_scores": "return_weights"} | further
    for alias, name in own.items():
        if alias in options and name in options:
            raise TypeError(f"{alias}: got beside {name}, which is the same; expected one of the two")
    return {own.get(name, name): value for name, value in options.items()}
