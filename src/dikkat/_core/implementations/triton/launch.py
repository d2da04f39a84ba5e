"""Additive and distance attention on a GPU: launches of Triton's kernels, forward and backward.

The forward is one pass over tiles of pairs with a running softmax. The backward writes the score gradients of a block
of rows into a buffer of bounded size, then sums the gradients of queries, keys, values and v from it. One program sums
each output, without atomic additions, so results are reproducible.
"""

import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat._core.arithmetic import dropout_numbers, farthest, row_seeds
from dikkat._core.implementations.launcher import launch, power_of_two
from dikkat._core.implementations.triton import ranges
from dikkat._core.implementations.triton.operands import Operand, Restricted, Scored, operand, sizes_of
from dikkat._core.operators import Gradients, Operator, Output, Upstream, upstream
from dikkat._core.problem import Examined, Problem
from dikkat._core.restrictions import Restrictions
from dikkat._engine import addresses

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_INSTALLED = find_spec("triton") is not None
# Triton's interpreter also runs on a CPU. Triton reads the variable at its import, which comes later.
_INTERPRETED = os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")

# Pairs whose gradients are in memory at a time: two buffers of 64 MiB.
_PAIRS = 2**24


class _Blocks(NamedTuple):
    """The sizes of a problem's tiles: powers of two ≥ 16, the minimum of `tl.dot`."""

    rows: int  # queries of a tile
    keys: int  # keys of a tile
    warps: int  # warps of 32 threads for a tile
    side: int  # queries or keys in a backward program's registers; at most those of a tile
    features: int  # their features in registers
    values: int  # value features at a time


def available(tensor: Tensor) -> bool:
    return (tensor.is_cuda and _INSTALLED) or (tensor.is_cpu and _INTERPRETED)


def examine(problem: Problem) -> Examined:
    reasons, device = [], problem.query.device.type
    if problem.pair == "inner":
        reasons.append("it computes additive and distance scores; inner ones run on 'sdpa'")
    if not _INSTALLED:
        reasons.append(
            "Triton is not installed (PyTorch for CUDA brings it along); 'chunked' and 'reference' need none"
        )
    if device != "cuda" and not (device == "cpu" and _INTERPRETED):
        reasons.append(f"it needs CUDA tensors, and got some on {device}, where 'numba', 'chunked' and 'reference' run")
    if any(t.dtype not in _FLOATS for t in (problem.query, problem.key, problem.value)):
        reasons.append("it computes in float32; 'chunked' and 'reference' take float64")
    if problem.has_tangents:
        reasons.append("it has no forward-mode derivative; 'reference' has")
    if problem.restrictions.bias is not None or problem.restrictions.starts is not None:
        reasons.append("it takes no bias of pairs, window or segments; 'chunked' and 'reference' do")
    return Examined(reasons)


def _blocks(problem: Problem) -> _Blocks:
    """Choose the blocks by registers, loads for each pair and programs on a multiprocessor; never by timings."""
    n, m = problem.restrictions.queries, problem.restrictions.keys
    rows, keys, warps = (16, 64, 4) if n <= 16 else (32, 64, 4) if m <= 64 else (32, 128, 8)
    features, values = (power_of_two(t.shape[-1]) for t in (problem.query, problem.value))
    return _Blocks(rows, keys, warps, rows, min(128, max(4, features)), min(128, max(16, values)))


def on(problem: Problem) -> AbstractContextManager[Any]:
    return torch.cuda.device(problem.query.device) if problem.query.is_cuda else nullcontext()


def _unexpand(tensor: Tensor) -> Tensor:
    """Cut expanded leading dimensions to size 1."""
    for dim in range(tensor.ndim - 2):
        tensor = tensor.narrow(dim, 0, 1) if tensor.stride(dim) == 0 else tensor
    return tensor


class _Prepared(NamedTuple):
    """Tensors computed once for each query, key and v; see `Scored`."""

    x: Tensor
    query_peaks: Tensor
    y: Tensor
    key_peaks: Tensor
    v: Tensor | None
    gain: Tensor | None


def _prepare(problem: Problem, blocks: _Blocks) -> _Prepared:
    x, query_peaks = _feature_major(problem, problem.query, blocks.rows, ranges.SCALE)
    y, key_peaks = _feature_major(problem, problem.key, blocks.keys, 1.0)
    if problem.weight is None:
        return _Prepared(x, query_peaks, y, key_peaks, None, None)
    features, lead = problem.weight.shape[-1], problem.weight.shape[:-1]
    v, gain = x.new_empty((*lead, x.shape[-2])), x.new_empty((*lead, 2))
    launch(
        "triton.pairs.scale_weight", (prod(lead),), operand(problem.weight[..., None, :]), sizes_of(lead), v, gain,
        features, x.shape[-2], FEATURES=128,
    )  # fmt: skip
    return _Prepared(x, query_peaks, y, key_peaks, v, gain)


