r"""A plane of log-odds through all rows, and its probability for each row without that row.

The probabilities are $p = \operatorname{softmax}(B x + b)$ with the least log-loss and a penalty on
$\lVert B\rVert^2$, for columns in units of their standard deviations. The strength of the penalty has the least
leave-one-out log-loss, by one Newton step from the plane of all rows:

$$ \eta_{-i} \approx \eta_i + A_i\,(I - w_i V_i A_i)^{-1} w_i (p_i - y_i), \qquad V = \operatorname{diag}(p) - pp^\top,
\quad A_i = (x_i \otimes I)^\top H^{-1} (x_i \otimes I) , $$

with H the Hessian of the penalised sum and $w_i$ the weight of the left-out row.

Source: Rad and Maleki 2020, A scalable estimate of the out-of-sample prediction error via approximate leave-one-out.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

from dikkat.regression.joined import Array

_STRENGTHS = np.logspace(-4, 3, 8)  # of the log-loss relative to the penalty
_FLAT = 1e-6  # makes the Hessian regular: a common change of all intercepts has no penalty


class Plane(NamedTuple):
    """A plane of log-odds."""

    center: Array  # (d,), of the coordinates
    spread: Array  # (d,)
    slope: Array  # (d, C)
    height: Array  # (C,)

    def logits(self, x: Array) -> Array:
        """Return the (n, C) log-odds before the softmax."""
        return np.asarray((x - self.center) / self.spread @ self.slope + self.height)

    def shares(self, x: Array) -> Array:
        """Return the (n, C) probabilities at points."""
        return np.asarray(softmax(self.logits(x.astype(np.float64)), axis=1))


def plane(x: Array, label: NDArray[np.intp], weight: Array, classes: int) -> tuple[Plane, Array]:
    """Return the plane through rows x (n, d), and the probability of each row's class without that row, (n,)."""
    present = np.unique(label)
    if len(present) < classes:  # the other classes have only rows of weight 0
        present_plane, left_out = plane(x, np.searchsorted(present, label), weight, len(present))
        slope, height = np.zeros((x.shape[1], classes)), np.full(classes, -np.inf)
        slope[:, present], height[present] = present_plane.slope, present_plane.height
        return present_plane._replace(slope=slope, height=height), left_out
    center = np.average(x, axis=0, weights=weight).astype(np.float64)
    spread = np.sqrt(np.average((x - center) ** 2, axis=0, weights=weight))
    spread = np.where(spread > 0, spread, 1.0)
    scaled = (x - center) / spread
    if classes == 1:
        return Plane(center, spread, np.zeros((x.shape[1], 1)), np.zeros(1)), np.ones(len(x))
    trials = []
    for strength in _STRENGTHS.tolist():
        fit = LogisticRegression(C=strength, max_iter=1000, tol=1e-6).fit(scaled, label, sample_weight=weight)
        slope, height = fit.coef_.T, fit.intercept_
        if classes == 2:  # scikit-learn has one function; half its penalty for each of two here
            slope, height = np.hstack([-slope, slope]) / 2, np.append(-height, height) / 2
        candidate = Plane(center, spread, slope, height)
        left_out = _left_out(candidate, x, label, weight, (1 + (classes == 2)) / strength)
        trials.append((float(weight @ left_out), candidate, left_out))
    _, best, left_out = max(trials, key=lambda trial: trial[0])
    return best, np.exp(left_out)


def _left_out(plane: Plane, x: Array, label: NDArray[np.intp], weight: Array, penalty: float) -> Array:
    """Return the log-probability of each row's class without that row, (n,)."""
    logits = plane.logits(x)
    p, index = softmax(logits, axis=1), np.arange(len(x))
    classes, design = p.shape[1], np.hstack([(x - plane.center) / plane.spread, np.ones((len(x), 1))])
    size = design.shape[1]
    variance = p[:, :, None] * (np.eye(classes) - p[:, None])  # V
    hessian = np.empty((size, classes, size, classes))
    for c in range(classes):
        for e in range(classes):
            hessian[:, c, :, e] = (design * (weight * variance[:, c, e])[:, None]).T @ design
    square = hessian.reshape(size * classes, size * classes)
    square[np.diag_indices(len(square))] += np.append(np.full((size - 1) * classes, penalty), np.zeros(classes)) + _FLAT
    inverse = np.linalg.inv(square).reshape(hessian.shape)
    leverage = np.stack(
        [np.einsum("na,nae->ne", design, (design @ inverse[:, c].reshape(size, -1)).reshape(len(x), size, classes))
         for c in range(classes)], 1,
    )  # fmt: skip
    gradient = weight[:, None] * (p - np.eye(classes)[label])
    system = np.eye(classes) - weight[:, None, None] * variance @ leverage
    logits_without = logits + (leverage @ np.linalg.solve(system, gradient[..., None]))[..., 0]
    return np.asarray(log_softmax(logits_without, axis=1)[index, label])
