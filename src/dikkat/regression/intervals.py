r"""Prediction intervals and distributions of new values, from the leave-one-out errors of the training rows.

**Local.** Let $e_i = y_i - \hat y_{-i}(x_i)$, and $\tilde w_i(x)$ the kernel's weights with twice the bandwidth about
the weighted mean of the rows near x, 1 at the middle. A new value is $\hat y(x) + c(x)\, e_i$ with the probability
$\tilde w_i / (1 + \sum_l \tilde w_l)$. Each end gets half of the remaining probability $1 / (1 + \sum_l \tilde w_l)$. A
quantile closer to an end than the whole remaining probability is infinite: there are too few rows. c is 1 among the
data and grows beyond them as the standard deviation does.

**Jackknife+.** The ends are quantiles of $\hat y_{-i}(x) \mp |e_i|$ (`dikkat.regression.jackknife`).

Of more than 10,000 errors a random sample of 10,000 is used, with all rows behind each estimate. The guarantees stay:
exchangeable rows have exchangeable samples.

Beyond the data $|e_i|$ is multiplied by c(x). In "split" errors are divided by c at their rows.

With folds $e_i$ and $\hat y_{-i}$ come from the fit without the fold of row i (CV+). A new row then counts as κ rows
(`dikkat.regression.criterion`). The remaining probability of a local distribution is κ over κ and the weights, but
never so large that an end becomes infinite.

**Split.** A model is fitted to one half of the rows. The errors of the other half give the interval.

If cells are missing, or hold a category that was not in fit, `added_variance` is the variance that they add. Each end
moves outward: the squares of its distance and of that deviation times Student's quantile are added.

Source: Barber, Candès, Ramdas and Tibshirani 2021, Predictive inference with the jackknife+; Lei, G'Sell, Rinaldo,
Tibshirani and Wasserman 2018, section 2.2 (split); Guan 2023, Localized conformal prediction (the weight of 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit

from dikkat.regression.columns import missing, refill_cells, without
from dikkat.regression.jackknife import estimates_without
from dikkat.regression.joined import Array, Repeats
from dikkat.regression.local import parts
from dikkat.regression.validation import check_one_target

MOST_ERRORS = 10_000
"""The largest number of errors behind an interval."""
_SAMPLE = 200  # rows on which the effect of missing cells is measured, at most
_FREEDOM = 5  # Student's degrees of freedom for a variance among few categories

Method = Literal["jackknife+", "local", "split"]


def interval(
    model: Any, x: Array, coverage: float, method: Method, random_state: object = 0, weight: Array | None = None
) -> tuple[Array, Array]:
    """Return the lower and upper ends, (n,) each, at queries x (as in `X_train_`), for values of precision `weight`."""
    if method == "split":
        return widen(model, x, coverage, *_split(model, x, coverage, random_state, weight))
    if method == "local":
        outside = (1 - coverage) / 2
        return tuple(quantiles(model, x, np.array([outside, 1 - outside]), weight).T)
    rows, errors = left_out_errors(model)
    lower, upper = np.full((2, len(x)), np.inf) * [[-1], [1]]
    if rows.left_out_count.sum() > 1:
        growth, new_weight = growth_at(model, x, weight), model._smoother.design_effect
        chosen = _sampled(errors)
        weights = rows.weight[chosen]
        for chunk, centers in _estimates_without(model, rows, x, chosen):
            distances = _scale_errors(growth[chunk], np.abs(errors[chosen]))
            upper[chunk] = _quantile(centers + distances, weights, coverage, new_weight)
            lower[chunk] = -_quantile(distances - centers, weights, coverage, new_weight)
    return widen(model, x, coverage, lower, upper)


def added_variance(model: Any, x: Array) -> Array:
    """Return the variance, (n, v), that unseen categories and missing cells of rows x add.

    For missing cells it is the mean squared change of training rows' estimates without the same cells, times the share
    of training rows that have them. The others lack them too, so their errors already contain the effect.
    """
    result: Array = model._smoother.unseen(model._coordinates(x))
    if model.missing_ != "indicator":
        return result
    rows, added = model._rows, model._smoother.added
    query_missing, train_missing = (missing(cells, model.columns_) for cells in (x, rows.x))
    for columns in np.unique(query_missing[query_missing.any(1)], axis=0):
        if (pattern := columns.tobytes()) not in added:
            has_cells = ~train_missing[:, columns].all(1) & (rows.weight > 0)
            sample = np.flatnonzero(has_cells)
            sample = sample[np.linspace(0, len(sample) - 1, min(len(sample), _SAMPLE)).astype(int)]
            if not len(sample):
                continue
            x_sample, weight = rows.x[sample], rows.weight[sample]
            change = np.asarray(model._estimate(x_sample)) - model._estimate(without(x_sample, columns, model.columns_))
            square = np.average(change.reshape(len(change), -1) ** 2, axis=0, weights=weight)
            added[pattern] = square * np.average(has_cells, weights=rows.weight)
        result[(query_missing == columns).all(1)] += added[pattern]
    return result


def widen(model: Any, x: Array, coverage: float, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Return the ends, moved outward by `added_variance` and then clipped to the support."""
    added = stdtrit(_FREEDOM, (1 + coverage) / 2) * np.sqrt(added_variance(model, x)[:, 0])
    widened = (added > 0) & np.isfinite(upper - lower)
    if widened.any():
        middle, half = (lower[widened] + upper[widened]) / 2, np.hypot((upper - lower)[widened] / 2, added[widened])
        lower[widened], upper[widened] = middle - half, middle + half
    return clip(model, lower), clip(model, upper)


