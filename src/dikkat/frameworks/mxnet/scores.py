"""Scoring functions: how a query is compared with a key, as in `dikkat.scores`.

A score of your own is a subclass of `Score` that sets `pair` and projects: a query (..., n, d_q) and a key
(..., m, d_k) to h features each.
"""

from collections.abc import Sequence

import numpy
from mxnet import np

from dikkat.frameworks.contract import checks, scores
from dikkat.frameworks.mxnet.backend import Array, MXNet
from dikkat.frameworks.mxnet.blocks import Block, Linear, Values
from dikkat.scores import whole


class Score(scores.Score, Block):
    """What every scoring function supplies; parameters live here.

    Attributes:
        pair: Which pair function compares the projected query and key.
        profile: For `distance` only: which g, a log-kernel of the squared scaled distance s.
    """

    operations = MXNet()

    def key_features(self, key_size: int) -> int:
        """h, of keys with `key_size` features; to be told where a projection changes their number."""
        return key_size


class Average(scores.Average, Score):
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

    def key_features(self, key_size: int) -> int:
        """One."""
        return 1


class Dot(scores.Dot, Score):
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


class ScaledDot(scores.ScaledDot, Score):
    """⟨q, k⟩ / √d, with d the number of features: its variance is 1 where the features' is.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> ScaledDot().project_query(np.ones((1, 4)))
        array([[0.5, 0.5, 0.5, 0.5]])
    """


class Bilinear(scores.Bilinear, Score):
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

    def __init__(self, key_size: int, query_size: int) -> None:
        super().__init__()
        self.W_q = Linear(whole("query_size", query_size), whole("key_size", key_size), bias=False)


class Cosine(scores.Cosine, Score):
    """⟨q, k⟩ / (‖q‖ ‖k‖); a zero vector scores 0.

    Source: Graves, Wayne and Danihelka 2014, section 3.3.1, content addressing (with strength 1).

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> Cosine().project_key(np.array([[3.0, 4.0]]))
        array([[0.6, 0.8]])
    """


class VectorSum(scores.VectorSum, Score):
    """v·(q + k). The query's share is the same for all keys and cancels in the softmax: it cannot attend.

    Args:
        size: Number of features of queries and of keys.

    Source: an exercise of *Dive into Deep Learning*, "Attention Scoring Functions".

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> score = VectorSum(3)
        >>> score.initialize()
        >>> score.project_query(np.zeros((5, 3))).shape
        (5, 2)
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w_v = Linear(whole("size", size), 1, bias=False)

    def key_features(self, key_size: int) -> int:
        """Two."""
        return 2


class Additive(scores.Additive, Score):
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

    def __init__(self, key_size: int, query_size: int, num_hiddens: int) -> None:
        super().__init__()
        hiddens = whole("num_hiddens", num_hiddens)
        self.W_k = Linear(whole("key_size", key_size), hiddens, bias=False)
        self.W_q = Linear(whole("query_size", query_size), hiddens, bias=False)
        self.w_v = Linear(hiddens, 1, bias=False)

    def pair_weight(self) -> Array:
        """v, (h,)."""
        return self.w_v.weight.data().reshape(-1)

    def key_features(self, key_size: int) -> int:
        """`num_hiddens`."""
        return self.W_k.outputs


class _Distance(scores.Distance, Score):
    """g(‖q − k‖² / σ²): what the four kernels share."""

    def __init__(self, bandwidth: float | Sequence[float] | Array = 1.0, learnable: bool = False) -> None:
        super().__init__()
        sigma = scores.bandwidths(bandwidth.asnumpy() if isinstance(bandwidth, np.ndarray) else bandwidth)
        self.learnable = learnable
        if learnable:
            self.make("log_bandwidth", sigma.shape, Values(numpy.log(sigma)))
        else:  # in float64, so that it is exact for every dtype of data
            self.make("fixed_bandwidth", sigma.shape, Values(sigma), dtype="float64", trained=False)

    @property
    def bandwidth(self) -> Array:
        """σ, in the units of the data: () or (d,)."""
        return np.exp(self.log_bandwidth.data()) if self.learnable else self.fixed_bandwidth.data()


class Gaussian(_Distance):
    """−½ ‖(q − k)/σ‖².

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained; it is then stored as its logarithm, and stays positive.

    Raises:
        TypeError: A bandwidth that is no number.
        ValueError: One that is not positive and finite, or of the wrong shape.

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
        learnable: Whether σ is trained.

    Source: Epanechnikov 1969.
    """

    profile = "epanechnikov"


class Triangular(_Distance):
    """log(1 − r) with r = ‖(q − k)/σ‖ below 1, −∞ beyond.

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained.
    """

    profile = "triangular"


def check_score(score: object) -> None:
    """Whether a score is an instance of `Score` that says of itself what it must.

    Raises:
        TypeError: It is none, or has no such pair function or profile.
    """
    checks.check_score(score, Score)
