"""Validate a call, zero its hidden rows, and project queries and keys.

`lead` are a call's leading dimensions: batch and heads. A key is seen if any query sees it; a query is live if it sees
any key. Rows that are not seen or not live are hidden.
"""

from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from dikkat._core.arithmetic import derive_seeds
from dikkat._core.problem import Problem
from dikkat._core.restricting import Hiding, Restricting, align, broadcasts_to, check_causal, restrict, window_edges
from dikkat._core.restrictions import FLOATS, Restrictions, are_finite, broadcast
from dikkat._engine.addresses import check_dense, check_storage, searchsorted
from dikkat._engine.pytorch_state import PLAIN_TYPES, autocasts, can_read_values, is_transformed
from dikkat.scores import ScaledDot, Score, check_declared


class Requested(NamedTuple):
    """The results requested in addition to the output, with the dropout and the sinks."""

    dropout: float = 0.0
    wants_state: bool = False
    wants_weights: bool = False
    sink: Tensor | None = None


class Heads(NamedTuple):
    """The number of heads, and their projections of query, key and value: (..., l, d) -> (..., heads, l, d')."""

    number: int
    projections: tuple[Callable[[Tensor], Tensor], ...]

    def project(self, *tensors: Tensor) -> list[Tensor]:
        return [project(tensor) for tensor, project in zip(tensors, self.projections, strict=True)]


def problem_of_call(
    query: Tensor, key: Tensor, value: Tensor, score: Score, requested: Requested, heads: Heads | None = None,
    scales: bool = False, **restricting: Unpack[Restricting],
) -> Problem:  # fmt: skip
    """Validate a call, zero hidden rows, and project the visible ones; with `scales` the kernel multiplies by 1/√d."""
    lead = batch = check_operands(query, key, value, score)
    if heads is not None:
        lead = torch.Size((*batch, heads.number))
    restrictions = restrict(lead, query.shape[-2], key.shape[-2], query.device, **restricting)
    query, key, value = (add_dims(t, len(batch)) for t in (query, key, value))
    finite = None
    if restrictions.may_hide():
        # Before the projections, because a hidden NaN would reach their gradients as 0 · NaN. If keys are not projected
        # and everything is finite, zeroing is unnecessary, and this check is faster than a copy.
        seen_keys, live_queries = (visible_to_any_head(rows, len(batch)) for rows in restrictions.seen_and_live())
        if heads is None and _all_visible(live_queries) and _has_no_parameters(score) and not _all_visible(seen_keys):
            finite = are_finite(query, key, value) or None
        if not finite:
            query, key, value = hide(query, live_queries), hide(key, seen_keys), hide(value, seen_keys)
    if heads is not None:
        query, key, value = heads.project(query, key, value)
    scale = 1 / score.root(query) if scales and isinstance(score, ScaledDot) else None
    projected = score.project(query, key) if scale is None else (query, key)
    problem = build_problem(query, value, projected, score, restrictions, lead, requested)
    return replace(problem, scale=scale or 1.0, finite=finite)


def problem_of_sequences(
    query: Tensor, key: Tensor, value: Tensor, query_offsets: Tensor, key_offsets: Tensor, score: Score,
    requested: Requested, causal: bool, window: tuple[int | None, int | None] | None, key_bias: Tensor | None,
) -> Problem:  # fmt: skip
    """Validate a call of packed sequences, zero the hidden rows, and project queries and keys.

    Each query sees the keys `starts` ... `lens` − 1, numbered over all packed rows of keys.
    """
    lead = check_operands(query, key, value, score)
    queries, keys, device = query.shape[-2], key.shape[-2], query.device
    for name, offsets, rows in (("query_offsets", query_offsets, queries), ("key_offsets", key_offsets, keys)):
        _check_offsets(name, offsets, rows, device)
    if query_offsets.shape != key_offsets.shape:
        raise ValueError(
            f"key_offsets: got shape {tuple(key_offsets.shape)}; expected {tuple(query_offsets.shape)}: as many "
            "sequences of keys as of queries"
        )
    restrictions = restrict(lead, queries, keys, device, key_bias=key_bias)
    visible = _visible_keys(query_offsets, key_offsets.clamp(0, keys), queries, check_causal(causal), window)
    restrictions = restrictions.unchecked_copy(**{name: add_dims(edge, len(lead), 1) for name, edge in visible.items()})
    query, key, value = (add_dims(t, len(lead)) for t in (query, key, value))
    seen_keys, live_queries = restrictions.seen_and_live()
    query, key, value = hide(query, live_queries), hide(key, seen_keys), hide(value, seen_keys)
    return build_problem(query, value, score.project(query, key), score, restrictions, lead, requested)


