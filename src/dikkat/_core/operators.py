"""Kernels with a forward and a backward, as eager autograd functions and as PyTorch operators."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat._core.problem import OWN_DIMENSIONS, Problem, Result
from dikkat._core.restrictions import Restrictions, broadcast
from dikkat._engine.addresses import are_batched, exact
from dikkat._engine.pytorch_state import PLAIN_TYPES, is_eager, is_transformed
from dikkat.scores import Pair, Profile
from dikkat.state import log_sum_exp


class Output(NamedTuple):
    """The outputs of a kernel's forward: a `Pooled`, and the weights, (0,) if the call does not request them.

    Peak and total are separate: a log-sum-exp is rounded, and weights computed from a rounded one do not sum to 1.
    """

    mean: Tensor
    peak: Tensor
    total: Tensor
    weights: Tensor


class Upstream(NamedTuple):
    """The incoming gradients, divided by each row's total, so that a backward divides rows instead of pairs.

    With these fields, and v a key's value, a score's gradient is e^(score − peak) (⟨mean, v⟩ + weights − drift).
    """

    mean: Tensor  # (..., n, d_v)
    weights: Tensor  # (..., n, m); (0,) if weights were not requested
    total: Tensor  # (..., n), the total's own gradient
    drift: Tensor  # (..., n): Σ_j weight · gradient of mean and weights, minus the gradient of the total


class Gradients(NamedTuple):
    """The gradients of a kernel's backward, each in its operand's shape; (0,) for an operand without a gradient."""

    query: Tensor
    key: Tensor
    weight: Tensor
    value: Tensor
    bias: Tensor
    key_bias: Tensor


Forward = Callable[[Problem], Output]
Backward = Callable[..., Gradients]  # of the call, its output and the gradients of the output
Keep = Callable[[Problem], tuple[Output, tuple[Tensor, ...]]]

# The types of operands in PyTorch's schemas. Fields of other types are derived from the operands.
_KINDS: dict[Any, str] = {
    Pair: "str", Profile: "str", Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool",
    bool | None: "bool?",
}  # fmt: skip


def _operands() -> dict[str, str]:
    """Return the schema type of each operand by name, in order: fields of `Problem`, then of its restrictions."""
    kinds = {}
    for field in fields(Problem):
        for operand in fields(Restrictions) if field.type is Restrictions else (field,):
            if operand.init and operand.type in _KINDS:
                kinds[operand.name] = _KINDS[operand.type]
    return kinds


_OPERANDS = _operands()
_INDEX = {name: index for index, name in enumerate(_OPERANDS)}
_RESTRICTIONS = {field.name for field in fields(Restrictions)}
_DIFFERENTIABLE = [_INDEX[name] for name in Gradients._fields]


def _flat(problem: Problem) -> list[Any]:
    return [getattr(problem.restrictions if name in _RESTRICTIONS else problem, name) for name in _OPERANDS]


def _problem(operands: Sequence[Any]) -> Problem:
    """Rebuild the problem from the first operands; the inverse of `_flat`."""
    arguments = dict(zip(_OPERANDS, operands, strict=False))
    shapes = ((arguments[name], dimensions) for name, dimensions in OWN_DIMENSIONS.items() if name != "packed")
    lead = broadcast(*(tensor.shape[: tensor.ndim - dimensions] for tensor, dimensions in shapes if tensor is not None))
    restricting = {name: arguments.pop(name) for name in _OPERANDS if name in _RESTRICTIONS}
    query = arguments["query"]
    restrictions = Restrictions(query.shape[-2], arguments["key"].shape[-2], query.device, **restricting)
    return Problem(**arguments, restrictions=restrictions, lead=lead)


def _schema(returned: int, *further: str) -> str:
    """Return an operator's PyTorch schema: the operands and further tensors in, `returned` tensors out."""
    arguments = [f"{kind} {name}" for name, kind in _OPERANDS.items()] + [f"Tensor {name}" for name in further]
    return f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * returned)})"


