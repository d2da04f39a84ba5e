"""What random calls of one signature should give: by NumPy, in a wider type, and how far a right answer may be off.

The oracle knows the formulas alone: every pair, no tiles, no log-sum-exp tricks. The error of a score is what the
rounding of its terms, and of the projections before it, comes to; from there it goes through the softmax exactly, and
through the sums of the output and of the gradients as an absolute value. So the bound is that of a plain computation in
the same type, term by term, and not a tolerance.

All arrays have the calls of the signature in front, (R, ...): at so small a size NumPy takes as long for one as for
three.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.stress.random_calls import OPERANDS, Call, direction, moved, numbers_of, run, run_together, summed

# How much more than the bound, which counts each rounding once and none of the order that sums are taken in.
SLACK = 8.0


class WrongError(ArithmeticError):
    """An answer that is beyond the budget."""


@dataclass
class Near:
    """Numbers, and how far a right answer may be from each."""

    exact: np.ndarray
    error: np.ndarray

    def summed_to(self, shape: tuple[int, ...]) -> "Near":
        """Over the dimensions that were broadcast."""
        return Near(_summed(self.exact, shape), _summed(self.error, shape))


def _summed(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum each call's (R, ...) to a shape, of which (R, *shape) is made."""
    calls, more = array.shape[:1], array.ndim - 1 - len(shape)
    return summed(array, (*calls, *(1,) * more, *shape)).reshape(*calls, *shape)


def _turned(a: Near) -> Near:
    return Near(np.swapaxes(a.exact, -1, -2), np.swapaxes(a.error, -1, -2))


def expected(calls: list[Call]) -> tuple[dict[str, Near], np.ndarray]:
    """What calls should give, and of which that cannot be said: numbers overflow, or lie on the edge of a support."""
    with np.errstate(all="ignore"):
        oracle = _Oracle(calls)
        found = oracle.results()
        limit = float(torch.finfo(calls[0].dtype).max) / 64
        for near in found.values():
            oracle.doubt(~((np.abs(near.exact) < limit) | (near.exact == -np.inf)))
    return found, oracle.undecided


