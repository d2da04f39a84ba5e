"""Summaries of weights, computed a few rows at a time instead of from a map of all weights."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from dikkat._core.implementations.reference import pair_scores
from dikkat._core.problem import Problem
from dikkat._core.summary import Asked, Summary, cell_edges, cell_sizes
from dikkat._engine.addresses import on_cpu

# Computes the log-sum-exp (..., r) and the weights (..., r, m) of the rows with these indices (r,).
Compute = Callable[[Tensor], tuple[Tensor, Tensor]]

# Numbers in a block on a CPU and on another device, which would wait for the host between small blocks.
_BLOCK, _DEVICE_BLOCK = 2**22, 2**26
# How far a mask lowers the scores of hidden pairs, at least; −10⁴ is common.
_HIDING = 9000.0
# Keys in a group. The largest weights are searched only in the groups with the largest maxima.
_GROUP = 64


def blocks(queries: int, row_size: int, device: torch.device) -> Iterator[slice]:
    """Yield slices of all rows, at least one slice. `row_size` is how many numbers a row needs."""
    rows_per_block = max(1, (_BLOCK if device.type == "cpu" else _DEVICE_BLOCK) // max(1, row_size))
    for start in range(0, max(1, queries), rows_per_block):
        yield slice(start, min(start + rows_per_block, queries))


def compute_rows(weights: Callable[[Tensor], Tensor], rows: Tensor, row_size: int) -> Tensor:
    """Return the weights (..., r, m) of some rows."""
    return torch.cat([weights(rows[block]) for block in blocks(len(rows), row_size, rows.device)], -2)


def compute_all_rows(compute: Compute, queries: int, row_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp (..., n) and the weights (..., n, m), computed in blocks."""
    index = torch.arange(queries, device=device)
    results = [compute(index[block]) for block in blocks(queries, row_size, device)]
    return torch.cat([lse for lse, _ in results], -1), torch.cat([weights for _, weights in results], -2)


def summarise(compute: Compute, queries: int, keys: int, row_size: int, spec: Asked, device: torch.device) -> Summary:
    """Return the summaries that `spec` requests of the weights of all rows, computed in blocks."""
    index = torch.arange(queries, device=device)
    results: dict[str, list[Tensor]] = defaultdict(list)
    cells = sums = None
    for block in blocks(queries, row_size, device):
        lse, weights = compute(index[block])
        results["lse"].append(lse)
        if spec.peak:
            results["peak"].append(lse + weights.amax(-1).log() if keys else lse)
        if spec.top:
            for name, largest in zip(("weights", "keys"), _largest_weights(weights, spec.top), strict=True):
                results[name].append(largest)
        if spec.entropy:
            results["entropy"].append(torch.special.entr(weights).sum(-1))
        if spec.sums:
            sum_dtype = torch.float64 if device.type == "cpu" else None  # a device would copy all weights to that dtype
            block_sums = weights.sum(-2, dtype=sum_dtype).to(torch.float64)
            sums = block_sums if sums is None else sums.add_(block_sums)
        if spec.cells:
            results["cells"].append(_pooled(weights, spec.cells[1], spec.by_largest))
    dtype = weights.dtype
    if spec.cells:
        row_cells = torch.cat(results["cells"], -2)
        cells = _pooled(row_cells.mT, spec.cells[0], spec.by_largest).mT
        if not spec.by_largest:
            cells = cells / cell_sizes(queries, keys, spec.cells).to(device)
    return Summary(
        torch.cat(results["lse"], -1),
        torch.cat(results["weights"], -2) if spec.top else None,
        torch.cat(results["keys"], -2) if spec.top else None,
        None if sums is None else sums.to(dtype),
        torch.cat(results["entropy"], -1) if spec.entropy else None,
        None if cells is None else cells.to(dtype),
        peak=torch.cat(results["peak"], -1) if spec.peak else None,
    )


