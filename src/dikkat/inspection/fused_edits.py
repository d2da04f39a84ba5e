"""Edits of odds and masses in causal dot products, by PyTorch's fused attention.

A number b that is added to the logits of a key is one more feature: ⟨(q, 1/s), (k, b)⟩ · s = ⟨q, k⟩ · s + b, for the
scale s. PyTorch's fused attention takes causality or such numbers, but not both in another form.

With 12 heads of 64 features and 4,096 tokens, a changed layer takes 1.2 (odds) and 1.6 (mass) times the processor time
of an unchanged one; dikkat's kernel takes 4.6 to 4.9.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem
from dikkat._core.restrictions import Restrictions, are_finite
from dikkat._engine.addresses import on_cpu
from dikkat.inspection.row_blocks import select_heads

# Outputs of a piece of a large call.
_PIECE = 2**20


def fits(problem: Problem) -> bool:
    """Return whether a call is a causal dot product of all queries, without other restrictions than numbers of keys."""
    restrictions = problem.restrictions
    hiding = (restrictions.lens, restrictions.starts, restrictions.mask, restrictions.bias, restrictions.exclude)
    return (
        problem.pair == "inner"
        and not (problem.softcap or problem.dropout or problem.sink is not None)
        and problem.scale > 0
        and problem.narrow_dtype in (torch.float32, torch.float64)  # half precision would round the numbers
        and on_cpu(problem.query)
        and restrictions.causal
        and restrictions.queries == restrictions.keys > 0
        and all(tensor is None for tensor in hiding)
        and (restrictions.key_bias is None or bool(restrictions.key_bias.isfinite().all()))
        and are_finite(problem.query, problem.key, problem.value)
    )


def outputs_with_key_bias(problem: Problem) -> Tensor:
    """Return the outputs of a call that `fits`, with its numbers of keys."""
    return _by_pieces(problem, _with_feature)


def outputs_of_masses(problem: Problem, spans: Sequence[tuple[slice, float]], rest_mass: float) -> tuple[Tensor, int]:
    """Return the outputs of a call that `fits` with these masses, and how many first rows cannot be edited."""
    inside = torch.zeros(problem.restrictions.keys, dtype=torch.bool)
    for span, _ in spans:
        inside[span] = True
    rest = (~inside).nonzero().squeeze(-1)
    first = max(span.start for span, _ in spans)
    if rest_mass > 0:
        first = max(first, int(rest[0]) if len(rest) else len(inside))
    largest = [float(tensor.detach().norm(dim=-1).max()) for tensor in (problem.query, problem.key)]
    bias = problem.restrictions.key_bias
    range_of_scores = 2 * (
        problem.scale * math.prod(largest) + (0.0 if bias is None else float(bias.detach().abs().max()))
    )
    hiding = range_of_scores + 200  # e^−200 is below the precision of the other weights
    hiding_bias = torch.where(inside, -hiding, 0.0).to(problem.dtype).reshape(*(1,) * len(problem.lead), -1)

    def edited(piece: Problem) -> Tensor:
        outputs = piece.value.new_zeros(())
        if rest_mass > 0:
            outputs = rest_mass * _with_feature(_with_key_bias(piece, hiding_bias))[..., first:, :]
        for span, mass in spans if first < len(inside) else ():
            if mass:
                outputs = outputs + mass * _mean_of_span(piece, span)[..., first - span.start :, :]
        unedited = slice(0, first)
        return torch.cat([_part(piece, unedited, unedited, causal=True), outputs], -2) if first else outputs

    return _by_pieces(problem, edited), first


def _by_pieces(problem: Problem, compute: Callable[[Problem], Tensor]) -> Tensor:
    """Return the outputs of a call, computed for some heads at a time."""
    pieces = [compute(piece) for piece in head_pieces(problem)]
    return torch.cat(pieces, -3) if len(pieces) > 1 else pieces[0]


def head_pieces(problem: Problem) -> Iterator[Problem]:
    """Yield a large call in pieces of some heads, so that copies and several outputs need little memory."""
    count = problem.lead[-1] if len(problem.lead) > 1 else 1
    outputs = math.prod(problem.lead) * problem.restrictions.queries * problem.value.shape[-1]
    size = max(1, _PIECE * count // max(1, outputs))
    if size >= count:
        yield problem
    else:
        for first in range(0, count, size):
            heads = torch.arange(first, min(first + size, count), device=problem.query.device)
            yield select_heads(problem, heads)


def _with_key_bias(problem: Problem, bias: Tensor) -> Problem:
    """Add numbers to the logits of keys."""
    old = problem.restrictions.key_bias
    bias = bias if old is None else old + bias
    return problem.unchecked_copy(restrictions=replace(problem.restrictions, key_bias=bias), kept=None, packed=None)


def _with_feature(problem: Problem) -> Tensor:
    """Return the outputs of a call whose numbers of keys are one more feature."""
    bias, query, key = problem.restrictions.key_bias, problem.query, problem.key
    if bias is None:
        return run_problem(problem.unchecked_copy(wants_weights=False)).mean
    lead = torch.broadcast_shapes(key.shape[:-1], bias.shape)
    feature = bias.to(key.dtype).expand(lead).unsqueeze(-1)
    wider = problem.unchecked_copy(
        query=torch.cat([query, query.new_full((*query.shape[:-1], 1), 1 / problem.scale)], -1),
        key=torch.cat([key.expand(*lead, -1), feature], -1),
        restrictions=replace(problem.restrictions, key_bias=None),
        wants_weights=False, kept=None, packed=None,
    )  # fmt: skip
    return run_problem(wider).mean


def _mean_of_span(problem: Problem, span: slice) -> Tensor:
    """Return the mean values (..., n − start, d_v) of a span of keys, for the queries from its start on."""
    after = slice(span.stop, problem.restrictions.queries)
    means = [_part(problem, span, span, causal=True)]
    if after.start < after.stop:
        means.append(_part(problem, after, span, causal=False))
    return torch.cat(means, -2)


def _part(problem: Problem, queries: slice, keys: slice, *, causal: bool) -> Tensor:
    """Return the outputs of some queries for some keys, of which causality hides none or those above the diagonal."""
    sizes = {"queries": queries.stop - queries.start, "keys": keys.stop - keys.start}
    bias = problem.restrictions.key_bias
    restrictions = Restrictions(
        **sizes, device=problem.query.device, causal=causal, key_bias=None if bias is None else bias[..., keys]
    )
    restricted = problem.unchecked_copy(
        query=problem.query[..., queries, :], key=problem.key[..., keys, :], value=problem.value[..., keys, :],
        restrictions=restrictions, kept=None, packed=None, wants_weights=False,
    )  # fmt: skip
    return _with_feature(restricted)
