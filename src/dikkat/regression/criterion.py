r"""The criteria for a bandwidth: the leave-one-out squared error, by itself or with a penalty.

With equal rows of X joined to a unique row g (weight $W_g$, mean value $\bar y_g$), the estimate at g is found without
them: $\hat y_{-g}$, with $a_g$ the square of the length of its row of the smoother matrix in units of one row's weight,
so that a row of weight w at g would have the leverage $w a_g/(1 + w a_g)$. Each of its rows is then predicted from all
others, those equal in X as well,

$$ y_i - \hat y_{-i} = \frac{(\bar y_g - \hat y_{-g}) + (1 + W_g a_g)(y_i - \bar y_g)}{1 + (W_g - v_i) a_g} , $$

with $v_i$ the weight that is left out. Rows equal in x and y are copies, which are left out together, so that repeated
rows and integer weights mean the same: $v_i$ is the sum of their weights. Where y is discrete equal rows are no copies:
of those whose value occurs elsewhere too, and that share their coordinates with other values or are in cells, with five
rows and more on average, a single row is left out. The error is the weighted mean of the squares, over the outputs as
well. A row that no other reaches is answered with the mean of the others, lest a bandwidth win by answering nothing.

With $s_g = 1/(1 + W_g a_g)$, which is 1 less the share of g in its own estimate, the residual of its mean is
$s_g (\bar y_g - \hat y_{-g})$, the degrees of freedom are $\nu = \sum_g (1 - s_g)$, and with n the sum of the weights
"auto" is the leave-one-out error with a penalty,

$$ \frac{\mathrm{LOO}}{1 - \nu/(0.8\,n)} , $$

since the least of an error over many bandwidths follows the noise of few rows. In a search both are infinite with more
than 0.8 degrees of freedom a row: then the estimate is a staircase from row to row, which its own rows cannot see.
"""

import copy
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from dikkat.regression.joined import NARROWEST, Array, Joined
from dikkat.regression.local import (
    RIDGE,
    Points,
    fits,
    parts,
    points_of,
    ridge_at,
    ridge_of,
    sensitivity,
)
from dikkat.regression.moments.launch import Profile, Window
from dikkat.regression.trend import Trend, trend

Kind = Literal["auto", "loo"]

MOST = 0.8
"""The most degrees of freedom a row of an estimate that a search may find."""
MANY = 2000
"""Rows from which a descent over all of them stops sooner, and no feature is tried anew on them."""
_QUIET = np.errstate(all="ignore")  # what is no number is 0, or looked for by the descent
_EPS, _EPS_OF_MANY = 2.0**-52, 1e-9  # the share of a weight that may be omitted
HOPELESS = 1e20  # variances, from which an error is as good as infinite; below, squares of its slopes are numbers


@dataclass(frozen=True)
class Step:
    """The criterion at one t.

    Attributes:
        t: log σ of each feature; and log ρ behind it where the ridge is searched for too.
        error: The criterion.
    """

    t: Array
    error: float


@dataclass(frozen=True)
class Trial(Step):
    """A step with what the gradient there needs, of n unique rows.

    Attributes:
        left: (n, v), the estimates at the unique rows, each without that row, less the mean values there.
        repeated: (k, v), the estimates without each row of `Joined.repeats`, less its value.
        lse: (n,), of the moments.
        row: (n, k), of the local fit.
        theta: (n, k, v), of the local fit.
        kept: (n,), s: the part of a row's noise that is left in its residual.
    """

    left: torch.Tensor
    repeated: torch.Tensor
    lse: torch.Tensor
    row: torch.Tensor
    theta: torch.Tensor
    kept: torch.Tensor

    def step(self) -> Step:
        """The step alone: a path has many."""
        return Step(self.t, self.error)


