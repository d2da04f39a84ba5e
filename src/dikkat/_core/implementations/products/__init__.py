"""Additive scores as a dot product, by which they and their gradients are products of matrices of halves.

With tanh x ≈ Σ_r b_r sin(ω_r x) for |x| ≤ A, sin(a + b) = sin a cos b + cos a sin b parts every term into what belongs
to the query and what belongs to the key: Σ_h v_h tanh(q_h + k_h) = ⟨Φ(q), Ψ(k)⟩, of 2 R H factors, in float16; sums are
in float32. The coefficients are those of the first series of `sines.SERIES` that reaches as far as the data do.

How far they reach, only the device knows, and asking it would hold up the host at every call. So R is fixed, the device
looks up the coefficients by itself, and kernels behind a guard there write over what no series reaches, pair by pair:
they read one number and are gone where there is no such pair. Without Triton the host looks, and leaves a call that
reaches too far to `chunked`.
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
from dikkat._core.implementations.products.launch import Plan, Seen
from dikkat._core.implementations.products.sines import SERIES
from dikkat._core.implementations.triton import launch as gpu_launch
from dikkat._core.operators import Gradients, Operator, Output
from dikkat._core.problem import Examined, Problem
from dikkat._core.restrictions import largest_magnitude, pairs_of
from dikkat._core.softmax import softmax
from dikkat._engine.pytorch_state import products_are_fast
from dikkat.state import Pooled, join

T = TypeVar("T")
_HALVES = (torch.float16, torch.bfloat16)
_TERMS = len(SERIES[0][2])
# Up to which reach a series is as good as plain PyTorch's own rounding.
_REACHES = {torch.bfloat16: 18.0, torch.float16: 11.0, torch.float32: 11.0}
# Pairs of a tile (256 MiB of scores), and numbers in the factors of one of its sides (256 MiB).
_PAIRS, _FACTORS = 2**26, 2**27
# Bytes up to which factors and weights are kept for the backward.
_KEPT = 2**28
# Tiles begin at multiples of this.
_STEP = 128


def examine(problem: Problem) -> Examined:
    if problem.pair != "additive":
        return Examined(["it computes additive scores as products; inner ones are products, and distances have none"])
    found, compared = [], {problem.query.dtype, problem.key.dtype}
    if torch.float64 in {*compared, problem.value.dtype}:
        found.append("its factors are float16; 'chunked' and 'reference' take float64")
    elif not compared <= set(_HALVES) and not products_are_fast():
        found.append(
            "its factors are float16, and products of float32 are exact; after "
            "torch.set_float32_matmul_precision('high'), or in bfloat16, float16 or autocast, it runs"
        )
    if problem.has_tangents:
        found.append("it has no forward-mode derivative; 'reference' has")
    return Examined(found)


class Plain:
    """The functions of `launch`, with the same arguments and results, in PyTorch's operations."""

    @staticmethod
    def plan(query: Tensor, key: Tensor, weight: Tensor, table: Tensor) -> Plan | None:
        reach = largest_magnitude(query) + largest_magnitude(key)
        line = next((i for i, known in enumerate(table[:, 0].tolist()) if reach <= known), None)
        if line is None:
            return None
        head = torch.tensor([math.inf, 0.0, _power(reach, 0.0), _power(largest_magnitude(weight))], device=table.device)
        head[1] = table[line, 1]
        return Plan(torch.cat([head, table[line, 2:]]), _TERMS, head, head)

    @staticmethod
    def factors(query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        _, _, small, unit, *_ = plan.numbers
        sin, cos = _waves(query, plan)
        phi = torch.stack([sin / small, cos], -2)
        sin, cos = _waves(key, plan)
        gain = plan.numbers[4:, None] * (weight.float() / unit)[:, None, None]  # (elements or 1, 1, R, h)
        psi = torch.stack([cos * gain, sin * gain / small], -2)
        return phi.flatten(-3).half(), psi.flatten(-3).half()

    @staticmethod
    def far_scores(scores: Tensor, query: Tensor, key: Tensor, weight: Tensor, plan: Plan) -> None:
        """None are far."""

    @staticmethod
    def weigh(
        scores: Tensor, plan: Plan | None, seen: Seen, kind: torch.dtype, known: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if plan is not None:
            scores = scores * (plan.numbers[2] * plan.numbers[3])
        if known is None:
            weights, peak, total = softmax(scores, seen.visible)
        else:
            peak, total = known
            shares = (scores - peak.masked_fill(peak == -math.inf, 0.0)[..., None]).exp()
            weights = shares / total.masked_fill(total == 0, 1.0)[..., None]
            weights = weights if seen.visible is None else weights.masked_fill(~seen.visible, 0.0)
        factor = _dropped(seen, scores)
        return weights.to(kind), (weights if factor is None else weights * factor).to(kind), peak, total

    @staticmethod
    def by_score(
        weights: Tensor, wanted: Tensor, grad: Tensor, value: Tensor, seen: Seen, by_weight: Tensor | None,
        drift: Tensor | None, sums: bool, more: Tensor | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        factor, weights = _dropped(seen, wanted), weights.float()
        wanted = wanted if factor is None else (wanted * factor).masked_fill(factor == 0, 0.0)
        wanted = wanted if by_weight is None else wanted + by_weight
        wanted = wanted.masked_fill(weights == 0, 0.0)
        if sums:
            wanted = wanted - (weights * wanted).sum(-1, keepdim=True)
        if drift is not None:
            wanted = wanted - drift[..., None]
        found = (weights * wanted).masked_fill(weights == 0, 0.0)
        most = found.abs().nan_to_num(0.0, 0.0, 0.0).amax()
        size = torch.exp2(13 - most.masked_fill(most == 0, 1.0).log2().floor().clamp(-100, 100))
        return (found * size).half(), size[None]

    @staticmethod
    def sides(
        query: Tensor, key: Tensor, weight: Tensor, by_phi: Tensor, by_psi: Tensor, grads: Tensor, size: Tensor,
        plan: Plan, kinds: tuple[torch.dtype, torch.dtype],
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        _, _, small, unit, *_ = plan.numbers
        frequencies, b = _frequencies(plan), plan.numbers[4:, None]
        sin, cos = _waves(query, plan)
        first, second = by_phi.unflatten(-1, (_TERMS, 2, -1)).unbind(-2)
        by_query = ((first * cos - small * second * sin) * frequencies).sum(-2) * (unit / size)
        sin, cos = _waves(key, plan)
        first, second = by_psi.unflatten(-1, (_TERMS, 2, -1)).unbind(-2)
        by_key = ((second * cos - small * first * sin) * (frequencies * b)).sum(-2) * (weight.float()[:, None] / size)
        by_weight = ((small * first * cos + second * sin) * b).sum((1, 2)) / size
        return by_query.to(kinds[0]), by_key.to(kinds[1]), by_weight.sum_to_size(weight.shape)


def _frequencies(plan: Plan) -> Tensor:
    return plan.numbers[1] * torch.arange(1, 2 * plan.terms, 2, device=plan.numbers.device)[:, None]


def _waves(side: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
    """sin ω_r x and cos ω_r x, (elements, length, R, h)."""
    angles = side.float()[..., None, :] * _frequencies(plan)
    return angles.sin(), angles.cos()


def _power(size: float, most: float = 60.0) -> float:
    """A power of two of the size of a number; 1 for 0 and what is not finite."""
    if not 0 < size < math.inf:
        return 1.0
    return float(torch.tensor(size, dtype=torch.float64).log2().floor().clamp(-60.0, most).exp2())


def _dropped(seen: Seen, like: Tensor) -> Tensor | None:
    if seen.seeds is None:
        return None
    threshold, scale = dropout_numbers(seen.dropout)
    key = torch.arange(seen.start, seen.start + like.shape[-1], device=like.device)
    return (random_bits(seen.seeds[..., None], key) >= threshold) * scale


@cache
def _table(device: torch.device, reach: float) -> Tensor:
    """The series up to a reach, (series, 2 + R): A, the first frequency, b."""
    lines = [(most, torch.pi / (2 * period), *b) for most, period, b in SERIES if most <= reach]
    with torch.inference_mode(False):
        return torch.tensor(lines, dtype=torch.float32, device=device)


class _Call(NamedTuple):
    """A problem as its steps take it: one leading dimension, and operands that repeat nothing but v."""

    problem: Problem
    steps: Any  # `Plain`, or the module with kernels in their place
    query: Tensor  # (elements, n, h)
    key: Tensor  # (elements, m, h)
    weight: Tensor  # (elements or 1, h)
    value: Tensor  # (elements, m, d_v) in the problem's narrow dtype
    seeds: Tensor | None  # (elements, n), one a row, or None

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
        """How the call is computed, or None for exactly."""
        if not (self.query.numel() and self.key.numel()):
            return None
        reach = min(_REACHES[self.query.dtype], _REACHES[self.key.dtype])
        found: Plan | None = self.steps.plan(self.query, self.key, self.weight, _table(self.query.device, reach))
        return found

    def tiles(self) -> list[tuple[slice, slice, list[slice]]]:
        """The batch elements, rows and columns of each tile."""
        (elements, n, _), m, factors = self.query.shape, self.key.shape[1], 2 * _TERMS * self.query.shape[2]
        count = min(_PAIRS // (n * m), _FACTORS // (max(n, m) * factors))
        if count:
            return [(part, slice(0, n), [slice(0, m)]) for part in _slices(elements, count)]
        most = max(_STEP, _FACTORS // factors // _STEP * _STEP)
        cols = min(m, most)
        rows = min(n, most, max(_STEP, _PAIRS // cols // _STEP * _STEP))
        single = _slices(elements, 1)
        return [(part, each, _slices(m, cols)) for part in single for each in _slices(n, rows)]

    def tile(self, elements: slice, rows: slice, cols: slice) -> "_Tile":
        problem = self.problem
        restrictions = problem.restrictions
        others = any(t is not None for t in (restrictions.starts, restrictions.mask, restrictions.key_bias))
        others |= restrictions.bias is not None or restrictions.exclude is not None
        exact = restrictions.vary_by_row() and must_exclude(problem)
        visible = None
        if others or exact or (self.steps is Plain and restrictions.may_hide()):
            visible = restrictions.visible(rows, cols)
        if visible is not None:
            visible = visible.expand(*problem.lead, rows.stop - rows.start, cols.stop - cols.start)
            visible = flat(visible, problem.lead)[elements]
        lens = None
        if restrictions.lens is not None:
            lens = restrictions.lens.expand(*problem.lead, -1).reshape(len(self.query), -1)[elements]
            lens = lens if lens.shape[1] == 1 else lens[:, rows]
        seen = Seen(
            lens, restrictions.causal, restrictions.keys - restrictions.queries,
            visible if others or self.steps is Plain else None,
            None if self.seeds is None else _part(self.seeds, elements, rows),
            problem.dropout, rows.start, cols.start,
        )  # fmt: skip
        weight = self.weight if len(self.weight) == 1 else self.weight[elements]
        return _Tile(
            self, elements, rows, cols, _part(self.query, elements, rows), _part(self.key, elements, cols), weight,
            _part(self.value, elements, cols), seen, visible if exact else None,
        )  # fmt: skip


class _Tile(NamedTuple):
    """Some rows and columns of a call; `visible` where hidden pairs must be left out of sums one by one."""

    call: _Call
    elements: slice
    rows: slice
    cols: slice
    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor
    seen: Seen
    visible: Tensor | None

    def plan(self, whole: Plan) -> Plan:
        alone = self.query.shape == self.call.query.shape and self.key.shape == self.call.key.shape
        return whole if alone or self.call.steps is Plain else whole.part(self.elements, self.rows, self.cols)

    def scores(self, phi: Tensor, psi: Tensor, plan: Plan) -> tuple[Tensor, Plan | None]:
        """The scores, and the plan, in whose units they are; None where they have been brought to 1 with a bias."""
        restrictions, lead = self.call.problem.restrictions, self.call.problem.lead
        scores = product(phi, psi.mT)
        self.call.steps.far_scores(scores, self.query, self.key, self.weight, plan)
        if restrictions.bias is None and restrictions.key_bias is None:
            return scores, plan
        scores *= plan.numbers[2] * plan.numbers[3]
        if len(scores) == lead.numel():
            biased = restrictions.biased(scores.view(*lead, *scores.shape[1:]), self.rows, self.cols)
            return flat(biased.to(scores.dtype), lead), None
        for name, own in (("bias", 2), ("key_bias", 1)):
            given = getattr(restrictions, name)
            if given is not None:
                given = pairs_of(given, self.rows, self.cols) if own == 2 else given[..., None, self.cols]
                scores += flat(given.expand(*lead, *given.shape[-2:]), lead)[self.elements]
        return scores, None


def _part(tensor: Tensor, elements: slice, rows: slice) -> Tensor:
    """Some elements' rows, one after the other; all of them as they are."""
    if elements.stop - elements.start == tensor.shape[0] and rows.stop - rows.start == tensor.shape[1]:
        return tensor
    return tensor[elements, rows].contiguous()


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _named(what: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a pass: it runs on the problem's device, and an out-of-memory error names the call."""

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        @wraps(function)
        def run(problem: Problem, *more: Any) -> T:
            device = problem.query.device
            elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
            try:
                with torch.cuda.device(device) if elsewhere else nullcontext():
                    return function(problem, *more)
            except torch.OutOfMemoryError as error:
                error.add_note(
                    f"This was the {what} of additive attention by impl 'products': query "
                    f"{tuple(problem.query.shape)}, key {tuple(problem.key.shape)}, value {tuple(problem.value.shape)}"
                )
                raise

        return run

    return decorate


class _Made(NamedTuple):
    """The tensors of a one-tile forward that its backward reads again."""

    numbers: Tensor
    query_peaks: Tensor
    key_peaks: Tensor
    phi: Tensor
    psi: Tensor
    weights: Tensor
    kept: Tensor


@_named("forward")
def _keep(problem: Problem) -> tuple[Output, tuple[Tensor, ...]]:
    """The forward, and what the backward need not make again."""
    call, kind = _Call.of(problem), problem.narrow_dtype
    plan = call.plan()
    if plan is None:
        return _exact_forward(problem), ()
    n, m, tiles = problem.restrictions.queries, problem.restrictions.keys, call.tiles()
    made: tuple[Tensor, ...] = ()
    states, shown = [], []
    for elements, rows, columns in tiles:
        parts: list[Pooled] = []
        wide = torch.float32 if problem.wants_state or len(columns) > 1 else kind
        for cols in columns:
            tile = call.tile(elements, rows, cols)
            own = tile.plan(plan)
            phi, psi = call.steps.factors(tile.query, tile.key, tile.weight, own)
            scores, units = tile.scores(phi, psi, own)
            weights, kept, peak, total = call.steps.weigh(scores, units, tile.seen, kind)
            means = pool(kept, tile.value, tile.visible, partial(product, kind=wide))
            parts = [reduce(join, [*parts, Pooled(means, peak, total)])]
            if len(tiles) == len(columns) == 1 and phi.nbytes + psi.nbytes + weights.nbytes <= _KEPT:
                made = _Made(plan.numbers, plan.query_peaks, plan.key_peaks, phi, psi, weights, kept)
            del phi, psi, scores, kept
        (state,) = parts
        states.append(state)
        if problem.wants_weights:
            if len(columns) > 1:
                weights = torch.cat([_weights(call.tile(elements, rows, cols), plan, state) for cols in columns], -1)
            shown.append(weights)
    mean, peak, total = (_gathered([state[i] for state in states], call, n) for i in range(3))
    lead, size = problem.lead, problem.value.shape[-1]
    mean = mean.to(torch.float32 if problem.wants_state else kind)
    seen = _gathered(shown, call, n).contiguous().view(*lead, n, m) if shown else mean.new_empty(0)
    return Output(mean.view(*lead, n, size), peak.view(*lead, n), total.view(*lead, n), seen), made


def _weights(tile: _Tile, plan: Plan, state: Pooled) -> Tensor:
    steps, own = tile.call.steps, tile.plan(plan)
    phi, psi = steps.factors(tile.query, tile.key, tile.weight, own)
    scores, units = tile.scores(phi, psi, own)
    found: Tensor = steps.weigh(scores, units, tile.seen, tile.value.dtype, (state.peak, state.total))[0]
    return found


def _gathered(parts: list[Tensor], call: _Call, n: int) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if parts[0].shape[1] == n:
        return torch.cat(parts)
    each = -(-n // parts[0].shape[1])
    return torch.cat([torch.cat(parts[i : i + each], 1) for i in range(0, len(parts), each)])


@_named("backward")
def _backward(problem: Problem, out: Output, grads: Output, *made: Tensor) -> Gradients:
    call, kind, lead = _Call.of(problem), problem.narrow_dtype, problem.lead
    kept = _Made(*made) if made else None
    plan = Plan(kept.numbers, _TERMS, kept.query_peaks, kept.key_peaks) if kept else call.plan()
    if plan is None:
        return _exact_backward(problem, out, grads)
    restrictions, tiles = problem.restrictions, call.tiles()
    whole = len(tiles) == len(tiles[0][2]) == 1
    grad = flat(torch.zeros_like(out.mean) if grads.mean is None else grads.mean, lead).to(kind)
    by_weight = flat(grads.weights, lead) if problem.wants_weights and grads.weights is not None else None
    drift, more = _given(problem, out, grads, len(tiles[0][2]) > 1)
    peak, total = (flat(t, lead, 1) for t in (out.peak, out.total))
    if restrictions.vary_by_row() and not restrictions.leaves_some():
        grad = grad.masked_fill((total == 0)[..., None], 0.0)  # of rows without a key, which may be NaN
    sums = _Sums.of(call, whole)
    for elements, rows, columns in tiles:
        above, off = _part(grad, elements, rows), None if drift is None else _part(drift, elements, rows)
        for cols in columns:
            tile = call.tile(elements, rows, cols)
            own = tile.plan(plan)
            if kept is not None:
                phi, psi, weights, taken = kept[3:]
            else:
                phi, psi = call.steps.factors(tile.query, tile.key, tile.weight, own)
                scores, units = tile.scores(phi, psi, own)
                known = _part(peak, elements, rows), _part(total, elements, rows)
                weights, taken, _, _ = call.steps.weigh(scores, units, tile.seen, kind, known)
                del scores
            wanted = product(above, tile.value.mT)
            from_weights = None if by_weight is None else by_weight[elements, rows, cols].contiguous()
            found, size = call.steps.by_score(
                weights, wanted, above, tile.value, tile.seen, from_weights, off, len(columns) == 1, more
            )
            del wanted
            visible = None if tile.visible is None else tile.visible.mT
            sums.value(tile, pool(taken.mT, above, visible, partial(product, kind=sums.kinds.value)))
            by_phi, by_psi = product(found, psi), product(found.mT, phi)
            del phi, psi, weights, taken
            kinds = sums.kinds.query, sums.kinds.key
            sums.sides(
                tile, call.steps.sides(tile.query, tile.key, tile.weight, by_phi, by_psi, found, size, own, kinds)
            )
            if problem.wants_bias_grad or restrictions.key_bias is not None:
                sums.biases(tile, found.float() / size)
    return sums.gradients()


def _given(problem: Problem, out: Output, grads: Output, parted: bool) -> tuple[Tensor | None, Tensor | None]:
    """The offset of the gradients of a row's scores, (..., n), and a bound of the incoming gradients.

    The offset of a row in several tiles includes Σ weight · gradient.
    """
    drift = more = None
    if problem.wants_state and grads.total is not None:
        drift = (-grads.total * out.total).masked_fill(out.total == 0, 0.0)
    by_weight = grads.weights if problem.wants_weights else None
    if drift is not None or by_weight is not None:
        most = [t.abs().float().nan_to_num(0.0, 0.0, 0.0).amax() for t in (drift, by_weight) if t is not None]
        more = 2 * torch.stack(most).sum()[None]
    if parted:
        drift = torch.zeros_like(out.total) if drift is None else drift
        if grads.mean is not None:
            drift = drift + (grads.mean.float() * out.mean.float()).sum(-1)
        if by_weight is not None:
            drift = drift + (by_weight.float() * out.weights.float()).sum(-1)
    return None if drift is None else flat(drift, problem.lead, 1), more


class _Kinds(NamedTuple):
    query: torch.dtype
    key: torch.dtype
    value: torch.dtype


class _Sums:
    """The sums of gradients over tiles; a single tile's are used without a copy."""

    def __init__(self, call: _Call, kinds: _Kinds, found: dict[str, Tensor]) -> None:
        self.call, self.kinds, self.found = call, kinds, found

    @classmethod
    def of(cls, call: _Call, whole: bool) -> "_Sums":
        problem = call.problem
        operands, wide = (problem.query, problem.key, problem.value), torch.float32
        kinds = [t.dtype if whole and t.shape[:-2] == problem.lead else wide for t in operands]
        if problem.value.dtype != problem.narrow_dtype:
            kinds[2] = wide
        return cls(call, _Kinds(*kinds), {})

    def _add(self, name: str, share: Tensor, place: tuple[slice, ...], like: Tensor) -> None:
        if share.shape == like.shape and name not in self.found:
            self.found[name] = share
        else:
            if name not in self.found:
                self.found[name] = share.new_zeros(like.shape)
            self.found[name][place] += share

    def value(self, tile: _Tile, share: Tensor) -> None:
        self._add("value", share, (tile.elements, tile.cols), self.call.value)

    def sides(self, tile: _Tile, shares: tuple[Tensor, Tensor, Tensor]) -> None:
        self._add("query", shares[0], (tile.elements, tile.rows), self.call.query)
        self._add("key", shares[1], (tile.elements, tile.cols), self.call.key)
        shared = len(self.call.weight) == 1
        self._add("weight", shares[2], (slice(None) if shared else tile.elements,), self.call.weight)

    def biases(self, tile: _Tile, by_score: Tensor) -> None:
        problem, lead = self.call.problem, self.call.problem.lead
        every = by_score
        if len(by_score) != lead.numel():  # a broadcast bias is summed over all batch elements
            every = by_score.new_zeros(lead.numel(), *by_score.shape[1:])
            every[tile.elements] = by_score
        every = every.view(*lead, *every.shape[1:])
        for name, share in (("bias", every), ("key_bias", every.sum(-2))):
            given = getattr(problem.restrictions, name)
            if given is None or (name == "bias" and not problem.wants_bias_grad):
                continue
            if name not in self.found:
                self.found[name] = share.new_zeros(given.shape)
            into = self.found[name]
            into = pairs_of(into, tile.rows, tile.cols) if name == "bias" else into[..., tile.cols]
            into += share.sum_to_size(into.shape)

    def gradients(self) -> Gradients:
        """The gradients, each in its operand's shape and type."""
        problem = self.call.problem
        tensors, lead = problem.tensors(), problem.lead
        made = []
        for name in Gradients._fields:
            grad, like = self.found.get(name), tensors.get(name)
            if grad is None or like is None:
                made.append(problem.query.new_empty(0))
                continue
            if grad.shape != like.shape:
                if name in ("query", "key", "value"):
                    grad = grad.view(*lead, *grad.shape[1:])
                elif name == "weight" and len(grad) > 1:
                    grad = grad.view(*lead, -1)
                grad = grad.view(like.shape) if grad.numel() == like.numel() else grad.sum_to_size(like.shape)
            made.append(grad.to(like.dtype))
        return Gradients(*made)


def _exact_forward(problem: Problem) -> Output:
    mean, peak, total, weights = chunked.run.forward(problem.in_wide_dtype())
    kind = problem.narrow_dtype
    return Output(mean if problem.wants_state else mean.to(kind), peak, total, weights.to(kind))


def _exact_backward(problem: Problem, out: Output, grads: Output) -> Gradients:
    wide = (torch.zeros_like(o) if g is None else g for o, g in zip(out, grads, strict=True))
    out, grads = (Output(*(t.to(problem.dtype) for t in each)) for each in (out, wide))
    found = chunked.run.backward(problem.in_wide_dtype(), out, grads)
    tensors = problem.tensors()
    return Gradients(
        *(g.to(tensors[n].dtype) if n in tensors else g for n, g in zip(Gradients._fields, found, strict=True))
    )


run = Operator("products", lambda problem: _keep(problem)[0], _backward, keep=_keep)
