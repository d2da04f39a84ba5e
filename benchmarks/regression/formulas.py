"""The exact answers: kernel regression in float64, by its formulas, in NumPy.

The bandwidth σ is in units of the keys, with one number per dimension; δ = (k − q)/σ.
"""

from collections.abc import Callable, Iterator

import numpy as np

Array = np.ndarray
# Logarithms of kernels, of ‖δ‖².
LOG_KERNELS: dict[str, Callable[[Array], Array]] = {
    "gaussian": lambda square: square / -2,
    "epanechnikov": lambda square: np.log(np.maximum(0.0, 1 - square)),
}
# Pairs that are held at once.
_PAIRS = 2**22


def constant(query: Array, key: Array, value: Array, bandwidth: Array, kernel: str = "gaussian") -> Array:
    """Σ K(δ_j) y_j / Σ K(δ_j), the Nadaraya–Watson estimate: queries (n, d), keys (m, d), values (m,)."""
    return np.concatenate([_normal(scores) @ value for _, scores in _scores(query, key, bandwidth, kernel)])


def left_out(key: Array, value: Array, bandwidth: Array) -> float:
    """Return the mean squared leave-one-out error of the constant estimate, without points at the same place."""
    total = 0.0
    for rows, scores in _scores(key, key, bandwidth, "gaussian"):
        same = np.ones_like(scores, dtype=bool)
        for column in np.asarray(key, float).T:
            same &= column[rows, None] == column
        scores[same] = -np.inf
        total += np.square(_normal(scores) @ value - value[rows]).sum()
    return float(total / len(key))


def _normal(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _scores(query: Array, key: Array, bandwidth: Array, kernel: str) -> Iterator[tuple[slice, Array]]:
    """Yield log K(δ) of all keys for chunks of queries, summed over dimensions to avoid a third axis."""
    query, key, bandwidth = (np.asarray(array, float) for array in (query, key, bandwidth))
    step = max(1, _PAIRS // len(key))
    for start in range(0, len(query), step):
        rows = slice(start, min(start + step, len(query)))
        square = np.zeros((rows.stop - start, len(key)))
        for q, k, width in zip(query[rows].T, key.T, np.broadcast_to(bandwidth, key.shape[1:]), strict=True):
            square += np.square((k - q[:, None]) / width)
        with np.errstate(divide="ignore"):
            yield rows, LOG_KERNELS[kernel](square)
