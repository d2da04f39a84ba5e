"""Summaries of the weights of inner products on a GPU: tiles of scores, each read once by a kernel."""

import torch

from dikkat._core.arithmetic import flat, product
from dikkat._core.implementations.launcher import launch, power_of_two
from dikkat._core.implementations.triton.launch import available, on
from dikkat._core.problem import Problem
from dikkat._core.summary import Asked, Summary

# Scores of a tile (256 MiB), rows of a program, keys of a row, and the largest `top`.
_SCORES, _ROWS, _LONGEST, _MAX_TOP = 2**26, 32, 8192, 32


def serves(problem: Problem, request: Asked) -> bool:
    restrictions = problem.restrictions
    extras = (restrictions.starts, restrictions.mask, restrictions.bias, restrictions.key_bias, restrictions.exclude)
    plain = problem.pair == "inner" and not problem.softcap and all(t is None for t in extras)
    few = restrictions.keys <= _LONGEST and request.top <= min(_MAX_TOP, restrictions.keys)
    narrow = torch.promote_types(problem.query.dtype, problem.key.dtype) != torch.float64
    return plain and few and narrow and not request.entropy and not request.cells and available(problem.query)


@torch.no_grad()
def summarise(problem: Problem, request: Asked) -> Summary:
    lead, restrictions = problem.lead, problem.restrictions
    n, m, kind = restrictions.queries, restrictions.keys, torch.promote_types(problem.query.dtype, problem.key.dtype)
    query, key = (flat(t.to(kind), lead) for t in (problem.query, problem.key))
    elements, steps, lens, top = len(query), (0, 0), restrictions.lens, max(request.top, int(request.peak))
    if lens is not None:
        lens = lens.expand(*lead, lens.shape[-1]).reshape(elements, -1).contiguous()
        steps = lens.shape[1], int(lens.shape[1] > 1)
    lse = query.new_empty((elements, n), dtype=torch.float32)
    top_weights = lse.new_empty((elements, n, top))
    top_keys = query.new_empty((elements, n, top), dtype=torch.int64)
    block = max(16, power_of_two(m))
    step = max(_ROWS, _SCORES // (elements * m) // _ROWS * _ROWS)
    by_key = lse.new_zeros((elements, m if request.sums else 0))
    for first in range(0, n, step):
        scores = product(query[:, first : first + step], key.mT)
        rows = scores.shape[1]
        programs = -(-rows // _ROWS)
        sums = lse.new_empty((elements, programs, m)) if request.sums else None
        with on(problem):
            launch(
                "triton.rows.summarise", (elements * programs,),
                scores, lens, lse, top_weights, top_keys, sums, rows, n, m, first, m - n, *steps,
                CAUSAL=restrictions.causal, TOP=top, ROWS=_ROWS, BLOCK=block,
                num_warps=min(8, max(1, block // 512)),
            )  # fmt: skip
        if sums is not None:
            by_key += sums.sum(1)
    return Summary(
        lse.view(*lead, n),
        top_weights.view(*lead, n, top) if request.top else None,
        top_keys.view(*lead, n, top) if request.top else None,
        by_key.view(*lead, m) if request.sums else None,
        peak=(lse + top_weights[..., 0].log()).view(*lead, n) if request.peak else None,
    )
