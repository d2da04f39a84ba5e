"""Kernels with a forward and a backward of their own, under eager autograd and as PyTorch operators."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat._core.problem import OWN_DIMENSIONS, Problem, Result
from dikkat._core.restrictions import Restrictions, broadcast
from dikkat._engine.addresses import exact, many_at_once
from dikkat._engine.pytorch_state import PLAIN_TYPES, is_eager, is_transformed
from dikkat.scores import Pair, Profile
from dikkat.state import log_sum_exp


class Output(NamedTuple):
    """The outputs of a kernel's forward: a `Pooled`, and weights, (0,) if they are not requested.

    Peak and total are apart: their sum as a log-sum-exp is rounded, and weights computed from it would not sum to 1.
    """

    mean: Tensor
    peak: Tensor
    total: Tensor
    weights: Tensor


class Upstream(NamedTuple):
    """The incoming gradients, divided by each row's total, so that a backward divides rows and not pairs.

    A score's gradient is e^(score − peak) (⟨mean, v⟩ + weights − drift).
    """

    mean: Tensor  # (..., n, d_v)
    weights: Tensor  # (..., n, m); (0,) if weights were not requested
    total: Tensor  # (..., n), the total's own gradient
    drift: Tensor  # (..., n): Σ_j weight · gradient, by way of the mean and the weights, less that of the total


class Gradients(NamedTuple):
    """The gradients of a kernel's backward, each in its operand's shape; (0,) without one."""

    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor
    bias: Tensor
    key_bias: Tensor


Forward = Callable[[Problem], Output]
Backward = Callable[..., Gradients]  # of the call, its output, the gradients of that
Keep = Callable[[Problem], tuple[Output, tuple[Tensor, ...]]]

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
            if own.init and own.type in _KINDS:
                found[own.name] = _KINDS[own.type]
    return found


_OPERANDS = _operands()
_INDEX = {name: index for index, name in enumerate(_OPERANDS)}
_RESTRICTIONS = {field.name for field in fields(Restrictions)}
_DIFFERENTIABLE = [_INDEX[name] for name in Gradients._fields]


def _flat(problem: Problem) -> list[Any]:
    return [getattr(problem.restrictions if name in _RESTRICTIONS else problem, name) for name in _OPERANDS]


def _problem(operands: Sequence[Any]) -> Problem:
    """The reverse of `_flat`, of the first operands."""
    named = dict(zip(_OPERANDS, operands, strict=False))
    shapes = ((named[name], own) for name, own in OWN_DIMENSIONS.items() if name != "packed")
    lead = broadcast(*(tensor.shape[: tensor.ndim - own] for tensor, own in shapes if tensor is not None))
    restricting = {name: named.pop(name) for name in _OPERANDS if name in _RESTRICTIONS}
    query = named["query"]
    restrictions = Restrictions(query.shape[-2], named["key"].shape[-2], query.device, **restricting)
    return Problem(**named, restrictions=restrictions, lead=lead)


def _schema(returned: int, *more: str) -> str:
    """PyTorch's signature of an operator that takes the operands, and more tensors, and returns `returned` tensors."""
    taken = [f"{kind} {name}" for name, kind in _OPERANDS.items()] + [f"Tensor {name}" for name in more]
    return f"({', '.join(taken)}) -> ({', '.join(['Tensor'] * returned)})"


