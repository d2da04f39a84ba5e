"""Gluon blocks over `attend`, batch first, as `dikkat.layers`. Nothing of a call stays on a block.

Each is called `layer(query, key, value, valid_lens=None, ...)` with the restrictions of `attend` as keywords (`mask`,
`causal`, `key_bias`, `exclude`) and `return_weights`. It returns an array, or with `return_weights=True` the pair
(output, weights). Dropout acts on the weights, in training mode (`autograd.record`) only.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from mxnet import autograd, init, np

from dikkat.call import probability
from dikkat.frameworks.mxnet.attention import Restricted, attend, attend_projected, check_call, hide
from dikkat.frameworks.mxnet.backend import Array
from dikkat.frameworks.mxnet.blocks import Block, Linear, linear
from dikkat.frameworks.mxnet.masking import masked_softmax, visible
from dikkat.frameworks.mxnet.scores import Additive, Average, Bilinear, Gaussian, ScaledDot, Score, check_score
from dikkat.layers import check_heads, size_or
from dikkat.scores import whole


class MaskedSoftmax(Block):
    """Softmax over the first `valid_lens` entries of each row: `masked_softmax` as a block.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> MaskedSoftmax()(np.zeros((1, 1, 4)), np.array([2]))
        array([[[0.5, 0.5, 0. , 0. ]]])
    """

    def forward(self, scores: Array, valid_lens: Array | int | None = None) -> Array:
        """(..., n, m) -> (..., n, m); arguments as in `masked_softmax`."""
        return masked_softmax(scores, valid_lens)


class _Attention(Block):
    """A score and a dropout: what the layers with one head are."""

    def __init__(self, score: Score, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = score
        self.dropout = probability(dropout)

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        valid_lens: Array | int | None = None,
        *,
        return_weights: bool = False,
        **restricted: Unpack[Restricted],
    ) -> Any:
        """Attend: (..., n, d_q), (..., m, d_k), (..., m, d_v) -> (..., n, d_v); arguments as in `attend`."""
        return attend(
            query,
            key,
            value,
            score=self.score,
            valid_lens=valid_lens,
            dropout=self.dropout if autograd.is_training() else 0.0,
            return_weights=return_weights,
            **restricted,
        )


class AverageAttention(_Attention):
    """The mean of the values that a query sees.

    Source: *Dive into Deep Learning*, section "Attention Pooling by Similarity", the constant kernel.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> AverageAttention()(np.zeros((1, 3)), np.zeros((2, 5)), np.array([[1.0], [3.0]]))
        array([[2.]])
    """

    def __init__(self) -> None:
        super().__init__(Average())


class AdditiveAttention(_Attention):
    r"""Attention with the score of Bahdanau: queries and keys of different sizes compared by a small network.

    $$ a(q, k) = w_v^\top \tanh(W_q q + W_k k) $$

    Args:
        key_size: d_k.
        query_size: d_q.
        num_hiddens: h.
        dropout: On the weights.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1 and appendix A.1.2.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> layer = AdditiveAttention(key_size=3, query_size=5, num_hiddens=7)
        >>> layer.initialize()
        >>> layer(np.zeros((2, 1, 5)), np.zeros((2, 11, 3)), np.zeros((2, 11, 13)), np.array([2, 6])).shape
        (2, 1, 13)
    """

    def __init__(self, key_size: int, query_size: int, num_hiddens: int, dropout: float = 0.0) -> None:
        super().__init__(Additive(key_size, query_size, num_hiddens), dropout)


class DotProductAttention(_Attention):
    r"""Attention with the scaled dot product, $a(q, k) = \langle q, k \rangle / \sqrt{d}$.

    Args:
        dropout: On the weights.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> x = np.zeros((2, 3, 5))
        >>> DotProductAttention()(x, x, x, np.array([2, 0])).shape
        (2, 3, 5)
    """

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(ScaledDot(), dropout)


class BilinearAttention(_Attention):
    r"""Attention with the bilinear score, $a(q, k) = k^\top W_q q$.

    Args:
        key_size: d_k.
        query_size: d_q.
        dropout: On the weights.

    Source: Luong, Pham and Manning 2015, section 3.1, "general".

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> layer = BilinearAttention(3, 5)
        >>> layer.initialize()
        >>> layer(np.zeros((2, 1, 5)), np.zeros((2, 7, 3)), np.zeros((2, 7, 3))).shape
        (2, 1, 3)
    """

    def __init__(self, key_size: int, query_size: int, dropout: float = 0.0) -> None:
        super().__init__(Bilinear(key_size, query_size), dropout)


class KernelAttention(_Attention):
    r"""Attention pooling with a Gaussian kernel: Nadaraya–Watson regression.

    $$ a(q, k) = -\tfrac12 \lVert (q - k) / \sigma \rVert^2 $$

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained.

    Source: Nadaraya 1964; Watson 1964.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> layer, x = KernelAttention(bandwidth=0.5), np.array([[0.0], [1.0]])
        >>> layer.initialize()
        >>> [f"{output:.4f}" for output in layer(x, x, x).reshape(-1).tolist()]
        ['0.1192', '0.8808']
    """

    def __init__(self, bandwidth: float | Sequence[float] | Array = 1.0, learnable: bool = False) -> None:
        super().__init__(Gaussian(bandwidth, learnable))


class SelfAttention(Block):
    r"""A sequence attends to itself: softmax(Q Kᵀ / √d) V with Q, K, V projections of X. No output projection.

    Head h of token t is features h·d ... (h+1)·d of the token's projection, and the heads' outputs stand side by side.

    Args:
        embed_dim: Features of a token.
        key_dim: Features that queries and keys are projected to, over all heads.
        value_dim: Features that values are projected to, over all heads.
        num_heads: Number of heads; it divides both.

    Source: Vaswani et al. 2017, section 3.2.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> layer = SelfAttention(embed_dim=5, key_dim=6, value_dim=8, num_heads=2)
        >>> layer.initialize()
        >>> layer(np.zeros((2, 3, 5))).shape
        (2, 3, 8)
    """

    def __init__(self, embed_dim: int, key_dim: int, value_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        whole("embed_dim", embed_dim)
        check_heads(num_heads, key_dim=key_dim, value_dim=value_dim)
        self.num_heads = num_heads
        self.W_q = Linear(embed_dim, key_dim, bias=False)
        self.W_k = Linear(embed_dim, key_dim, bias=False)
        self.W_v = Linear(embed_dim, value_dim, bias=False)
        self.score = ScaledDot()

    def forward(
        self,
        x: Array,
        valid_lens: Array | int | None = None,
        *,
        return_weights: bool = False,
        **restricted: Unpack[Restricted],
    ) -> Any:
        """(B, n, embed_dim) -> (B, n, value_dim), and with `return_weights` the weights (B, heads, n, n)."""
        projections = tuple(
            partial(linear, weight=layer.weight.data(), bias=None, name="x") for layer in (self.W_q, self.W_k, self.W_v)
        )
        output, weights = _attend_heads((x, x, x), projections, self.num_heads, self.score, 0.0, valid_lens, restricted)
        return (output, weights) if return_weights else output


class MultiHeadAttention(Block):
    r"""Several heads attend side by side, each with a share of the projected features; one projection joins them.

    $$ o = W_o [o_1; \dots; o_H] + b_o, \qquad o_h = \mathrm{attend}(Q_h, K_h, V_h) $$

    Head h of token t is features h·d ... (h+1)·d of token t's projection. The parameters are those of
    `torch.nn.MultiheadAttention`, as in `dikkat.MultiHeadAttention`; those of a score follow under `score.`.

    Args:
        embed_dim: Features of the query that comes in and of the output.
        num_heads: Number of heads; it divides `key_dim` and `value_dim`.
        key_size: Features of the keys that come in; `embed_dim` if None.
        value_size: Features of the values that come in; `embed_dim` if None.
        key_dim: Features that queries and keys are projected to, over all heads; `embed_dim` if None.
        value_dim: Features that values are projected to, over all heads; `embed_dim` if None.
        score: Compares one head's queries and keys, of key_dim / num_heads features; the scaled dot product if None.
        dropout: On the weights.
        bias: Whether the projections have biases.

    Raises:
        TypeError: A size that is no whole number, or a score that is none.
        ValueError: Sizes that the heads do not divide.

    Source: Vaswani et al. 2017, section 3.2.2.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> layer, x = MultiHeadAttention(embed_dim=6, num_heads=2), np.zeros((2, 3, 6))
        >>> layer.initialize()
        >>> output, weights = layer(x, x, x, np.array([3, 1]), return_weights=True)
        >>> output.shape, weights.shape
        ((2, 3, 6), (2, 2, 3, 3))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        score: Score | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        whole("embed_dim", embed_dim)
        key_size, value_size = size_or("key_size", key_size, embed_dim), size_or("value_size", value_size, embed_dim)
        key_dim, value_dim = size_or("key_dim", key_dim, embed_dim), size_or("value_dim", value_dim, embed_dim)
        check_heads(num_heads, key_dim=key_dim, value_dim=value_dim)
        self.num_heads = num_heads
        self.dropout = probability(dropout)
        self.score = ScaledDot() if score is None else score
        check_score(self.score)
        self._ends = (key_dim, 2 * key_dim)
        # torch keeps one matrix where queries, keys and values come in with the same features, and three where not.
        self._joined = {key_size, value_size, key_dim, value_dim} == {embed_dim}
        if self._joined:
            self.make("in_proj_weight", (3 * embed_dim, embed_dim), init.Xavier(magnitude=3))
        else:
            self.make("q_proj_weight", (key_dim, embed_dim), init.Xavier(magnitude=3))
            self.make("k_proj_weight", (key_dim, key_size), init.Xavier(magnitude=3))
            self.make("v_proj_weight", (value_dim, value_size), init.Xavier(magnitude=3))
        self.has_bias = bias
        if bias:
            self.make("in_proj_bias", (2 * key_dim + value_dim,), init.Zero())
        self.out_proj = Linear(value_dim, embed_dim, bias=bias)
        if bias:
            self.out_proj.bias.init = init.Zero()

    def forward(
        self,
        query: Array,
        key: Array,
        value: Array,
        valid_lens: Array | int | None = None,
        *,
        return_weights: bool = False,
        **restricted: Unpack[Restricted],
    ) -> Any:
        """Attend with every head.

        Args:
            query: (B, n, embed_dim).
            key: (B, m, key_size).
            value: (B, m, value_size).
            valid_lens: None, (B,) or (B, n).
            return_weights: Whether to return the weights too.
            **restricted: As in `attend`; a `mask` (B, n, m), `key_bias` (B, m) or `exclude` (B, n) holds for all
                heads, and one with a dimension more has the heads after B.

        Returns:
            (B, n, embed_dim), and with `return_weights` the weights (B, heads, n, m).
        """
        if self._joined:
            weights = np.split(self.in_proj_weight.data(), self._ends)
        else:
            weights = [each.data() for each in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)]
        biases = np.split(self.in_proj_bias.data(), self._ends) if self.has_bias else (None,) * 3
        projections = tuple(
            partial(linear, weight=weight, bias=bias, name=name)
            for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True)
        )
        dropout = self.dropout if autograd.is_training() else 0.0
        output, looked_at = _attend_heads(
            (query, key, value), projections, self.num_heads, self.score, dropout, valid_lens, restricted
        )
        projected = self.out_proj(output)
        return (projected, looked_at) if return_weights else projected


