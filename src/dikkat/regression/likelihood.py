r"""The criteria of a classifier and of a density: how likely each row is, by the others.

**Classes.** With S the sum of the kernel's weights at a row i, without it, and $S_c$ that over the rows of the class c,
the probability of c is

$$ p_c = \frac{S_c + \alpha\,\pi_c}{S + \alpha} , $$

as if α more rows were there whose classes are as π says. Near many rows α counts for little, far from all of them
nothing else does. Of the order "linear" π is what a plane of log-odds says (`dikkat.regression.logistic`), of
"constant" Laplace's rule of succession over all rows, $(W_c + 1)/(W + C)$ for C classes. The criterion is the mean of
$-\log p$ of the rows' own classes over $1 - \nu/(0.8\,W)$, where ν is the sum of the shares that rows have in their
own answers: the penalty of the regressor's criterion.

**Density.** The criterion is $L = -\frac{1}{W}\sum_i \log f_{-i}(x_i) - \log(1 - \nu/(0.8\,W))$, with f the density by
the other rows, the log-sum-exp of the attention, and the same penalty, without which a few rows at the ends of a tail,
each near another by chance, decide. What counts is $e^{L/d}$ in units of the features' standard deviations: a number
that is positive, as the search wants it, and least at the same place. Of numbers that were rounded no bandwidth is
below half of the least gap between two of them, since what lies in one place says only that they were rounded. A row
that has a number farther beyond the quartiles than eight times their distance has no part in the mean: alone, it would
be the likelier the wider all bandwidths are.

Of classes copies are left out together, as by the regressor; of a density, and where no column is a number, rows are
left out one by one.

Source: Titterington 1980 (categories); Li and Racine 2007, sections 1.3.2 and 4.3 (likelihood cross-validation);
Laplace's rule: Jaynes 2003, chapter 18.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from dikkat.regression.bandwidth import Chosen, least, radius, samples, within_dtype
from dikkat.regression.criterion import MOST, Criterion, Trial
from dikkat.regression.joined import Array, Joined, Repeats
from dikkat.regression.local import sensitivity
from dikkat.regression.moments.launch import Profile

FENCE = 8.0
"""Distances of the quartiles beyond them, from which a row has no say in a density's bandwidth."""


