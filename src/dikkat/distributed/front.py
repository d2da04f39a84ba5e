"""`dikkat.distributed.attend`: all ranks check a call, compare their arguments, and compute the result together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dikkat._core import dispatch, recording_hooks, validation
from dikkat._core.arithmetic import derive_seeds
from dikkat._core.problem import Problem
from dikkat._core.restricting import Restricting, check_names, restrict
from dikkat.distributed.ranks import Ranks
from dikkat.scores import Score
from dikkat.state import State, merge


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    group: dist.ProcessGroup | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
    **restrictions: Unpack[Restricting],
) -> Tensor:
    r"""Attend to keys and values that are divided among the ranks of a process group.

    Each rank r computes the state of the queries over its keys, and the states merge:

    $$ o_i = \mu_i, \qquad (\mu_i, \ell_i) = \bigoplus_r \mathrm{state}(q_i, K_r, V_r) $$

    All ranks have the same queries and get the complete output. Each rank sends (d_v + 2) numbers for each query and
    head. Rank 0 has the beginning of the sequence, the last rank its end.

    Gradients equal those of one process, if every rank computes the same loss from the output. Gradients of the query
    and of the score's parameters are summed over the ranks. Each rank gets the gradients of its keys and values. All
    ranks must make the same calls, forward and backward, in the same order.

    Positions in `valid_lens`, `exclude`, `causal` and the columns of `mask` count all M keys of the sequence, but
    `key_bias` has only this rank's keys. `window`, `segment_ids` and `bias` are not supported.

    Use `dikkat.record` on all ranks or on none. It copies all M keys to every rank, and records the complete attention.

    Args:
        query: (..., n, d_q), equal on all ranks.
        key: (..., m, d_k), this rank's keys; m may be 0.
        value: (..., m, d_v), this rank's values.
        score: The scoring function, with equal parameters on all ranks.
        group: The process group; None is the default one.
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0.
        impl: "auto", or the name of the implementation that computes this rank's state.
        **restrictions: Which keys a query may see (`dikkat.Restricting`).

    Returns:
        (..., n, d_v) in the dtype of `value`.

    Raises:
        TypeError: An argument has the wrong type or dtype.
        ValueError: Shapes, devices or values do not fit.
        RankError: The arguments of two ranks differ, or a rank raised an error, left, or did not answer within the
            group's time-out.

    Source: The merge of states: Milakov and Gimelshein 2018, section 3.

    Example:
        >>> import dikkat.distributed
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)  # torchrun does this for several ranks
        >>> x = torch.arange(6.0).reshape(1, 3, 2)
        >>> dikkat.distributed.attend(x, x, x, score=dikkat.scores.Dot(), causal=True)[0, 0]
        tensor([0., 1.])
        >>> destroy_process_group()
    """
    check_names(restrictions, Restricting)
    return attend_heads_together(
        Ranks(group), query, key, value, score, None, validation.Requested(dropout, wants_state=True), impl,
        restrictions,
    )  # fmt: skip


# The restrictions that `_restrict_to_rank` converts.
_ON_RANKS = frozenset({"valid_lens", "mask", "causal", "key_bias", "exclude"})


class _Shard(NamedTuple):
    """A rank's share of a call: its keys and values, and the restrictions of the complete call."""

    query: Tensor
    key: Tensor
    value: Tensor
    heads: validation.Heads | None
    requested: validation.Requested
    restrictions: Restricting


def attend_heads_together(
    ranks: Ranks, query: Tensor, key: Tensor, value: Tensor, score: Score, heads: validation.Heads | None,
    requested: validation.Requested, impl: str, restrictions: Restricting,
) -> Tensor:  # fmt: skip
    """Run `attend` for one head or several; with `heads`, return (..., heads, n, d_v)."""
    shard = _Shard(query, key, value, heads, requested, restrictions)
    ranks.run_checked(lambda: (_description(shard, score), None))
    lengths: list[int] = ranks.exchange(key.shape[-2])
    first, keys = sum(lengths[: ranks.rank]), sum(lengths)
    parameters = dict(score.named_parameters())
    summed_query, *summed_parameters = ranks.sum_gradients_over_ranks(query, *parameters.values())
    shard = shard._replace(query=summed_query)

    def compute_state() -> tuple[dict[str, Any], State]:
        parameters_by_name = {
            f"score.{name}": tensor for name, tensor in zip(parameters, summed_parameters, strict=True)
        }
        run = (lambda: _state(shard, score, impl, ranks.rank, first, keys),)
        return {}, torch.func.functional_call(_Wrapper(score), parameters_by_name, run)

    with recording_hooks.observed_by(None):
        state = ranks.run_checked(compute_state)
    mean, lse, tail = state
    flat = torch.cat([mean, lse[..., None], (torch.zeros_like(lse) if tail is None else tail)[..., None]], -1)
    size = mean.shape[-1]
    states = [State(rank[..., :size], rank[..., size], rank[..., size + 1]) for rank in ranks.gather(flat)]
    if (observer := recording_hooks.current_observer()) is not None:
        with torch.no_grad():
            observer.observe_calls([_problem_of_all_keys(ranks, shard, score)])
    return reduce(merge, states).mean.to(value.dtype)