def clip(model: Any, answer: Array) -> Array:
    """Return values of y, clipped to the model's support."""
    return answer if model.support_ is None else np.clip(answer, *model.support_)


def quantiles(model: Any, x: Array, q: Array, weight: Array | None = None) -> Array:
    """Return the quantiles q (k,) of a new value at queries in the form of `X_train_`, (n, k)."""
    result, added = np.empty((len(x), len(q))), np.sqrt(added_variance(model, x)[:, 0])
    for chunk, mean, growth, errors, share in _distribution(model, x, weight):
        order, kappa = np.argsort(errors, kind="stable"), model._smoother.design_effect
        below = np.cumsum(share[:, order], 1)
        rest = 1 - below[:, -1]
        for k, level in enumerate(q):
            tail = min(level, 1 - level)
            end_share = np.where(tail < rest, rest, np.minimum(kappa * rest / (1 + (kappa - 1) * rest), tail))  # by κ
            cumulative = below * ((1 - end_share) / (1 - rest))[:, None] + end_share[:, None] / 2
            index = (cumulative < level - 1e-12).sum(1).clip(max=len(errors) - 1)
            error = np.where(tail < rest - 1e-12, np.copysign(np.inf, level - 0.5), errors[order][index])
            with np.errstate(invalid="ignore"):
                shift = np.where(np.isinf(growth), np.copysign(np.inf, level - 0.5), growth * error)
            student = stdtrit(_FREEDOM, level) * added[chunk]
            extra = np.hypot(shift, student) - np.where(np.isfinite(shift), abs(shift), 0)  # shift may be infinite
            result[chunk, k] = mean + shift + np.where(student == 0, 0, np.copysign(extra, student))
    return clip(model, result)


def sample(model: Any, x: Array, count: int, random: np.random.RandomState) -> Array:
    """Draw `count` random target values for each query x (n, d), in the form of `X_train_`; return (n, count)."""
    if left_out_errors(model)[0].left_out_count.sum() < 2:
        raise ValueError("X: got one row in fit; expected at least two, because new values are drawn from their errors")
    result = np.empty((len(x), count))
    for chunk, mean, growth, errors, share in _distribution(model, x):
        cumulative = np.cumsum(share, 1)
        draws = random.uniform(size=(len(share), count)) * cumulative[:, -1:]
        chosen = np.array([np.searchsorted(*row, side="right") for row in zip(cumulative, draws, strict=True)])
        result[chunk] = mean[:, None] + _scale_errors(growth, errors[chosen.clip(max=len(errors) - 1)])
    if (added := np.sqrt(added_variance(model, x))).any():
        result += added * random.standard_t(_FREEDOM, size=result.shape)
    return clip(model, result)


def growth_at(model: Any, x: Array, weight: Array | None) -> Array:
    """Return c (n,): the deviation of new values of precision `weight` over that of rows of the mean precision."""
    growth: Array = model._deviations(x)[1]
    return growth if weight is None else np.sqrt(growth**2 - 1 + model._rows.unit_weight / weight)


def _distribution(
    model: Any, x: Array, weight: Array | None = None
) -> Iterator[tuple[slice, Array, Array, Array, Array]]:
    """Yield for some queries at a time: ŷ (n,), c (n,), the errors (m,) and their probabilities (n, m)."""
    rows, errors = left_out_errors(model)
    smoother = model._smoother
    mean, growth = np.asarray(model._estimate(x), np.float64).ravel(), growth_at(model, x, weight)
    if rows.left_out_count.sum() == 1:
        errors = np.full(1, np.inf)
    chosen = _sampled(errors)
    rows, errors = rows.take(chosen), errors[chosen]
    unique, index = np.unique(rows.unique, return_inverse=True)
    count = np.bincount(index, rows.weight).astype(np.float64)
    weight_share = rows.weight / count[index]
    for chunk, share in smoother.errors_near(model._coordinates(x), unique, count):
        yield chunk, mean[chunk], growth[chunk], errors, share[:, index] * weight_share


