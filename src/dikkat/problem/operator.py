"""How a kernel with a forward and a backward of its own becomes a PyTorch operator.

A kernel supplies two plain functions; `operator` gives back a function of a `Problem` that works under autograd,
`torch.compile`, `torch.export` and `torch.func.vmap`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat.masking import PLAIN, Restrictions, broadcast, is_eager, transformed
from dikkat.problem import OWN_DIMENSIONS, Problem, Result
from dikkat.scores import Pair, Profile
from dikkat.state import log_sum_exp


class Output(NamedTuple):
    """What a kernel's forward returns: a `Pooled`, and weights, which are empty, (0,), where they are not wanted.

    The peak and the total are apart, since their sum as a log-sum-exp would be rounded as a number of the scores' size
    is: weights made from it again would not add up to 1.
    """

    mean: Tensor
    peak: Tensor
    total: Tensor
    weights: Tensor


class Upstream(NamedTuple):
    """The incoming gradients, divided by each row's total: with them e^(score − peak) stands for the weight.

    So a backward divides rows, and not pairs. `upstream` makes it, of what a backward is given. A
    score's gradient is e^(score − peak) (⟨mean, v⟩ + weights − drift).

    Attributes:
        mean: (..., n, d_v).
        weights: (..., n, m); empty, (0,), where weights were not wanted.
        total: (..., n), the total's own gradient.
        drift: (..., n): Σ_j of weight times its gradient, by way of the mean and the weights, less that of the total.
    """

    mean: Tensor
    weights: Tensor
    total: Tensor
    drift: Tensor


class Gradients(NamedTuple):
    """What a kernel's backward returns, each in its operand's shape; empty, (0,), where there is no such operand."""

    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor
    key_bias: Tensor


Forward = Callable[[Problem], Output]
Backward = Callable[[Problem, Output, Output], Gradients]  # the call, its output, the gradients of that

# A field of one of these types is an operand; the others follow from the operands.
_KINDS: dict[Any, str] = {
    Pair: "str", Profile: "str", Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool",
    bool | None: "bool?",
}  # fmt: skip


def _operands() -> dict[str, str]:
    """The operator's operands in order, each with its kind: the fields of a problem, and of its restrictions."""
    found = {}
    for field in fields(Problem):
        for own in fields(Restrictions) if field.type is Restrictions else (field,):
            if own.type in _KINDS:
                found[own.name] = _KINDS[own.type]
    return found


_OPERANDS = _operands()
_INDEX = {name: index for index, name in enumerate(_OPERANDS)}
_RESTRICTIONS = {field.name for field in fields(Restrictions)}
_DIFFERENTIABLE = [_INDEX[name] for name in Gradients._fields]


def _flat(problem: Problem) -> list[Any]:
    return [getattr(problem.limits if name in _RESTRICTIONS else problem, name) for name in _OPERANDS]


def _problem(operands: Sequence[Any]) -> Problem:
    """The reverse of `_flat`, of the first operands."""
    named = dict(zip(_OPERANDS, operands, strict=False))
    shapes = ((named[name], own) for name, own in OWN_DIMENSIONS.items() if name != "packed")
    lead = broadcast(*(tensor.shape[: tensor.ndim - own] for tensor, own in shapes if tensor is not None))
    restricting = {name: named.pop(name) for name in _OPERANDS if name in _RESTRICTIONS}
    query = named["query"]
    limits = Restrictions(query.shape[-2], named["key"].shape[-2], device=query.device, **restricting)
    return Problem(**named, limits=limits, lead=lead)


def _schema(returned: int, *more: str) -> str:
    """PyTorch's signature of an operator that takes the operands, and more tensors, and returns so many."""
    taken = [f"{kind} {name}" for name, kind in _OPERANDS.items()] + [f"Tensor {name}" for name in more]
    return f"({', '.join(taken)}) -> ({', '.join(['Tensor'] * returned)})"