def _description(shard: _Shard, score: Score) -> dict[str, Any]:
    query, key, value, heads, requested, restrictions = shard
    validation.check_operands(query, key, value, score)
    parameters = list(score.parameters())
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, *parameters))
    description: dict[str, Any] = {
        "dtype": value.dtype, "query": tuple(query.shape), "key": (*key.shape[:-2], "…", key.shape[-1]),
        "value": (*value.shape[:-2], "…", value.shape[-1]),
        "score": f"{type(score).__name__} of {[tuple(parameter.shape) for parameter in parameters]}",
        "heads": None if heads is None else heads.number, "dropout": validation.probability(requested.dropout),
        "gradients": needs_grad, "recorded": recording_hooks.current_observer() is not None,
    }  # fmt: skip
    for name, argument in restrictions.items():
        if argument is not None and name not in _ON_RANKS:
            raise ValueError(f"{name}: got a value with keys on several ranks; expected None. Use mask or key_bias")
    for name, argument in restrictions.items():
        if isinstance(argument, Tensor):  # the number of keys, and so the size of a key_bias, may differ between ranks
            description[name] = (*(argument.shape[:-1] if name == "key_bias" else argument.shape), str(argument.dtype))
        else:
            description[name] = "a function" if callable(argument) else argument
    return description


def _state(shard: _Shard, score: Score, impl: str, rank: int, first: int, keys: int) -> State:
    query, key, value, heads, requested, restrictions = shard
    rank_restrictions = _restrict_to_rank(
        restrictions, validation.lead_of(("query", query), ("key", key), ("value", value)), query, key, first, keys
    )
    problem = validation.problem_of_call(query, key, value, score, requested, heads, **rank_restrictions)
    if problem.dropout:  # ranks drop different weights, even if all have one seed
        seeds = validation.draw_seeds(problem.lead, query.device)
        problem = replace(problem, seeds=derive_seeds(seeds, torch.tensor(rank, device=query.device)))
    return dispatch.run_problem(problem, impl).state()


def _restrict_to_rank(
    restrictions: Restricting, lead: torch.Size, query: Tensor, key: Tensor, first: int, keys: int
) -> Restricting:
    """Convert the restrictions to this rank's keys, counted from 0."""
    n, m, device = query.shape[-2], key.shape[-2], query.device
    converted: Restricting = {"key_bias": restrictions.get("key_bias")}
    shared: Restricting = {**restrictions, "key_bias": None}
    checked = restrict(lead, n, keys, device, **shared)
    lens = restrictions.get("valid_lens")
    if lens is not None:
        lens = torch.as_tensor(lens, device=device)
        lens = lens[..., None] if lens.ndim == len(lead[:1]) else lens
    if restrictions.get("causal", False):
        reach = torch.arange(n, device=device) + 1 + keys - n
        lens = reach if lens is None else torch.minimum(lens, reach)
    if lens is not None:
        converted["valid_lens"] = (lens - first).clamp(0, m).expand(*lead[:1], n)
    mask, exclude = checked.mask, restrictions.get("exclude")
    if mask is not None:
        converted["mask"] = mask if mask.shape[-1] == 1 else mask[..., first : first + m]
    if exclude is not None:
        converted["exclude"] = torch.where((exclude >= first) & (exclude < first + m), exclude - first, -1)
    return converted


def _problem_of_all_keys(ranks: Ranks, shard: _Shard, score: Score) -> Problem:
    """Return the call of this rank's queries and all keys, copied to this rank, without values."""
    query, key, value, heads, _, restrictions = shard
    bias = restrictions.get("key_bias")
    rank_bias = None if bias is None else bias.detach().expand(*bias.shape[:-1], key.shape[-2]).cpu()
    shards = ranks.exchange((key.detach().cpu(), rank_bias))
    # The empty slice tells the observer that these keys belong to the same sequence as the rank's keys.
    keys = torch.cat([key.detach()[..., :0, :].cpu(), *(k for k, _ in shards)], -2).to(key.device)
    if bias is not None:
        restrictions = {**restrictions, "key_bias": torch.cat([b for _, b in shards], -1).to(key.device)}
    empty = value.new_zeros(1).expand(*value.shape[:-2], keys.shape[-2], value.shape[-1])
    return validation.problem_of_call(query, keys, empty, score, validation.Requested(), heads, **restrictions)


class _Wrapper(nn.Module):
    """A module around a score, so that `functional_call` can replace the score's parameters while a function runs."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, run: Callable[[], State]) -> State:
        return run()
