"""The front door: weights and summaries of one call, on request."""

import math
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._core import dispatch, recording_hooks, validation
from dikkat._core.implementations import choose
from dikkat._core.implementations.numba import launch
from dikkat._core.implementations.reference import pair_scores
from dikkat._core.implementations.triton import summaries
from dikkat._core.problem import Problem
from dikkat._core.restricting import Restricting, check_names
from dikkat._core.summary import Asked, Summary
from dikkat._engine.addresses import on_cpu
from dikkat.inspection.blocks import all_rows, in_blocks, numbers_of_a_row, of_rows, summarise
from dikkat.inspection.request import Inspection, Request, Requesting
from dikkat.scores import Score

_LARGE = 2**19  # pairs from which compiled code is quicker than blocks of whole rows, though not for the output alone


class Inspecting(Requesting, Restricting, total=False):
    """The keyword arguments of `inspect`: which keys a query may see, and what to return."""


def inspect(
    query: Tensor,
    key: Tensor,
    *,
    score: Score,
    value: Tensor | None = None,
    impl: str = "auto",
    **call_and_request: Unpack[Inspecting],
) -> Inspection:
    r"""The requested summaries of the weights of a call of `dikkat.attend`, without the map of all weights.

    $$ w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}}, \qquad
       S_j = \sum_i w_{ij}, \qquad H_i = -\sum_j w_{ij} \log w_{ij} $$

    Weights are those before dropout. Nothing here has a gradient; `dikkat.attention_weights` has. On a CPU, large calls
    are computed tile by tile in compiled code; else by the chosen implementation, in blocks of a few rows. An overview
    has cells of as equal a size as can be: query i is in row ⌊i · a / n⌋, key j in column ⌊j · b / m⌋.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k), of the same dtype.
        score: The scoring function a.
        value: (..., m, d_v): the output of `attend` is returned as well. In compiled code all that is requested, but
            for `rows`, is then a by-product of the same walk over the keys, and costs little beside it.
        impl: "auto", or the name of one implementation, which then runs or raises.
        **call_and_request: Which keys a query may see (`Restricting`); what to return (`Requesting`).

    Returns:
        An `Inspection`.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit: a row past the end, an overview of 0
            cells; an implementation that cannot run this call.

    Source:
        The weights from the log-sum-exp: Dao et al. 2022, section 3.1 and appendix B.

    Example:
        >>> import torch, dikkat
        >>> x = 3 * torch.eye(3)
        >>> seen = dikkat.inspect(x, x, score=dikkat.scores.Dot(), causal=True, top_k=1, sums=True)
        >>> seen.top_keys.flatten(), seen.sums.sum()
        (tensor([0, 1, 2]), tensor(3.))
        >>> dikkat.inspect(x, x, score=dikkat.scores.Dot(), causal=True, rows=[0]).rows
        tensor([[1., 0., 0.]])
    """
    check_names(call_and_request, Inspecting)
    request = Request(**_part(call_and_request, Requesting))
    validation.check_score(score)
    validation.check_features("key", key)
    with torch.no_grad(), recording_hooks.observed_by():
        problem = validation.problem_of_call(
            query, key, _no_values(key, key.shape[:-2]) if value is None else value, score,
            validation.Requested(wants_state=True, wants_weights=True), **_part(call_and_request, Restricting),
        )  # fmt: skip
        seen = inspected(problem, request, impl, pools=value is not None)
    return seen if value is None or seen.output is None else replace(seen, output=seen.output.to(value.dtype))


def _part(named: Inspecting, names: type) -> dict[str, Any]:
    return {name: given for name, given in named.items() if name in names.__annotations__}


def inspected(problem: Problem, request: Request, impl: str = "auto", *, pools: bool = False) -> Inspection:
    """The requested summaries of a checked call; and its output, if `pools`, in the dtype that was computed in."""
    problem, heads, places = part_of(problem, request)
    whole = replace(problem, wants_state=True, wants_weights=True)
    problem = replace(whole, value=_no_values(problem.value, problem.lead))
    queries, keys, device = problem.restrictions.queries, problem.restrictions.keys, problem.query.device
    asked, chosen = request.asked(queries, keys), request.chosen(queries, device)
    each, rows, shape = numbers_of_a_row(problem), None, (*problem.lead, queries, keys)
    if request.weights:
        seen = of_all_weights(
            *all_rows(lambda block: _lse_and_weights(of_rows(problem, block), impl), queries, each, device), request
        )
        mean = _mean(whole, impl) if pools else None
        return replace(seen, output=mean, heads=heads, queries=places, shape=shape)
    summary = _summary(problem, asked, impl, whole if pools else None)
    if chosen is not None:
        rows = in_blocks(lambda block: _lse_and_weights(of_rows(problem, block), impl)[1], chosen, each)
    return replace(answer(summary, request, rows), heads=heads, queries=places, shape=shape)


def part_of(problem: Problem, request: Request) -> tuple[Problem, Tensor | None, Tensor | None]:
    """The call of the chosen heads and queries, and which these are; None for all of them."""
    lead = problem.lead
    heads, queries = request.part(lead, problem.restrictions.queries, problem.query.device)
    if heads is not None and len(lead) > 1:
        dim = len(lead) - 1
        chosen = {
            name: tensor if tensor.shape[dim] == 1 else tensor.index_select(dim, heads)
            for name, tensor in problem.tensors().items()
        }
        problem = problem.unchecked_copy(**chosen, lead=torch.Size((*lead[:-1], len(heads))), kept=None)
    return problem if queries is None else of_rows(problem, queries), heads, queries


