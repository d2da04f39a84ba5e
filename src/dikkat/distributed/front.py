"""The front door: a call of each rank, checked, agreed upon, and computed together."""

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
    r"""`dikkat.attend` over keys and values that lie on the ranks of a process group, each with a part of the sequence.

    Each rank r makes the state of the queries over its own keys, and the states merge:

    $$ o_i = \mu_i, \qquad (\mu_i, \ell_i) = \bigoplus_r \mathrm{state}(q_i, K_r, V_r) $$

    All ranks have the same queries, and all get the whole output; (d_v + 2) numbers a query and head from each rank are
    all that travels. Rank 0 has the beginning of the sequence, the last rank its end.

    Gradients are those of one process, for the one loss that every rank makes of the same output. Those of the query
    and of the score's parameters are summed over the ranks, so that every rank has the whole; those of keys and values
    are their rank's own. All ranks make the same calls, forward and backward, in the same order.

    Positions in restrictions are those in the whole sequence: `valid_lens`, `exclude`, `causal` and the columns of
    `mask` speak of all M keys; `key_bias` is of this rank's keys. There is no `window`, and there are no `segment_ids`
    and no `bias`.

    `dikkat.record`, on all ranks or on none, tells each what the queries look at among all M keys, which are brought to
    every rank for it.

    Args:
        query: (..., n, d_q), the same on all ranks.
        key: (..., m, d_k), this rank's keys; any number of them, none too.
        value: (..., m, d_v), of the same keys.
        score: The scoring function, with the same parameters on all ranks.
        group: The process group; None is the default one.
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0.
        impl: "auto", or the name of the implementation that computes this rank's state.
        **restrictions: Which keys a query may see (`dikkat.Restricting`).

    Returns:
        (..., n, d_v) in the dtype of `value`.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit.
        RankError: Ranks whose arguments differ, one that refuses its call, or one that has left or does not answer
            within the group's time-out.

    Source: The merge of states: Milakov and Gimelshein 2018, section 3.

    Example:
        >>> import dikkat.distributed
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)  # torchrun does that for many
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


# The restrictions that `_own` cuts down to a rank's keys.
_ON_RANKS = frozenset({"valid_lens", "mask", "causal", "key_bias", "exclude"})


class _Shard(NamedTuple):
    """A rank's part of a call: its keys and values, and the restrictions of the whole."""

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
    """`attend`, of one head or of several: with heads (..., heads, n, d_v)."""
    shard = _Shard(query, key, value, heads, requested, restrictions)
    ranks.together(lambda: (_description(shard, score), None))
    lengths: list[int] = ranks.exchange(key.shape[-2])
    first, keys = sum(lengths[: ranks.rank]), sum(lengths)
    parameters = dict(score.named_parameters())
    shared, *swapped = ranks.with_whole_gradients(query, *parameters.values())
    shard = shard._replace(query=shared)

    def own_state() -> tuple[dict[str, Any], State]:
        named = {f"score.{name}": tensor for name, tensor in zip(parameters, swapped, strict=True)}
        run = (lambda: _state(shard, score, impl, ranks.rank, first, keys),)
        return {}, torch.func.functional_call(_Within(score), named, run)

    with recording_hooks.observed_by():
        state = ranks.together(own_state)
    mean, lse, tail = state
    flat = torch.cat([mean, lse[..., None], (torch.zeros_like(lse) if tail is None else tail)[..., None]], -1)
    size = mean.shape[-1]
    states = [State(each[..., :size], each[..., size], each[..., size + 1]) for each in ranks.gather(flat)]
    if recording_hooks.current_observers():
        with torch.no_grad():
            _tell(ranks, shard, score)
    return reduce(merge, states).mean.to(value.dtype)


