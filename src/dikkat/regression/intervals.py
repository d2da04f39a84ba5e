r"""The distribution of a new value at a query, from the errors with which training rows are predicted from the others.

**Local.** With $e_i = y_i - \hat y_{-i}(x_i)$ and $\tilde w_i(x)$ the kernel's weights, 1 at the middle, at twice the
bandwidth about the mean point that x looks at, a new value is $\hat y(x) + c(x)\, e_i$ with the probability
$\tilde w_i / (1 + \sum_l \tilde w_l)$. Each end gets half of the remaining probability $1 / (1 + \sum_l \tilde w_l)$. A
quantile closer to an end than all of the remaining probability is infinite: there are too few rows. c is 1 among the
data. Beyond them it grows as the standard deviation does.

**Jackknife+.** The ends are quantiles of $\hat y_{-i}(x) \mp |e_i|$. No model is fitted again: with $z_i$, θ and M as
in `dikkat.regression.effects` and $u = M^{-1} e_1$,

$$ \hat y_{-i}(x) = \hat y(x) - \frac{w_i\, u^\top z_i\, (y_i - z_i^\top\theta)}{1 - w_i\, z_i^\top M^{-1} z_i} . $$

Without row i the plane to which lines are drawn changes too. That change is added.

Beyond the data $|e_i|$ is multiplied by c(x). In "split" errors are divided by c at their rows.

With folds $e_i$ and $\hat y_{-i}$ come from the fit without the fold of row i (CV+). A new row then counts as κ rows
(`dikkat.regression.criterion`). The remaining probability of a local distribution is κ over κ and the weights, but
never so large that an end becomes infinite.

**Split.** A model is fitted to one half of the rows. The errors of the other half give the interval.

If cells are missing, or hold a category that was not there in fit, `unknown` is the variance of what they could have
said. Each end moves outward: its distance becomes the root of the squares of the old one and of Student's quantile.

Source: Barber, Candès, Ramdas and Tibshirani 2021, Predictive inference with the jackknife+; Lei, G'Sell, Rinaldo,
Tibshirani and Wasserman 2018, section 2.2 (split); Guan 2023, Localized conformal prediction (the weight of 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import stdtrit

from dikkat.regression.columns import missing, refilled, without
from dikkat.regression.effects import Local, locals_at
from dikkat.regression.joined import Array, Repeats
from dikkat.regression.local import parts

_ROWS = 200  # rows from which the effect of a missing cell is measured
_UNSEEN = 5  # degrees of freedom of a variance among a few categories

Method = Literal["jackknife+", "local", "split"]


def interval(
    model: Any, x: Array, coverage: float, method: Method, random_state: object = 0, weight: Array | None = None
) -> tuple[Array, Array]:
    """The ends, (n,) each, at rows x like `X_train_`, of new values of these precisions."""
    if method == "split":
        return _with_unknown(model, x, coverage, *_split(model, x, coverage, random_state, weight))
    if method == "local":
        outside = (1 - coverage) / 2
        return tuple(quantiles(model, x, np.array([outside, 1 - outside]), weight).T)
    rows, errors = left_out_errors(model)
    lower, upper = np.full((2, len(x)), np.inf) * [[-1], [1]]
    if rows.times.sum() > 1:
        growth, more = _growth(model, x, weight), model._smoother.design_effect
        for part, centers in _left_out(model, rows, x):
            off = _grown(growth[part], np.abs(errors))
            upper[part] = _quantile(centers + off, rows.weight, coverage, more)
            lower[part] = -_quantile(off - centers, rows.weight, coverage, more)
    return _with_unknown(model, x, coverage, lower, upper)


def unknown(model: Any, x: Array) -> Array:
    """Return the variance, (n, v), from categories that were not there in fit and from missing cells of rows x.

    For missing cells it is the mean square of the change in the estimates of training rows if the same cells are
    removed from them, times the share of rows that have these cells. The errors of the other rows contain it already.
    """
    result: Array = model._smoother.unseen(model._coordinates(x))
    if model.missing != "indicator":
        return result
    rows, added = model._rows, model._smoother.added
    lost, lacking = (missing(each, model.columns_) for each in (x, rows.x))
    for which in np.unique(lost[lost.any(1)], axis=0):
        if (key := which.tobytes()) not in added:
            known = ~lacking[:, which].all(1) & (rows.weight > 0)
            some = np.flatnonzero(known)
            some = some[np.linspace(0, len(some) - 1, min(len(some), _ROWS)).astype(int)]
            if not len(some):
                continue
            there, weight = rows.x[some], rows.weight[some]
            apart = np.asarray(model._answer(there)) - model._answer(without(there, which, model.columns_))
            square = np.average(apart.reshape(len(apart), -1) ** 2, axis=0, weights=weight)
            added[key] = square * np.average(known, weights=rows.weight)
        result[(lost == which).all(1)] += added[key]
    return result


def _with_unknown(model: Any, x: Array, coverage: float, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Ends that count what is not known of the cells."""
    added = stdtrit(_UNSEEN, (1 + coverage) / 2) * np.sqrt(unknown(model, x)[:, 0])
    wider = (added > 0) & np.isfinite(upper - lower)
    if wider.any():
        middle, half = (lower + upper)[wider] / 2, np.hypot((upper - lower)[wider] / 2, added[wider])
        lower[wider], upper[wider] = middle - half, middle + half
    return lower, upper


