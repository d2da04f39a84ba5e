"""The score by which hypotheses of different lengths compete."""

from typing import Any


def normalised_score(log_probability: Any, length: Any, penalty: float) -> Any:
    """The score by which ended hypotheses compete, of numbers or arrays, compiled or not.

    Of one log-probability it must not fall as the length grows: searches stop early by that.

    Wu et al., "Google's neural machine translation system" (2016), section 7.
    """
    return log_probability / ((5 + length) / 6) ** penalty