def of_all_weights(lse: Tensor, weights: Tensor, request: Request) -> Inspection:
    """The requested summaries of weights (..., n, m) that are all there."""
    (queries, keys), device = weights.shape[-2:], weights.device
    asked, chosen = request.asked(queries, keys), request.chosen(queries, device)
    each = weights.numel() // max(1, queries)
    summary = summarise(lambda rows: (lse[..., rows], weights[..., rows, :]), queries, keys, each, asked, device)
    seen = answer(summary, request, None if chosen is None else weights[..., chosen, :])
    return replace(seen, weights=weights if request.weights else None)


def is_by_product(name: str, problem: Problem) -> bool:
    """True where the implementation of a name would run a call as `launch.summarise` does, for its output alone."""
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in problem.tensors().values())
    wants_more = problem.wants_state or problem.wants_weights or problem.dropout
    return name == "numba" and not learns and not wants_more


def answer(summary: Summary, request: Request, rows: Tensor | None) -> Inspection:
    """A summary, under the names of the request."""
    top, keys = summary.top_weights, summary.top_keys
    if keys is not None and top is not None:  # of what weighs nothing, who is seen cannot be told by the weight
        keys = keys.masked_fill(~(top > 0), -1)
    return Inspection(
        summary.lse, rows=rows, entropy=summary.entropy, overview=summary.cells, output=summary.mean,
        top_weights=_filled(top, request.top_k, 0), top_keys=_filled(keys, request.top_k, -1),
        sums=summary.sums if request.sums else None,
        argmax=keys[..., 0] if request.argmax and keys is not None else None,
        hidden=None if summary.sums is None or not request.tells_hidden else summary.sums == 0,
    )  # fmt: skip


def _filled(largest: Tensor | None, top: int | None, rest: int) -> Tensor | None:
    """(..., n, top): what belongs to each query's largest weights, with something else behind where keys are fewer."""
    if largest is None or top is None:
        return None
    missing = top - largest.shape[-1]
    return F.pad(largest, (0, missing), value=rest) if missing else largest


def _no_values(like: Tensor, lead: torch.Size) -> Tensor:
    """Values (..., m, 1) of a call whose weights alone are looked at."""
    return like.new_zeros(1).expand(*lead, like.shape[-2], 1)


def _summary(problem: Problem, asked: Asked, impl: str, whole: Problem | None) -> Summary:
    """The summaries, in compiled code where that runs and is worth it or was named; and the mean of the whole call."""
    name = choose(problem).name if impl == "auto" else impl
    restrictions = problem.restrictions
    # The largest of a row are found on the way there, while plain PyTorch would sort for them.
    large = problem.lead.numel() * restrictions.queries * restrictions.keys >= _LARGE
    compiled = name == "numba" or (impl == "auto" and (name != "reference" or large))
    any_pair = restrictions.queries and restrictions.keys and problem.lead.numel()
    if any_pair and impl == "auto" and problem.sink is None and summaries.serves(problem, asked):
        summary = summaries.summarise(problem, asked)
        return summary if whole is None else summary._replace(mean=_mean(whole, name))
    if any_pair and compiled and problem.sink is None and not launch.examine(problem).reasons:
        return launch.summarise(whole or problem, asked, pools=whole is not None)
    each, device = numbers_of_a_row(problem), problem.query.device
    # On a device whole rows are there at once, and it is launches that take the time.
    by_name = problem.sink is not None or on_cpu(problem.query) or not any_pair
    some = restrictions.leaves_some() and (problem.pair != "distance" or problem.profile == "gaussian")
    rows_of = partial(_lse_and_weights, impl=name) if by_name else partial(_at_once, some=some)
    problem = problem if by_name else problem.in_wide_dtype()
    queries, keys = restrictions.queries, restrictions.keys
    summary = summarise(lambda rows: rows_of(of_rows(problem, rows)), queries, keys, each, asked, device)
    return summary if whole is None else summary._replace(mean=_mean(whole, name))


def _mean(whole: Problem, name: str) -> Tensor:
    return dispatch.run_problem(replace(whole, wants_weights=False), name).mean


def _at_once(problem: Problem, some: bool) -> tuple[Tensor, Tensor]:
    """`_lse_and_weights` in few operations that go over all; with `some`, every query sees a key."""
    visible = problem.restrictions.visible()
    scores = problem.restrictions.biased(pair_scores(problem, None)).expand(*problem.lead, -1, -1)
    scores = scores if visible is None else scores.masked_fill(~visible, -math.inf)
    peak, weights = scores.amax(-1), torch.softmax(scores, -1)
    if some:
        return peak - weights.amax(-1).log(), weights
    weights = weights.masked_fill_(scores == -math.inf, 0.0)
    return (peak - weights.amax(-1).log()).masked_fill(peak == -math.inf, -math.inf), weights


def _lse_and_weights(problem: Problem, impl: str) -> tuple[Tensor, Tensor]:
    """The log-sum-exp and the weights of a few rows."""
    result: Any = dispatch.run_problem(problem, impl)
    return result.lse, result.shown_weights()
