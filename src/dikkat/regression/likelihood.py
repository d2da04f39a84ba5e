r"""The criteria of a classifier and of a density: the likelihood of each row by a model of the other rows.

**Classes.** Let S be the sum of the kernel's weights at a row i without that row, and $S_c$ the sum over only the rows
of class c. The probability of c is

$$ p_c = \frac{S_c + \alpha\,\pi_c}{S + \alpha} , $$

as if there were α more rows with the class probabilities π. Near many rows α has little influence; far from all rows
the answer is π. For the order "linear" π comes from a plane of log-odds (`dikkat.regression.logistic`), for "constant"
from Laplace's rule of succession over all rows, $(W_c + 1)/(W + C)$ for C classes. The criterion is the mean of
$-\log p$ over the rows' classes, divided by $1 - \nu/(0.8\,W)$. ν is the sum of the shares of rows in their own
estimates: this is the penalty of the regressor's criterion. With folds it is the mean over tested rows without a
penalty, and S, $S_c$ and π come from the learned rows.

**Density.** Let $L = -\frac{1}{W}\sum_i \log f_{-i}(x_i) - \log(1 - \nu/(0.8\,W))$, where $f_{-i}$ is the density by
the other rows, whose logarithm is the log-sum-exp of the attention. Without the penalty a few tail rows that are close
by chance would decide. The criterion is $e^{L/d}$ in units of the features' standard deviations: it is positive, as
the search requires, and has the same minimum. No bandwidth is below half the least gap between two numbers, because
equal rounded numbers show only the rounding. A row with a number more than eight interquartile ranges beyond the
quartiles does not count in the mean: it would widen all bandwidths.

A classifier leaves out copies together, as the regressor does. A density, and a table without numeric columns, leaves
out rows one by one.

Source: Titterington 1980 (categories); Li and Racine 2007, sections 1.3.2 and 4.3 (likelihood cross-validation);
Laplace's rule: Jaynes 2003, chapter 18.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from dikkat.regression.bandwidth import Chosen, minimize_criterion, radius, samples, within_dtype
from dikkat.regression.criterion import MAX_FREEDOM, Criterion, Fold, HeldOut, Trial, with_zeros
from dikkat.regression.joined import Array, Joined, Repeats
from dikkat.regression.local import sensitivity
from dikkat.regression.logistic import plane
from dikkat.regression.moments.launch import Profile

FENCE = 8.0
"""Interquartile ranges beyond the quartiles from which a row has no influence on a density's bandwidth."""


