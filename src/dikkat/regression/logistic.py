r"""A plane of log-odds through all rows, and what it says of each without it.

The probabilities are $p = \operatorname{softmax}(B x + b)$, of least log-loss with a penalty on $\lVert B\rVert^2$, of
columns in units of their standard deviations. The penalty is that with the least log-loss where each row is left out,
by one step of Newton's from the plane of all:

$$ \eta_{-i} \approx \eta_i + A_i\,(I - w_i V_i A_i)^{-1} w_i (p_i - y_i), \qquad V = \operatorname{diag}(p) - pp^\top,
\quad A_i = (x_i \otimes I)^\top H^{-1} (x_i \otimes I) , $$

with H the Hessian of the penalised sum and $w_i$ the weight that is left out.

Source: Rad and Maleki 2020, A scalable estimate of the out-of-sample prediction error via approximate leave-one-out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from dikkat.regression.joined import Array

_STRENGTHS = np.logspace(-4, 3, 8)  # of the log-loss beside the penalty
_FLAT = 1e-6  # a common change of all classes changes nothing, and has no penalty in the intercept


class Plane(NamedTuple):
    """A plane of log-odds."""

    center: Array  # (d,), of the coordinates
    spread: Array  # (d,)
    slope: Array  # (d, C)
    height: Array  # (C,)

    def logits(self, x: Array) -> Array:
        """(n, C), before the softmax."""
        return np.asarray((x - self.center) / self.spread @ self.slope + self.height)

    def shares(self, x: Array) -> Array:
        """The probabilities at points, (n, C)."""
        return np.asarray(softmax(self.logits(x.astype(np.float64)), axis=1))


def plane(x: Array, label: NDArray[np.intp], weight: Array, classes: int) -> tuple[Plane, Array]:
    """The plane through rows x (n, d), and the probabilities of their own classes without them, (n,)."""
    there = np.unique(label)
    if len(there) < classes:  # the others have rows of weight 0 alone, and no chance
        part, left = plane(x, np.searchsorted(there, label), weight, len(there))
        slope, height = np.zeros((x.shape[1], classes)), np.full(classes, -np.inf)
        slope[:, there], height[there] = part.slope, part.height
        return part._replace(slope=slope, height=height), left
    center = np.average(x, axis=0, weights=weight).astype(np.float64)
    spread = np.sqrt(np.average((x - center) ** 2, axis=0, weights=weight))
    spread = np.where(spread > 0, spread, 1.0)
    scaled = (x - center) / spread
    if classes == 1:
        return Plane(center, spread, np.zeros((x.shape[1], 1)), np.zeros(1)), np.ones(len(x))
    tried = []
    for strength in _STRENGTHS.tolist():
        fit = LogisticRegression(C=strength, max_iter=1000, tol=1e-6).fit(scaled, label, sample_weight=weight)
        slope, height = fit.coef_.T, fit.intercept_
        if classes == 2:  # one function there, with half its penalty for each of two here
            slope, height = np.hstack([-slope, slope]) / 2, np.append(-height, height) / 2
        own = Plane(center, spread, slope, height)
        left = _left_out(own, x, label, weight, (1 + (classes == 2)) / strength)
        tried.append((float(weight @ left), own, left))
    _, best, left = max(tried, key=lambda each: each[0])
    return best, np.exp(left)


def _left_out(own: Plane, x: Array, label: NDArray[np.intp], weight: Array, penalty: float) -> Array:
    """The logarithms of the probabilities of rows' own classes without them, (n,)."""
    logits = own.logits(x)
    p, each = softmax(logits, axis=1), np.arange(len(x))
    classes, wide = p.shape[1], np.hstack([(x - own.center) / own.spread, np.ones((len(x), 1))])
    size = wide.shape[1]
    curve = p[:, :, None] * (np.eye(classes) - p[:, None])  # V
    hessian = np.empty((size, classes, size, classes))
    for c in range(classes):
        for e in range(classes):
            hessian[:, c, :, e] = (wide * (weight * curve[:, c, e])[:, None]).T @ wide
    square = hessian.reshape(size * classes, size * classes)
    square[np.diag_indices(len(square))] += np.append(np.full((size - 1) * classes, penalty), np.zeros(classes)) + _FLAT
    inverse = np.linalg.inv(square).reshape(hessian.shape)
    lever = np.stack(
        [np.einsum("na,nae->ne", wide, (wide @ inverse[:, c].reshape(size, -1)).reshape(len(x), size, classes))
         for c in range(classes)], 1,
    )  # fmt: skip
    gap = weight[:, None] * (p - np.eye(classes)[label])
    held = np.eye(classes) - weight[:, None, None] * curve @ lever
    moved = logits + (lever @ np.linalg.solve(held, gap[..., None]))[..., 0]
    return np.asarray(log_softmax(moved, axis=1)[each, label])
