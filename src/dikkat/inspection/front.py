"""The front door: weights and summaries of one call, on request."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dikkat import call, program, watching
from dikkat.backends import choose
from dikkat.cpu.attention import launch
from dikkat.gpu.attention import launch as gpu_launch
from dikkat.inspection.blocks import in_blocks, numbers_of_a_row, of_keys, of_rows, summarise
from dikkat.inspection.request import Inspection, Overview, Pool, Request
from dikkat.masking import check_dense
from dikkat.problem import Problem
from dikkat.problem.summary import Asked, Summary
from dikkat.scores import Score


def inspect(
    query: Tensor,
    key: Tensor,
    *,
    score: Score,
    value: Tensor | None = None,
    valid_lens: Tensor | int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    lse: Tensor | None = None,
    rows: Sequence[int] | Tensor | None = None,
    tile: tuple[slice, slice] | None = None,
    top_k: int | None = None,
    sums: bool = False,
    entropy: bool = False,
    argmax: bool = False,
    overview: Overview | None = None,
    pool: Pool = "mean",
    impl: str = "auto",
) -> Inspection:
    r"""What a call of `dikkat.attend` looks at, as far as it is asked for, without the map of all weights.

    $$ w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}}, \qquad
       S_j = \sum_i w_{ij}, \qquad H_i = -\sum_j w_{ij} \log w_{ij} $$

    Weights are those before dropout. Nothing here has a gradient; `dikkat.attention_weights` has. On a CPU, large calls
    are computed tile by tile in compiled code; else by the chosen implementation, in blocks of a few rows. An overview
    has cells of as equal a size as can be: query i is in row ⌊i · a / n⌋, key j in column ⌊j · b / m⌋.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k), of the same dtype.
        score: The scoring function a.
        value: (..., m, d_v): the output of `attend` is returned as well. In compiled code what is asked for, but for
            `rows` and `tile`, is then a by-product of the same walk over the keys, and costs little beside it.
        valid_lens: (B,) or (B, n) integers in 0 ... m: key j takes part where j < valid_len.
        mask: Booleans that broadcast to (..., n, m); True takes part.
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m), b, added to the scores; −∞ hides a key.
        exclude: (..., n) integers: one key index that a row must not see, −1 for none.
        lse: (..., n), the call's log-sum-exp, which `dikkat.attention_state` and `inspect` return: with it weights are
            known at first sight, and a rectangle can be computed alone.
        rows: Which queries' weights to return, counted from 0, or from the end below 0.
        tile: Two slices, of queries and of keys: which rectangle of the weights to return.
        top_k: How many of each query's largest weights to return, from 1 to m.
        sums: Whether to return, for each key, the sum of its weights over the queries.
        entropy: Whether to return the entropy of each query's weights.
        argmax: Whether to return the key with the largest weight of each query.
        overview: Rows and columns, or one number for both, that the map is pooled to; at most as many as there are
            queries and keys.
        pool: How the weights of a cell are pooled: "mean" or "max".
        impl: "auto", or the name of one implementation, which then runs or raises.

    Returns:
        An `Inspection`.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit: a row past the end, more `top_k` than keys, an overview
            of 0 cells; an implementation that cannot run this call.

    Source:
        The weights from the log-sum-exp: Dao et al. 2022, section 3.1 and appendix B.

    Example:
        >>> import torch, dikkat
        >>> x = 3 * torch.eye(3)
        >>> seen = dikkat.inspect(x, x, score=dikkat.scores.Dot(), causal=True, top_k=1, sums=True)
        >>> seen.top_keys.flatten(), seen.sums.sum()
        (tensor([0, 1, 2]), tensor(3.))
        >>> dikkat.inspect(x, x, score=dikkat.scores.Dot(), causal=True, lse=seen.lse, rows=[0]).rows
        tensor([[1., 0., 0.]])
    """
    request = Request(rows, tile, top_k, sums, entropy, argmax, overview, pool)
    call.check_score(score)
    call.check_features("key", key)
    with torch.no_grad(), watching.watched_by():
        problem = call.problem(
            query, key, _no_values(key, key.shape[:-2]) if value is None else value, score,
            call.Wanted(wants_state=True, wants_weights=True),
            valid_lens=valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude,
        )  # fmt: skip
        if lse is not None:
            _check_lse(lse, problem)
        found = inspected(problem, request, lse, impl, pools=value is not None)
    return found if value is None or found.output is None else replace(found, output=found.output.to(value.dtype))


def inspected(
    problem: Problem, request: Request, lse: Tensor | None = None, impl: str = "auto", *, pools: bool = False
) -> Inspection:
    """What is asked for of a checked call; and its output, if `pools`, in the dtype that was computed in."""
    whole = replace(problem, wants_state=True, wants_weights=True)
    problem = replace(whole, value=_no_values(problem.value, problem.lead))
    queries, keys, device = problem.limits.queries, problem.limits.keys, problem.query.device
    asked, corner = request.asked(queries, keys), request.corner(queries, keys)
    chosen = request.chosen(queries, device)
    if lse is not None and asked == Asked() and not pools:
        summary = Summary(lse)
    else:
        summary = _summary(problem, asked, lse, impl, whole if pools else None)

    def weights(rows: Tensor) -> Tensor:
        return _found(of_rows(problem, rows), impl)[1]

    return answer(
        summary,
        request,
        None if chosen is None else in_blocks(weights, chosen, numbers_of_a_row(problem)),
        None if corner is None else _rectangle(problem, *corner, summary.lse, impl),
    )


def is_by_product(name: str, problem: Problem) -> bool:
    """Whether the implementation of a name would run a call as `launch.summarise` does, and nothing else is wanted."""
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in problem.tensors().values())
    wants_more = problem.wants_state or problem.wants_weights or problem.dropout
    return name == "numba" and not learns and not wants_more


def answer(summary: Summary, request: Request, rows: Tensor | None, tile: Tensor | None) -> Inspection:
    """A summary, under the names of the request."""
    top, keys = summary.top_weights, summary.top_keys
    if keys is not None and top is not None:  # of what weighs nothing, who is seen cannot be told by the weight
        keys = keys.masked_fill(~(top > 0), -1)
    return Inspection(
        summary.lse,
        rows,
        tile,
        None if request.top_k is None else top,
        None if request.top_k is None else keys,
        summary.sums,
        summary.entropy,
        keys[..., 0] if request.argmax and keys is not None else None,
        summary.cells,
        summary.mean,
    )


def _check_lse(lse: Tensor, problem: Problem) -> None:
    check_dense("lse", lse)
    shape = (*problem.lead, problem.limits.queries)
    if tuple(lse.shape) != shape:
        raise ValueError(f"lse: got shape {tuple(lse.shape)}; expected {shape}, as dikkat.attention_state returns it")
    if lse.dtype != problem.dtype:
        raise TypeError(f"lse: got dtype {lse.dtype}; expected {problem.dtype}, as dikkat.attention_state returns it")


def _no_values(like: Tensor, lead: torch.Size) -> Tensor:
    """Values (..., m, 1) of a call whose weights alone are looked at."""
    return like.new_zeros(1).expand(*lead, like.shape[-2], 1)


def _summary(problem: Problem, asked: Asked, lse: Tensor | None, impl: str, whole: Problem | None) -> Summary:
    """The summaries, in compiled code where that runs and is worth it or was named; and the mean of the whole call."""
    name = choose(problem).name if impl == "auto" else impl
    limits, compiled = problem.limits, name == "numba" or (impl == "auto" and name != "reference")
    some = limits.queries and limits.keys and problem.lead.numel()
    if some and compiled and not launch.obstacles(problem):
        return launch.summarise(whole or problem, asked, lse, pools=whole is not None)
    each, device = numbers_of_a_row(problem), problem.query.device
    if some and name == "triton" and gpu_launch.can_summarise(asked) and not gpu_launch.obstacles(problem):
        return _with_mean(gpu_launch.summarise(problem, asked), whole, name)
    found = summarise(
        lambda rows: _found(of_rows(problem, rows), name), limits.queries, limits.keys, each, asked, device
    )
    return _with_mean(found, whole, name)


def _with_mean(summary: Summary, whole: Problem | None, name: str) -> Summary:
    """The summary with the mean of the whole call, if there is one, from an implementation of its own."""
    if whole is None:
        return summary
    return summary._replace(mean=program.dispatch(replace(whole, wants_weights=False), name).mean)


def _found(problem: Problem, impl: str) -> tuple[Tensor, Tensor]:
    """The log-sum-exp and the weights of a few rows."""
    result = program.dispatch(problem, impl)
    if result.lse is None:  # pragma: no cover - an implementation without states has that as an obstacle
        raise RuntimeError("the implementation returned no log-sum-exp")
    return result.lse, program.weights(result)


def _rectangle(problem: Problem, rows: slice, cols: slice, lse: Tensor, impl: str) -> Tensor:
    """The weights of a rectangle, from its own scores and the rows' log-sum-exps.

    Those that its keys alone would have, times the share that its keys have of all.
    """
    index = torch.arange(problem.limits.queries, device=problem.query.device)[rows]

    def weights(part: Tensor) -> Tensor:
        own, within = _found(of_keys(of_rows(problem, part), cols), impl)
        share = (own - lse[..., part]).exp().masked_fill(own == -float("inf"), 0.0)
        return within * share[..., None]

    each = numbers_of_a_row(problem) // max(1, problem.limits.keys) * (cols.stop - cols.start)
    return in_blocks(weights, index, each)
