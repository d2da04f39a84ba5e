"""Numbers of pair functions and log-kernels, and ranges of exponentials, shared by several kernels.

`RANGES` limits the exponentials of `numba/scores.py` (forward), `numba/additive_pairs.py` (backward) and
`recurrent/fused/attending.py`: beyond it, they compute tanh. For the same switch, `numba/few.py` has
`_EXPONENT_LIMITS`, and Triton `ranges.py`.
"""

from typing import NamedTuple, get_args

import torch

from dikkat.scores import Pair, Profile

PAIRS, PROFILES = get_args(Pair), get_args(Profile)
"""Pair functions and log-kernels, in the order of their numbers in compiled code."""
GAUSSIAN, BOXCAR, EPANECHNIKOV, TRIANGULAR = range(len(PROFILES))


class Ranges(NamedTuple):
    """The ranges of the terms of tanh(q + k) = 1 − 2/(1 + e^{2q} e^{2k}) in a dtype."""

    scale: float  # s in the denominators s(1 + p): eight of them share a division, and s keeps their product small
    limit: float  # the largest product of eight
    highest: float  # the largest |q| and |k| for attention's exponentials; other pairs are computed one by one
    folded: float  # the largest max|q| + max|k| for which two features of the recurrence share a division
    single: float  # the largest max|q| and max|k| for the recurrence's exponentials
    most: float  # the upper bound that p, even infinity, is clamped to


RANGES = {
    torch.float32: Ranges(2.0**-12, 2.0**126, 20.0, 30.0, 43.0, 1e30),
    torch.float64: Ranges(2.0**-100, 2.0**1022, 160.0, 240.0, 350.0, 1e300),
}
LOWER = 2.0**-13
"""The factor of s and of the limit if four features, instead of eight, share a division."""
SMALL_PAIR, SMALL_ROW = 0.25, 0.5
"""Below this |q| + |k| (a feature; a row with its keys) tanh is computed directly: −2r would lose digits."""
