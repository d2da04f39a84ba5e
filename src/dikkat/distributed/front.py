"""The front door: a call of each rank, checked, agreed upon, and computed together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypedDict, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dikkat import call, watching
from dikkat.backends import BACKENDS
from dikkat.distributed import flash
from dikkat.distributed.agreement import agree, described, fingerprint, refusing
from dikkat.distributed.blocks import Shard
from dikkat.distributed.dtensor import is_sharded, to_local
from dikkat.distributed.order import Order, check_order, spans
from dikkat.distributed.passing import Layout, pooled
from dikkat.distributed.ranks import Ranks
from dikkat.masking import Restrictions, largest, restrict
from dikkat.problem import Problem
from dikkat.problem.operator import Kernel
from dikkat.scores import Score

Method = Literal["auto", "ring", "reduce"]
METHODS: tuple[str, ...] = get_args(Method)
# What the ranks must bring alike, in the order in which they are told of it.
_ALIKE = (
    "method", "order", "causal", "dropout", "score", "dtype", "heads", "query", "key", "value", "key_bias",
    "valid_lens", "recorded",
)  # fmt: skip


class Options(TypedDict, total=False):
    """What `attend` takes beside its tensors and its score."""

    group: dist.ProcessGroup | None
    method: Method
    order: Order
    valid_lens: Tensor | int | None
    mask: Tensor | None
    causal: bool
    key_bias: Tensor | None
    exclude: Tensor | None
    dropout: float
    impl: str
    timeout: float | None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    group: dist.ProcessGroup | None = None,
    method: Method = "auto",
    order: Order = "contiguous",
    valid_lens: Tensor | int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
    timeout: float | None = None,
) -> Tensor:
    r"""`dikkat.attend` over keys and values that lie on the ranks of a process group, each with a part of the sequence.

    Each rank r makes states of queries with the keys that it has at hand, and the states merge:

    $$ o_i = \mu_i, \qquad (\mu_i, \ell_i) = \bigoplus_r \mathrm{state}(q_i, K_r, V_r) $$

    With "ring" the queries lie on the ranks as well; keys and values go round, the next on their way while those at
    hand are worked on, and the output lies where the queries do. With "reduce" every rank has all queries, and all get
    the whole output: each makes the states of its own keys, and (d_v + 2) numbers a query and head are exchanged.

    The backward makes the weights anew from the saved log-sum-exp, and is exact for every score. Gradients are those of
    one process, for the sum of the ranks' losses with "ring", and with "reduce" for the one loss that every rank makes
    of the same output. Of the score's parameters a rank of a "ring" has the share of its queries and keys, as it has of
    every other parameter that it applies to its own tokens: sum over the group, as DistributedDataParallel does (which
    then divides). With "reduce" every rank has their whole gradient, as it has of what it computes from the queries.

    Positions in restrictions are those in the whole sequence: `valid_lens`, `exclude` and the columns of `mask` speak
    of all M keys, their rows are this rank's queries, and `key_bias` is of this rank's keys. All ranks make the same
    calls, forward and backward, in the same order.

    `dikkat.record`, on all ranks or on none, tells each what its own queries look at among all M keys, whose features
    are brought to every rank for it.

    Args:
        query: (..., n, d_q), this rank's queries ("ring"), or all of them ("reduce"). A `DTensor` over a mesh of one
            dimension says by itself how it lies: sharded along n, or replicated.
        key: (..., m, d_k), this rank's keys; any number of them, none too. A `DTensor`: sharded along m.
        value: (..., m, d_v), likewise.
        score: The scoring function, with the same parameters on all ranks.
        group: The process group; None is the default one, or that of the `DTensor`s' mesh.
        method: "ring", "reduce", or "auto": as `DTensor`s lie, and else "ring".
        order: How the sequence lies on the ranks (`positions`): "contiguous", or "zigzag", which gives all ranks about
            the same to do where `causal` hides later keys.
        valid_lens: (B,) or (B, n) integers in 0 ... M: key j of the whole sequence takes part where j < valid_len.
        mask: Booleans that broadcast to (..., n, M); True takes part.
        causal: Query i sees keys j <= i + M − N, by their positions in the whole sequence.
        key_bias: (..., m), added to the scores; −∞ hides a key.
        exclude: (..., n) integers: one key index in 0 ... M − 1 that a row must not see, −1 for none.
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0.
        impl: "auto", or "chunked", "numba" or "triton", which computes this rank's blocks.
        timeout: Seconds that a message may take; None is the group's own time-out.

    Returns:
        (..., n, d_v) in the dtype of `value`; a `DTensor` that lies as the query does where that is one.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit.
        RankError: Ranks that disagree on shapes, dtypes, the score or the order of keys; or one that has left or does
            not answer, by its number.

    Source:
        Liu, Zaharia and Abbeel 2023, "Ring Attention with Blockwise Transformers", section 3; the merge of states:
        Milakov and Gimelshein 2018, section 3.

    Example:
        >>> import torch, dikkat, dikkat.distributed
        >>> from torch.distributed import HashStore, destroy_process_group, init_process_group
        >>> init_process_group("gloo", store=HashStore(), rank=0, world_size=1)  # torchrun does that for many
        >>> x = torch.arange(6.0).reshape(1, 3, 2)
        >>> dikkat.distributed.attend(x, x, x, score=dikkat.scores.Dot(), causal=True)[0, 0]
        tensor([0., 1.])
        >>> destroy_process_group()
    """
    options: Options = {
        "group": group, "method": method, "order": order, "valid_lens": valid_lens, "mask": mask, "causal": causal,
        "key_bias": key_bias, "exclude": exclude, "dropout": dropout, "impl": impl, "timeout": timeout,
    }  # fmt: skip
    if any(map(is_sharded, (query, key, value))):
        query, key, value, placed, whole = to_local(query, key, value, options)
        return whole(attend_parts(query, key, value, score, None, {**options, **placed}))
    return attend_parts(query, key, value, score, None, options)


def attend_parts(
    query: Tensor, key: Tensor, value: Tensor, score: Score, heads: call.Heads | None, options: Options
) -> Tensor:
    """`attend`, of one head or of several, on tensors that lie where this rank is; with heads (..., heads, n, d_v)."""
    ranks = Ranks(options.get("group"), options.get("timeout"))
    device = query.device if isinstance(query, Tensor) else torch.device("cpu")
    with refusing(ranks, device):
        own = _described(query, key, value, score, heads, options)
    travels = options.get("method") != "reduce"
    found = agree(ranks, own, _ALIKE if travels else (*_ALIKE, "n"), device)
    call_ = _Call(ranks, found, score, heads, options)
    if travels:
        return call_.output(query, key, value)
    names = [name for name, _ in score.named_parameters()]
    query, *parameters = whole_gradients(ranks, query, *score.parameters())
    swapped = {f"score.{name}": parameter for name, parameter in zip(names, parameters, strict=True)}
    output: Tensor = torch.func.functional_call(_Within(score), swapped, (lambda: call_.output(query, key, value),))
    return output


def _described(
    query: Tensor, key: Tensor, value: Tensor, score: Score, heads: call.Heads | None, options: Options
) -> dict[str, Any]:
    """This rank's call after checks of what this rank alone can check, for the others to hold theirs against."""
    call.check_features("query", query)
    call.check_call(key, value, score)
    call.check_alike(("query", query), ("key", key))
    call.leading(("query", query), ("key", key), ("value", value))
    method, order, impl = options.get("method", "auto"), options.get("order", "contiguous"), options.get("impl", "auto")
    if method not in METHODS:
        raise ValueError(f"method: got {method!r}; expected {', '.join(map(repr, METHODS))}")
    check_order(order)
    if impl != "auto" and impl not in _kernels():
        raise ValueError(f"impl: got {impl!r}; expected 'auto', {', '.join(map(repr, _kernels()))}")
    bias, lens = options.get("key_bias"), options.get("valid_lens")
    by_element = lens if isinstance(lens, Tensor) and lens.ndim == min(1, query.ndim - 2) else None
    return {
        "n": query.shape[-2],
        "m": key.shape[-2],
        "finite": all(largest(t) < math.inf for t in (query, key, value)),
        "method": "ring" if method == "auto" else method,
        "order": order,
        "causal": bool(options.get("causal", False)),
        "dropout": call.probability(options.get("dropout", 0.0)),
        "score": described(score),
        "dtype": str(value.dtype),
        "heads": None if heads is None else heads.number,
        "query": _shape(query),
        "key": _shape(key),
        "value": _shape(value),
        "key_bias": f"{_shape(bias[..., None])} {bias.dtype}" if isinstance(bias, Tensor) else None,
        "valid_lens": None if by_element is None else f"lengths of sum {fingerprint(by_element)}",
        "recorded": bool(watching.watchers()),
    }


