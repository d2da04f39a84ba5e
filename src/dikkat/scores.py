"""Scoring functions, which compare a query with a key.

Each is a *projection* of every query and every key, followed by one of three *pair functions*:

| pair | score of a pair | scoring functions |
| --- | --- | --- |
| `inner` | ⟨q', k'⟩ | average, dot, scaled dot, bilinear, cosine, vector sum, gated |
| `additive` | Σ_i v_i tanh(q'_i + k'_i) | additive |
| `distance` | g(‖q' − k'‖²) | Gaussian, boxcar, Epanechnikov, triangular |

To write your own score, subclass `Score`, set `pair` and define the projections. All implementations can run it.

Shapes: a query is (..., n, d_q), a key (..., m, d_k); projected, both have h features.
"""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from dikkat._engine.gating import gated
from dikkat._engine.pytorch_state import autocasts, can_read_values

__all__ = [
    "Additive", "Average", "Bilinear", "Boxcar", "Cosine", "Dot", "Epanechnikov", "Gated", "Gaussian", "ScaledDot",
    "Score", "Triangular", "VectorSum",
]  # fmt: skip

Pair = Literal["inner", "additive", "distance"]
Profile = Literal["gaussian", "boxcar", "epanechnikov", "triangular"]
Projection = Literal["none", "affine", "any"]
_PAIRS, _PROFILES = get_args(Pair), get_args(Profile)


