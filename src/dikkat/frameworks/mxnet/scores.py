"""Scoring functions: how a query is compared with a key, as in `dikkat.scores`.

Every one is a *projection*, done once per query and once per key, followed by one of three *pair functions*:

| pair | score of a pair | scoring functions |
| --- | --- | --- |
| `inner` | ⟨q', k'⟩ | average, dot, scaled dot, bilinear, cosine, vector sum |
| `additive` | Σ_h v_h tanh(q'_h + k'_h) | additive |
| `distance` | g(‖q' − k'‖²) | Gaussian, boxcar, Epanechnikov, triangular |

A score of your own is a subclass of `Score` that sets `pair` and projects.

Shapes: a query is (..., n, d_q), a key (..., m, d_k); projected, both have h features.
"""

import math
from collections.abc import Sequence
from typing import ClassVar, get_args

import numpy
from mxnet import np

from dikkat.frameworks.mxnet.blocks import Block, Linear, Values
from dikkat.frameworks.mxnet.masking import Array, cast, where, wide
from dikkat.scores import Pair, Profile, whole
from dikkat.storage.tensors import bandwidths


class Score(Block):
    """What every scoring function supplies; parameters live here.

    Attributes:
        pair: which pair function compares the projected query and key.
        profile: for `distance` only: which g, a log-kernel of the squared scaled distance s.
    """

    pair: ClassVar[Pair]
    profile: ClassVar[Profile] = "gaussian"

    def project_query(self, query: Array) -> Array:
        """(..., n, d_q) -> (..., n, h)."""
        return query

    def project_key(self, key: Array) -> Array:
        """(..., m, d_k) -> (..., m, h)."""
        return key

    def pair_weight(self) -> Array | None:
        """The weight v of each feature, (h,), for `additive`; None for the others."""
        return None

    def key_features(self, key_size: int) -> int:
        """h, of keys with `key_size` features; to be told where a projection changes their number."""
        return key_size


class Average(Score):
    """Every key scores 0, so that the output is the mean of the visible values.

    Queries and keys may have any number of features; neither has a gradient.

    Source: *Dive into Deep Learning*, section "Attention Pooling by Similarity", the constant kernel.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import attend
        >>> attend(np.zeros((1, 3)), np.zeros((2, 5)), np.array([[1.0], [3.0]]), score=Average())
        array([[2.]])
    """

    pair = "inner"

    def project_query(self, query: Array) -> Array:
        """Zeros, (..., n, 1)."""
        return np.zeros((*query.shape[:-1], 1), dtype=query.dtype, ctx=query.ctx)

    def project_key(self, key: Array) -> Array:
        """Zeros, (..., m, 1)."""
        return np.zeros((*key.shape[:-1], 1), dtype=key.dtype, ctx=key.ctx)

    def key_features(self, key_size: int) -> int:
        """One."""
        return 1


class Dot(Score):
    """⟨q, k⟩.

    Source: Luong, Pham and Manning 2015, section 3.1, "dot".

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import attention_weights
        >>> attention_weights(np.eye(2), np.eye(2), score=Dot())
        array([[0.73105854, 0.26894143],
               [0.26894143, 0.73105854]])
    """

    pair = "inner"


class ScaledDot(Score):
    """⟨q, k⟩ / √d, with d the number of features: its variance is 1 where the features' is.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> ScaledDot().project_query(np.ones((1, 4)))
        array([[0.5, 0.5, 0.5, 0.5]])
    """

    pair = "inner"

    def project_query(self, query: Array) -> Array:
        """q / √d."""
        return query / math.sqrt(max(1, query.shape[-1]))


class Bilinear(Score):
    """kᵀ W_q q, for queries and keys of different sizes.

    Args:
        key_size: d_k.
        query_size: d_q.

    Source: Luong, Pham and Manning 2015, section 3.1, "general".

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> score = Bilinear(key_size=3, query_size=5)
        >>> score.initialize()
        >>> score.project_query(np.zeros((7, 5))).shape
        (7, 3)
    """

    pair = "inner"

    def __init__(self, key_size: int, query_size: int) -> None:
        super().__init__()
        self.W_q = Linear(whole("query_size", query_size), whole("key_size", key_size), bias=False)

    def project_query(self, query: Array) -> Array:
        """W_q q, (..., n, d_k)."""
        return self.W_q(query, "query")


