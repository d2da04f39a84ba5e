"""Edits of attention weights. Each edit is one function on rows of logits, for outputs and for recordings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dikkat._core.arithmetic import dropout_scale, pool
from dikkat._core.dispatch import run_problem
from dikkat._core.problem import Problem, Result
from dikkat._core.softmax import softmax_weights
from dikkat._engine.addresses import exact
from dikkat.inspection.request import find_keys
from dikkat.inspection.row_blocks import (
    blocks,
    hidden_by_bias,
    numbers_of_a_row,
    row_logits,
    select_heads,
    select_keys,
    select_rows,
)
from dikkat.state import add_sink, merge

# The position of a sink's column, which is no key.
_SINK = -1


class Edit:
    """A change of the weights of some heads.

    Attributes:
        heads: The edited heads, counted from 0, or from the end if negative; None for all.
    """

    heads: tuple[int, ...] | None

    @property
    def is_shown(self) -> bool:
        """Whether a recording shows the edit."""
        return True

    def rows(self, queries: Tensor) -> Tensor:
        """Return which queries are edited, (r,) booleans, by their positions."""
        return torch.ones(len(queries), dtype=torch.bool)

    def apply(self, logits: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits (..., r, m) of the edited weights, and which rows could not be edited (..., r).

        Logits are −∞ for hidden pairs. The positions of queries (r,) and keys (m,) are on the CPU.
        """
        raise NotImplementedError

    def of_call(self, name: str, call: int) -> "Edit":
        """Return the edit for a module's call, counted from 0."""
        return self

    def of_heads(self, heads: Tensor, count: int) -> "Edit":
        """Return the edit for logits of these heads of a call with `count` heads."""
        return self

    def check_applied(self) -> None:
        """Raise `ValueError` if no call had what the edit names."""