class Kernel(NamedTuple):
    """What computes a problem in one dtype (`Problem.wide`), outside autograd and autocast.

    Attributes:
        forward: Of the problem.
        backward: Of the problem, its output, which may be over more keys than the problem's, and its gradient.
    """

    forward: Forward
    backward: Backward


@dataclass(frozen=True)
class Operator:
    """A kernel as a PyTorch operator, and as the two plain functions that it is made of.

    Attributes:
        forward: Called with a problem in one dtype (`Problem.wide`), outside autograd and autocast.
        backward: Likewise, with the output, which may be over more keys than the problem's, and its gradient.
    """

    forward: Forward
    backward: Backward
    _run: Callable[[Problem], Result]

    def __call__(self, problem: Problem) -> Result:
        """Run the operator on a problem."""
        return self._run(problem)


def operator(name: str, forward: Forward, backward: Backward) -> Operator:
    """Register `dikkat::<name>` and `dikkat::<name>_backward`.

    Args:
        name: The implementation's name.
        forward: Called with a problem in one dtype (`Problem.wide`), outside autograd and autocast.
        backward: Likewise, with the forward's output and its gradient.

    Returns:
        What runs the operator on a problem.
    """
    outputs = Output._fields

    def run_forward(*operands: Any) -> tuple[Tensor, ...]:
        problem = _problem(operands)
        with torch.autocast(problem.query.device.type, enabled=False):
            return tuple(forward(problem))

    def run_backward(*operands: Any) -> tuple[Tensor, ...]:
        problem = _problem(operands)
        own = len(_OPERANDS)
        output, grads = Output(*operands[own : own + len(outputs)]), Output(*operands[own + len(outputs) :])
        with torch.autocast(problem.query.device.type, enabled=False):
            return tuple(backward(problem, output, grads))

    forward_op = torch.library.custom_op(f"dikkat::{name}", run_forward, mutates_args=(), schema=_schema(len(outputs)))
    backward_op = torch.library.custom_op(
        f"dikkat::{name}_backward",
        run_backward,
        mutates_args=(),
        schema=_schema(len(Gradients._fields), *outputs, *(f"{each}_grad" for each in outputs)),
    )

    @forward_op.register_fake
    def _(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        problem = _problem(operands)
        lead, limits = problem.lead, problem.limits
        mean = problem.query.new_empty((*lead, limits.queries, problem.value.shape[-1]))
        weights = (*lead, limits.queries, limits.keys) if problem.wants_weights else (0,)
        peak, total = (mean.new_empty((*lead, limits.queries)) for _ in range(2))
        return mean, peak, total, mean.new_empty(weights)

    @backward_op.register_fake
    def _(*operands: Any) -> tuple[Tensor, ...]:
        differentiable = [operands[i] for i in _DIFFERENTIABLE]
        return tuple(operands[_INDEX["query"]].new_empty((0,) if t is None else t.shape) for t in differentiable)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tensors = [t for t in inputs if isinstance(t, Tensor)]
        ctx.plain = [None if isinstance(t, Tensor) else (t,) for t in inputs]
        ctx.save_for_backward(*tensors, *output)

    def no_second(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(f"impl {name!r} has no second derivatives; impl='reference' has them")

    def differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # unpacked at each reading, which checkpointing allows once
        rest, output = iter(saved[: -len(outputs)]), saved[-len(outputs) :]
        operands = [next(rest) if plain is None else plain[0] for plain in ctx.plain]
        call: Callable[..., Any] = TransformedBackward.apply if transformed() else backward_op
        found = call(*operands, *output, *grads)
        out: list[Tensor | None] = [None] * len(_OPERANDS)
        for index, grad in zip(_DIFFERENTIABLE, found, strict=True):
            out[index] = None if operands[index] is None else grad
        return tuple(out)

    forward_op.register_autograd(differentiate, setup_context=save)
    backward_op.register_autograd(no_second)

    @forward_op.register_vmap
    def _(info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        found = forward_op(*(_in_front(t, d) for t, d in zip(operands, dims, strict=True)))
        return found, (0, 0, 0, 0 if operands[_INDEX["wants_weights"]] else None)

    @backward_op.register_vmap
    def _(info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        moved = [_in_front(t, d) for t, d in zip(operands, dims, strict=True)]
        # A gradient for each member of the batch, also of an operand that they share.
        for index in (*_DIFFERENTIABLE, *range(len(_OPERANDS), len(moved))):
            if moved[index] is not None:
                moved[index] = moved[index].expand(info.batch_size, *moved[index].shape[1:])
        found = backward_op(*moved)
        return found, tuple(None if operands[i] is None else 0 for i in _DIFFERENTIABLE)

    # torch.func does not see an operator's own autograd: for it, the same two operators in functions of their own.

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*operands: Any) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return tuple(forward_op(*operands))

        setup_context = staticmethod(save)
        backward = staticmethod(differentiate)

    class TransformedBackward(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*operands: Any) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return tuple(backward_op(*operands))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            """Nothing to keep: the backward raises."""

        backward = staticmethod(no_second)

    # Where PyTorch need not see an operator, the same two functions without its dispatcher, which costs what a small
    # call takes.

    class Direct(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, problem: Problem, *differentiable: Tensor | None) -> Output:
            out = forward(problem)
            tensors = problem.tensors()
            ctx.problem, ctx.names = problem.without_tensors(), tuple(tensors)
            ctx.save_for_backward(*tensors.values(), *out)
            ctx.set_materialize_grads(False)
            if not problem.wants_weights:
                ctx.mark_non_differentiable(out.weights)
            return out

        @staticmethod
        def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
            saved = ctx.saved_tensors
            tensors, out = saved[: -len(outputs)], Output(*saved[-len(outputs) :])
            problem = ctx.problem.with_tensors(dict(zip(ctx.names, tensors, strict=True)))
            grads = (torch.zeros_like(o) if g is None else g for o, g in zip(out, given, strict=True))
            if torch.is_grad_enabled():  # the operator refuses to be differentiated once more
                found = Gradients(*backward_op(*_flat(problem), *out, *grads))
            else:
                found = backward(problem, out, Output(*grads))
            return None, *(g if name in ctx.names else None for name, g in zip(found._fields, found, strict=True))

    def run(problem: Problem) -> Result:
        problem = problem.wide()
        operands = problem.tensors()
        # Who keeps something for calls of one kind has looked at this one already.
        if problem.kept is not None or (is_eager() and all(type(t) in PLAIN for t in operands.values())):
            differentiable = [operands.get(each) for each in Gradients._fields]
            if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in differentiable):
                mean, peak, total, weights = Direct.apply(problem, *differentiable)  # type: ignore[no-untyped-call]
            else:
                mean, peak, total, weights = forward(problem)
        else:
            call: Callable[..., Any] = Transformed.apply if transformed() else forward_op
            mean, peak, total, weights = call(*_flat(problem))
        lse, tail = log_sum_exp(peak, total) if problem.wants_state else (None, None)
        return Result(mean, lse, weights if problem.wants_weights else None, tail)

    return Operator(forward, backward, run)


def upstream(problem: Problem, out: Output, grad: Output) -> Upstream:
    """Divide the incoming gradients by each row's total, as a backward takes them; 0 in a row with no key."""
    by_total = (1 / out.total).masked_fill(out.total == 0, 0.0)
    mean = grad.mean * by_total[..., None]
    drift = (mean * out.mean).sum(-1) - grad.total
    if not problem.wants_weights:
        return Upstream(mean, grad.weights, grad.total, drift)
    weights = grad.weights * by_total[..., None]
    return Upstream(mean, weights, grad.total, drift + (weights * out.weights).sum(-1))


def _in_front(operand: Any, dim: int | None) -> Any:
    """Move a vmapped dimension to the front; an operand without one gets a dimension of 1 there."""
    if not isinstance(operand, Tensor):
        return operand
    return operand.unsqueeze(0) if dim is None else operand.movedim(dim, 0)