class Kernel:
    """A forward and a backward of problems in one dtype (`Problem.in_wide_dtype`), outside autograd and autocast.

    `batched` is the backward of many gradients at once, under `torch.vmap`. A kernel that takes problems in any dtypes
    has `keep`, its forward with what its backward reads besides; that backward takes None for a gradient that is 0.
    """

    def __init__(
        self, forward: Forward, backward: Backward, name: str, batched: Backward, keep: Keep | None = None
    ) -> None:
        self.forward, self.backward, self.name, self.batched, self.keep = forward, backward, name, batched, keep

    def run(self, problem: Problem) -> Output:
        """The output of an eager call, recorded by autograd; the dispatcher would double the time of a small call."""
        if not problem.records:
            return self.forward(problem)
        tensors = problem.tensors()
        differentiable = (tensors.get(each) for each in Gradients._fields)
        out: Output = _Eager.apply(self, problem, *differentiable)  # type: ignore[no-untyped-call]
        return out


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, problem: Problem, *differentiable: Tensor | None) -> Output:
        out, made = kernel.keep(problem) if kernel.keep else (kernel.forward(problem), ())
        tensors = problem.tensors()
        ctx.kernel, ctx.problem, ctx.names = kernel, problem.without_tensors(), tuple(tensors)
        ctx.save_for_backward(*made, *tensors.values(), *out)
        ctx.set_materialize_grads(False)
        if not problem.wants_weights:
            ctx.mark_non_differentiable(out.weights)
        return out

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, mean, peak, total, weights = ctx.saved_tensors
        made, saved = saved[: len(saved) - len(ctx.names)], saved[len(saved) - len(ctx.names) :]
        out, plain = Output(mean, peak, total, weights), ctx.kernel.keep is None
        problem = ctx.problem.unchecked_copy(**dict(zip(ctx.names, saved, strict=True)))
        many = many_at_once(*given)
        filled = (torch.zeros_like(o) if g is None and (plain or many) else g for o, g in zip(out, given, strict=True))
        grads = Output(*filled)  # type: ignore[arg-type]  # without `plain`
        compute = partial(ctx.kernel.backward, problem, out, grads, *made)
        with exact(mean.device.type):  # a caller's autocast would halve what is summed in float32
            if many:
                found = ctx.kernel.batched(problem, out, grads)
            elif torch.is_grad_enabled():
                found = once(no_second_derivatives(ctx.kernel.name), compute, *saved, *grads)
            else:
                found = compute()
        wanted = set(ctx.names) - (set() if problem.wants_bias_grad else {"bias"})
        named = zip(Gradients._fields, found, strict=True)
        return None, None, *(grad if name in wanted else None for name, grad in named)


def once(why: str, compute: Callable[[], Any], *sources: Tensor | None) -> Any:
    """Gradients, as `compute` makes them of their sources, which refuse to be differentiated once more, and say why."""
    return _Once.apply(why, compute, *sources)  # type: ignore[no-untyped-call]


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, why: str, compute: Callable[[], Any], *sources: Tensor | None) -> Any:
        ctx.why = why
        return compute()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(ctx.why)


def no_second_derivatives(name: str) -> str:
    """Why an implementation's gradients are not differentiated."""
    return f"impl {name!r} has no second derivatives; impl='reference' has them"


