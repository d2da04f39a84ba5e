"""Edits of attention weights. Each edit is one function on rows of logits, for outputs and for recordings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
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
from dikkat.inspection import fused_edits
from dikkat.inspection.fused_edits import head_pieces
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


class Positions(NamedTuple):
    """The positions in the text of the queries (r,) and keys (m,) of logits, and their heads (h,), of `head_count`."""

    queries: Tensor
    keys: Tensor
    heads: Tensor
    head_count: int


class Edit:
    """A change of the weights of some heads.

    Attributes:
        heads: The edited heads, counted from 0, or from the end if negative; None for all.
        keeps_scores: Whether the logits after the edit are still scores, not logarithms of weights.
    """

    heads: tuple[int, ...] | None
    keeps_scores = True

    @property
    def is_shown(self) -> bool:
        """Whether a recording shows the edit."""
        return True

    def edited_queries(self, queries: Tensor) -> Tensor:
        """Return which queries are edited, (r,) booleans, by their positions."""
        return torch.ones(len(queries), dtype=torch.bool)

    def apply(self, logits: Tensor, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Return the logits (..., h, r, m) of the edited weights, and which rows could not be edited (..., h, r).

        Logits are −∞ for hidden pairs.
        """
        raise NotImplementedError

    def check_applied(self) -> None:
        """Raise `ValueError` if no call had what the edit names."""


@dataclass(frozen=True)
class Gate(Edit):
    """Interpolates between the output of heads (factor 1) and 0, or with `mean` its mean over the text (factor 0).

    Attributes:
        factors: Returns the factors (B or 1, H) of a call with H heads; None: 0 for the edited heads.
    """

    heads: tuple[int, ...] | None
    mean: bool = False
    factors: Callable[[int], Tensor] | None = None

    @property
    def is_shown(self) -> bool:
        """Whether a recording shows the edit: weights of 0 do, but no weights of a row have a mean output."""
        return not self.mean and self.factors is None


