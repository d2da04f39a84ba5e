"""`inspect`: weights and summaries of one call."""

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
from dikkat._core.implementations.triton import summaries
from dikkat._core.problem import Problem
from dikkat._core.restricting import Restricting, check_names
from dikkat._core.summary import Asked, Summary
from dikkat._engine.addresses import on_cpu
from dikkat.inspection.edits import Edits, Selection, count_heads, edited_weights_of_rows
from dikkat.inspection.request import BlockGroups, Inspection, Request, Requesting
from dikkat.inspection.row_blocks import (
    compute_all_rows,
    compute_rows,
    numbers_of_a_row,
    row_logits,
    select_heads,
    select_rows,
    summarise,
)
from dikkat.scores import Score
from dikkat.show.blocks import group_means

_LARGE = 2**19  # pairs from which compiled summaries are faster than blocks of rows (not for the output only)
# Up to this many queries, span masses are sums of weights. For more queries, they are the output of a compiled call.
_MAX_SUMMED_QUERIES = 4


class Inspecting(Requesting, Restricting, total=False):
    """The keyword arguments of `inspect`: restrictions of the visible keys, and the requested results."""


def inspect(
    query: Tensor,
    key: Tensor,
    *,
    score: Score,
    value: Tensor | None = None,
    impl: str = "auto",
    **call_and_request: Unpack[Inspecting],
) -> Inspection:
    r"""Return summaries of the weights of a call of `dikkat.attend`, without the map of all weights.

    $$ w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}}, \qquad
       S_j = \sum_i w_{ij}, \qquad H_i = -\sum_j w_{ij} \log w_{ij} $$

    Weights are before dropout. The results have no gradient (use `dikkat.attention_weights`). On a CPU, compiled code
    computes large calls tile by tile. Otherwise the implementation computes blocks of a few rows. The cells of an
    overview have nearly equal sizes: query i is in row ⌊i · a / n⌋, key j in column ⌊j · b / m⌋.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k), of the same dtype.
        score: The scoring function a.
        value: (..., m, d_v); if passed, the result has the output of `attend`. In compiled code the summaries except
            `rows` then cost little more than the output.
        impl: "auto", or the name of one implementation, which then runs or raises.
        **call_and_request: Restrictions of the visible keys (`Restricting`) and the requested results (`Requesting`).

    Returns:
        An `Inspection`.

    Raises:
        TypeError: An argument has the wrong type or dtype.
        ValueError: Shapes, devices or values do not fit (a row beyond the end, an overview of 0 cells), or `impl`
            cannot run this call.

    Source:
        Weights from the log-sum-exp: Dao et al. 2022, section 3.1 and appendix B.

    Example:
        >>> import torch, dikkat
        >>> x = 3 * torch.eye(3)
        >>> result = dikkat.inspect(x, x, score=dikkat.scores.Dot(), causal=True, top_k=1, sums=True)
        >>> result.top_keys.flatten(), result.sums.sum()
        (tensor([0, 1, 2]), tensor(3.))
        >>> dikkat.inspect(x, x, score=dikkat.scores.Dot(), causal=True, rows=[0]).rows
        tensor([[1., 0., 0.]])
    """
    check_names(call_and_request, Inspecting)
    request = Request(**_pick(call_and_request, Requesting))
    validation.check_score(score)
    validation.check_features("key", key)
    with torch.no_grad(), recording_hooks.observed_by(None):
        problem = validation.problem_of_call(
            query, key, _placeholder_values(key, key.shape[:-2]) if value is None else value, score,
            validation.Requested(wants_state=True, wants_weights=True), **_pick(call_and_request, Restricting),
        )  # fmt: skip
        result = inspect_problem(problem, request, impl, with_output=value is not None)
    return result if value is None or result.output is None else replace(result, output=result.output.to(value.dtype))


def _pick(arguments: Inspecting, keywords: type) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in keywords.__annotations__}