def quantiles(model: Any, x: Array, q: Array, weight: Array | None = None) -> Array:
    """The quantiles q (k,) of a new value, (n, k), at rows like `X_train_`."""
    result, added = np.empty((len(x), len(q))), np.sqrt(unknown(model, x)[:, 0])
    for part, mean, growth, errors, share in _distribution(model, x, weight):
        order, alike = np.argsort(errors, kind="stable"), model._smoother.design_effect
        below = np.cumsum(share[:, order], 1)
        rest = 1 - below[:, -1]
        for k, level in enumerate(q):
            tail = min(level, 1 - level)
            left = np.where(tail < rest, rest, np.minimum(alike * rest / (1 + (alike - 1) * rest), tail))  # by κ
            reached = below * ((1 - left) / (1 - rest))[:, None] + left[:, None] / 2
            index = (reached < level - 1e-12).sum(1).clip(max=len(errors) - 1)
            error = np.where(tail < rest - 1e-12, np.copysign(np.inf, level - 0.5), errors[order][index])
            with np.errstate(invalid="ignore"):
                known = np.where(np.isinf(growth), np.copysign(np.inf, level - 0.5), growth * error)
            more = stdtrit(_UNSEEN, level) * added[part]
            wider = np.hypot(known, more) - np.where(np.isfinite(known), abs(known), 0)  # which may be infinite
            result[part, k] = mean + known + np.where(more == 0, 0, np.copysign(wider, more))
    return result


def sample(model: Any, x: Array, count: int, random: np.random.RandomState) -> Array:
    """So many new values at each of rows like `X_train_`, (n, count)."""
    if left_out_errors(model)[0].times.sum() < 2:
        raise ValueError("X: got one row in fit; expected at least two, from whose errors new values are drawn")
    result = np.empty((len(x), count))
    for part, mean, growth, errors, share in _distribution(model, x):
        reached = np.cumsum(share, 1)
        shrinks = random.uniform(size=(len(share), count)) * reached[:, -1:]
        chosen = np.array([np.searchsorted(*each, side="right") for each in zip(reached, shrinks, strict=True)])
        result[part] = mean[:, None] + _grown(growth, errors[chosen.clip(max=len(errors) - 1)])
    if (added := np.sqrt(unknown(model, x))).any():
        result += added * random.standard_t(_UNSEEN, size=result.shape)
    return result


def _growth(model: Any, x: Array, weight: Array | None) -> Array:
    """c (n,): the deviation of new values, of precisions (n,) or of the mean one, over that of rows of the latter."""
    growth: Array = model._deviations(x)[1]
    return growth if weight is None else np.sqrt(growth**2 - 1 + model._rows.unit / weight)


def _distribution(
    model: Any, x: Array, weight: Array | None = None
) -> Iterator[tuple[slice, Array, Array, Array, Array]]:
    """Some queries at a time: ŷ (n,) and c (n,), the errors (m,) and their probabilities (n, m)."""
    rows, errors = left_out_errors(model)
    smoother = model._smoother
    mean, growth = np.asarray(model._answer(x), np.float64).ravel(), _growth(model, x, weight)
    if rows.times.sum() == 1:
        errors = np.full(1, np.inf)
    count = np.bincount(rows.unique, rows.weight, len(smoother.joined.x)).astype(np.float64)
    own = rows.weight / count[rows.unique]
    for part, share in smoother.errors_near(model._coordinates(x), count):
        yield part, mean[part], growth[part], errors, share[:, rows.unique] * own


def left_out_errors(model: Any) -> tuple[Repeats, Array]:
    """The rows that are left out one by one, and their errors (m,); of precisions as those of rows of the mean one."""
    if model.n_outputs_ > 1:
        raise ValueError(f"y: got {model.n_outputs_} targets in fit; expected one, since each has its own distribution")
    if (tested := model._smoother.tested) is not None:
        rows, errors = tested.rows, tested.errors[:, 0]
    else:
        rows, (_, trial) = model._smoother.joined.rows(), model._smoother.left_out
        alone = rows.unique[: len(rows.unique) - len(trial.repeat_errors)]
        errors = -torch.cat([trial.errors[alone], trial.repeat_errors])[:, 0].numpy()
    if model._smoother.joined.precise:
        return rows._replace(weight=np.ones(len(errors))), errors * np.sqrt(rows.weight)
    return rows, errors


