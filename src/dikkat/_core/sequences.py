"""Sequences end to end: where they begin, and the calls of one sequence each that such a call consists of."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from dikkat._core.arithmetic import derive_seeds
from dikkat._core.operators import Backward, Forward, Gradients, Output
from dikkat._core.problem import Problem, Result
from dikkat._engine.addresses import check_dense
from dikkat._engine.pytorch_state import can_read_values

# The operands that have a row for each query, or for each key, and the dimension that counts them.
_ROWS = {"query": ("query", -2), "lens": ("query", -1), "starts": ("query", -1)}
_ROWS |= {"key": ("key", -2), "value": ("key", -2), "key_bias": ("key", -1)}


def check_offsets(name: str, offsets: object, rows: int, device: torch.device) -> None:
    """Validate where sequences begin, the numbers too where they may be read."""
    if not isinstance(offsets, Tensor) or offsets.dtype not in (torch.int32, torch.int64):
        came = f"dtype {offsets.dtype}" if isinstance(offsets, Tensor) else type(offsets).__name__
        raise TypeError(f"{name}: got {came}; expected a torch.Tensor of int32 or int64")
    check_dense(name, offsets)
    if offsets.ndim != 1 or not len(offsets):
        raise ValueError(f"{name}: got shape {tuple(offsets.shape)}; expected (sequences + 1,)")
    if offsets.device != device:
        raise ValueError(f"{name}: got a tensor on {offsets.device}; expected the query's device, {device}")
    if can_read_values(offsets):
        _lengths(name, offsets, rows)


def _lengths(name: str, offsets: Tensor, rows: int) -> Tensor:
    """The length of each sequence, of offsets that go from 0 to `rows` without falling."""
    numbers = offsets.detach().to(torch.int64)
    falls, (first, last) = numbers[1:] < numbers[:-1], numbers[[0, -1]].tolist()
    if first != 0:
        raise ValueError(f"{name}: got {first} first; expected 0, where the first sequence begins")
    if bool(falls.any()):
        at = int(falls.nonzero()[0])
        raise ValueError(
            f"{name}: got {int(numbers[at])} and then {int(numbers[at + 1])}, at {at + 1}; expected numbers that "
            "never fall: where each sequence begins, and where the last one ends"
        )
    if last != rows:
        raise ValueError(f"{name}: got {last} last; expected {rows}, the number of rows")
    return numbers.diff()


def lengths_of(problem: Problem) -> tuple[Tensor, Tensor]:
    """How many queries and how many keys each sequence of a call has; checked, since kernels believe them."""
    found, tensors = [], problem.tensors()
    for name, rows in (("query_offsets", problem.restrictions.queries), ("key_offsets", problem.restrictions.keys)):
        offsets = tensors[name]
        if offsets.numel() != offsets.shape[-1]:
            raise ValueError(f"{name}: got shape {tuple(offsets.shape)}; expected the same offsets for all calls")
        found.append(_lengths(name, offsets.reshape(-1), rows))
    return found[0], found[1]


def split_sequences(problem: Problem) -> Iterator[tuple[Problem, dict[str, slice]]]:
    """Yield each sequence as a `Problem` of its own, with the slices of its queries, its keys and its pairs.

    Of a call without sequences the call itself, which has no rows.
    """
    queries, keys = (lengths.tolist() for lengths in lengths_of(problem))
    whole = problem.unchecked_copy(query_offsets=None, key_offsets=None)
    if not queries:
        yield whole, dict.fromkeys(("query", "key", "pair"), slice(0, 0))
    sizes, tensors = {"query": queries, "key": keys}, problem.tensors()
    cut = {name: tensors[name].split(sizes[of], dim) for name, (of, dim) in _ROWS.items() if name in tensors}
    ends = {"query": 0, "key": 0, "pair": 0}
    for at, (n, m) in enumerate(zip(queries, keys, strict=True)):
        own = whole.unchecked_copy(restrictions=whole.restrictions.unchecked_copy(queries=n, keys=m))
        own = own.with_tensors(tensors | {name: parts[at] for name, parts in cut.items()})
        rows = {}
        for of, length in (("query", n), ("key", m), ("pair", n * m)):
            rows[of] = slice(ends[of], ends[of] + length)
            ends[of] += length
        seeds = None if problem.seeds is None else derive_seeds(problem.seeds, torch.full_like(problem.seeds, at))
        yield own.unchecked_copy(seeds=seeds, query_offsets=None, key_offsets=None), rows


def by_sequence(run: Callable[[Problem], Result]) -> Callable[[Problem], Result]:
    """An implementation of calls with offsets from one of calls without."""

    def runs(problem: Problem) -> Result:
        if problem.query_offsets is None:
            return run(problem)
        mean, lse, weights, tail = zip(*(run(own) for own, _ in split_sequences(problem)), strict=True)
        pairs = [None if each is None else each.flatten(-2) for each in weights]
        return Result(torch.cat(mean, -2), _end_to_end(lse), _end_to_end(pairs), _end_to_end(tail))

    return runs


def forward_by_sequence(forward: Forward) -> Forward:
    """An operator's forward of calls with offsets from one of calls without."""

    def forwards(problem: Problem) -> Output:
        if problem.query_offsets is None:
            return forward(problem)
        mean, peak, total, weights = zip(*(forward(own) for own, _ in split_sequences(problem)), strict=True)
        pairs = torch.cat([each.flatten(-2) for each in weights], -1) if problem.wants_weights else weights[0]
        return Output(torch.cat(mean, -2), torch.cat(peak, -1), torch.cat(total, -1), pairs)

    return forwards


def backward_by_sequence(backward: Backward) -> Backward:
    """An operator's backward of calls with offsets from one of calls without."""

    def backwards(problem: Problem, out: Output, grads: Output) -> Gradients:
        if problem.query_offsets is None:
            return backward(problem, out, grads)
        found = []
        for own, rows in split_sequences(problem):
            found.append(backward(own, _cut(out, own, rows), _cut(grads, own, rows)))
        query, key, weight, value, bias, key_bias = zip(*found, strict=True)
        shared = torch.stack(weight).sum(0)
        by_bias = torch.cat(key_bias, -1) if problem.restrictions.key_bias is not None else key_bias[0]
        return Gradients(torch.cat(query, -2), torch.cat(key, -2), shared, torch.cat(value, -2), bias[0], by_bias)

    return backwards


def _cut(whole: Output, own: Problem, rows: dict[str, slice]) -> Output:
    """One sequence's share of an output, or of its gradient."""
    weights, query = whole.weights, rows["query"]
    if own.wants_weights:
        weights = weights[..., rows["pair"]].unflatten(-1, (own.restrictions.queries, own.restrictions.keys))
    return Output(whole.mean[..., query, :], whole.peak[..., query], whole.total[..., query], weights)


def _end_to_end(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there, -1) if there else None
