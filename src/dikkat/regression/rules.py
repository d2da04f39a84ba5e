"""Bandwidths from the features' spreads alone, and the limits that any bandwidth keeps to."""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dikkat.regression.coding import WIDEST
from dikkat.regression.joined import Array, Joined
from dikkat.regression.moments import Profile

Rule = Literal["silverman", "scott"]


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
    found = beyond(joined)
    found[:size] = np.where(spread > 0, factor * spread * count ** (-1 / (size + 4)), found[:size])
    if count > 1:
        found[size:] = np.where(varying(joined)[size:], math.sqrt((size + 4) / (4 * math.log(count))), found[size:])
    return within_dtype(found, joined.x.dtype)


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
    found = np.zeros(joined.features, bool)
    np.logical_or.at(found, joined.feature, (joined.x != joined.x[0]).any(0))
    return found


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
