"""Choice of the bandwidths and of a line's ridge: numbers, rules of thumb, or the least leave-one-out squared error."""

import math
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dikkat.regression.criterion import HOPELESS, MANY, MOST, Criterion, Fold, Held, Step, Trial
from dikkat.regression.joined import NARROWEST, WIDEST, Array, Joined
from dikkat.regression.local import RIDGE
from dikkat.regression.moments.launch import Profile

Rule = Literal["silverman", "scott"]
Searched = Literal["auto", "loo"]

_SAMPLE = 1000  # size of the sample on which many starts are tried
_STEPS = 60  # most steps of one descent
_FINE = 1e-21  # relative gain in the error at which a descent stops: the bandwidth then has about ten digits
_ROUGH = 1e-5  # that of a first descent on the sample
_STEPS_OF_ONE_FEATURE = np.linspace(-4.0, 1.0, 11)  # steps of log σ at which each feature is tried alone
_BACK = np.array([-2.0, -1.0, 0.0])  # steps of log σ at which a feature comes back from "no influence"
_HOPE = 0.05  # by how much the error may rise there, before a descent


class Chosen(NamedTuple):
    """The result of a search or a rule, for features in the order of `Joined`.

    Attributes:
        bandwidth: (d,).
        ridge: ρ; 0 for the constant order, which has no slopes.
        steps: The accepted steps of a search, the start first: the bandwidths with the error. None without a search.
    """

    bandwidth: Array
    ridge: float
    steps: list[tuple[Array, float]]


class Path(NamedTuple):
    """The accepted steps of a descent, its last trial, and its estimate of the second derivatives, (d, d)."""

    steps: list[Step]
    last: Trial
    curve: Array


def chosen_bandwidths(
    joined: Joined,
    bandwidth: str | float | ArrayLike,
    ridge: str | float,
    profile: Profile,
    degree: int,
    folds: list[Fold] | None = None,
) -> Chosen:
    """The bandwidths by an estimator's settings `bandwidth` and `ridge`, and the folds of its `cv`.

    Raises:
        ValueError: Numbers that are not as many as the features, or 0 or infinite in the dtype of the rows.
    """
    amount = 0.0 if degree == 0 else RIDGE if isinstance(ridge, str) else float(ridge)
    if isinstance(bandwidth, str) and bandwidth in get_args(Searched):
        free = degree == 1 and isinstance(ridge, str)
        known = None if free else amount
        return search(joined, profile, degree, known, cast(Searched, bandwidth), folds)
    return Chosen(settled(joined, bandwidth, profile), amount, [])


def settled(joined: Joined, bandwidth: str | float | ArrayLike, profile: Profile) -> Array:
    """The bandwidths by a rule of thumb, or as they were given.

    Raises:
        ValueError: As of `choose`.
    """
    if isinstance(bandwidth, str):
        return rule_of_thumb(joined, cast(Rule, bandwidth), profile)
    size, limits = joined.features, np.finfo(joined.x.dtype)
    given = np.asarray(bandwidth, dtype=np.float64)
    if given.ndim and given.shape != (size,):
        raise ValueError(f"bandwidth: got shape {given.shape}; expected a number, or ({size},), one for each feature")
    if not ((given >= limits.tiny) & (given <= limits.max)).all():
        raise ValueError(
            f"bandwidth: got {bandwidth!r}; expected in {limits.dtype}, the dtype of X: from {limits.tiny} to "
            f"{limits.max}. Bring X to another unit"
        )
    return np.full(size, given)


