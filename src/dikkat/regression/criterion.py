r"""What a bandwidth is chosen by: the leave-one-out squared error, and two criteria that count degrees of freedom.

For one place g of the training rows, all rows at that place are left out together, so that repeated rows and integer
weights mean the same. With the places joined (weight $W_g$, mean value $\bar y_g$) the error is

$$ \frac{1}{\sum_g W_g} \sum_g \Big( W_g (\bar y_g - \hat y_{-g})^2 + \sum_{i \in g} w_i (y_i - \bar y_g)^2 \Big) , $$

the mean over the outputs where there are several. A place that no other reaches is answered with the mean of the
others, lest a bandwidth win by answering nothing.

With the same leave-one-out errors $e_g$, and the share $1 - s_g$ that a place has in its own estimate, residuals are
$s_g e_g$, the degrees of freedom $\nu = \sum_g (1 - s_g)$, and with RSS the mean square of the residuals and n the sum
of the weights

$$ \mathrm{GCV} = \frac{\mathrm{RSS}}{(1 - \nu/n)^2}, \qquad
\mathrm{AIC_c} = \log \mathrm{RSS} + \frac{1 + \nu/n}{1 - (\nu + 2)/n} . $$

The latter is taken as $e^{\mathrm{AIC_c} - 1}$, which is least at the same place and a square like the others.

Source: Craven and Wahba 1979; Hurvich, Simonoff and Tsai 1998.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from dikkat.regression.joined import Array, Joined
from dikkat.regression.local import local_fit, ridge_of
from dikkat.regression.moments import Points, Profile, Window, moments, parts, sensitivity

Kind = Literal["loo", "gcv", "aic"]

_DIFFERENCE = 1e-4  # of t, by which criteria without a derivative are differentiated


@dataclass(frozen=True)
class Step:
    """The criterion at one t; its error is the part that depends on t.

    Attributes:
        t: log σ of each feature; and log ρ behind it where the ridge is searched for too.
        error: The criterion; of "loo" the part that depends on t.
    """

    t: Array
    error: float


@dataclass(frozen=True)
class Trial(Step):
    """A step with what the gradient there needs, for each of n places.

    Attributes:
        left: (n, v), what is left of the values.
        lse: (n,), of the moments.
        row: (n, k), of the local fit.
        theta: (n, k, v), of the local fit.
        kept: (n,), s: what is left of a place's noise in its residual.
    """

    left: torch.Tensor
    lse: torch.Tensor
    row: torch.Tensor
    theta: torch.Tensor
    kept: torch.Tensor

    def step(self) -> Step:
        """This step without what the gradient needs: a path has many steps."""
        return Step(self.t, self.error)


class Criterion:
    """The criterion as a function of t = log σ, and its gradient where K is smooth.

    With `ridge` None the last of t is log ρ.
    """

    def __init__(
        self,
        joined: Joined,
        profile: Profile,
        degree: int,
        device: torch.device,
        ridge: float | None = 0.0,
        kind: Kind = "loo",
    ) -> None:
        self.kind = kind
        self.joined, self.profile, self.degree, self.device, self.ridge = joined, profile, degree, device, ridge
        self.spread = torch.tensor(joined.spread(), device=device)[: joined.numbers]
        self._feature = torch.from_numpy(joined.feature).to(device)
        self.variance = joined.variance()
        self.within = float(np.average(joined.within.mean(1), weights=joined.weight))
        self.rest = self.within if kind == "loo" else 0.0
        """What is to be added to an error for the whole criterion."""
        self.points = Points(
            *(torch.tensor(each, dtype=torch.float64, device=device) for each in (joined.x, joined.y, joined.weight))
        )
        value, weight = self.points.value, self.points.weight[:, None]
        total = weight.sum()
        self.share = weight / (total * value.shape[1])
        rest = total - weight
        self.others = torch.where(rest > 0, ((weight * value).sum(0) - weight * value) / rest, 0.0)

    def __call__(self, t: Array) -> Trial:
        """The error at one t."""
        window, places = self._window(t), torch.arange(len(self.points.key), device=self.device)
        ridge = self._ridge(t, window)
        pieces = [
            self._fit(places[part], window, ridge) for part in parts(len(places), self.points.columns(self.degree))
        ]
        lse, row, theta = (torch.cat(piece) for piece in zip(*pieces, strict=True))
        left = theta[:, 0] - self.points.value
        lost = ~(torch.isfinite(left).all(1, keepdim=True) & torch.isfinite(lse)[:, None])
        left = torch.where(lost, self.others - self.points.value, left)
        own = self.points.weight * row[:, 0] * (-lse).exp()
        kept = (1 / (1 + own)).nan_to_num(0.0)
        return Trial(t, self._error(left, kept), left, lse, row, theta, kept)

    def _error(self, left: torch.Tensor, kept: torch.Tensor) -> float:
        if self.kind == "loo":
            return float((self.share * left.square()).sum())
        residual = float((self.share * (kept[:, None] * left).square()).sum()) + self.within
        count = float(self.points.weight.sum())
        freedom = float((1 - kept).sum()) / count
        free = 1 - freedom - (2 / count if self.kind == "aic" else 0.0)
        if free <= 0 or residual <= 0:
            return math.inf
        if self.kind == "gcv":
            return residual / free**2
        return residual * math.exp(min((1 + freedom) / free - 1, 600.0))

    def freedom(self, trial: Trial) -> float:
        """ν over the number of rows, of which there is at least one at each place."""
        return float((1 - trial.kept).sum()) / max(len(trial.kept), float(self.points.weight.sum()))

    def losses(self, trial: Trial) -> Array:
        """(n,): each place's part of the mean squared error, in units of the mean."""
        found: Array = (len(trial.left) * self.share * trial.left.square()).sum(1).cpu().numpy()
        return found

    def _fit(
        self, places: torch.Tensor, window: Window, ridge: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What is kept of some places: their moments are much larger than that."""
        found = moments(self.points.key[places], self.points, window, degree=self.degree, exclude=places)
        fit = local_fit(found, ridge)
        return found.lse, fit.row, fit.theta

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """Of the error with respect to t, and Gauss and Newton's guess at its second derivatives, a matrix."""
        if self.kind != "loo":
            return self._differences(trial)
        key, window = self.points.key, self._window(trial.t)
        change = sensitivity(
            key,
            self.points,
            window,
            trial.lse,
            trial.row,
            trial.theta,
            exclude=torch.arange(len(key), device=self.device),
        )
        summed = change.new_zeros(len(key), self.joined.features, change.shape[2])
        change = summed.index_add_(1, self._feature, change)  # of coordinates that have one bandwidth
        if self.degree:
            change = self._with_ridge(change, trial, window)
        change = torch.where(torch.isfinite(change), change, 0.0)
        weighted = change * self.share[:, None]
        slope = 2 * torch.einsum("gcv,gv->c", weighted, trial.left)
        curve = 2 * torch.einsum("gcv,gev->ce", weighted, change)
        return slope.cpu().numpy(), curve.cpu().numpy()

    def smooth(self) -> "Criterion":
        """The same with the Gaussian kernel."""
        return Criterion(self.joined, "gaussian", self.degree, self.device, self.ridge, self.kind)

    def of(self, joined: Joined) -> "Criterion":
        """The same of other places."""
        return Criterion(joined, self.profile, self.degree, self.device, self.ridge, self.kind)

    def error_at(self, held: Joined, t: Array) -> float:
        """The squared errors of other places, of the same origin, summed with their weights."""
        query, value, weight = (
            torch.tensor(each, dtype=torch.float64, device=self.device) for each in (held.x, held.y, held.weight)
        )
        window = self._window(t)
        found = moments(query, self.points, window, degree=self.degree)
        estimate = local_fit(found, self._ridge(t, window)).estimate
        mean = (self.points.weight[:, None] * self.points.value).sum(0) / self.points.weight.sum()
        reached = torch.isfinite(estimate).all(1, keepdim=True) & torch.isfinite(found.lse)[:, None]
        return float((weight[:, None] * (torch.where(reached, estimate, mean) - value).square()).sum())

    def _differences(self, trial: Trial) -> tuple[Array, Array]:
        slope = np.array([self(trial.t + step).error - trial.error for step in _DIFFERENCE * np.eye(len(trial.t))])
        return slope / _DIFFERENCE, self.variance * np.eye(len(trial.t))

    def _with_ridge(self, change: torch.Tensor, trial: Trial, window: Window) -> torch.Tensor:
        """How the estimates change with t where the ridge does too: by less of what it holds back."""
        slopes = len(self.spread)
        held = trial.row[:, 1 : 1 + slopes, None] * trial.theta[:, 1 : 1 + slopes]
        held = held * (self._ridge(trial.t, window) * (-trial.lse[:, None]).exp())[..., None]
        share = 1 / (1 + (window.bandwidth[:slopes] / self.spread).square())
        change = torch.cat([change[:, :slopes] - 2 * share[:, None] * held, change[:, slopes:]], 1)
        return change if self.ridge is not None else torch.cat([change, -held.sum(1, keepdim=True)], 1)

    def _ridge(self, t: Array, window: Window) -> torch.Tensor:
        amount = math.exp(t[-1]) if self.ridge is None else self.ridge
        return ridge_of(torch.tensor(amount, dtype=torch.float64), self.spread, window.bandwidth[: len(self.spread)])

    def _window(self, t: Array) -> Window:
        bandwidth = torch.tensor(np.exp(t[self.joined.feature]), dtype=torch.float64, device=self.device)
        return Window(self.profile, bandwidth, tolerance=float(np.finfo(np.float64).eps))
