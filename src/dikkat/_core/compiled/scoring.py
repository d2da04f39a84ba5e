"""The numbers of pair functions and log-kernels, and the ranges of exponentials, for several operations."""

from typing import NamedTuple, get_args

import torch

from dikkat.scores import Pair, Profile

PAIRS, PROFILES = get_args(Pair), get_args(Profile)
"""The pair functions, and the log-kernels of a distance, in the order of their numbers."""
GAUSSIAN, BOXCAR, EPANECHNIKOV, TRIANGULAR = range(len(PROFILES))


class Ranges(NamedTuple):
    """The ranges in which a dtype can hold the terms of tanh(q + k) = 1 − 2/(1 + e^{2q} e^{2k})."""

    scale: float  # s, by which attention's denominators s(1 + p), eight of which share a division, are made small
    limit: float  # the largest product of eight
    highest: float  # the largest |q| and |k| for attention's exponentials; pairs beyond are computed one by one
    folded: float  # the largest max|q| + max|k| for which the recurrence has two features share a division
    single: float  # the largest max|q| and max|k| for the recurrence's exponentials
    most: float  # p is clamped to this, infinity too


RANGES = {
    torch.float32: Ranges(2.0**-12, 2.0**126, 20.0, 30.0, 43.0, 1e30),
    torch.float64: Ranges(2.0**-100, 2.0**1022, 160.0, 240.0, 350.0, 1e300),
}
LOWER = 2.0**-13
"""The factor of s and of the limit where four features, and not eight, share a division."""
SMALL_PAIR, SMALL_ROW = 0.25, 0.5
"""Below this |q| + |k| of a feature, or of a whole row with its keys, tanh is computed as such: −2r has lost digits."""
