"""Scoring functions: how a query is compared with a key, by the formulas and with the parameters of `dikkat.scores`.

Sizes of queries and keys come when a score is built, as everywhere in Keras: a query is (..., n, d_q), a key
(..., m, d_k); projected, both have h features.

Examples:
    >>> from keras import ops
    >>> from dikkat.frameworks.keras import attend
    >>> value = ops.array([[1.0], [3.0]])
    >>> float(attend(ops.zeros((1, 3)), ops.zeros((2, 5)), value, score=Average())[0, 0])
    2.0
    >>> x = ops.array([[0.0], [1.0], [5.0]])
    >>> ops.convert_to_numpy(attend(x[:1], x, ops.eye(3), score=Boxcar(bandwidth=1.0))).tolist()
    [[0.5, 0.5, 0.0]]
    >>> score = Additive(num_hiddens=7)
    >>> score.build((None, 5), (None, 3))
    >>> tuple(score.project_key(ops.zeros((2, 11, 3))).shape), tuple(score.pair_weight().shape)
    ((2, 11, 7), (7,))
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, get_args

import numpy as np
from keras import ops

from dikkat.frameworks.keras.backend import Array, Shape, wide
from dikkat.frameworks.keras.weights import Block, Linear, linear, registered
from dikkat.scores import Gaussian as TorchGaussian
from dikkat.scores import Pair, Profile, whole


class Score(Block):
    """A scoring function: a projection, done once for each query and key, and a pair function of what comes out.

    `build` makes the parameters of one that has some.

    Attributes:
        pair: The pair function: "inner", "additive" or "distance".
        profile: For `distance` only: which g, a log-kernel of the squared scaled distance s.
    """

    pair: ClassVar[Pair]
    profile: ClassVar[Profile] = "gaussian"

    def __init__(self, name: str = "score", **options: Any) -> None:
        # Keras would count all scores of a process, and the path of a variable would say how many there were before.
        super().__init__(name=name, **options)

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Make the parameters, for queries and keys of these shapes."""

    def project_query(self, query: Any) -> Any:
        """(..., n, d_q) -> (..., n, h)."""
        return query

    def project_key(self, key: Any) -> Any:
        """(..., m, d_k) -> (..., m, h)."""
        return key

    def pair_weight(self) -> Any:
        """The weight v of each feature, (h,), for `additive`; None for the others."""
        return None


class _Alike(Score):
    """A score of queries and keys with the same features."""

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        if query_shape[-1] != key_shape[-1]:
            raise ValueError(
                f"query, key: got {query_shape[-1]} and {key_shape[-1]} features; expected by {type(self).__name__} "
                "the same number (for different sizes: Bilinear, Additive)"
            )


@registered
class Average(Score):
    """Every key scores 0, so that the output is the mean of the visible values, whatever the sizes."""

    pair = "inner"

    def project_query(self, query: Any) -> Any:
        """Zeros, (..., n, 1)."""
        return ops.zeros_like(query[..., :1])

    def project_key(self, key: Any) -> Any:
        """Zeros, (..., m, 1)."""
        return self.project_query(key)


@registered
class Dot(_Alike):
    """⟨q, k⟩ (Luong, Pham and Manning 2015, "dot")."""

    pair = "inner"


@registered
class ScaledDot(_Alike):
    """⟨q, k⟩ / √d, with d the number of features (Vaswani et al. 2017)."""

    pair = "inner"

    def project_query(self, query: Any) -> Any:
        """q / √d."""
        return query / math.sqrt(max(1, query.shape[-1]))