def _shape(tensor: Tensor) -> str:
    """A shape, but for the length, of which each rank has its own."""
    return f"({', '.join([*map(str, tensor.shape[:-2]), '…', str(tensor.shape[-1])])})"


class _Call:
    """A call that all ranks make, once each has said how many queries and keys it has."""

    def __init__(
        self, ranks: Ranks, found: list[dict[str, Any]], score: Score, heads: call.Heads | None, options: Options
    ) -> None:
        self.ranks, self.score, self.heads, self.options = ranks, score, heads, options
        self.travels, order = options.get("method") != "reduce", options.get("order", "contiguous")
        self.key_spans = spans([each["m"] for each in found], order)
        query_spans = spans([each["n"] for each in found] if self.travels else [found[0]["n"]], order)
        self.most_queries = max(sum(map(len, own)) for own in query_spans)
        self.own_keys, self.own_queries = self.key_spans[ranks.rank], query_spans[ranks.rank if self.travels else 0]
        self.keys, self.queries = (sum(len(s) for own in side for s in own) for side in (self.key_spans, query_spans))
        self.finite = all(each["finite"] for each in found)

    def output(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """This rank's part of the output."""
        ranks, device = self.ranks, query.device
        lead = batch = call.leading(("query", query), ("key", key), ("value", value))
        if self.heads is not None:
            lead = torch.Size((*batch, self.heads.number))
        with refusing(ranks, device):
            limits, bias = self._restricted(lead, query, key)
        query, key, value = (call.rank(t, len(batch)) for t in (query, key, value))
        seen = None
        if not self.finite:  # what nobody sees is set to 0 before it is projected
            agree(ranks, {}, (), device)
            seen, live = self._seen_and_live(limits, bias, lead)
            by_head, row_by_head = (call.by_any_head(shown, len(batch)) for shown in (seen, live))
            query, key, value = call.hide(query, row_by_head), call.hide(key, by_head), call.hide(value, by_head)
        with refusing(ranks, device):
            problem = self._problem(query, key, value, bias, lead, seen)
            kernel = _kernel(problem, self.options.get("impl", "auto"))
        operands = problem.query, problem.key, problem.weight, problem.value, bias
        learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
        agree(ranks, {"features": problem.key.shape[-1], "gradients": learns}, ("features", "gradients"), device)
        shard = Shard(problem, kernel, self.own_queries, self.queries, self.keys, limits, self._causal).bare()
        layout = Layout(ranks, self.key_spans, self.travels, lead.numel() * self.most_queries)
        output = pooled(layout, shard, *operands).to(problem.value.dtype)
        if watching.watchers():
            with torch.no_grad():
                self._tell(problem, limits, bias)
        return output

    def _tell(self, problem: Problem, limits: Restrictions, bias: Tensor | None) -> None:
        """Tell those who watch of this rank's queries and all keys, which are brought here for it, without values."""
        own, _ = self._positions(limits.device)
        wholes = []
        for side in [problem.key] if bias is None else [problem.key, bias[..., None]]:
            room = side.new_zeros(*side.shape[:-2], self.keys, side.shape[-1], dtype=problem.dtype)
            wholes.append(room.index_copy_(-2, own, side.to(problem.dtype)))
        key, *biases = self.ranks.total(*wholes)
        limits = replace(limits, lens=self._lens(limits, problem.lead), key_bias=biases[0][..., 0] if biases else None)
        value = key.new_zeros(1).expand(*key.shape[:-1], 1)
        whole = replace(problem, key=key, value=value, limits=limits, packed=None, dropout=0.0, seeds=None)
        with refusing(self.ranks, limits.device):
            for watcher in watching.watchers():
                watcher.saw(whole)
        agree(self.ranks, {}, (), limits.device)

    def _positions(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Where in the sequence this rank's keys and queries lie."""
        keys, queries = (
            torch.cat([torch.arange(s.first, s.first + len(s), device=device) for s in side])
            for side in (self.own_keys, self.own_queries)
        )
        return keys, queries

    def _lens(self, limits: Restrictions, lead: torch.Size) -> Tensor | None:
        """The lengths of this rank's queries, causality in them."""
        if not self._causal:
            return limits.lens
        _, own = self._positions(limits.device)
        reach = (own + 1 + self.keys - self.queries).clamp(0, self.keys).expand(*(1,) * len(lead), -1)
        return reach if limits.lens is None else torch.minimum(limits.lens, reach)

    @property
    def _causal(self) -> bool:
        return bool(self.options.get("causal", False))

    def _restricted(self, lead: torch.Size, query: Tensor, key: Tensor) -> tuple[Restrictions, Tensor | None]:
        """Who of this rank's queries sees whom of all keys, but for causality; and the biases of this rank's keys."""
        given, (n, m), device = self.options, (query.shape[-2], key.shape[-2]), query.device
        own = restrict(lead, n, m, device, causal=given.get("causal", False), key_bias=given.get("key_bias"))
        limits = restrict(
            lead, n, self.keys, device,
            valid_lens=given.get("valid_lens"), mask=given.get("mask"), exclude=given.get("exclude"),
        )  # fmt: skip
        return limits, own.key_bias

    def _problem(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, lead: torch.Size, seen: Tensor | None
    ) -> Problem:
        """The call of this rank's queries and keys, projected."""
        if self.heads is not None:
            query, key, value = (of(t) for t, of in zip((query, key, value), self.heads.projections, strict=True))
        projected = self.score.project_key(key)
        if seen is not None:
            projected, value = call.apart(projected, seen), call.apart(value, seen)
        limits = Restrictions(query.shape[-2], key.shape[-2], None, None, False, bias, None, query.device)
        wanted = call.Wanted(dropout=self.options.get("dropout", 0.0))
        both = self.score.project_query(query), projected
        problem = call.compared(query, value, both, self.score, limits, lead, wanted)
        return replace(problem, seeds=call.draw_seeds(lead, query.device)) if problem.dropout else problem

    def _seen_and_live(self, limits: Restrictions, bias: Tensor | None, lead: torch.Size) -> tuple[Tensor, Tensor]:
        """Which of this rank's keys any query of any rank sees, and which of its queries see any key, with `lead`."""
        own_keys, _ = self._positions(limits.device)
        hidden = torch.zeros((*lead, self.keys), device=limits.device)
        if bias is not None:
            hidden[..., own_keys] = (bias.detach() == -math.inf).to(hidden.dtype)
        (hidden,) = self.ranks.total(hidden)
        whole = replace(limits, lens=self._lens(limits, lead), key_bias=torch.where(hidden > 0, -math.inf, 0.0))
        seen, live = whole.seen_and_live()
        (count,) = self.ranks.total(seen.to(torch.int64).expand(*lead, -1))
        return count[..., own_keys] > 0, live.expand(*lead, -1)


def _kernels() -> dict[str, Kernel]:
    """The implementations that work on blocks."""
    return {name: backend.kernel for name, backend in BACKENDS.items() if backend.kernel is not None}


def _kernel(problem: Problem, impl: str) -> Kernel:
    """What computes this rank's blocks: what is compiled, and before it PyTorch's fused kernel where that serves."""
    compiled = "triton" if problem.query.is_cuda else "numba"
    reasons: list[str] = []
    for name in [compiled, "chunked"] if impl == "auto" else [impl]:
        reasons = BACKENDS[name].examine(problem).reasons
        if not reasons:
            kernel = _kernels()[name]
            return flash.before(kernel) if impl == "auto" and flash.knows(problem) else kernel
    raise ValueError(f"impl: got {impl!r}, which cannot run this call: {'; '.join(reasons)}; expected 'auto'")


class _Within(nn.Module):
    """What runs a function while its score's parameters are replaced."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, run: Callable[[], Tensor]) -> Tensor:
        return run()


def whole_gradients(ranks: Ranks, *tensors: Tensor) -> list[Tensor]:
    """Tensors that all ranks have alike: the gradient of each is the sum of what all ranks make of it."""
    made: tuple[Tensor, ...] = _Whole.apply(ranks, *tensors)  # type: ignore[no-untyped-call]
    return list(made)


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.ranks.total(*grads))
