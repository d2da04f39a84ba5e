"""Choose bandwidths and the ridge: fixed numbers, rules of thumb, or a search for the least leave-one-out error."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dikkat.regression.criterion import (
    HUGE_ERROR,
    MANY_ROWS,
    MAX_FREEDOM,
    Criterion,
    Fold,
    HeldOut,
    Searched,
    Step,
    Trial,
)  # fmt: skip
from dikkat.regression.joined import NARROWEST, WIDEST, Array, Joined
from dikkat.regression.local import RIDGE
from dikkat.regression.moments.launch import Profile

Rule = Literal["silverman", "scott"]

_SAMPLE_ROWS = 1000  # rows of the sample on which many starts are tried
_MAX_STEPS, _FIRST_STEPS = 60, 4  # of one descent; steps after which only the best descents continue
_CONTINUED = 3  # descents that continue
_CONTINUED_ROUGHLY, _ROUGH_STEPS = 3, 16  # descents that compare columns with their logarithms, and their steps
_PAIR_FEATURES = 8  # at most so many features are tried in pairs
_STANDARD_ERRORS = 1.9  # by so many, leave-one-out errors without the penalty must be smaller
_PROMISING = 0.97  # relative error at which a descent without the penalty continues
_FINE_TOLERANCE = 1e-21  # relative gain in the error at which a descent stops: the bandwidth then has about ten digits
_ROUGH_TOLERANCE = 1e-5  # relative gain at which a first descent on the sample stops
_SINGLE_FEATURE_STEPS = np.linspace(-4.0, 1.0, 11)  # steps of log σ for trials with a single feature
_RETURN_STEPS = np.array([-2.0, -1.0, 0.0])  # steps of log σ at which a feature comes back from "no influence"
_ALLOWED_RISE = 0.05  # relative rise in the error that such a step may cause before the descent from it


class Chosen(NamedTuple):
    """The result of a search or a rule, for features in the order of `Joined`.

    Attributes:
        bandwidth: (d,).
        ridge: ρ; 0 for the constant order, which has no slopes.
        steps: The (bandwidths, error) of each accepted step of a search, the start first; empty without a search.
    """

    bandwidth: Array
    ridge: float
    steps: list[tuple[Array, float]]


class Path(NamedTuple):
    """A descent to continue.

    Attributes:
        steps: The accepted steps.
        last: The last trial.
        curve: (d, d), the estimate of the second derivatives; None before the first step.
        slope: (d,), the gradient at the last trial; None if it is unknown.
    """

    steps: list[Step]
    last: Trial
    curve: Array | None = None
    slope: Array | None = None

    @classmethod
    def at(cls, start: Trial, curve: Array | None = None) -> "Path":
        """Return a path that starts at a trial."""
        return cls([start.step()], start, curve)


def chosen_bandwidths(
    joined: Joined, bandwidth: str | float | ArrayLike, ridge: str | float, profile: Profile, degree: int,
    folds: list[Fold] | None = None,
) -> Chosen:  # fmt: skip
    """Return the bandwidths and the ridge for an estimator's `bandwidth`, `ridge` and the folds of its `cv`.

    Raises:
        ValueError: If a number is 0 or infinite in the dtype of the rows.
    """
    fixed_ridge = 0.0 if degree == 0 else RIDGE if isinstance(ridge, str) else float(ridge)
    if isinstance(bandwidth, str) and bandwidth in get_args(Searched):
        searches_ridge = degree == 1 and isinstance(ridge, str)
        search_ridge = None if searches_ridge else fixed_ridge
        return search(joined, profile, degree, search_ridge, cast(Searched, bandwidth), folds)
    return Chosen(fixed_bandwidths(joined, bandwidth, profile), fixed_ridge, [])


def fixed_bandwidths(joined: Joined, bandwidth: str | float | ArrayLike, profile: Profile) -> Array:
    """Return the bandwidths by a rule of thumb, or the given number or numbers, one for each feature.

    Raises:
        ValueError: If a number is 0 or infinite in the dtype of the rows.
    """
    if isinstance(bandwidth, str):
        return rule_of_thumb(joined, cast(Rule, bandwidth), profile)
    size, limits = joined.features, np.finfo(joined.x.dtype)
    numbers = np.asarray(bandwidth, dtype=np.float64)
    if not ((numbers >= limits.tiny) & (numbers <= limits.max)).all():
        raise ValueError(
            f"bandwidth: got {bandwidth!r}; expected numbers from {limits.tiny} to {limits.max}, the range of "
            f"{limits.dtype} (the dtype of X); change the unit of X"
        )
    return np.full(size, numbers)


def search(
    joined: Joined, profile: Profile, degree: int, ridge: float | None = 0.0, by: Searched = "auto",
    folds: list[Fold] | None = None,
) -> Chosen:  # fmt: skip
    """Search from several starts for the bandwidths with the least criterion.

    The search tries many starts on a sample of the rows and rescales the best to all rows: a bandwidth shrinks with
    n^(−1/(4 + d)). From the best of these BFGS descends along the gradient with respect to log σ. The search runs in
    float64 with the Gaussian kernel. The error of Epanechnikov's kernel has kinks, so that kernel gets the bandwidths
    with which it has the same standard deviations.

    The starts include the mean of all rows and, with slopes, a plane. If `ridge` is None, ρ is searched for as well.
    With folds the criterion is the error of their tested rows.

    In a crossed design "auto" also searches without the penalty on degrees of freedom: the cells of an interaction
    need many. It selects that result if its leave-one-out errors are smaller by more than 1.9 standard errors of the
    paired differences. In a crossed design of n rows, at most `MANY_ROWS`, no column has more than √n different values.

    Returns:
        The bandwidths, the ridge and the steps over all rows; for Epanechnikov's kernel only the last step. There are
        no steps if all rows are equal in X, or all values are equal.
    """
    if len(joined.x) == 1 or joined.variance() == 0:
        return Chosen(rule_of_thumb(joined, "silverman", profile), RIDGE if ridge is None else ridge, [])
    unit, levels = _levels(joined, degree, ridge, by, folds)
    path = minimize_criterion(levels)
    if by == "auto" and folds is None:
        path = _without_penalty(levels, path)
    last, accepted = path.last, path.steps
    if not math.isfinite(last.error):  # all have too many degrees of freedom for so few rows
        return Chosen(rule_of_thumb(joined, "silverman", profile), RIDGE if ridge is None else ridge, [])
    size = joined.features
    if profile != "gaussian":
        t = last.t + math.log(radius(profile, joined.num_numeric)) * (np.arange(len(last.t)) < size)
        accepted = [levels[-1].under(profile)(t).step()]
    steps = [(within_dtype(np.exp(step.t[:size]), joined.x.dtype), step.error * unit**2) for step in accepted]
    return Chosen(steps[-1][0], float(np.exp(last.t[-1])) if ridge is None else ridge, steps)


def _levels(
    joined: Joined, degree: int, ridge: float | None, by: Searched, folds: list[Fold] | None
) -> tuple[float, list[Criterion]]:
    """Return a unit of y, and the criteria of growing samples in that unit, last of all rows."""
    # In this unit squares of slopes of squares do not overflow. A power of 2 changes no digit.
    unit = 2.0 ** round(math.log2(joined.variance()) / 2)
    joined = joined.divide_y(unit)
    if folds is not None:
        return unit, [HeldOut(joined, [fold.divide_y(unit) for fold in folds], "gaussian", degree, ridge)]
    return unit, [Criterion(sample, "gaussian", degree, ridge, by, MAX_FREEDOM) for sample in samples(joined, degree)]


def rough_error(
    joined: Joined, degree: int, ridge: str | float, by: Searched, folds: list[Fold] | None = None
) -> float:
    """Return about the least criterion, by three short descents on a sample; ∞ if all rows or all values are equal."""
    if len(joined.x) == 1 or joined.variance() == 0:
        return math.inf
    _, levels = _levels(
        joined, degree, None if degree and isinstance(ridge, str) else float(degree and ridge), by, folds
    )
    rule, box, log_growth = _frame(levels)
    starts = sorted(_grid(levels[0], rule + log_growth, box), key=attrgetter("error"))[:_CONTINUED_ROUGHLY]
    paths = [_descend(levels[0], Path.at(start), box, _ROUGH_TOLERANCE, _ROUGH_STEPS) for start in starts]
    return min(path.last.error for path in paths)


def samples(joined: Joined, degree: int, share: float = 1.0) -> list[Joined]:
    """Return growing samples of the rows, and last all rows; `share` scales the size of the samples."""
    count, size = len(joined.x), round(share * _sample_size(len(joined.feature_of) - joined.num_terms, degree))
    size = max(100, min(size, count // 2)) if size < count else size
    # A second sample of ten times the size pays if all rows are another ten times as many.
    sizes = [size, *[10 * size for _ in range(100 * size <= count)]]
    return [*(joined.take(_sample(joined, rows)) for rows in sizes if rows < count), joined]


def minimize_criterion(levels: Sequence[Criterion]) -> Path:
    """Return the path to the least criterion over all rows, through criteria of growing samples."""
    rule, box, log_growth = _frame(levels)
    return _descend_levels(levels, _starts(levels[0], rule + log_growth, box), box, rule)


def _frame(levels: Sequence[Criterion]) -> tuple[Array, "_Box", Array]:
    """Return t by the rule of thumb for all rows, the limits of t, and its change from all rows to the first sample."""
    first, joined = levels[0], levels[-1].joined
    rule, box = np.log(rule_of_thumb(joined, "silverman")), _box(levels[-1])
    if first.ridge is None:
        rule = np.append(rule, math.log(first.ridges[1]))
    return rule, box, np.log(len(joined.x) / len(first.joined.x)) / (4 + joined.compared_features) * box.width


def _without_penalty(levels: Sequence[Criterion], path: Path) -> Path:
    """Return the path to the least leave-one-out error if its errors are significantly smaller, else `path`."""
    joined = levels[-1].joined
    if len(joined.x) > MANY_ROWS or not math.isfinite(path.last.error) or not _is_crossed(joined):
        return path
    (rule, box, log_growth), full = _frame(levels), levels[-1].unpenalised()
    known = full(path.last.t)
    grid = min((full(box.clip(rule + step * box.width)) for step in _RETURN_STEPS / 2), key=attrgetter("error"))
    starts = [grid, *(full(box.clip(t)) for t in (levels[0].least.t - log_growth, levels[-1].least.t))]
    paths = [_descend(full, Path.at(start), box, _ROUGH_TOLERANCE, _FIRST_STEPS) for start in starts]
    paths = [path for path in _distinct(paths) if path.last.error < _PROMISING * known.error]
    if not paths:
        return path
    free_paths = (_descend(full, path, box, _ROUGH_TOLERANCE) for path in paths[:2])
    free_path = min(free_paths, key=attrgetter("last.error"))
    if not full.is_better(free_path.last, known, _STANDARD_ERRORS):
        return path
    free_path = free_path._replace(steps=[free_path.last.step()])
    free_path = _toggle_features(full, _descend(full, free_path, box, _FINE_TOLERANCE), rule, box)
    penalised = levels[-1](free_path.last.t)
    if penalised.error < path.last.error:
        path = _descend(levels[-1], Path.at(penalised), box, _FINE_TOLERANCE)
    return free_path if full.is_better(free_path.last, full(path.last.t), _STANDARD_ERRORS) else path


def _is_crossed(joined: Joined) -> bool:
    """Return True if no column has more than √n different values."""
    values = (len(np.unique(joined.x[:, joined.feature_of == c], axis=0)) for c in range(joined.compared_features))
    return max(values) <= math.sqrt(max(len(joined.x), joined.weight.sum()))


def rule_of_thumb(joined: Joined, rule: Rule, profile: Profile = "gaussian") -> Array:
    r"""Return one bandwidth for each feature, from only its spread and the number of rows.

    $$ \sigma_c = k\, a\, s_c\, n^{-1/(d + 4)}, \qquad a = \Big(\frac{4}{d + 2}\Big)^{1/(d + 4)} $$

    for Silverman's rule and a = 1 for Scott's. n is the sum of the weights. $s_c$ is the smaller of the standard
    deviation and the interquartile range over 1.349 (its ratio for a normal distribution), which an outlier does not
    move. For the Gaussian kernel k = 1. Epanechnikov's kernel has $k^2 = d + 4$, with which its standard deviation
    along a feature is the Gaussian's.

    A category has no spread. Beside d numbers its best smoothing falls as $n^{-2/(d + 4)}$, which is the weight of a
    row of another category over that of a row of the same category.

    Args:
        joined: The training rows.
        rule: "silverman" or "scott".
        profile: A kernel with a bandwidth.

    Returns:
        One for each feature, positive and finite in the dtype of the rows; that of a constant feature is so wide that
        the feature has no influence.

    Source: Silverman 1986, sections 3.4.2 and 4.3.2; Scott 1992, chapter 6; Li and Racine 2007, chapter 4, for
    categories.
    """
    size = joined.num_numeric
    factor = radius(profile, size) * ((4 / (size + 2)) ** (1 / (size + 4)) if rule == "silverman" else 1.0)
    count = max(1.0, float(joined.weight.sum()))
    columns = joined.x.T[:size].astype(np.float64)
    spread = np.array([_spread(column, joined.weight) for column in columns])
    result = negligible_bandwidths(joined)
    result[:size] = np.where(spread > 0, factor * spread * count ** (-1 / (size + 4)), result[:size])
    if count > 1:
        result[size:] = np.where(varying(joined)[size:], math.sqrt((size + 4) / (4 * math.log(count))), result[size:])
    return within_dtype(result, joined.x.dtype)


def radius(profile: Profile, size: int) -> float:
    """Return the bandwidth with which a kernel in `size` dimensions has the standard deviation 1 along each."""
    return 1.0 if profile == "gaussian" else math.sqrt(size + 4)


def negligible_bandwidths(joined: Joined) -> Array:
    """Return bandwidths (d,) so wide that a constant feature has no influence, even if a query has another number."""
    firsts = np.searchsorted(joined.feature_of, np.arange(joined.features))
    wide: Array = WIDEST * np.abs(joined.x[0, firsts].astype(np.float64)).clip(1.0, 1e300)
    return wide


def varying(joined: Joined) -> NDArray[np.bool_]:
    """Return (d,) flags, True for features that are not constant; False for terms of second order."""
    result = np.zeros(joined.features, bool)
    np.logical_or.at(result, joined.feature_of, (joined.x != joined.x[0]).any(0))
    result[joined.compared_features :] = False
    return result


def _spread(column: Array, weight: Array) -> float:
    """Return a standard deviation that one outlier does not move, exactly 0 for a constant column."""
    low, high = column.min(), column.max()
    if low == high:
        return 0.0
    unit = (column - low) / (high - low)
    total = weight.sum()
    variance = np.average((unit - np.average(unit, weights=weight)) ** 2, weights=weight)
    deviation = np.sqrt(variance * total / max(total - 1, total / 2))  # weights that sum to less than 2 are no counts
    order = np.argsort(unit, kind="stable")
    cumulative = np.cumsum(weight[order])
    ranks = np.array([0.25, 0.75]) * cumulative[-1]  # on a tie a quartile is the mean of two values
    last, first = (unit[order[np.searchsorted(cumulative, ranks, side)]] for side in ("left", "right"))
    lower, upper = (last + first) / 2
    quartiles = (upper - lower) / 1.349
    return float((min(deviation, quartiles) if quartiles > 0 else deviation) * (high - low))


def within_dtype(bandwidth: Array, dtype: np.dtype[Any]) -> Array:
    """Clip bandwidths to the positive finite numbers of the rows' dtype."""
    limits = np.finfo(dtype)
    clipped: Array = np.clip(bandwidth, float(limits.tiny), float(limits.max))
    return clipped


