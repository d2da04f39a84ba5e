"""The short road: a call whose like has been made before goes straight to its arithmetic.

What the shapes and types of a call allow, and which implementation runs it, is found out on the long road (`call`,
`backends`), once for a signature, and kept here. What depends on numbers is looked at in what is computed with them: a
call goes the short road only if nothing in it turns out to be infinite or NaN, for only that could tell a hidden key
from one that is not there. Whatever is found otherwise, a length that is out of range too, sends the call the long way
round, where the rules are.

Plain calls alone are served: dikkat's own scores, numbers on a CPU, lengths as the only restriction, nothing traced,
transformed, cast, or saved by hooks for a backward.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat.addresses import check_room
from dikkat.backends import Choice, sdpa
from dikkat.cpu.attention import few
from dikkat.cpu.attention import launch as attention_launch
from dikkat.cpu.engine.ready import Ready
from dikkat.masking import PLAIN, is_eager
from dikkat.problem import Problem
from dikkat.scores import Additive, Average, Bilinear, Cosine, Dot, Gaussian, ScaledDot, Score, VectorSum

_SCORES = frozenset({Average, Dot, ScaledDot, Bilinear, Cosine, VectorSum, Additive, Gaussian})
_INTEGERS = frozenset({torch.int32, torch.int64})
_FLOATS = frozenset({torch.float32, torch.float64})
# Plans that are kept; texts of any length have many.
_MOST = 1024
_INF = float("inf")


class Plan(NamedTuple):
    """How calls of one signature are run.

    Attributes:
        run: The arithmetic.
        problem: The call without its tensors.
        lens: The shape of the lengths, aligned with the leading dimensions; None without lengths.
        ready: What runs a compiled kernel for few queries at once, where no gradient is recorded.
    """

    run: "_Run"
    problem: Problem
    lens: tuple[int, ...] | None
    ready: Ready | None = None


class _Operands(NamedTuple):
    """Projected, as a problem has them.

    Attributes:
        query: (..., n, h).
        key: (..., m, h).
        weight: (h,), or None.
        value: (..., m, d_v).
        records: Whether gradients are recorded.
        shortest: The shortest length, at least 1; m without lengths.
        longest: The longest; m without lengths.
        lens: As the caller gave them; None where all keys are seen.
    """

    query: Tensor
    key: Tensor
    weight: Tensor | None
    value: Tensor
    records: bool
    shortest: int
    longest: int
    lens: Tensor | None


# Output and weights, if they are at hand; None where a number is infinite or NaN that may be hidden.
_Run = Callable[[Plan, _Operands], tuple[Tensor, Tensor | None] | None]
_PLANS: dict[Hashable, dict[Hashable, Plan]] = {}


def attend(
    query: Tensor, key: Tensor, value: Tensor, score: Score, valid_lens: Tensor | int | None, return_weights: bool
) -> Tensor | tuple[Tensor, Tensor] | None:
    """`dikkat.attend` of a plain call by its plan; None where it must go the long way."""
    signature = _signature(query, key, value, score, valid_lens, return_weights)
    plans = None if signature is None else _PLANS.get(signature)
    if plans is None:
        return None
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_room(name, tensor)
    (query, key), weight = score.project(query, key), score.pair_weight()
    records = _records(query, key, weight, value)
    plan = plans.get(_projected_signature(query, key, weight, records))
    if plan is None:
        return None
    keys = plan.problem.limits.keys
    shortest = longest = keys
    lens = None
    if plan.lens is not None and isinstance(valid_lens, Tensor):
        shortest, longest = _extremes(valid_lens)
        if shortest < 1 or longest > keys:
            return None
        lens = None if shortest == keys else valid_lens
    # A hidden key has a gradient of 0 here, which the way back multiplies by the key.
    if lens is not None and records and not _is_finite(key):
        return None
    found = plan.run(plan, _Operands(query, key, weight, value, records, shortest, longest, lens))
    if found is None:
        return None
    mean, weights = found
    return mean if weights is None or not return_weights else (mean, weights)


def keep(
    query: Tensor, key: Tensor, value: Tensor, score: Score, valid_lens: Tensor | int | None, return_weights: bool,
    choice: Choice,
) -> None:  # fmt: skip
    """Keep how the long road ran a call, for those like it."""
    signature, problem = _signature(query, key, value, score, valid_lens, return_weights), choice.problem
    if signature is None or choice.name not in _RUNS or problem.harmless is False:
        return
    operands = (problem.query, problem.key, value)  # a value that elements share is copied for each in the problem
    if any(type(t) not in PLAIN or t.dtype != value.dtype or t.shape[:-2] != problem.lead for t in operands):
        return
    if problem.weight is not None and (not _is_plain(problem.weight) or problem.weight.dtype != value.dtype):
        return
    lens = problem.limits.lens
    shapes = problem.without_tensors().again(kept={})
    records, by_few = _records(*operands, problem.weight), choice.name == "numba" and few.fits(problem)
    ready = few.ready(problem) if by_few and not records else None
    run = _by_few if by_few else _RUNS[choice.name]
    plan = Plan(run, shapes, None if lens is None else tuple(lens.shape), ready)
    if sum(map(len, _PLANS.values())) >= _MOST:
        _PLANS.clear()
    weight = None if problem.weight is None else problem.weight.reshape(-1)
    second = _projected_signature(problem.query, problem.key, weight, records)
    _PLANS.setdefault(signature, {})[second] = plan


def _signature(
    query: Tensor, key: Tensor, value: Tensor, score: Score, valid_lens: Tensor | int | None, return_weights: bool
) -> Hashable:
    """What the long road's checks depend on; None for a call that is not plain."""
    if type(score) not in _SCORES or "pair" in (own := vars(score)) or "profile" in own or not is_eager():
        return None
    # Checkpointing computes a forward again, and what it saves must be the same: whether it is the first or not.
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:  # no public function asks
        return None
    if not (_is_plain(query) and _is_plain(key) and _is_plain(value)):
        return None
    dtype, lens = query.dtype, None
    if dtype not in _FLOATS or key.dtype is not dtype or value.dtype is not dtype:
        return None
    if isinstance(valid_lens, Tensor):
        lens = valid_lens.shape
        whole = valid_lens.dtype in _INTEGERS and valid_lens.is_contiguous()
        if not (lens and whole and _is_plain(valid_lens)):
            return None
    elif valid_lens is not None:
        return None
    return type(score), query.shape, key.shape, value.shape, dtype, lens, return_weights


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in PLAIN and tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested


def _projected_signature(query: Tensor, key: Tensor, weight: Tensor | None, records: bool) -> Hashable:
    """What a plan depends on beside: a score's own sizes, and whether gradients are recorded."""
    own = None if weight is None else (type(weight), weight.shape, weight.dtype, weight.is_cpu)
    return records, query.shape, key.shape, query.dtype, key.dtype, own


def _records(*operands: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)


def _extremes(lens: Tensor) -> tuple[int, int]:
    """The least and the largest number; 0 where there is none."""
    if not lens.numel():
        return 0, 0
    if lens.ndim == 1 and lens.shape[0] <= 64:
        numbers = lens.tolist()
        return min(numbers), max(numbers)
    least, largest = lens.aminmax()
    return int(least), int(largest)


def _is_finite(tensor: Tensor) -> bool:
    """Whether all is finite; a sum that overflows only takes the long way for nothing."""
    total = tensor.detach().sum().item()
    return total - total == 0


def _by_products(plan: Plan, operands: _Operands) -> tuple[Tensor, Tensor | None] | None:
    """The reference's arithmetic, without what only restrictions and infinities need."""
    query, key, weight, value, records, _, _, lens = operands
    pair = plan.problem.pair
    product = torch.bmm if query.ndim == 3 else torch.matmul
    if pair == "inner":
        scores = product(query, key.mT)
    elif weight is not None:
        scores = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_() @ weight
    else:
        scores = _gaussian_scores(query, key, records)
    if pair == "distance" and not _is_finite(scores):  # those that overflow are clipped on the long road
        return None
    if lens is not None and plan.lens is not None:
        hidden = lens.view(plan.lens).unsqueeze(-1) <= torch.arange(key.shape[-2], device="cpu")
        scores = scores.masked_fill(hidden, -_INF)
    weights = torch.softmax(scores, -1)
    mean = product(weights, value)
    return (mean, weights) if lens is None or _is_finite(mean) else None


def _gaussian_scores(query: Tensor, key: Tensor, records: bool) -> Tensor:
    apart = query.unsqueeze(-2) - key.unsqueeze(-3)
    return -0.5 * apart.square().sum(-1) if records else apart.square_().sum(-1).mul_(-0.5)


def _by_sdpa(plan: Plan, operands: _Operands) -> tuple[Tensor, Tensor | None] | None:
    """PyTorch's fused kernel, on the keys up to the longest length."""
    query, key, _, value, _, shortest, longest, lens = operands
    lead, mask = plan.problem.lead, None
    if lens is not None:
        if longest < key.shape[-2]:
            key, value = key.narrow(-2, 0, longest), value.narrow(-2, 0, longest)
        if shortest < longest and plan.lens is not None:
            mask = lens.view(plan.lens).unsqueeze(-1) > torch.arange(longest, device="cpu")
            mask = mask.unsqueeze(1) if len(lead) == 1 else mask
    mean = sdpa.fused(query, key, value, mask, lead, False, 0.0)
    return (mean, None) if lens is None or _is_finite(mean) else None


def _by_kernel(plan: Plan, operands: _Operands) -> tuple[Tensor, Tensor | None] | None:
    """The compiled kernels."""
    hides = operands.lens is not None
    if hides and operands.records and not _is_finite(operands.value):
        return None
    mean, weights = _by_few(plan, operands)
    return None if hides and not _is_finite(mean) else (mean, weights)


def _by_few(plan: Plan, operands: _Operands) -> tuple[Tensor, Tensor | None]:
    """The compiled kernels for few queries, which read nothing that is hidden."""
    query, key, weight, value, records, _, _, lens = operands
    if lens is not None and lens.dtype is not torch.int64:
        lens = lens.to(torch.int64)
    if plan.ready is not None and (found := plan.ready(query, key, weight, value, lens)) is not None:
        return found[0], (found[1] if len(found) > 1 else None)
    limits = plan.problem.limits
    if lens is not None and plan.lens is not None:
        limits = limits.again(lens=lens.view(plan.lens))
    problem = plan.problem.again(query=query, key=key, weight=weight, value=value, limits=limits)
    if not records:
        return attention_launch.pool(problem)
    result = attention_launch.run(problem)
    return result.mean, result.weights


_RUNS: dict[str, _Run] = {"reference": _by_products, "sdpa": _by_sdpa, "numba": _by_kernel}
