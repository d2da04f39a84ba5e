"""Layers with several heads, batch first, serialisable, on every backend; called as `calls` says."""

from collections.abc import Callable
from functools import reduce
from typing import Any

from keras import ops

from dikkat.frameworks.keras.attention import attend, hide
from dikkat.frameworks.keras.backend import features, product, shape_of
from dikkat.frameworks.keras.blocks import Block, Linear, linear, registered
from dikkat.frameworks.keras.calls import Attending, renamed, restrictions_of, shapes_in_order, spec_of
from dikkat.frameworks.keras.checks import Shape, Sizes, check_features
from dikkat.frameworks.keras.masking import visible
from dikkat.frameworks.keras.scores import ScaledDot, Score, size_of
from dikkat.layers import check_heads
from dikkat.scores import whole


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
        check_heads(num_heads, key_dim=key_dim, value_dim=value_dim)
        self.key_dim, self.value_dim, self.num_heads = key_dim, value_dim, num_heads
        self.W_q = Linear(key_dim, use_bias=False, dtype=self.dtype_policy, name="W_q")
        self.W_k = Linear(key_dim, use_bias=False, dtype=self.dtype_policy, name="W_k")
        self.W_v = Linear(value_dim, use_bias=False, dtype=self.dtype_policy, name="W_v")
        self.score = ScaledDot(dtype=self.dtype_policy)
        self.supports_masking = True

    def __call__(self, x: Any, *args: Any, **options: Any) -> Any:
        """`call`, by Keras's names of the arguments too."""
        return super().__call__(x, *args, **renamed(options, use_causal_mask="causal"))

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
            x_mask: And under this one where it is not.
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
        tensors, _, restrictions = self._checked(
            x, valid_lens, mask, x_mask, attention_mask=attention_mask, causal=causal, key_bias=key_bias,
            exclude=exclude,
        )  # fmt: skip
        output, weights = _attend_heads(tensors, self._project, self.num_heads, self.score, restrictions)
        return (output, weights) if return_weights else output

    def _checked(
        self, x: Any, valid_lens: Any = None, mask: Any = None, x_mask: Any = None, **restrictions: Any
    ) -> tuple[tuple[Any, Any, Any], Sizes, dict[str, Any]]:
        """The sequence as query, key and value, the sizes of the call and its restrictions."""
        tensors = (features("x", x),) * 3
        given = [each for each in (mask, x_mask) if each is not None]
        own = reduce(ops.logical_and, given) if given else None
        return tensors, *restrictions_of(tensors, self.num_heads, valid_lens, own, own, **restrictions)

    def _project(self, *tensors: Any) -> tuple[Any, ...]:
        layers = self.W_q, self.W_k, self.W_v
        return tuple(linear(layer, tensor, "x") for layer, tensor in zip(layers, tensors, strict=True))

    def compute_output_spec(self, x: Any, *masks: Any, return_weights: bool = False, **restrictions: Any) -> Any:
        """The shapes and dtypes of what `call` returns."""
        _, sizes, _ = self._checked(x, *masks, **restrictions)
        return spec_of(sizes, self.num_heads, self.value_dim, x.dtype, return_weights)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """(B, n, value_dim)."""
        return (*input_shape[:-1], self.value_dim)


@registered
class MultiHeadAttention(Attending):
    r"""Several heads attend side by side, each with a share of the projected features; one projection joins them.

    $$ o = W_o [o_1; \dots; o_H] + b_o, \qquad o_h = \mathrm{attend}(Q_h, K_h, V_h) $$

    Head h of token t is features h·d ... (h+1)·d of token t's projection. The parameters are those of
    `dikkat.MultiHeadAttention` and `torch.nn.MultiheadAttention`: `in_proj_weight` where queries, keys and values come
    in with `embed_dim` features and are projected to as many, else `q_proj_weight`, `k_proj_weight`, `v_proj_weight`;
    `in_proj_bias`; `out_proj`. A score with parameters, which all heads share, adds `score.*`.

    Args:
        embed_dim: Features of the query that comes in and of the output.
        num_heads: Number of heads; it divides `key_dim` and `value_dim`. By its name alone: Keras's own layer has it
            first.
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
        query_shape, key_shape, value_shape = shapes_in_order(query_shape, key_shape, value_shape)
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

    def attend(self, tensors: tuple[Any, Any, Any], restrictions: dict[str, Any], dropout: float) -> tuple[Any, Any]:
        """The output (B, n, embed_dim) and the weights (B, heads, n, m)."""
        dropped = {"dropout": dropout, "seed_generator": self.seed_generator}
        joined, weights = _attend_heads(tensors, self._project, self.num_heads, self.score, restrictions, **dropped)
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


def _attend_heads(
    tensors: tuple[Any, Any, Any],
    project: Callable[..., tuple[Any, ...]],
    num_heads: int,
    score: Score,
    restrictions: dict[str, Any],
    **dropped: Any,
) -> tuple[Any, Any]:
    """The output of all heads side by side, and their weights; `project` makes their queries, keys and values."""
    rank = len(shape_of(tensors[0])) + 1
    queries, keys = (ops.shape(tensor)[-2] for tensor in tensors[:2])
    shown = visible(rank - 2, queries, keys, **restrictions)
    seen_by_any = ops.any(shown, axis=-3) if shown is not None and len(shape_of(shown)) == rank else shown
    # Before the projections: a hidden NaN would reach their gradients as 0 · NaN.
    query, key, value = (split_heads(each, num_heads) for each in project(*hide(*tensors, seen_by_any)))
    bias = restrictions["key_bias"]
    output, weights = attend(query, key, value, score=score, mask=shown, key_bias=bias, return_weights=True, **dropped)
    return join_heads(output), weights


def split_heads(x: Any, num_heads: int) -> Any:
    """(..., n, heads · d) -> (..., heads, n, d): head h of token t is features h·d ... (h+1)·d of token t."""
    heads = ops.reshape(x, (*ops.shape(x)[:-1], num_heads, x.shape[-1] // num_heads))
    return ops.swapaxes(heads, -2, -3)


def join_heads(x: Any) -> Any:
    """(..., heads, n, d) -> (..., n, heads · d), the reverse of `split_heads`."""
    x = ops.swapaxes(x, -2, -3)
    return ops.reshape(x, (*ops.shape(x)[:-2], x.shape[-2] * x.shape[-1]))
