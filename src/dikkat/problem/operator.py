"""How a kernel with a forward and a backward of its own becomes a PyTorch operator.

A kernel supplies two plain functions; `operator` gives back a function of a `Problem` that works under autograd,
`torch.compile`, `torch.export` and `torch.func.vmap`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dikkat.masking import Restrictions, broadcast, transformed
from dikkat.problem import Problem, Result
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
    """The gradients from above, divided by each row's total: with them e^(score − peak) stands for the weight.

    So a backward divides rows, and not pairs. A score's gradient is e^(score − peak) (⟨mean, v⟩ + weights − drift).

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
Backward = Callable[[Problem, Output, Upstream], Gradients]  # the call, its output, the gradients from above

# The operator's, in order.
_OPERANDS = (
    "pair", "profile", "query", "key", "weight", "value", "lens", "mask", "causal", "key_bias", "exclude", "dropout",
    "seeds", "packed", "wants_weights",
)  # fmt: skip
_DIFFERENTIABLE = {name: _OPERANDS.index(name) for name in Gradients._fields}


def operator(name: str, forward: Forward, backward: Backward) -> Callable[[Problem], Result]:
    """Register `dikkat::<name>` and `dikkat::<name>_backward`.

    Args:
        name: The implementation's name.
        forward: Called with a problem in one dtype (`Problem.wide`), outside autograd and autocast.
        backward: Likewise, with the forward's output and its gradient.

    Returns:
        A function that runs the operator on a problem.
    """

    @torch.library.custom_op(f"dikkat::{name}", mutates_args=())
    def forward_op(
        pair: str, profile: str, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        mask: Tensor | None, causal: bool, key_bias: Tensor | None, exclude: Tensor | None, dropout: float,
        seeds: Tensor | None, packed: Tensor | None, wants_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        problem = _problem(
            pair,
            profile,
            query,
            key,
            weight,
            value,
            lens,
            mask,
            causal,
            key_bias,
            exclude,
            dropout,
            seeds,
            packed,
            wants_weights,
        )
        with torch.autocast(query.device.type, enabled=False):
            mean, peak, total, weights = forward(problem)
        return mean, peak, total, weights

    @torch.library.custom_op(f"dikkat::{name}_backward", mutates_args=())
    def backward_op(
        pair: str, profile: str, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
        mask: Tensor | None, causal: bool, key_bias: Tensor | None, exclude: Tensor | None, dropout: float,
        seeds: Tensor | None, packed: Tensor | None, wants_weights: bool,
        mean: Tensor, peak: Tensor, total: Tensor, weights: Tensor,
        mean_grad: Tensor, peak_grad: Tensor, total_grad: Tensor, weights_grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        problem = _problem(
            pair,
            profile,
            query,
            key,
            weight,
            value,
            lens,
            mask,
            causal,
            key_bias,
            exclude,
            dropout,
            seeds,
            packed,
            wants_weights,
        )
        with torch.autocast(query.device.type, enabled=False):
            out = Output(mean, peak, total, weights)
            grad = upstream(problem, out, Output(mean_grad, peak_grad, total_grad, weights_grad))
            by_query, by_key, by_weight, by_value, by_bias = backward(problem, out, grad)
        return by_query, by_key, by_weight, by_value, by_bias

    @forward_op.register_fake
    def _(*operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        problem = _problem(*operands)
        lead, limits = problem.lead, problem.limits
        mean = problem.query.new_empty((*lead, limits.queries, problem.value.shape[-1]))
        weights = (*lead, limits.queries, limits.keys) if problem.wants_weights else (0,)
        peak, total = (mean.new_empty((*lead, limits.queries)) for _ in range(2))
        return mean, peak, total, mean.new_empty(weights)

    @backward_op.register_fake
    def _(*operands: Any) -> tuple[Tensor, ...]:
        query = operands[_DIFFERENTIABLE["query"]]
        grads = [operands[i] for i in _DIFFERENTIABLE.values()]
        return tuple(query.new_empty((0,) if t is None else t.shape) for t in grads)

    def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tensors = [t for t in inputs if isinstance(t, Tensor)]
        ctx.plain = [None if isinstance(t, Tensor) else (t,) for t in inputs]
        ctx.save_for_backward(*tensors, *output)

    def no_second(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        raise RuntimeError(f"impl {name!r} has no second derivatives; impl='reference' has them")

    def differentiate(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = len(Output._fields)
        rest, output = iter(ctx.saved_tensors[:-saved]), ctx.saved_tensors[-saved:]
        operands = [next(rest) if plain is None else plain[0] for plain in ctx.plain]
        call: Callable[..., Any] = TransformedBackward.apply if transformed() else backward_op
        found = call(*operands, *output, *grads)
        out: list[Tensor | None] = [None] * len(_OPERANDS)
        for index, grad in zip(_DIFFERENTIABLE.values(), found, strict=True):
            out[index] = None if operands[index] is None else grad
        return tuple(out)

    forward_op.register_autograd(differentiate, setup_context=save)
    backward_op.register_autograd(no_second)

    @forward_op.register_vmap
    def _(info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        found = forward_op(*(_in_front(t, d) for t, d in zip(operands, dims, strict=True)))
        return found, (0, 0, 0, 0 if operands[-1] else None)

    @backward_op.register_vmap
    def _(info: Any, dims: tuple[Any, ...], *operands: Any) -> tuple[Any, Any]:
        moved = [_in_front(t, d) for t, d in zip(operands, dims, strict=True)]
        # A gradient for each member of the batch, also of an operand that they share.
        for index in (*_DIFFERENTIABLE.values(), *range(len(_OPERANDS), len(moved))):
            if moved[index] is not None:
                moved[index] = moved[index].expand(info.batch_size, *moved[index].shape[1:])
        found = backward_op(*moved)
        has_weight, has_bias = (operands[_DIFFERENTIABLE[name]] is not None for name in ("weight", "key_bias"))
        return found, (0, 0, 0 if has_weight else None, 0, 0 if has_bias else None)

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

    def run(problem: Problem) -> Result:
        problem = problem.wide()
        limits = problem.limits
        call: Callable[..., Any] = Transformed.apply if transformed() else forward_op
        mean, peak, total, weights = call(
            problem.pair, problem.profile, problem.query, problem.key, problem.weight, problem.value, limits.lens,
            limits.mask, limits.causal, limits.key_bias, limits.exclude, problem.dropout, problem.seeds,
            problem.packed, problem.wants_weights,
        )  # fmt: skip
        lse, tail = log_sum_exp(peak, total) if problem.wants_state else (None, None)
        return Result(mean, lse, weights if problem.wants_weights else None, tail)

    return run


def upstream(problem: Problem, out: Output, grad: Output) -> Upstream:
    """The gradients that come from above as a backward wants them; 0 in a row with no key."""
    by_total = (1 / out.total).masked_fill(out.total == 0, 0.0)
    mean = grad.mean * by_total[..., None]
    drift = (mean * out.mean).sum(-1) - grad.total
    if not problem.wants_weights:
        return Upstream(mean, grad.weights, grad.total, drift)
    weights = grad.weights * by_total[..., None]
    return Upstream(mean, weights, grad.total, drift + (weights * out.weights).sum(-1))


def _problem(
    pair: str, profile: str, query: Tensor, key: Tensor, weight: Tensor | None, value: Tensor, lens: Tensor | None,
    mask: Tensor | None, causal: bool, key_bias: Tensor | None, exclude: Tensor | None, dropout: float,
    seeds: Tensor | None, packed: Tensor | None, wants_weights: bool, *_: Tensor,
) -> Problem:  # fmt: skip
    limits = Restrictions(query.shape[-2], key.shape[-2], lens, mask, causal, key_bias, exclude, query.device)
    features = [t.shape[:-2] for t in (query, key, value, mask) if t is not None]
    lead = broadcast(*features, *(t.shape[:-1] for t in (weight, lens, key_bias, exclude) if t is not None))
    kinds = cast(Pair, pair), cast(Profile, profile)
    return Problem(*kinds, query, key, weight, value, limits, lead, dropout, seeds, packed, True, wants_weights)


def _in_front(operand: Any, dim: int | None) -> Any:
    """A vmapped dimension becomes the first leading one; an operand without it gets a 1 there."""
    if not isinstance(operand, Tensor):
        return operand
    return operand.unsqueeze(0) if dim is None else operand.movedim(dim, 0)