def left_out_errors(model: Any) -> tuple[Repeats, Array]:
    """Return the rows left out in turn, and their errors (m,); with `weights="precision"` as at the mean precision."""
    check_one_target(model)
    if (tested := model._smoother.tested) is not None:
        rows, errors = tested.rows, tested.errors[:, 0]
    else:
        rows, (_, trial) = model._smoother.joined.rows(), model._smoother.left_out
        single_rows = rows.unique[: len(rows.unique) - len(trial.repeat_errors)]
        errors = -torch.cat([trial.errors[single_rows], trial.repeat_errors])[:, 0].numpy()
    if model._smoother.joined.precise:
        return rows._replace(weight=np.ones(len(errors))), errors * np.sqrt(rows.weight)
    return rows, errors


def _estimates_without(model: Any, rows: Repeats, x: Array, chosen: NDArray[np.intp]) -> Iterator[tuple[slice, Array]]:
    """Yield for some queries at a time the estimates without each of the `chosen` rows, (n, m)."""
    smoother, query = model._smoother, model._coordinates(x)
    if smoother.tested is None:
        yield from estimates_without(model, rows.take(chosen), x)
        return
    for chunk in parts(len(query), len(rows.unique)):
        yield chunk, smoother.tested.without(query[chunk])[:, chosen] + smoother.joined.origin[0]


def _sampled(errors: Array) -> NDArray[np.intp]:
    """Return the indices of at most `MOST_ERRORS` errors, at random."""
    count = len(errors)
    return np.sort(np.random.default_rng(0).choice(count, min(count, MOST_ERRORS), replace=False))


def _scale_errors(growth: Array, errors: Array) -> Array:
    """Return the errors (m,) times the growth (n,), (n, m); infinite for an infinite growth."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(growth)[:, None], np.copysign(np.inf, errors), growth[:, None] * errors)


def _quantile(values: Array, weight: Array, level: float, new_weight: float = 1.0) -> Array:
    """Return the `level` quantile, (n,), of weighted values (n, m) and one more of weight `new_weight` at ∞."""
    needed = level * (weight.sum() + new_weight) - 1e-9
    if (weight == weight[:1]).all():
        index = int((np.cumsum(weight) < needed).sum())
        return np.asarray(
            np.partition(values, index, 1)[:, index] if index < len(weight) else np.full(len(values), np.inf)
        )
    order = np.argsort(values, 1)
    index = (np.cumsum(weight[order], 1) < needed).sum(1)
    ends = np.hstack([np.take_along_axis(values, order, 1), np.full((len(values), 1), np.inf)])
    return np.asarray(ends[np.arange(len(values)), index])


def _split(model: Any, x: Array, coverage: float, random_state: object, weight: Array | None) -> tuple[Array, Array]:
    if model.folds_ is not None:
        raise ValueError("method: got 'split', which draws random halves, with cv; expected 'jackknife+' or 'local'")
    left_out_errors(model)
    rows = model._rows
    fold = model._smoother.joined.folds(2, random_state)
    if fold.max() < 1:
        return np.full(len(x), -np.inf), np.full(len(x), np.inf)
    learned, tested = (rows.take(np.flatnonzero(fold == half_index)) for half_index in (0, 1))
    half_model = model._refit(learned)
    tested = tested._replace(x=refill_cells(tested.x, half_model.columns_)[0])
    x = refill_cells(x, half_model.columns_)[0]
    precise, tested_weight = rows.weights == "precision", tested.weight.astype(np.float64)
    growth = growth_at(half_model, tested.x, tested_weight if precise else None)
    valid = np.isfinite(growth)  # with an infinite growth an error's size is meaningless
    errors = (np.abs(tested.y.ravel() - np.asarray(half_model._estimate(tested.x)).ravel()) / growth)[valid]
    if precise:
        tested_weight = np.ones_like(tested_weight)
        weight = np.full(len(x), rows.unit_weight) if weight is None else weight
    center = np.asarray(half_model._estimate(x), np.float64).ravel()
    reach = _scale_errors(growth_at(half_model, x, weight), _quantile(errors[None], tested_weight[valid], coverage))[
        :, 0
    ]
    return center - reach, center + reach
