"""Plain PyTorch in tiles of bounded size: linear memory forward and backward.

The forward joins the states of tiles. The backward recomputes each tile's scores and weights.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dikkat._core.arithmetic import (
    cap,
    clip,
    dropout_scale,
    log_profile,
    must_exclude,
    pool,
    profile_slope,
    weighted_sum,
)
from dikkat._core.operators import Gradients, Operator, Output, Upstream, upstream
from dikkat._core.problem import Examined, Problem, narrow
from dikkat._core.restrictions import pairs_of
from dikkat._core.softmax import softmax
from dikkat._engine.addresses import on_cpu
from dikkat._engine.pytorch_state import can_read_values
from dikkat.state import Pooled, join

# Elements of a tile's largest tensor: on a CPU 4 MB in float32, of which caches hold a few; on a device 128 MB, which
# keep it busy while the host launches the next kernel.
_TILE, _DEVICE_TILE = 2**20, 2**25
# Pairs of the smallest tile, 64 × 64, unless the call has fewer.
_SQUARE = 2**12
# From this many numbers on, batch elements run one by one, so that each skips the keys beyond its length.
_NUMBERS_FOR_A_LOOP = 2**18


def examine(problem: Problem) -> Examined:
    if problem.has_tangents:
        return Examined(["it has no forward-mode derivative; 'reference' has one"])
    return Examined([])


@dataclass(frozen=True)
class _Tile:
    problem: Problem
    rows: slice
    cols: slice
    exact: bool  # whether sums leave out hidden pairs

    @property
    def query(self) -> Tensor:
        return self.problem.query[..., self.rows, :]

    @property
    def key(self) -> Tensor:
        return self.problem.key[..., self.cols, :]

    @property
    def value(self) -> Tensor:
        return self.problem.value[..., self.cols, :]

    def visible(self) -> Tensor | None:
        return self.problem.restrictions.visible(self.rows, self.cols)

    def pairs(self, visible: Tensor | None) -> Tensor:
        """Return q + k (additive) or q − k (distance), (..., rows, cols, h)."""
        query, key = (clip(self.problem, side) for side in (self.query, self.key))
        query, key = query[..., :, None, :], key[..., None, :, :]
        pairs = query + key if self.problem.pair == "additive" else query - key
        return torch.where(visible[..., None], pairs, 0.0) if self.exact and visible is not None else pairs


def _forward(problem: Problem) -> Output:
    lead, restrictions = problem.lead, problem.restrictions
    size = problem.value.shape[-1]
    zeros = problem.query.new_zeros
    mean, total = zeros((*lead, restrictions.queries, size)), zeros((*lead, restrictions.queries))
    peak = torch.full_like(total, -math.inf)
    weights = zeros((*lead, restrictions.queries, restrictions.keys) if problem.wants_weights else (0,))
    exact = must_exclude(problem)
    for subproblem, (means, peaks, totals, tile_weights) in _parts(problem, (mean, peak, total, weights)):
        for rows, keys in _row_blocks(subproblem):
            state = Pooled(means[..., rows, :], peaks[..., rows], totals[..., rows])
            for tile in _tiles(subproblem, rows, keys, exact):
                state = join(state, _state(tile))
            means[..., rows, :], peaks[..., rows], totals[..., rows] = state
            if problem.wants_weights:
                divisor = state.total.masked_fill(state.total == 0, 1.0)[..., None]
                for tile in _tiles(subproblem, rows, keys, exact):
                    scores, visible = _scores(tile)[:2]
                    tile_weights[..., rows, tile.cols] = _shares(scores, visible, state.peak) / divisor
    return Output(mean, peak, total, weights)


def _state(tile: _Tile) -> Pooled:
    scores, visible, _ = _scores(tile)
    scores = scores.expand(*tile.problem.lead, *scores.shape[-2:])
    weights, peak, total = softmax(scores, visible)
    scale = dropout_scale(tile.problem, tile.rows, tile.cols)
    mean = pool(weights if scale is None else weights * scale, tile.value, visible if tile.exact else None)
    return Pooled(mean, peak, total)


def _scores(tile: _Tile) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return a tile's scores, mask, and the tensor for its backward pass: tanh(q + k), q − k or capped products."""
    problem, visible = tile.problem, tile.visible()
    saved: Tensor | None = None
    if problem.pair == "inner":
        scores = cap(problem, tile.query @ tile.key.mT)
        saved = scores if problem.softcap else None
    elif problem.weight is not None:
        saved = tile.pairs(visible).tanh_()
        scores = weighted_sum(saved, problem.weight)
    else:
        saved = tile.pairs(visible)
        scores = log_profile(problem.profile, saved.square().sum(-1))
        if problem.profile != "gaussian":
            supported = scores != -math.inf
            visible = supported if visible is None else visible & supported
    return problem.restrictions.biased(scores, tile.rows, tile.cols), visible, saved