def inspect_problem(
    problem: Problem, request: Request, impl: str = "auto", *, with_output: bool = False, edits: Edits = ()
) -> Inspection:
    """Return the requested summaries of a checked call; `with_output`, also its output in the computing dtype."""
    count = count_heads(problem)
    if not all(bound.edit.keeps_scores for bound in edits):
        request = request.without_scores("a change that sets weights")
    problem, heads, query_indices = select_part(problem, request)
    full_problem = replace(problem, wants_state=True, wants_weights=True)
    problem = replace(full_problem, value=_placeholder_values(problem.value, problem.lead))
    queries, keys, device = problem.restrictions.queries, problem.restrictions.keys, problem.query.device
    spec, row_indices = request.summary_spec(queries, keys), request.row_indices(queries, device)
    row_size, all_rows = numbers_of_a_row(problem), torch.arange(queries, device=device)
    masses: Tensor | None = None
    blocks = request.find_blocks(queries, keys)

    def compute(rows: Tensor) -> tuple[Tensor, Tensor]:
        rows_problem = select_rows(problem, rows)
        if not edits:
            return _compute_few(rows_problem, impl)
        head_numbers = torch.arange(count) if heads is None else heads.cpu()
        row_numbers = (rows if query_indices is None else query_indices[rows]).cpu()
        return edited_weights_of_rows(rows_problem, edits, Selection(head_numbers, row_numbers, count))

    if request.weights:
        result = summarise_weights(*compute_all_rows(compute, queries, row_size, device), request)
        mean = _mean(full_problem, impl) if with_output else None
        return replace(result, output=mean, heads=heads, queries=query_indices, shape=(*problem.lead, queries, keys))
    spans, members = None, _members(request, blocks, keys, problem.value)
    by_rows = bool(edits) or (members is not None and queries <= _MAX_SUMMED_QUERIES and not with_output)
    if members is not None and not by_rows:  # the mass of a span is the weighted mean of its indicator
        spans = replace(problem, value=members.expand(*problem.lead, -1, -1))
    if by_rows:
        summary = summarise(compute, queries, keys, row_size, spec, device)
        if members is not None:

            def row_masses(rows: Tensor) -> Tensor:
                weights = compute(rows)[1]
                return weights @ members.to(weights)

            masses = compute_rows(row_masses, all_rows, row_size)
    elif spans is not None and not with_output:
        summary = _summarise(problem, spec, impl, spans)
        masses, summary = summary.mean, summary._replace(mean=None)
    else:
        summary = _summarise(problem, spec, impl, full_problem if with_output else None)
        masses = None if spans is None else _mean(spans, impl)
    rows = None if row_indices is None else compute_rows(lambda block: compute(block)[1], row_indices, row_size)
    result = replace(make_inspection(summary, request, rows), **_split_masses(request, blocks, masses))
    if blocks is not None and blocks.outside is not None:
        outside = compute_rows(lambda block: compute(block)[1], blocks.outside.to(device), row_size)
        result = replace(result, outside=outside)
    return replace(result, heads=heads, queries=query_indices, shape=(*problem.lead, queries, keys))


def select_part(problem: Problem, request: Request) -> tuple[Problem, Tensor | None, Tensor | None]:
    """Return the call of the selected heads and queries, and the indices of both; None for all."""
    lead = problem.lead
    heads, query_indices = request.selection(lead, problem.restrictions.queries, problem.query.device)
    if heads is not None and len(lead) > 1:
        problem = select_heads(problem, heads)
    return problem if query_indices is None else select_rows(problem, query_indices), heads, query_indices


def summarise_weights(lse: Tensor, weights: Tensor, request: Request) -> Inspection:
    """Return the requested summaries of weights (..., n, m)."""
    (queries, keys), device = weights.shape[-2:], weights.device
    spec, row_indices = request.summary_spec(queries, keys), request.row_indices(queries, device)
    row_size = weights.numel() // max(1, queries)
    summary = summarise(lambda rows: (lse[..., rows], weights[..., rows, :]), queries, keys, row_size, spec, device)
    result = make_inspection(summary, request, None if row_indices is None else weights[..., row_indices, :])
    blocks = request.find_blocks(queries, keys)
    members = _members(request, blocks, keys, weights)
    masses = _split_masses(request, blocks, None if members is None else weights @ members)
    outside = None if blocks is None or blocks.outside is None else weights[..., blocks.outside.to(device), :]
    return replace(result, weights=weights if request.weights else None, outside=outside, **masses)


def _members(request: Request, blocks: BlockGroups | None, keys: int, like: Tensor) -> Tensor | None:
    """Return the share of each key in the spans and the blocks, (m, s + b); None without both."""
    members = [request.span_members(keys, like)] if request.spans else []
    members += [] if blocks is None else [blocks.members(like)]
    return torch.cat(members, -1) if members else None


def _split_masses(request: Request, blocks: BlockGroups | None, masses: Tensor | None) -> dict[str, Any]:
    """Return the span masses, and the means of the blocks over their queries."""
    if masses is None or blocks is None:
        return {"span_mass": masses}
    count = masses.shape[-1] - int(blocks.keys.max()) - 1
    means = group_means(masses[..., count:], blocks.queries, -2)
    groups = {"query_groups": blocks.queries.to(masses.device), "key_groups": blocks.keys.to(masses.device)}
    return {"span_mass": masses[..., :count] if request.spans else None, "blocks": means, **groups}


