"""A call over keys that lie on several ranks, as blocks of queries and keys that a kernel works on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dikkat.distributed.order import Span, runs
from dikkat.masking import Restrictions, can_read_values
from dikkat.problem import Problem
from dikkat.problem.arithmetic import derive_seeds
from dikkat.problem.operator import Gradients, Kernel, Output
from dikkat.state import Pooled, join

_INF = float("inf")
# Bytes of a block's rows of queries and results: what it needs for itself is small beside the operands.
_ROWS = 2**20


@dataclass(frozen=True)
class Keys:
    """Some keys, with their values.

    Attributes:
        spans: Where they lie in the sequence; `rows` are those of the tensors here.
        key: (..., m, h), projected.
        value: (..., m, d_v).
        key_bias: (..., m), or None.
    """

    spans: list[Span]
    key: Tensor
    value: Tensor
    key_bias: Tensor | None


@dataclass(frozen=True)
class Shard:
    """What one rank computes: its queries, and who of the whole sequence sees whom.

    Attributes:
        problem: The call: this rank's queries, and no keys of account.
        kernel: What computes a block.
        spans: Where this rank's queries lie in the sequence.
        queries: N, the queries of the whole sequence.
        keys: M, the keys of the whole sequence.
        limits: This rank's queries and all keys, but without causality and biases.
        causal: Query i sees keys j <= i + M − N.
    """

    problem: Problem
    kernel: Kernel
    spans: list[Span]
    queries: int
    keys: int
    limits: Restrictions
    causal: bool

    def of(self, query: Tensor, weight: Tensor | None) -> "Shard":
        """The same with its queries, and the additive scores' weight."""
        return replace(self, problem=self.problem.replaced({"query": query, "weight": weight}))

    def bare(self) -> "Shard":
        """The same without the tensors that autograd keeps."""

        def empty(tensor: Tensor) -> Tensor:
            return tensor.new_empty((*tensor.shape[:-2], 0, tensor.shape[-1]))

        problem = self.problem
        query, key, value = (empty(side.detach()) for side in (problem.query, problem.key, problem.value))
        bare = replace(problem, query=query, key=key, value=value, weight=None, limits=self.limits)
        return replace(self, problem=bare)

    def empty(self) -> Pooled:
        """The state over no key."""
        problem = self.problem
        new, n = problem.query.new_zeros, problem.query.shape[-2]
        total = new((*problem.lead, n), dtype=problem.dtype)
        mean = new((*problem.lead, n, problem.value.shape[-1]), dtype=problem.dtype)
        return Pooled(mean, torch.full_like(total, -_INF), total)

    def pool(self, keys: Keys, into: Pooled) -> None:
        """Join the state over some keys to a state, in place."""
        for rows, _, block in self._blocks(keys):
            made = self.kernel.forward(block)
            own = Pooled(into.mean[..., rows, :], into.peak[..., rows], into.total[..., rows])
            for target, joined in zip(own, join(own, Pooled(*made[:3])), strict=True):
                target.copy_(joined)

    def pull(self, keys: Keys, out: Output, grad: Tensor, into: Gradients) -> None:
        """Add to the gradients of queries and weight, and to those of some keys.

        Args:
            keys: The keys.
            out: The output over all keys of the call, whose peaks and totals make the weights anew.
            grad: The gradient of its mean.
            into: What is added to.
        """
        for rows, cols, block in self._blocks(keys):
            own = Output(out.mean[..., rows, :], out.peak[..., rows], out.total[..., rows], out.weights)
            above = Output(grad[..., rows, :], out.weights, torch.zeros_like(own.total), out.weights)
            found = self.kernel.backward(block, own, above)
            into.query[..., rows, :] += found.query
            into.key[..., cols, :] += found.key
            into.value[..., cols, :] += found.value
            if block.weight is not None:
                into.weight.add_(found.weight)
            if block.limits.key_bias is not None:
                into.key_bias[..., cols] += found.key_bias

    def _blocks(self, keys: Keys) -> Iterator[tuple[slice, slice, Problem]]:
        """The blocks in which a pair may be visible: rows of queries, rows of keys, and the call that they make."""
        for columns in runs(keys.spans):
            for rows in self._rows():
                limits = self._limits(rows, columns, keys.key_bias)
                if limits is None:
                    continue
                named = {
                    "query": self.problem.query[..., rows.rows, :],
                    "key": keys.key[..., columns.rows, :],
                    "value": keys.value[..., columns.rows, :],
                }
                seeds = self.problem.seeds
                if seeds is not None:  # the same in the backward, and others in other blocks
                    index = torch.tensor(rows.first * self.keys + columns.first, device=seeds.device)
                    named["seeds"] = derive_seeds(seeds, index)
                block = replace(self.problem.replaced(named), limits=limits, partial=True)
                yield rows.rows, columns.rows, block.wide()

    def _rows(self) -> Iterator[Span]:
        """This rank's queries, in stretches of bounded size, each of neighbours in the sequence."""
        problem = self.problem
        features = problem.query.shape[-1] + problem.value.shape[-1]
        most = max(1, _ROWS // max(1, problem.lead.numel() * features * problem.dtype.itemsize))
        for span in runs(self.spans):
            count = -(-len(span) // most)
            yield from (span.piece(index, count) for index in range(count))

    def _limits(self, rows: Span, columns: Span, key_bias: Tensor | None) -> Restrictions | None:
        """Who of some queries sees whom of some keys; None where nobody sees any."""
        limits, count = self.limits, len(columns)
        seen = None  # (n,): how many of these keys the queries see by causality
        if self.causal:
            reach = rows.first + self.keys - self.queries - columns.first
            if reach + len(rows) <= 0:
                return None
            if reach + 1 < count:
                seen = torch.arange(reach + 1, reach + 1 + len(rows), device=limits.device).clamp(0, count)
        lens = limits.lens
        if lens is not None:
            lens = lens if lens.shape[-1] == 1 else lens[..., rows.rows]
            lens = (lens - columns.first).clamp(0, count)
            if can_read_values(lens) and lens.numel():
                if not lens.any():
                    return None
                lens = None if bool((lens == count).all()) else lens
        if seen is not None:
            lens = torch.minimum(lens, seen) if lens is not None else seen.expand(*self._ones, -1)
        mask = limits.mask
        if mask is not None:
            mask = mask if mask.shape[-2] == 1 else mask[..., rows.rows, :]
            mask = mask if mask.shape[-1] == 1 else mask[..., columns.first : columns.first + count]
        exclude = limits.exclude
        if exclude is not None:
            exclude = (exclude if exclude.shape[-1] == 1 else exclude[..., rows.rows]) - columns.first
            exclude = torch.where((exclude >= 0) & (exclude < count), exclude, -1)
        bias = None if key_bias is None else key_bias[..., columns.rows]
        return Restrictions(len(rows), count, lens, mask, False, bias, exclude, limits.device)

    @property
    def _ones(self) -> tuple[int, ...]:
        return (1,) * len(self.problem.lead)