def _check_offsets(name: str, offsets: object, rows: int, device: torch.device) -> None:
    if not isinstance(offsets, Tensor) or offsets.dtype not in (torch.int32, torch.int64):
        got = f"dtype {offsets.dtype}" if isinstance(offsets, Tensor) else type(offsets).__name__
        raise TypeError(f"{name}: got {got}; expected a torch.Tensor of int32 or int64")
    check_dense(name, offsets)
    if offsets.ndim != 1 or not len(offsets):
        raise ValueError(f"{name}: got shape {tuple(offsets.shape)}; expected (sequences + 1,)")
    if offsets.device != device:
        raise ValueError(f"{name}: got a tensor on {offsets.device}; expected the query's device, {device}")
    if can_read_values(offsets):
        sequence_lengths(name, offsets, rows)


def sequence_lengths(name: str, offsets: Tensor, rows: int) -> Tensor:
    """Return the length of each sequence; the offsets must start at 0, never decrease, and end at `rows`."""
    numbers = offsets.detach().to(torch.int64)
    falls, (first, last) = numbers[1:] < numbers[:-1], numbers[[0, -1]].tolist()
    if first != 0:
        raise ValueError(f"{name}: got {first} as the first offset; expected 0")
    if bool(falls.any()):
        fall = int(falls.nonzero()[0])
        raise ValueError(
            f"{name}: got {int(numbers[fall])} and then {int(numbers[fall + 1])}, at {fall + 1}; expected numbers that "
            "never fall: the start of each sequence, then the end of the last one"
        )
    if last != rows:
        raise ValueError(f"{name}: got {last} as the last offset; expected {rows}, the number of rows")
    return numbers.diff()


def _visible_keys(
    query_offsets: Tensor, key_offsets: Tensor, queries: int, causal: bool, window: tuple[int | None, int | None] | None
) -> dict[str, Tensor]:
    """Return each query's first visible key (`starts`) and one past its last (`lens`), each (queries,)."""
    row = torch.arange(queries, device=query_offsets.device)
    query_offsets, key_offsets = (offsets.to(torch.int64) for offsets in (query_offsets, key_offsets))
    sequence = searchsorted(query_offsets[1:], row, right=True).clamp(max=len(query_offsets) - 2)
    begin, past = key_offsets[:-1][sequence], key_offsets[1:][sequence]
    position = past - query_offsets[1:][sequence] + row  # begin + i + m − n: both sequences end together
    edges = {"starts": begin, "lens": past} | window_edges(window, position, begin, past)
    return edges | window_edges((None, 0), position, begin, past) if causal else edges


class Prepared(NamedTuple):
    """A prepared memory's keys in a kernel's packed layout, or None if no kernel needs it."""

    packed: Tensor | None


def problem_of_prepared(
    query: Tensor, key: Tensor, value: Tensor, score: Score, requested: Requested, prepared: Prepared,
    valid_lens: Tensor | None, **hiding: Unpack[Hiding],
) -> Problem:  # fmt: skip
    """Build the problem of a query and a prepared memory, whose keys are projected, and 0 beyond their lengths."""
    lead = lead_of(("query", query), ("memory.key", key), ("memory.value", value))
    restrictions = restrict(lead, query.shape[-2], key.shape[-2], query.device, **hiding)
    call_hides_keys = restrictions.may_hide()
    if valid_lens is not None:  # aligned with the first dimension of the memory, not of the call
        memory_lens = add_dims(align(valid_lens, key.shape[:-2]), len(lead), 1)
        lens = memory_lens if restrictions.lens is None else torch.minimum(memory_lens, restrictions.lens)
        restrictions = replace(restrictions, lens=lens)
    query, key, value = (add_dims(t, len(lead)) for t in (query, key, value))
    if restrictions.may_hide():
        query = hide(query, restrictions.live_queries())
    if call_hides_keys:
        seen_keys = restrictions.seen_keys()
        key, value = hide(key, seen_keys), hide(value, seen_keys)
    packed = None if prepared.packed is None else add_dims(prepared.packed, len(lead), 3)
    return build_problem(query, value, (score.project_query(query), key), score, restrictions, lead, requested, packed)