def _shares(scores: Tensor, visible: Tensor | None, peak: Tensor) -> Tensor:
    """Return the unnormalised weights e^(score − peak), 0 for hidden pairs."""
    shares = (scores - peak.masked_fill(peak == -math.inf, 0.0)[..., None]).exp()
    return shares if visible is None else shares.masked_fill(~visible, 0.0)


def _backward(problem: Problem, out: Output, grads: Output) -> Gradients:
    grad = upstream(problem, out, grads)
    restrictions = problem.restrictions
    bias = restrictions.bias if problem.wants_bias_grad else None
    operands = (problem.query, problem.key, problem.weight, problem.value, bias, restrictions.key_bias)
    sums = [problem.query.new_zeros((0,) if t is None else t.shape) for t in operands]
    exact = must_exclude(problem, grad.mean)
    for subproblem, tensors in _parts(problem, (*sums, out.peak, *grad)):
        into, peak, incoming = Gradients(*tensors[:6]), tensors[6], Upstream(*tensors[7:])
        for rows, keys in _row_blocks(subproblem):
            row_grads = incoming._replace(mean=incoming.mean[..., rows, :], drift=incoming.drift[..., rows])
            for tile in _tiles(subproblem, rows, keys, exact):
                if problem.wants_weights:
                    row_grads = row_grads._replace(weights=incoming.weights[..., rows, tile.cols])
                _accumulate(tile, peak[..., rows], row_grads, into)
    return Gradients(*sums)


def _accumulate(tile: _Tile, peak: Tensor, incoming: Upstream, into: Gradients) -> None:
    problem, rows, cols = tile.problem, tile.rows, tile.cols
    scores, visible, saved = _scores(tile)
    shares = _shares(scores, visible, peak)
    row_mask = visible if tile.exact else None
    col_mask = None if row_mask is None else row_mask.expand(*row_mask.shape[:-2], *shares.shape[-2:]).mT
    scale = dropout_scale(problem, rows, cols)

    dropped = shares if scale is None else shares * scale
    _add(into.value[..., cols, :], pool(dropped.mT, incoming.mean, col_mask))
    weight_grad = incoming.mean @ tile.value.mT
    weight_grad = weight_grad if scale is None else weight_grad * scale
    weight_grad = weight_grad + incoming.weights if problem.wants_weights else weight_grad
    score_grad = shares * (weight_grad - incoming.drift[..., None])
    if visible is not None:
        score_grad = score_grad.masked_fill(~visible, 0.0)

    if problem.wants_bias_grad:
        _add(pairs_of(into.bias, rows, cols), score_grad)
    if problem.restrictions.key_bias is not None:
        _add(into.key_bias[..., cols], score_grad.sum(-2))
    if saved is not None and problem.pair == "inner":
        slope = 1 - (saved / problem.softcap).square()
        score_grad, saved = score_grad * (slope if visible is None else torch.where(visible, slope, 0.0)), None
    if saved is None:
        _add(into.query[..., rows, :], pool(score_grad, tile.key, row_mask))
        _add(into.key[..., cols, :], pool(score_grad.mT, tile.query, col_mask))
        return
    if problem.weight is not None:
        pair_grad = _through_tanh(score_grad, saved, problem.weight, into)
    else:
        score_grad = score_grad.sum_to_size(saved.shape[:-1])
        pair_grad = (2 * score_grad * profile_slope(problem.profile, saved.square().sum(-1)))[..., None] * saved
    _add(into.query[..., rows, :], pair_grad.sum(-2))
    key_grad = pair_grad.sum(-3)
    _add(into.key[..., cols, :], key_grad if problem.pair == "additive" else -key_grad)