class Score(nn.Module):
    """The base class of scoring functions.

    Faster paths read the attributes below instead of checking for classes. If a subclass changes a projection without
    declaring `projection` and `reads_values` itself, both are reset to their defaults.

    Attributes:
        pair: The pair function that compares the projected query and key.
        profile: For `distance` only: the log-kernel g of the squared scaled distance s.
        softcap: For `inner` only: c in the score c·tanh(a / c) of an inner product a; None for a itself.
        projection: The kind of projection: `"none"`; `"affine"`, a matrix and a bias, learned or constant; or `"any"`.
        reads_values: Whether a projection may branch on the values of its input. If not, it depends only on shapes and
            parameters, and repeated calls skip checks.
    """

    pair: ClassVar[Pair]
    profile: ClassVar[Profile] = "gaussian"
    softcap: float | None = None
    projection: ClassVar[Projection] = "any"
    reads_values: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("projection", "reads_values"):
            declaring = next(base for base in cls.__mro__ if name in vars(base))
            for method in ("project", "project_query", "project_key"):  # a mixin may override one
                if getattr(cls, method) is not getattr(declaring, method, None):
                    setattr(cls, name, getattr(Score, name))

    def project_query(self, query: Tensor) -> Tensor:
        """Project queries: (..., n, d_q) -> (..., n, h)."""
        return query

    def project_key(self, key: Tensor) -> Tensor:
        """Project keys: (..., m, d_k) -> (..., m, h)."""
        return key

    def project(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Project both sides of a call; by default independently of each other."""
        return self.project_query(query), self.project_key(key)

    def pair_weight(self) -> Tensor | None:
        """Return the weight v of each feature, (h,), for `additive`; None for other pair functions."""
        return None


class Average(Score):
    """A constant score of 0, so that the output is the mean of the visible values.

    Queries and keys may have any number of features; neither has a gradient.

    Source: *Dive into Deep Learning*, section "Attention Pooling by Similarity", the constant kernel.

    Example:
        >>> dikkat.attend(torch.zeros(1, 3), torch.zeros(2, 5), torch.tensor([[1.0], [3.0]]), score=Average())
        tensor([[2.]])
    """

    pair = "inner"
    projection = "affine"
    reads_values = False

    def project_query(self, query: Tensor) -> Tensor:
        """Return zeros, (..., n, 1)."""
        return query.new_zeros((*query.shape[:-1], 1))

    def project_key(self, key: Tensor) -> Tensor:
        """Return zeros, (..., m, 1)."""
        return key.new_zeros((*key.shape[:-1], 1))


class _Capped(Score):
    """Inner products a, optionally capped to ±c by c·tanh(a / c)."""

    pair = "inner"
    projection: ClassVar[Projection] = "none"
    reads_values = False

    def __init__(self, softcap: float | None = None) -> None:
        super().__init__()
        if softcap is not None:
            if isinstance(softcap, bool) or not isinstance(softcap, int | float):
                raise TypeError(f"softcap: got {type(softcap).__name__}; expected a positive number, or None")
            if not 0 < softcap < math.inf:
                raise ValueError(f"softcap: got {softcap}; expected a positive finite number, or None")
        self.softcap = softcap


class Dot(_Capped):
    """⟨q, k⟩.

    Args:
        softcap: c of the score c·tanh(a / c), which is between −c and c; None for the inner product a itself.

    Raises:
        TypeError: `softcap` is not a number.
        ValueError: `softcap` is not positive and finite.

    Source: Luong, Pham and Manning 2015, section 3.1, "dot"; the cap: Gemma Team 2024, *Gemma 2*, section 2.

    Example:
        >>> dikkat.attention_weights(torch.eye(2), torch.eye(2), score=Dot())
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
    """


class ScaledDot(_Capped):
    """⟨q, k⟩ / √d, with d the number of features: its variance is 1 if the features have variance 1.

    Args:
        softcap: The cap c, as in `Dot`.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> dikkat.attention_weights(2 * torch.eye(4)[:1], 2 * torch.eye(4)[:2], score=ScaledDot())
        tensor([[0.8808, 0.1192]])
    """

    projection = "affine"
    reads_values = False

    def project_query(self, query: Tensor) -> Tensor:
        """Return q / √d."""
        return query / self.root(query)

    def root(self, query: Tensor) -> float:
        """Return √d."""
        return math.sqrt(max(1, query.shape[-1]))

    def project(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Divide the side with fewer numbers by √d, which saves a pass over the larger side."""
        # Under torch.compile lengths may be symbolic, and cannot be compared.
        if torch.compiler.is_compiling() or not isinstance(key.numel(), int) or query.numel() <= key.numel():
            return self.project_query(query), key
        return query, self.project_query(key)


class Bilinear(Score):
    """kᵀ W_q q, for queries and keys of different sizes.

    Args:
        key_size: Features of a key, d_k.
        query_size: Features of a query, d_q.

    Source: Luong, Pham and Manning 2015, section 3.1, "general".

    Example:
        >>> Bilinear(key_size=3, query_size=5).project_query(torch.zeros(7, 5)).shape
        torch.Size([7, 3])
    """

    pair = "inner"
    projection = "affine"
    reads_values = False

    def __init__(self, key_size: int, query_size: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(check_size("query_size", query_size), check_size("key_size", key_size), bias=False)

    def project_query(self, query: Tensor) -> Tensor:
        """Return W_q q, (..., n, d_k)."""
        return linear(self.W_q, query, "query")


class Cosine(Score):
    """⟨q, k⟩ / (‖q‖ ‖k‖); a zero vector scores 0.

    Source: Graves, Wayne and Danihelka 2014, section 3.3.1, content addressing (with strength 1).

    Example:
        >>> Cosine().project_key(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    pair = "inner"
    reads_values = False

    def project_query(self, query: Tensor) -> Tensor:
        """Return q / ‖q‖."""
        return _unit(query)

    def project_key(self, key: Tensor) -> Tensor:
        """Return k / ‖k‖."""
        return _unit(key)


class VectorSum(Score):
    """v·(q + k). The query's share is equal for all keys and cancels in the softmax, so weights ignore the query.

    Args:
        size: Number of features of queries and of keys.

    Source: an exercise of *Dive into Deep Learning*, "Attention Scoring Functions".

    Example:
        >>> w = dikkat.attention_weights(torch.randn(2, 3), torch.randn(5, 3), score=VectorSum(3))
        >>> torch.allclose(w[0], w[1])
        True
    """

    pair = "inner"
    projection = "affine"
    reads_values = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w_v = nn.Linear(check_size("size", size), 1, bias=False)

    def project_query(self, query: Tensor) -> Tensor:
        """Return (v·q, 1): the inner product with (1, v·k) is the complete sum, so the log-sum-exp is exact."""
        share = linear(self.w_v, query, "query")
        return torch.cat([share, torch.ones_like(share)], -1)

    def project_key(self, key: Tensor) -> Tensor:
        """Return (1, v·k)."""
        share = linear(self.w_v, key, "key")
        return torch.cat([torch.ones_like(share), share], -1)


class Additive(Score):
    """Σ_i v_i tanh((W_q q)_i + (W_k k)_i).

    Args:
        key_size: Features of a key, d_k.
        query_size: Features of a query, d_q.
        num_hiddens: Features of both projections, h.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1 and appendix A.1.2.

    Example:
        >>> score = Additive(key_size=3, query_size=5, num_hiddens=7)
        >>> score.project_key(torch.zeros(2, 11, 3)).shape, score.pair_weight().shape
        (torch.Size([2, 11, 7]), torch.Size([7]))
    """

    pair = "additive"
    projection = "affine"
    reads_values = False

    def __init__(self, key_size: int, query_size: int, num_hiddens: int) -> None:
        super().__init__()
        hiddens = check_size("num_hiddens", num_hiddens)
        self.W_k = nn.Linear(check_size("key_size", key_size), hiddens, bias=False)
        self.W_q = nn.Linear(check_size("query_size", query_size), hiddens, bias=False)
        self.w_v = nn.Linear(hiddens, 1, bias=False)
        self.num_hiddens = hiddens

    def project_query(self, query: Tensor) -> Tensor:
        """Return W_q q."""
        return linear(self.W_q, query, "query")

    def project_key(self, key: Tensor) -> Tensor:
        """Return W_k k."""
        return linear(self.W_k, key, "key")

    def pair_weight(self) -> Tensor:
        """Return v, (h,); if w_v is not a plain linear layer, its output for each feature.

        A constant that such a module adds is equal for all keys and cancels in the softmax, so it is left out.
        """
        w_v = self.w_v
        if is_plain(w_v):
            return w_v.weight.squeeze(0)  # its gradient needs no copy
        like = next(self.parameters())
        basis = torch.eye(1 + self.num_hiddens, self.num_hiddens, dtype=like.dtype, device=like.device)
        scores: Tensor = w_v(basis)[:, 0]
        return scores[:-1] - scores[-1]


class Gated(Score):
    """w·(tanh(V k) ⊙ sigmoid(U k)): a score of the key that ignores the query.

    Hidden features are computed in blocks of keys, and most of them again in the backward, to save memory.

    Args:
        key_size: Features of a key, d_k.
        num_hiddens: Hidden features, h.

    Source: Ilse, Tomczak and Welling 2018, section 2.4, equation 9; V, U and w have biases, as in the authors' program.

    Example:
        >>> score = Gated(key_size=3, num_hiddens=7)
        >>> score.project_key(torch.zeros(2, 11, 3)).shape, score.project_query(torch.zeros(2, 5, 13)).shape
        (torch.Size([2, 11, 1]), torch.Size([2, 5, 1]))
    """

    pair = "inner"

    def __init__(self, key_size: int, num_hiddens: int) -> None:
        super().__init__()
        size, hiddens = check_size("key_size", key_size), check_size("num_hiddens", num_hiddens)
        self.V, self.U, self.w = nn.Linear(size, hiddens), nn.Linear(size, hiddens), nn.Linear(hiddens, 1)

    def project_query(self, query: Tensor) -> Tensor:
        """Return ones, (..., n, 1), in float32 or wider."""
        return query.new_ones((*query.shape[:-1], 1), dtype=torch.promote_types(query.dtype, torch.float32))

    def project_key(self, key: Tensor) -> Tensor:
        """Return the scores, (..., m, 1), in float32 or wider."""
        return gated_scores(key, self.V, self.U, self.w, "key")[0]


class _Distance(Score):
    """The base class of the four kernels, g(‖q − k‖² / σ²)."""

    pair = "distance"
    projection = "affine"
    reads_values = False
    log_bandwidth: Tensor
    fixed_bandwidth: Tensor

    def __init__(self, bandwidth: float | Sequence[float] | Tensor = 1.0, learnable: bool = False) -> None:
        super().__init__()
        sigma = _sigma(bandwidth)
        if sigma.ndim > 1:
            raise ValueError(f"bandwidth: got shape {tuple(sigma.shape)}; expected a number, or (d,), one per feature")
        if not sigma.numel() or not bool((torch.isfinite(sigma) & (sigma > 0)).all()):
            raise ValueError(
                f"bandwidth: got {sigma.tolist()}; expected positive finite numbers, in the units of the data"
            )
        if not isinstance(bandwidth, Tensor):  # checked on the CPU, then moved to the default device
            sigma = sigma.to(torch.get_default_device())
        self.learnable = learnable
        if learnable:  # a number is trained in the default dtype, a tensor in its own
            kind = sigma.dtype if isinstance(bandwidth, Tensor) else torch.get_default_dtype()
            self.log_bandwidth = nn.Parameter(sigma.log().to(kind))
        else:
            self.register_buffer("fixed_bandwidth", sigma)

    @property
    def bandwidth(self) -> Tensor:
        """Return σ, in the units of the data: () or (d,)."""
        if self.learnable:
            return self.log_bandwidth.exp()
        return self.fixed_bandwidth

    def project_query(self, query: Tensor) -> Tensor:
        """Return q / σ, in float32 or wider: a difference of rounded float16 numbers has few correct digits."""
        return self._scale(query, "query", self._divisor())

    def project_key(self, key: Tensor) -> Tensor:
        """Return k / σ, in float32 or wider."""
        return self._scale(key, "key", self._divisor())

    def project(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Divide both by one σ."""
        sigma = self._divisor()
        return self._scale(query, "query", sigma), self._scale(key, "key", sigma)

    def _divisor(self) -> Tensor | None:
        """Return σ; None if it is known to be 1."""
        sigma = self.bandwidth
        known = not sigma.ndim and not self.learnable and can_read_values(sigma)
        return None if known and sigma.item() == 1 else sigma

    def _scale(self, features: Tensor, name: str, sigma: Tensor | None) -> Tensor:
        if sigma is not None and sigma.ndim and sigma.shape[0] != features.shape[-1]:
            raise ValueError(
                f"{name}: got {features.shape[-1]} features; expected {sigma.shape[0]}, one for each bandwidth"
            )
        wide = torch.promote_types(features.dtype, torch.float32)
        if features.dtype is not wide:
            features = features.to(wide)
        if sigma is None:
            return features
        # PyTorch converts a scalar tensor to the features' dtype itself.
        return features / (sigma if sigma.dtype is wide or not sigma.ndim else sigma.to(wide))


class Gaussian(_Distance):
    """−½ ‖(q − k)/σ‖².

    With d features and the dtype's largest number max, coordinates over σ are clipped to ±0.49 √(max/d), so that their
    squares are finite. The gradient of a clipped coordinate is 0 with `impl="reference"`, and has no meaning otherwise.

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained; its logarithm is then the parameter, so that σ stays positive.

    Raises:
        ValueError: `bandwidth` is not positive and finite, or has the wrong shape.

    Source: Nadaraya 1964; Watson 1964.

    Example:
        >>> x = torch.tensor([[0.0], [2.0]])
        >>> dikkat.attention_weights(x, x, score=Gaussian(bandwidth=2.0))
        tensor([[0.6225, 0.3775],
                [0.3775, 0.6225]])
    """


class Boxcar(_Distance):
    """0 where ‖(q − k)/σ‖ ≤ 1, −∞ beyond: the mean of the values within reach.

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature. Gradients cannot
            train it: they are 0 wherever they exist.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [5.0]])
        >>> dikkat.attention_weights(x[:1], x, score=Boxcar(bandwidth=1.0))
        tensor([[0.5000, 0.5000, 0.0000]])
    """

    profile = "boxcar"

    def __init__(self, bandwidth: float | Sequence[float] | Tensor = 1.0) -> None:
        super().__init__(bandwidth)


class Epanechnikov(_Distance):
    """log(1 − s) with s = ‖(q − k)/σ‖² below 1, −∞ beyond; the arguments are those of `Gaussian`.

    Source: Epanechnikov 1969.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [5.0]])
        >>> dikkat.attention_weights(x[:1], x, score=Epanechnikov(bandwidth=2.0))
        tensor([[0.5714, 0.4286, 0.0000]])
    """

    profile = "epanechnikov"


class Triangular(_Distance):
    """log(1 − r) with r = ‖(q − k)/σ‖ below 1, −∞ beyond; the arguments are those of `Gaussian`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [5.0]])
        >>> dikkat.attention_weights(x[:1], x, score=Triangular(bandwidth=2.0))
        tensor([[0.6667, 0.3333, 0.0000]])
    """

    profile = "triangular"


def check_declared(score: Score) -> None:
    """Validate the attributes that a `Score` subclass declares."""
    name, pair = type(score).__name__, getattr(score, "pair", None)
    if pair not in _PAIRS:
        raise TypeError(f"score: got {name}.pair = {pair!r}; expected {', '.join(map(repr, _PAIRS))}")
    if score.profile not in _PROFILES:
        allowed = ", ".join(map(repr, _PROFILES))
        raise TypeError(f"score: got {name}.profile = {score.profile!r}; expected {allowed}")
    if score.softcap is not None and pair != "inner":
        raise TypeError(f"score: got {name} of pair {pair!r} with a softcap; expected a softcap only for 'inner'")
    weight = score.pair_weight()
    if (weight is None) == (pair == "additive"):
        got = "no pair_weight" if weight is None else "a pair_weight"
        raise TypeError(f"score: got {name} of pair {pair!r} and {got}; expected one, (h,), only for 'additive'")


def _sigma(bandwidth: float | Sequence[float] | Tensor) -> Tensor:
    """Convert a bandwidth to float64, which is exact for every dtype of data; a tensor keeps its dtype."""
    if isinstance(bandwidth, Tensor) and bandwidth.is_floating_point():
        return bandwidth.detach().clone()
    try:
        return torch.as_tensor(bandwidth, dtype=torch.float64, device="cpu").clone()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"bandwidth: got {bandwidth!r}; expected a positive number, or one for each feature") from None


def check_size(name: str, size: int) -> int:
    """Check a whole number of at least 1, and return it as an int."""
    if isinstance(size, bool) or not isinstance(size, Integral):
        raise TypeError(f"{name}: got {size!r} ({type(size).__name__}); expected a whole number of at least 1")
    if size < 1:
        raise ValueError(f"{name}: got {size}; expected a whole number of at least 1")
    return int(size)


def is_plain(layer: nn.Module, *kinds: type[nn.Module]) -> bool:
    """True if a layer has one of these types (by default `nn.Linear`) and neither hooks nor its own `forward`."""
    if type(layer) not in (kinds or (nn.Linear,)) or "forward" in vars(layer):
        return False
    global_hooks = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return not (hooks or global_hooks)


def gated_scores(
    rows: Tensor, V: nn.Linear, U: nn.Linear | None, w: nn.Linear, name: str, known: list[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Check the rows and compute `gating.gated`, or an equal result if other modules replace the layers."""
    layers = [layer for layer in (V, U, w) if layer is not None]
    if all(is_plain(layer) and layer.bias is not None for layer in layers):
        for layer in layers[:-1]:
            _check_linear(layer, rows, name)
        return gated(rows, V, U, w, known)
    hidden = linear(V, rows, name).tanh()
    if U is not None:
        hidden = hidden * linear(U, rows, name).sigmoid()
    scores: Tensor = w(hidden)
    return scores.to(torch.promote_types(scores.dtype, torch.float32)), rows


def linear(layer: nn.Linear, features: Tensor, name: str) -> Tensor:
    """Return a linear layer's output, after checks with messages that name the tensor."""
    _check_linear(layer, features, name)
    out: Tensor = layer(features)
    return out


def _check_linear(layer: nn.Linear, features: Tensor, name: str) -> None:
    # A module that replaces the layer may have neither attribute.
    size, weight = getattr(layer, "in_features", features.shape[-1]), getattr(layer, "weight", features)
    if features.shape[-1] != size:
        raise ValueError(
            f"{name}: got {features.shape[-1]} features (shape {tuple(features.shape)}); "
            f"expected {size}, the layer's input size"
        )
    if features.dtype != weight.dtype and not autocasts(features.device.type):
        raise TypeError(f"{name}: got dtype {features.dtype}; expected {weight.dtype}, as the score's parameters")


def _unit(vector: Tensor) -> Tensor:
    """Return v / ‖v‖, 0 for v = 0, in float32 or wider; the largest entry is divided out first to avoid overflow."""
    wide = vector.to(torch.promote_types(vector.dtype, torch.float32))
    peak = wide.detach().abs().amax(-1, keepdim=True) if wide.shape[-1] else wide.new_ones((*wide.shape[:-1], 1))
    wide = wide / torch.where(peak == 0, 1.0, peak)
    square = wide.square().sum(-1, keepdim=True)
    # Clamping at a small number instead would give the zero vector a gradient of 1/small.
    return wide / torch.where(square == 0, 1.0, square).sqrt()