def build_problem(
    query: Tensor, value: Tensor, projected: tuple[Tensor, Tensor], score: Score, restrictions: Restrictions,
    lead: torch.Size, requested: Requested, packed: Tensor | None = None,
) -> Problem:  # fmt: skip
    """Build the problem from a projected query and key; `query` is the query before its projection.

    All tensors have `len(lead)` leading dimensions. Rows that no batch element sees are 0.
    """
    check_declared(score)
    (projected_query, projected_key), weight = projected, score.pair_weight()
    _check_projected(projected_query, query, "query", score)
    _check_projected(projected_key, value, "key", score)
    if projected_query.shape[-1] != projected_key.shape[-1]:
        raise ValueError(
            f"query, key: got {projected_query.shape[-1]} and {projected_key.shape[-1]} features after projection by "
            f"{type(score).__name__}; expected the same number (for different sizes: scores.Bilinear, scores.Additive)"
        )
    if weight is not None and weight.shape[-1:] != projected_query.shape[-1:]:
        raise ValueError(
            f"score: got a pair_weight of {type(score).__name__} with shape {tuple(weight.shape)}; "
            f"expected ({projected_query.shape[-1]},), one for each projected feature"
        )
    if restrictions.may_hide() and any(t.shape[:-2] != lead for t in (projected_key, value)):
        # Copy a broadcast row for each batch element if only some of them see it.
        keys_before, seen_keys = projected_key, restrictions.seen_keys()
        projected_key, value = copy_shared(projected_key, seen_keys), copy_shared(value, seen_keys)
        packed = packed if projected_key is keys_before else None
    bias = restrictions.bias
    return Problem(
        score.pair, score.profile, projected_query, projected_key,
        None if weight is None else add_dims(weight, len(lead), 1), value, restrictions, lead,
        softcap=score.softcap or 0.0, dropout=probability(requested.dropout), packed=packed,
        sink=None if requested.sink is None else _check_sink(requested.sink, query, lead),
        wants_state=requested.wants_state or requested.sink is not None, wants_weights=requested.wants_weights,
        wants_bias_grad=bias is not None and (is_transformed() or (torch.is_grad_enabled() and bias.requires_grad)),
    )  # fmt: skip


def _check_sink(sink: Tensor, query: Tensor, lead: torch.Size) -> Tensor:
    check_dense("sink", sink)
    if sink.dtype not in FLOATS:
        raise TypeError(f"sink: got dtype {sink.dtype}; expected a floating-point type of 16 bits or more")
    if sink.device != query.device:
        raise ValueError(f"sink: got a tensor on {sink.device}; expected the query's device, {query.device}")
    if not broadcasts_to(sink.shape, lead):
        raise ValueError(f"sink: got shape {tuple(sink.shape)}; expected one that broadcasts to {tuple(lead)}")
    return add_dims(sink, len(lead), 0)


def check_operands(query: Tensor, key: Tensor, value: Tensor, score: Score) -> torch.Size:
    """Validate the operands of a call; return their common leading dimensions."""
    check_features("query", query)
    check_call(key, value, score)
    check_alike(("query", query), ("key", key))
    return lead_of(("query", query), ("key", key), ("value", value))


def check_call(key: Tensor, value: Tensor, score: Score) -> None:
    """Validate a call's key, value and score."""
    check_score(score)
    check_features("key", key)
    check_features("value", value)
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"value: got {value.shape[-2]} rows (shape {tuple(value.shape)}); expected {key.shape[-2]}, one for "
            f"each key (shape {tuple(key.shape)})"
        )
    check_alike(("key", key), ("value", value))


def check_score(score: object) -> None:
    if not isinstance(score, Score):
        hint = ": call the class to make one" if isinstance(score, type) and issubclass(score, Score) else ""
        kind = score if isinstance(score, type) else type(score)
        got = repr(score) if isinstance(score, str) else kind.__name__
        raise TypeError(f"score: got {got}; expected an instance of a dikkat.scores.Score subclass{hint}")


def check_features(name: str, tensor: Tensor) -> None:
    """Validate a query, key or value: dense, (..., length, features), of a supported dtype."""
    check_dense(name, tensor)
    if type(tensor) in PLAIN_TYPES and not (torch.compiler.is_compiling() or is_transformed()):
        check_storage(name, tensor)
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{name}: got dtype {tensor.dtype}; expected float16, bfloat16, float32 or float64")
    if tensor.ndim < 2:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; expected (..., length, features)")