class Cosine(Score):
    """⟨q, k⟩ / (‖q‖ ‖k‖); a zero vector scores 0.

    Source: Graves, Wayne and Danihelka 2014, section 3.3.1, content addressing (with strength 1).

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> Cosine().project_key(np.array([[3.0, 4.0]]))
        array([[0.6, 0.8]])
    """

    pair = "inner"

    def project_query(self, query: Array) -> Array:
        """q / ‖q‖."""
        return _unit(query)

    def project_key(self, key: Array) -> Array:
        """k / ‖k‖."""
        return _unit(key)


class VectorSum(Score):
    """v·(q + k). The query's share is the same for all keys and cancels in the softmax: it cannot attend.

    Args:
        size: number of features of queries and of keys.

    Source: an exercise of *Dive into Deep Learning*, "Attention Scoring Functions".

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> score = VectorSum(3)
        >>> score.initialize()
        >>> score.project_query(np.zeros((5, 3))).shape
        (5, 2)
    """

    pair = "inner"

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w_v = Linear(whole("size", size), 1, bias=False)

    def project_query(self, query: Array) -> Array:
        """(v·q, 1): with the key's (1, v·k), the inner product is the whole sum."""
        share = self.w_v(query, "query")
        return np.concatenate([share, np.ones_like(share)], axis=-1)

    def project_key(self, key: Array) -> Array:
        """(1, v·k)."""
        share = self.w_v(key, "key")
        return np.concatenate([np.ones_like(share), share], axis=-1)

    def key_features(self, key_size: int) -> int:
        """Two."""
        return 2


class Additive(Score):
    """Σ_h v_h tanh((W_q q)_h + (W_k k)_h).

    Args:
        key_size: d_k.
        query_size: d_q.
        num_hiddens: h.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1 and appendix A.1.2.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> score = Additive(key_size=3, query_size=5, num_hiddens=7)
        >>> score.initialize()
        >>> score.project_key(np.zeros((2, 11, 3))).shape, score.pair_weight().shape
        ((2, 11, 7), (7,))
    """

    pair = "additive"

    def __init__(self, key_size: int, query_size: int, num_hiddens: int) -> None:
        super().__init__()
        hiddens = whole("num_hiddens", num_hiddens)
        self.W_k = Linear(whole("key_size", key_size), hiddens, bias=False)
        self.W_q = Linear(whole("query_size", query_size), hiddens, bias=False)
        self.w_v = Linear(hiddens, 1, bias=False)

    def project_query(self, query: Array) -> Array:
        """W_q q."""
        return self.W_q(query, "query")

    def project_key(self, key: Array) -> Array:
        """W_k k."""
        return self.W_k(key, "key")

    def pair_weight(self) -> Array:
        """v, (h,)."""
        return self.w_v.weight.data().reshape(-1)

    def key_features(self, key_size: int) -> int:
        """`num_hiddens`."""
        return self.W_k.outputs


class _Distance(Score):
    """g(‖q − k‖² / σ²): what the four kernels share."""

    pair = "distance"

    def __init__(self, bandwidth: float | Sequence[float] | Array = 1.0, learnable: bool = False) -> None:
        super().__init__()
        sigma = bandwidths(bandwidth.asnumpy() if isinstance(bandwidth, np.ndarray) else bandwidth)
        self.learnable = learnable
        if learnable:
            self.make("log_bandwidth", sigma.shape, Values(numpy.log(sigma)))
        else:  # in float64, so that it is exact for every dtype of data
            self.make("fixed_bandwidth", sigma.shape, Values(sigma), dtype="float64", trained=False)

    @property
    def bandwidth(self) -> Array:
        """σ, in the units of the data: () or (d,)."""
        return np.exp(self.log_bandwidth.data()) if self.learnable else self.fixed_bandwidth.data()

    def project_query(self, query: Array) -> Array:
        """q / σ, in float32 or wider: a difference of two rounded halves has few digits left."""
        return self._scale(query, "query")

    def project_key(self, key: Array) -> Array:
        """k / σ, likewise."""
        return self._scale(key, "key")

    def _scale(self, features: Array, name: str) -> Array:
        sigma = self.bandwidth
        if sigma.ndim and sigma.shape[0] != features.shape[-1]:
            raise ValueError(
                f"{name}: came with {features.shape[-1]} features; allowed: {sigma.shape[0]}, one for each bandwidth"
            )
        kind = wide(features)
        return cast(features, kind) / cast(sigma, kind).as_in_ctx(features.ctx)


