"""What a random call should give: by NumPy, in a wider type, and how far from it a right answer may be.

The oracle knows the formulas alone: every pair, no tiles, no log-sum-exp tricks. The error of a score is what the
rounding of its terms, and of the projections before it, comes to; from there it goes through the softmax exactly, and
through the sums of the output and of the gradients as an absolute value. So the bound is that of a plain computation in
the same type, term by term, and not a tolerance.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.attention.random_calls import Call, numbers_of, run, summed

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
        return Near(summed(self.exact, shape), summed(self.error, shape))


def _turned(a: Near) -> Near:
    return Near(np.swapaxes(a.exact, -1, -2), np.swapaxes(a.error, -1, -2))


def expected(call: Call) -> dict[str, Near] | None:
    """What a call should give; None where it cannot be said: numbers overflow, or lie on the edge of a support."""
    with np.errstate(all="ignore"):
        oracle = _Oracle(call)
        found = oracle.results()
    limit = float(torch.finfo(call.dtype).max) / 64
    for near in found.values():
        finite = np.isfinite(near.exact) | (near.exact == -np.inf)
        if not (finite.all() and (np.abs(near.exact[np.isfinite(near.exact)]) < limit).all()):
            return None
    return None if oracle.undecided else found


class _Oracle:
    def __init__(self, call: Call) -> None:
        self.call = call
        self.wide: Any = np.longdouble if call.dtype == torch.float64 else np.float64
        info = torch.finfo(call.dtype)
        self.eps = SLACK * float(info.eps)
        # What is computed in.
        own = torch.finfo(torch.promote_types(call.dtype, torch.float32))
        self.fine, self.tiny, self.most = SLACK * float(own.eps), 64 * float(own.tiny), float(own.max) / 64
        # What a number of the call's own type may lose near 0: a step between float16's subnormals is 6e-8.
        self.step = max(self.tiny, SLACK * float(info.tiny) * float(info.eps))
        self.undecided = False
        self.visible = call.visible
        lead, shown = call.lead, self.visible
        query, key, value = (numbers_of(t, self.wide) for t in (call.query, call.key, call.value))
        # What nobody sees has no effect, whatever it holds.
        self.query = np.where(shown.any(-1)[..., None], np.broadcast_to(query, (*lead, *query.shape[-2:])), 0)
        seen = shown.any(-2)[..., None]
        self.key = np.where(seen, np.broadcast_to(key, (*lead, *key.shape[-2:])), 0)
        self.value = np.where(seen, np.broadcast_to(value, (*lead, *value.shape[-2:])), 0)

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
        shown = self.visible
        bias = call.limits.get("key_bias")
        exact, error = score.exact, score.error
        if bias is not None:
            added = np.where(np.isneginf(b := numbers_of(bias, self.wide)), 0, b)[..., None, :]
            exact, error = exact + added, error + self.fine * (np.abs(exact) + np.abs(added))
        if not (np.where(shown, np.abs(exact) + error, 0) < self.most).all():
            self.undecided = True
        s = np.where(shown, exact, -np.inf)
        peak = s.max(-1, keepdims=True, initial=-np.inf)
        peak = np.where(np.isneginf(peak), 0, peak)
        share = np.exp(s - peak)
        total = share.sum(-1, keepdims=True)
        weights = share / np.where(total == 0, 1, total)
        lse = np.where(total == 0, -np.inf, np.log(np.where(total == 0, 1, total)) + peak)
        near = self._softmax_error(weights, s - lse, np.where(shown, error, 0), shown)
        out = self.product(near, self.exactly(self.value), self.eps)
        out.error += self.tiny * (1 + np.abs(self.value).max(-2, keepdims=True, initial=0)) * self.value.shape[-2]
        found = {"output": out, "weights": near, "lse": Near(lse[..., 0], self._lse_error(weights, error, lse, shown))}
        if call.leaves and call.query.shape[-2] and call.key.shape[-2]:
            found |= self._gradients(near, backward)
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

    def _gradients(self, weights: Near, backward: Callable[[Near], dict[str, Near]]) -> dict[str, Near]:
        call, shown = self.call, self.visible
        kind = torch.promote_types(call.dtype, torch.float32) if call.entry == "state" else call.dtype
        rounded = torch.from_numpy(np.ascontiguousarray(call.upstream)).to(kind)
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
                count = max(1, near.exact.size // max(1, math.prod(size)))
                summed = Near(near.exact, near.error + self.eps * count * np.abs(near.exact)).summed_to(size)
                out[f"grad {name}"] = summed
        return out

    # The pair functions: the scores, and the gradients of what they come from

    def _inner(self) -> tuple[Near, Callable[[Near], dict[str, Near]]]:
        kind, q, k = self.call.kind, self.exactly(self.query), self.exactly(self.key)
        if kind == "scaled dot":
            root = np.sqrt(self.wide(self.query.shape[-1]))
            projected = Near(q.exact / root, self.eps * np.abs(q.exact) / root + self.step)
        elif kind == "bilinear":
            weight = self.exactly(self.parameter("W_q.weight").T)
            projected = self.product(q, weight, self.eps)
        else:
            projected = q
        self._check(projected)
        score = self.product(projected, _turned(k), self.fine)
        score.error = score.error + self.tiny

        def backward(by_score: Near) -> dict[str, Near]:
            by_projected = self.product(by_score, k, self.eps)
            grads = {"key": self.product(_turned(by_score), projected, self.eps)}
            if kind == "scaled dot":
                grads["query"] = Near(by_projected.exact / root, by_projected.error)
            elif kind == "bilinear":
                grads["query"] = self.product(by_projected, _turned(weight), self.eps)
                grads["W_q.weight"] = _turned(self._over_all(q, by_projected))
            else:
                grads["query"] = by_projected
            self._check(by_projected, *grads.values())
            return grads

        return score, backward

    def _over_all(self, a: Near, b: Near) -> Near:
        """aᵀ b over all rows of all batch elements."""
        flat = [Near(*(x.reshape(-1, x.shape[-1]) for x in (each.exact, each.error))) for each in (a, b)]
        return self.product(_turned(flat[0]), flat[1], self.eps)

    def _check(self, *numbers: Near) -> None:
        limit = min(self.most, float(torch.finfo(self.call.dtype).max) / 64)
        if not all((np.abs(near.exact) + near.error < limit).all() for near in numbers):
            self.undecided = True

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
            error_v = dg * np.abs(t) + np.abs(g) * (minimum_off + self.eps * g.size * np.abs(t))
            axes = tuple(range(terms.ndim - 1))
            grads["w_v.weight"] = Near(terms.sum(axes)[None], error_v.sum(axes)[None])
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
        if not (np.where(shown, square + square_off, 0) < self.most).all():
            self.undecided = True
        if profile == "gaussian":
            return Near(-square / 2, square_off / 2), self._by_distance(x, off, sigma, np.full_like(square, -0.5), 0)
        inside = square <= 1 if profile == "boxcar" else square < 1
        if (shown & (np.abs(square - 1) <= 4 * square_off)).any():
            self.undecided = True
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
            if (shown & ((root <= 4 * root_off) | (left <= 4 * root_off))).any():
                self.undecided = True
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


def judge(call: Call) -> str:
    """Make a call and compare: "right", "unjudged" where nothing can be said, "refused" where a named way may not run.

    Raises:
        WrongError: The answer is beyond the budget.
    """
    try:
        came = run(call)
    except ValueError as error:
        if call.impl != "auto" and str(error).startswith(f"impl: got '{call.impl}', which cannot run this call: "):
            return "refused"
        raise
    _check_hidden(call, came)
    if call.dropout:
        return "unjudged"
    wanted = expected(call)
    if wanted is None:
        return "unjudged"
    for name, tensor in came.items():
        if name in wanted:
            _check(name, tensor, wanted[name], call)
    if "weights" in came:
        _check_sums(came["weights"], wanted["weights"].exact)
    return "right"


def _check(name: str, tensor: Tensor, near: Near, call: Call) -> None:
    if tuple(tensor.shape) != near.exact.shape:
        raise WrongError(f"{name}: shape {tuple(tensor.shape)} instead of {near.exact.shape}")
    came = numbers_of(tensor, near.exact.dtype.type)
    rounding = SLACK * float(torch.finfo(tensor.dtype).eps) * np.abs(near.exact)
    allowed = near.error + np.where(np.isfinite(rounding), rounding, 0) + 8 * float(torch.finfo(tensor.dtype).tiny)
    with np.errstate(invalid="ignore"):
        off = np.where(came == near.exact, 0, np.abs(came - near.exact))
    if not (off <= allowed).all():
        worst = np.unravel_index(int(np.argmax(np.nan_to_num(off / allowed, nan=np.inf))), off.shape)
        place = tuple(int(i) for i in worst)
        raise WrongError(
            f"{name}{list(place)}: came {float(came[worst]):.9g}, is {float(near.exact[worst]):.9g}; off by "
            f"{float(off[worst]):.3g}, allowed {float(allowed[worst]):.3g}"
        )


def _check_sums(weights: Tensor, exact: np.ndarray) -> None:
    """Whatever the scores: a row of weights sums to 1, or to 0 where it sees no key."""
    if not weights.numel():
        return
    sums, live = weights.double().sum(-1).numpy(), exact.any(-1)
    eps = float(torch.finfo(weights.dtype).eps)
    off = np.abs(sums - live)
    if not (off <= (4 + weights.shape[-1]) * eps).all():
        raise WrongError(f"weights: the sum of a row is off by {float(np.nan_to_num(off, nan=np.inf).max()):.3g}")


def _check_hidden(call: Call, came: dict[str, Tensor]) -> None:
    """What was hidden and is not finite shows nowhere, also where nothing else can be said; dropout or not."""
    shown = call.visible
    dead = torch.from_numpy(~shown.any(-1))
    for name in ("output", "weights"):
        if name in came and not bool((came[name][dead] == 0).all()):
            raise WrongError(f"{name}: not 0 in a row that sees no key")
    for name, seen in (("query", shown.any(-1)), ("key", shown.any(-2)), ("value", shown.any(-2))):
        grad = came.get(f"grad {name}")
        if grad is not None:
            unseen = torch.from_numpy(summed(seen, tuple(grad.shape[:-1])) == 0)
            if not bool((grad[unseen] == 0).all()):
                raise WrongError(f"grad {name}: not 0 where nobody looks")