def _feature_major(problem: Problem, side: Tensor, block: int, factor: float) -> tuple[Tensor, Tensor]:
    """Return (..., h, length), padded, so that neighbours in memory are queries or keys; and each block's peak."""
    side = _unexpand(side)
    lead, (length, features) = side.shape[:-2], side.shape[-2:]
    count, rows = -(-length // block), -(-features // 4) * 4
    padded = side.new_empty((*lead, rows, count * block))
    peaks = side.new_empty((*lead, count))
    launch(
        "triton.pairs.lay_out", (prod(lead) * count,),
        operand(side), sizes_of(lead), padded, peaks, length, features, count * block, rows, factor,
        farthest(features, side.dtype) if problem.profile == "gaussian" else math.inf,
        ADDITIVE=problem.pair == "additive", BLOCK=block, FEATURES=min(32, max(4, power_of_two(features))),
    )  # fmt: skip
    return padded, peaks


def _scored(problem: Problem, prepared: _Prepared, blocks: _Blocks, rows: slice) -> Scored:
    return Scored(
        query=operand(problem.query[..., rows, :]), key=operand(problem.key),
        weight=operand(None if problem.weight is None else problem.weight[..., None, :]),
        x=operand(prepared.x[..., rows.start :]), y=operand(prepared.y), v=operand(prepared.v, 1),
        gain=operand(prepared.gain, 1), query_peaks=operand(prepared.query_peaks[..., rows.start // blocks.rows :], 1),
        key_peaks=operand(prepared.key_peaks, 1),
    )  # fmt: skip


def _restricted(restrictions: Restrictions, seeds: Tensor | None, rows: slice) -> Restricted:
    """Return the restrictions of some rows and the seeds of their dropout."""

    def select_rows(table: Tensor | None) -> Operand:
        return operand(table if table is None or table.shape[-1] == 1 else table[..., rows], 1)

    mask = restrictions.mask
    if mask is not None:
        mask = (mask if mask.shape[-2] == 1 else mask[..., rows, :]).view(torch.uint8)
    return Restricted(
        lens=select_rows(restrictions.lens), mask=operand(mask), key_bias=operand(restrictions.key_bias, 1),
        exclude=select_rows(restrictions.exclude), seeds=operand(None if seeds is None else seeds[..., rows], 1),
    )  # fmt: skip


def _profile(problem: Problem) -> str:
    """Return the profile of a distance, "" for additive scores; kernels are compiled for it."""
    return problem.profile if problem.pair == "distance" else ""


def _exact(problem: Problem) -> bool:
    """Return whether sums must skip hidden pairs one by one, as hidden values may not be finite."""
    return problem.restrictions.vary_by_row() or (problem.pair == "distance" and problem.profile != "gaussian")


def _check_readable(problem: Problem, *extra_tensors: Tensor) -> None:
    for tensor in (*problem.tensors().values(), *extra_tensors):
        addresses.check_numbers("an operand of attention", tensor, problem.query.device.type)


def _is_empty(problem: Problem) -> bool:
    return not (problem.lead.numel() and problem.restrictions.queries and problem.restrictions.keys)


def _forward(problem: Problem) -> Output:
    _check_readable(problem)
    restrictions, lead = problem.restrictions, problem.lead
    n, m, size = restrictions.queries, restrictions.keys, problem.value.shape[-1]
    empty = problem.query.new_empty
    mean, peak, total = empty((*lead, n, size)), empty((*lead, n)), empty((*lead, n))
    weights = empty((*lead, n, m) if problem.wants_weights else (0,))
    if _is_empty(problem):
        return Output(mean.zero_(), peak.fill_(-math.inf), total.zero_(), weights)
    blocks, all_rows = _blocks(problem), slice(0, n)
    seeds = None if problem.seeds is None else row_seeds(problem.seeds, problem)
    with on(problem):
        prepared = _prepare(problem, blocks)
        scored, restricted = _scored(problem, prepared, blocks, all_rows), _restricted(restrictions, seeds, all_rows)
        grid = (lead.numel() * -(-n // blocks.rows), max(1, -(-size // blocks.values)))
        launch(
            "triton.kernel.attend", grid,
            scored, restricted, operand(problem.value), mean, peak, total, sizes_of(lead),
            n, m, problem.query.shape[-1], size, m - n, *dropout_numbers(problem.dropout),
            CAUSAL=restrictions.causal, EXACT=_exact(problem), PROFILE=_profile(problem),
            BM=blocks.rows, BN=blocks.keys, BD=blocks.values, W=blocks.warps, num_warps=blocks.warps, maxnreg=128,
        )  # fmt: skip
        if problem.wants_weights:
            _weigh(problem, blocks, scored, restricted, all_rows, slice(0, lead.numel()), weights, peak, total)
    return Output(mean, peak, total, weights)


class _Buffers(NamedTuple):
    """Upstream gradients, and buffers for the gradients of pairs."""

    incoming: Upstream
    by_score: Tensor
    by_bias: Tensor | None
    live: Tensor


def _weigh(
    problem: Problem, blocks: _Blocks, scored: Any, restricted: Any, rows: slice, elements: slice,
    weights: Tensor, peak: Tensor, total: Tensor | None = None, buffers: _Buffers | None = None,
) -> None:  # fmt: skip
    """Fill `weights`, divided by `total` if given, and `buffers` if given, for some rows of some batch elements."""
    n, m, size = rows.stop - rows.start, problem.restrictions.keys, problem.value.shape[-1]
    count = elements.stop - elements.start
    empty = operand(None)
    gradients: tuple[Any, ...] = (empty, empty, empty, None, None, None)
    if buffers is not None:
        incoming = buffers.incoming
        weights_grad = incoming.weights[..., rows, :] if problem.wants_weights else None
        gradients = (
            operand(incoming.mean[..., rows, :]), operand(incoming.drift[..., rows], 1), operand(weights_grad),
            buffers.by_score, buffers.by_bias, buffers.live,
        )  # fmt: skip
    launch(
        "triton.kernel.weights_tile", (count * -(-n // blocks.rows) * -(-m // blocks.keys),),
        scored, restricted, operand(problem.value), weights, operand(peak[..., rows], 1),
        operand(None if total is None else total[..., rows], 1), *gradients,
        sizes_of(problem.lead), elements.start, n, m, problem.query.shape[-1], size,
        m - problem.restrictions.queries + rows.start, *dropout_numbers(problem.dropout),
        CAUSAL=problem.restrictions.causal, PROFILE=_profile(problem),
        BM=blocks.rows, BN=blocks.keys, BD=min(64, blocks.values), W=blocks.warps, num_warps=blocks.warps, maxnreg=128,
    )  # fmt: skip


def _parts(problem: Problem, blocks: _Blocks) -> Iterator[tuple[slice, slice]]:
    """Yield slices of rows and batch elements whose pairs fit into the buffers."""
    n, m, count = problem.restrictions.queries, problem.restrictions.keys, problem.lead.numel()
    elements = min(count, max(1, _PAIRS // (n * m)))
    rows = n if n * m <= _PAIRS else max(1, _PAIRS // m // blocks.rows) * blocks.rows
    for element in range(0, count, elements):
        for row in range(0, n, rows):
            yield slice(row, min(row + rows, n)), slice(element, min(element + elements, count))


class _Sums(NamedTuple):
    """Gradients for each batch element, even of broadcast operands; v has a gradient for each block of queries."""

    query: Tensor
    key: Tensor
    value: Tensor
    weight: Tensor | None
    key_bias: Tensor | None


def _backward(problem: Problem, out: Output, grads: Output) -> Gradients:
    grad = upstream(problem, out, grads)
    _check_readable(problem, *out, *grad)
    restrictions, lead, weight = problem.restrictions, problem.lead, problem.weight
    n, m = restrictions.queries, restrictions.keys
    zeros, blocks = problem.query.new_zeros, _blocks(problem)
    sums = _Sums(
        query=zeros((*lead, n, problem.query.shape[-1])),
        key=zeros((*lead, m, problem.key.shape[-1])),
        value=zeros((*lead, m, problem.value.shape[-1])),
        weight=None if weight is None else zeros((*lead, -(-n // blocks.side), weight.shape[-1])),
        key_bias=None if restrictions.key_bias is None else zeros((*lead, m)),
    )
    if not _is_empty(problem):
        with on(problem):
            _differentiate(problem, blocks, out, grad, sums)
    return Gradients(
        query=sums.query.sum_to_size(problem.query.shape),
        key=sums.key.sum_to_size(problem.key.shape),
        weight=_summed(None if sums.weight is None else sums.weight.sum(-2), weight, problem),
        value=sums.value.sum_to_size(problem.value.shape),
        bias=zeros((0,)),
        key_bias=_summed(sums.key_bias, restrictions.key_bias, problem),
    )


def _summed(grad: Tensor | None, operand: Tensor | None, problem: Problem) -> Tensor:
    return problem.query.new_empty((0,)) if grad is None or operand is None else grad.sum_to_size(operand.shape)


def _differentiate(problem: Problem, blocks: _Blocks, out: Output, grad: Upstream, sums: _Sums) -> None:
    empty, m, size = problem.query.new_empty, problem.restrictions.keys, problem.value.shape[-1]
    prepared, sizes = _prepare(problem, blocks), sizes_of(problem.lead)
    seeds = None if problem.seeds is None else row_seeds(problem.seeds, problem)
    key_blocks, values = -(-m // blocks.keys), min(64, blocks.values)
    query_powers: tuple[Tensor | None, Tensor | None] = (None, None)
    key_powers = query_powers
    if problem.pair == "additive":
        doubled = 2 * _unexpand(problem.query), 2 * _unexpand(problem.key)
        query_powers, key_powers = (doubled[0].exp(), (-doubled[0]).exp()), (doubled[1].exp(), doubled[1].expm1())
    queries = _Side(problem.query, query_powers, prepared.query_peaks, blocks.rows)
    keys = _Side(problem.key, key_powers, prepared.key_peaks, blocks.keys)
    for rows, elements in _parts(problem, blocks):
        n, count = rows.stop - rows.start, elements.stop - elements.start
        row_blocks = -(-n // blocks.rows)
        weights, by_score = empty((count, n, m)), empty((count, n, m))
        live = empty((count, row_blocks, key_blocks), dtype=torch.int32)
        by_bias = None if sums.key_bias is None else empty((count, row_blocks, m))
        scored, restricted = _scored(problem, prepared, blocks, rows), _restricted(problem.restrictions, seeds, rows)
        buffers = _Buffers(grad, by_score, by_bias, live)
        _weigh(problem, blocks, scored, restricted, rows, elements, weights, out.peak, buffers=buffers)
        if by_bias is not None and sums.key_bias is not None:
            sums.key_bias.view(-1, m)[elements] += by_bias.sum(-2)
        if size:
            launch(
                "triton.gradients.value_gradient", (count * key_blocks, -(-size // values)),
                weights, live, operand(grad.mean[..., rows, :]), sums.value, sizes, elements.start, n, m, size,
                EXACT=_exact(problem), BM=blocks.rows, BN=blocks.keys, BD=values, num_warps=blocks.warps,
            )  # fmt: skip
        by_weight = None if sums.weight is None else sums.weight[..., rows.start // blocks.side :, :]
        row_queries, first = queries.rows(rows), elements.start
        _sum_side(problem, blocks, row_queries, keys, by_score, live, first, sums.query[..., rows, :], by_weight)
        _sum_side(problem, blocks, keys, row_queries, by_score.mT, live.mT, first, sums.key, None)


class _Side(NamedTuple):
    """Queries or keys of some rows, as the backward pass reads them."""

    tensor: Tensor  # (..., length, h)
    # For additive scores, exponentials that the opposite side's kernel reads.
    powers: tuple[Tensor | None, Tensor | None]
    peaks: Tensor  # (..., blocks), of `block` rows each
    block: int

    def rows(self, rows: slice) -> "_Side":
        e, twin = (None if t is None else t[..., rows, :] for t in self.powers)
        return _Side(self.tensor[..., rows, :], (e, twin), self.peaks[..., rows.start // self.block :], self.block)


def _sum_side(
    problem: Problem, blocks: _Blocks, side: _Side, opposite: _Side, by_score: Tensor, live: Tensor, first: int,
    out: Tensor, by_weight: Tensor | None,
) -> None:  # fmt: skip
    """Sum the gradients of pairs into the gradients of one side, and of v if `by_weight` is given."""
    (count, length), features = by_score.shape[:2], side.tensor.shape[-1]
    weight = None if problem.weight is None else problem.weight[..., None, :]
    warps = max(2, blocks.side * blocks.features // 512)  # 16 numbers a thread
    grid = (count * -(-length // blocks.side), max(1, -(-features // blocks.features)))
    launch(
        "triton.gradients.side_gradient", grid,
        operand(side.tensor), operand(opposite.tensor), *(operand(t) for t in opposite.powers), operand(weight),
        operand(side.peaks, 1), operand(opposite.peaks, 1), operand(by_score), operand(live), operand(out),
        operand(by_weight), sizes_of(problem.lead), first, length, by_score.shape[2], features,
        PROFILE=_profile(problem), SIDE=side.block, OTHER=opposite.block, BLOCK=blocks.side,
        FEATURES=blocks.features, W=warps, num_warps=warps, maxnreg=128,
    )  # fmt: skip


run = Operator("triton", _forward, _backward)