class _Likelihood(Criterion):
    """A criterion of the constant order. It sets `variance`, the scale of errors, to 1."""

    def __init__(self, joined: Joined, ridge: float | None) -> None:
        super().__init__(joined, "gaussian", 0, ridge, freedom_per_row=MAX_FREEDOM)
        self.variance = 1.0

    def _derivatives(self, trial: Trial) -> torch.Tensor:
        """Return the derivatives by log σ of the v estimates and, in the last place, of the lse, (n, d, v + 1)."""
        points, theta = self._with_zeros, torch.cat([trial.theta, -trial.row[..., None]], -1)
        state = self.window(trial.t), trial.lse, trial.row, theta
        change = sensitivity(points.key, points, *state, self.joined.feature_of, exclude=self.row_index, ordered=True)
        return torch.from_numpy(self._finite(change, trial.t, *state, None))

    def _free_share(self, trial: Trial) -> float:
        return 1 - float((1 - trial.residual_share).sum()) / self.max_freedom

    def _left_out_weight(self, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out if self.joined.num_numeric else torch.minimum(weight, torch.ones_like(weight))


class LogLoss(_Likelihood):
    """The mean log-loss of a classifier; y is 1 in the column of a row's class and 0 in other columns.

    `prior` is α; if it is None, the last entry of t is log α. `known` (n,) has π of each row's class, from a
    linear log-odds model that is fitted without that row. If it is None, π follows Laplace's rule.
    """

    ridges = 0.1, 0.25, 1e6

    def __init__(self, joined: Joined, prior: float | None, known: Array | None = None) -> None:
        super().__init__(joined, prior)
        rows = joined.rows()
        labels = classes_of(joined, rows)
        self.row, self.label = (torch.from_numpy(array) for array in (rows.unique, labels))
        weight, out = (torch.tensor(array) for array in (rows.weight, rows.left_out_weight))
        out = self._left_out_weight(weight, out)
        class_weight = torch.zeros(rows.y.shape[1], dtype=torch.float64).index_add_(0, self.label, weight)
        self.row_share, self.copy_weight = weight / self.total, weight - out
        self.rest = self.points.weight[self.row] - out
        if known is None:
            self.prior = (class_weight[self.label] - out + 1) / (self.total - out + len(class_weight))
        else:
            self.prior = torch.tensor(known)
        self.origin = torch.tensor(joined.origin)[self.label]

    def __call__(self, t: Array) -> Trial:
        """Return the trial at t; its error is the penalised log-loss."""
        lse, row, theta = self._fits(t)
        theta = torch.where(torch.isfinite(lse)[:, None, None], theta, 0.0)
        weight, mass = self.points.weight, lse.exp() + self._prior(t)
        share = mass / (mass + weight)
        trial = Trial(t, math.nan, theta[:, 0], theta[:0, 0], lse, row, theta, share)
        numerator, denominator, _ = self._likelihood_terms(trial)
        loss, free = float((self.row_share * (denominator.log() - numerator.log())).sum()), self._free_share(trial)
        return replace(trial, error=loss / free if free > 0 and math.isfinite(loss) else math.inf)

    def left_out(self, t: Array) -> Array:
        """Return the probability of each row's class without the row, (n,), in the order of `Joined.rows`."""
        numerator, denominator, _ = self._likelihood_terms(self(t))
        return np.asarray(numerator / denominator)

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """Return the gradient with respect to t, and Fisher's approximation of the Hessian."""
        # In NumPy: for small tensors PyTorch waits longer for its threads than it computes.
        numerator, denominator, mass = (tensor.numpy() for tensor in self._likelihood_terms(trial))
        change, alpha = self._derivatives(trial).numpy(), self._prior(trial.t)
        row, label, weight, row_share, prior = (
            tensor.numpy() for tensor in (self.row, self.label, self.points.weight, self.row_share, self.prior)
        )
        mass_change = change[row, :, -1] * mass[:, None]  # the derivative of S
        class_change = mass_change * (trial.theta.numpy()[row, 0, label] + self.origin.numpy())[:, None]
        class_change = class_change + mass[:, None] * change[row, :, label]
        by_row = class_change / numerator[:, None] - mass_change / denominator[:, None]
        reach = np.exp(trial.lse.numpy())
        freedom_slope = -change[..., -1] * reach[:, None]
        if self.ridge is None:
            by_row = np.column_stack([by_row, alpha * prior / numerator - alpha / denominator])
            freedom_slope = np.column_stack([freedom_slope, np.full(len(freedom_slope), -alpha)])
        freedom_slope = (weight / (reach + alpha + weight) ** 2) @ freedom_slope
        weighted, free = row_share[:, None] * by_row, self._free_share(trial)
        slope = (-weighted.sum(0) + trial.error * freedom_slope / self.max_freedom) / free
        return slope, weighted.T @ by_row / free

    def _likelihood_terms(self, trial: Trial) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return for each row, left out: S_c + απ_c of its class c, S + α, and the part of S from rows at other x."""
        mass, alpha = trial.lse.exp()[self.row], self._prior(trial.t)
        class_mass = mass * (trial.theta[self.row, 0, self.label] + self.origin)
        return class_mass + self.copy_weight + alpha * self.prior, mass + self.rest + alpha, mass

    def _prior(self, t: Array) -> float:
        return math.exp(t[-1]) if self.ridge is None else self.ridge


class FoldLogLoss(HeldOut):
    """The mean log-loss of tested rows, whose probabilities are those of the learned rows of their fold.

    `prior` is α; if it is None, the last entry of t is log α. π comes from planes through the learned rows if `linear`,
    else from Laplace's rule.
    """

    ridges = LogLoss.ridges

    def __init__(self, joined: Joined, folds: list[Fold], prior: float | None, linear: bool) -> None:
        super().__init__(joined, folds, "gaussian", 0, prior)
        self.variance, self._weight = 1.0, self._share[:, 0].numpy() * joined.y.shape[1]
        self._label, known = [(fold.y + joined.origin).argmax(1) for fold in folds], []
        for fold, label in zip(folds, self._label, strict=True):
            learned, classes = fold.learned, joined.y.shape[1]
            by_rule = (learned.weight @ (learned.y + joined.origin) + 1) / (learned.weight.sum() + classes)
            shares, rows = by_rule[label], learned.rows()
            if linear:
                line = plane(learned.x[rows.unique], classes_of(learned, rows), rows.weight, classes)[0]
                by_plane = line.shares(fold.x)[np.arange(len(label)), label]
                shares = np.where(by_plane > 0, by_plane, shares)  # 0 for a class that is not learned
            known.append(shares)
        self._known = np.concatenate(known)

    def __call__(self, t: Array) -> Trial:
        """Return the trial at t; its error is the log-loss."""
        trial = super().__call__(t)
        numerator, denominator, _, _ = self._terms(trial)
        with np.errstate(divide="ignore"):
            loss = float(self._weight @ (np.log(denominator) - np.log(numerator)))
        return replace(trial, error=loss if math.isfinite(loss) else math.inf)

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """Return the gradient with respect to t, and Fisher's approximation of the Hessian."""
        theta = torch.cat([trial.theta, -trial.row[..., None]], -1)
        change = self._derivatives(trial, theta, list(map(with_zeros, self._points)))
        numerator, denominator, mass, share = self._terms(trial)
        mass_change = change[..., -1] * mass[:, None]
        label = np.concatenate(self._label)
        class_change = mass_change * share[:, None] + mass[:, None] * change[np.arange(len(label)), :, label]
        by_row = class_change / numerator[:, None] - mass_change / denominator[:, None]
        if self.ridge is None:
            alpha = math.exp(trial.t[-1])
            by_row = np.column_stack([by_row, alpha * self._known / numerator - alpha / denominator])
        weighted = self._weight[:, None] * by_row
        return -weighted.sum(0), weighted.T @ by_row

    def tested(self, t: Array) -> Array:
        """Return the mean probability of each row's class from the folds that test it, (n,); NaN for other rows."""
        numerator, denominator, _, _ = self._terms(self(t))
        row, size = np.concatenate([fold.row for fold in self.folds]), len(self.joined.unique_index)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.bincount(row, numerator / denominator, size) / np.bincount(row, minlength=size))

    def _terms(self, trial: Trial) -> tuple[Array, Array, Array, Array]:
        """Return for each tested row: S_c + απ_c of its class c, S + α, S, and S_c/S."""
        alpha = math.exp(trial.t[-1]) if self.ridge is None else self.ridge
        mass, label = trial.lse.exp().numpy(), np.concatenate(self._label)
        share = trial.theta[:, 0].numpy()[np.arange(len(label)), label] + self.joined.origin[label]
        return mass * share + alpha * self._known, mass + alpha, mass, share


