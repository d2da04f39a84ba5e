"""The one table of implementations. Everything below is private; `dikkat.implementations` shows it."""

from collections.abc import Callable
from dataclasses import dataclass

from dikkat.kernels import chunked, reference, sdpa
from dikkat.kernels.common import Problem, Result


@dataclass(frozen=True)
class Kernel:
    """One way to compute attention.

    Attributes:
        obstacles: Why it cannot run a problem; empty where it can.
        run: Runs it.
        wants_seeds: Whether dropout is ours, and needs seeds from torch's generator.
    """

    obstacles: Callable[[Problem], list[str]]
    run: Callable[[Problem], Result]
    wants_seeds: bool = True


KERNELS = {
    "sdpa": Kernel(sdpa.obstacles, sdpa.run, wants_seeds=False),
    "reference": Kernel(reference.obstacles, reference.run),
    "chunked": Kernel(chunked.obstacles, chunked.run),
}

# The reference's largest tensor, in elements, up to which it is chosen before `chunked`.
_SMALL = 2**22


def choose(problem: Problem) -> str:
    """What `impl="auto"` runs."""
    if not sdpa.obstacles(problem):
        return "sdpa"
    pairs = problem.lead.numel() * problem.limits.queries * problem.limits.keys
    largest = pairs if problem.pair == "inner" else pairs * problem.query.shape[-1]
    return "reference" if largest <= _SMALL or chunked.obstacles(problem) else "chunked"


__all__ = ["KERNELS", "Kernel", "Problem", "Result", "choose"]