class _Likelihood(Criterion):
    """A criterion of the constant order, in whose unit 1 is large."""

    def __init__(self, joined: Joined, ridge: float | None, most: float = math.inf) -> None:
        super().__init__(joined, "gaussian", 0, ridge, most=most)
        self.variance = 1.0

    def _changes(self, trial: Trial) -> torch.Tensor:
        """(n, d, v + 1): how the estimates, and behind them the lse, change with log σ."""
        points, theta = self._with_zeros, torch.cat([trial.theta, -trial.row[..., None]], -1)
        own = self.window(trial.t), trial.lse, trial.row, theta
        change = sensitivity(points.key, points, *own, exclude=self.itself, ordered=True)
        return torch.from_numpy(self._finite(change, trial.t, *own, None))

    def _free(self, trial: Trial) -> float:
        return 1 - float((1 - trial.kept).sum()) / self.most

    def _left_out(self, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """How much of the weight of each row is left out at a time."""
        return out if self.joined.numbers else torch.minimum(weight, torch.ones_like(weight))


class LogLoss(_Likelihood):
    """The mean log-loss of the rows' classes, whose values are 1 for the own class.

    With `prior` None the last of t is log α. `known` are the π of rows' own classes without them, by a plane.
    """

    ridges = 0.1, 0.25, 1e6

    def __init__(self, joined: Joined, prior: float | None, known: Array | None = None) -> None:
        super().__init__(joined, prior, MOST)
        rows = joined.rows()
        labels = classes_of(joined, rows)
        self.row, self.label = (torch.from_numpy(each) for each in (rows.unique, labels))
        weight, out = (torch.tensor(each) for each in (rows.weight, rows.out))
        out = self._left_out(weight, out)
        every = torch.zeros(rows.y.shape[1], dtype=torch.float64).index_add_(0, self.label, weight)
        self.part, self.of_class = weight / self.total, weight - out
        self.here = self.points.weight[self.row] - out
        if known is None:
            self.prior = (every[self.label] - out + 1) / (self.total - out + len(every))
        else:
            self.prior = torch.tensor(known)
        self.origin = torch.tensor(joined.origin)[self.label]

    def __call__(self, t: Array) -> Trial:
        """The penalised log-loss at one t."""
        lse, row, theta = self._fits(t)
        theta = torch.where(torch.isfinite(lse)[:, None, None], theta, 0.0)
        weight, own = self.points.weight, lse.exp() + self._prior(t)
        kept = own / (own + weight)
        trial = Trial(t, math.nan, theta[:, 0], theta[:0, 0], lse, row, theta, kept)
        above, below, _ = self._parts(trial)
        loss, free = float((self.part * (below.log() - above.log())).sum()), self._free(trial)
        return replace(trial, error=loss / free if free > 0 and math.isfinite(loss) else math.inf)

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """The slope with respect to t, and Fisher's guess at its second derivatives, a matrix."""
        # In NumPy: small operations of PyTorch's that take several threads wait for them longer than they work.
        above, below, mass = (each.numpy() for each in self._parts(trial))
        change, alpha = self._changes(trial).numpy(), self._prior(trial.t)
        row, label, weight, part, prior = (
            each.numpy() for each in (self.row, self.label, self.points.weight, self.part, self.prior)
        )
        moved = change[row, :, -1] * mass[:, None]  # of S
        of_class = moved * (trial.theta.numpy()[row, 0, label] + self.origin.numpy())[:, None]
        of_class = of_class + mass[:, None] * change[row, :, label]
        by_row = of_class / above[:, None] - moved / below[:, None]
        reach = np.exp(trial.lse.numpy())
        fewer = -change[..., -1] * reach[:, None]
        if self.ridge is None:
            by_row = np.column_stack([by_row, alpha * prior / above - alpha / below])
            fewer = np.column_stack([fewer, np.full(len(fewer), -alpha)])
        fewer = (weight / (reach + alpha + weight) ** 2) @ fewer
        weighted, free = part[:, None] * by_row, self._free(trial)
        slope = (-weighted.sum(0) + trial.error * fewer / self.most) / free
        return slope, weighted.T @ by_row / free

    def _parts(self, trial: Trial) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """S_c + απ_c and S + α of each row's own class c without the row; and S without its place."""
        mass, alpha = trial.lse.exp()[self.row], self._prior(trial.t)
        of_class = mass * (trial.theta[self.row, 0, self.label] + self.origin)
        return of_class + self.of_class + alpha * self.prior, mass + self.here + alpha, mass

    def _prior(self, t: Array) -> float:
        """α."""
        return math.exp(t[-1]) if self.ridge is None else self.ridge


def classes_of(joined: Joined, rows: Repeats) -> NDArray[np.intp]:
    """The class of each row of a classifier's."""
    result: NDArray[np.intp] = (rows.y + joined.origin).argmax(1)
    return result


class Density(_Likelihood):
    """The geometric mean of 1/f over the rows, with the penalty, to the power of 1/d."""

    narrowest = 0.5

    def __init__(self, joined: Joined) -> None:
        super().__init__(joined, 0.0, MOST)
        weight = self.points.weight
        out = weight.clone()
        out[self.unique] = torch.tensor(joined.repeats.out, dtype=torch.float64)
        out = self._left_out(weight, out)
        known = weight * ~torch.from_numpy(outlying(joined))
        self.here, self.rest, self.part = weight - out, self.total - out, known / known.sum()
        spread = joined.spread()[: joined.numbers]
        self.unit = float(np.log(spread[spread > 0]).sum())
        self.other = np.bincount(joined.feature)[joined.numbers :]  # c − 1 of each category

    def __call__(self, t: Array) -> Trial:
        """The criterion at one t."""
        lse, row, theta = self._fits(t)
        numbers, (normal, _) = self.joined.numbers, self._categories(t)
        log_density = torch.logaddexp(lse, self.here.log()) - self.rest.log() - float(t[:numbers].sum()) + normal
        loss = -float((self.part * log_density).sum()) - self.unit
        kept = lse.exp() / (lse.exp() + self.points.weight)
        trial = Trial(t, math.inf, theta[:, 0], theta[:0, 0], lse, row, theta, kept)
        free = self._free(trial)
        if not (math.isfinite(loss) and free > 0):
            return trial
        return replace(trial, error=math.exp(min((loss - math.log(free)) / self.joined.features, 700.0)))

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """The slope with respect to t, and Fisher's guess at its second derivatives, a matrix."""
        mass, numbers, change = trial.lse.exp(), self.joined.numbers, self._changes(trial)[..., -1]
        by_row = -change * (mass / (mass + self.here))[:, None].nan_to_num(1.0)
        by_row[:, :numbers] += 1
        by_row[:, numbers:] -= torch.from_numpy(self._categories(trial.t)[1]).to(by_row)
        scale = trial.error / self.joined.features
        weighted = scale * self.part[:, None] * by_row
        freer = ((trial.kept * (1 - trial.kept))[:, None] * change).sum(0) / (self.most * self._free(trial))
        return (weighted.sum(0) - scale * freer).numpy(), (weighted.T @ by_row).numpy()

    def _categories(self, t: Array) -> tuple[float, Array]:
        """The logarithms of Aitchison and Aitken's 1 − λ, summed up, and their slopes."""
        by = np.exp(-2 * t[self.joined.numbers :])
        other = self.other * np.exp(-by / 2)
        return -float(np.log1p(other).sum()), -other * by / (1 + other)


def outlying(joined: Joined) -> NDArray[np.bool_]:
    """True for unique rows (m,) that have a number far beyond the quartiles, in units of their distance."""
    x, weight = joined.x[:, : joined.numbers].astype(np.float64), joined.weight[:, None]
    low, high = np.quantile(x, [0.25, 0.75], axis=0, weights=np.broadcast_to(weight, x.shape), method="inverted_cdf")
    with np.errstate(over="ignore"):
        fence = np.where(high > low, FENCE * (high - low), np.inf)
        result: NDArray[np.bool_] = ((x < low - fence) | (x > high + fence)).any(1)
    return result


def found(make: Callable[[Joined], Criterion], joined: Joined, profile: Profile, share: float) -> Chosen:
    """The bandwidths, and perhaps α, with the least criterion.

    They are those of the Gaussian; Epanechnikov's kernel gets the ones with which its standard deviations are the same.
    """
    path = least([make(each) for each in samples(joined, 0, share)])
    size, dtype = joined.features, joined.x.dtype
    wider = radius(profile, joined.numbers)
    steps = [(within_dtype(wider * np.exp(each.t[:size]), dtype), each.error) for each in path.steps]
    return Chosen(steps[-1][0], math.exp(path.last.t[-1]) if len(path.last.t) > size else 0.0, steps)