class Kernel:
    """A forward and a backward of problems in one dtype (`Problem.in_wide_dtype`), outside autograd and autocast.

    `batched` is the backward of many gradients at once, under `torch.vmap`. A kernel for problems in mixed dtypes has
    `keep`: a forward that also returns tensors for the backward, which then takes None for a zero gradient.
    """

    def __init__(
        self, forward: Forward, backward: Backward, name: str, batched: Backward, keep: Keep | None = None
    ) -> None:
        self.forward, self.backward, self.name, self.batched, self.keep = forward, backward, name, batched, keep

    def run(self, problem: Problem) -> Output:
        """Run an eager call and record it with autograd. PyTorch's dispatcher would double the time of a small call."""
        if not problem.records:
            return self.forward(problem)
        tensors = problem.tensors()
        differentiable = (tensors.get(name) for name in Gradients._fields)
        out: Output = _Eager.apply(self, problem, *differentiable)  # type: ignore[no-untyped-call]
        return out


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Kernel, problem: Problem, *differentiable: Tensor | None) -> Output:
        out, extra_saved = kernel.keep(problem) if kernel.keep else (kernel.forward(problem), ())
        tensors = problem.tensors()
        ctx.kernel, ctx.problem, ctx.names = kernel, problem.without_tensors(), tuple(tensors)
        ctx.save_for_backward(*extra_saved, *tensors.values(), *out)
        ctx.set_materialize_grads(False)
        if not problem.wants_weights:
            ctx.mark_non_differentiable(out.weights)
        return out

    @staticmethod
    def backward(ctx: Any, *above: Tensor | None) -> tuple[Tensor | None, ...]:
        *saved, mean, peak, total, weights = ctx.saved_tensors
        extra_saved, saved = saved[: len(saved) - len(ctx.names)], saved[len(saved) - len(ctx.names) :]
        out, plain = Output(mean, peak, total, weights), ctx.kernel.keep is None
        problem = ctx.problem.unchecked_copy(**dict(zip(ctx.names, saved, strict=True)))
        many = are_batched(*above)
        filled = (torch.zeros_like(o) if g is None and (plain or many) else g for o, g in zip(out, above, strict=True))
        grads = Output(*filled)  # type: ignore[arg-type]  # without `plain`
        compute = partial(ctx.kernel.backward, problem, out, grads, *extra_saved)
        with exact(mean.device.type):  # a caller's autocast would compute float32 sums in half precision
            if many:
                operand_grads = ctx.kernel.batched(problem, out, grads)
            elif torch.is_grad_enabled():
                operand_grads = first_derivatives_only(no_second_derivatives(ctx.kernel.name), compute, *saved, *grads)
            else:
                operand_grads = compute()
        wanted_names = set(ctx.names) - (set() if problem.wants_bias_grad else {"bias"})
        named_grads = zip(Gradients._fields, operand_grads, strict=True)
        return None, None, *(grad if name in wanted_names else None for name, grad in named_grads)


def first_derivatives_only(reason: str, compute: Callable[[], Any], *sources: Tensor | None) -> Any:
    """Return `compute()`, gradients of the sources; differentiating these raises `RuntimeError` with the reason."""
    return _FirstDerivativesOnly.apply(reason, compute, *sources)  # type: ignore[no-untyped-call]


class _FirstDerivativesOnly(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, reason: str, compute: Callable[[], Any], *sources: Tensor | None) -> Any:
        ctx.reason = reason
        return compute()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(ctx.reason)


def no_second_derivatives(name: str) -> str:
    return f"impl {name!r} has no second derivatives; impl='reference' has them"