def _left_out(model: Any, rows: Repeats, x: Array) -> Iterator[tuple[slice, Array]]:
    """Some queries at a time: the estimates without each of the rows, (n, m)."""
    smoother, joined, query = model._smoother, model._smoother.joined, model._coordinates(x)
    if smoother.tested is not None:
        for part in parts(len(query), len(rows.unique)):
            yield part, smoother.tested.without(query[part]) + joined.origin[0]
        return
    part_of, y = rows.out / joined.weight[rows.unique], rows.y[:, 0]
    rest = joined.weight.sum() - rows.out
    others = (joined.weight @ joined.y[:, 0] - rows.out * y) / np.where(rest > 0, rest, 1)
    answer = np.asarray(model._answer(x), np.float64).ravel()
    for part, local in locals_at(smoother, query):
        design, inverse, theta, share = (each.numpy() for each in _solved(local))
        design, share = design[:, rows.unique], share[:, rows.unique] * part_of
        across = design.transpose(0, 2, 1)
        row = inverse @ across
        left = y - (theta[:, None] @ across)[:, 0]
        kept = 1 - share * (row * across).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            without = theta[:, :1] - share * row[:, 0] * left / kept
            if smoother.shrinks:  # to the plane without the row
                plane = smoother.trend.without[rows.unique, :, 0] - smoother.trend.slope[:, 0]
                turned = (local.bandwidth / smoother.trend.spread)[:, :, None].numpy() * plane.numpy().T
                # With M = A + H, M⁻¹ H = 1 − M⁻¹ A: the ridge H may be 10³⁰, where rounding of M⁻¹ would tell.
                moments = (local.design.mT * local.share[:, None]) @ local.design
                held = (across - moments.numpy() @ row)[:, 1:]
                without -= ((inverse @ moments.numpy())[:, 0, 1:, None] * turned).sum(1)
                without += share * row[:, 0] / kept * (held * turned).sum(1)
        if (alone := kept <= 1e-9).any():  # a row with all of the weight there is left out as a search does
            which, row_of = np.nonzero(alone)
            without[alone] = smoother.without(query[part][which], rows.unique[row_of], others[row_of])
        result = without + joined.origin[0]
        yield part, np.where(local.reached.numpy()[:, None], result, answer[part, None])


def _solved(local: Local) -> tuple[torch.Tensor, ...]:
    """z (n, m, k), M⁻¹ (n, k, k), θ (n, k) and w (n, m)."""
    target = local.target[..., 0]
    rest = local.value[:, 0] - (local.delta @ target[..., None])[..., 0]
    theta = (local.inverse @ (local.design.mT @ (local.share * rest)[..., None]))[..., 0]
    theta[:, 1:] += target[:, : theta.shape[1] - 1]
    return local.design, local.inverse, theta, local.share


def _grown(growth: Array, errors: Array) -> Array:
    """Errors (m,) times the growth at queries (n,), (n, m); infinite if nothing tells how far off a query is."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(growth)[:, None], np.copysign(np.inf, errors), growth[:, None] * errors)


def _quantile(values: Array, weight: Array, level: float, more: float = 1.0) -> Array:
    """(n,): of values (n, m) the one that a share `level` of the weights and `more` is not above; else ∞."""
    enough = level * (weight.sum() + more) - 1e-9
    if (weight == weight[:1]).all():
        index = int((np.cumsum(weight) < enough).sum())
        return np.asarray(
            np.partition(values, index, 1)[:, index] if index < len(weight) else np.full(len(values), np.inf)
        )
    order = np.argsort(values, 1)
    index = (np.cumsum(weight[order], 1) < enough).sum(1)
    ends = np.hstack([np.take_along_axis(values, order, 1), np.full((len(values), 1), np.inf)])
    return np.asarray(ends[np.arange(len(values)), index])


def _split(model: Any, x: Array, coverage: float, random_state: object, weight: Array | None) -> tuple[Array, Array]:
    if model.folds_ is not None:
        raise ValueError(
            "method: got 'split', whose halves are drawn at random, with cv; expected 'jackknife+' or 'local'"
        )
    left_out_errors(model)
    rows = model._rows
    fold = model._smoother.joined.folds(2, random_state)
    if fold.max() < 1:
        return np.full(len(x), -np.inf), np.full(len(x), np.inf)
    learned, held = (rows.take(np.flatnonzero(fold == each)) for each in (0, 1))
    half = model._anew(learned)
    held = held._replace(x=refilled(held.x, half.columns_)[0])
    x = refilled(x, half.columns_)[0]
    precise, own = rows.weights == "precision", held.weight.astype(np.float64)
    growth = _growth(half, held.x, own if precise else None)
    known = np.isfinite(growth)  # an infinite growth says nothing about the size of errors
    errors = (np.abs(held.y.ravel() - np.asarray(half._answer(held.x)).ravel()) / growth)[known]
    if precise:
        own, weight = np.ones_like(own), np.full(len(x), rows.unit) if weight is None else weight
    center = np.asarray(half._answer(x), np.float64).ravel()
    reach = _grown(_growth(half, x, weight), _quantile(errors[None], own[known], coverage))[:, 0]
    return center - reach, center + reach