def split_heads(x: Array, num_heads: int) -> Array:
    """(..., n, heads · d) -> (..., heads, n, d): head h of token t is features h·d ... (h+1)·d of token t."""
    return x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads).swapaxes(-2, -3)


def join_heads(x: Array) -> Array:
    """(..., heads, n, d) -> (..., n, heads · d), the reverse of `split_heads`."""
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _attend_heads(
    tensors: tuple[Array, Array, Array],
    projections: Sequence[Callable[[Array], Array]],
    num_heads: int,
    score: Score,
    dropout: float,
    valid_lens: Array | int | None,
    restricted: Restricted,
) -> tuple[Array, Array]:
    """Project query, key and value, attend with every head, and join the heads."""
    query, key, value = tensors
    batch = check_call(query, key, value)
    if not query.ndim == key.ndim == value.ndim:
        got = ", ".join(str(each.shape) for each in tensors)
        raise ValueError(f"query, key, value: got shapes {got}; expected all with a batch dimension, or none")
    limits: dict[str, Any] = {"valid_lens": valid_lens, **restricted}
    alone = query.ndim == 2  # no batch: the heads must not be taken for one
    if alone:
        query, key, value, batch = query[None], key[None], value[None], (1,)
        limits = {name: _batched(limit) for name, limit in limits.items()}
    # What holds for a batch element holds for its heads.
    for name, own in (("mask", 2), ("key_bias", 1), ("exclude", 1)):
        limit = limits.get(name)
        if isinstance(limit, np.ndarray) and limit.ndim == query.ndim - 2 + own:
            limits[name] = np.expand_dims(limit, -1 - own)
    lead = (*batch, num_heads)
    shown = visible(lead, query.shape[-2], key.shape[-2], **limits)
    by_any_head = None if shown is None else shown.any(-3)
    query, key, value = hide(query, key, value, by_any_head)
    heads = [
        split_heads(project(each), num_heads) for each, project in zip((query, key, value), projections, strict=True)
    ]
    output, weights = attend_projected(
        score.project_query(heads[0]),
        score.project_key(heads[1]),
        heads[2],
        score,
        shown,
        lead,
        key_bias=limits.get("key_bias"),
        dropout=dropout,
    )
    output = join_heads(output)
    return (output[0], weights[0]) if alone else (output, weights)


def _batched(limit: Any) -> Any:
    """A restriction of one sentence as that of a batch of one."""
    if isinstance(limit, int) and not isinstance(limit, bool):
        return np.array([limit])
    return limit.reshape(1, *limit.shape) if isinstance(limit, np.ndarray) else limit