def classes_of(joined: Joined, rows: Repeats) -> NDArray[np.intp]:
    """Return the index of each row's class, (n,)."""
    result: NDArray[np.intp] = (rows.y + joined.origin).argmax(1)
    return result


class Density(_Likelihood):
    """The geometric mean over the rows of 1/f, the inverse density, with the penalty, to the power 1/d."""

    narrowest = 0.5

    def __init__(self, joined: Joined) -> None:
        super().__init__(joined, 0.0)
        weight = self.points.weight
        out = weight.clone()
        out[self.unique] = torch.tensor(joined.repeats.left_out_weight, dtype=torch.float64)
        out = self._left_out_weight(weight, out)
        inlying = weight * ~torch.from_numpy(outlying(joined))
        self.rest, self.total_rest, self.row_share = weight - out, self.total - out, inlying / inlying.sum()
        spread = joined.spread()[: joined.num_numeric]
        self.log_unit = float(np.log(spread[spread > 0]).sum())
        self.other_levels = np.bincount(joined.feature_of)[joined.num_numeric :]  # c − 1 for each category

    def __call__(self, t: Array) -> Trial:
        """Return the trial at t."""
        lse, row, theta = self._fits(t)
        numbers, (normal, _) = self.joined.num_numeric, self._categories(t)
        log_density = torch.logaddexp(lse, self.rest.log()) - self.total_rest.log() - float(t[:numbers].sum()) + normal
        loss = -float((self.row_share * log_density).sum()) - self.log_unit
        share = lse.exp() / (lse.exp() + self.points.weight)
        trial = Trial(t, math.inf, theta[:, 0], theta[:0, 0], lse, row, theta, share)
        free = self._free_share(trial)
        if not (math.isfinite(loss) and free > 0):
            return trial
        return replace(trial, error=math.exp(min((loss - math.log(free)) / self.joined.features, 700.0)))

    def gradient(self, trial: Trial) -> tuple[Array, Array]:
        """Return the gradient with respect to t, and Fisher's approximation of the Hessian."""
        mass, numbers, change = trial.lse.exp(), self.joined.num_numeric, self._derivatives(trial)[..., -1]
        by_row = -change * (mass / (mass + self.rest))[:, None].nan_to_num(1.0)
        by_row[:, :numbers] += 1
        by_row[:, numbers:] -= torch.from_numpy(self._categories(trial.t)[1]).to(by_row)
        scale = trial.error / self.joined.features
        weighted = scale * self.row_share[:, None] * by_row
        freed = (trial.residual_share * (1 - trial.residual_share))[:, None] * change
        freedom_slope = freed.sum(0) / (self.max_freedom * self._free_share(trial))
        return (weighted.sum(0) - scale * freedom_slope).numpy(), (weighted.T @ by_row).numpy()

    def _categories(self, t: Array) -> tuple[float, Array]:
        """Return the sum of log(1 − λ) over the categories, by Aitchison and Aitken's kernel, and its slopes."""
        inverse_square = np.exp(-2 * t[self.joined.num_numeric :])
        mass = self.other_levels * np.exp(-inverse_square / 2)
        return -float(np.log1p(mass).sum()), -mass * inverse_square / (1 + mass)


