r"""The deviation of values from an estimate, and the confidence band of the estimate.

Both are made of the training rows' own errors when each place is predicted from the others, $e_i$. With $a_i$ the
variance of that prediction in units of the noise's, the place's share in its own estimate is $1 - g_i$ with
$g_i = 1/(1 + a_i)$; its residual is $g_i e_i$, and the residuals of the rows near x have as many degrees of freedom as
their $g_i$ sum up to:

$$ \tau^2(x) = \sum_i \tilde w_i e_i^2, \qquad
s^2(x) = \frac{\sum_i \tilde w_i\, (g_i e_i)^2}{\sum_i \tilde w_i\, g_i}, \qquad
\nu(x) = \frac{(\sum_i \tilde w_i)^2}{\sum_i \tilde w_i^2} \sum_i \tilde w_i\, g_i , $$

with $\tilde w$ the kernel's weights at twice the bandwidth about the mean place that x looks at, which lies among the
data even where x does not. Rows at one place vary about their mean as well, which counts in each sum.

A single value deviates by $(\tau^2 + s^2 b)^{1/2}$. The band is about a local line with
half the bandwidth (in d dimensions half the volume), whose bias is small beside its error:

$$ \tilde y \pm t_\nu\, s\, (\lVert l \rVert^2 + b)^{1/2}, \qquad b = \sum_c \lambda_c^2\, \Lambda_c / S_0 , \qquad
\lambda = (S + \Lambda)^{-1} o , $$

with l the line's row of the smoother matrix, $t_\nu$ Student's quantile, and b what a ridge of ρ = 0.25 leaves open:
that slopes are about 0, with the variance $s^2/\rho$ over a bandwidth. Beyond the data it goes up with the
square of the distance, whatever the order and the ridge of the estimate.

Source: Loader 1999, chapter 2 and section 9.1 (degrees of freedom); Calonico, Cattaneo and Farrell 2018, On the effect
of bias estimation on coverage accuracy (undersmoothing beside robust correction of the bias).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from dikkat.regression.criterion import Criterion
from dikkat.regression.factors import local_bandwidth
from dikkat.regression.joined import Array
from dikkat.regression.local import RIDGE, LocalFit, Setting, local_fit, noise_share, ridge_of, without_unseen
from dikkat.regression.moments import LineMoments, Points, Window, moments, parts

_WIDER = 2.0  # the bandwidth of errors over that of values
_ALONE = 1e-5  # least degrees of freedom in a row; with less, the fit has as many numbers as points
_FREE = 0.5  # degrees of freedom below which a quantile says nothing: from 600 standard errors on at 95 %
_GONE = -60.0  # log S_0 below which the ridge has left nothing of a slope


class Band(NamedTuple):
    """The band at n queries.

    Attributes:
        center: (n, v).
        error: (n, v), the standard error; infinite where no noise is left to measure it by.
        freedom: (n, 1), degrees of freedom.
    """

    center: Array
    error: Array
    freedom: Array

    def half(self, level: float) -> Array:
        """Half the width, (n, v), at a level of confidence; infinite without degrees of freedom."""
        quantile = stdtrit(np.maximum(self.freedom, _FREE), (1 + level) / 2)
        return np.where(self.freedom < _FREE, np.inf, quantile * self.error)


class Uncertainty:
    """Deviations and bands of a smoother, in float64."""

    def __init__(self, setting: Setting) -> None:
        self.joined, self.profile, self.degree, bandwidth, self.ridge, self.device, self.factors = setting
        self.bandwidth, self.spread = self._wide(bandwidth), self._wide(self.joined.spread())
        self._sloped = slice(self.joined.numbers)

    def deviation(self, query: Array) -> Array:
        """The deviation of single values from the estimates, (n, v), at queries with rows in reach."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part, 1.0)
            found = moments(part, self._values, window, degree=1)
            found = without_unseen(found, self.joined, part, window.bandwidth)
            ridge = self._ridge(window)
            doubt = _open(found, local_fit(found, ridge), ridge)
            return (self._deviation(part + found.offset * window.bandwidth, doubt),)

        return self._by_parts(query, work)[0]

    def deviation_from(self, query: Array, nearest: Array) -> Array:
        """The deviation at queries with no row in reach, (n, v), which are answered by rows (n, d)."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            own, seen = part.chunk(2, 1)
            window = self._window(own, 1.0)
            far = _unknown(((seen - own) / window.bandwidth)[:, self._sloped], self._ridge(window))
            return (self._deviation(seen, far.square().sum(1, keepdim=True)),)

        return self._by_parts(np.hstack([query, nearest]), work)[0]

    def band(self, query: Array) -> Band:
        """The band at queries with rows in reach."""
        narrow = 2.0 ** (-1 / self.joined.features)

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part, narrow)
            found, squared = (
                without_unseen(
                    moments(part, self._values, replace(window, squared=squared), degree=1),
                    self.joined,
                    part,
                    window.bandwidth,
                    squared,
                )
                for squared in (False, True)
            )
            ridge = self._ridge(window)
            fit = local_fit(found, ridge)
            _, noise, freedom = self._errors(part + found.offset * window.bandwidth)
            share = noise_share(found, squared, ridge)[:, None] + _open(found, fit, ridge)
            return fit.estimate, (noise * share).sqrt(), freedom

        return Band(*self._by_parts(query, work))

    def noise(self, query: Array) -> Array:
        """s², (n, v), about what queries look at; infinite where none is left to measure it by."""

        def work(part: Tensor) -> tuple[Tensor, ...]:
            window = self._window(part, 1.0)
            found = moments(part, self._values, window, degree=1)
            return (self._errors(part + found.offset * window.bandwidth)[1],)

        return self._by_parts(query, work)[0]

    def _deviation(self, place: Tensor, doubt: Tensor) -> Tensor:
        error, noise, _ = self._errors(place)
        return (error + torch.where(doubt > 0, noise * doubt, 0.0)).sqrt()

    def _errors(self, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """τ² (n, v), s² (n, v) and ν (n, 1) at places among the data."""
        window = self._window(place, _WIDER)
        found, squared = (moments(place, self._residuals, replace(window, squared=each)) for each in (False, True))
        values = self.joined.y.shape[1]
        error, noise, share = found.value.split([values, values, 1], 1)
        few = share <= _ALONE
        freedom = (2 * found.lse - squared.lse).exp()[:, None] * share
        return error, torch.where(few, math.inf, noise / share.clamp(min=_ALONE)), freedom

    @cached_property
    def _values(self) -> Points:
        return Points(*(self._wide(each) for each in (self.joined.x, self.joined.y, self.joined.weight)))

    @cached_property
    def _residuals(self) -> Points:
        """With e², (g e)² and the share of noise in the residuals as values."""
        within, weight = (self._wide(each) for each in (self.joined.within, self.joined.weight))
        criterion = Criterion(self.joined, self.profile, self.degree, self.device, self.ridge, factors=self.factors)
        trial = criterion(self.bandwidth.log().cpu().numpy())
        share = trial.kept[:, None]
        kept = 1 - (1 - share) / weight.clamp(min=1)[:, None]  # of W rows at one place all but one vary freely
        values = torch.cat([criterion.loss(trial), (share * trial.left).square() + within, kept], 1)
        return Points(self._values.key, values, self._values.weight)

    def _ridge(self, window: Window) -> Tensor:
        amount = torch.tensor(RIDGE, dtype=torch.float64)
        return ridge_of(amount, self.spread[self._sloped], window.bandwidth[..., self._sloped])

    def _window(self, query: Tensor, part: float) -> Window:
        """So many times as wide as the estimate's."""
        bandwidth = local_bandwidth(self.bandwidth, self.factors, query) * part
        return Window(self.profile, bandwidth)

    def _wide(self, array: Array) -> Tensor:
        return torch.tensor(array, dtype=torch.float64, device=self.device)

    def _by_parts(self, query: Array, work: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Array]:
        """The results of `work` for all queries, made a part at a time to save memory."""
        found = [
            [piece.cpu() for piece in work(self._wide(query[rows]))]
            for rows in parts(len(query), self._values.columns(1))
        ]
        return [torch.cat(pieces).numpy() for pieces in zip(*found, strict=True)]


def _open(found: LineMoments, fit: LocalFit, ridge: Tensor) -> Tensor:
    """b, (n, 1)."""
    slopes = ridge.shape[-1]
    lean = fit.row[:, 1 : 1 + slopes] * (-found.lse[:, None]).clamp(max=-_GONE).exp() * ridge.sqrt()
    gone = (found.lse < _GONE)[:, None]
    return torch.where(gone, _unknown(found.offset[:, :slopes], ridge), lean).square().sum(1, keepdim=True)


def _unknown(offset: Tensor, ridge: Tensor) -> Tensor:
    """The deviation that the ridge leaves open where nothing else is known of the slopes, (n, p)."""
    return torch.where(ridge > 0, offset / ridge.sqrt(), 0.0)
