"""Run recurrent cells with attention over whole sequences, as one compiled operation or step by step in PyTorch."""

from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat import scores
from dikkat._engine.addresses import check_storage, exact, tensor_obstacles, to_device
from dikkat._engine.pytorch_state import can_read_values
from dikkat.attention import Memory, attend_memory
from dikkat.recurrent.cells import StackedCells
from dikkat.recurrent.fused.calls import find_dtype, to_dtype
from dikkat.recurrent.fused.launch import run_stack
from dikkat.recurrent.fused.stack import Layer, Operands, Results, Rows, pack_rows, unpack_rows
from dikkat.recurrent.steps import mask_keys, run_steps
from dikkat.scores import Score, is_plain


class Initial(NamedTuple):
    """The states before the first step, and dropout's factors (…, B, T, …) of all steps, as in `Operands`."""

    state: Tensor
    cell: Tensor | None
    state_factors: Tensor | None
    weight_factors: Tensor | None


def draw_factors(
    cells: StackedCells, inputs: Tensor, positions: int, dropout: float, weight_dropout: float
) -> tuple[Tensor | None, Tensor | None]:
    """Draw dropout's factors: for states between layers (layers − 1, B, T, h), and for weights (B, T, m).

    All are drawn before the first step, so that every implementation drops the same numbers.
    """

    def draw(p: float, *shape: int) -> Tensor | None:
        return F.dropout(inputs.new_ones(shape), p) if p else None

    batch, steps = inputs.shape[:2]
    state_factors = draw(dropout, cells.num_layers - 1, batch, steps, cells.hidden_size)
    return state_factors, draw(weight_dropout, batch, steps, positions)


# --- as one operation


def find_obstacles(
    cells: StackedCells, inputs: Tensor, memory: Memory, state: Tensor, cell: Tensor | None
) -> list[str]:
    """Return the reasons why the compiled recurrence cannot run."""
    reasons = tensor_obstacles((inputs, memory.key, memory.value, memory.valid_lens, state, cell, *cells.parameters()))
    reasons += find_score_obstacles(memory.score)
    if memory.key.ndim != 3 or len(memory.key) != len(inputs):
        reasons.append(
            f"the memory's keys have shape {tuple(memory.key.shape)}, not ({len(inputs)}, positions, features)"
        )
    if not len(inputs):
        reasons.append("the batch is empty")
    return reasons


def find_score_obstacles(score: Score) -> list[str]:
    """Return the reasons why a score cannot be written as a matrix for queries and a pair function."""
    reasons = []
    if score.projection == "any":
        reasons.append(f"the queries of {type(score).__name__} are not known to be affine in the state")
    if getattr(score, "softcap", None) is not None:
        reasons.append("the score is capped")
    for name, module in score.named_children():
        if not is_plain(module):
            reasons.append(f"score.{name} is not a plain torch.nn.Linear, or has hooks")
    return reasons


def find_query_map(cells: StackedCells, score: Score) -> tuple[Tensor | None, Tensor | None]:
    """Return the matrix (a, h) and bias (a,) from states to queries; None if states are the queries."""
    if score.projection == "none":
        return None, None
    if isinstance(score, scores.Additive | scores.Bilinear):
        return score.W_q.weight, score.W_q.bias
    weight = cells.part("weight_hh", 0)
    bias = score.project_query(weight.new_zeros(1, cells.hidden_size))
    identity = torch.eye(cells.hidden_size, dtype=weight.dtype, device=weight.device)
    return (score.project_query(identity) - bias).t(), bias[0]


def check_query_map(cells: StackedCells, memory: Memory) -> tuple[Tensor | None, Tensor | None]:
    """Return `find_query_map` of a memory's score; raise `ValueError` if its queries do not fit the keys."""
    weight, bias = find_query_map(cells, memory.score)
    query_size, key_size = cells.hidden_size if weight is None else weight.shape[0], memory.key.shape[-1]
    if key_size != query_size:
        raise ValueError(
            f"memory: got keys of {key_size} features; expected {query_size}, as many as the queries of "
            f"{type(memory.score).__name__}"
        )
    return weight, bias


def run_fused(cells: StackedCells, inputs: Tensor, memory: Memory, initial: Initial, lengths: Tensor | None) -> Results:
    """Run all steps as one operation of compiled code. `lengths` (B,) count each sequence's steps; None: T."""
    rows, score = Rows.of(lengths, *inputs.shape[:2]), memory.score
    query_weight, query_bias = check_query_map(cells, memory)
    operands = Operands(
        gates=cells.first_gates(pack_rows(inputs, rows)), state=initial.state, cell=initial.cell,
        state_factors=(
            None if initial.state_factors is None else torch.stack([pack_rows(t, rows) for t in initial.state_factors])
        ),
        weight_factors=None if initial.weight_factors is None else pack_rows(initial.weight_factors, rows),
        key=memory.key, value=memory.value, key_counts=memory.valid_lens, weight=score.pair_weight(),
        query_weight=query_weight, query_bias=query_bias, context_weight=cells.context_weight(),
    )  # fmt: skip
    results = run_stack(operands, cells.layer_weights(), rows, score.pair, score.profile)
    outputs, contexts, weights = (unpack_rows(cast(Tensor, tensor), rows) for tensor in results[:3])
    return Results(outputs, contexts, weights, results.state, results.cell)