def _largest_weights(weights: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """Return each row's `top` largest weights and their keys; equal weights in the order of their keys."""
    keys = weights.shape[-1]
    if top * _GROUP * 2 < keys:
        padding = -keys % _GROUP
        groups = (torch.nn.functional.pad(weights, (0, padding)) if padding else weights).unflatten(-1, (-1, _GROUP))
        group_indices = _indices_of_largest(groups.amax(-1), top).sort(-1).values.unsqueeze(-1)
        candidates = groups.gather(-2, group_indices.expand(*group_indices.shape[:-1], _GROUP)).flatten(-2)
        indices = _indices_of_largest(candidates, top)
        order = group_indices.squeeze(-1).gather(-1, indices // _GROUP) * _GROUP + indices % _GROUP
    else:
        order = _indices_of_largest(weights, top)
    largest = weights.gather(-1, order)
    missing = top - order.shape[-1]  # if there are no keys
    if missing:
        order, largest = (torch.nn.functional.pad(t, (0, missing)) for t in (order, largest))
    return largest, order


def _indices_of_largest(numbers: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest numbers, largest first; equal numbers above 0 in index order."""
    count = min(count, numbers.shape[-1])
    if count == 1:
        return numbers.argmax(-1, keepdim=True)  # PyTorch returns the first of equal numbers
    if not numbers.numel():
        return numbers[..., :count].long()
    if not on_cpu(numbers):  # without the check for ties below, which waits for the device
        return numbers.argsort(dim=-1, descending=True, stable=True)[..., :count]
    values, indices = numbers.topk(count, -1)
    threshold = values[..., -1:]
    indices = indices.sort(-1).values
    indices = indices.gather(-1, numbers.gather(-1, indices).argsort(dim=-1, descending=True, stable=True))
    # `topk` returns any of the numbers equal to its smallest one.
    tied = ((numbers >= threshold).sum(-1) > count) & (threshold[..., 0] > 0)
    if bool(tied.any()):
        indices[tied] = numbers[tied].argsort(dim=-1, descending=True, stable=True)[..., :count]
    return indices


def _pooled(weights: Tensor, cells: int, by_largest: bool) -> Tensor:
    """Pool the last dimension to `cells` cells: their largest weights, or their sums in float64."""
    edges = cell_edges(weights.shape[-1], cells) if cells else []
    sizes = [past - first for first, past in pairwise(edges)]
    cell_weights = weights.split(sizes, -1) if sizes else ()
    if not cell_weights:
        return weights.new_zeros((*weights.shape[:-1], 0))
    if by_largest:
        return torch.stack([cell.amax(-1) for cell in cell_weights], -1)
    return torch.stack([cell.sum(-1, dtype=torch.float64) for cell in cell_weights], -1)


def numbers_of_a_row(problem: Problem) -> int:
    """Return how many numbers a row needs if the features of every pair are in memory."""
    features = 1 if problem.pair == "inner" else max(1, problem.query.shape[-1])
    return math.prod(problem.lead) * problem.restrictions.keys * features


def select_rows(problem: Problem, rows: Tensor) -> Problem:
    """Restrict a call to some of its queries; each of them sees the same keys as before."""
    old, lens = problem.restrictions, problem.restrictions.lens
    offset, lead_ones = old.keys - old.queries, (1,) * len(problem.lead)
    if lens is not None and lens.shape[-1] != 1:
        lens = lens[..., rows]
    if old.causal:
        reach = (rows + 1 + offset).clamp(0, old.keys).reshape(*lead_ones, -1)
        lens = reach if lens is None else torch.minimum(lens, reach)
    mask, bias = (t if t is None or t.shape[-2] == 1 else t[..., rows, :] for t in (old.mask, old.bias))
    starts, exclude = (t if t is None or t.shape[-1] == 1 else t[..., rows] for t in (old.starts, old.exclude))
    new = replace(old, queries=len(rows), causal=False, lens=lens, starts=starts, mask=mask, bias=bias, exclude=exclude)
    return replace(problem, query=problem.query[..., rows, :], restrictions=new)


def select_keys(problem: Problem, keys: slice) -> Problem:
    """Restrict a call to a range of its keys; each query sees the same ones of them as before."""
    old, size, lead_ones = problem.restrictions, keys.stop - keys.start, (1,) * len(problem.lead)
    lens, ends_alike = old.lens, keys.stop == old.keys  # causality aligns the last query with the last key
    if old.causal and not ends_alike:
        reach = torch.arange(1 + old.keys - old.queries, 1 + old.keys, device=old.device).reshape(*lead_ones, -1)
        lens = reach if lens is None else torch.minimum(lens, reach)
    lens, starts = (None if t is None else (t - keys.start).clamp(0, size) for t in (lens, old.starts))
    mask, bias = (t if t is None or t.shape[-1] == 1 else t[..., keys] for t in (old.mask, old.bias))
    exclude = old.exclude
    if exclude is not None:
        exclude = torch.where((exclude >= keys.start) & (exclude < keys.stop), exclude - keys.start, -1)
    new = replace(
        old, keys=size, causal=old.causal and ends_alike, lens=lens, starts=starts, mask=mask, bias=bias,
        key_bias=None if old.key_bias is None else old.key_bias[..., keys], exclude=exclude,
    )  # fmt: skip
    key, value = (tensor[..., keys, :] for tensor in (problem.key, problem.value))
    return replace(problem, key=key, value=value, packed=None, kept=None, restrictions=new)


def select_heads(problem: Problem, heads: Tensor) -> Problem:
    """Restrict a call to some of its heads, the last leading dimension."""
    dim = len(problem.lead) - 1
    tensors = {
        name: tensor if tensor.shape[dim] == 1 else tensor.index_select(dim, heads)
        for name, tensor in problem.tensors().items()
    }
    return problem.unchecked_copy(**tensors, lead=torch.Size((*problem.lead[:-1], len(heads))), kept=None)


def row_logits(problem: Problem) -> Tensor:
    """Return the scores (..., n, m) with all biases, −∞ for hidden pairs, in plain PyTorch."""
    restrictions = problem.restrictions
    visible = restrictions.visible()
    scores = pair_scores(problem, visible if problem.records and restrictions.vary_by_row() else None)
    scores = restrictions.biased(scores).expand(*problem.lead, -1, -1)
    return scores if visible is None else scores.masked_fill(~visible, -math.inf)


def hidden_by_bias(logits: Tensor) -> Tensor:
    """Return which pairs large negative numbers hide, as in masks of −∞, the smallest number, −10⁹ or −10⁴.

    Their weight is 0 in every dtype. A row of only the smallest numbers is hidden.
    """
    smallest = torch.finfo(logits.dtype).min / 2
    return (logits <= smallest) | (logits < logits.amax(-1, keepdim=True) - _HIDING)