class Operator(Kernel):
    """A kernel as operators `dikkat::<name>` and `dikkat::<name>_backward`, for autograd, compile, export and vmap."""

    def __init__(self, name: str, forward: Forward, backward: Backward, keep: Keep | None = None) -> None:
        super().__init__(forward, backward, name, self._batched, keep)
        own, above = Output._fields, [f"{each}_grad" for each in Output._fields]
        forward_op = torch.library.custom_op(
            f"dikkat::{name}", self._run_forward, mutates_args=(), schema=_schema(len(own))
        )
        backward_op = torch.library.custom_op(
            f"dikkat::{name}_backward", self._run_backward, mutates_args=(),
            schema=_schema(len(Gradients._fields), *own, *above),
        )  # fmt: skip
        forward_op.register_fake(_fake_output)
        backward_op.register_fake(_fake_gradients)
        forward_op.register_autograd(self._differentiate, setup_context=_save)
        backward_op.register_autograd(self._refuse)
        forward_op.register_vmap(self._vmapped)
        backward_op.register_vmap(self._vmapped_backward)
        self._forward_op, self._backward_op = forward_op, backward_op
        self._transformed = _as_function(forward_op, _save, self._differentiate)
        self._transformed_backward = _as_function(backward_op, _save_nothing, self._refuse)

    def __call__(self, problem: Problem) -> Result:
        """The result of a problem: eager, traced, or under a torch.func transform."""
        problem = problem if self.keep else problem.in_wide_dtype()
        # `kept` is set only by a program that checked for eager mode when it was made.
        plain = is_eager() and not problem.query.is_meta
        if problem.kept is not None or (plain and all(type(t) in PLAIN_TYPES for t in problem.tensors().values())):
            mean, peak, total, weights = self.run(problem)
        else:
            call = self._transformed.apply if is_transformed() else self._forward_op
            mean, peak, total, weights = call(*_flat(problem))
        lse, tail = log_sum_exp(peak, total) if problem.wants_state else (None, None)
        return Result(mean, lse, weights if problem.wants_weights else None, tail)

    def _batched(self, problem: Problem, out: Output, grads: Output) -> Gradients:
        return Gradients(*self._call_backward(*_flat(problem), *out, *grads))

    def _call_backward(self, *operands: Any) -> Any:
        return (self._transformed_backward.apply if is_transformed() else self._backward_op)(*operands)

    def _run_forward(self, *operands: Any) -> tuple[Tensor, ...]:
        problem = _problem(operands)
        with torch.autocast(problem.query.device.type, enabled=False):
            return tuple(self.forward(problem))

    def _run_backward(self, *operands: Any) -> tuple[Tensor, ...]:
        problem, own, outputs = _problem(operands), len(_OPERANDS), len(Output._fields)
        output, grads = Output(*operands[own : own + outputs]), Output(*operands[own + outputs :])
        with torch.autocast(problem.query.device.type, enabled=False):
            return tuple(self.backward(problem, output, grads))

    def _differentiate(self, ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, outputs = ctx.saved_tensors, len(Output._fields)
        rest, output = iter(saved[:-outputs]), saved[-outputs:]
        operands = [next(rest) if plain is None else plain[0] for plain in ctx.plain]
        found = self._call_backward(*operands, *output, *grads)
        out: list[Tensor | None] = [None] * len(_OPERANDS)
        for index, grad in zip(_DIFFERENTIABLE, found, strict=True):
            out[index] = grad if _is_wanted(operands, index) else None
        return tuple(out)

    def _refuse(self, ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(no_second_derivatives(self.name))

    def _vmapped(self, info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        found = self._forward_op(*(_in_front(t, d) for t, d in zip(operands, dims, strict=True)))
        return found, (0, 0, 0, 0 if operands[_INDEX["wants_weights"]] else None)

    def _vmapped_backward(self, info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        moved = [_in_front(t, d) for t, d in zip(operands, dims, strict=True)]
        # A gradient for each member of the batch, also of an operand that they share.
        for index in (*_DIFFERENTIABLE, *range(len(_OPERANDS), len(moved))):
            if moved[index] is not None:
                moved[index] = moved[index].expand(info.batch_size, *moved[index].shape[1:])
        found = self._backward_op(*moved)
        return found, tuple(0 if _is_wanted(operands, i) else None for i in _DIFFERENTIABLE)


def _as_function(op: Callable[..., Any], save: Callable[..., None], differentiate: Callable[..., Any]) -> Any:
    """An operator as an autograd function: torch.func does not see an operator's own autograd."""

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*operands: Any) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return tuple(op(*operands))

        setup_context = staticmethod(save)
        backward = staticmethod(differentiate)

    return Transformed


def _fake_output(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    problem = _problem(operands)
    lead, restrictions = problem.lead, problem.restrictions
    kind, wide = problem.narrow_dtype, problem.dtype
    size = (*lead, restrictions.queries, problem.value.shape[-1])
    mean = problem.query.new_empty(size, dtype=wide if problem.wants_state else kind)
    weights: tuple[Any, ...] = (*lead, restrictions.queries, restrictions.keys) if problem.wants_weights else (0,)
    peak, total = (mean.new_empty((*lead, restrictions.queries), dtype=wide) for _ in range(2))
    return mean, peak, total, mean.new_empty(weights, dtype=kind)


def _fake_gradients(*operands: Any) -> tuple[Tensor, ...]:
    query = operands[_INDEX["query"]]
    return tuple(
        operands[i].new_empty(operands[i].shape) if _is_wanted(operands, i) else query.new_empty(0)
        for i in _DIFFERENTIABLE
    )


def _is_wanted(operands: Sequence[Any], index: int) -> bool:
    return operands[index] is not None and (index != _INDEX["bias"] or operands[_INDEX["wants_bias_grad"]])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors = [t for t in inputs if isinstance(t, Tensor)]
    ctx.plain = [None if isinstance(t, Tensor) else (t,) for t in inputs]
    ctx.save_for_backward(*tensors, *output)


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """A backward that raises needs nothing."""


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