def search(
    joined: Joined,
    profile: Profile,
    degree: int,
    ridge: float | None = 0.0,
    by: Searched = "auto",
    folds: list[Fold] | None = None,
) -> Chosen:
    """The bandwidths with the least criterion that a search from several starts finds.

    Many starts are tried on a sample of the rows, the best are carried to all of them (a bandwidth shrinks with
    n^(−1/(4 + d))), and the best of these is followed to the minimum by the gradient with respect to log σ, with an
    estimate of the second derivatives that grows on the way (BFGS). It is computed in float64, and with the Gaussian
    kernel; Epanechnikov's, whose error has kinks, gets the bandwidths with which its standard deviations are those.

    Among the starts are the mean of all rows and, with slopes, a plane. With `ridge` None ρ is searched for as well.
    With folds the criterion is the error of their tested rows.

    Returns:
        The bandwidths, the ridge and the steps over all rows; for Epanechnikov's kernel only the last one. No steps
        where there is nothing to choose by: all rows equal in X, or all values equal.
    """
    whole_variance = joined.variance()
    if len(joined.x) == 1 or whole_variance == 0:
        return Chosen(rule_of_thumb(joined, "silverman", profile), RIDGE if ridge is None else ridge, [])
    # In a unit in which the squares of slopes of squares are numbers; as a power of 2 it changes no digit.
    unit = 2.0 ** round(math.log2(whole_variance) / 2)
    joined = joined.in_unit(unit)
    folds = None if folds is None else [fold.in_unit(unit) for fold in folds]
    if folds is not None:
        levels: list[Criterion] = [Held(joined, folds, "gaussian", degree, ridge)]
    else:
        levels = [Criterion(each, "gaussian", degree, ridge, by, MOST) for each in samples(joined, degree)]
    path, last, _ = least(levels)
    if not math.isfinite(last.error):  # all have too many degrees of freedom for so few rows
        return Chosen(rule_of_thumb(joined, "silverman", profile), RIDGE if ridge is None else ridge, [])
    size = joined.features
    if profile != "gaussian":
        t = last.t + math.log(radius(profile, joined.numbers)) * (np.arange(len(last.t)) < size)
        path = [levels[-1].under(profile)(t).step()]
    steps = [(within_dtype(np.exp(step.t[:size]), joined.x.dtype), step.error * unit**2) for step in path]
    return Chosen(steps[-1][0], float(np.exp(last.t[-1])) if ridge is None else ridge, steps)


def samples(joined: Joined, degree: int, share: float = 1.0) -> list[Joined]:
    """Samples of the rows, of more and more, and all of them; the first smaller by a share."""
    count, room = len(joined.x), round(share * _room(len(joined.feature), degree))
    # A sample of ten times as many rows is worth it where all are ten times as many again.
    rooms = [room, *[10 * room for _ in range(100 * room <= count)]]
    return [*(joined.take(_sample(joined, each)) for each in rooms if each < count), joined]


def least(levels: Sequence[Criterion]) -> Path:
    """The path to the least criterion over all rows, by way of samples of more and more."""
    first, joined = levels[0], levels[-1].joined
    rule, box = np.log(rule_of_thumb(joined, "silverman")), _box(levels[-1])
    if first.ridge is None:
        rule = np.append(rule, math.log(first.ridges[1]))
    grow = np.log(len(joined.x) / len(first.joined.x)) / (4 + joined.features) * box.width
    return _descent(levels, _starts(first, rule + grow, box), box, rule)


def rule_of_thumb(joined: Joined, rule: Rule, profile: Profile = "gaussian") -> Array:
    r"""One bandwidth a feature, from its spread and the number of rows alone.

    $$ \sigma_c = k\, a\, s_c\, n^{-1/(d + 4)}, \qquad a = \Big(\frac{4}{d + 2}\Big)^{1/(d + 4)} $$

    for Silverman's rule and a = 1 for Scott's, with n the sum of the weights and $s_c$ the smaller of the standard
    deviation and the interquartile range over 1.349 (its ratio for a normal distribution), which an outlier does not
    move. The rules are the Gaussian kernel's, where k = 1; a kernel that ends gets the radius with which its standard
    deviation along a feature is the Gaussian's: $k^2$ is d + 4 for Epanechnikov's.

    A category has no spread. Of d numbers its best smoothing falls as $n^{-2/(d + 4)}$: so much less than a row of the
    same category does one of another weigh.

    Args:
        joined: The training rows.
        rule: "silverman" or "scott".
        profile: A kernel with a bandwidth.

    Returns:
        One for each feature, positive and finite in the dtype of the rows; for a constant one so wide that it does not
        count.

    Source: Silverman 1986, sections 3.4.2 and 4.3.2; Scott 1992, chapter 6; Li and Racine 2007, chapter 4, for
    categories.
    """
    size = joined.numbers
    factor = radius(profile, size) * ((4 / (size + 2)) ** (1 / (size + 4)) if rule == "silverman" else 1.0)
    count = max(1.0, float(joined.weight.sum()))
    columns = joined.x.T[:size].astype(np.float64)
    spread = np.array([_spread(column, joined.weight) for column in columns])
    result = beyond(joined)
    result[:size] = np.where(spread > 0, factor * spread * count ** (-1 / (size + 4)), result[:size])
    if count > 1:
        result[size:] = np.where(varying(joined)[size:], math.sqrt((size + 4) / (4 * math.log(count))), result[size:])
    return within_dtype(result, joined.x.dtype)