def _description(shard: _Shard, score: Score) -> dict[str, Any]:
    query, key, value, heads, requested, restrictions = shard
    validation.check_operands(query, key, value, score)
    parameters = list(score.parameters())
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in (query, *parameters))
    described: dict[str, Any] = {
        "dtype": value.dtype, "query": tuple(query.shape), "key": (*key.shape[:-2], "…", key.shape[-1]),
        "value": (*value.shape[:-2], "…", value.shape[-1]),
        "score": f"{type(score).__name__} of {[tuple(each.shape) for each in parameters]}",
        "heads": None if heads is None else heads.number, "dropout": validation.probability(requested.dropout),
        "gradients": learns, "recorded": bool(recording_hooks.current_observers()),
    }  # fmt: skip
    for name, given in restrictions.items():
        if given is not None and name not in _ON_RANKS:
            raise ValueError(
                f"{name}: got one, with keys on several ranks; expected None: they take a mask or key_bias"
            )
    for name, given in restrictions.items():
        if isinstance(given, Tensor):  # a bias is of this rank's keys, and they may be of any number
            described[name] = (*(given.shape[:-1] if name == "key_bias" else given.shape), str(given.dtype))
        else:
            described[name] = "a function" if callable(given) else given
    return described


def _state(shard: _Shard, score: Score, impl: str, rank: int, first: int, keys: int) -> State:
    query, key, value, heads, requested, restrictions = shard
    own = _own(
        restrictions, validation.lead_of(("query", query), ("key", key), ("value", value)), query, key, first, keys
    )
    problem = validation.problem_of_call(query, key, value, score, requested, heads, **own)
    if problem.dropout:  # other weights are dropped on each rank, also where all have one seed
        seeds = validation.draw_seeds(problem.lead, query.device)
        problem = replace(problem, seeds=derive_seeds(seeds, torch.tensor(rank, device=query.device)))
    return dispatch.run_problem(problem, impl).state()


def _own(restrictions: Restricting, lead: torch.Size, query: Tensor, key: Tensor, first: int, keys: int) -> Restricting:
    """The restrictions cut down to this rank's keys, which count from 0."""
    n, m, device = query.shape[-2], key.shape[-2], query.device
    own: Restricting = {"key_bias": restrictions.get("key_bias")}
    whole: Restricting = {**restrictions, "key_bias": None}
    checked = restrict(lead, n, keys, device, **whole)
    lens = restrictions.get("valid_lens")
    if lens is not None:
        lens = torch.as_tensor(lens, device=device)
        lens = lens[..., None] if lens.ndim == len(lead[:1]) else lens
    if restrictions.get("causal", False):
        reach = torch.arange(n, device=device) + 1 + keys - n
        lens = reach if lens is None else torch.minimum(lens, reach)
    if lens is not None:
        own["valid_lens"] = (lens - first).clamp(0, m).expand(*lead[:1], n)
    mask, exclude = checked.mask, restrictions.get("exclude")
    if mask is not None:
        own["mask"] = mask if mask.shape[-1] == 1 else mask[..., first : first + m]
    if exclude is not None:
        own["exclude"] = torch.where((exclude >= first) & (exclude < first + m), exclude - first, -1)
    return own


def _tell(ranks: Ranks, shard: _Shard, score: Score) -> None:
    """Tell the observers of the queries and of all keys, which are brought here for it, without values."""
    query, key, value, heads, _, restrictions = shard
    bias = restrictions.get("key_bias")
    own_bias = None if bias is None else bias.detach().expand(*bias.shape[:-1], key.shape[-2]).cpu()
    parts = ranks.exchange((key.detach().cpu(), own_bias))
    # The empty part says that all of it is of one sequence with the rank's own keys.
    whole = torch.cat([key.detach()[..., :0, :].cpu(), *(own for own, _ in parts)], -2).to(key.device)
    if bias is not None:
        restrictions = {**restrictions, "key_bias": torch.cat([own for _, own in parts], -1).to(key.device)}
    nothing = value.new_zeros(1).expand(*value.shape[:-2], whole.shape[-2], value.shape[-1])
    problem = validation.problem_of_call(query, whole, nothing, score, validation.Requested(), heads, **restrictions)
    for observer in recording_hooks.current_observers():
        observer.observe_calls([problem])


class _Within(nn.Module):
    """A score as a part of a module, so that `functional_call` can replace its parameters while a function runs."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, run: Callable[[], State]) -> State:
        return run()
