"""The one table of implementations. Everything below is private; `dikkat.implementations` shows it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dikkat.backends import chunked, reference, sdpa
from dikkat.cpu.attention import launch as attention_launch
from dikkat.gpu.attention import launch as gpu_launch
from dikkat.problem import Problem, Result
from dikkat.scores import Pair


@dataclass(frozen=True)
class Backend:
    """One way to compute attention.

    Attributes:
        obstacles: Why it cannot run a problem; empty where it can.
        run: Runs it.
        wants_seeds: Whether dropout is ours, and needs seeds from torch's generator.
    """

    obstacles: Callable[[Problem], list[str]]
    run: Callable[[Problem], Result]
    wants_seeds: bool = True


BACKENDS = {
    "sdpa": Backend(sdpa.obstacles, sdpa.run, wants_seeds=False),
    "reference": Backend(reference.obstacles, reference.run),
    "chunked": Backend(chunked.obstacles, chunked.run),
    "numba": Backend(attention_launch.obstacles, attention_launch.run),
    "triton": Backend(gpu_launch.obstacles, gpu_launch.run),
}

# The reference's largest tensor, in elements, up to which it is chosen before `chunked`, and before a fused kernel:
# where they crossed on two CPU cores.
_SMALL, _SMALLEST = 2**22, 2**17
# PyTorch 2.6 cannot say.
_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def choose(problem: Problem) -> str:
    """What `impl="auto"` runs."""
    if _exporting():
        # An exported program serves all sizes and runs without dikkat: no choice by size, no operators of dikkat's own.
        return "reference" if problem.limits.causal or sdpa.obstacles(problem) else "sdpa"
    if not sdpa.obstacles(problem):
        return "sdpa"
    pairs = math.prod(problem.lead) * problem.limits.queries * problem.limits.keys
    if problem.pair == "inner":
        return "reference" if pairs <= _SMALL or chunked.obstacles(problem) else "chunked"
    largest = pairs * problem.query.shape[-1]
    # For a single query packing keys takes longer than comparing them, if it has not been done before.
    alone = problem.limits.queries == 1 and problem.packed is None
    if largest <= (_SMALL if alone else _SMALLEST):
        return "reference"
    for name in ("triton" if problem.query.is_cuda else "numba", "chunked"):
        if not BACKENDS[name].obstacles(problem):
            return name
    return "reference"


def pack(pair: Pair, key: Tensor) -> Tensor | None:
    """What is kept of projected keys that are attended to many times, for `Problem.packed`; None where nothing is."""
    worth = key.numel() > _SMALLEST and attention_launch.can_pack(pair, key)
    return attention_launch.pack(key.detach()) if worth else None


__all__ = ["BACKENDS", "Backend", "Problem", "Result", "choose", "pack"]