class Operator(Kernel):
    """A kernel as operators `dikkat::<name>` and `dikkat::<name>_backward`, for autograd, compile, export and vmap."""

    def __init__(self, name: str, forward: Forward, backward: Backward, keep: Keep | None = None) -> None:
        super().__init__(forward, backward, name, self._run_batched, keep)
        outputs, upstream_grads = Output._fields, [f"{output}_grad" for output in Output._fields]
        forward_op = torch.library.custom_op(
            f"dikkat::{name}", self._run_forward, mutates_args=(), schema=_schema(len(outputs))
        )
        backward_op = torch.library.custom_op(
            f"dikkat::{name}_backward", self._run_backward, mutates_args=(),
            schema=_schema(len(Gradients._fields), *outputs, *upstream_grads),
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
        problem = problem if self.keep else problem.in_wide_dtype()
        # Only a program that found eager mode on its first call sets `kept`.
        eager = is_eager() and not problem.query.is_meta
        if problem.kept is not None or (eager and all(type(t) in PLAIN_TYPES for t in problem.tensors().values())):
            mean, peak, total, weights = self.run(problem)
        else:
            call = self._transformed.apply if is_transformed() else self._forward_op
            mean, peak, total, weights = call(*_flat(problem))
        lse, tail = log_sum_exp(peak, total) if problem.wants_state else (None, None)
        return Result(mean, lse, weights if problem.wants_weights else None, tail)

    def _run_batched(self, problem: Problem, out: Output, grads: Output) -> Gradients:
        return Gradients(*self._call_backward(*_flat(problem), *out, *grads))

    def _call_backward(self, *operands: Any) -> Any:
        return (self._transformed_backward.apply if is_transformed() else self._backward_op)(*operands)

    def _run_forward(self, *operands: Any) -> tuple[Tensor, ...]:
        problem = _problem(operands)
        with torch.autocast(problem.query.device.type, enabled=False):
            return tuple(self.forward(problem))

    def _run_backward(self, *operands: Any) -> tuple[Tensor, ...]:
        problem, begin, count = _problem(operands), len(_OPERANDS), len(Output._fields)
        output, grads = Output(*operands[begin : begin + count]), Output(*operands[begin + count :])
        with torch.autocast(problem.query.device.type, enabled=False):
            return tuple(self.backward(problem, output, grads))

    def _differentiate(self, ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, output_count = ctx.saved_tensors, len(Output._fields)
        tensors, output = iter(saved[:-output_count]), saved[-output_count:]
        operands = [next(tensors) if constant is None else constant[0] for constant in ctx.plain]
        operand_grads = self._call_backward(*operands, *output, *grads)
        all_grads: list[Tensor | None] = [None] * len(_OPERANDS)
        for index, grad in zip(_DIFFERENTIABLE, operand_grads, strict=True):
            all_grads[index] = grad if _is_wanted(operands, index) else None
        return tuple(all_grads)

    def _refuse(self, ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(no_second_derivatives(self.name))

    def _vmapped(self, info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        outputs = self._forward_op(*(_in_front(t, d) for t, d in zip(operands, dims, strict=True)))
        return outputs, (0, 0, 0, 0 if operands[_INDEX["wants_weights"]] else None)

    def _vmapped_backward(self, info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        moved = [_in_front(t, d) for t, d in zip(operands, dims, strict=True)]
        # One gradient for each batch member, also for an operand that all members share.
        for index in (*_DIFFERENTIABLE, *range(len(_OPERANDS), len(moved))):
            if moved[index] is not None:
                moved[index] = moved[index].expand(info.batch_size, *moved[index].shape[1:])
        grads = self._backward_op(*moved)
        return grads, tuple(0 if _is_wanted(operands, i) else None for i in _DIFFERENTIABLE)


def _as_function(op: Callable[..., Any], save: Callable[..., None], differentiate: Callable[..., Any]) -> Any:
    """Wrap an operator as an autograd function, because torch.func ignores an operator's own autograd."""

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
    narrow, wide = problem.narrow_dtype, problem.dtype
    mean_shape = (*lead, restrictions.queries, problem.value.shape[-1])
    mean = problem.query.new_empty(mean_shape, dtype=wide if problem.wants_state else narrow)
    weights_shape: tuple[Any, ...] = (*lead, restrictions.queries, restrictions.keys) if problem.wants_weights else (0,)
    peak, total = (mean.new_empty((*lead, restrictions.queries), dtype=wide) for _ in range(2))
    return mean, peak, total, mean.new_empty(weights_shape, dtype=narrow)


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
    """Save nothing: the backward raises."""


def upstream(problem: Problem, out: Output, grad: Output) -> Upstream:
    """Divide the incoming gradients by each row's total for a kernel's backward; 0 in a row with no key."""
    inverse_total = (1 / out.total).masked_fill(out.total == 0, 0.0)
    mean = grad.mean * inverse_total[..., None]
    drift = (mean * out.mean).sum(-1) - grad.total
    if not problem.wants_weights:
        return Upstream(mean, grad.weights, grad.total, drift)
    weights = grad.weights * inverse_total[..., None]
    return Upstream(mean, weights, grad.total, drift + (weights * out.weights).sum(-1))


def _in_front(operand: Any, dim: int | None) -> Any:
    """Move a vmapped dimension to the front, or insert a dimension of 1 if the operand has none."""
    if not isinstance(operand, Tensor):
        return operand
    return operand.unsqueeze(0) if dim is None else operand.movedim(dim, 0)