@registered
class Bilinear(Score):
    """kᵀ W_q q, for queries and keys of different sizes (Luong, Pham and Manning 2015, "general")."""

    pair = "inner"

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Make W_q, (d_k, d_q)."""
        self.W_q = Linear(size_of("key", key_shape), use_bias=False, dtype=self.dtype_policy, name="W_q")
        self.W_q.build(query_shape)

    def project_query(self, query: Any) -> Any:
        """W_q q, (..., n, d_k)."""
        return linear(self.W_q, query, "query")


@registered
class Cosine(_Alike):
    """⟨q, k⟩ / (‖q‖ ‖k‖); a zero vector scores 0 (Graves, Wayne and Danihelka 2014)."""

    pair = "inner"

    def project_query(self, query: Any) -> Any:
        """q / ‖q‖, 0 for q = 0, in float32 or wider. Scaled by the largest entry first, so that no square overflows."""
        vector = ops.cast(query, wide(query))
        if 0 in tuple(vector.shape):  # of which there is no maximum
            return vector
        peak = ops.stop_gradient(ops.max(ops.abs(vector), axis=-1, keepdims=True))
        vector = vector / ops.where(peak == 0, 1.0, peak)
        square = ops.sum(vector * vector, axis=-1, keepdims=True)
        # Not held above a small number: that would give the zero vector a gradient of 1/small.
        return vector / ops.sqrt(ops.where(square == 0, 1.0, square))

    def project_key(self, key: Any) -> Any:
        """k / ‖k‖."""
        return self.project_query(key)


@registered
class VectorSum(_Alike):
    """v·(q + k). The query's share is the same for all keys and cancels in the softmax: it cannot attend."""

    pair = "inner"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.w_v = Linear(1, use_bias=False, dtype=self.dtype_policy, name="w_v")

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Make v, (1, d)."""
        super().build(query_shape, key_shape)
        self.w_v.build(query_shape)

    def project_query(self, query: Any) -> Any:
        """(v·q, 1): with (1, v·k) the inner product is the whole sum."""
        share = linear(self.w_v, query, "query")
        return ops.concatenate([share, ops.ones_like(share)], axis=-1)

    def project_key(self, key: Any) -> Any:
        """(1, v·k)."""
        share = linear(self.w_v, key, "key")
        return ops.concatenate([ops.ones_like(share), share], axis=-1)


@registered
class Additive(Score):
    """Σ_h v_h tanh((W_q q)_h + (W_k k)_h) (Bahdanau, Cho and Bengio 2015, appendix A.1.2).

    Args:
        num_hiddens: h.
        **options: Keras's `name`, `dtype` and `trainable`.
    """

    pair = "additive"
    arguments = ("num_hiddens",)

    def __init__(self, num_hiddens: int, **options: Any) -> None:
        super().__init__(**options)
        self.num_hiddens = whole("num_hiddens", num_hiddens)
        self.W_k = Linear(self.num_hiddens, use_bias=False, dtype=self.dtype_policy, name="W_k")
        self.W_q = Linear(self.num_hiddens, use_bias=False, dtype=self.dtype_policy, name="W_q")
        self.w_v = Linear(1, use_bias=False, dtype=self.dtype_policy, name="w_v")

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Make W_q, (h, d_q), W_k, (h, d_k), and v, (1, h)."""
        self.W_k.build(key_shape)
        self.W_q.build(query_shape)
        self.w_v.build((None, self.num_hiddens))

    def project_query(self, query: Any) -> Any:
        """W_q q."""
        return linear(self.W_q, query, "query")

    def project_key(self, key: Any) -> Any:
        """W_k k."""
        return linear(self.W_k, key, "key")

    def pair_weight(self) -> Any:
        """v, (h,)."""
        return self.w_v.weight[0]


