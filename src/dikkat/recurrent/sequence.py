"""Cells that attend before every step, over whole sequences: as one operation, or as a loop of PyTorch's."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat import scores
from dikkat.attention import Memory, attend_memory
from dikkat.cpu.recurrence import launch as fused
from dikkat.recurrent.cells import StackedCells
from dikkat.scores import Score, is_plain

# Scores whose queries are an affine function of the state: a recurrence can do that as one matrix product.
AFFINE = (
    scores.ScaledDot, scores.VectorSum, scores.Average,
    scores.Gaussian, scores.Boxcar, scores.Epanechnikov, scores.Triangular,
)  # fmt: skip


class CellState(NamedTuple):
    """A state's parts: hidden and cell (layers, B, h), the cell of an LSTM alone."""

    hidden: Tensor
    cell: Tensor | None


class Masks(NamedTuple):
    """Masks of dropout, scaled: of features between layers (layers − 1, B, T, h), and of weights (B, T, m)."""

    features: Tensor | None = None
    weights: Tensor | None = None

    @classmethod
    def drawn(
        cls, inputs: Tensor, positions: int, cells: StackedCells, dropout: float, weight_dropout: float
    ) -> "Masks":
        """Masks for inputs (B, T, e) and a memory of m positions, drawn at once, so that both ways drop the same."""

        def kept(p: float, *shape: int) -> Tensor | None:
            return F.dropout(inputs.new_ones(shape), p) if p else None

        batch, steps = inputs.shape[:2]
        features = kept(dropout, cells.num_layers - 1, batch, steps, cells.hidden_size)
        return cls(features, kept(weight_dropout, batch, steps, positions))


class SequenceTask(NamedTuple):
    """Sequences to run over.

    Attributes:
        inputs: (B, T, e).
        memory: Of m positions, with the score that counts.
        before: The state before the first step.
        lengths: (B,) integers, the steps that each sequence has; None where all have T.
        masks: Of dropout.
        return_weights: Whether the weights are requested.
    """

    inputs: Tensor
    memory: Memory
    before: CellState
    lengths: Tensor | None
    masks: Masks
    return_weights: bool


class SequenceResult(NamedTuple):
    """The top layer's states (B, T, h), the contexts (B, T, c), the weights (B, T, m) if requested, the last state."""

    outputs: Tensor
    contexts: Tensor
    weights: Tensor | None
    last: CellState


# --- as one operation


def obstacles(cells: StackedCells, inputs: Tensor, memory: Memory, score: Score, before: CellState) -> list[str]:
    """The reasons why the compiled recurrence cannot run."""
    states = before.hidden, before.cell
    reasons = fused.obstacles((inputs, memory.key, memory.value, memory.valid_lens, *states, *cells.parameters()))
    reasons += score_obstacles(score)
    if memory.key.ndim != 3 or len(memory.key) != len(inputs):
        reasons.append(
            f"the memory's keys have shape {tuple(memory.key.shape)}, not ({len(inputs)}, positions, features)"
        )
    if not len(inputs):
        reasons.append("the batch is empty")
    return reasons


def score_obstacles(score: Score) -> list[str]:
    """The reasons why a score's queries cannot be made by a matrix of its own."""
    reasons = []
    if type(score) not in (scores.Additive, scores.Bilinear, scores.Dot, *AFFINE):
        reasons.append(f"the queries of {type(score).__name__} are not known to be affine in the state")
    if getattr(score, "softcap", None) is not None:
        reasons.append("the score is capped")
    for name, part in score.named_children():
        if not is_plain(part):
            reasons.append(f"score.{name} is no plain torch.nn.Linear, or has hooks: it has to be called")
    return reasons


def attention_of(cells: StackedCells, memory: Memory, kept: Tensor | None = None) -> fused.Attention:
    """The attention of the compiled recurrence to a memory, with `kept` of the weights."""
    score = memory.score
    query_weight, query_bias = query_map(cells, score)
    size, keys = cells.hidden_size if query_weight is None else query_weight.shape[0], memory.key.shape[-1]
    if keys != size:
        raise ValueError(
            f"memory: got keys of {keys} features; expected {size}, as many as the queries of {type(score).__name__}"
        )
    return fused.Attention(
        pair=score.pair,
        profile=score.profile,
        key=memory.key,
        value=memory.value,
        seen=memory.valid_lens,
        weight=score.pair_weight(),
        query_weight=query_weight,
        query_bias=query_bias,
        context_weight=cells.context_weight(),
        kept=kept,
    )


