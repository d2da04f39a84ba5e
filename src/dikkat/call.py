"""How a call becomes a `Problem`: checked, hidden, projected; and how that is run.

Private; the front door is `attention`.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dikkat.backends import BACKENDS, Problem, Result, choose
from dikkat.masking import Restrictions, are_harmless, autocasts, broadcast, can_read_values, check_dense, restrict
from dikkat.problem import spread
from dikkat.scores import Dot, ScaledDot, Score, fits

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Scores that compare keys as they come.
_PLAIN = (Dot, ScaledDot)


class Wanted(NamedTuple):
    """What a call asks for beside the output, and how it is dropped."""

    dropout: float = 0.0
    wants_state: bool = False
    wants_weights: bool = False


class Limits(NamedTuple):
    """The restrictions of a call, as `attend` takes them."""

    valid_lens: Tensor | int | None
    mask: Tensor | None
    causal: bool
    key_bias: Tensor | None
    exclude: Tensor | None


def problem(query: Tensor, key: Tensor, value: Tensor, score: Score, limits: Limits, wanted: Wanted) -> Problem:
    """A call of `attend`, checked, with 0 for what nobody sees, and projected."""
    check_features("query", query)
    check_call(key, value, score)
    check_alike(("query", query), ("key", key))
    lead = leading(("query", query), ("key", key), ("value", value))
    valid_lens, mask, causal, key_bias, exclude = limits
    restricted = restrict(
        lead,
        query.shape[-2],
        key.shape[-2],
        query.device,
        valid_lens=valid_lens,
        mask=mask,
        causal=causal,
        key_bias=key_bias,
        exclude=exclude,
    )
    query, key, value = (rank(t, len(lead)) for t in (query, key, value))
    if restricted.hide():
        query, key, value = hide_all(query, key, value, score, restricted)
    return project(query, score.project_key(key), value, score, restricted, lead, wanted)


def project(
    query: Tensor,
    projected_key: Tensor,
    value: Tensor,
    score: Score,
    limits: Restrictions,
    lead: torch.Size,
    wanted: Wanted,
    packed: Tensor | None = None,
) -> Problem:
    """The problem of a query that is yet to be projected, and a key that is, and perhaps is packed as well.

    All have as many leading dimensions as `lead`, and 0 where nobody who shares a row sees it.
    """
    fits(score)
    projected, weight = score.project_query(query), score.pair_weight()
    _check_projected(projected, query, "query", score)
    _check_projected(projected_key, value, "key", score)
    if projected.shape[-1] != projected_key.shape[-1]:
        raise ValueError(
            f"query, key: came with {projected.shape[-1]} and {projected_key.shape[-1]} features after projection by "
            f"{type(score).__name__}; allowed: the same number (for different sizes: scores.Bilinear, scores.Additive)"
        )
    if weight is not None and weight.shape[-1:] != projected.shape[-1:]:
        raise ValueError(
            f"score: the pair_weight of {type(score).__name__} came with shape {tuple(weight.shape)}; "
            f"allowed: ({projected.shape[-1]},), one a projected feature"
        )
    if limits.hide() and any(t.shape[:-2] != lead for t in (projected_key, value)):
        # Where a row is shared by some who see it and some who do not, they part here.
        shared, seen = projected_key, limits.seen()
        projected_key, value = apart(projected_key, seen), apart(value, seen)
        packed = packed if projected_key is shared else None
    return Problem(
        score.pair,
        score.profile,
        projected,
        projected_key,
        None if weight is None else rank(weight, len(lead), 1),
        value,
        limits,
        lead,
        dropout=probability(wanted.dropout),
        packed=packed,
        wants_state=wanted.wants_state,
        wants_weights=wanted.wants_weights,
    )


def run(problem: Problem, impl: str) -> Result:
    """Run a problem with the implementation of a name, or with the one that "auto" chooses.

    Raises:
        ValueError: There is none of this name, or it cannot run this problem.
    """
    if impl == "auto":
        impl = choose(problem)
    elif impl not in BACKENDS:
        raise ValueError(f"impl: came {impl!r}; allowed: 'auto', {', '.join(map(repr, BACKENDS))}")
    elif reasons := BACKENDS[impl].obstacles(problem):
        raise ValueError(
            f"impl: {impl!r} cannot run this call: {'; '.join(reasons)}. Allowed: 'auto', or one that "
            "dikkat.implementations() says runs"
        )
    kernel = BACKENDS[impl]
    if problem.dropout and kernel.wants_seeds:
        problem = replace(problem, seeds=_seeds(problem.lead, problem.query.device))
    device = problem.query.device.type
    if not autocasts(device):
        return kernel.run(problem)
    with torch.autocast(device, enabled=False):  # what is accumulated in float32 is not to be halved again
        return kernel.run(problem)


def output(result: Result, value: Tensor, return_weights: bool) -> Tensor | tuple[Tensor, Tensor]:
    """What `attend` returns of a result."""
    mean = result.mean.to(value.dtype)
    return (mean, weights(result).to(value.dtype)) if return_weights else mean


def weights(result: Result) -> Tensor:
    """The weights of a result that was to have them."""
    if result.weights is None:  # pragma: no cover - an implementation that shows no weights has that as an obstacle
        raise RuntimeError("the implementation returned no weights")
    return result.weights


def check_call(key: Tensor, value: Tensor, score: Score) -> None:
    """What holds for the keys and values of every call."""
    check_score(score)
    check_features("key", key)
    check_features("value", value)
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"value: came with {value.shape[-2]} rows (shape {tuple(value.shape)}); allowed: {key.shape[-2]}, one for "
            f"each key (shape {tuple(key.shape)})"
        )
    check_alike(("key", key), ("value", value))


def check_score(score: object) -> None:
    """A score is an instance of `Score`."""
    if not isinstance(score, Score):
        hint = ": make one, with its brackets" if isinstance(score, type) and issubclass(score, Score) else ""
        came = (
            score.__name__
            if isinstance(score, type)
            else repr(score)
            if isinstance(score, str)
            else type(score).__name__
        )
        raise TypeError(f"score: came {came}; allowed: an instance of a dikkat.scores.Score{hint}")


def check_features(name: str, tensor: Tensor) -> None:
    """Queries, keys and values are dense, (..., length, features), in a type that is computed with."""
    check_dense(name, tensor)
    if tensor.dtype not in _FLOATS:
        raise TypeError(f"{name}: came with dtype {tensor.dtype}; allowed: float16, bfloat16, float32, float64")
    if tensor.ndim < 2:
        raise ValueError(f"{name}: came with shape {tuple(tensor.shape)}; allowed: (..., length, features)")


def check_alike(first: tuple[str, Tensor], second: tuple[str, Tensor]) -> None:
    """One device; and one dtype, but under autocast, where projections come back halved."""
    (name_a, a), (name_b, b) = first, second
    if a.device != b.device:
        raise ValueError(f"{name_b}: came on {b.device}; allowed: {a.device}, where {name_a} is")
    if a.dtype != b.dtype and not autocasts(a.device.type):
        raise TypeError(f"{name_b}: came with dtype {b.dtype}; allowed: {a.dtype}, that of {name_a}")


def check_rows(rows: Tensor, length: int) -> None:
    """Rows to select are indices (B',)."""
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.int64, torch.int32):
        came = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        raise TypeError(f"rows: came {came}; allowed: a torch.Tensor of int64 or int32, indices of batch elements")
    if rows.ndim != 1:
        raise ValueError(f"rows: came with shape {tuple(rows.shape)}; allowed: (number of rows,)")
    if rows.numel() and can_read_values(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < length:
        raise ValueError(f"rows: came {int(rows.min())} to {int(rows.max())}; allowed: 0 to {length - 1}")


def leading(*named: tuple[str, Tensor]) -> torch.Size:
    """The leading dimensions of a call."""
    try:
        return broadcast(*(t.shape[:-2] for _, t in named))
    except ValueError:
        came = ", ".join(f"{name} {tuple(t.shape)}" for name, t in named)
        raise ValueError(f"came with shapes {came}; allowed: leading dimensions that broadcast") from None


def rank(tensor: Tensor, lead: int, own: int = 2) -> Tensor:
    """With `lead` leading dimensions before its own."""
    return tensor[(None,) * (lead + own - tensor.ndim)]


def hide_all(query: Tensor, key: Tensor, value: Tensor, score: Score, limits: Restrictions) -> tuple[Tensor, ...]:
    """With 0 for what nobody sees, before the projections: a hidden NaN would reach their gradients as 0 · NaN.

    Keys and values that are compared as they come, and that 0 times is 0, stay: to look is quicker than to copy.
    """
    seen, live = limits.seen_and_live()
    if _all(live) and type(score) in _PLAIN and not _all(seen) and are_harmless(query, key, value):
        return query, key, value
    return hide(query, live), hide(key, seen), hide(value, seen)


def _all(shown: Tensor) -> bool:
    """Whether it can be seen that all is shown."""
    return can_read_values(shown) and bool(shown.all())


def hide(tensor: Tensor, shown: Tensor) -> Tensor:
    """With 0 in the rows that are shown to nobody who shares them: tensor (..., l, d), shown (..., l or 1)."""
    if _all(shown):
        return tensor
    for dim in range(-2, -1 - shown.ndim, -1):
        if tensor.shape[dim - 1] == 1:
            shown = shown.any(dim, keepdim=True)
    return tensor.masked_fill(~shown[..., None], 0.0)


def apart(tensor: Tensor, shown: Tensor) -> Tensor:
    """With 0 in the rows that are not shown, and a copy for each of those who share the tensor and are not shown alike.

    What is not shared has been hidden before.
    """
    lead = shown.shape[:-1]
    shared = any(own == 1 != other for own, other in zip(tensor.shape[-2 - len(lead) : -2], lead, strict=True))
    return torch.where(shown[..., None], tensor, 0.0) if shared else tensor


def probability(dropout: float) -> float:
    """A number from 0 to 1."""
    if isinstance(dropout, bool) or not isinstance(dropout, int | float):
        raise TypeError(f"dropout: came {type(dropout).__name__}; allowed: a number from 0 to 1")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout: came {dropout}; allowed: a number from 0 to 1")
    return float(dropout)


def _check_projected(projected: Tensor, rows: Tensor, name: str, score: Score) -> None:
    if projected.shape[-2] != rows.shape[-2]:
        raise ValueError(
            f"score: project_{name} of {type(score).__name__} gave {projected.shape[-2]} rows; "
            f"allowed: {rows.shape[-2]}, one for each {name}"
        )


def _seeds(lead: torch.Size, device: torch.device) -> Tensor:
    """One seed a batch element, from torch's generator."""
    drawn = torch.randint(2**62, (), device=device)
    return spread(drawn, torch.arange(lead.numel(), device=device)).reshape(lead)