@dataclass(frozen=True)
class Gate(Edit):
    """Multiplies the output of heads by a factor between the output itself (1) and 0, or with `mean` its mean (0).

    Attributes:
        mean: Whether the mean over the text's queries replaces the output.
        factors: Returns the factors (B or 1, H) of a call with H heads; None: 0 for the edited heads.
    """

    heads: tuple[int, ...] | None
    mean: bool = False
    factors: Callable[[int], Tensor] | None = None

    @property
    def is_shown(self) -> bool:
        """Whether a recording shows the edit: only weights of 0 do, as no weights of one row have a mean output."""
        return not self.mean and self.factors is None

    def rows(self, queries: Tensor) -> Tensor:
        """Return that no row needs other weights."""
        return torch.zeros(len(queries), dtype=torch.bool)

    def apply(self, logits: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits unchanged, since `gated` edits outputs and weights."""
        return logits, None


def gated(tensor: Tensor, edits: "Edits", count: int, keys: int, live: Callable[[bool], Tensor]) -> Tensor:
    """Return outputs or weights (..., H, n, d) after all gates.

    `live(is_self)` returns which queries count in means, (..., n).
    """
    for edit, first_query, first_key, _ in edits:
        if not isinstance(edit, Gate):
            continue
        if edit.mean and (first_query or (tensor.shape[-2] == 1 < keys)):
            raise ValueError(
                "mean: got a call with a part of the text's queries, as in `generate`; expected a call with all "
                "queries, or mean=False"
            )
        numbers, base = head_numbers(edit, count), torch.zeros((), dtype=tensor.dtype, device=tensor.device)
        if edit.factors is not None:
            factor = edit.factors(count)
        elif numbers is None:
            factor = torch.zeros(1, count)
        else:
            factor = torch.tensor([[float(head not in numbers) for head in range(count)]])
        factor = factor.to(tensor)[..., None, None]  # (B or 1, H, 1, 1)
        factor = factor if tensor.ndim > 3 else factor[:, 0] if tensor.ndim > 2 else factor[0, 0]
        if edit.mean:
            share = live(first_key >= 0).float().unsqueeze(-1).expand(*tensor.shape[:-1], 1)
            base = (tensor * share).sum(-2, keepdim=True) / share.sum(-2, keepdim=True).clamp(min=1)
            base = base.to(tensor.dtype)
        tensor = torch.where(factor == 0, base, tensor * factor + (1 - factor) * base)
    return tensor


@dataclass(frozen=True)
class Edges(Edit):
    """Hides pairs: each query in `pairs[k][0]` from each key in `pairs[k][1]`, or the pairs in `mask` (n, m)."""

    heads: tuple[int, ...] | None
    pairs: tuple[tuple[Tensor, Tensor], ...] = ()
    mask: Tensor | None = None
    _applied: set[int] = field(default_factory=set)

    def rows(self, queries: Tensor) -> Tensor:
        """Return which queries have a hidden pair."""
        if self.mask is not None:
            return super().rows(queries)
        return torch.isin(queries, torch.cat([query for query, _ in self.pairs]))

    def apply(self, logits: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hide the pairs."""
        hidden = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        if self.mask is not None:
            (n, m), real = self.mask.shape, keys != _SINK
            if len(queries) and (int(queries.max()) >= n or int(keys.max()) >= m):
                raise ValueError(
                    f"edges: got a mask of {n} queries and {m} keys for a call of query {int(queries.max())} and key "
                    f"{int(keys.max())}; expected a mask with all queries and keys of the text"
                )
            hidden[:, real] = self.mask[queries][:, keys[real]]
        for index, (query, key) in enumerate(self.pairs):
            pair = torch.isin(queries, query)[:, None] & torch.isin(keys, key)
            hidden |= pair
            if bool(pair.any()):
                self._applied.add(index)
        return logits.masked_fill(_on(logits, hidden), -math.inf), None

    def check_applied(self) -> None:
        """Raise `ValueError` if no call had a pair."""
        for index, (query, key) in enumerate(self.pairs):
            if index not in self._applied:
                raise ValueError(
                    f"edges: got query {query.tolist()} and key {key.tolist()}, which no changed call has; expected "
                    "positions of the text"
                )


@dataclass(frozen=True)
class Mass(Edit):
    """Gives each span of keys its mass: the weights within a span, and within the rest, keep their proportions."""

    heads: tuple[int, ...] | None
    spans: tuple[tuple[str, Tensor], ...]
    masses: tuple[float, ...]

    def groups(self, keys: Tensor) -> list[tuple[Tensor, float]]:
        """Return the keys of each span, (m,) booleans, with its mass, and at last those of the rest."""
        inside = [find_keys(name, positions, keys) for name, positions in self.spans]
        rest = ~torch.stack(inside).any(0) & (keys != _SINK)
        rest_mass = 1 - math.fsum(self.masses)
        return [*zip(inside, self.masses, strict=True), (rest, rest_mass if rest_mass > 1e-12 else 0.0)]

    def pool(self, problem: Problem, keys: Tensor, report: Callable[[Tensor], None]) -> Tensor:
        """Return the outputs (..., n, d_v): the means of the groups' states, times their masses."""
        sink, problem = problem.sink, problem.unchecked_copy(sink=None, wants_state=True, wants_weights=False)
        insides, masses = zip(*self.groups(keys), strict=True)
        states = [
            reduce(merge, [run_problem(select_keys(problem, run)).state() for run in _runs(inside)])
            for inside in insides
        ]
        total, empty = reduce(merge, states), [state.lse == -math.inf for state in states]
        can_edit = ~torch.stack(empty if masses[-1] > 0 else empty[:-1]).any(0)
        edited = sum(mass * state.mean for state, mass in zip(states, masses, strict=True))
        report((~can_edit).sum())
        total = total._replace(mean=torch.where(can_edit.unsqueeze(-1), edited, total.mean))
        return total.mean if sink is None else add_sink(total, None, sink)[0].mean

    def apply(self, logits: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Set the weights of each span to its mass, and of the rest to what remains."""
        inside, masses = map(list, zip(*self.groups(keys), strict=True))
        visible = [(logits != -math.inf).logical_and(_on(logits, group)).any(-1, keepdim=True) for group in inside]
        can_edit = torch.stack(visible if masses[-1] > 0 else visible[:-1]).all(0)
        safe = torch.where(can_edit, logits, 0.0)  # without rows whose gradient would be NaN
        share = torch.log_softmax(safe, -1)
        if bool((keys == _SINK).any()):
            keys_share = share.masked_fill(_on(share, keys == _SINK), -math.inf).logsumexp(-1, keepdim=True)
        else:
            keys_share = safe.new_zeros(())
        edited = share
        for group, mass in zip(inside, masses, strict=True):
            mask = _on(logits, group)
            if mass == 0 or not bool(group.any()):
                edited = edited.masked_fill(mask, -math.inf)
                continue
            of_group = torch.log_softmax(safe.masked_fill(~mask, -math.inf), -1)
            edited = torch.where(mask, of_group + math.log(mass) + keys_share, edited)
        return torch.where(can_edit, edited, logits), ~can_edit.squeeze(-1)


@dataclass(frozen=True)
class Scale(Edit):
    """Multiplies the odds of spans of keys: adds the logarithm of a factor to their logits."""

    heads: tuple[int, ...] | None
    spans: tuple[tuple[str, Tensor], ...]
    factors: tuple[float, ...]

    def bias(self, keys: Tensor) -> Tensor:
        """Return what is added to the logits of keys, (m,) float64."""
        bias = torch.zeros(len(keys), dtype=torch.float64)
        for (name, positions), factor in zip(self.spans, self.factors, strict=True):
            inside = find_keys(name, positions, keys)
            bias[inside] += math.log(factor) if factor else -math.inf
        return bias

    def apply(self, logits: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Add the logarithms of the factors."""
        return logits + self.bias(keys).to(logits), None


@dataclass(frozen=True)
class Given(Edit):
    """Uses the weights of `table` (..., n, m)."""

    heads: tuple[int, ...] | None
    table: Tensor

    def of_heads(self, heads: Tensor, count: int) -> Edit:
        """Return the edit with the table's weights of these heads."""
        if self.table.ndim < 3 or self.table.shape[-3] != count or len(heads) == count:
            return self
        return replace(self, table=self.table[..., heads, :, :])

    def apply(self, logits: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor | None]:
        """Replace the weights by the table's."""
        table, real = self.table, keys != _SINK
        n, m = table.shape[-2:]
        if len(queries) and (int(queries.max()) >= n or int(keys.max()) >= m):
            raise ValueError(
                f"weights: got {n} queries and {m} keys for a call of query {int(queries.max())} and key "
                f"{int(keys.max())}; expected weights of a text of the same length"
            )
        rows = table[..., queries, :][..., keys[real]].to(logits)
        sums = rows.sum(-1)
        if real.all() and not bool((((sums - 1).abs() < 1e-3) | (sums == 0)).all()):
            raise ValueError(f"weights: got rows of {m} keys for a call of {len(keys)}; expected weights of its keys")
        try:
            rows = rows.expand(*logits.shape[:-2], *rows.shape[-2:])
        except RuntimeError as error:
            raise ValueError(
                f"weights: got shape {tuple(rows.shape)}; expected one that broadcasts to {tuple(logits.shape)}"
            ) from error
        if bool((rows > 0).logical_and(logits[..., real] == -math.inf).any()):
            raise ValueError("weights: got a weight above 0 for a key that the model hides from the query; expected 0")
        edited = logits.new_full(logits.shape, -math.inf)
        edited[..., real] = rows.log()
        if not bool(real.all()):
            edited[..., ~real] = (1 - rows.sum(-1, keepdim=True)).clamp(min=0).log()
        return edited, None


@dataclass(frozen=True)
class GivenTrace(Edit):
    """Uses the weights of the same call in a trace."""

    heads: tuple[int, ...] | None
    trace: Any

    def of_call(self, name: str, call: int) -> Edit:
        """Return the edit with the weights of this call."""
        try:
            inspection = self.trace[name, call]
        except (KeyError, IndexError) as error:
            raise ValueError(
                f"weights: got a trace without call {call} of {name!r}; expected the same calls"
            ) from error
        partial = inspection.queries is not None or inspection.heads is not None
        if inspection.weights is None or partial or inspection.change is not None:
            raise ValueError("weights: got a trace without all weights; expected one of record(model, weights=True)")
        return Given(self.heads, inspection.weights)


class BoundEdit(NamedTuple):
    """An edit of one call, whose first query and key have these positions in the text.

    The position of the key is −1 if the keys are of another text. `report` receives how many rows could not be edited.
    """

    edit: Edit
    first_query: int
    first_key: int
    report: Callable[[Tensor], None]


Edits = Sequence[BoundEdit]


def edited_logits(
    logits: Tensor, edits: Edits, rows: Tensor, heads: Tensor | None, count: int, *, sink: bool, counts: bool = False
) -> Tensor:
    """Return the logits (..., H, r, m) of some rows after all edits; with `counts`, count the rows without an edit.

    `heads` are the heads that the logits have, None for all `count` heads. The last column is a sink's with `sink`.
    """
    rows, available = rows.cpu(), torch.arange(count) if heads is None else heads.cpu()
    for edit, first_query, first_key, report in edits:
        keys = max(0, first_key) + torch.arange(logits.shape[-1])
        if sink:
            keys[-1] = _SINK
        selected, positions = _select_heads(edit, heads, count), first_query + rows
        edit = edit.of_heads(available if selected is None else available[selected], count)
        if selected is None:
            logits, missed = edit.apply(logits, positions, keys)
        else:
            index = selected.to(logits.device)
            edited, missed = edit.apply(logits.index_select(-3, index), positions, keys)
            logits = logits.index_copy(-3, index, edited)
        if counts and missed is not None:
            report(missed.sum())
    return logits


def _select_heads(edit: Edit, heads: Tensor | None, count: int) -> Tensor | None:
    """Return the indices of an edit's heads among `heads`; None for all."""
    numbers = head_numbers(edit, count)
    if numbers is None:
        return None
    available = list(range(count)) if heads is None else heads.tolist()
    indices = [index for index, head in enumerate(available) if head in numbers]
    return None if len(indices) == len(available) else torch.tensor(indices, dtype=torch.int64)


def head_numbers(edit: Edit, count: int) -> set[int] | None:
    """Return an edit's heads of a call with `count` heads, counted from 0; None for all."""
    if edit.heads is None:
        return None
    for head in edit.heads:
        if not -count <= head < count:
            raise ValueError(f"heads: got {head}; expected {-count} to {count - 1}, since the call has {count} heads")
    return {head % count for head in edit.heads}


def edit_result(problem: Problem, run: Callable[[], Result], edits: Edits) -> Result:
    """Return the result of a call with edited weights.

    `run` returns the result without edits, for the heads and rows that no edit changes.
    """
    if problem.wants_state:
        raise ValueError("change: got a call that returns a state, which dikkat cannot change; expected attend")
    count, queries = problem.lead[-1] if len(problem.lead) > 1 else 1, problem.restrictions.queries
    keys, live = problem.restrictions.keys, partial(_text_queries, problem)
    edited_problem, heads, rows = _select_edited(problem, edits, count)
    if heads is None and 0 < len(rows) == queries and not problem.wants_weights:
        result = Result(_edited_outputs(edited_problem, edits, heads, rows, count), None, None)
    else:
        result = run()
        if len(rows):
            outputs = _edited_outputs(edited_problem, edits, heads, rows, count).to(result.mean.dtype)
            result = result._replace(mean=_put(result.mean, outputs, heads, rows))
        if result.weights is not None:
            with exact(problem.query.device.type):
                _, weights = edited_weights_of_rows(problem, edits, None, torch.arange(queries), count)
            weights = gated(weights, edits, count, keys, live)
            result = result._replace(weights=weights.to(result.weights.dtype))
    return result._replace(mean=gated(result.mean, edits, count, keys, live))


def _text_queries(problem: Problem, is_self: bool) -> Tensor:
    """Return which queries see a key and are no padding, (..., n) booleans."""
    live = problem.restrictions.live_queries()
    if is_self and problem.restrictions.queries == problem.restrictions.keys:
        live = live & problem.restrictions.seen_keys()
    return live


def _select_edited(problem: Problem, edits: Edits, count: int) -> tuple[Problem, Tensor | None, Tensor]:
    """Return the call of all edited heads, these heads (None for all), and the edited rows."""
    heads, rows = set[int](), torch.zeros(problem.restrictions.queries, dtype=torch.bool)
    for edit, first_query, *_ in edits:
        edit_rows = edit.rows(first_query + torch.arange(len(rows)))
        if bool(edit_rows.any()):
            numbers = head_numbers(edit, count)
            heads |= set(range(count)) if numbers is None else numbers
            rows |= edit_rows
    row_indices = rows.nonzero().squeeze(-1)
    if len(heads) == count or len(problem.lead) < 2:
        return problem, None, row_indices
    index = torch.tensor(sorted(heads), dtype=torch.int64, device=problem.query.device)
    return select_heads(problem, index), index, row_indices


def _edited_outputs(problem: Problem, edits: Edits, heads: Tensor | None, rows: Tensor, count: int) -> Tensor:
    """Return the outputs (..., r, d_v) of some rows with edited weights, by kernels if they can compute the edits.

    In one of 12 layers, for 8,192 queries and keys, a mass takes 1.08 times as long as no edit; `edited_rows` takes 2.
    """
    pending = [bound for bound in edits if not isinstance(bound.edit, Gate)]
    while (
        pending and len(rows) == problem.restrictions.queries and _select_heads(pending[0].edit, heads, count) is None
    ):
        edit, _, first_key, report = pending[0]
        keys = max(0, first_key) + torch.arange(problem.restrictions.keys)
        if isinstance(edit, Scale):
            problem = _with_key_bias(problem, edit.bias(keys))
            pending = pending[1:]
        elif isinstance(edit, Mass) and len(pending) == 1 and not problem.dropout:
            return edit.pool(problem, keys, report)
        else:
            break
    if not pending:
        return run_problem(problem.unchecked_copy(wants_weights=False)).mean
    return edited_rows(problem, pending, heads, rows, count)


def _with_key_bias(problem: Problem, bias: Tensor) -> Problem:
    bias = bias.to(problem.query.device, problem.dtype).reshape(*(1,) * len(problem.lead), -1)
    old = problem.restrictions.key_bias
    restrictions = replace(problem.restrictions, key_bias=bias if old is None else old + bias)
    return replace(problem, restrictions=restrictions, kept=None, packed=None)


def edited_rows(problem: Problem, edits: Edits, heads: Tensor | None, rows: Tensor, count: int) -> Tensor:
    """Return the outputs (..., r, d_v) of some rows with edited weights, computed in blocks."""
    has_sink, device = problem.sink is not None, problem.query.device

    def compute(block: Tensor) -> Tensor:
        repeats = torch._C._current_graph_task_id() != -1  # of a checkpoint, in the backward pass
        with torch._C.DisableTorchFunction(), exact(device.type):
            rows_problem = select_rows(problem, block).in_wide_dtype()
            logits = _with_sink(row_logits(rows_problem), rows_problem.sink)
            logits = edited_logits(logits, edits, block, heads, count, sink=has_sink, counts=not repeats)
            weights = _weights(logits, has_sink)
            visible = (logits[..., :-1] if has_sink else logits) != -math.inf
            value = rows_problem.value
            scale = dropout_scale(problem, block)
            if scale is not None:
                weights = weights * scale
            elif problem.dropout:
                weights = F.dropout(weights, problem.dropout)
            hides = problem.restrictions.may_hide() or not bool(value.isfinite().all())
            return pool(weights, value, visible if hides else None)

    slices = list(blocks(len(rows), numbers_of_a_row(problem), device))
    if problem.records and len(slices) > 1:  # so that the backward pass keeps no map of all weights
        outputs = [checkpoint(compute, rows[block].to(device), use_reentrant=False) for block in slices]
    else:
        outputs = [compute(rows[block].to(device)) for block in slices]
    return torch.cat(outputs, -2)


def edited_weights_of_rows(
    problem: Problem, edits: Edits, heads: Tensor | None, rows: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp (..., r) and the edited weights (..., r, m) of a call of these rows and heads."""
    has_sink = problem.sink is not None
    problem = problem.in_wide_dtype()
    logits = _with_sink(row_logits(problem), problem.sink)
    logits = edited_logits(logits, edits, rows, heads, count, sink=has_sink)
    return logits.logsumexp(-1), _weights(logits, has_sink)


def cut_weights(weights: Tensor, edits: Edits, heads: Tensor | None, count: int) -> Tensor:
    """Return weights with 0 for heads that are cut."""
    for edit, *_ in edits:
        if isinstance(edit, Gate):
            selected = _select_heads(edit, heads, count)
            cut = slice(None) if selected is None else selected.to(weights.device)
            weights = weights.index_fill(-3, cut, 0.0) if isinstance(cut, Tensor) else torch.zeros_like(weights)
    return weights


def edit_weights(weights: Tensor, logits: Tensor | None, edits: Edits) -> Tensor:
    """Return edited weights (..., n, m) of a model's own softmax.

    `logits` (..., n, m) are the softmax's arguments if they are known. Weights whose sum is below 1 have a sink.
    """
    wide = torch.promote_types(weights.dtype, torch.float32)
    log_weights = weights.to(wide).clamp(min=torch.finfo(wide).tiny).log()
    hidden = weights <= 0 if logits is None else hidden_by_bias(logits)
    missing, blind = 1 - weights.detach().to(wide).sum(-1, keepdim=True), hidden.all(-1, keepdim=True)
    # Sums of half precision are exact to a quarter of its step.
    steps = 16 if weights.dtype == wide else 1
    has_sink = bool((missing.masked_fill(blind, 0.0) > steps * torch.finfo(weights.dtype).eps).any())
    edited = (log_weights if logits is None or has_sink else logits.to(wide)).masked_fill(hidden, -math.inf)
    if has_sink:
        edited = torch.cat([edited, missing.clamp(min=0).log()], -1)
    count, (queries, keys) = weights.shape[-3] if weights.ndim > 3 else 1, weights.shape[-2:]
    edited = edited_logits(edited, edits, torch.arange(queries), None, count, sink=has_sink, counts=True)
    result = torch.where(blind, weights, _weights(edited, has_sink).to(weights.dtype))

    def live(is_self: bool) -> Tensor:
        return ~blind.squeeze(-1) & (~hidden.all(-2) if is_self and queries == keys else True)

    return gated(result, edits, count, keys, live)


def _with_sink(logits: Tensor, sink: Tensor | None) -> Tensor:
    if sink is None:
        return logits
    column = sink.to(logits.dtype)[..., None, None].expand(*logits.shape[:-1], 1)
    return torch.cat([logits, column], -1)


def _weights(logits: Tensor, has_sink: bool) -> Tensor:
    weights = softmax_weights(logits, logits != -math.inf)
    return weights[..., :-1] if has_sink else weights


def _put(tensor: Tensor, replacement: Tensor, heads: Tensor | None, rows: Tensor) -> Tensor:
    """Return (..., H, n, d) with some heads and rows replaced."""
    if heads is None and len(rows) == tensor.shape[-2]:
        return replacement
    index = rows.to(tensor.device)
    if heads is None:
        return tensor.index_copy(-2, index, replacement)
    old = tensor.index_select(-3, heads)
    return tensor.index_copy(-3, heads, old.index_copy(-2, index, replacement))


def _runs(inside: Tensor) -> list[slice]:
    """Return the ranges of keys in a group, (m,) booleans; one empty range for none."""
    changes = (inside[1:] != inside[:-1]).nonzero().squeeze(-1) + 1
    edges = [0, *changes.tolist(), len(inside)]
    return [slice(*edge) for edge in pairwise(edges) if len(inside) and bool(inside[edge[0]])] or [slice(0, 0)]


def _on(tensor: Tensor, mask: Tensor) -> Tensor:
    return mask.to(tensor.device)