def _sample_size(features: int, degree: int) -> int:
    return max(100, int(_SAMPLE_ROWS * min(1.0, 2 / features if degree else (4 / features) ** 0.5)))


def _sample(joined: Joined, sample_size: int) -> NDArray[np.intp]:
    """Return row indices, one at random from each of `sample_size` stretches of the rows sorted by x or y.

    The second half mirrors the first, so that a column or y with its sign changed gives the same sample.
    """
    coordinates, count = len(joined.feature_of), len(joined.x)
    ends = np.arange(sample_size // 2 + 1) * count // (sample_size // 2 * 2)
    half = np.random.default_rng(0).integers(ends[:-1], ends[1:])
    order = np.arange(count) if coordinates == 1 else np.lexsort(joined.y.T[::-1])
    return np.sort(order[np.append(half, count - 1 - half)])


class _Box(NamedTuple):
    """The limits of t; each attribute is an array like t.

    Attributes:
        low: A small fraction of the least gap between two rows.
        far: From here on a feature has hardly any influence: the error continues as a + b e^(−2t).
        high: From here on a feature has no influence.
        width: 1 for a bandwidth and 0 for the ridge.
    """

    low: Array
    far: Array
    high: Array
    width: Array

    def clip(self, t: Array) -> Array:
        return np.clip(t, self.low, self.high)


def _box(criterion: Criterion) -> _Box:
    """Return the limits of t, and last of log ρ if it is searched for. A constant feature has low = high."""
    joined = criterion.joined
    edges = np.tile(negligible_bandwidths(joined), (3, 1))
    for c, column in enumerate(joined.x.T[: joined.num_numeric].astype(np.float64)):
        values = np.unique(column)
        if len(values) > 1:
            width = np.ptp(values)
            edges[:, c] = criterion.narrowest * np.diff(values).min(), 3 * width, WIDEST * width
    coded = varying(joined) & (np.arange(joined.features) >= joined.num_numeric)
    edges[:, coded] = np.array([[NARROWEST], [3], [WIDEST]])  # neighbouring categories are 1 apart
    low, far, high = np.log(within_dtype(edges, joined.x.dtype))
    box, (floor, _, ceiling) = _Box(low, far, high, np.ones_like(low)), np.log(criterion.ridges)
    if criterion.ridge is not None:
        return box
    return _Box(*(np.append(edge, end) for edge, end in zip(box, (floor, ceiling, ceiling, 0.0), strict=True)))


def _descend_levels(levels: Sequence[Criterion], starts: list[Trial], box: _Box, rule: Array) -> Path:
    rough_paths, full = _rough_descents(levels[0], starts, box), levels[-1]
    if len(levels) == 1:
        fine_paths = (_descend(full, path, box, _FINE_TOLERANCE) for path in rough_paths[:2])
        return _toggle_features(full, min(fine_paths, key=attrgetter("last.error")), rule, box)
    paths = [_toggle_features(levels[0], rough_paths[0], rule, box), *rough_paths[1:3]]
    for smaller, level in pairwise(levels):
        log_growth = (
            np.log(len(level.joined.x) / len(smaller.joined.x)) / (4 + level.joined.compared_features) * box.width
        )
        starts_here = (Path.at(level(box.clip(path.last.t - log_growth)), path.curve) for path in paths)
        start = min(starts_here, key=attrgetter("last.error"))
        tolerance = _FINE_TOLERANCE if len(level.joined.x) <= MANY_ROWS else _ROUGH_TOLERANCE / 100
        curve = cast(Array, start.curve) * np.exp(-4 * log_growth.max())
        paths = [_descend(level, start._replace(curve=curve), box, tolerance)]
    return _toggle_features(full, paths[0], rule, box) if len(full.joined.x) <= MANY_ROWS else paths[0]


def _toggle_features(criterion: Criterion, path: Path, rule: Array, box: _Box) -> Path:
    """Extend a path as long as moving a feature to "no influence", or back from there, lowers the error."""
    pending = features = np.flatnonzero((box.width > 0) & (box.low < box.high)).tolist()
    while pending:
        c, *pending = pending
        returns = path.last.t[c] >= box.far[c]
        trials = []
        for value in rule[c] + _RETURN_STEPS if returns else [box.high[c]]:
            t = path.last.t.copy()
            t[c] = value
            trials.append(criterion(box.clip(t)))
        best_trial = min(trials, key=attrgetter("error"))
        if not best_trial.error < (1 + _ALLOWED_RISE * returns) * path.last.error:
            continue
        other_path = _descend(criterion, Path.at(best_trial), box, _ROUGH_TOLERANCE, _FIRST_STEPS)
        if other_path.last.error < path.last.error:
            other_path = _descend(criterion, other_path, box, _ROUGH_TOLERANCE)
        if other_path.last.error < (1 - _ROUGH_TOLERANCE) * path.last.error:
            other_path = _descend(criterion, other_path, box, _FINE_TOLERANCE)
            path = other_path._replace(steps=[*path.steps, *other_path.steps])
            pending = [feature for feature in features if feature != c]
    return path


def _rough_descents(criterion: Criterion, starts: list[Trial], box: _Box) -> list[Path]:
    """Return the best of the distinct descents from the starts, the best first."""
    starts = list({start.t.tobytes(): start for start in starts}.values())
    paths = [_descend(criterion, Path.at(start), box, _ROUGH_TOLERANCE, _FIRST_STEPS) for start in starts]
    return _distinct([_descend(criterion, path, box, _ROUGH_TOLERANCE) for path in _distinct(paths)[:_CONTINUED]])


def _distinct(paths: list[Path]) -> list[Path]:
    """Return the paths with distinct ends, the best first."""
    result: list[Path] = []
    for path in sorted(paths, key=attrgetter("last.error")):
        if all(np.abs(path.last.t - earlier.last.t).max() > 0.1 for earlier in result):
            result.append(path)
    return result


def _starts(criterion: Criterion, rule: Array, box: _Box) -> list[Trial]:
    """Return trials of the rule of thumb, its best multiples, a plane, the mean, and subsets of the features."""
    *grid, plane = _grid(criterion, rule, box)
    ordered = sorted(grid, key=attrgetter("error"))
    starts: list[Trial] = [grid[len(grid) // 2], *ordered[:2], plane, criterion(box.high)]
    return starts + _subset_starts(criterion, rule, box, ordered[0]) if len(rule) > 1 else starts


def _grid(criterion: Criterion, rule: Array, box: _Box) -> list[Trial]:
    """Return trials of multiples of the rule of thumb, and last of a plane: for the constant order the mean."""
    grid = [criterion(box.clip(rule + step * box.width)) for step in np.linspace(-3.5, 3.5, 11)]
    return [*grid, criterion(np.where(box.width > 0, box.high, rule))]


def _subset_starts(criterion: Criterion, rule: Array, box: _Box, best: Trial) -> list[Trial]:
    """Return starts with only some of the features, which do not depend on the order of the columns.

    The first removes features one by one and the second adds features one by one, as long as the error falls. The third
    begins with the single feature of the least error, however narrow its bandwidth: other features hide oscillations.
    With four to eight features, the best pair of features is another start: of an interaction both are needed at once.
    """

    def try_features(chosen: Sequence[int], step: float) -> Trial:
        t = np.where(box.width > 0, box.far, rule)
        t[list(chosen)] = rule[list(chosen)] + step
        return criterion(box.clip(t))

    features = np.flatnonzero((box.width > 0) & (box.low < box.high)).tolist()
    single = {
        c: min((try_features([c], step) for step in _SINGLE_FEATURE_STEPS), key=attrgetter("error")) for c in features
    }
    features.sort(key=lambda c: single[c].error)
    ridge = np.flatnonzero(box.width == 0).tolist()
    starts = []
    for trial, target in ((best, box.far), (criterion(np.maximum(best.t, box.far)), best.t)):
        for c in [*ridge, *features[::-1]]:  # the ridge first, if it is searched for
            changed = trial.t.copy()
            changed[c] = target[c]
            trial = min(trial, criterion(changed), key=attrgetter("error"))
        starts.append(trial)
    trial = single[features[0]] if features else best
    for c in features:
        changed = trial.t.copy()
        changed[c] = best.t[c] if trial.t[c] >= box.far[c] else trial.t[c]
        trial = min(trial, criterion(changed), key=attrgetter("error"))
    pairs = combinations(features, 2) if 4 <= len(features) <= _PAIR_FEATURES else ()
    trials = [try_features(pair, step) for pair in pairs for step in _RETURN_STEPS]
    return [*starts, trial, *sorted(trials, key=attrgetter("error"))[:1]]


def _descend(criterion: Criterion, path: Path, box: _Box, tolerance: float, max_steps: int = _MAX_STEPS) -> Path:
    """Continue a path by BFGS steps within the limits, until a step promises a gain below `tolerance` times the error.

    On curves of 2,500 points in 1 to 3 dimensions SciPy's L-BFGS-B needs 2.3 times as many pairs of rows and 2.4 times
    the time (12.6 s against 5.2 s), even with features scaled by the Gauss-Newton matrix: it begins every descent
    without second derivatives and takes a gradient at each trial. On 100 small problems it needs 1.6 times as many
    pairs and ends higher on 10 and lower on 14 (without scaling higher on 18, lower on 10).

    Source: Nocedal and Wright 2006, sections 3.5 and 18.3 (the damped update).
    """
    steps, trial, curve, slope = path
    steps = list(steps)
    if not trial.error < HUGE_ERROR * criterion.variance:  # no gradient leads on from here
        return Path(steps, trial, np.eye(len(trial.t)))
    if slope is None:
        slope, gauss_newton = criterion.gradient(trial)
    if curve is None:
        with np.errstate(over="ignore", invalid="ignore"):
            curve = gauss_newton + (1e-3 * np.trace(gauss_newton) + 1e-9 * criterion.variance) * np.eye(len(slope))
    for _ in range(max_steps):
        if not (np.isfinite(slope).all() and np.isfinite(curve).all()):  # LAPACK would raise an error
            return Path(steps, trial, np.eye(len(slope)), slope)
        step = _newton(trial.t, slope, curve, box)
        gain = -float(slope @ step)
        if not gain > tolerance * (trial.error + 1e-6 * criterion.variance):
            break
        next_trial = _line_search(criterion, trial, step, gain)
        if next_trial is None or np.array_equal(next_trial.t, trial.t):
            break
        steps.append(next_trial.step())
        next_slope, _ = criterion.gradient(next_trial)
        if not np.isfinite(next_slope).all():
            return Path(steps, next_trial, curve, next_slope)
        curve = _updated_curve(curve, next_trial.t - trial.t, next_slope - slope)
        trial, slope = next_trial, next_slope
    return Path(steps, trial, curve, slope)


def _newton(t: Array, slope: Array, curve: Array, box: _Box) -> Array:
    """Return the step to the minimum of the quadratic model, at most 1.5 long; features beyond `far` go to `high`."""
    free = (t < box.high) & ((t > box.low) | (slope < 0))
    step = np.zeros_like(t)
    step[free] = -np.linalg.lstsq(curve[np.ix_(free, free)], slope[free], rcond=None)[0]  # flat where nothing changes
    step *= min(1.0, 1.5 / max(np.abs(step).max(), 1e-300))
    leaving = (step > 0) & (t + step > box.far)
    return box.clip(np.where(leaving, box.high, t + step)) - t


def _line_search(criterion: Criterion, trial: Trial, step: Array, gain: float) -> Trial | None:
    """Backtrack until Armijo's condition holds; return None after 10 trials."""
    for _ in range(10):
        next_trial = criterion(trial.t + step)
        rise = next_trial.error - trial.error
        if rise <= -1e-4 * gain + 1e-15 * trial.error:
            return next_trial
        factor = min(0.5, max(0.1, gain / (2 * (rise + gain))))  # the minimum of the parabola through the known values
        step, gain = factor * step, factor * gain
    return None


def _updated_curve(curve: Array, step: Array, change: Array) -> Array:
    """Return the BFGS update of the second derivatives, damped so that they stay positive definite."""
    along = curve @ step
    expected, observed = float(step @ along), float(step @ change)
    if observed < 0.2 * expected:
        share = 0.8 * expected / (expected - observed)
        change = share * change + (1 - share) * along
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result: Array = curve - np.outer(along, along) / expected + np.outer(change, change) / np.float64(step @ change)
    return result if np.isfinite(result).all() else curve