def query_map(cells: StackedCells, score: Score) -> tuple[Tensor | None, Tensor | None]:
    """The matrix and bias that make a query of a state."""
    if type(score) is scores.Dot:
        return None, None
    if isinstance(score, scores.Additive | scores.Bilinear):
        return score.W_q.weight, score.W_q.bias
    weight = cells.part("weight_hh", 0)
    bias = score.project_query(weight.new_zeros(1, cells.hidden_size))
    unit = torch.eye(cells.hidden_size, dtype=weight.dtype, device=weight.device)
    return (score.project_query(unit) - bias).t(), bias[0]


def as_operation(cells: StackedCells, task: SequenceTask) -> SequenceResult:
    """All steps as one operation of compiled code, with a backward of its own."""
    rows, masks = fused.Rows.of(task.lengths, *task.inputs.shape[:2]), task.masks
    kept = None if masks.weights is None else fused.take(masks.weights, rows)
    dropped = None if masks.features is None else torch.stack([fused.take(m, rows) for m in masks.features])
    results = fused.run(
        cells.first_gates(fused.take(task.inputs, rows)),
        task.before.hidden,
        task.before.cell,
        cells.layer_weights(),
        rows,
        attention=attention_of(cells, task.memory, kept),
        dropped=dropped,
    )
    outputs, contexts = fused.put(results.states, rows), fused.put(cast(Tensor, results.contexts), rows)
    weights = fused.put(cast(Tensor, results.weights), rows) if task.return_weights else None
    return SequenceResult(outputs, contexts, weights, CellState(results.state, results.cell))


# --- as a loop of PyTorch's operations


def as_loop(cells: StackedCells, task: SequenceTask) -> SequenceResult:
    """One step after the other, in PyTorch's operations."""
    inputs, lengths, masks, before = task.inputs, task.lengths, task.masks, task.before
    goes_on = None
    if lengths is not None:
        lengths = lengths.to(inputs.device)
        goes_on = (torch.arange(inputs.shape[1], device=inputs.device) < lengths[:, None]).unsqueeze(-1)
        inputs = torch.where(goes_on, inputs, 0.0)
    gates, context_weight = cells.first_gates(inputs), cells.context_weight()
    states = list(before.hidden.unbind(0))
    cell_states = None if before.cell is None else list(before.cell.unbind(0))
    outputs, contexts, weights = [], [], []
    for step in range(inputs.shape[1]):
        kept = None if masks.weights is None else masks.weights[:, step]
        context, looked_at = _attend(states[-1], task, kept)
        first = torch.addmm(gates[:, step], context, context_weight.t())
        dropped = None if masks.features is None else masks.features[:, :, step]
        new, new_cells = cells.advance(first, states, cell_states, dropped)
        outputs.append(new[-1])
        contexts.append(context)
        weights.append(looked_at)
        if goes_on is not None:
            new = _where(goes_on[:, step], new, states)
            if new_cells is not None and cell_states is not None:
                new_cells = _where(goes_on[:, step], new_cells, cell_states)
        states, cell_states = new, new_cells
    columns = [outputs, contexts, weights] if task.return_weights else [outputs, contexts]
    stacked = [torch.stack(cast(list[Tensor], each), dim=1) for each in columns]
    if goes_on is not None:
        stacked = [torch.where(goes_on, each, 0.0) for each in stacked]
    last = CellState(torch.stack(states), None if cell_states is None else torch.stack(cell_states))
    return SequenceResult(stacked[0], stacked[1], stacked[2] if task.return_weights else None, last)


def _attend(query: Tensor, task: SequenceTask, kept: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """One query a sequence: (B, h) -> contexts (B, c) and weights (B, m) before dropout."""
    attended = attend_memory(query.unsqueeze(1), task.memory, return_weights=task.return_weights or kept is not None)
    if not isinstance(attended, tuple):
        return attended.squeeze(1), None
    context, weights = attended
    if kept is not None:
        context = (weights * kept.unsqueeze(1)) @ task.memory.value
    return context.squeeze(1), weights.squeeze(1)


def _where(condition: Tensor, new: Sequence[Tensor], old: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(condition, after, before) for after, before in zip(new, old, strict=True)]
