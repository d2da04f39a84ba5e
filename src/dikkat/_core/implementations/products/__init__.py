"""Additive scores as a dot product, so that scores and gradients are products of float16 matrices.

With tanh x ≈ Σ_r b_r sin(ω_r x) for |x| ≤ A, sin(a + b) = sin a cos b + cos a sin b splits every term into a factor of
the query and a factor of the key: Σ_h v_h tanh(q_h + k_h) = ⟨Φ(q), Ψ(k)⟩, with 2 R H float16 factors and float32 sums.
The coefficients are those of the first series of `sines.SERIES` that reaches as far as the data.

Only the device knows the data's reach, and reading it would block the host at every call. So R is fixed and the device
looks up the coefficients. Further kernels overwrite the scores of pairs that no series reaches; without such pairs they
read one number and end. Without Triton the host reads the reach, and `chunked` runs calls beyond all series.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial, reduce, wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from dikkat._core.arithmetic import dropout_numbers, flat, must_exclude, pool, product, random_bits, row_seeds
from dikkat._core.implementations import chunked
from dikkat._core.implementations.products import launch
from dikkat._core.implementations.products.launch import Plan, TileMask
from dikkat._core.implementations.products.sines import SERIES
from dikkat._core.implementations.triton import launch as gpu_launch
from dikkat._core.operators import Gradients, Operator, Output
from dikkat._core.problem import Examined, Problem
from dikkat._core.restrictions import largest_magnitude, pairs_of
from dikkat._core.softmax import softmax
from dikkat._engine.pytorch_state import uses_tf32
from dikkat.state import Pooled, join

T = TypeVar("T")
_HALVES = (torch.float16, torch.bfloat16)
_TERMS = len(SERIES[0][2])
# The largest reach at which a series is as exact as plain PyTorch's rounding.
_REACHES = {torch.bfloat16: 18.0, torch.float16: 11.0, torch.float32: 11.0}
# Pairs of a tile (256 MiB of scores), and numbers in the factors of one of its sides (256 MiB).
_PAIRS, _FACTORS = 2**26, 2**27
# Largest bytes of factors and weights that are saved for the backward.
_MAX_SAVED = 2**28
# Tiles begin at multiples of this.
_STEP = 128


def examine(problem: Problem) -> Examined:
    if problem.pair != "additive":
        return Examined(["it computes additive scores as products; inner ones are products, and distances have none"])
    reasons, dtypes = [], {problem.query.dtype, problem.key.dtype}
    if torch.float64 in {*dtypes, problem.value.dtype}:
        reasons.append("its factors are float16; 'chunked' and 'reference' take float64")
    elif not dtypes <= set(_HALVES) and not uses_tf32():
        reasons.append(
            "its factors are float16, less precise than float32; it runs in bfloat16, float16 or autocast, and in "
            "float32 after torch.set_float32_matmul_precision('high')"
        )
    if problem.has_tangents:
        reasons.append("it has no forward-mode derivative; 'reference' has")
    return Examined(reasons)


class Plain:
    """The functions of `launch`, with the same arguments and results, in PyTorch's operations."""

    @staticmethod
    def plan_series(query: Tensor, key: Tensor, weight: Tensor, table: Tensor) -> Plan | None:
        reach = largest_magnitude(query) + largest_magnitude(key)
        index = next((i for i, series_reach in enumerate(table[:, 0].tolist()) if reach <= series_reach), None)
        if index is None:
            return None
        units = [_power_of_two_below(reach, 0.0), _power_of_two_below(largest_magnitude(weight))]
        head = torch.tensor([math.inf, 0.0, *units], device=table.device)
        head[launch.FREQUENCY] = table[index, 1]
        return Plan(torch.cat([head, table[index, 2:]]), _TERMS, head, head)

    @staticmethod
    def factors(query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        _, _, small, unit, *_ = plan.numbers
        sin, cos = _waves(query, plan)
        phi = torch.stack([sin / small, cos], -2)
        sin, cos = _waves(key, plan)
        coefficient_v = plan.numbers[launch.COEFFICIENTS :, None] * (weight.float() / unit)[:, None, None]
        psi = torch.stack([cos * coefficient_v, sin * coefficient_v / small], -2)  # (elements, m, R, 2, h)
        return phi.flatten(-3).half(), psi.flatten(-3).half()

    @staticmethod
    def far_scores(scores: Tensor, query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> None:
        """Do nothing: `plan_series` rejects calls with far pairs."""

    @staticmethod
    def weigh(
        scores: Tensor, plan: Plan | None, mask: TileMask, kind: torch.dtype, known: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if plan is not None:
            scores = scores * (plan.numbers[launch.SINE_UNIT] * plan.numbers[launch.V_UNIT])
        if known is None:
            weights, peak, total = softmax(scores, mask.visible)
        else:
            peak, total = known
            shares = (scores - peak.masked_fill(peak == -math.inf, 0.0)[..., None]).exp()
            weights = shares / total.masked_fill(total == 0, 1.0)[..., None]
            weights = weights if mask.visible is None else weights.masked_fill(~mask.visible, 0.0)
        factor = _dropout_factors(mask, scores)
        return weights.to(kind), (weights if factor is None else weights * factor).to(kind), peak, total

    @staticmethod
    def score_grads(
        weights: Tensor, weight_grad: Tensor, grad: Tensor, value: Tensor, mask: TileMask, incoming: Tensor | None,
        offsets: Tensor | None, subtract_mean: bool, extra_bound: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        factor, weights = _dropout_factors(mask, weight_grad), weights.float()
        weight_grad = weight_grad if factor is None else (weight_grad * factor).masked_fill(factor == 0, 0.0)
        weight_grad = weight_grad if incoming is None else weight_grad + incoming
        weight_grad = weight_grad.masked_fill(weights == 0, 0.0)
        if subtract_mean:
            weight_grad = weight_grad - (weights * weight_grad).sum(-1, keepdim=True)
        if offsets is not None:
            weight_grad = weight_grad - offsets[..., None]
        score_grad = (weights * weight_grad).masked_fill(weights == 0, 0.0)
        largest = score_grad.abs().nan_to_num(0.0, 0.0, 0.0).amax()
        scale = torch.exp2(13 - largest.masked_fill(largest == 0, 1.0).log2().floor().clamp(-100, 100))
        return (score_grad * scale).half(), scale[None]

    @staticmethod
    def input_grads(
        query: Tensor, key: Tensor, weight: Tensor, phi_grad: Tensor, psi_grad: Tensor, grads: Tensor, scale: Tensor,
        plan: Plan, kinds: tuple[torch.dtype, torch.dtype],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        _, _, small, unit, *_ = plan.numbers
        frequencies, b = _frequencies(plan), plan.numbers[launch.COEFFICIENTS :, None]
        sin, cos = _waves(query, plan)
        first, second = phi_grad.unflatten(-1, (_TERMS, 2, -1)).unbind(-2)
        query_grad = ((first * cos - small * second * sin) * frequencies).sum(-2) * (unit / scale)
        sin, cos = _waves(key, plan)
        first, second = psi_grad.unflatten(-1, (_TERMS, 2, -1)).unbind(-2)
        slopes = ((second * cos - small * first * sin) * (frequencies * b)).sum(-2)
        key_grad = slopes * (weight.float()[:, None] / scale)
        v_grad = ((small * first * cos + second * sin) * b).sum((1, 2)) / scale
        return query_grad.to(kinds[0]), key_grad.to(kinds[1]), v_grad.sum_to_size(weight.shape)


def _frequencies(plan: Plan) -> Tensor:
    return plan.numbers[launch.FREQUENCY] * torch.arange(1, 2 * plan.terms, 2, device=plan.numbers.device)[:, None]


def _waves(side: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """Return sin ω_r x and cos ω_r x, (elements, length, R, h)."""
    angles = side.float()[..., None, :] * _frequencies(plan)
    return angles.sin(), angles.cos()


def _power_of_two_below(size: float, max_exponent: float = 60.0) -> float:
    """Return the largest power of two ≤ size, with a clamped exponent; 1 for 0, ∞ and NaN."""
    if not 0 < size < math.inf:
        return 1.0
    return float(torch.tensor(size, dtype=torch.float64).log2().floor().clamp(-60.0, max_exponent).exp2())


def _dropout_factors(mask: TileMask, like: Tensor) -> Tensor | None:
    if mask.seeds is None:
        return None
    threshold, scale = dropout_numbers(mask.dropout)
    key = torch.arange(mask.start, mask.start + like.shape[-1], device=like.device)
    return (random_bits(mask.seeds[..., None], key) >= threshold) * scale


@cache
def _table(device: torch.device, reach: float) -> Tensor:
    """Return the series up to a reach, (series, 2 + R): its reach A, first frequency and coefficients b."""
    lines = [(series_reach, torch.pi / (2 * period), *b) for series_reach, period, b in SERIES if series_reach <= reach]
    with torch.inference_mode(False):
        return torch.tensor(lines, dtype=torch.float32, device=device)


class _Call(NamedTuple):
    """A problem with one leading dimension; only v may be broadcast."""

    problem: Problem
    steps: Any  # the functions that compute: `Plain`, or the module `launch` with kernels
    query: Tensor  # (elements, n, h)
    key: Tensor  # (elements, m, h)
    weight: Tensor  # (elements or 1, h)
    value: Tensor  # (elements, m, d_v) in the problem's narrow dtype
    seeds: Tensor | None  # (elements, n), or None

    @classmethod
    def of(cls, problem: Problem) -> "_Call":
        weight, seeds = cast(Tensor, problem.weight), None
        shared = weight.numel() == weight.shape[-1]
        if problem.seeds is not None:
            seeds = flat(row_seeds(problem.seeds, problem), problem.lead, 1)
        return cls(
            problem, launch if gpu_launch.available(problem.query) else Plain, flat(problem.query, problem.lead),
            flat(problem.key, problem.lead),
            weight.reshape(1, -1) if shared else flat(weight, problem.lead, 1),
            flat(problem.value.to(problem.narrow_dtype), problem.lead), seeds,
        )  # fmt: skip

    def plan(self) -> Plan | None:
        """Return the plan of the call, or None if another implementation must compute it."""
        if not (self.query.numel() and self.key.numel()):
            return None
        reach = min(_REACHES[self.query.dtype], _REACHES[self.key.dtype])
        plan: Plan | None = self.steps.plan_series(self.query, self.key, self.weight, _table(self.query.device, reach))
        return plan

    def tiles(self) -> list[tuple[slice, slice, list[slice]]]:
        """Return batch elements, rows and the column slices of each row of tiles."""
        (elements, n, _), m, factors = self.query.shape, self.key.shape[1], 2 * _TERMS * self.query.shape[2]
        count = min(_PAIRS // (n * m), _FACTORS // (max(n, m) * factors))
        if count:
            return [(group, slice(0, n), [slice(0, m)]) for group in _slices(elements, count)]
        limit = max(_STEP, _FACTORS // factors // _STEP * _STEP)
        cols = min(m, limit)
        rows = min(n, limit, max(_STEP, _PAIRS // cols // _STEP * _STEP))
        single_elements = _slices(elements, 1)
        return [(group, row_group, _slices(m, cols)) for group in single_elements for row_group in _slices(n, rows)]

    def tile(self, elements: slice, rows: slice, cols: slice) -> "_Tile":
        problem = self.problem
        restrictions = problem.restrictions
        needs_visible = any(t is not None for t in (restrictions.starts, restrictions.mask, restrictions.key_bias))
        needs_visible |= restrictions.bias is not None or restrictions.exclude is not None
        exact = restrictions.vary_by_row() and must_exclude(problem)
        visible = None
        if needs_visible or exact or (self.steps is Plain and restrictions.may_hide()):
            visible = restrictions.visible(rows, cols)
        if visible is not None:
            visible = visible.expand(*problem.lead, rows.stop - rows.start, cols.stop - cols.start)
            visible = flat(visible, problem.lead)[elements]
        lens = None
        if restrictions.lens is not None:
            lens = restrictions.lens.expand(*problem.lead, -1).reshape(len(self.query), -1)[elements]
            lens = lens if lens.shape[1] == 1 else lens[:, rows]
        mask = TileMask(
            lens, restrictions.causal, restrictions.keys - restrictions.queries,
            visible if needs_visible or self.steps is Plain else None,
            None if self.seeds is None else _take(self.seeds, elements, rows),
            problem.dropout, rows.start, cols.start,
        )  # fmt: skip
        weight = self.weight if len(self.weight) == 1 else self.weight[elements]
        return _Tile(
            self, elements, rows, cols, _take(self.query, elements, rows), _take(self.key, elements, cols), weight,
            _take(self.value, elements, cols), mask, visible if exact else None,
        )  # fmt: skip


class _Tile(NamedTuple):
    """Some rows and columns of a call; `visible` is given if sums must leave out hidden pairs."""

    call: _Call
    elements: slice
    rows: slice
    cols: slice
    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor
    mask: TileMask
    visible: Tensor | None

    def plan(self, plan: Plan) -> Plan:
        uncut = self.query.shape == self.call.query.shape and self.key.shape == self.call.key.shape
        return plan if uncut or self.call.steps is Plain else plan.part(self.elements, self.rows, self.cols)

    def scores(self, phi: Tensor, psi: Tensor, plan: Plan) -> tuple[Tensor, Plan | None]:
        """Return the scores and the plan with their unit, or None if the unit is 1, as with a bias."""
        restrictions, lead = self.call.problem.restrictions, self.call.problem.lead
        scores = product(phi, psi.mT)
        self.call.steps.far_scores(scores, self.query, self.key, self.weight, plan)
        if restrictions.bias is None and restrictions.key_bias is None:
            return scores, plan
        scores *= plan.numbers[launch.SINE_UNIT] * plan.numbers[launch.V_UNIT]
        if len(scores) == lead.numel():
            biased = restrictions.biased(scores.view(*lead, *scores.shape[1:]), self.rows, self.cols)
            return flat(biased.to(scores.dtype), lead), None
        for name, trailing_dims in (("bias", 2), ("key_bias", 1)):
            bias = getattr(restrictions, name)
            if bias is not None:
                bias = pairs_of(bias, self.rows, self.cols) if trailing_dims == 2 else bias[..., None, self.cols]
                scores += flat(bias.expand(*lead, *bias.shape[-2:]), lead)[self.elements]
        return scores, None


def _take(tensor: Tensor, elements: slice, rows: slice) -> Tensor:
    """Return some elements' rows, contiguous; the tensor itself if that is all of it."""
    if elements.stop - elements.start == tensor.shape[0] and rows.stop - rows.start == tensor.shape[1]:
        return tensor
    return tensor[elements, rows].contiguous()


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _name_memory_errors(pass_name: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a pass to run on the problem's device and to name the call in out-of-memory errors."""

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @wraps(function)
        def run(problem: Problem, *args: Any) -> T:
            device = problem.query.device
            switches = device.type == "cuda" and device.index != torch.cuda.current_device()
            try:
                with torch.cuda.device(device) if switches else nullcontext():
                    return function(problem, *args)
            except torch.OutOfMemoryError as error:
                error.add_note(
                    f"This was the {pass_name} of additive attention by impl 'products': query "
                    f"{tuple(problem.query.shape)}, key {tuple(problem.key.shape)}, value {tuple(problem.value.shape)}"
                )
                raise

        return run

    return decorate


class _Saved(NamedTuple):
    """The tensors of a one-tile forward pass that its backward pass reads."""

    numbers: Tensor
    query_peaks: Tensor
    key_peaks: Tensor
    phi: Tensor
    psi: Tensor
    weights: Tensor
    dropped: Tensor


@_name_memory_errors("forward")
def _forward_and_save(problem: Problem) -> tuple[Output, tuple[Tensor, ...]]:
    """Return the forward's output, and the `_Saved` tensors of a one-tile call if they are small enough."""
    call, kind = _Call.of(problem), problem.narrow_dtype
    plan = call.plan()
    if plan is None:
        return _exact_forward(problem), ()
    n, m, tiles = problem.restrictions.queries, problem.restrictions.keys, call.tiles()
    saved: tuple[Tensor, ...] = ()
    states, returned = [], []
    for elements, rows, columns in tiles:
        joined: list[Pooled] = []
        mean_kind = torch.float32 if problem.wants_state or len(columns) > 1 else kind
        for cols in columns:
            tile = call.tile(elements, rows, cols)
            subplan = tile.plan(plan)
            phi, psi = call.steps.factors(tile.query, tile.key, tile.weight, subplan)
            scores, units = tile.scores(phi, psi, subplan)
            weights, dropped, peak, total = call.steps.weigh(scores, units, tile.mask, kind)
            means = pool(dropped, tile.value, tile.visible, partial(product, kind=mean_kind))
            joined = [reduce(join, [*joined, Pooled(means, peak, total)])]
            if len(tiles) == len(columns) == 1 and phi.nbytes + psi.nbytes + weights.nbytes <= _MAX_SAVED:
                saved = _Saved(plan.numbers, plan.query_peaks, plan.key_peaks, phi, psi, weights, dropped)
            del phi, psi, scores, dropped
        (state,) = joined
        states.append(state)
        if problem.wants_weights:
            if len(columns) > 1:
                weights = torch.cat([_weigh_tile(call.tile(elements, rows, cols), plan, state) for cols in columns], -1)
            returned.append(weights)
    mean, peak, total = (_join_tiles([state[i] for state in states], call, n) for i in range(3))
    lead, size = problem.lead, problem.value.shape[-1]
    mean = mean.to(torch.float32 if problem.wants_state else kind)
    all_weights = _join_tiles(returned, call, n).contiguous().view(*lead, n, m) if returned else mean.new_empty(0)
    return Output(mean.view(*lead, n, size), peak.view(*lead, n), total.view(*lead, n), all_weights), saved


def _weigh_tile(tile: _Tile, plan: Plan, state: Pooled) -> Tensor:
    steps, subplan = tile.call.steps, tile.plan(plan)
    phi, psi = steps.factors(tile.query, tile.key, tile.weight, subplan)
    scores, units = tile.scores(phi, psi, subplan)
    weights: Tensor = steps.weigh(scores, units, tile.mask, tile.value.dtype, (state.peak, state.total))[0]
    return weights


def _join_tiles(tiles: list[Tensor], call: _Call, n: int) -> Tensor:
    if len(tiles) == 1:
        return tiles[0]
    if tiles[0].shape[1] == n:
        return torch.cat(tiles)
    tiles_per_group = -(-n // tiles[0].shape[1])
    return torch.cat([torch.cat(tiles[i : i + tiles_per_group], 1) for i in range(0, len(tiles), tiles_per_group)])


@_name_memory_errors("backward")
def _backward(problem: Problem, out: Output, grads: Output, *tensors: Tensor) -> Gradients:
    call, kind, lead = _Call.of(problem), problem.narrow_dtype, problem.lead
    saved = _Saved(*tensors) if tensors else None
    plan = Plan(saved.numbers, _TERMS, saved.query_peaks, saved.key_peaks) if saved else call.plan()
    if plan is None:
        return _exact_backward(problem, out, grads)
    restrictions, tiles = problem.restrictions, call.tiles()
    one_tile = len(tiles) == len(tiles[0][2]) == 1
    grad = flat(torch.zeros_like(out.mean) if grads.mean is None else grads.mean, lead).to(kind)
    weight_grads = flat(grads.weights, lead) if problem.wants_weights and grads.weights is not None else None
    offsets, extra_bound = _find_offsets(problem, out, grads, len(tiles[0][2]) > 1)
    peak, total = (flat(t, lead, 1) for t in (out.peak, out.total))
    if restrictions.vary_by_row() and not restrictions.leaves_some():
        grad = grad.masked_fill((total == 0)[..., None], 0.0)  # rows without a key may have NaN
    sums = _Sums.of(call, one_tile)
    for elements, rows, columns in tiles:
        row_grad, row_offsets = _take(grad, elements, rows), None if offsets is None else _take(offsets, elements, rows)
        for cols in columns:
            tile = call.tile(elements, rows, cols)
            subplan = tile.plan(plan)
            if saved is not None:
                phi, psi, weights, dropped = saved[3:]
            else:
                phi, psi = call.steps.factors(tile.query, tile.key, tile.weight, subplan)
                scores, units = tile.scores(phi, psi, subplan)
                known = _take(peak, elements, rows), _take(total, elements, rows)
                weights, dropped, _, _ = call.steps.weigh(scores, units, tile.mask, kind, known)
                del scores
            weight_grad = product(row_grad, tile.value.mT)
            incoming = None if weight_grads is None else weight_grads[elements, rows, cols].contiguous()
            score_grad, scale = call.steps.score_grads(
                weights, weight_grad, row_grad, tile.value, tile.mask, incoming, row_offsets, len(columns) == 1,
                extra_bound,
            )  # fmt: skip
            del weight_grad
            visible = None if tile.visible is None else tile.visible.mT
            sums.value(tile, pool(dropped.mT, row_grad, visible, partial(product, kind=sums.kinds.value)))
            phi_grad, psi_grad = product(score_grad, psi), product(score_grad.mT, phi)
            del phi, psi, weights, dropped
            kinds = sums.kinds.query, sums.kinds.key
            shares = call.steps.input_grads(
                tile.query, tile.key, tile.weight, phi_grad, psi_grad, score_grad, scale, subplan, kinds
            )
            sums.inputs(tile, shares)
            if problem.wants_bias_grad or restrictions.key_bias is not None:
                sums.biases(tile, score_grad.float() / scale)
    return sums.gradients()


def _find_offsets(problem: Problem, out: Output, grads: Output, tiled: bool) -> tuple[Tensor | None, Tensor | None]:
    """Return the offsets (..., n) of `score_grads`, and a bound on the incoming gradients; None if there are none.

    With several tiles of columns, the offsets include Σ weight · gradient.
    """
    offsets = extra_bound = None
    if problem.wants_state and grads.total is not None:
        offsets = (-grads.total * out.total).masked_fill(out.total == 0, 0.0)
    weight_grads = grads.weights if problem.wants_weights else None
    if offsets is not None or weight_grads is not None:
        largest = [t.abs().float().nan_to_num(0.0, 0.0, 0.0).amax() for t in (offsets, weight_grads) if t is not None]
        extra_bound = 2 * torch.stack(largest).sum()[None]
    if tiled:
        offsets = torch.zeros_like(out.total) if offsets is None else offsets
        if grads.mean is not None:
            offsets = offsets + (grads.mean.float() * out.mean.float()).sum(-1)
        if weight_grads is not None:
            offsets = offsets + (weight_grads.float() * out.weights.float()).sum(-1)
    return None if offsets is None else flat(offsets, problem.lead, 1), extra_bound


class _Kinds(NamedTuple):
    query: torch.dtype
    key: torch.dtype
    value: torch.dtype


class _Sums:
    """The sums of gradients over tiles; those of a single tile are not copied."""

    def __init__(self, call: _Call, kinds: _Kinds, sums: dict[str, Tensor]) -> None:
        self.call, self.kinds, self.sums = call, kinds, sums

    @classmethod
    def of(cls, call: _Call, one_tile: bool) -> "_Sums":
        problem = call.problem
        operands, wide = (problem.query, problem.key, problem.value), torch.float32
        kinds = [t.dtype if one_tile and t.shape[:-2] == problem.lead else wide for t in operands]
        if problem.value.dtype != problem.narrow_dtype:
            kinds[2] = wide
        return cls(call, _Kinds(*kinds), {})

    def _add(self, name: str, share: Tensor, index: tuple[slice, ...], like: Tensor) -> None:
        if share.shape == like.shape and name not in self.sums:
            self.sums[name] = share
        else:
            if name not in self.sums:
                self.sums[name] = share.new_zeros(like.shape)
            self.sums[name][index] += share

    def value(self, tile: _Tile, share: Tensor) -> None:
        self._add("value", share, (tile.elements, tile.cols), self.call.value)

    def inputs(self, tile: _Tile, shares: tuple[Tensor, Tensor, Tensor]) -> None:
        self._add("query", shares[0], (tile.elements, tile.rows), self.call.query)
        self._add("key", shares[1], (tile.elements, tile.cols), self.call.key)
        shared = len(self.call.weight) == 1
        self._add("weight", shares[2], (slice(None) if shared else tile.elements,), self.call.weight)

    def biases(self, tile: _Tile, score_grad: Tensor) -> None:
        problem, lead = self.call.problem, self.call.problem.lead
        pair_grad = score_grad
        if len(score_grad) != lead.numel():  # a broadcast bias is summed over all batch elements
            pair_grad = score_grad.new_zeros(lead.numel(), *score_grad.shape[1:])
            pair_grad[tile.elements] = score_grad
        pair_grad = pair_grad.view(*lead, *pair_grad.shape[1:])
        for name, share in (("bias", pair_grad), ("key_bias", pair_grad.sum(-2))):
            bias = getattr(problem.restrictions, name)
            if bias is None or (name == "bias" and not problem.wants_bias_grad):
                continue
            if name not in self.sums:
                self.sums[name] = share.new_zeros(bias.shape)
            into = self.sums[name]
            into = pairs_of(into, tile.rows, tile.cols) if name == "bias" else into[..., tile.cols]
            into += share.sum_to_size(into.shape)

    def gradients(self) -> Gradients:
        """Return the gradients, each in its operand's shape and dtype."""
        problem = self.call.problem
        tensors, lead = problem.tensors(), problem.lead
        gradients = []
        for name in Gradients._fields:
            grad, like = self.sums.get(name), tensors.get(name)
            if grad is None or like is None:
                gradients.append(problem.query.new_empty(0))
                continue
            if grad.shape != like.shape:
                if name in ("query", "key", "value"):
                    grad = grad.view(*lead, *grad.shape[1:])
                elif name == "weight" and len(grad) > 1:
                    grad = grad.view(*lead, -1)
                grad = grad.view(like.shape) if grad.numel() == like.numel() else grad.sum_to_size(like.shape)
            gradients.append(grad.to(like.dtype))
        return Gradients(*gradients)


def _exact_forward(problem: Problem) -> Output:
    mean, peak, total, weights = chunked.run.forward(problem.in_wide_dtype())
    kind = problem.narrow_dtype
    return Output(mean if problem.wants_state else mean.to(kind), peak, total, weights.to(kind))


def _exact_backward(problem: Problem, out: Output, grads: Output) -> Gradients:
    filled = (torch.zeros_like(o) if g is None else g for o, g in zip(out, grads, strict=True))
    out, grads = (Output(*(t.to(problem.dtype) for t in outputs)) for outputs in (out, filled))
    gradients = chunked.run.backward(problem.in_wide_dtype(), out, grads)
    tensors = problem.tensors()
    return Gradients(
        *(g.to(tensors[n].dtype) if n in tensors else g for n, g in zip(Gradients._fields, gradients, strict=True))
    )


run = Operator("products", lambda problem: _forward_and_save(problem)[0], _backward, keep=_forward_and_save)
