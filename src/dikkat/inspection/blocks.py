"""Summaries from blocks of whole rows of weights, whoever computes those: a few rows at a time, never the map."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from dikkat._core.problem import Problem
from dikkat._core.summary import Asked, Summary, cell_edges, cell_sizes
from dikkat._engine.addresses import on_cpu

# The log-sum-exp (..., r) and the weights (..., r, m) of some rows, in the dtype that is computed in.
RowsOf = Callable[[Tensor], tuple[Tensor, Tensor]]

# Numbers of a block, of the weights, or of a feature of each pair where scores are made of such; more on a device,
# which would wait for the host between small ones.
_BLOCK, _DEVICE_BLOCK = 2**22, 2**26
# Keys of a group, of which the largest weight is known before one looks for the largest of all.
_GROUP = 64


def blocks(queries: int, each: int, device: torch.device) -> Iterator[slice]:
    """All rows, as many at a time as keep a block of `each` numbers a row small; at least one block."""
    step = max(1, (_BLOCK if device.type == "cpu" else _DEVICE_BLOCK) // max(1, each))
    for start in range(0, max(1, queries), step):
        yield slice(start, min(start + step, queries))


def in_blocks(weights: Callable[[Tensor], Tensor], rows: Tensor, each: int) -> Tensor:
    """The weights of some rows, few at a time."""
    return torch.cat([weights(rows[block]) for block in blocks(len(rows), each, rows.device)], -2)


def all_rows(rows_of: RowsOf, queries: int, each: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The log-sum-exp and the weights of all rows, computed few at a time."""
    index = torch.arange(queries, device=device)
    parts = [rows_of(index[block]) for block in blocks(queries, each, device)]
    return torch.cat([lse for lse, _ in parts], -1), torch.cat([weights for _, weights in parts], -2)


def summarise(rows_of: RowsOf, queries: int, keys: int, each: int, asked: Asked, device: torch.device) -> Summary:
    """The requested summaries of the weights."""
    index = torch.arange(queries, device=device)
    kept: dict[str, list[Tensor]] = defaultdict(list)
    cells = sums = None
    for block in blocks(queries, each, device):
        of_rows, weights = rows_of(index[block])
        kept["lse"].append(of_rows)
        if asked.top:
            for name, largest in zip(("weights", "keys"), _largest(weights, asked.top), strict=True):
                kept[name].append(largest)
        if asked.entropy:
            kept["entropy"].append(torch.special.entr(weights).sum(-1))
        if asked.sums:
            wide = torch.float64 if device.type == "cpu" else None  # a device would make a copy of all in that type
            of_block = weights.sum(-2, dtype=wide).to(torch.float64)
            sums = of_block if sums is None else sums.add_(of_block)
        if asked.cells:
            kept["cells"].append(_pooled(weights, asked.cells[1], asked.by_largest))
    dtype = weights.dtype
    if asked.cells:
        by_row = torch.cat(kept["cells"], -2)
        cells = _pooled(by_row.mT, asked.cells[0], asked.by_largest).mT
        if not asked.by_largest:
            cells = cells / cell_sizes(queries, keys, asked.cells).to(device)
    return Summary(
        torch.cat(kept["lse"], -1),
        torch.cat(kept["weights"], -2) if asked.top else None,
        torch.cat(kept["keys"], -2) if asked.top else None,
        None if sums is None else sums.to(dtype),
        torch.cat(kept["entropy"], -1) if asked.entropy else None,
        None if cells is None else cells.to(dtype),
    )


def _largest(weights: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The largest weights of each row with their keys, the first of equal ones first."""
    keys = weights.shape[-1]
    if top * _GROUP * 2 < keys:  # they are in the groups that have the largest ones, of equal ones in the first
        rest = -keys % _GROUP
        groups = (torch.nn.functional.pad(weights, (0, rest)) if rest else weights).unflatten(-1, (-1, _GROUP))
        chosen = _first(groups.amax(-1), top).sort(-1).values.unsqueeze(-1)
        some = groups.gather(-2, chosen.expand(*chosen.shape[:-1], _GROUP)).flatten(-2)
        place = _first(some, top)
        order = chosen.squeeze(-1).gather(-1, place // _GROUP) * _GROUP + place % _GROUP
    else:
        order = _first(weights, top)
    largest = weights.gather(-1, order)
    missing = top - order.shape[-1]  # where there are no keys at all
    if missing:
        order, largest = (torch.nn.functional.pad(t, (0, missing)) for t in (order, largest))
    return largest, order


def _first(numbers: Tensor, count: int) -> Tensor:
    """Where the largest are, of equal ones above 0 the first, those first that are first."""
    count = min(count, numbers.shape[-1])
    if count == 1:
        return numbers.argmax(-1, keepdim=True)  # the first of equal ones, as PyTorch says
    if not numbers.numel():
        return numbers[..., :count].long()
    if not on_cpu(numbers):  # where nothing is to wait for what is seen below
        return numbers.argsort(dim=-1, descending=True, stable=True)[..., :count]
    values, places = numbers.topk(count, -1)
    least = values[..., -1:]
    places = places.sort(-1).values
    places = places.gather(-1, numbers.gather(-1, places).argsort(dim=-1, descending=True, stable=True))
    # Of numbers equal to the least of them, `topk` takes any.
    tied = ((numbers >= least).sum(-1) > count) & (least[..., 0] > 0)
    if bool(tied.any()):
        places[tied] = numbers[tied].argsort(dim=-1, descending=True, stable=True)[..., :count]
    return places


def _pooled(weights: Tensor, cells: int, by_largest: bool) -> Tensor:
    """Pool the last dimension to so many cells, by sums in float64 or by the largest."""
    edges = cell_edges(weights.shape[-1], cells) if cells else []
    sizes = [past - first for first, past in pairwise(edges)]
    parts = weights.split(sizes, -1) if sizes else ()
    if not parts:
        return weights.new_zeros((*weights.shape[:-1], 0))
    if by_largest:
        return torch.stack([part.amax(-1) for part in parts], -1)
    return torch.stack([part.sum(-1, dtype=torch.float64) for part in parts], -1)


def numbers_of_a_row(problem: Problem) -> int:
    """The numbers that a row of a call takes where every pair is built."""
    features = 1 if problem.pair == "inner" else max(1, problem.query.shape[-1])
    return math.prod(problem.lead) * problem.restrictions.keys * features


def of_rows(problem: Problem, rows: Tensor) -> Problem:
    """The call of some of its queries: each row sees what it saw."""
    whole, lens = problem.restrictions, problem.restrictions.lens
    count, ones = whole.keys - whole.queries, (1,) * len(problem.lead)
    if lens is not None and lens.shape[-1] != 1:
        lens = lens[..., rows]
    if whole.causal:
        reach = (rows + 1 + count).clamp(0, whole.keys).reshape(*ones, -1)
        lens = reach if lens is None else torch.minimum(lens, reach)
    mask, bias = (t if t is None or t.shape[-2] == 1 else t[..., rows, :] for t in (whole.mask, whole.bias))
    starts, exclude = (t if t is None or t.shape[-1] == 1 else t[..., rows] for t in (whole.starts, whole.exclude))
    cut = replace(
        whole, queries=len(rows), causal=False, lens=lens, starts=starts, mask=mask, bias=bias, exclude=exclude
    )
    return replace(problem, query=problem.query[..., rows, :], restrictions=cut)
