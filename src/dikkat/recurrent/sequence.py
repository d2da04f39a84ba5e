"""Cells that attend before every step, over whole sequences: compiled, or in PyTorch's operations."""

from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat import scores
from dikkat._engine.addresses import check_room, exact, sent
from dikkat._engine.pytorch_state import can_read_values
from dikkat.attention import Memory, attend_memory
from dikkat.recurrent.cells import StackedCells
from dikkat.recurrent.fused import launch as fused
from dikkat.recurrent.fused.calls import in_type, wide_type
from dikkat.recurrent.steps import Operands, run
from dikkat.scores import Score, is_plain


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


def recurrence_obstacles(
    cells: StackedCells, inputs: Tensor, memory: Memory, score: Score, before: CellState
) -> list[str]:
    """The reasons why the compiled recurrence cannot run."""
    states = before.hidden, before.cell
    reasons = fused.kernel_obstacles(
        (inputs, memory.key, memory.value, memory.valid_lens, *states, *cells.parameters())
    )
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
    if score.projection == "any":
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
    query_weight, query_bias = fitting_map(cells, memory)
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
    if score.projection == "none":
        return None, None
    if isinstance(score, scores.Additive | scores.Bilinear):
        return score.W_q.weight, score.W_q.bias
    weight = cells.part("weight_hh", 0)
    bias = score.project_query(weight.new_zeros(1, cells.hidden_size))
    unit = torch.eye(cells.hidden_size, dtype=weight.dtype, device=weight.device)
    return (score.project_query(unit) - bias).t(), bias[0]


def fitting_map(cells: StackedCells, memory: Memory) -> tuple[Tensor | None, Tensor | None]:
    """`query_map` of a memory's score, checked beside its keys."""
    weight, bias = query_map(cells, memory.score)
    size, keys = cells.hidden_size if weight is None else weight.shape[0], memory.key.shape[-1]
    if keys != size:
        raise ValueError(
            f"memory: got keys of {keys} features; expected {size}, as many as the queries of "
            f"{type(memory.score).__name__}"
        )
    return weight, bias


def as_operation(cells: StackedCells, task: SequenceTask) -> SequenceResult:
    """All steps as one operation of compiled code, with a backward of its own."""
    rows, masks = fused.Rows.of(task.lengths, *task.inputs.shape[:2]), task.masks
    kept = None if masks.weights is None else fused.take(masks.weights, rows)
    dropped = None if masks.features is None else torch.stack([fused.take(m, rows) for m in masks.features])
    results = fused.run_stack(
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


# --- in PyTorch's operations


def in_steps(cells: StackedCells, task: SequenceTask) -> SequenceResult:
    """One step after the other, in PyTorch's operations."""
    inputs, memory, before, device = task.inputs, task.memory, task.before, task.inputs.device
    (batch, count), kind, goes_on = inputs.shape[:2], wide_type(inputs), None
    for name, tensor in {"memory.key": memory.key, "memory.value": memory.value}.items():
        if can_read_values(tensor):
            check_room(name, tensor)
    if task.lengths is not None:
        goes_on = (torch.arange(count, device=device) < sent(task.lengths, device)[:, None]).unsqueeze(-1)
        inputs = torch.where(goes_on, inputs, 0.0)
    look = None
    if score_obstacles(memory.score) or (count == 1 and inputs.is_cpu):  # where kernels for few queries are
        look = partial(_looked, memory)
    operands, layers, shown = prepared(cells, memory, batch, kind, one=count == 1, compared=look is None)
    operands = operands._replace(
        gates=in_type(cells.first_gates(inputs), kind),
        state=in_type(before.hidden, kind),
        cell=in_type(before.cell, kind),
        dropped=in_type(task.masks.features, kind),
        kept=in_type(task.masks.weights, kind),
    )
    states, after, weights = run(operands, layers, memory.score.pair, memory.score.profile, look)
    outputs, seen = states[-1], goes_on if shown is None or goes_on is None else shown & goes_on
    seen = shown if goes_on is None else seen
    weights = weights if seen is None else torch.where(seen, weights, 0.0)
    with exact(device.type):
        looked = weights if operands.kept is None else weights * operands.kept
        contexts = looked @ in_type(memory.value, kind)
    if goes_on is not None:
        outputs, contexts = (torch.where(goes_on, each, 0.0) for each in (outputs, contexts))
    own = before.hidden.dtype
    outputs, contexts, weights = (each.to(own) for each in (outputs, contexts, weights))
    last = CellState(*(None if each is None else _last(each, task.lengths).to(own) for each in (states, after)))  # type: ignore[arg-type]
    return SequenceResult(outputs, contexts, weights if task.return_weights else None, last)


def prepared(
    cells: StackedCells, memory: Memory, batch: int, kind: torch.dtype, *, one: bool = False, compared: bool = True
) -> tuple[Operands, list[fused.Layer], Tensor | None]:
    """The tensors of a memory and of weights that steps read, but `gates` and `state`; and the seen keys, (B, 1, m).

    Of `one` step values go through their matrix behind the mean. The score is wanted if it is `compared` by its maps.
    """
    key, value = (each.expand(batch, *each.shape[-2:]) for each in (memory.key, memory.value))
    weight = cells.context_weight()
    value = value if one else F.linear(value, weight)
    mask = shown = None
    if memory.valid_lens is not None:
        lens = memory.valid_lens.expand(batch)[:, None, None]
        shown = torch.arange(key.shape[1], device=key.device) < lens
        value = torch.where(shown.mT, value, 0.0)
        # Where every key is hidden values are 0, and the softmax of −∞ alone would be NaN.
        mask = torch.zeros_like(shown, dtype=kind).masked_fill_(~shown & (lens > 0), -torch.inf)
    maps = (memory.score.pair_weight(), *fitting_map(cells, memory)) if compared else (None, None, None)
    if maps[1] is not None and maps[1].shape[1] != cells.hidden_size:
        raise ValueError(
            f"score: got states of {cells.hidden_size} features; expected {maps[1].shape[1]}, as it was made"
        )
    tensors = [in_type(each, kind) for each in (key, value, mask, *maps, weight if one else None)]
    layers = [fused.Layer(*(in_type(each, kind) for each in layer)) for layer in cells.layer_weights()]
    nothing = key.new_empty(0)
    return Operands(nothing, nothing, None, None, None, *tensors), layers, shown


def _looked(memory: Memory, query: Tensor) -> Tensor:
    """The weights (B, 1, m) of queries (B, h), by a call of attention."""
    kind = memory.value.dtype
    _, weights = attend_memory(query.unsqueeze(1).to(kind), memory, return_weights=True)
    return weights.to(query.dtype)


def _last(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence's last one of (layers, B, T, h)."""
    if lengths is None:
        return states[:, :, -1]
    ends = sent(lengths, states.device) - 1
    return states[:, torch.arange(len(ends), device=ends.device), ends]
