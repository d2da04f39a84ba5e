"""The one table of implementations. Everything below is private; `dikkat.implementations` shows it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat._core.implementations import chunked, pairwise, products, reference, sdpa
from dikkat._core.implementations.numba import few
from dikkat._core.implementations.numba import launch as attention_launch
from dikkat._core.implementations.triton import launch as gpu_launch
from dikkat._core.problem import Examined, Problem, Result
from dikkat._core.restrictions import are_finite
from dikkat._engine.addresses import on_cpu
from dikkat._engine.pytorch_state import can_read_values
from dikkat.scores import Pair


@dataclass(frozen=True)
class Backend:
    """One way to compute attention."""

    examine: Callable[[Problem], Examined]  # the reasons why it cannot run a problem, and a value that `run` can use
    run: Callable[..., Result]  # runs a problem, given that value too where there is one
    wants_seeds: bool = True  # whether its dropout needs seeds from torch's generator
    scales: bool = False  # whether it multiplies inner products by `Problem.scale`; others have an operand that is
    skips_hidden: bool = False  # whether it reads no key or value that is hidden, forward or backward
    # For calls like a problem, a function of (query, key, weight, value, lens) that gives mean and weights at once, on
    # a device of (query, key, weight, value, hidden) with hidden queries and keys set to 0; None where it needs a
    # problem.
    ready: Callable[[Problem], Callable[..., list[Tensor] | None] | None] | None = None


BACKENDS = {
    "sdpa": Backend(sdpa.examine, sdpa.run, wants_seeds=False, scales=True, ready=sdpa.ready),
    "reference": Backend(
        reference.examine, reference.run, scales=True,
        ready=lambda problem: (reference if on_cpu(problem.query) else pairwise).ready(problem),
    ),
    "chunked": Backend(chunked.examine, chunked.run),
    "products": Backend(products.examine, products.run),
    "numba-few": Backend(few.examine, few.run, scales=True, skips_hidden=True, ready=few.ready),
    "numba": Backend(attention_launch.examine, attention_launch.run),
    "triton": Backend(gpu_launch.examine, gpu_launch.run),
}  # fmt: skip

# The largest tensor, in elements, for which the reference is preferred to `chunked`; and with windows or packed
# sequences, of which the kernels skip most pairs: both take 2.0 ms for 4 heads of 256 rows in sequences of 16.
_SMALL, _SMALL_WINDOWED = 2**22, 2**18
# From this many numbers on, projected keys are packed.
_PACKED = 2**17
# PyTorch 2.6 has no `is_exporting`.
_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


class Crossovers(NamedTuple):
    """Sizes, as measured, up to which the plain products of the reference are chosen, where nothing else is said.

    `python -m benchmarks.attention.crossovers` times both ways of many shapes and finds `inner`, `inner_back`,
    `inner_masked_back` and `kernel_back` on a machine; the defaults are between those for one thread and for two of an
    EPYC. The others are from the shapes of `benchmarks.attention.small`, timed by each implementation.

    A pair is a query and a key of one batch element. Softmax takes its share of the time where features are few; a
    fused kernel saves some of that. Its backward computes all products once more. The compiled kernel for few queries
    is one call that reads no hidden key, but half as fast as products of large matrices.
    """

    inner: int = 2**12  # pairs a feature, before PyTorch's fused kernel; half of it with lengths
    inner_back: int = 2**15  # pairs a feature, with the backward
    inner_masked_back: int = 2**8  # pairs a feature squared, with lengths and the backward
    # Fewer queries than these are left to plain products at any size, or with lengths to the compiled kernel.
    rows: int = 16
    # Up to so many keys are left to the compiled kernel; with lengths four times as many to no fused one.
    few_keys: int = 16
    # Numbers in the keys (for few keys times queries), from which on the compiled kernel is quicker with lengths and
    # the backward.
    few_back: int = 2**18
    # The same for a single query that sees all keys; forward, for a few queries of a batch element, up to.
    few_whole: int = 2**20
    # Pairs times features, before the compiled kernels of the other pair functions with the backward. Without it they
    # are quicker at any size.
    kernel_back: int = 2**16
    # Pairs times features, on a device: up to here the few kernels of plain products take no longer than the host needs
    # to launch others. They build each of these numbers: half a gigabyte.
    device: int = 2**27
    # The same where a CUDA graph launches them: up to here they are themselves as quick as others.
    captured: int = 2**22
    # n · m / (n + m), from which on sines are quicker than one tanh a pair and feature with the backward there.
    thin: int = 32

    def by_products(self, problem: Problem) -> bool:
        restrictions, features = problem.restrictions, max(problem.query.shape[-1], problem.value.shape[-1])
        pairs, keys, masked = pairs_of(problem), restrictions.keys, restrictions.lens is not None
        if keys <= (4 if masked else 1) * self.few_keys:
            return True
        if problem.records and masked:
            return pairs <= self.inner_masked_back * features**2
        if problem.records:
            return pairs <= self.inner_back * features
        few = pairs * (1 + masked) <= self.inner * features
        return few or restrictions.queries < self.rows or keys < (1 if masked else 4) * features

    def by_few(self, problem: Problem) -> bool:
        n, m, features = problem.restrictions.queries, problem.restrictions.keys, problem.query.shape[-1]
        masked, numbers = problem.restrictions.lens is not None, problem.lead.numel() * m * features
        if problem.packed is not None:
            return False
        if problem.records and masked:
            return numbers >= self.few_back if n <= 4 else m <= self.few_keys and n * numbers >= self.few_back
        if problem.records:
            return n == 1 and numbers >= self.few_whole
        if m <= self.few_keys or n <= (4 if masked else 1):
            return True
        wide = features >= 64
        few = n <= (self.rows if masked else 4) if wide else masked and n * numbers <= self.few_back
        return m * features <= self.few_whole and (few or (wide and masked and m <= 4 * self.few_keys))

    def by_reference(self, problem: Problem, captured: bool = False) -> bool:
        """Whether the reference is faster than the compiled kernels for additive and distance scores."""
        size = pairs_of(problem) * problem.query.shape[-1]
        if on_cpu(problem.query):
            return problem.records and size <= self.kernel_back
        return size <= (self.captured if captured else self.device)

    def on_device(self, problem: Problem, captured: bool) -> tuple[str, ...]:
        """The names of the kernels for a device, the fastest first."""
        n, m = problem.restrictions.queries, problem.restrictions.keys
        by_tanh = captured and problem.records and n * m < self.thin * (n + m)
        return ("triton", "products", "chunked") if by_tanh else ("products", "triton", "chunked")


def pairs_of(problem: Problem) -> int:
    return math.prod(problem.lead) * problem.restrictions.queries * problem.restrictions.keys


CROSSOVERS = Crossovers()


class Choice(NamedTuple):
    """The implementation that `impl="auto"` runs, the call (with `finite`, if examined), and all answers by name."""

    name: str
    problem: Problem
    examined: dict[str, Examined]


def choose(problem: Problem, captured: bool = False) -> Choice:
    """Choose the implementation of `impl="auto"`; if `captured`, for a CUDA graph, in which a launch takes no time."""
    if problem.pair == "inner" and problem.restrictions.vary_by_row() and problem.finite is None:
        operands = (problem.query, problem.key, problem.value)
        if can_read_values(*operands):
            problem = replace(problem, finite=are_finite(*operands))
    examined: dict[str, Examined] = {}

    def runs(name: str) -> bool:
        examined[name] = BACKENDS[name].examine(problem)
        return not examined[name].reasons

    return Choice(_first(problem, runs, captured), problem, examined)


def _first(problem: Problem, runs: Callable[[str], bool], captured: bool = False) -> str:
    """The name of the fastest implementation that serves a problem."""
    if _exporting():
        # An exported program serves all sizes and runs without dikkat: no choice by size, no operators of dikkat's own.
        return "reference" if problem.restrictions.causal or not runs("sdpa") else "sdpa"
    if _few_is_quicker(problem) and runs("numba-few"):
        return "numba-few"
    if problem.pair == "inner":
        if not _by_plain_products(problem) and runs("sdpa"):
            return "sdpa"
        windowed = problem.restrictions.starts is not None
        if pairs_of(problem) <= (_SMALL_WINDOWED if windowed else _SMALL):
            return "reference"
        # Compiled code skips masked keys a vector at a time, and reads a bias once.
        compiled = problem.restrictions.bias is not None or windowed
        return next(filter(runs, ("numba", "chunked") if compiled else ("chunked",)), "reference")
    if CROSSOVERS.by_reference(problem, captured):
        return "reference"
    tiled = ("numba", "chunked") if on_cpu(problem.query) else CROSSOVERS.on_device(problem, captured)
    return next(filter(runs, tiled), "reference")


def _few_is_quicker(problem: Problem) -> bool:
    if not on_cpu(problem.query) or torch.compiler.is_compiling():
        return False
    if problem.pair == "inner":
        return CROSSOVERS.by_few(problem)
    return not CROSSOVERS.by_reference(problem) and few.is_quicker(problem)


def _by_plain_products(problem: Problem) -> bool:
    """Whether plain products of small matrices are quicker than a fused kernel, which they are more often than not."""
    if torch.compiler.is_compiling() or pairs_of(problem) > _SMALL:
        return False
    if on_cpu(problem.query):
        return CROSSOVERS.by_products(problem)
    # On a device the fused kernel has a mask made for it, in more operations than products of few queries are.
    hides, few = problem.restrictions.may_hide(), problem.restrictions.queries <= CROSSOVERS.rows
    return hides and few and problem.narrow_dtype is torch.float32


def pack(pair: Pair, key: Tensor) -> Tensor | None:
    """Projected keys in the form that a kernel reads many times, for `Problem.packed`; None where that does not pay."""
    worth = key.numel() > _PACKED and attention_launch.can_pack(pair, key)
    return attention_launch.pack(key.detach()) if worth else None


__all__ = ["BACKENDS", "Backend", "Choice", "choose", "pack"]