def check_alike(first: tuple[str, Tensor], second: tuple[str, Tensor]) -> None:
    """Validate that two tensors share a device and, except under autocast, a dtype."""
    (name_a, a), (name_b, b) = first, second
    if a.device != b.device:
        raise ValueError(f"{name_b}: got a tensor on {b.device}; expected {a.device}, where {name_a} is")
    if a.dtype != b.dtype and not autocasts(a.device.type):
        raise TypeError(f"{name_b}: got dtype {b.dtype}; expected {a.dtype}, that of {name_a}")


def check_rows(rows: Tensor, length: int) -> None:
    """Validate the rows to select: indices (B',) of `length` batch elements."""
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.int64, torch.int32):
        got = f"dtype {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        raise TypeError(f"rows: got {got}; expected a torch.Tensor of int64 or int32, indices of batch elements")
    if rows.ndim != 1:
        raise ValueError(f"rows: got shape {tuple(rows.shape)}; expected (number of rows,)")
    if rows.numel() and can_read_values(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < length:
        raise ValueError(f"rows: got {int(rows.min())} to {int(rows.max())}; expected 0 to {length - 1}")


def lead_of(*named: tuple[str, Tensor]) -> torch.Size:
    """Return the common leading dimensions of named tensors (..., l, d)."""
    try:
        return broadcast(*(t.shape[:-2] for _, t in named))
    except ValueError:
        names, shapes = ", ".join(name for name, _ in named), ", ".join(str(tuple(t.shape)) for _, t in named)
        raise ValueError(f"{names}: got shapes {shapes}; expected leading dimensions that broadcast") from None


def add_dims(tensor: Tensor, lead: int, trailing: int = 2) -> Tensor:
    """Prepend singleton dimensions until `lead` dimensions precede the last `trailing` ones."""
    return tensor[(None,) * (lead + trailing - tensor.ndim)]


def visible_to_any_head(visible: Tensor, batch_dims: int) -> Tensor:
    """Return flags (..., l), True for rows visible to at least one head, from flags (..., heads or 1, l).

    The dimension of heads follows `batch_dims` dimensions. Flags without it are returned as they are.
    """
    return visible.any(-2) if visible.ndim == batch_dims + 2 else visible


def _has_no_parameters(score: Score) -> bool:
    """True if a score compares unprojected queries and keys, so that no projection's gradient multiplies them."""
    return score.pair == "inner" and score.projection != "any" and next(score.parameters(), None) is None


def _all_visible(visible: Tensor) -> bool:
    return can_read_values(visible) and bool(visible.all())


def hide(tensor: Tensor, visible: Tensor) -> Tensor:
    """Zero the rows hidden from every batch element that shares them: tensor (..., l, d), visible (..., l or 1)."""
    if _all_visible(visible):
        return tensor
    for dim in range(-2, -1 - visible.ndim, -1):
        if tensor.shape[dim - 1] == 1:
            visible = visible.any(dim, keepdim=True)
    return tensor.masked_fill(~visible[..., None], 0.0)


def copy_shared(tensor: Tensor, visible: Tensor) -> Tensor:
    """Copy a tensor that broadcasts over batch elements, and zero the hidden rows of each copy.

    Other tensors are returned unchanged: their hidden rows are already zero.
    """
    lead = visible.shape[:-1]
    copies = any(size == 1 != count for size, count in zip(tensor.shape[-2 - len(lead) : -2], lead, strict=True))
    return torch.where(visible[..., None], tensor, 0.0) if copies else tensor


def probability(dropout: float) -> float:
    """Validate a dropout probability and return it as a float."""
    if type(dropout) is not float and (isinstance(dropout, bool) or not isinstance(dropout, Real)):
        raise TypeError(f"dropout: got {type(dropout).__name__}; expected a number from 0 to 1")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout: got {dropout}; expected a number from 0 to 1")
    return float(dropout)


def _check_projected(projected: Tensor, rows: Tensor, name: str, score: Score) -> None:
    if projected.shape[-2] != rows.shape[-2]:
        raise ValueError(
            f"score: got {projected.shape[-2]} rows from project_{name} of {type(score).__name__}; "
            f"expected {rows.shape[-2]}, one for each {name}"
        )


def draw_seeds(lead: torch.Size, device: torch.device) -> Tensor:
    seed = torch.randint(2**62, (), device=device)
    return derive_seeds(seed, torch.arange(lead.numel(), device=device)).reshape(lead)