class Gaussian(_Distance):
    """−½ ‖(q − k)/σ‖².

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: whether σ is trained; it is then stored as its logarithm, and stays positive.

    Raises:
        TypeError: a bandwidth that is no number.
        ValueError: one that is not positive and finite, or of the wrong shape.

    Source: Nadaraya 1964; Watson 1964.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import attention_weights
        >>> score, x = Gaussian(bandwidth=2.0), np.array([[0.0], [2.0]])
        >>> score.initialize()
        >>> attention_weights(x, x, score=score)
        array([[0.62245935, 0.37754065],
               [0.37754065, 0.62245935]])
    """


class Boxcar(_Distance):
    """0 where ‖(q − k)/σ‖ ≤ 1, −∞ beyond: the mean of the values within reach.

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature. It cannot be learned by
            gradient, which is 0 wherever it exists.
    """

    profile = "boxcar"

    def __init__(self, bandwidth: float | Sequence[float] | Array = 1.0) -> None:
        super().__init__(bandwidth)


class Epanechnikov(_Distance):
    """log(1 − s) with s = ‖(q − k)/σ‖² below 1, −∞ beyond.

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: whether σ is trained.

    Source: Epanechnikov 1969.
    """

    profile = "epanechnikov"


class Triangular(_Distance):
    """log(1 − r) with r = ‖(q − k)/σ‖ below 1, −∞ beyond.

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: whether σ is trained.
    """

    profile = "triangular"


def check_score(score: object) -> None:
    """A score is an instance of `Score` that says of itself what it must.

    Raises:
        TypeError: it is none, or has no such pair function or profile.
    """
    if not isinstance(score, Score):
        hint = ": make one, with its brackets" if isinstance(score, type) and issubclass(score, Score) else ""
        came = score.__name__ if isinstance(score, type) else type(score).__name__
        raise TypeError(f"score: came {came}; allowed: an instance of a dikkat.frameworks.mxnet.scores.Score{hint}")
    for name, allowed in (("pair", get_args(Pair)), ("profile", get_args(Profile))):
        if getattr(score, name, None) not in allowed:
            raise TypeError(
                f"score: {type(score).__name__}.{name} came {getattr(score, name, None)!r}; allowed: "
                f"{', '.join(map(repr, allowed))}"
            )


def log_profile(profile: Profile, square: Array) -> Array:
    """g(s): the logarithm of a kernel as a function of the squared scaled distance; −∞ outside its support."""
    if profile == "gaussian":
        return -0.5 * square
    if profile == "boxcar":
        return where(square <= 1, 0 * square, -numpy.inf)
    if profile == "triangular":  # the tip has no slope
        apart = square != 0
        square = where(apart, np.sqrt(where(apart, square, 1.0)), 0.0)
    inside = square < 1
    return where(inside, np.log1p(-where(inside, square, 0.0)), -numpy.inf)


def _unit(vector: Array) -> Array:
    """v / ‖v‖, 0 for v = 0, in float32 or wider. Scaled by the largest entry first, so that no square overflows."""
    vector = cast(vector, wide(vector))
    if not vector.size:
        return vector
    peak = np.abs(vector.detach()).max(-1, keepdims=True)
    vector = vector / where(peak != 0, peak, 1.0)
    square = np.square(vector).sum(-1, keepdims=True)
    # Not clamped at a small number: that would give the zero vector a gradient of 1/small.
    return vector / np.sqrt(where(square != 0, square, 1.0))