def _through_tanh(score_grad: Tensor, tanh: Tensor, weight: Tensor, into: Gradients) -> Tensor:
    """Return the gradient of q + k from that of Σ_h v_h tanh(q + k)_h, and add v's gradient to `into`."""
    one = torch.ones((), dtype=tanh.dtype, device=tanh.device)
    if weight.numel() == weight.shape[-1]:
        score_grad = score_grad.sum_to_size(tanh.shape[:-1])
        _add(into.weight, (score_grad.reshape(1, -1) @ tanh.reshape(-1, tanh.shape[-1])).reshape(weight.shape))
        return torch.addcmul(one, tanh, tanh, value=-1).mul_(weight.reshape(-1)).mul_(score_grad[..., None])
    _add(into.weight, (score_grad[..., None, :] @ tanh).sum(-3).squeeze(-2))
    return score_grad[..., None] * (torch.addcmul(one, tanh, tanh, value=-1) * weight[..., None, None, :])


def _add(into: Tensor, share: Tensor) -> None:
    into += share.sum_to_size(into.shape)


def _parts(problem: Problem, tensors: tuple[Tensor, ...]) -> Iterator[tuple[Problem, tuple[Tensor, ...]]]:
    """Yield the problem in parts along one leading dimension: elements if lengths differ, or as many as fill a tile."""
    lead, lens = problem.lead, problem.restrictions.lens
    if not lead.numel() or not lead:
        yield problem, tensors
        return
    by_element = lens is not None and lens.shape[0] > 1 and can_read_values(lens)
    dim = 0 if by_element else max(range(len(lead)), key=lambda i: lead[i])
    numbers_per_index = lead.numel() // lead[dim] * _features(problem)
    pairs = max(1, problem.restrictions.queries * problem.restrictions.keys)
    step = max(1, _tile(problem) // (numbers_per_index * min(pairs, _SQUARE)))
    if by_element and numbers_per_index * pairs >= _NUMBERS_FOR_A_LOOP:
        step = 1
    if step >= lead[dim]:
        yield problem, tensors
        return
    for start in range(0, lead[dim], step):
        rows = slice(start, min(start + step, lead[dim]))
        # Weights without a request are (0,), with no leading dimension to cut.
        yield problem.part(dim, rows), tuple(narrow(t, dim, rows) if t.ndim > len(lead) else t for t in tensors)


def _tile(problem: Problem) -> int:
    return _TILE if on_cpu(problem.query) else _DEVICE_TILE


def _features(problem: Problem) -> int:
    return 1 if problem.pair == "inner" else max(1, problem.query.shape[-1])


def _row_blocks(problem: Problem) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of queries, each with the range of keys that any of its queries may see."""
    restrictions, size = problem.restrictions, _steps(problem)[0]
    n, m, starts, lens = restrictions.queries, restrictions.keys, restrictions.starts, restrictions.lens
    rows = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    starts_by_block, stops_by_block = [0] * len(rows), [m] * len(rows)
    if restrictions.causal:
        stops_by_block = [min(m, block.stop + m - n) for block in rows]
    # A window or packed sequences hide most pairs: waiting for a device takes less time than computing all of them.
    waits = starts is not None
    if starts is not None and starts.numel() and can_read_values(starts, waits=waits):
        starts_by_block = _by_block(starts, n, size, torch.amin)
    if lens is not None and lens.numel() and can_read_values(lens, waits=waits):
        stops_by_block = list(map(min, stops_by_block, _by_block(lens, n, size, torch.amax)))
    for block, start, stop in zip(rows, starts_by_block, stops_by_block, strict=True):
        yield block, slice(start, max(start, stop))


def _by_block(bounds: Tensor, queries: int, size: int, extreme: Callable[..., Tensor]) -> list[int]:
    """Reduce the bounds (..., n or 1) of queries to one for each block of `size` queries."""
    bounds = extreme(bounds.reshape(-1, bounds.shape[-1]), 0)
    index = torch.arange(-(-queries // size) * size, device=bounds.device).clamp(max=len(bounds) - 1)
    block_bounds: list[int] = extreme(bounds[index].view(-1, size), 1).tolist()
    return block_bounds


def _tiles(problem: Problem, rows: slice, keys: slice, exact: bool) -> Iterator[_Tile]:
    step = _steps(problem)[1]
    for start in range(keys.start, keys.stop, step):
        yield _Tile(problem, rows, slice(start, min(start + step, keys.stop)), exact)


def _steps(problem: Problem) -> tuple[int, int]:
    """Return the rows and columns of a tile, as square as the budget allows."""
    pairs = max(1, _tile(problem) // max(1, problem.lead.numel() * _features(problem)))
    rows = min(max(1, problem.restrictions.queries), max(1, int(pairs**0.5)))
    return rows, max(1, min(max(1, problem.restrictions.keys), pairs // rows))


run = Operator("chunked", _forward, _backward)
