"""The one table of implementations. Everything below is private; `dikkat.implementations` shows it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat.backends import chunked, reference, sdpa
from dikkat.cpu.attention import launch as attention_launch
from dikkat.gpu.attention import launch as gpu_launch
from dikkat.masking import are_harmless, can_read_values
from dikkat.problem import Examined, Problem, Result
from dikkat.problem.operator import Operator
from dikkat.scores import Pair


@dataclass(frozen=True)
class Backend:
    """One way to compute attention.

    Attributes:
        examine: Why it cannot run a problem, and what it found out.
        run: Runs a problem, with what `examine` found out, or None.
        wants_seeds: Whether dropout is ours, and needs seeds from torch's generator.
        kernel: Its forward and backward, where they are ours: what works on keys that come in parts.
    """

    examine: Callable[[Problem], Examined]
    run: Callable[[Problem, Any], Result]
    wants_seeds: bool = True
    kernel: Operator | None = None


def _plain(obstacles: Callable[[Problem], list[str]], run: Callable[[Problem], Result]) -> Backend:
    """An implementation that finds out nothing which its run could use."""
    kernel = run if isinstance(run, Operator) else None
    return Backend(lambda problem: Examined(obstacles(problem)), lambda problem, _: run(problem), kernel=kernel)


BACKENDS = {
    "sdpa": Backend(sdpa.examine, sdpa.run, wants_seeds=False),
    "reference": _plain(reference.obstacles, reference.run),
    "chunked": _plain(chunked.obstacles, chunked.run),
    "numba": _plain(attention_launch.obstacles, attention_launch.run),
    "triton": _plain(gpu_launch.obstacles, gpu_launch.run),
}

# The size of the reference's largest tensor, in elements, up to which it is chosen before `chunked`; and before the
# compiled kernels, whose call takes longer, forward and with the backward: a guess from runs on two busy cores.
_SMALL, _SMALLEST = 2**22, (2**12, 2**14)
# Pairs a feature, or a feature squared, up to which plain products are quicker than PyTorch's fused kernel; and its
# fewest rows: where they cross in 246 shapes, on one thread of an EPYC.
_FORWARD, _MASKED_FORWARD, _BACK, _MASKED_BACK, _ROWS = 2**10, 2**8, 2**15, 2**6, 16
# Projected keys so large are packed.
_PACKED = 2**17
# PyTorch 2.6 has no `is_exporting`.
_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


class Choice(NamedTuple):
    """What `impl="auto"` runs, and what was found out on the way.

    Attributes:
        name: The implementation's name.
        problem: The call, with whether it is harmless, if anybody looked.
        examined: What the implementations that were asked said.
    """

    name: str
    problem: Problem
    examined: dict[str, Examined]


def choose(problem: Problem) -> Choice:
    """What `impl="auto"` runs."""
    if problem.pair == "inner" and problem.limits.vary_by_row() and problem.harmless is None:
        operands = (problem.query, problem.key, problem.value)
        if can_read_values(*operands):
            problem = replace(problem, harmless=are_harmless(*operands))
    examined: dict[str, Examined] = {}

    def runs(name: str) -> bool:
        examined[name] = BACKENDS[name].examine(problem)
        return not examined[name].reasons

    return Choice(_first(problem, runs), problem, examined)


def _first(problem: Problem, runs: Callable[[str], bool]) -> str:
    """The first implementation that serves a problem, the fastest before the others."""
    if _exporting():
        # An exported program serves all sizes and runs without dikkat: no choice by size, no operators of dikkat's own.
        return "reference" if problem.limits.causal or not runs("sdpa") else "sdpa"
    if not _by_plain_products(problem) and runs("sdpa"):
        return "sdpa"
    pairs = math.prod(problem.lead) * problem.limits.queries * problem.limits.keys
    if problem.pair == "inner":
        return "reference" if pairs <= _SMALL or not runs("chunked") else "chunked"
    if pairs * problem.query.shape[-1] <= _SMALLEST[records(problem)]:
        return "reference"
    return next(filter(runs, ("triton" if problem.query.is_cuda else "numba", "chunked")), "reference")


def records(problem: Problem) -> bool:
    """Whether gradients are recorded."""
    operands = (problem.query, problem.key, problem.weight, problem.value)
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)


def _by_plain_products(problem: Problem) -> bool:
    """Whether plain products of small matrices are quicker than a fused kernel, which they are more often than not.

    Softmax takes its share of the time where features are few; a fused kernel saves some of that, more where there are
    lengths, which are one more pass over the pairs. Its backward computes all products once more.
    """
    if problem.pair != "inner" or not problem.query.is_cpu or torch.compiler.is_compiling():
        return False
    limits, features = problem.limits, max(problem.query.shape[-1], problem.value.shape[-1])
    pairs = math.prod(problem.lead) * limits.queries * limits.keys
    if pairs > _SMALL:
        return False
    masked = limits.lens is not None
    if records(problem):
        return pairs <= (_MASKED_BACK * features**2 if masked else _BACK * features)
    most = (_MASKED_FORWARD if masked else _FORWARD) * features
    return pairs <= most or limits.queries < _ROWS or limits.keys < (1 if masked else 4) * features


def pack(pair: Pair, key: Tensor) -> Tensor | None:
    """Projected keys in the form that a kernel reads many times, for `Problem.packed`; None where that does not pay."""
    worth = key.numel() > _PACKED and attention_launch.can_pack(pair, key)
    return attention_launch.pack(key.detach()) if worth else None


__all__ = ["BACKENDS", "Backend", "Choice", "choose", "pack"]
