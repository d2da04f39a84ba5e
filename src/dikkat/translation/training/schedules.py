"""Schedules of the learning rate."""

import math

from dikkat.translation.settings import Settings


def share_of_learning_rate(settings: Settings, step: int, *, done: float, halvings: int) -> float:
    r"""Return the factor of `settings.learning_rate` in an optimiser step.

    With s previous steps, w = `warmup_steps`, d = `done` (the finished share of the training) and h = `halvings`, it is
    $\min(1, \frac{s + 1}{w + 1})$ times

    | schedule | decay |
    | --- | --- |
    | `constant` | $1$ |
    | `linear` | $1 - d$ |
    | `cosine` | $(1 + \cos \pi d) / 2$ |
    | `inverse_sqrt` | $\min(1, \sqrt{(w + 1) / (s + 1)})$ |
    | `plateau` | $2^{-h}$ |

    Inverse square root: Vaswani and others, "Attention is all you need" (2017), section 5.3. Cosine: Loshchilov and
    Hutter, "SGDR: stochastic gradient descent with warm restarts" (2017), equation 5, without restarts.

    Example:
        >>> settings = Settings(schedule="inverse_sqrt", warmup_steps=3)
        >>> [share_of_learning_rate(settings, step, done=0.0, halvings=0) for step in (0, 3, 15)]
        [0.25, 1.0, 0.5]
    """
    steps, warmup = step + 1, settings.warmup_steps + 1
    remaining = max(0.0, 1.0 - done)
    decay = {
        "constant": 1.0, "linear": remaining, "cosine": (1.0 - math.cos(math.pi * remaining)) / 2,
        "inverse_sqrt": min(1.0, math.sqrt(warmup / steps)), "plateau": 0.5**halvings,
    }  # fmt: skip
    return min(1.0, steps / warmup) * decay[settings.schedule]
