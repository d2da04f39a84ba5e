"""The table of implementations, and the choice that `impl="auto"` makes. Private: see `dikkat.implementations`."""

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
    """An implementation of attention."""

    examine: Callable[[Problem], Examined]  # returns obstacles to a problem, and a value for `run`
    run: Callable[..., Result]  # runs a problem, with that value if there is one
    wants_seeds: bool = True  # whether its dropout needs seeds from torch's generator
    scales: bool = False  # whether it multiplies by `Problem.scale`; else an operand is scaled
    skips_hidden: bool = False  # whether it never reads hidden keys and values
    # Returns, for calls in a problem's shapes, a function of (query, key, weight, value, lens) that returns mean and
    # weights, or None. On a device it takes `hidden` for `lens`, and hidden queries and keys are 0.
    make_fast_run: Callable[[Problem], Callable[..., list[Tensor] | None] | None] | None = None


BACKENDS = {
    "sdpa": Backend(sdpa.examine, sdpa.run, wants_seeds=False, scales=True, make_fast_run=sdpa.make_fast_run),
    "reference": Backend(
        reference.examine, reference.run, scales=True,
        make_fast_run=lambda problem: (reference if on_cpu(problem.query) else pairwise).make_fast_run(problem),
    ),
    "chunked": Backend(chunked.examine, chunked.run),
    "products": Backend(products.examine, products.run),
    "numba-few": Backend(few.examine, few.run, scales=True, skips_hidden=True, make_fast_run=few.make_fast_run),
    "numba": Backend(attention_launch.examine, attention_launch.run),
    "triton": Backend(gpu_launch.examine, gpu_launch.run),
}  # fmt: skip

# The largest tensor, in elements, for which the reference is preferred to `chunked`; a smaller one for windows and
# packed sequences, whose hidden pairs kernels skip: both take 2.0 ms for 4 heads of 256 rows in sequences of 16.
_SMALL, _SMALL_WINDOWED = 2**22, 2**18
# From this many numbers on, projected keys are packed.
_PACKED = 2**17
# PyTorch 2.6 has no `is_exporting`.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


class Crossovers(NamedTuple):
    """Measured sizes; each is the largest for plain products by the reference, unless its comment differs.

    `python -m benchmarks.attention.crossovers` measures `inner`, `inner_back`, `inner_masked_back` and `kernel_back`
    on a machine. The defaults lie between results for one and two threads of an EPYC. The other sizes are from the
    shapes of `benchmarks.attention.small`, timed with each implementation.

    A pair is a query and a key of one batch element. A fused kernel saves part of the softmax's time, which matters
    for few features, but its backward recomputes all products. The compiled kernel for few queries is one call that
    reads no hidden key, but half as fast as products of large matrices.
    """

    inner: int = 2**12  # pairs / features, compared with PyTorch's fused kernel; with lengths half of it
    inner_back: int = 2**15  # pairs / features, forward and backward
    inner_masked_back: int = 2**8  # pairs / features², with lengths, forward and backward
    # Fewer queries use plain products at any size, or with lengths the compiled kernel.
    rows: int = 16
    # Up to this many keys use the compiled kernel. With lengths, up to four times as many use no fused kernel.
    few_keys: int = 16
    # With lengths and a backward: numbers in the keys (times queries, for few keys) from which the compiled kernel is
    # faster.
    few_back: int = 2**18
    # With a backward: numbers in the keys from which the compiled kernel is faster for one query that sees all keys.
    # Forward: the largest m · h at which it is faster for a few queries of a batch element.
    few_whole: int = 2**20
    # Pairs · features of additive and distance scores with a backward. Forward, compiled kernels are always faster.
    kernel_back: int = 2**16
    # Pairs · features on a device: plain products take no longer than the host needs to launch other kernels. They
    # build all these numbers: half a gigabyte.
    device: int = 2**27
    # Pairs · features in a CUDA graph, which launches without the host.
    captured: int = 2**22
    # n · m / (n + m) from which, in a CUDA graph with a backward, sines are faster than a tanh per pair and feature.
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
        masked, key_numbers = problem.restrictions.lens is not None, problem.lead.numel() * m * features
        if problem.packed is not None:
            return False
        if problem.records and masked:
            return key_numbers >= self.few_back if n <= 4 else m <= self.few_keys and n * key_numbers >= self.few_back
        if problem.records:
            return n == 1 and key_numbers >= self.few_whole
        if m <= self.few_keys or n <= (4 if masked else 1):
            return True
        wide = features >= 64
        few = n <= (self.rows if masked else 4) if wide else masked and n * key_numbers <= self.few_back
        return m * features <= self.few_whole and (few or (wide and masked and m <= 4 * self.few_keys))

    def by_reference(self, problem: Problem, captured: bool = False) -> bool:
        """Return whether the reference is faster than the compiled kernels for additive and distance scores."""
        size = pairs_of(problem) * problem.query.shape[-1]
        if on_cpu(problem.query):
            return problem.records and size <= self.kernel_back
        return size <= (self.captured if captured else self.device)

    def on_device(self, problem: Problem, captured: bool) -> tuple[str, ...]:
        """Return the names of a device's kernels, the fastest first."""
        n, m = problem.restrictions.queries, problem.restrictions.keys
        by_tanh = captured and problem.records and n * m < self.thin * (n + m)
        return ("triton", "products", "chunked") if by_tanh else ("products", "triton", "chunked")