class _Oracle:
    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.call = call = calls[0]
        self.wide: Any = np.longdouble if call.dtype == torch.float64 else np.float64
        info = torch.finfo(call.dtype)
        self.eps = SLACK * float(info.eps)
        # What is computed in.
        own = torch.finfo(torch.promote_types(call.dtype, torch.float32))
        self.fine, self.tiny, self.most = SLACK * float(own.eps), 64 * float(own.tiny), float(own.max) / 64
        # What a number of the call's own type may lose near 0: a step between float16's subnormals is 6e-8.
        self.step = max(self.tiny, SLACK * float(info.tiny) * float(info.eps))
        self.undecided = np.zeros(len(calls), bool)
        self.visible = shown = np.stack([each.visible for each in calls])
        # What nobody sees has no effect, whatever it holds.
        live, seen = shown.any(-1)[..., None], shown.any(-2)[..., None]
        self.query, self.key, self.value = (
            np.where(some, self.stacked(name, 2), 0) for name, some in (("query", live), ("key", seen), ("value", seen))
        )

    def stacked(self, name: str, own: int) -> np.ndarray:
        """An operand of all calls, with their leading dimensions before its own."""
        tensors = [getattr(each, name) if name in OPERANDS else each.limits[name] for each in self.calls]
        made = np.stack([numbers_of(t, self.wide) for t in tensors])
        if own == 0:  # a number a batch element
            made, own = made[..., None], 1
        lead, size = made.shape[1 : made.ndim - own], made.shape[made.ndim - own :]
        made = made.reshape(len(tensors), *(1,) * (len(self.call.lead) - len(lead)), *lead, *size)
        return np.broadcast_to(made, (len(tensors), *self.call.lead, *size))

    def doubt(self, bad: np.ndarray) -> None:
        """Calls of which any of (R, ...) is bad are not judged."""
        self.undecided |= bad.reshape(len(self.calls), -1).any(1)

    def exactly(self, array: np.ndarray) -> Near:
        return Near(array, np.zeros_like(array))

    def product(self, a: Near, b: Near, eps: float) -> Near:
        """A matrix product of numbers that are near to something; what is too small for the type is lost."""
        size_a, size_b = np.abs(a.exact), np.abs(b.exact)
        terms = a.exact.shape[-1] + 1
        error = a.error @ size_b + size_a @ b.error + a.error @ b.error + eps * terms * (size_a @ size_b)
        return Near(a.exact @ b.exact, error + terms * (self.tiny if eps == self.fine else self.step))

    def parameter(self, name: str) -> np.ndarray:
        return numbers_of(dict(self.call.score.named_parameters())[name], self.wide)

    def results(self) -> dict[str, Near]:
        call = self.call
        score, backward = getattr(self, f"_{call.score.pair}")()
        shown, keys = self.visible, self.key.shape[-2]
        exact, error = score.exact, score.error
        for name in call.limits.keys() & {"bias", "key_bias"}:
            added = self.stacked(name, 2) if name == "bias" else self.stacked(name, 1)[..., None, :]
            added = np.where(shown, added, 0)
            exact, error = exact + added, error + self.fine * (np.abs(exact) + np.abs(added))
        if "sink" in call.limits:  # one more key, whose value is 0
            sink = np.broadcast_to(self.stacked("sink", 0)[..., None, :], (*exact.shape[:-1], 1))
            exact, error = np.concatenate([exact, sink], -1), np.concatenate([error, 0 * sink], -1)
            shown = np.concatenate([shown, np.ones_like(sink, bool)], -1)
        self.doubt(~(np.where(shown, np.abs(exact) + error, 0) < self.most))
        s = np.where(shown, exact, -np.inf)
        peak = s.max(-1, keepdims=True, initial=-np.inf)
        peak = np.where(np.isneginf(peak), 0, peak)
        share = np.exp(s - peak)
        total = share.sum(-1, keepdims=True)
        weights = share / np.where(total == 0, 1, total)
        lse = np.where(total == 0, -np.inf, np.log(np.where(total == 0, 1, total)) + peak)
        near = self._softmax_error(weights, s - lse, np.where(shown, error, 0), shown)
        of_sink = Near(weights[..., keys:], near.error[..., keys:])
        near = Near(weights[..., :keys], near.error[..., :keys])
        out = self.product(near, self.exactly(self.value), self.eps)
        out.error += self.tiny * (1 + np.abs(self.value).max(-2, keepdims=True, initial=0)) * self.value.shape[-2]
        found = {"output": out, "weights": near, "lse": Near(lse[..., 0], self._lse_error(weights, error, lse, shown))}
        if call.leaves and call.query.shape[-2] and call.key.shape[-2]:
            found |= self._gradients(near, of_sink, backward)
        return found

    def _softmax_error(self, weights: np.ndarray, log: np.ndarray, error: np.ndarray, shown: np.ndarray) -> Near:
        """Each score off by as much as it may be, to its own favour and to that of the others."""
        up, down = (np.where(shown, np.exp(log + sign * error), 0) for sign in (1, -1))
        most = np.minimum(1, np.nan_to_num(up / down.sum(-1, keepdims=True), nan=1, posinf=1))
        least = np.nan_to_num(down / up.sum(-1, keepdims=True), nan=0)
        off = np.maximum(most - weights, weights - least) + weights * self.eps * (4 + np.sqrt(weights.shape[-1]))
        return Near(weights, np.where(shown, np.minimum(1, off) + self.tiny, 0))

    def _lse_error(self, weights: np.ndarray, error: np.ndarray, lse: np.ndarray, shown: np.ndarray) -> np.ndarray:
        most = np.where(shown, error, 0).max(-1, initial=0)
        return most + self.fine * (4 + np.abs(np.where(np.isneginf(lse), 0, lse))[..., 0])

    def _gradients(self, weights: Near, of_sink: Near, backward: Callable[[Near], dict[str, Near]]) -> dict[str, Near]:
        call, shown = self.call, self.visible
        kind = torch.promote_types(call.dtype, torch.float32) if call.entry == "state" else call.dtype
        rounded = torch.from_numpy(np.stack([each.upstream for each in self.calls])).to(kind)
        upstream = self.exactly(numbers_of(rounded, self.wide))
        if call.entry == "weights":
            by_weight = upstream
            grads = {}
        else:
            by_weight = self.product(upstream, self.exactly(np.swapaxes(self.value, -1, -2)), self.eps)
            grads = {"value": self.product(_turned(weights), upstream, self.eps)}
        w, dw, a, da = weights.exact, weights.error, by_weight.exact, by_weight.error
        size = np.abs(a)
        mean = (w * a).sum(-1, keepdims=True)
        spread = (w * size).sum(-1, keepdims=True)
        off = (dw * size + w * da).sum(-1, keepdims=True) + self.eps * w.shape[-1] * spread
        error = dw * (size + spread + off) + w * (da + off) + self.eps * w * (size + spread) + self.tiny * (1 + size)
        by_score = Near(w * (a - mean), np.where(shown, error, 0))
        if "bias" in call.leaves:
            grads["bias"] = by_score
        if "sink" in call.leaves:
            exact = -(of_sink.exact * mean)
            error = of_sink.error * (spread + off) + of_sink.exact * (off + self.eps * spread)
            grads["sink"] = Near(
                exact.sum((-2, -1)), (error + self.eps * exact.shape[-2] * np.abs(exact)).sum((-2, -1))
            )
        if "key_bias" in call.leaves:
            rows = by_score.exact.shape[-2]
            grads["key_bias"] = Near(
                by_score.exact.sum(-2), by_score.error.sum(-2) + self.eps * rows * np.abs(by_score.exact).sum(-2)
            )
        grads |= backward(by_score)
        out = {}
        for name, near in grads.items():
            if name in call.leaves:
                size = tuple(call.leaves[name].shape)
                near.error = near.error + self.eps * np.abs(near.exact) + self.tiny
                count = max(1, near.exact.size // max(1, len(self.calls) * math.prod(size)))
                summed = Near(near.exact, near.error + self.eps * count * np.abs(near.exact)).summed_to(size)
                out[f"grad {name}"] = summed
        return out

    # The pair functions: the scores, and the gradients of what they come from

    def _inner(self) -> tuple[Near, Callable[[Near], dict[str, Near]]]:
        kind, q, k = self.call.kind, self.exactly(self.query), self.exactly(self.key)
        weight = self.exactly(self.parameter("W_q.weight").T) if kind == "bilinear" else None
        # Scaled products divide the side that has fewer numbers, queries or keys.
        divided = "none" if kind != "scaled dot" else self._smaller()
        root = np.sqrt(self.wide(self.query.shape[-1]))
        a, b = (
            Near(side.exact / root, self.eps * np.abs(side.exact) / root + self.step) if name == divided else side
            for name, side in (("query", q), ("key", k))
        )
        a = a if weight is None else self.product(q, weight, self.eps)
        self._check(a, b)
        score = self.product(a, _turned(b), self.fine)
        score.error = score.error + self.tiny

        def backward(by_score: Near) -> dict[str, Near]:
            grads = {"query": self.product(by_score, b, self.eps), "key": self.product(_turned(by_score), a, self.eps)}
            self._check(*grads.values())
            if divided in grads:
                grads[divided] = Near(grads[divided].exact / root, grads[divided].error / root)
            if weight is not None:
                grads["W_q.weight"] = _turned(self._over_all(q, grads["query"]))
                grads["query"] = self.product(grads["query"], _turned(weight), self.eps)
            self._check(*grads.values())
            return grads

        return score, backward

    def _smaller(self) -> str:
        return "query" if self.call.query.numel() <= self.call.key.numel() else "key"

    def _over_all(self, a: Near, b: Near) -> Near:
        """aᵀ b over all rows of all batch elements of a call."""
        count = len(self.calls)
        flat = [
            Near(*(x.reshape(count, math.prod(x.shape[1:-1]), x.shape[-1]) for x in (each.exact, each.error)))
            for each in (a, b)
        ]
        return self.product(_turned(flat[0]), flat[1], self.eps)

    def _check(self, *numbers: Near) -> None:
        limit = min(self.most, float(torch.finfo(self.call.dtype).max) / 64)
        for near in numbers:
            self.doubt(~(np.abs(near.exact) + near.error < limit))

    def _additive(self) -> tuple[Near, Callable[[Near], dict[str, Near]]]:
        W_q, W_k = (self.exactly(self.parameter(f"W_{x}.weight").T) for x in "qk")
        v = self.parameter("w_v.weight")[0]
        q, k = self.exactly(self.query), self.exactly(self.key)
        projected = [self.product(q, W_q, self.eps), self.product(k, W_k, self.eps)]
        self._check(*projected)
        a, b = projected
        x = a.exact[..., :, None, :] + b.exact[..., None, :, :]
        off = a.error[..., :, None, :] + b.error[..., None, :, :] + self.fine * np.abs(x) + self.tiny
        t = np.tanh(x)
        flattest = np.maximum(0, np.abs(x) - off)
        off = np.minimum(2, off * (1 - np.tanh(flattest) ** 2)) + self.fine
        size = np.abs(v)
        error = (size * (off + self.fine * (v.size + 1) * np.abs(t))).sum(-1)
        slope, slope_off = 1 - t * t, np.minimum(1, 2 * off) + self.fine

        def backward(by_score: Near) -> dict[str, Near]:
            g, dg = by_score.exact[..., None], by_score.error[..., None]
            by_x = Near(g * v * slope, size * (dg * (slope + slope_off) + np.abs(g) * (slope_off + self.fine)))
            grads = {}
            for name, axis, weight, features in (("query", -2, W_q, q), ("key", -3, W_k, k)):
                rows = x.shape[axis]
                exact, off = by_x.exact.sum(axis), by_x.error.sum(axis)
                off = off + self.eps * rows * np.abs(by_x.exact).sum(axis) + self.tiny
                by_projected = Near(exact, off)
                grads[name] = self.product(by_projected, _turned(weight), self.eps)
                grads[f"W_{name[0]}.weight"] = _turned(self._over_all(features, by_projected))
                self._check(by_projected)
            terms = g * t
            count = g.size // len(self.calls)
            error_v = dg * np.abs(t) + np.abs(g) * (minimum_off + self.eps * count * np.abs(t))
            axes = tuple(range(1, terms.ndim - 1))
            grads["w_v.weight"] = Near(terms.sum(axes)[:, None], error_v.sum(axes)[:, None])
            self._check(*grads.values())
            return grads

        minimum_off = off
        return Near((v * t).sum(-1), error + self.tiny), backward

    def _distance(self) -> tuple[Near, Callable[[Near], dict[str, Near]]]:
        score, profile = self.call.score, self.call.kind
        sigma = (
            numbers_of(score.log_bandwidth, self.wide)
            if score.learnable
            else numbers_of(score.fixed_bandwidth, self.wide)
        )
        sigma = np.exp(sigma) if score.learnable else sigma
        # A bandwidth is rounded, when it is learned, as its exponential too; and halves' in their own type.
        loose = self.eps if score.learnable or self.call.dtype in (torch.float16, torch.bfloat16) else self.fine
        a, b = self.query / sigma, self.key / sigma
        self._check(self.exactly(a), self.exactly(b))
        x = a[..., :, None, :] - b[..., None, :, :]
        off = self.fine * (np.abs(a)[..., :, None, :] + np.abs(b)[..., None, :, :]) + loose * np.abs(x) + self.tiny
        square = (x * x).sum(-1)
        square_off = (2 * np.abs(x) * off + off * off).sum(-1) + self.fine * (x.shape[-1] + 1) * square + self.tiny
        shown = self.visible
        self.doubt(~(np.where(shown, square + square_off, 0) < self.most))
        if profile == "gaussian":
            return Near(-square / 2, square_off / 2), self._by_distance(x, off, sigma, np.full_like(square, -0.5), 0)
        inside = square <= 1 if profile == "boxcar" else square < 1
        self.doubt(shown & (np.abs(square - 1) <= 4 * square_off))
        shown = self.visible = shown & inside
        square = np.where(inside, square, 0.25)
        square_off = np.where(inside, square_off, 0)
        if profile == "boxcar":
            zero = np.zeros_like(square)
            return Near(zero, zero + self.fine), self._by_distance(x, off, sigma, zero, 0)
        if profile == "epanechnikov":
            left = 1 - square
            slope = -1 / left
            error, slope_off = square_off / left + self.fine, square_off / left**2
        else:
            root = np.sqrt(square)
            root_off = np.minimum(square_off / np.where(root > 0, root, 1), np.sqrt(square_off))
            left = 1 - root
            self.doubt(shown & ((root <= 4 * root_off) | (left <= 4 * root_off)))
            slope = -0.5 / np.where(root > 0, root * left, 1)
            error, slope_off = (
                root_off / left + self.fine,
                np.abs(slope) * root_off * (1 / left + 1 / np.maximum(root, 1e-300)),
            )
        return Near(np.log(left), 2 * error + self.fine * np.abs(np.log(left))), self._by_distance(
            x, off, sigma, slope, 4 * slope_off
        )

    def _by_distance(
        self, x: np.ndarray, off: np.ndarray, sigma: np.ndarray, slope: np.ndarray, slope_off: Any
    ) -> Callable[[Near], dict[str, Near]]:
        def backward(by_score: Near) -> dict[str, Near]:
            g = (2 * by_score.exact * slope)[..., None]
            steep = np.abs(slope) + slope_off
            dg = 2 * (by_score.error * steep + np.abs(by_score.exact) * (slope_off + self.eps * steep))[..., None]
            self._check(Near(g, dg))  # which is large where the triangular kernel's tip is near, and x small
            exact = g * x
            error = dg * (np.abs(x) + off) + np.abs(g) * (off + self.eps * np.abs(x)) + self.tiny
            grads = {}
            for name, axis, sign in (("query", -2, 1), ("key", -3, -1)):
                rows = x.shape[axis]
                total = self.eps * rows * np.abs(exact).sum(axis) + error.sum(axis)
                grads[name] = Near(sign * exact.sum(axis) / sigma, (total + self.eps * np.abs(exact.sum(axis))) / sigma)
            self._check(*grads.values())
            return grads

        return backward


# The comparison -----------------------------------------------------------------------------------------------------


def attempt(call: Call) -> dict[str, Tensor] | None:
    """Make a call; None where a named way may not run it, or has no second derivatives."""
    try:
        return run(call)
    except (ValueError, RuntimeError) as error:
        if not _is_refusal(call, str(error)):
            raise
        return None


def attempts(calls: list[Call]) -> list[dict[str, Tensor] | None]:
    """Make the calls of a signature, one after the other or, by `torch.vmap`, at once."""
    if calls[0].transform != "vmap":
        return list(map(attempt, calls))
    try:
        return list(run_together(calls))
    except ValueError as error:
        if not _is_refusal(calls[0], str(error)):
            raise
        return [None] * len(calls)


def _is_refusal(call: Call, said: str) -> bool:
    named = call.impl != "auto" and said.startswith(f"impl: got '{call.impl}', which cannot run this call: ")
    return named or (
        call.transform == "second" and said.endswith("has no second derivatives; impl='reference' has them")
    )


def directional(calls: list[Call], wanted: dict[str, Near]) -> Near:
    """(R,): the gradients of the inputs, each in its `direction`, summed."""
    exact = np.zeros(len(calls), wanted["output"].exact.dtype)
    error = np.zeros_like(exact)
    for name in calls[0].leaves:
        near = wanted.get(f"grad {name}")
        if near is None or name.endswith("weight") or name.startswith("log_"):
            continue
        steps = np.stack([numbers_of(direction(call.leaves[name]), exact.dtype.type) for call in calls])
        axes, terms = tuple(range(1, steps.ndim)), near.exact * steps
        eps = SLACK * float(torch.finfo(calls[0].dtype).eps)
        exact = exact + terms.sum(axes)
        error = error + (near.error * np.abs(steps) + eps * terms[0].size * np.abs(terms)).sum(axes)
    return Near(exact, error)


def second_difference(calls: list[Call]) -> tuple[Near, np.ndarray]:
    """(R,): how all gradients, in their directions, change in these directions; and of which that cannot be said."""
    found, undecided = [], np.zeros(len(calls), bool)
    directions = [{name: direction(leaf) for name, leaf in call.leaves.items()} for call in calls]
    for step in (2e-5, 1e-5):
        sides = []
        for sign in (1, -1):
            shifted = []
            for call, steps in zip(calls, directions, strict=True):
                leaves = {name: leaf.detach() + sign * step * steps[name] for name, leaf in call.leaves.items()}
                score = copy.deepcopy(call.score)
                with torch.no_grad():
                    for name, parameter in score.named_parameters():
                        parameter.copy_(leaves.get(name, parameter))
                shifted.append(replace(moved(call, leaves), score=score, leaves=leaves))
            wanted, doubted = expected(shifted)
            undecided |= doubted
            sums, scale = np.zeros(len(calls), np.longdouble), np.ones(len(calls))
            for name in calls[0].leaves:
                if (near := wanted.get(f"grad {name}")) is not None:
                    along = np.stack([numbers_of(each[name], near.exact.dtype.type) for each in directions])
                    axes = tuple(range(1, along.ndim))
                    sums = sums + (near.exact * along).sum(axes)
                    scale = scale + np.abs(near.exact * along).sum(axes)
            sides.append(sums)
        found.append((sides[0] - sides[1]) / (2 * step))
    return Near(found[1], 4 * np.abs(found[0] - found[1]) + 1e-5 * (scale + np.abs(found[1]))), undecided


def judge(calls: list[Call], came: list[dict[str, Tensor] | None]) -> list[str]:
    """Compare the calls of a signature: "right", "refused", or "unjudged" where nothing can be said.

    Raises:
        WrongError: An answer is beyond the budget.
    """
    outcomes = ["refused"] * len(calls)
    ran = [number for number, found in enumerate(came) if found is not None]
    if not ran:
        return outcomes
    calls, results = [calls[number] for number in ran], [came[number] or {} for number in ran]
    call, names = calls[0], list(results[0])
    for other in results[1:]:
        if list(other) != names or any(other[name].shape != results[0][name].shape for name in names):
            raise WrongError(f"results of other names or shapes than the first call's: {names}, {list(other)}")
    shown = np.stack([each.visible for each in calls])
    found = {name: torch.stack([each[name] for each in results]) for name in names}
    _check_hidden(shown, found)
    undecided = np.ones(len(calls), bool)
    if not call.dropout:
        wanted, undecided = expected(calls)
        if "jvp" in found:
            wanted["jvp"] = directional(calls, wanted)
        if "second" in found:
            wanted["second"], doubted = second_difference(calls)
            undecided = undecided | doubted
        for name, tensor in found.items():
            if name in wanted:
                _check(name, tensor, wanted[name], undecided)
        if "weights" in found and "sink" not in call.limits:  # which takes its share
            _check_sums(found["weights"], wanted["weights"].exact, undecided)
    for number, doubted in zip(ran, undecided, strict=True):
        outcomes[number] = "unjudged" if doubted else "right"
    return outcomes


def _check(name: str, tensor: Tensor, near: Near, undecided: np.ndarray) -> None:
    if tuple(tensor.shape) != near.exact.shape:
        raise WrongError(f"{name}: shape {tuple(tensor.shape)} instead of {near.exact.shape}, with the calls in front")
    came = numbers_of(tensor, near.exact.dtype.type)
    rounding = SLACK * float(torch.finfo(tensor.dtype).eps) * np.abs(near.exact)
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = near.error + np.where(np.isfinite(rounding), rounding, 0) + 8 * float(torch.finfo(tensor.dtype).tiny)
        off = np.where(came == near.exact, 0, np.abs(came - near.exact))
        wrong = ~(off <= allowed)
    wrong[undecided] = False
    if wrong.any():
        with np.errstate(invalid="ignore", over="ignore"):
            worst = np.unravel_index(
                int(np.argmax(np.where(wrong, np.nan_to_num(off / allowed, nan=np.inf), -1))), off.shape
            )
        place = tuple(int(i) for i in worst)
        raise WrongError(
            f"{name}{list(place)}: came {float(came[worst]):.9g}, is {float(near.exact[worst]):.9g}; off by "
            f"{float(off[worst]):.3g}, allowed {float(allowed[worst]):.3g}"
        )


def _check_sums(weights: Tensor, exact: np.ndarray, undecided: np.ndarray) -> None:
    """Whatever the scores: a row of weights sums to 1, or to 0 where it sees no key."""
    if not weights.numel():
        return
    sums, live = weights.double().sum(-1).numpy(), exact.any(-1)
    eps = float(torch.finfo(weights.dtype).eps)
    off = np.abs(sums - live)[~undecided]
    if not (off <= (4 + weights.shape[-1]) * eps).all():
        raise WrongError(f"weights: the sum of a row is off by {float(np.nan_to_num(off, nan=np.inf).max()):.3g}")


def _check_hidden(shown: np.ndarray, found: dict[str, Tensor]) -> None:
    """What was hidden and is not finite shows nowhere, also where nothing else can be said; dropout or not."""
    live, seen = shown.any(-1), shown.any(-2)
    if not live.all():
        dead = torch.from_numpy(~live)
        for name in ("output", "weights"):
            if name in found and found[name][dead].any():
                raise WrongError(f"{name}: not 0 in a row that sees no key")
    for name, some in (("query", live), ("key", seen), ("value", seen)):
        grad = found.get(f"grad {name}")
        if grad is not None and not some.all():
            unseen = torch.from_numpy(_summed(some, tuple(grad.shape[1:-1])) == 0)
            if grad[unseen].any():
                raise WrongError(f"grad {name}: not 0 where nobody looks")