def radius(profile: Profile, size: int) -> float:
    """The bandwidth with which a kernel in so many dimensions has the standard deviation 1 along each."""
    return 1.0 if profile == "gaussian" else math.sqrt(size + 4)


def beyond(joined: Joined) -> Array:
    """A bandwidth for each constant feature, so wide that another number there changes nothing either."""
    firsts = np.searchsorted(joined.feature, np.arange(joined.features))
    wide: Array = WIDEST * np.abs(joined.x[0, firsts].astype(np.float64)).clip(1.0, 1e300)
    return wide


def varying(joined: Joined) -> NDArray[np.bool_]:
    """True for each feature that varies."""
    result = np.zeros(joined.features, bool)
    np.logical_or.at(result, joined.feature, (joined.x != joined.x[0]).any(0))
    return result


def _spread(column: Array, weight: Array) -> float:
    """A standard deviation that one outlier does not move; of a constant exactly 0."""
    low, high = column.min(), column.max()
    if low == high:
        return 0.0
    unit = (column - low) / (high - low)
    total = weight.sum()
    square = np.average((unit - np.average(unit, weights=weight)) ** 2, weights=weight)
    deviation = np.sqrt(square * total / max(total - 1, total / 2))  # weights below 2 in all are no counts
    order = np.argsort(unit, kind="stable")
    reached = np.cumsum(weight[order])
    at = np.array([0.25, 0.75]) * reached[-1]  # where two values are a quartile it is their mean, as of −x
    last, first = (unit[order[np.searchsorted(reached, at, side)]] for side in ("left", "right"))
    lower, upper = (last + first) / 2
    quartiles = (upper - lower) / 1.349
    return float((min(deviation, quartiles) if quartiles > 0 else deviation) * (high - low))


def within_dtype(bandwidth: Array, dtype: np.dtype[Any]) -> Array:
    """Neither 0 nor infinite in the dtype of the rows."""
    limits = np.finfo(dtype)
    clipped: Array = np.clip(bandwidth, float(limits.tiny), float(limits.max))
    return clipped


def _room(size: int, degree: int) -> int:
    """The size of a sample of rows with so many features."""
    return max(100, int(_SAMPLE * min(1.0, 2 / size if degree else (4 / size) ** 0.5)))