def pairs_of(problem: Problem) -> int:
    return math.prod(problem.lead) * problem.restrictions.queries * problem.restrictions.keys


CROSSOVERS = Crossovers()


class Choice(NamedTuple):
    """The implementation for `impl="auto"`, the call (with `finite`, if examined), and each `Examined` by name."""

    name: str
    problem: Problem
    examined: dict[str, Examined]


def choose(problem: Problem, captured: bool = False) -> Choice:
    """Choose the implementation for `impl="auto"`. `captured`: a CUDA graph runs it, so launches cost nothing."""
    if problem.pair == "inner" and problem.restrictions.vary_by_row() and problem.finite is None:
        operands = (problem.query, problem.key, problem.value)
        if can_read_values(*operands):
            problem = replace(problem, finite=are_finite(*operands))
    examined: dict[str, Examined] = {}

    def runs(name: str) -> bool:
        examined[name] = BACKENDS[name].examine(problem)
        return not examined[name].reasons

    return Choice(_find_fastest(problem, runs, captured), problem, examined)


def _find_fastest(problem: Problem, runs: Callable[[str], bool], captured: bool = False) -> str:
    if _is_exporting():
        # An exported program serves any size and runs without dikkat: no choice by size, no operators of dikkat.
        return "reference" if problem.restrictions.causal or not runs("sdpa") else "sdpa"
    if _prefers_few(problem) and runs("numba-few"):
        return "numba-few"
    if problem.pair == "inner":
        if not _prefers_reference(problem) and runs("sdpa"):
            return "sdpa"
        windowed = problem.restrictions.starts is not None
        if pairs_of(problem) <= (_SMALL_WINDOWED if windowed else _SMALL):
            return "reference"
        # The Numba kernel skips vectors of hidden keys and reads a bias once.
        prefers_numba = problem.restrictions.bias is not None or windowed
        return next(filter(runs, ("numba", "chunked") if prefers_numba else ("chunked",)), "reference")
    if CROSSOVERS.by_reference(problem, captured):
        return "reference"
    tiled_names = ("numba", "chunked") if on_cpu(problem.query) else CROSSOVERS.on_device(problem, captured)
    return next(filter(runs, tiled_names), "reference")


def _prefers_few(problem: Problem) -> bool:
    if not on_cpu(problem.query) or torch.compiler.is_compiling():
        return False
    if problem.pair == "inner":
        return CROSSOVERS.by_few(problem)
    return not CROSSOVERS.by_reference(problem) and few.is_quicker(problem)


def _prefers_reference(problem: Problem) -> bool:
    if torch.compiler.is_compiling() or pairs_of(problem) > _SMALL:
        return False
    if on_cpu(problem.query):
        return CROSSOVERS.by_products(problem)
    # On a device the fused kernel's mask takes more operations to make than products of few queries.
    hides, few = problem.restrictions.may_hide(), problem.restrictions.queries <= CROSSOVERS.rows
    return hides and few and problem.narrow_dtype is torch.float32


def pack(pair: Pair, key: Tensor) -> Tensor | None:
    """Return projected keys packed for `Problem.packed`, or None if packing does not pay off."""
    pays_off = key.numel() > _PACKED and attention_launch.can_pack(pair, key)
    return attention_launch.pack(key.detach()) if pays_off else None


__all__ = ["BACKENDS", "Backend", "Choice", "choose", "pack"]
