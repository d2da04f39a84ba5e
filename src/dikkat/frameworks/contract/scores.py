"""The arithmetic of the scoring functions, over any framework's tensors.

Every one is a *projection*, done once per query and once per key, followed by one of three *pair functions*:

| pair | score of a pair | scoring functions |
| --- | --- | --- |
| `inner` | ⟨q', k'⟩ | average, dot, scaled dot, bilinear, cosine, vector sum |
| `additive` | Σ_h v_h tanh(q'_h + k'_h) | additive |
| `distance` | g(‖q' − k'‖²) | Gaussian, boxcar, Epanechnikov, triangular |

A query is (..., n, d_q), a key (..., m, d_k); projected, both have h features. A framework's classes of these names add
parameters, and inherit the rest.
"""

import math
from typing import Any, ClassVar

import numpy as np

from dikkat.frameworks.contract.operations import Operations, Tensor
from dikkat.scores import Pair, Profile


class Score:
    """What every scoring function supplies.

    Attributes:
        pair: Which pair function compares the projected query and key.
        profile: For `distance` only: which g, a log-kernel of the squared scaled distance s.
        operations: The framework's.
    """

    pair: ClassVar[Pair]
    profile: ClassVar[Profile] = "gaussian"
    operations: ClassVar[Operations]

    def project_query(self, query: Tensor) -> Tensor:
        """(..., n, d_q) -> (..., n, h)."""
        return query

    def project_key(self, key: Tensor) -> Tensor:
        """(..., m, d_k) -> (..., m, h)."""
        return key

    def pair_weight(self) -> Tensor | None:
        """The weight v of each feature, (h,), for `additive`; None for the others."""
        return None

    def compare(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores (..., n, m), float32 or float64, of a projected query (..., n, h) and key (..., m, h)."""
        return compare(self.operations, query, key, self.pair, self.pair_weight(), self.profile)


class Average(Score):
    """0."""

    pair = "inner"

    def project_query(self, query: Tensor) -> Tensor:
        """Zeros, (..., n, 1)."""
        return self.operations.zeros_like(query[..., :1])

    def project_key(self, key: Tensor) -> Tensor:
        """Zeros, (..., m, 1)."""
        return self.operations.zeros_like(key[..., :1])


class Dot(Score):
    """⟨q, k⟩."""

    pair = "inner"


class ScaledDot(Score):
    """⟨q, k⟩ / √d."""

    pair = "inner"

    def project_query(self, query: Tensor) -> Tensor:
        """q / √d."""
        return query / math.sqrt(max(1, query.shape[-1]))


class Bilinear(Score):
    """kᵀ W_q q."""

    pair = "inner"
    W_q: Any

    def project_query(self, query: Tensor) -> Tensor:
        """W_q q, (..., n, d_k)."""
        return self.operations.linear(self.W_q, query, "query")


class Cosine(Score):
    """⟨q, k⟩ / (‖q‖ ‖k‖)."""

    pair = "inner"

    def project_query(self, query: Tensor) -> Tensor:
        """q / ‖q‖."""
        return unit(self.operations, query)

    def project_key(self, key: Tensor) -> Tensor:
        """k / ‖k‖."""
        return unit(self.operations, key)


class VectorSum(Score):
    """v·(q + k): with (v·q, 1) and (1, v·k) the inner product is the whole sum."""

    pair = "inner"
    w_v: Any

    def project_query(self, query: Tensor) -> Tensor:
        """(v·q, 1)."""
        share = self.operations.linear(self.w_v, query, "query")
        return self.operations.concatenate([share, self.operations.ones_like(share)])

    def project_key(self, key: Tensor) -> Tensor:
        """(1, v·k)."""
        share = self.operations.linear(self.w_v, key, "key")
        return self.operations.concatenate([self.operations.ones_like(share), share])


class Additive(Score):
    """Σ_h v_h tanh((W_q q)_h + (W_k k)_h)."""

    pair = "additive"
    W_q: Any
    W_k: Any

    def project_query(self, query: Tensor) -> Tensor:
        """W_q q."""
        return self.operations.linear(self.W_q, query, "query")

    def project_key(self, key: Tensor) -> Tensor:
        """W_k k."""
        return self.operations.linear(self.W_k, key, "key")


class Distance(Score):
    """g(‖q − k‖² / σ²): what the four kernels share."""

    pair = "distance"

    @property
    def bandwidth(self) -> Tensor:
        """σ, in the units of the data: () or (d,)."""
        raise NotImplementedError

    def project_query(self, query: Tensor) -> Tensor:
        """q / σ, in float32 or wider: a difference of two rounded halves has few digits left."""
        return self._scale(query, "query")

    def project_key(self, key: Tensor) -> Tensor:
        """k / σ, likewise."""
        return self._scale(key, "key")

    def _scale(self, features: Tensor, name: str) -> Tensor:
        sigma = self.bandwidth
        if len(sigma.shape) and sigma.shape[0] != features.shape[-1]:
            raise ValueError(
                f"{name}: got {features.shape[-1]} features; expected {sigma.shape[0]}, one for each bandwidth"
            )
        kind = self.operations.wide(features)
        return self.operations.cast(features, kind) / self.operations.cast(sigma, kind)


def compare(
    operations: Operations, query: Tensor, key: Tensor, pair: Pair, weight: Tensor | None, profile: Profile
) -> Tensor:
    """A pair function of projected queries (..., n, h) and keys (..., m, h), which `check_compared` has seen.

    Returns:
        Scores (..., n, m), float32 or float64.
    """
    kind = operations.wide(query, key)
    query, key = operations.cast(query, kind), operations.cast(key, kind)
    if pair == "inner":
        return operations.inner(query, key)
    if pair == "additive":
        return operations.additive(query, key, operations.cast(weight, kind))
    return log_profile(operations, profile, operations.squared_distance(query, key))


def log_profile(operations: Operations, profile: Profile, square: Tensor) -> Tensor:
    """g(s): the logarithm of a kernel as a function of the squared scaled distance; −∞ outside its support.

    NaN stays NaN, and where a branch is not taken, what it reads is replaced first, so that its gradient is finite.
    """
    fill = operations.fill
    if profile == "gaussian":
        return -0.5 * square
    if profile == "boxcar":
        return fill(0.0 * square, square > 1, -math.inf)
    if profile == "triangular":  # whose tip has no slope
        at_zero = square == 0
        square = fill(operations.sqrt(fill(square, at_zero, 1.0)), at_zero, 0.0)
    outside = square >= 1
    return fill(operations.log1p(-fill(square, outside, 0.0)), outside, -math.inf)


def unit(operations: Operations, vector: Tensor) -> Tensor:
    """v / ‖v‖, 0 for v = 0, in float32 or wider. Scaled by the largest entry first, so that no square overflows."""
    vector = operations.cast(vector, operations.wide(vector))
    if 0 in tuple(vector.shape):  # of which there is no maximum
        return vector
    peak = operations.peak(vector)
    vector = vector / operations.fill(peak, peak == 0, 1.0)
    square = operations.total(vector * vector)
    # Not held above a small number: that would give the zero vector a gradient of 1/small.
    return vector / operations.sqrt(operations.fill(square, square == 0, 1.0))


def bandwidths(bandwidth: Any) -> np.ndarray[Any, Any]:
    """A kernel's bandwidth, checked.

    Args:
        bandwidth: A number, or (d,), one for each feature.

    Returns:
        () or (d,), float64, so that a fixed bandwidth is exact for every dtype of data.

    Raises:
        TypeError: No numbers.
        ValueError: Numbers that are not positive and finite, or of another shape.
    """
    try:
        sigma = np.array(bandwidth, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"bandwidth: got {bandwidth!r}; expected a positive number, or one for each feature") from None
    if sigma.ndim > 1:
        raise ValueError(f"bandwidth: got shape {sigma.shape}; expected a number, or (d,), one a feature")
    if not sigma.size or not bool((np.isfinite(sigma) & (sigma > 0)).all()):
        raise ValueError(f"bandwidth: got {sigma.tolist()}; expected positive finite numbers, in the units of the data")
    return sigma