def _sample(joined: Joined, room: int) -> NDArray[np.intp]:
    """A sample of the rows, even over one coordinate, or else over the values; at random within each stretch.

    The second half mirrors the first, so that turned columns and values have the same sample.
    """
    size, count = len(joined.feature), len(joined.x)
    ends = np.arange(room // 2 + 1) * count // (room // 2 * 2)
    half = np.random.default_rng(0).integers(ends[:-1], ends[1:])
    order = np.arange(count) if size == 1 else np.lexsort(joined.y.T[::-1])
    return np.sort(order[np.append(half, count - 1 - half)])


class _Box(NamedTuple):
    """The limits of t, an array of its size each.

    Attributes:
        low: A small part of the least gap between two rows.
        far: Here a feature hardly counts: the error goes on as a + b e^(−2t).
        high: Here it counts for nothing that can be seen.
        width: 1 for a bandwidth and 0 for the ridge.
    """

    low: Array
    far: Array
    high: Array
    width: Array

    def clip(self, t: Array) -> Array:
        return np.clip(t, self.low, self.high)


def _box(criterion: Criterion) -> _Box:
    """The box of t, perhaps with log ρ behind it: where that is high, no slope counts. A constant feature is fixed."""
    joined = criterion.joined
    limits = np.tile(beyond(joined), (3, 1))
    for c, column in enumerate(joined.x.T[: joined.numbers].astype(np.float64)):
        values = np.unique(column)
        if len(values) > 1:
            width = np.ptp(values)
            limits[:, c] = criterion.narrowest * np.diff(values).min(), 3 * width, WIDEST * width
    coded = varying(joined) & (np.arange(joined.features) >= joined.numbers)
    limits[:, coded] = np.array([[NARROWEST], [3], [WIDEST]])  # two categories, or two neighbours in order, are 1 apart
    low, far, high = np.log(within_dtype(limits, joined.x.dtype))
    box, (floor, _, most) = _Box(low, far, high, np.ones_like(low)), np.log(criterion.ridges)
    if criterion.ridge is not None:
        return box
    return _Box(*(np.append(each, end) for each, end in zip(box, (floor, most, most, 0.0), strict=True)))


def _descent(levels: Sequence[Criterion], starts: list[Trial], box: _Box, rule: Array) -> Path:
    """The path from the best start."""
    rough, last = _rough(levels[0], starts, box), levels[-1]
    if len(levels) == 1:
        fine = [_descend(levels[0], path.last, box, _FINE, path.curve) for path in rough[:2]]
        start, end = min(zip(rough, fine, strict=False), key=lambda pair: pair[1].last.error)
        return _revised(last, end._replace(steps=[*start.steps, *end.steps[1:]]), rule, box)
    paths = [_revised(levels[0], rough[0], rule, box), *rough[1:3]]
    for before, level in pairwise(levels):
        grow = np.log(len(level.joined.x) / len(before.joined.x)) / (4 + level.joined.features) * box.width
        trials = ((level(box.clip(path.last.t - grow)), path.curve) for path in paths)
        first, curve = min(trials, key=lambda pair: pair[0].error)
        enough = _FINE if len(level.joined.x) <= MANY else _ROUGH / 100
        paths = [_descend(level, first, box, enough, curve * np.exp(-4 * grow.max()))]
    return _revised(last, paths[0], rule, box) if len(last.joined.x) <= MANY else paths[0]


def _revised(criterion: Criterion, path: Path, rule: Array, box: _Box) -> Path:
    """The path, and on from it as long as a feature's going to "no influence", or coming back, lowers the error."""
    left = features = np.flatnonzero((box.width > 0) & (box.low < box.high)).tolist()
    while left:
        c, *left = left
        back = path.last.t[c] >= box.far[c]
        tried = []
        for place in rule[c] + _BACK if back else [box.high[c]]:
            t = path.last.t.copy()
            t[c] = place
            tried.append(criterion(box.clip(t)))
        first = min(tried, key=attrgetter("error"))
        if not first.error < (1 + _HOPE * back) * path.last.error:
            continue
        other = _descend(criterion, first, box, _ROUGH)
        if other.last.error < (1 - _ROUGH) * path.last.error:
            end = _descend(criterion, other.last, box, _FINE, other.curve)
            path = end._replace(steps=[*path.steps, *other.steps, *end.steps[1:]])
            left = [each for each in features if each != c]
    return path


def _rough(part: Criterion, starts: list[Trial], box: _Box) -> list[Path]:
    """The distinct descents from the starts, the best first."""
    distinct: list[Path] = []
    for path in sorted((_descend(part, start, box, _ROUGH) for start in starts), key=attrgetter("last.error")):
        if all(np.abs(path.last.t - other.last.t).max() > 0.1 for other in distinct):
            distinct.append(path)
    return distinct


def _starts(part: Criterion, rule: Array, box: _Box) -> list[Trial]:
    """Starting bandwidths: the rule of thumb, its best multiples, and these with some of the features.

    Features are left out one by one, and taken in one by one, as long as the error falls.
    """
    grid = [part(box.clip(rule + step * box.width)) for step in np.linspace(-3.5, 3.5, 11)]
    ordered = sorted(grid, key=attrgetter("error"))
    plane = np.where(box.width > 0, box.high, rule)  # of the constant order the mean, as of a ridge that is high
    starts: list[Trial] = [part(box.clip(rule)), *ordered[:2], part(plane), part(box.high)]
    return starts + _with_some(part, rule, box, ordered[0]) if len(rule) > 1 else starts


def _with_some(part: Criterion, rule: Array, box: _Box, best: Trial) -> list[Trial]:
    """Starts with only some of the features, tried by their errors alone and not by the columns' order.

    One leaves features out one by one, one takes features in, as long as the error falls; one begins with the feature
    that alone has the least error, however narrow its bandwidth: others hide what oscillates.
    """

    def alone(c: int, step: float) -> Trial:
        t = np.where(box.width > 0, box.far, rule)
        t[c] = rule[c] + step
        return part(box.clip(t))

    features = np.flatnonzero((box.width > 0) & (box.low < box.high)).tolist()
    single = {c: min((alone(c, step) for step in _STEPS_OF_ONE_FEATURE), key=attrgetter("error")) for c in features}
    features.sort(key=lambda c: single[c].error)
    ridge = np.flatnonzero(box.width == 0).tolist()
    result = []
    for trial, other in ((best, box.far), (part(np.maximum(best.t, box.far)), best.t)):
        for c in [*ridge, *features[::-1]]:  # the slopes first, if they are searched for
            changed = trial.t.copy()
            changed[c] = other[c]
            trial = min(trial, part(changed), key=attrgetter("error"))
        result.append(trial)
    trial = single[features[0]] if features else best
    for c in features:
        changed = trial.t.copy()
        changed[c] = best.t[c] if trial.t[c] >= box.far[c] else trial.t[c]
        trial = min(trial, part(changed), key=attrgetter("error"))
    return [*result, trial]


def _descend(criterion: Criterion, start: Trial, box: _Box, tolerance: float, curve: Array | None = None) -> Path:
    """Quasi-Newton steps (BFGS) in a box, until the next one promises less than a share of the error.

    By hand, since SciPy's L-BFGS-B in its place looks at 2.3 times as many pairs of rows on curves of 2,500 points in 1
    to 3 dimensions, in 2.4 times the time (12.6 s for 5.2 s), even with the features scaled by Gauss and Newton's
    guess: it begins every descent without second derivatives and takes a gradient at each trial. On 100 small problems
    it looks at 1.6 times as many, ending higher on 10 and lower on 14; without the scaling higher on 18, lower on 10.

    Source: Nocedal and Wright 2006, sections 3.5 and 18.3 (the damped update).
    """
    trial, steps = start, [start.step()]
    if not start.error < HOPELESS * criterion.variance:  # nothing leads on from there
        return Path(steps, trial, np.eye(len(start.t)))
    slope, guess = criterion.gradient(start)
    if curve is None:
        with np.errstate(over="ignore", invalid="ignore"):
            curve = guess + (1e-3 * np.trace(guess) + 1e-9 * criterion.variance) * np.eye(len(slope))
    for _ in range(_STEPS):
        if not (np.isfinite(slope).all() and np.isfinite(curve).all()):  # LAPACK would raise its own error
            return Path(steps, trial, np.eye(len(slope)))
        step = _newton(trial.t, slope, curve, box)
        gain = -float(slope @ step)
        if not gain > tolerance * (trial.error + 1e-6 * criterion.variance):
            break
        following = _downhill(criterion, trial, step, gain)
        if following is None or np.array_equal(following.t, trial.t):
            break
        steps.append(following.step())
        after, _ = criterion.gradient(following)
        if not np.isfinite(after).all():
            return Path(steps, following, curve)
        curve = _updated(curve, following.t - trial.t, after - slope)
        trial, slope = following, after
    return Path(steps, trial, curve)


def _newton(t: Array, slope: Array, curve: Array, box: _Box) -> Array:
    """The step to the minimum of the quadratic model, at most 1.5 long. A feature that crosses `far` goes to `high`."""
    free = (t < box.high) & ((t > box.low) | (slope < 0))
    step = np.zeros_like(t)
    step[free] = -np.linalg.lstsq(curve[np.ix_(free, free)], slope[free], rcond=None)[0]  # flat where nothing changes
    step *= min(1.0, 1.5 / max(np.abs(step).max(), 1e-300))
    leaving = (step > 0) & (t + step > box.far)
    return box.clip(np.where(leaving, box.high, t + step)) - t


def _downhill(criterion: Criterion, trial: Trial, step: Array, gain: float) -> Trial | None:
    """A backtracking line search with Armijo's condition."""
    for _ in range(10):
        following = criterion(trial.t + step)
        rise = following.error - trial.error
        if rise <= -1e-4 * gain + 1e-15 * trial.error:
            return following
        shorter = min(0.5, max(0.1, gain / (2 * (rise + gain))))  # where a parabola through what is known is lowest
        step, gain = shorter * step, shorter * gain
    return None


def _updated(curve: Array, step: Array, change: Array) -> Array:
    """BFGS, damped so that the matrix stays positive definite."""
    along = curve @ step
    bend, seen = float(step @ along), float(step @ change)
    if seen < 0.2 * bend:
        share = 0.8 * bend / (bend - seen)
        change = share * change + (1 - share) * along
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result: Array = curve - np.outer(along, along) / bend + np.outer(change, change) / np.float64(step @ change)
    return result if np.isfinite(result).all() else curve