@dataclass(frozen=True)
class Edges(Edit):
    """Hides pairs: each query in `pairs[k][0]` from each key in `pairs[k][1]`, or the pairs in `mask` (n, m)."""

    heads: tuple[int, ...] | None
    pairs: tuple[tuple[Tensor | slice, Tensor | slice], ...] = ()
    mask: Tensor | None = None
    _applied: set[int] = field(default_factory=set)

    def edited_queries(self, queries: Tensor) -> Tensor:
        """Return the queries from which a key is hidden, (r,) booleans."""
        if self.mask is not None:
            return super().edited_queries(queries)
        return torch.stack([_contains(query, queries) for query, _ in self.pairs]).any(0)

    def apply(self, logits: Tensor, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Hide the pairs."""
        queries, keys, *_ = positions
        hidden = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        if self.mask is not None:
            _check_size("edges: got a mask of", self.mask, positions)
            hidden[:, keys != _SINK] = self.mask[queries][:, keys[keys != _SINK]]
        for index, (query, key) in enumerate(self.pairs):
            pair = _contains(query, queries)[:, None] & _contains(key, keys)
            hidden |= pair
            if bool(pair.any()):
                self._applied.add(index)
        return logits.masked_fill(hidden.to(logits.device), -math.inf), None

    def check_applied(self) -> None:
        """Raise `ValueError` if no call had a pair."""
        for index, (query, key) in enumerate(self.pairs):
            if index not in self._applied:
                names = (side if isinstance(side, slice) else side.tolist() for side in (query, key))
                raise ValueError(
                    f"edges: got query {next(names)} and key {next(names)}, which no changed call has; expected "
                    "positions of the text"
                )


def _contains(positions: Tensor | slice, numbers: Tensor) -> Tensor:
    """Return which numbers are among positions from 0."""
    if isinstance(positions, Tensor):
        return torch.isin(numbers, positions)
    offsets = numbers - (positions.start or 0)
    inside = (offsets >= 0) & (offsets % (positions.step or 1) == 0)
    return inside if positions.stop is None else inside & (numbers < positions.stop)


@dataclass(frozen=True)
class Mass(Edit):
    """Gives each span of keys its mass: the weights within a span, and within the rest, keep their proportions."""

    keeps_scores = False
    heads: tuple[int, ...] | None
    spans: tuple[tuple[str, Tensor], ...]
    masses: tuple[float, ...]

    def groups(self, keys: Tensor) -> list[tuple[Tensor, float]]:
        """Return the keys of each span, (m,) booleans, with its mass, and at last those of the rest."""
        inside = [find_keys(name, positions, keys) for name, positions in self.spans]
        rest = ~torch.stack(inside).any(0) & (keys != _SINK)
        rest_mass = 1 - math.fsum(self.masses)
        return [*zip(inside, self.masses, strict=True), (rest, rest_mass if rest_mass > 1e-12 else 0.0)]

    def outputs(self, problem: Problem, keys: Tensor, report: Callable[[Tensor], None]) -> Tensor:
        """Return the outputs (..., n, d_v), by PyTorch's fused attention or by states."""
        *spans, (_, rest_mass) = self.groups(keys)
        runs = [_runs(inside) for inside, _ in spans]
        if all(len(run) == 1 and run[0] != slice(0, 0) for run in runs) and fused_edits.fits(problem):
            outputs, unedited = fused_edits.outputs_of_masses(
                problem, [(run, mass) for (run,), (_, mass) in zip(runs, spans, strict=True)], rest_mass
            )
            report(torch.tensor(unedited * math.prod(problem.lead)))
            return outputs
        pieces = [self.pool(piece, keys, report) for piece in head_pieces(problem)]
        return torch.cat(pieces, -3) if len(pieces) > 1 else pieces[0]

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

    def apply(self, logits: Tensor, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Set the weights of each span to its mass, and of the rest to what remains."""
        groups, device = self.groups(positions.keys), logits.device
        visible = [((logits != -math.inf) & group.to(device)).any(-1, keepdim=True) for group, _ in groups]
        can_edit = torch.stack(visible if groups[-1][1] > 0 else visible[:-1]).all(0)
        safe = torch.where(can_edit, logits, 0.0)  # without rows whose gradient would be NaN
        edited, is_sink = torch.log_softmax(safe, -1), positions.keys == _SINK
        keys_share = torch.zeros((), device=device)
        if bool(is_sink.any()):
            keys_share = edited.masked_fill(is_sink.to(device), -math.inf).logsumexp(-1, keepdim=True)
        for group, mass in groups:
            mask = group.to(device)
            if mass == 0 or not bool(group.any()):
                edited = edited.masked_fill(mask, -math.inf)
            else:
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

    def apply(self, logits: Tensor, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Add the logarithms of the factors."""
        return logits + self.bias(positions.keys).to(logits), None


@dataclass(frozen=True)
class Given(Edit):
    """Uses the weights of `table` (..., n, m), or of the same call in a trace."""

    keeps_scores = False
    heads: tuple[int, ...] | None
    table: Any

    def of_call(self, name: str, call: int) -> "Given":
        """Return the edit with the weights of a module's call in the trace, counted from 0."""
        try:
            record = self.table[name, call]
        except (KeyError, IndexError) as error:
            raise ValueError(
                f"weights: got a trace without call {call} of {name!r}; expected the same calls"
            ) from error
        partial = record.queries is not None or record.heads is not None
        if record.weights is None or partial or record.change is not None:
            raise ValueError("weights: got a trace without all weights; expected one of record(model, weights=True)")
        return Given(self.heads, record.weights)

    def outputs(self, problem: Problem, positions: Positions) -> Tensor:
        """Return the outputs (..., n, d_v) of all queries; the values are finite."""
        restrictions, outputs, value = problem.restrictions, [], problem.value.to(problem.dtype)
        row_size = restrictions.keys * math.prod(self.table.shape[:-2])
        for block in blocks(restrictions.queries, row_size, value.device):
            block_positions = positions._replace(queries=positions.queries[block])
            rows = self._rows(block_positions, restrictions.visible(block), problem.lead, value)
            outputs.append(rows / rows.sum(-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny) @ value)
        return torch.cat(outputs, -2).expand(*problem.lead, -1, -1)

    def apply(self, logits: Tensor, positions: Positions) -> tuple[Tensor, Tensor | None]:
        """Replace the weights by the table's."""
        real = positions.keys != _SINK
        rows = self._rows(positions, logits[..., real] != -math.inf, logits.shape[:-2], logits)
        edited = logits.new_full(logits.shape, -math.inf)
        edited[..., real] = rows.log()
        if not bool(real.all()):
            edited[..., ~real] = (1 - rows.sum(-1, keepdim=True)).clamp(min=0).log()
        return edited, None

    def _rows(self, positions: Positions, visible: Tensor | None, lead: torch.Size, like: Tensor) -> Tensor:
        """Return the table's rows for these positions, which broadcast to `lead`, in the dtype of `like`."""
        queries, keys, heads, head_count = positions
        table, real = self.table, keys != _SINK
        if table.ndim > 2 and table.shape[-3] == head_count > len(heads):
            table = table[..., heads, :, :]
        _check_size("weights: got", table, positions)
        rows: Tensor = table[..., queries, :][..., keys[real]].to(like)
        sums = rows.sum(-1)
        if real.all() and not bool((((sums - 1).abs() < 1e-3) | (sums == 0)).all()):
            raise ValueError(
                f"weights: got rows of {table.shape[-1]} keys for a call of {len(keys)}; expected weights of its keys"
            )
        try:
            rows.expand(*lead, *rows.shape[-2:])
        except RuntimeError as error:
            shape = (*lead, *rows.shape[-2:])
            raise ValueError(
                f"weights: got shape {tuple(rows.shape)}; expected one that broadcasts to {shape}"
            ) from error
        if visible is not None and bool(((rows > 0) & ~visible).any()):
            raise ValueError("weights: got a weight above 0 for a key that the model hides from the query; expected 0")
        return rows


def _check_size(got: str, table: Tensor, positions: Positions) -> None:
    last_query, last_key = (int(numbers.max()) if len(numbers) else -1 for numbers in positions[:2])
    n, m = table.shape[-2:]
    if last_query >= n or last_key >= m:
        raise ValueError(
            f"{got} {n} queries and {m} keys for a call of query {last_query} and key {last_key}; expected one for a "
            "text of the same length"
        )


class BoundEdit(NamedTuple):
    """An edit of one call, whose first query and key have these positions in the text.

    The position of the key is −1 if the keys are of another text. `report` receives how many rows could not be edited.
    """

    edit: Edit
    first_query: int
    first_key: int
    report: Callable[[Tensor], None]


Edits = Sequence[BoundEdit]


def split_gates(edits: Edits) -> tuple[list[BoundEdit], list[BoundEdit]]:
    """Return the gates, which edit outputs, and the edits of weights."""
    gates = [bound for bound in edits if isinstance(bound.edit, Gate)]
    return gates, [bound for bound in edits if not isinstance(bound.edit, Gate)]


def head_numbers(edit: Edit, count: int) -> set[int]:
    """Return an edit's heads of a call with `count` heads, counted from 0."""
    for head in edit.heads or ():
        if not -count <= head < count:
            raise ValueError(f"heads: got {head}; expected {-count} to {count - 1}, since the call has {count} heads")
    return set(range(count)) if edit.heads is None else {head % count for head in edit.heads}


class Selection(NamedTuple):
    """Some heads (h,) and rows (r,) of a call with `head_count` heads, by their numbers on the CPU."""

    heads: Tensor
    rows: Tensor
    head_count: int

    @classmethod
    def full(cls, heads: int, rows: int) -> "Selection":
        """Return all heads and rows."""
        return cls(torch.arange(heads), torch.arange(rows), heads)

    def indices(self, edit: Edit) -> Tensor | None:
        """Return the indices of an edit's heads among `heads`; None for all."""
        numbers = head_numbers(edit, self.head_count)
        indices = [index for index, head in enumerate(self.heads.tolist()) if head in numbers]
        return None if len(indices) == len(self.heads) else torch.tensor(indices, dtype=torch.int64)

    def replace_in(self, tensor: Tensor, replacement: Tensor) -> Tensor:
        """Return (..., H, n, d) with these heads and rows replaced."""
        heads, rows = self.heads.to(tensor.device), self.rows.to(tensor.device)
        if len(heads) == self.head_count:
            return tensor.index_copy(-2, rows, replacement)
        return tensor.index_copy(-3, heads, tensor.index_select(-3, heads).index_copy(-2, rows, replacement))


def edit_result(problem: Problem, run: Callable[[], Result], edits: Edits) -> Result:
    """Return the result of a call with edited weights.

    `run` returns the result without edits, for the heads and rows that no edit changes.
    """
    if problem.wants_state and problem.sink is None:  # sinks need the state, too
        raise ValueError("change: got a call that returns a state, which dikkat cannot change; expected attend")
    gates, edits = split_gates(edits)
    restrictions = problem.restrictions
    if edits and restrictions.bias is not None:  # some models hide pairs by a large negative number
        bias = restrictions.bias.masked_fill(hidden_by_bias(restrictions.bias), -math.inf)
        restrictions = replace(restrictions, bias=bias)
        problem = replace(problem, restrictions=restrictions, kept=None)
    full = Selection.full(count_heads(problem), restrictions.queries)

    def live(is_self: bool) -> Tensor:
        queries = restrictions.live_queries()
        return queries & restrictions.seen_keys() if is_self and restrictions.queries == restrictions.keys else queries

    selection = _edited_selection(edits, full)
    if (
        len(selection.heads) == full.head_count
        and 0 < len(selection.rows) == restrictions.queries
        and not problem.wants_weights
    ):
        result = Result(_edited_outputs(problem, edits, full), None, None)
    else:
        result = run()
        if len(selection.rows):
            heads = selection.heads.to(problem.query.device)
            of_heads = problem if len(heads) == full.head_count else select_heads(problem, heads)
            outputs = _edited_outputs(of_heads, edits, selection).to(result.mean.dtype)
            result = result._replace(mean=selection.replace_in(result.mean, outputs))
        if result.weights is not None:
            with exact(problem.query.device.type):
                _, weights = edited_weights_of_rows(problem, edits, full)
            weights = _gated(weights, gates, full.head_count, restrictions.keys, live)
            result = result._replace(weights=weights.to(result.weights.dtype))
    return result._replace(mean=_gated(result.mean, gates, full.head_count, restrictions.keys, live))


def count_heads(problem: Problem) -> int:
    """Return the number of heads of a call."""
    return problem.lead[-1] if len(problem.lead) > 1 else 1


def _edited_selection(edits: Edits, full: Selection) -> Selection:
    """Return the heads and rows that some edit changes."""
    heads, rows = set[int](), torch.zeros(len(full.rows), dtype=torch.bool)
    for edit, first_query, *_ in edits:
        edit_rows = edit.edited_queries(first_query + full.rows)
        if bool(edit_rows.any()):
            heads |= head_numbers(edit, full.head_count)
            rows |= edit_rows
    return Selection(torch.tensor(sorted(heads), dtype=torch.int64), rows.nonzero().squeeze(-1), full.head_count)


def _edited_outputs(problem: Problem, edits: Edits, selection: Selection) -> Tensor:
    """Return the outputs (..., r, d_v) of some rows with edited weights, by kernels if they can compute the edits.

    In one of 12 layers, for 8,192 queries and keys, a mass by states takes 1.33 times as long as no edit, and
    `_edited_rows` takes 2.
    """
    for index, (edit, first_query, first_key, report) in enumerate(edits):
        keys = max(0, first_key) + torch.arange(problem.restrictions.keys)
        edits_all = len(selection.rows) == problem.restrictions.queries and selection.indices(edit) is None
        if edits_all and isinstance(edit, Scale):
            problem = _with_key_bias(problem, edit.bias(keys))
        elif edits_all and isinstance(edit, Mass) and index == len(edits) - 1 and not problem.dropout:
            return edit.outputs(problem, keys, report)
        elif edits_all and isinstance(edit, Given) and index == len(edits) - 1 and _multiplies(problem):
            positions = Positions(first_query + selection.rows, keys, selection.heads, selection.head_count)
            return edit.outputs(problem, positions)
        else:
            return _edited_rows(problem, edits[index:], selection)
    if fused_edits.fits(problem):
        return fused_edits.outputs_with_key_bias(problem)
    return run_problem(problem.unchecked_copy(wants_weights=False)).mean


def _multiplies(problem: Problem) -> bool:
    """Return whether the output is the product of weights and values, without dropout or a sink."""
    return not problem.dropout and problem.sink is None and bool(problem.value.isfinite().all())


def _with_key_bias(problem: Problem, bias: Tensor) -> Problem:
    bias = bias.to(problem.query.device, problem.dtype).reshape(*(1,) * len(problem.lead), -1)
    old = problem.restrictions.key_bias
    restrictions = replace(problem.restrictions, key_bias=bias if old is None else old + bias)
    return replace(problem, restrictions=restrictions, kept=None, packed=None)


def _edited_rows(problem: Problem, edits: Edits, selection: Selection) -> Tensor:
    """Return the outputs (..., r, d_v) of some rows with edited weights, computed in blocks."""
    device = problem.query.device

    def compute(rows: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction(), exact(device.type):
            rows_problem = select_rows(problem, rows).in_wide_dtype()
            logits = _edited_logits(rows_problem, edits, selection._replace(rows=rows.cpu()))
            weights, value = _weights(logits, problem.sink is not None), rows_problem.value
            scale = dropout_scale(problem, rows)
            if scale is not None:
                weights = weights * scale
            elif problem.dropout:
                weights = F.dropout(weights, problem.dropout)
            hides = problem.restrictions.may_hide() or not bool(value.isfinite().all())
            return pool(weights, value, logits[..., : value.shape[-2]] != -math.inf if hides else None)

    slices = list(blocks(len(selection.rows), numbers_of_a_row(problem), device))
    if problem.records and len(slices) > 1:  # so that the backward pass keeps no map of all weights
        outputs = [checkpoint(compute, selection.rows[block].to(device), use_reentrant=False) for block in slices]
    else:
        outputs = [compute(selection.rows[block].to(device)) for block in slices]
    return torch.cat(outputs, -2)


def edited_weights_of_rows(problem: Problem, edits: Edits, selection: Selection) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp (..., r) and the edited weights (..., r, m) of a call of these heads and rows."""
    gates, edits = split_gates([bound._replace(report=lambda _: None) for bound in edits])
    logits = _edited_logits(problem.in_wide_dtype(), edits, selection)
    weights = _weights(logits, problem.sink is not None)
    for gate, *_ in gates:
        indices = selection.indices(gate)
        if indices is None:
            weights = torch.zeros_like(weights)
        else:
            weights = weights.index_fill(-3, indices.to(weights.device), 0.0)
    return logits.logsumexp(-1), weights


def edit_weights(weights: Tensor, logits: Tensor | None, edits: Edits) -> Tensor:
    """Return edited weights (..., n, m) of a model's own softmax.

    `logits` (..., n, m) are the softmax's arguments if they are known. Weights whose sum is below 1 have a sink.
    """
    gates, edits = split_gates(edits)
    dtype, (queries, keys) = weights.dtype, weights.shape[-2:]
    wide_weights = weights.to(torch.promote_types(dtype, torch.float32))
    hidden = weights <= 0 if logits is None else hidden_by_bias(logits)
    missing, blind = 1 - wide_weights.detach().sum(-1, keepdim=True), hidden.all(-1, keepdim=True)
    # Sums of half precision are exact to a quarter of its step.
    tolerance = torch.finfo(dtype).eps * (16 if dtype == wide_weights.dtype else 1)
    has_sink = bool((missing.masked_fill(blind, 0.0) > tolerance).any())
    if logits is None or has_sink:
        rows = wide_weights.clamp(min=torch.finfo(wide_weights.dtype).tiny).log()
    else:
        rows = logits.to(wide_weights.dtype)
    rows = rows.masked_fill(hidden, -math.inf)
    rows = torch.cat([rows, missing.clamp(min=0).log()], -1) if has_sink else rows
    full = Selection.full(weights.shape[-3] if weights.ndim > 3 else 1, queries)
    edited = _weights(_apply(rows, edits, full, has_sink), has_sink).to(dtype)

    def live(is_self: bool) -> Tensor:
        return ~blind.squeeze(-1) & (~hidden.all(-2) if is_self and queries == keys else True)

    return _gated(torch.where(blind, weights, edited), gates, full.head_count, keys, live)


def _edited_logits(problem: Problem, edits: Edits, selection: Selection) -> Tensor:
    """Return the logits (..., h, r, m) of a call of some heads and rows after all edits; a sink's is the last."""
    logits = row_logits(problem)
    if problem.sink is not None:
        column = problem.sink.to(logits.dtype)[..., None, None].expand(*logits.shape[:-1], 1)
        logits = torch.cat([logits, column], -1)
    return _apply(logits, edits, selection, problem.sink is not None)


def _apply(logits: Tensor, edits: Edits, selection: Selection, has_sink: bool) -> Tensor:
    """Return the logits of some heads and rows after all edits, and report the rows that could not be edited."""
    for edit, first_query, first_key, report in edits:
        keys = max(0, first_key) + torch.arange(logits.shape[-1])
        if has_sink:
            keys[-1] = _SINK
        indices = selection.indices(edit)
        heads = selection.heads if indices is None else selection.heads[indices]
        positions = Positions(first_query + selection.rows, keys, heads, selection.head_count)
        if indices is None:
            logits, missed = edit.apply(logits, positions)
        else:
            index = indices.to(logits.device)
            edited, missed = edit.apply(logits.index_select(-3, index), positions)
            logits = logits.index_copy(-3, index, edited)
        if missed is not None:
            report(missed.sum())
    return logits


def _weights(logits: Tensor, has_sink: bool) -> Tensor:
    weights = softmax_weights(logits, logits != -math.inf)
    return weights[..., :-1] if has_sink else weights


def _gated(tensor: Tensor, gates: Sequence[Any], count: int, keys: int, live: Callable[[bool], Tensor]) -> Tensor:
    """Return outputs or weights (..., H, n, d) after all gates.

    `live(is_self)` returns which queries count in means, (..., n).
    """
    for edit, first_query, first_key, _ in gates:
        if edit.mean and (first_query or (tensor.shape[-2] == 1 < keys)):
            raise ValueError(
                "mean: got a call with a part of the text's queries, as in `generate`; expected a call with all "
                "queries, or mean=False"
            )
        cut_heads, base = head_numbers(edit, count), torch.zeros((), dtype=tensor.dtype, device=tensor.device)
        factor = torch.tensor([[float(head not in cut_heads) for head in range(count)]])
        factor = factor if edit.factors is None else edit.factors(count)
        factor = factor.to(tensor)[..., None, None]  # (B or 1, H, 1, 1)
        factor = factor if tensor.ndim > 3 else factor[:, 0] if tensor.ndim > 2 else factor[0, 0]
        if edit.mean:
            share = live(first_key >= 0).float().unsqueeze(-1).expand(*tensor.shape[:-1], 1)
            base = (tensor * share).sum(-2, keepdim=True) / share.sum(-2, keepdim=True).clamp(min=1)
            base = base.to(tensor.dtype)
        tensor = torch.where(factor == 0, base, tensor * factor + (1 - factor) * base)
    return tensor


def _runs(inside: Tensor) -> list[slice]:
    """Return the ranges of keys in a group, (m,) booleans; one empty range for none."""
    changes = (inside[1:] != inside[:-1]).nonzero().squeeze(-1) + 1
    edges = [0, *changes.tolist(), len(inside)]
    return [slice(*edge) for edge in pairwise(edges) if len(inside) and bool(inside[edge[0]])] or [slice(0, 0)]