class Criterion:
    """The criterion as a function of t = log σ, and its gradient where K is smooth.

    With `ridge` None the last of t is log ρ. It is infinite from `most` degrees of freedom a row on.

    Attributes:
        narrowest: The least σ of a number that is searched for, over the least gap between two of its values.
        ridges: The least ρ, the first and the largest: by 0.001 no slope explodes, and 10⁶ leaves nothing of a slope.
    """

    narrowest = NARROWEST
    ridges = 1e-3, RIDGE, 1e6

    def __init__(
        self,
        joined: Joined,
        profile: Profile,
        degree: int,
        ridge: float | None = 0.0,
        kind: Kind = "loo",
        most: float = math.inf,
    ) -> None:
        self.joined, self.profile, self.degree = joined, profile, degree
        self.ridge, self.kind = ridge, kind
        self.variance, self.total = joined.variance(), float(joined.weight.sum())
        self.spread = torch.tensor(joined.spread())[: joined.numbers]
        self.points = points_of(joined, torch.float64)
        value, weight = self.points.value, self.points.weight[:, None]
        self.most = most * max(len(joined.x), self.total)
        self.share = weight / (self.total * value.shape[1])
        rest = self.total - weight
        every = torch.tensor(joined.weight @ joined.y)
        self.others = torch.where(rest > 0, (every - weight * value) / rest, 0.0)
        self.itself = torch.arange(len(value))
        self.unique = torch.from_numpy(joined.repeats.unique)
        self.alone = self.share.index_fill(0, self.unique, 0.0)
        y, own, out = (torch.tensor(each, dtype=torch.float64) for each in joined.repeats[1:])
        self.about = y - value[self.unique]
        self.repeats_share, self.rest = own[:, None] / (self.total * value.shape[1]), weight[self.unique] - out[:, None]

    def __call__(self, t: Array) -> Trial:
        """The error at one t."""
        lse, row, theta = self._fits(t)
        left = theta[:, 0] - self.points.value
        lost = ~(torch.isfinite(left).all(1, keepdim=True) & torch.isfinite(lse)[:, None])
        left = torch.where(lost, self.others - self.points.value, left)
        own = self.points.weight * row[:, 0] * (-lse).exp()
        kept = (1 / (1 + own)).nan_to_num(0.0)
        repeated = self._repeated(lse, row, left) if len(self.unique) else left[:0]
        trial = Trial(t, math.nan, left, repeated, lse, row, theta, kept)
        error = (self.alone * left.square()).sum() + (self.repeats_share * repeated.square()).sum()
        free = 1 - float((1 - kept).sum()) / self.most
        return replace(trial, error=math.inf if free <= 0 else float(error) / (free if self.kind == "auto" else 1))

    def _fits(self, t: Array) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The lse (n,), row (n, k) and θ (n, k, v) of the fit at each unique row without it."""
        window, pieces = self.window(t), []
        for part in parts(len(self.itself), self.points.columns(self.degree)):
            drawn, own = (self._ridge(t, window), self._toward(window, part)), self.itself[part]
            lse, fit = fits(self.points.key[part], self.points, window, *drawn, exclude=own, ordered=True)
            pieces.append((lse, fit.row, fit.theta))
        lse, row, theta = (torch.cat(piece) for piece in zip(*pieces, strict=True)) if len(pieces) > 1 else pieces[0]
        return lse, row, theta

    @cached_property
    def _with_zeros(self) -> Points:
        """The points with an output more."""
        return Points(self.points.key, torch.nn.functional.pad(self.points.value, (0, 1)), self.points.weight)

    def _repeated(self, lse: torch.Tensor, row: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """`Trial.repeated`."""
        bare, own = self._bare(lse, row), self.points.weight[self.unique, None]
        result: torch.Tensor = (bare * left[self.unique] - (bare + own) * self.about) / (bare + self.rest)
        return result

    def _bare(self, lse: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """1/a of the unique rows of repeats, (k, 1); 0 where no other row is in reach."""
        result: torch.Tensor = lse[self.unique].exp() / row[self.unique, 0]
        return result.nan_to_num(0.0)[:, None]

    @cached_property
    def trend(self) -> Trend:
        """The plane to whose slopes the ridge draws."""
        return trend(self.joined)

    def _toward(self, window: Window, rows: slice = slice(None)) -> torch.Tensor | None:
        """The slopes to which lines at rows are drawn, each without the row."""
        drawn = self.degree and self.ridge != 0
        return self.trend.over(window.bandwidth, self.trend.without[rows]) if drawn else None

    def _ridge(self, t: Array, window: Window) -> torch.Tensor | None:
        """Λ S_0 at t, of the features that are numbers, under a window; None for the constant order."""
        if not self.degree:
            return None
        amount = torch.tensor(math.exp(t[-1]) if self.ridge is None else self.ridge, dtype=torch.float64)
        return ridge_of(amount, self.spread, window.bandwidth[..., : len(self.spread)])

    def loss(self, trial: Trial) -> torch.Tensor:
        """(m, v): the mean squared error of the rows of each unique row."""
        weighted = self.repeats_share * trial.repeated.square()
        repeated = torch.zeros_like(trial.left).index_add_(0, self.unique, weighted) / self.share
        return torch.where(self.alone > 0, trial.left.square(), repeated)

    @_QUIET
    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """The error's slope with respect to t, and Gauss and Newton's guess at its second derivatives, a matrix."""
        window, points, theta = self.window(trial.t), self.points, trial.theta
        if len(self.unique) or self.kind == "auto":
            # log 1/a changes as a further output does whose values are 0 and whose fit is −u
            points, theta = self._with_zeros, torch.cat([theta, -trial.row[..., None]], -1)
        own = window, trial.lse, trial.row, theta
        by_coordinates = sensitivity(points.key, points, *own, exclude=self.itself, ordered=True)
        change = self._finite(by_coordinates, trial.t, *own, self._toward(window))
        # Small arrays, in which NumPy's operations take a third of the time of PyTorch's.
        left, row, kept, alone = (each.numpy() for each in (trial.left, trial.row, trial.kept, self.alone))
        values = left.shape[1]
        if self.kind == "auto" or len(self.unique):
            barer = change[..., values:] / row[:, :1, None]
        slope, curve = summed(change[..., :values], alone, left)
        if len(self.unique):
            bare, unique = self._bare(trial.lse, trial.row).numpy()[..., None], self.unique.numpy()
            about, rest, repeated = (each.numpy() for each in (self.about, self.rest, trial.repeated))
            moved = change[unique, :, :values] + barer[unique] * (left[unique] - about - repeated)[:, None]
            more = summed(bare * moved / (bare + rest[..., None]), self.repeats_share.numpy(), repeated)
            slope, curve = slope + more[0], curve + more[1]
        if self.kind == "auto":
            fewer = (kept * (1 - kept)) @ barer[..., 0]
            free = 1 - float((1 - kept).sum()) / self.most
            slope, curve = (slope - trial.error * fewer / self.most) / free, curve / free
        return slope, curve

    def window(self, t: Array) -> Window:
        """The kernel at t."""
        bandwidth = torch.tensor(np.exp(t[self.joined.feature]), dtype=torch.float64)
        return Window(self.profile, bandwidth, tolerance=_EPS if len(self.joined.x) <= MANY else _EPS_OF_MANY)

    def under(self, profile: Profile) -> "Criterion":
        """The criterion with another kernel, finite with any degrees of freedom."""
        other = copy.copy(self)
        other.profile, other.most = profile, math.inf
        return other

    @_QUIET
    def _finite(
        self, change: torch.Tensor, t: Array, window: Window, lse: torch.Tensor, row: torch.Tensor,
        theta: torch.Tensor, toward: torch.Tensor | None,
    ) -> Array:  # fmt: skip
        """Changes by features and log ρ, from those by coordinates; 0 where they are no numbers."""
        changed: Array = change.numpy()
        if changed.shape[1] > self.joined.features:  # the coordinates of a category have one bandwidth
            firsts = np.searchsorted(self.joined.feature, np.arange(self.joined.features))
            changed = np.add.reduceat(changed, firsts, 1)
        ridge = self._ridge(t, window)
        if ridge is not None:
            slopes, amount = len(self.spread), math.exp(t[-1]) if self.ridge is None else self.ridge or 1.0
            held = theta[:, 1 : 1 + slopes].numpy().copy()
            if toward is not None:  # an output of u, behind the others, is drawn to 0
                held[..., : toward.shape[-1]] -= toward[..., :slopes, :].numpy()
            held *= (row[:, 1 : 1 + slopes] * ridge_at(ridge, lse)).numpy()[..., None]
            changed[:, :slopes] -= (2 / amount * ridge.numpy())[:, None] * held
            if self.ridge is None:
                changed = np.concatenate([changed, -held.sum(1, keepdims=True)], 1)
        return np.where(np.isfinite(changed), changed, 0.0)


@_QUIET
def summed(changes: Array, share: Array, errors: Array) -> tuple[Array, Array]:
    """The slope and Gauss and Newton's matrix of a weighted sum of squares, from (n, d, v)."""
    weighted = 2 * share[:, None] * changes
    return np.einsum("ncv,nv->c", weighted, errors), np.tensordot(weighted, changes, ([0, 2], [0, 2]))
