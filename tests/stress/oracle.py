"""What random calls should give, by `kit.attend_plainly` in float64, and how far a right answer may be off.

The budget is measured, term by term: how far the exact answer moves when each number of the call, and each score, moves
by one rounding of the call's type (`NUDGES` times); and how far plain PyTorch in that type is off. A call is not judged
where numbers overflow in its type, or where a nudge moves a key over the edge of a support.
"""

import numpy as np
import torch
from torch import Tensor

from tests import kit
from tests.stress.random_calls import OPERANDS, Call, derivatives, main_of, run, run_together

# How much more than what is measured: a nudge is one draw of many.
SLACK, NUDGES = 8.0, 3
FORMULAS = {"gaussian": "gaussian, learned"}


class WrongError(ArithmeticError):
    """An answer that is beyond the budget."""


def evaluate(
    call: Call, dtype: torch.dtype = torch.float64, nudge: np.random.Generator | None = None
) -> dict[str, Tensor]:
    """All results and gradients of a call, by name, in a type; each number nudged by a rounding of the call's type."""

    def nudged(tensor: Tensor) -> Tensor:
        if nudge is None:
            return tensor
        signs = torch.from_numpy(np.asarray(nudge.choice((-1.0, 1.0), size=tuple(tensor.shape))))
        return tensor + torch.finfo(call.dtype).eps / 2 * signs * tensor

    def clean(tensor: Tensor) -> Tensor:
        """What nobody sees has no effect, whatever it holds; a bias of −∞ hides."""
        wide = nudged(tensor.detach().double())
        return torch.where(wide.isfinite(), wide, 1.0).to(dtype)

    def dense(p: dict[str, Tensor], q: Tensor, k: Tensor) -> Tensor:
        scored = kit.CASES[FORMULAS.get(call.kind, call.kind)].dense(p, q, k)
        if nudge is None:
            return scored
        return scored + (nudged(torch.ones(scored.shape, dtype=dtype)) - 1) * (1 + scored.detach().abs())

    numbers = {name: getattr(call, name) for name in OPERANDS}
    numbers |= {name: tensor for name, tensor in call.limits.items() if name in ("bias", "key_bias", "sink")}
    operands = {name: clean(tensor).requires_grad_(name in call.leaves) for name, tensor in numbers.items()}
    parameters = {name: clean(p).requires_grad_(name in call.leaves) for name, p in call.score.named_parameters()}
    buffers = dict(call.score.named_buffers())
    fixed = {"log_bandwidth": clean(buffers["fixed_bandwidth"]).log()} if buffers else {}
    found = kit.attend_plainly(dense, parameters | fixed, **operands, seen=call.visible)
    results = dict(zip(("output", "lse", "weights"), found, strict=True))
    leaves = {name: (operands | parameters)[name] for name in call.leaves}
    return {name: t.detach() for name, t in results.items()} | derivatives(call, results[main_of(call)], leaves, nudged)


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


def judge(calls: list[Call], came: list[dict[str, Tensor] | None]) -> list[str]:
    """Compare the calls of a signature: "right", "refused", or "unjudged" where nothing can be said.

    Raises:
        WrongError: An answer is beyond the budget.
    """
    return ["refused" if found is None else _judge(call, found) for call, found in zip(calls, came, strict=True)]


def _judge(call: Call, found: dict[str, Tensor]) -> str:
    _check_hidden(call.visible, found)
    if call.dropout:
        return "unjudged"
    exact, numbers = evaluate(call), np.random.default_rng(call.index)
    nudged = [evaluate(call, nudge=numbers) for _ in range(NUDGES)]
    if "weights" in found and "sink" not in call.limits:  # which takes its share
        _check_sums(found["weights"], call.visible, exact["weights"])
    narrow = call.dtype if call.dtype.itemsize == 2 else torch.float32
    plain, scale = evaluate(call, narrow), torch.finfo(call.dtype).eps / torch.finfo(narrow).eps
    limit = torch.finfo(narrow if call.dtype.itemsize == 2 else call.dtype).max / 64
    for each in (exact, *nudged):
        if any(not bool((t.abs() < limit).logical_or(t == -torch.inf).all()) for t in each.values()):
            return "unjudged"
        if not torch.equal(each["weights"] > 0, exact["weights"] > 0):  # the edge of a support
            return "unjudged"
    if not all(bool((t.isfinite() | (t == -torch.inf)).all()) for t in plain.values()):
        return "unjudged"  # what lies between overflows
    for name, tensor in found.items():
        right = exact[name]
        spread = torch.stack([(each[name] - right).nan_to_num(0.0).abs() for each in nudged]).amax(0)
        off = (plain[name].double() - right).nan_to_num(0.0).abs()
        _check(name, tensor, right, SLACK * (spread + scale * (off.max() if off.numel() else 0.0)), call)
    return "right"


def _check(name: str, tensor: Tensor, exact: Tensor, allowed: Tensor, call: Call) -> None:
    if tensor.shape != exact.shape:
        raise WrongError(f"{name}: shape {tuple(tensor.shape)} instead of {tuple(exact.shape)}")
    if not tensor.numel():
        return
    info = torch.finfo(tensor.dtype)
    size = exact.masked_fill(exact == -torch.inf, 0.0).abs()
    largest = size.max()
    if name == "output" and call.value.numel():
        largest = call.value.detach().double().nan_to_num(0.0, 0.0, 0.0).abs().max()
    allowed = allowed + SLACK * info.eps * torch.maximum(size, largest) + SLACK * info.tiny
    off = torch.where(tensor == exact, 0.0, (tensor.double() - exact).abs())
    if not bool((off <= allowed).all()):
        at = int((off / allowed).nan_to_num(torch.inf).argmax())
        numbers = [float(each.flatten()[at]) for each in (tensor, exact, off, allowed)]
        raise WrongError("{}[{}]: came {:.9g}, is {:.9g}; off by {:.3g}, allowed {:.3g}".format(name, at, *numbers))


def _check_sums(weights: Tensor, shown: Tensor, exact: Tensor) -> None:
    """Whatever the scores: a row of weights sums to 1, or to 0 where it sees no key."""
    off = (weights.double().sum(-1) - exact.sum(-1).round()).abs()
    if not bool((off <= (4 + weights.shape[-1]) * torch.finfo(weights.dtype).eps).all()):
        raise WrongError(f"weights: the sum of a row is off by {float(off.max()):.3g}")


def _check_hidden(shown: Tensor, found: dict[str, Tensor]) -> None:
    """What was hidden and is not finite shows nowhere, also where nothing else can be said; dropout or not."""
    live, seen = shown.any(-1), shown.any(-2)
    for name in {"output", "weights"} & set(found):
        if found[name][~live].any():
            raise WrongError(f"{name}: not 0 in a row that sees no key")
    for name, some in (("query", live), ("key", seen), ("value", seen)):
        grad = found.get(f"grad {name}")
        if grad is not None and grad[some.double().sum_to_size(grad.shape[:-1]) == 0].any():
            raise WrongError(f"grad {name}: not 0 where nobody looks")