def is_by_product(name: str, problem: Problem) -> bool:
    """Return whether the named implementation would run a call like `launch.summarise`, only for its output."""
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in problem.tensors().values())
    wants_more = problem.wants_state or problem.wants_weights or problem.dropout
    return name == "numba" and not learns and not wants_more


def make_inspection(summary: Summary, request: Request, rows: Tensor | None) -> Inspection:
    """Return an `Inspection` with the results of a summary and some rows of weights."""
    top, keys = summary.top_weights, summary.top_keys
    if keys is not None and top is not None:  # a weight of 0 does not tell which key it belongs to
        keys = keys.masked_fill(~(top > 0), -1)
    return Inspection(
        summary.lse, rows=rows, entropy=summary.entropy, overview=summary.cells, output=summary.mean,
        top_weights=_fill(top, request.top_k, 0), top_keys=_fill(keys, request.top_k, -1),
        sums=summary.sums if request.sums else None,
        argmax=keys[..., 0] if request.argmax and keys is not None else None,
        max_score=summary.peak,
        hidden=None if summary.sums is None or not request.finds_hidden else summary.sums == 0,
    )  # fmt: skip


def _fill(values: Tensor | None, top: int | None, filler: int) -> Tensor | None:
    """Return the values (..., n, top), filled at the end if there are fewer keys than `top`."""
    if values is None or top is None:
        return None
    missing = top - values.shape[-1]
    return F.pad(values, (0, missing), value=filler) if missing else values


def _placeholder_values(like: Tensor, lead: torch.Size) -> Tensor:
    """Return values (..., m, 1) for a call of which only the weights are used."""
    return like.new_zeros(1).expand(*lead, like.shape[-2], 1)


def _summarise(problem: Problem, spec: Asked, impl: str, full_problem: Problem | None) -> Summary:
    """Return the summaries, and the mean of `full_problem`; in compiled code if that runs and is fast or named."""
    name = choose(problem).name if impl == "auto" else impl
    restrictions = problem.restrictions
    # Compiled code finds the largest weights of a row while it computes them; PyTorch would sort.
    large = problem.lead.numel() * restrictions.queries * restrictions.keys >= _LARGE
    compiled = name == "numba" or (impl == "auto" and (name != "reference" or large))
    any_pair = restrictions.queries and restrictions.keys and problem.lead.numel()
    if any_pair and impl == "auto" and problem.sink is None and summaries.serves(problem, spec):
        summary = summaries.summarise(problem, spec)
        return summary if full_problem is None else summary._replace(mean=_mean(full_problem, name))
    if any_pair and compiled and problem.sink is None and not launch.examine(problem).reasons:
        return launch.summarise(full_problem or problem, spec, pools=full_problem is not None)
    row_size, device = numbers_of_a_row(problem), problem.query.device
    # A device computes all rows at once, and launches dominate the time.
    by_name = problem.sink is not None or on_cpu(problem.query) or not any_pair
    sees_keys = restrictions.leaves_some() and (problem.pair != "distance" or problem.profile == "gaussian")
    compute = partial(_compute_few, impl=name) if by_name else partial(_compute_at_once, sees_keys=sees_keys)
    problem = problem if by_name else problem.in_wide_dtype()
    queries, keys = restrictions.queries, restrictions.keys
    summary = summarise(lambda rows: compute(select_rows(problem, rows)), queries, keys, row_size, spec, device)
    return summary if full_problem is None else summary._replace(mean=_mean(full_problem, name))


def _mean(problem: Problem, name: str) -> Tensor:
    return dispatch.run_problem(replace(problem, wants_weights=False), name).mean


def _compute_at_once(problem: Problem, sees_keys: bool) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the weights of all rows; with `sees_keys`, every query sees a key."""
    scores = row_logits(problem)
    peak, weights = scores.amax(-1), torch.softmax(scores, -1)
    if sees_keys:
        return peak - weights.amax(-1).log(), weights
    weights = weights.masked_fill_(scores == -math.inf, 0.0)
    return (peak - weights.amax(-1).log()).masked_fill(peak == -math.inf, -math.inf), weights


def _compute_few(problem: Problem, impl: str) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the weights of a few rows."""
    result: Any = dispatch.run_problem(problem, impl)
    return result.lse, result.shown_weights()
