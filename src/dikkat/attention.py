"""The front door: compare a query with every key, normalise over the keys, average the values."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypedDict, Unpack, overload

import torch
from torch import Tensor

from dikkat.kernels import KERNELS, Problem, Result, choose
from dikkat.kernels.common import State, merge, spread
from dikkat.masking import Restrictions, restrict
from dikkat.scores import Score

__all__ = [
    "Implementation",
    "Memory",
    "State",
    "attend",
    "attend_memory",
    "attention_state",
    "attention_weights",
    "implementations",
    "merge",
    "prepare",
]


class Restricted(TypedDict, total=False):
    """The keyword arguments that every layer passes on to `attend`."""

    mask: Tensor | None
    causal: bool
    key_bias: Tensor | None
    exclude: Tensor | None
    return_weights: bool
    impl: str


class _Options(TypedDict, total=False):
    """What `attend` and `attend_memory` take and does not change the type that they return."""

    mask: Tensor | None
    causal: bool
    key_bias: Tensor | None
    exclude: Tensor | None
    dropout: float
    impl: str


class _AllOptions(_Options, total=False):
    valid_lens: Tensor | int | None


class Implementation(NamedTuple):
    """One way to compute a call.

    Attributes:
        name: What `impl=` takes.
        runs: Whether it can run the call.
        reasons: Why it cannot; empty where it can.
    """

    name: str
    runs: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Memory:
    """Keys and values that are attended to many times, projected once. Made by `prepare`.

    Attributes:
        score: The scoring function, which also projects the queries to come.
        key: (..., m, h), projected; 0 past the length.
        value: (..., m, d_v); 0 past the length.
        valid_lens: None, or (B,) integers (a scalar where there is no leading dimension).
    """

    score: Score
    key: Tensor
    value: Tensor
    valid_lens: Tensor | None

    def select(self, rows: Tensor) -> "Memory":
        """The memory of some batch elements, in any order and number: how a beam search reorders.

        Args:
            rows: (B',) integers, indices into the first leading dimension.

        Raises:
            ValueError: The memory has no leading dimension.
        """
        if self.key.ndim < 3:
            raise ValueError("rows: this memory has no leading dimension to select from; prepare keys of (B, m, d_k)")

        def take(tensor: Tensor) -> Tensor:
            return tensor.index_select(0, rows)

        lens = self.valid_lens
        return replace(
            self, key=take(self.key), value=take(self.value), valid_lens=None if lens is None else take(lens)
        )


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    return_weights: Literal[False] = False,
    **options: Unpack[_AllOptions],
) -> Tensor: ...
@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    return_weights: Literal[True],
    **options: Unpack[_AllOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attend(
    query: Tensor, key: Tensor, value: Tensor, *, score: Score, return_weights: bool, **options: Unpack[_AllOptions]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    valid_lens: Tensor | int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention: for each query the average of the values, weighted by how its score with their keys compares.

    $$ o_i = \sum_j w_{ij} v_j, \qquad
       w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    V_i are the keys that query i may see: the intersection of all restrictions. A row that sees no key has weights 0,
    output 0 and gradient 0. Keys hidden from a query have no effect on it, whatever they hold.

    Leading dimensions broadcast; heads are the last of them, (B, H, n, d). Float16 and bfloat16 are accumulated in
    float32. Under autocast attention runs in the types that come, which may then differ.

    Args:
        query: (..., n, d_q), floating point.
        key: (..., m, d_k), of the same dtype.
        value: (..., m, d_v), of the same dtype.
        score: The scoring function a, of `dikkat.scores`.
        valid_lens: (B,) or (B, n) integers in 0 ... m, aligned with the first leading dimension and shared by the heads
            (without leading dimensions: a scalar or (n,)): key j takes part where j < valid_len.
        mask: Booleans that broadcast to (..., n, m); True takes part.
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m), b, added to the scores: the log of a sample weight. −∞ hides a key.
        exclude: (..., n) integers: one key index that a row must not see, −1 for none (leave-one-out).
        dropout: The probability in 0 ... 1 that a normalised weight is set to 0; the others grow by 1/(1 − dropout).
        return_weights: Whether to return the weights too, as they are before dropout.
        impl: "auto", or the name of one implementation, which then runs or raises.

    Returns:
        (..., n, d_v) in the dtype of `value`; with `return_weights` the pair (output, weights (..., n, m)).

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit, or an implementation that cannot run this call.

    Source:
        Bahdanau, Cho and Bengio 2015, section 3.1; Vaswani et al. 2017, section 3.2.

    Example:
        >>> import torch, dikkat
        >>> q, k, v = torch.zeros(2, 1, 5), torch.zeros(2, 3, 5), torch.arange(6.0).reshape(2, 3, 1)
        >>> dikkat.attend(q, k, v, score=dikkat.scores.ScaledDot(), valid_lens=torch.tensor([2, 3])).flatten()
        tensor([0.5000, 4.0000])
    """
    problem = _project(
        query, key, value, score,
        valid_lens=valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude, dropout=dropout,
        wants_weights=return_weights,
    )  # fmt: skip
    return _output(_run(problem, impl), value, return_weights)


def attention_state(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    valid_lens: Tensor | int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
) -> State:
    r"""The pooled result as a state, which `merge` joins with the state over other keys.

    $$ \mu_i = \sum_j w_{ij} v_j, \qquad \ell_i = \log \sum_{j \in V_i} e^{a(q_i, k_j) + b_j} $$

    The log-sum-exp is that of the true scores, before dropout.

    Args:
        query: As in `attend`, and so are all others.
        key: (..., m, d_k).
        value: (..., m, d_v).
        score: The scoring function.
        valid_lens: (B,) or (B, n).
        mask: (..., n, m).
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m).
        exclude: (..., n).
        dropout: On the normalised weights.
        impl: "auto" or a name.

    Returns:
        `State(mean (..., n, d_v), lse (..., n))`, float32 or float64; a row with no key has mean 0 and lse −∞.

    Raises:
        TypeError: As in `attend`.
        ValueError: As in `attend`.

    Example:
        >>> import torch, dikkat
        >>> x = torch.zeros(3, 2)
        >>> dikkat.attention_state(x, x, x, score=dikkat.scores.Dot()).lse  # log 3
        tensor([1.0986, 1.0986, 1.0986])
    """
    problem = _project(
        query, key, value, score,
        valid_lens=valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude, dropout=dropout,
        wants_state=True,
    )  # fmt: skip
    result = _run(problem, impl)
    if result.lse is None:  # pragma: no cover - an implementation without states has that as an obstacle
        raise RuntimeError("the implementation returned no log-sum-exp")
    return State(result.mean, result.lse)


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    score: Score,
    valid_lens: Tensor | int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    r"""The weights alone.

    $$ w_{ij} = \frac{[j \in V_i]\, e^{a(q_i, k_j) + b_j}}{\sum_{l \in V_i} e^{a(q_i, k_l) + b_l}} $$

    Args:
        query: As in `attend`, and so are all others.
        key: (..., m, d_k).
        score: The scoring function.
        valid_lens: (B,) or (B, n).
        mask: (..., n, m).
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m).
        exclude: (..., n).
        impl: "auto" or a name.

    Returns:
        (..., n, m) in the dtype of `query`; each row sums to 1, or to 0 where it sees no key.

    Raises:
        TypeError: As in `attend`.
        ValueError: As in `attend`.

    Example:
        >>> import torch, dikkat
        >>> dikkat.attention_weights(torch.zeros(1, 2), torch.zeros(4, 2), score=dikkat.scores.Dot(), valid_lens=2)
        tensor([[0.5000, 0.5000, 0.0000, 0.0000]])
    """
    _check_features("key", key)
    problem = _project(
        query, key, key.new_empty((*key.shape[:-1], 0)), score,
        valid_lens=valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude, wants_weights=True,
    )  # fmt: skip
    return _weights(_run(problem, impl)).to(query.dtype)


def prepare(key: Tensor, value: Tensor, *, score: Score, valid_lens: Tensor | int | None = None) -> Memory:
    """Project keys once, for the many queries to come.

    Args:
        key: (..., m, d_k), floating point.
        value: (..., m, d_v), of the same dtype.
        score: The scoring function.
        valid_lens: (B,) integers in 0 ... m, aligned with the first leading dimension (without one: a scalar).

    Returns:
        A `Memory`, for `attend_memory`.

    Raises:
        TypeError: An argument of the wrong kind or dtype.
        ValueError: Shapes, devices or values that do not fit.

    Example:
        >>> import torch, dikkat
        >>> score = dikkat.scores.Additive(key_size=3, query_size=5, num_hiddens=7)
        >>> memory = dikkat.prepare(torch.zeros(2, 11, 3), torch.zeros(2, 11, 13), score=score)
        >>> dikkat.attend_memory(torch.zeros(2, 1, 5), memory).shape
        torch.Size([2, 1, 13])
    """
    _check_call(key, value, score)
    lead = _lead(("key", key), ("value", value))
    limits = restrict(lead, 1, key.shape[-2], key.device, valid_lens=valid_lens)
    rank = len(lead)
    key, value = _rank(key, rank), _rank(value, rank)
    if limits.hide():
        seen = limits.seen()
        key, value = _hide(key, seen), _hide(value, seen)
    # `select` takes rows of all of them, so none may be broadcast over the first leading dimension.
    projected, value = (t.expand(lead[:1] + t.shape[1:]) if rank else t for t in (score.project_key(key), value))
    return Memory(score, projected, value, None if limits.lens is None else limits.lens.reshape(lead[:1]))


@overload
def attend_memory(
    query: Tensor, memory: Memory, *, return_weights: Literal[False] = False, **options: Unpack[_Options]
) -> Tensor: ...
@overload
def attend_memory(
    query: Tensor, memory: Memory, *, return_weights: Literal[True], **options: Unpack[_Options]
) -> tuple[Tensor, Tensor]: ...
@overload
def attend_memory(
    query: Tensor, memory: Memory, *, return_weights: bool, **options: Unpack[_Options]
) -> Tensor | tuple[Tensor, Tensor]: ...
def attend_memory(
    query: Tensor,
    memory: Memory,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    impl: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """`attend` over a memory: what a decoder calls at each step.

    Args:
        query: (..., n, d_q).
        memory: Made by `prepare`, with its lengths.
        mask: As in `attend`, and so are all others.
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m).
        exclude: (..., n).
        dropout: On the normalised weights.
        return_weights: Whether to return the weights too.
        impl: "auto" or a name.

    Returns:
        (..., n, d_v), or the pair (output, weights (..., n, m)).

    Raises:
        TypeError: As in `attend`.
        ValueError: As in `attend`.

    Example:
        >>> import torch, dikkat
        >>> memory = dikkat.prepare(torch.zeros(2, 3, 5), torch.ones(2, 3, 1), score=dikkat.scores.Dot())
        >>> dikkat.attend_memory(torch.zeros(1, 1, 5), memory.select(torch.tensor([1]))).item()
        1.0
    """
    if not isinstance(memory, Memory):
        raise TypeError(f"memory: came {type(memory).__name__}; allowed: a Memory, as dikkat.prepare makes")
    _check_features("query", query)
    _check_alike(("query", query), ("memory.value", memory.value))
    lead = _lead(("query", query), ("memory.key", memory.key), ("memory.value", memory.value))
    limits = restrict(
        lead, query.shape[-2], memory.key.shape[-2], query.device,
        valid_lens=memory.valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude,
    )  # fmt: skip
    query, key, value = (_rank(t, len(lead)) for t in (query, memory.key, memory.value))
    if limits.hide():
        query = _hide(query, limits.live())
    if causal or any(t is not None for t in (mask, key_bias, exclude)):  # past the lengths, `prepare` has done it
        seen = limits.seen()
        key, value = _hide(key, seen), _hide(value, seen)
    problem = _problem(query, key, value, memory.score, limits, lead, dropout, wants_weights=return_weights)
    return _output(_run(problem, impl), value, return_weights)


def implementations(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Score,
    valid_lens: Tensor | int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
    return_state: bool = False,
) -> list[Implementation]:
    """Which implementations could run a call, the one that `impl="auto"` picks first, and why the others could not.

    Args:
        query: As in `attend`, and so are all others.
        key: (..., m, d_k).
        value: (..., m, d_v).
        score: The scoring function.
        valid_lens: (B,) or (B, n).
        mask: (..., n, m).
        causal: Query i sees keys j <= i + m − n.
        key_bias: (..., m).
        exclude: (..., n).
        dropout: On the normalised weights.
        return_weights: Whether the call is to return weights.
        return_state: Whether the call is `attention_state`.

    Returns:
        One `Implementation(name, runs, reasons)` each.

    Raises:
        TypeError: As in `attend`.
        ValueError: As in `attend`.

    Example:
        >>> import torch, dikkat
        >>> x = torch.zeros(1, 2, 8)
        >>> [i.name for i in dikkat.implementations(x, x, x, score=dikkat.scores.Dot()) if i.runs]
        ['sdpa', 'reference', 'chunked']
    """
    problem = _project(
        query, key, value, score,
        valid_lens=valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude, dropout=dropout,
        wants_weights=return_weights, wants_state=return_state,
    )  # fmt: skip
    first = choose(problem)
    names = sorted(KERNELS, key=lambda name: name != first)
    found = ((name, tuple(KERNELS[name].obstacles(problem))) for name in names)
    return [Implementation(name, not reasons, reasons) for name, reasons in found]


def _project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score: Score,
    *,
    valid_lens: Tensor | int | None,
    mask: Tensor | None,
    causal: bool,
    key_bias: Tensor | None,
    exclude: Tensor | None,
    dropout: float = 0.0,
    wants_state: bool = False,
    wants_weights: bool = False,
) -> Problem:
    """Check a call, set what nobody sees to 0, and project."""
    _check_features("query", query)
    _check_call(key, value, score)
    _check_alike(("query", query), ("key", key))
    lead = _lead(("query", query), ("key", key), ("value", value))
    limits = restrict(
        lead, query.shape[-2], key.shape[-2], query.device,
        valid_lens=valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude,
    )  # fmt: skip
    query, key, value = (_rank(t, len(lead)) for t in (query, key, value))
    if limits.hide():
        # Before the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
        seen = limits.seen()
        query, key, value = _hide(query, limits.live()), _hide(key, seen), _hide(value, seen)
    return _problem(query, score.project_key(key), value, score, limits, lead, dropout, wants_state, wants_weights)


def _problem(
    query: Tensor,
    projected_key: Tensor,
    value: Tensor,
    score: Score,
    limits: Restrictions,
    lead: torch.Size,
    dropout: float,
    wants_state: bool = False,
    wants_weights: bool = False,
) -> Problem:
    projected = score.project_query(query)
    if projected.shape[-1] != projected_key.shape[-1]:
        raise ValueError(
            f"query, key: came with {projected.shape[-1]} and {projected_key.shape[-1]} features after projection by "
            f"{type(score).__name__}; allowed: the same number (for different sizes: scores.Bilinear, scores.Additive)"
        )
    weight = score.pair_weight()
    weight = None if weight is None else _rank(weight, len(lead), 1)
    return Problem(
        score.pair, score.profile, projected, projected_key, weight, value,
        limits, _probability(dropout), _seeds(lead, query.device) if dropout else None, wants_state, wants_weights,
    )  # fmt: skip


def _run(problem: Problem, impl: str) -> Result:
    if impl == "auto":
        impl = choose(problem)
    elif impl not in KERNELS:
        raise ValueError(f"impl: came {impl!r}; allowed: 'auto', {', '.join(map(repr, KERNELS))}")
    reasons = KERNELS[impl].obstacles(problem)
    if reasons:
        raise ValueError(
            f"impl: {impl!r} cannot run this call: {'; '.join(reasons)}. Allowed: 'auto', or one that "
            "dikkat.implementations() says runs"
        )
    device = problem.query.device.type
    if not torch.is_autocast_enabled(device):
        return KERNELS[impl].run(problem)
    with torch.autocast(device, enabled=False):  # what is accumulated in float32 is not to be halved again
        return KERNELS[impl].run(problem)


def _output(result: Result, value: Tensor, return_weights: bool) -> Tensor | tuple[Tensor, Tensor]:
    mean = result.mean.to(value.dtype)
    return (mean, _weights(result).to(value.dtype)) if return_weights else mean


def _weights(result: Result) -> Tensor:
    if result.weights is None:  # pragma: no cover - an implementation that shows no weights has that as an obstacle
        raise RuntimeError("the implementation returned no weights")
    return result.weights


def hide_unseen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    heads: int,
    valid_lens: Tensor | int | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_bias: Tensor | None = None,
    exclude: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with 0 in the rows that no head has a use for: for layers that project before they attend.

    Args:
        query: (B, n, d_q).
        key: (B, m, d_k).
        value: (B, m, d_v).
        heads: The leading dimension that projection will add, after B.
        valid_lens: As in `attend` on (B, heads, n, d), and so are all others.
        mask: (B, heads or 1, n, m).
        causal: Query i sees keys j <= i + m − n.
        key_bias: (B, heads or 1, m).
        exclude: (B, heads or 1, n).
    """
    _check_features("query", query)
    _check_features("key", key)
    _check_features("value", value)
    lead = _lead(("query", query), ("key", key), ("value", value))
    limits = restrict(
        torch.Size((*lead, heads)), query.shape[-2], key.shape[-2], query.device,
        valid_lens=valid_lens, mask=mask, causal=causal, key_bias=key_bias, exclude=exclude,
    )  # fmt: skip
    if not limits.hide():
        return query, key, value
    seen, live = (_over_heads(shown, len(lead)) for shown in (limits.seen(), limits.live()))
    return _hide(query, live), _hide(key, seen), _hide(value, seen)


def _over_heads(shown: Tensor, lead: int) -> Tensor:
    return shown.any(-2) if shown.ndim == lead + 2 else shown


def _check_call(key: Tensor, value: Tensor, score: Score) -> None:
    """What holds for the keys and values of every call."""
    if not isinstance(score, Score):
        hint = ": make one, with its brackets" if isinstance(score, type) and issubclass(score, Score) else ""
        came = score.__name__ if isinstance(score, type) else type(score).__name__
        raise TypeError(f"score: came {came}; allowed: an instance of a dikkat.scores.Score{hint}")
    _check_features("key", key)
    _check_features("value", value)
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"value: came with {value.shape[-2]} rows (shape {tuple(value.shape)}); allowed: {key.shape[-2]}, one for "
            f"each key (shape {tuple(key.shape)})"
        )
    _check_alike(("key", key), ("value", value))


def _check_features(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: came {type(tensor).__name__}; allowed: a torch.Tensor")
    if not tensor.is_floating_point():
        raise TypeError(f"{name}: came with dtype {tensor.dtype}; allowed: float16, bfloat16, float32, float64")
    if tensor.ndim < 2:
        raise ValueError(f"{name}: came with shape {tuple(tensor.shape)}; allowed: (..., length, features)")


def _check_alike(first: tuple[str, Tensor], second: tuple[str, Tensor]) -> None:
    """One device; and one dtype, but under autocast, where projections come back halved."""
    (name_a, a), (name_b, b) = first, second
    if a.device != b.device:
        raise ValueError(f"{name_b}: came on {b.device}; allowed: {a.device}, where {name_a} is")
    if a.dtype != b.dtype and not torch.is_autocast_enabled(a.device.type):
        raise TypeError(f"{name_b}: came with dtype {b.dtype}; allowed: {a.dtype}, that of {name_a}")


def _lead(*named: tuple[str, Tensor]) -> torch.Size:
    """The leading dimensions of a call."""
    try:
        return torch.Size(torch.broadcast_shapes(*(t.shape[:-2] for _, t in named)))
    except RuntimeError:
        came = ", ".join(f"{name} {tuple(t.shape)}" for name, t in named)
        raise ValueError(f"came with shapes {came}; allowed: leading dimensions that broadcast") from None


def _rank(tensor: Tensor, lead: int, own: int = 2) -> Tensor:
    """With `lead` leading dimensions before its own."""
    return tensor[(None,) * (lead + own - tensor.ndim)]


def _hide(tensor: Tensor, shown: Tensor) -> Tensor:
    """With 0 in the rows that are not shown to anyone who shares them: tensor (..., l, d), shown (..., l or 1)."""
    for dim in range(-2, -1 - shown.ndim, -1):
        if tensor.shape[dim - 1] == 1:
            shown = shown.any(dim, keepdim=True)
    return tensor.masked_fill(~shown[..., None], 0.0)


def _probability(dropout: float) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float):
        raise TypeError(f"dropout: came {type(dropout).__name__}; allowed: a number from 0 to 1")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout: came {dropout}; allowed: a number from 0 to 1")
    return float(dropout)


def _seeds(lead: torch.Size, device: torch.device) -> Tensor:
    """One seed a batch element, from torch's generator."""
    drawn = torch.randint(2**62, (), device=device)
    return spread(drawn, torch.arange(lead.numel(), device=device)).reshape(lead)