class _Distance(_Alike):
    """g(‖q − k‖² / σ²), the base of the four kernels."""

    pair = "distance"
    arguments: ClassVar[tuple[str, ...]] = ("learnable",)

    def __init__(self, bandwidth: float | Sequence[float] = 1.0, learnable: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._sigma: Array = TorchGaussian(bandwidth).bandwidth.numpy(force=True)  # which checks it
        self.learnable = learnable

    def get_config(self) -> dict[str, Any]:
        """The bandwidth that it was made with; a learned one is among the weights."""
        return super().get_config() | {"bandwidth": self._sigma.tolist()}

    def build(self, query_shape: Shape, key_shape: Shape) -> None:
        """Make σ, () or (d,): its logarithm where it is learned; in float32 or wider, in mixed precision too."""
        super().build(query_shape, key_shape)
        name = "log_bandwidth" if self.learnable else "fixed_bandwidth"
        values = np.log(self._sigma) if self.learnable else self._sigma
        made = self.add_weight(
            name=name,
            shape=values.shape,
            dtype="float64" if self.variable_dtype == "float64" else "float32",
            initializer=lambda shape, dtype=None: ops.cast(values, dtype),
            trainable=self.learnable,
            autocast=False,
        )
        setattr(self, name, made)

    @property
    def bandwidth(self) -> Any:
        """σ, in the units of the data: () or (d,)."""
        return ops.exp(self.log_bandwidth) if self.learnable else ops.convert_to_tensor(self.fixed_bandwidth)

    def project_query(self, query: Any) -> Any:
        """q / σ, in float32 or wider: a difference of two rounded halves has few digits left."""
        return self._scaled(query, "query")

    def project_key(self, key: Any) -> Any:
        """k / σ, in float32 or wider."""
        return self._scaled(key, "key")

    def _scaled(self, features: Any, name: str) -> Any:
        sigma = self.bandwidth
        if len(sigma.shape) and sigma.shape[0] != features.shape[-1]:
            raise ValueError(
                f"{name}: got {features.shape[-1]} features; expected {sigma.shape[0]}, one for each bandwidth"
            )
        dtype = wide(features)
        return ops.cast(features, dtype) / ops.cast(sigma, dtype)


@registered
class Gaussian(_Distance):
    """−½ ‖(q − k)/σ‖² (Nadaraya 1964; Watson 1964).

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained; it is then kept as its logarithm, and stays positive.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        TypeError: A bandwidth that is no number.
        ValueError: A bandwidth that is not positive and finite, or of the wrong shape.
    """


@registered
class Boxcar(_Distance):
    """0 where ‖(q − k)/σ‖ ≤ 1, −∞ beyond: the mean of the values within reach.

    Args:
        bandwidth: As of `Gaussian`. It cannot be learned by gradient, which is 0 wherever it exists.
        **options: Keras's.
    """

    profile = "boxcar"
    arguments = ()

    def __init__(self, bandwidth: float | Sequence[float] = 1.0, **options: Any) -> None:
        super().__init__(bandwidth, **options)


@registered
class Epanechnikov(_Distance):
    """log(1 − s) with s = ‖(q − k)/σ‖² below 1, −∞ beyond (Epanechnikov 1969); arguments as of `Gaussian`."""

    profile = "epanechnikov"


@registered
class Triangular(_Distance):
    """log(1 − r) with r = ‖(q − k)/σ‖ below 1, −∞ beyond; arguments as of `Gaussian`."""

    profile = "triangular"


def check_score(score: Any) -> None:
    """A check that a score is an instance of `Score`, with a pair function and a profile that exist."""
    if not isinstance(score, Score):
        is_class = isinstance(score, type)
        hint = ": make one, with its brackets" if is_class and issubclass(score, Score) else ""
        got = score.__name__ if is_class else repr(score) if isinstance(score, str) else type(score).__name__
        raise TypeError(f"score: got {got}; expected an instance of a dikkat.frameworks.keras.Score{hint}")
    for name, expected in (("pair", get_args(Pair)), ("profile", get_args(Profile))):
        got = getattr(score, name, None)
        if got not in expected:
            names = ", ".join(map(repr, expected))
            raise TypeError(f"score: {type(score).__name__}.{name}: got {got!r}; expected {names}")


def size_of(name: str, shape: Shape) -> int:
    """The number of features, which must be known when parameters are made."""
    size = shape[-1]
    if size is None:
        raise ValueError(f"{name}: got shape {shape}; expected one whose number of features, the last, is known")
    return size