def outlying(joined: Joined) -> NDArray[np.bool_]:
    """Return flags (m,), True for unique rows with a number over `FENCE` interquartile ranges beyond a quartile."""
    x, weight = joined.x[:, : joined.num_numeric].astype(np.float64), joined.weight[:, None]
    low, high = np.quantile(x, [0.25, 0.75], axis=0, weights=np.broadcast_to(weight, x.shape), method="inverted_cdf")
    with np.errstate(over="ignore"):
        fence = np.where(high > low, FENCE * (high - low), np.inf)
        result: NDArray[np.bool_] = ((x < low - fence) | (x > high + fence)).any(1)
    return result


def search_likelihood(
    make: Callable[[Joined], Criterion], joined: Joined, profile: Profile, share: float | None
) -> Chosen:
    """Search for the bandwidths, and α unless it is fixed, with the least criterion.

    `share` scales the samples of rows for the first steps; None for no samples. The search uses the Gaussian.
    Epanechnikov's kernel gets the bandwidths with the same standard deviations.
    """
    sampled = [joined] if share is None else samples(joined, 0, share)
    path = minimize_criterion([make(sample) for sample in sampled])
    size, dtype = joined.features, joined.x.dtype
    scale = radius(profile, joined.num_numeric)
    steps = [(within_dtype(scale * np.exp(step.t[:size]), dtype), step.error) for step in path.steps]
    return Chosen(steps[-1][0], math.exp(path.last.t[-1]) if len(path.last.t) > size else 0.0, steps)