# --- in PyTorch's operations


def run_in_steps(
    cells: StackedCells, inputs: Tensor, memory: Memory, initial: Initial, lengths: Tensor | None,
    calls_attention: bool = False,
) -> Results:  # fmt: skip
    """Take one step after the other in PyTorch's operations, with the arguments of `run_fused`.

    With `calls_attention`, each step calls `attend_memory`, which an observer may change.
    """
    device, state_dtype = inputs.device, initial.state.dtype
    (batch, steps), dtype, in_sequence = inputs.shape[:2], find_dtype(inputs), None
    for name, tensor in {"memory.key": memory.key, "memory.value": memory.value}.items():
        if can_read_values(tensor):
            check_storage(name, tensor)
    if lengths is not None:
        in_sequence = (torch.arange(steps, device=device) < to_device(lengths, device)[:, None]).unsqueeze(-1)
        inputs = torch.where(in_sequence, inputs, 0.0)
    find_weights = None
    # If the score has no matrix for queries; or for one step, for which attention has a faster kernel.
    if calls_attention or find_score_obstacles(memory.score) or (steps == 1 and inputs.is_cpu):
        find_weights = partial(_attend, memory)
    operands, layers, visible = prepare_operands(
        cells, memory, batch, dtype, one_step=steps == 1, maps_query=find_weights is None
    )
    converted = {name: to_dtype(getattr(initial, name), dtype) for name in Initial._fields}
    operands = operands._replace(gates=to_dtype(cells.first_gates(inputs), dtype), **converted)
    states, new_cells, weights = run_steps(operands, layers, memory.score.pair, memory.score.profile, find_weights)
    outputs, weight_mask = states[-1], in_sequence
    if visible is not None:
        weight_mask = visible if in_sequence is None else visible & in_sequence
    if weight_mask is not None:
        weights = torch.where(weight_mask, weights, 0.0)
    with exact(device.type):
        used_weights = weights if operands.weight_factors is None else weights * operands.weight_factors
        contexts = used_weights @ to_dtype(memory.value, dtype)
    if in_sequence is not None:
        outputs, contexts = (torch.where(in_sequence, tensor, 0.0) for tensor in (outputs, contexts))
    last = (None if tensor is None else _select_last(tensor, lengths) for tensor in (states, new_cells))
    return Results(*(to_dtype(tensor, state_dtype) for tensor in (outputs, contexts, weights, *last)))


def prepare_operands(
    cells: StackedCells, memory: Memory, batch: int, dtype: torch.dtype, *, one_step: bool = False,
    maps_query: bool = True,
) -> tuple[Operands, list[Layer], Tensor | None]:  # fmt: skip
    """Return a memory's operands (with empty `gates` and `state`), the layers, and the mask of keys (B, 1, m).

    The values are multiplied by `context_weight`, except with `one_step`, where `run_steps` multiplies the context.
    With `maps_query` the operands have the score's weight, and the matrix and bias from states to queries.
    """
    key, value = (tensor.expand(batch, *tensor.shape[-2:]) for tensor in (memory.key, memory.value))
    context_weight, key_counts, visible = cells.context_weight(), memory.valid_lens, None
    value = value if one_step else F.linear(value, context_weight)
    if key_counts is not None:
        key_counts = key_counts.expand(batch)
        visible = mask_keys(key_counts, key.shape[1])
        value = torch.where(visible.mT, value, 0.0)
    weight = query_weight = query_bias = None
    if maps_query:
        weight, (query_weight, query_bias) = memory.score.pair_weight(), check_query_map(cells, memory)
    if query_weight is not None and query_weight.shape[1] != cells.hidden_size:
        raise ValueError(
            f"score: got queries of {query_weight.shape[1]} features; expected {cells.hidden_size} (hidden_size)"
        )
    layers = [Layer(*(to_dtype(tensor, dtype) for tensor in layer)) for layer in cells.layer_weights()]
    empty = key.new_empty(0)
    operands = Operands(
        empty, empty, key=to_dtype(key, dtype), value=to_dtype(value, dtype), key_counts=key_counts,
        weight=to_dtype(weight, dtype), query_weight=to_dtype(query_weight, dtype),
        query_bias=to_dtype(query_bias, dtype), context_weight=to_dtype(context_weight, dtype) if one_step else None,
    )  # fmt: skip
    return operands, layers, visible


def _attend(memory: Memory, query: Tensor) -> Tensor:
    """Return the weights (B, 1, m) of queries (B, h)."""
    dtype = memory.value.dtype
    _, weights = attend_memory(query.unsqueeze(1).to(dtype), memory, return_weights=True)
    return weights.to(query.dtype)


def _select_last(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Select each sequence's last states (layers, B, h) from (layers, B, T, h)."""
    if lengths is None:
        return states[:, :, -1]
    last_steps = to_device(lengths, states.device) - 1
    return states[:, torch.arange(len(last_steps), device=last_steps.device), last_steps]
