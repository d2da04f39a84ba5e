"""Cells that attend before every step, over whole sequences: compiled, or in PyTorch's operations."""

from functools import partial
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat import scores
from dikkat._engine.addresses import check_room, exact, sent, tensor_obstacles
from dikkat._engine.pytorch_state import can_read_values
from dikkat.attention import Memory, attend_memory
from dikkat.recurrent.cells import StackedCells
from dikkat.recurrent.fused.calls import in_type, wide_type
from dikkat.recurrent.fused.launch import run_stack
from dikkat.recurrent.fused.stack import Layer, Operands, Results, Rows, put, take
from dikkat.recurrent.steps import run, shown_keys
from dikkat.scores import Score, is_plain


def masks(
    cells: StackedCells, inputs: Tensor, positions: int, dropout: float, weight_dropout: float
) -> tuple[Tensor | None, Tensor | None]:
    """Draw masks of dropout, scaled: for features between layers (layers − 1, B, T, h), for weights (B, T, m).

    They are drawn at once, so that every implementation drops the same.
    """

    def drawn(p: float, *shape: int) -> Tensor | None:
        return F.dropout(inputs.new_ones(shape), p) if p else None

    batch, steps = inputs.shape[:2]
    features = drawn(dropout, cells.num_layers - 1, batch, steps, cells.hidden_size)
    return features, drawn(weight_dropout, batch, steps, positions)


# --- as one operation


def recurrence_obstacles(
    cells: StackedCells, inputs: Tensor, memory: Memory, state: Tensor, cell: Tensor | None
) -> list[str]:
    """The reasons why the compiled recurrence cannot run."""
    reasons = tensor_obstacles((inputs, memory.key, memory.value, memory.valid_lens, state, cell, *cells.parameters()))
    reasons += score_obstacles(memory.score)
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


def as_operation(cells: StackedCells, inputs: Tensor, memory: Memory, x: Operands, lengths: Tensor | None) -> Results:
    """Run all steps as one operation of compiled code, with a backward of its own.

    The memory has the score that counts. Of `x` the states before the first step are read, and the masks of dropout as
    (B, T, …) factors. `lengths` (B,) are the steps of each sequence; None for T steps.
    """
    rows, score = Rows.of(lengths, *inputs.shape[:2]), memory.score
    query_weight, query_bias = fitting_map(cells, memory)
    operands = Operands(
        gates=cells.first_gates(take(inputs, rows)), state=x.state, cell=x.cell,
        dropped=None if x.dropped is None else torch.stack([take(mask, rows) for mask in x.dropped]),
        kept=None if x.kept is None else take(x.kept, rows), key=memory.key, value=memory.value,
        seen=memory.valid_lens, weight=score.pair_weight(), query_weight=query_weight, query_bias=query_bias,
        context_weight=cells.context_weight(),
    )  # fmt: skip
    results = run_stack(operands, cells.layer_weights(), rows, score.pair, score.profile)
    outputs, contexts, weights = (put(cast(Tensor, each), rows) for each in results[:3])
    return Results(outputs, contexts, weights, results.state, results.cell)


# --- in PyTorch's operations


def in_steps(cells: StackedCells, inputs: Tensor, memory: Memory, x: Operands, lengths: Tensor | None) -> Results:
    """Take one step after the other, in PyTorch's operations; arguments as those of `as_operation`."""
    device, own = inputs.device, x.state.dtype
    (batch, count), kind, goes_on = inputs.shape[:2], wide_type(inputs), None
    for name, tensor in {"memory.key": memory.key, "memory.value": memory.value}.items():
        if can_read_values(tensor):
            check_room(name, tensor)
    if lengths is not None:
        goes_on = (torch.arange(count, device=device) < sent(lengths, device)[:, None]).unsqueeze(-1)
        inputs = torch.where(goes_on, inputs, 0.0)
    look = None
    if score_obstacles(memory.score) or (count == 1 and inputs.is_cpu):  # where kernels for few queries are
        look = partial(_looked, memory)
    operands, layers, shown = prepared(cells, memory, batch, kind, one=count == 1, compared=look is None)
    begun = {name: in_type(getattr(x, name), kind) for name in ("state", "cell", "dropped", "kept")}
    operands = operands._replace(gates=in_type(cells.first_gates(inputs), kind), **begun)
    states, after, weights = run(operands, layers, memory.score.pair, memory.score.profile, look)
    outputs, seen = states[-1], goes_on if shown is None or goes_on is None else shown & goes_on
    seen = shown if goes_on is None else seen
    weights = weights if seen is None else torch.where(seen, weights, 0.0)
    with exact(device.type):
        looked = weights if operands.kept is None else weights * operands.kept
        contexts = looked @ in_type(memory.value, kind)
    if goes_on is not None:
        outputs, contexts = (torch.where(goes_on, each, 0.0) for each in (outputs, contexts))
    last = (None if each is None else _last(each, lengths) for each in (states, after))
    return Results(*(in_type(each, own) for each in (outputs, contexts, weights, *last)))


def prepared(
    cells: StackedCells, memory: Memory, batch: int, kind: torch.dtype, *, one: bool = False, compared: bool = True
) -> tuple[Operands, list[Layer], Tensor | None]:
    """The tensors of a memory and of weights that steps read, but `gates` and `state`; and the seen keys, (B, 1, m).

    Of `one` step values go through their matrix behind the mean. The score is wanted if it is `compared` by its maps.
    """
    key, value = (each.expand(batch, *each.shape[-2:]) for each in (memory.key, memory.value))
    weight, seen, shown = cells.context_weight(), memory.valid_lens, None
    value = value if one else F.linear(value, weight)
    if seen is not None:
        seen = seen.expand(batch)
        shown = shown_keys(seen, key.shape[1])
        value = torch.where(shown.mT, value, 0.0)
    maps = (memory.score.pair_weight(), *fitting_map(cells, memory)) if compared else (None, None, None)
    if maps[1] is not None and maps[1].shape[1] != cells.hidden_size:
        raise ValueError(
            f"score: got states of {cells.hidden_size} features; expected {maps[1].shape[1]}, as it was made"
        )
    tensors = [in_type(each, kind) for each in (key, value, seen, *maps, weight if one else None)]
    layers = [Layer(*(in_type(each, kind) for each in layer)) for layer in cells.layer_weights()]
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
