"""Recurrent layers over whole sequences on a CPU, as one operation with its own backward.

This is how a call becomes a record of numbers and addresses, `kernel.CALL`, that the compiled kernels read; and
what does not depend on the recurrence: the gradients of weights, each one product over all steps.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from dikkat import addresses
from dikkat.cpu.attention.launch import BYTES
from dikkat.cpu.engine import threads
from dikkat.scores import Pair, Profile

_HAS_NUMBA = find_spec("numba") is not None
_NUMPY = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
# Of an additive query and key: both together, so that two features share a division; each, so that it has an
# exponential; the largest product of the two that is told from infinity; and the largest number.
_RANGES = {
    torch.float32: (30.0, 43.0, 1e30, torch.finfo(torch.float32).max),
    torch.float64: (240.0, 350.0, 1e300, torch.finfo(torch.float64).max),
}
# Sequences of a task at most: so many states, and what else a step needs, stay in a core's cache.
_ROWS = 64
_INTEGERS = {"order", "lengths", "offsets", "owners", "seen"}
_PAIRS = (None, "inner", "additive", "distance")
_PROFILES = ("gaussian", "boxcar", "epanechnikov", "triangular")


@dataclass(frozen=True)
class Rows:
    """Sequences of different lengths as the steps that there are, one after the other, each of the rows that go on.

    Attributes:
        order: (B,) int64: which sequence a row is, the longest first.
        lengths: (B,) int64, of the rows.
        offsets: (T,) int64: where a step begins.
        places: (N,) int64: where in (B · T) each step of each row is.
        batch: B.
        steps: T.
    """

    order: Tensor
    lengths: Tensor
    offsets: Tensor
    places: Tensor
    batch: int
    steps: int

    @classmethod
    def of(cls, lengths: Tensor | None, batch: int, steps: int) -> "Rows":
        """Of lengths (B,) from 1 to T, or all of T steps."""
        if lengths is None:
            lens, order = np.full(batch, steps), np.arange(batch)
        else:
            lens = lengths.numpy(force=True).astype(np.int64)
            order = np.argsort(-lens, kind="stable")
            lens = lens[order]
        step, row = np.nonzero(np.arange(steps)[:, None] < lens)
        offsets = np.searchsorted(step, np.arange(steps))
        kept = [torch.from_numpy(found) for found in (order, lens, offsets, order[row] * steps + step)]
        return cls(kept[0], kept[1], kept[2], kept[3], batch, steps)


class _Gather(torch.autograd.Function):
    """Rows of a tensor, none of them twice; what is not taken gets no gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.count = index, tensor.shape[0]
        return tensor.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _spread(grad, ctx.index, ctx.count), None


class _Spread(torch.autograd.Function):
    """The reverse: rows to where they belong, zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.index = index
        return _spread(tensor, index, count)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.index_select(0, ctx.index), None, None


def _spread(tensor: Tensor, index: Tensor, count: int) -> Tensor:
    if len(index) == count:
        return torch.empty_like(tensor).index_copy_(0, index, tensor)
    return tensor.new_zeros(count, *tensor.shape[1:]).index_copy_(0, index, tensor)


def take(tensor: Tensor, rows: Rows) -> Tensor:
    """(B, T, ...) -> (N, ...)."""
    gathered: Tensor = _Gather.apply(tensor.flatten(0, 1), rows.places)  # type: ignore[no-untyped-call]
    return gathered


def put(tensor: Tensor, rows: Rows) -> Tensor:
    """(N, ...) -> (B, T, ...), zeros where a sequence is over."""
    spread: Tensor = _Spread.apply(tensor, rows.places, rows.batch * rows.steps)  # type: ignore[no-untyped-call]
    return spread.reshape(rows.batch, rows.steps, *tensor.shape[1:])


@dataclass(frozen=True)
class Attention:
    """What a stack attends to.

    Attributes:
        pair: The pair function.
        profile: The log-kernel, where that is `distance`.
        key: (B, m, a), projected.
        value: (B, m, c).
        seen: (B,) int64, or None: keys from there on do not exist.
        weight: (a,) v, for `additive`.
        query_weight: (a, h), or None: the states are the queries.
        query_bias: (a,), or None.
        context_weight: (G·h, c), the contexts' share of the first layer's gates.
        kept: (N, m), what the weights are multiplied by; or None.
    """

    pair: Pair
    profile: Profile
    key: Tensor
    value: Tensor
    seen: Tensor | None
    weight: Tensor | None
    query_weight: Tensor | None
    query_bias: Tensor | None
    context_weight: Tensor
    kept: Tensor | None = None


@dataclass(frozen=True)
class Layer:
    """The weights of a layer: (G·h, h) and (G·h,), with the gates r, z, n or i, f, g, o.

    The side of what it reads is None for the first layer, whose gates come with that in them.
    """

    hidden_weight: Tensor
    hidden_bias: Tensor
    below_weight: Tensor | None = None
    below_bias: Tensor | None = None


class Sequences(NamedTuple):
    """What a run returns.

    Attributes:
        states: (N, h), of the top layer.
        contexts: (N, c), or None.
        weights: (N, m), before dropout; or None.
        state: (layers, B, h), the last ones.
        cell: (layers, B, h), or None.
    """

    states: Tensor
    contexts: Tensor | None
    weights: Tensor | None
    state: Tensor
    cell: Tensor | None


def obstacles(tensors: Iterable[Tensor | None]) -> list[str]:
    """Why it cannot run on these."""
    reasons = addresses.obstacles(tensors)
    if not _HAS_NUMBA:
        reasons.append("Numba is not installed (pip install numba)")
    return reasons


def run(
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    layers: list[Layer],
    rows: Rows,
    *,
    attention: Attention | None = None,
    dropped: Tensor | None = None,
    reverse: bool = False,
) -> Sequences:
    """Run a stack over whole sequences.

    Args:
        gates: (N, G·h), the inputs' side of the first layer's gates, its bias in it.
        state: (layers, B, h) before the first step.
        cell: The same of an LSTM, G = 4; None for a GRU, G = 3.
        layers: The weights.
        rows: The sequences.
        attention: What the stack attends to, or None.
        dropped: (layers − 1, N, h), what a layer's states are multiplied by for the next one; or None.
        reverse: Whether a sequence is read from its end.

    Returns:
        All in the dtype of `state`; computed in at least float32. Under `torch.autocast` the products that give the
        weights' gradients have its dtype.
    """
    pair, profile = (None, None) if attention is None else (attention.pair, attention.profile)
    attended = [getattr(attention, name, None) for name in _OPERANDS]
    weights = [getattr(layer, field.name) for layer in layers for field in fields(Layer)]
    tensors = (gates, state, cell, dropped, *attended, *weights)
    grads = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    spec = _Spec(rows, reverse, len(layers), pair, profile, grads, low)
    kind = _kind(gates)
    operands = [_in_type(operand, kind) for operand in tensors]
    _fit_run(rows, layers, attention, gates, state, cell, dropped)
    found: Any = _Run.apply(spec, *operands)  # type: ignore[no-untyped-call]
    return Sequences(*(_in_type(result, state.dtype) for result in found))


def _fit(name: str, tensor: Tensor | None, *allowed: int) -> None:
    """A kernel reads as many numbers as the sizes say, and so does PyTorch, whatever there is."""
    _fit_shape(name, tensor, *allowed)
    if tensor is not None:
        addresses.check(name, tensor, "cpu")


def _fit_shape(name: str, tensor: Tensor | None, *allowed: int) -> None:
    if tensor is not None and tensor.shape != allowed:
        raise ValueError(f"{name}: came with shape {tuple(tensor.shape)}; allowed: {allowed}")


def _fit_weights(layers: list[Layer], attention: Attention | None) -> None:
    """The weights of a stack fit each other and what it attends to."""
    wide, hidden = layers[0].hidden_weight.shape
    for number, layer in enumerate(layers):
        _fit(f"the recurrent weight of layer {number}", layer.hidden_weight, wide, hidden)
        _fit(f"the recurrent bias of layer {number}", layer.hidden_bias, wide)
        _fit(f"the input weight of layer {number}", layer.below_weight, wide, hidden)
        _fit(f"the input bias of layer {number}", layer.below_bias, wide)
    if attention is None:
        return
    batch, keys, size = attention.key.shape
    values = attention.value.shape[-1]
    _fit("the memory's values", attention.value, batch, keys, values)
    _fit("the memory's lengths", attention.seen, batch)
    _fit("the score's pair weight", attention.weight, size)
    _fit("the context's share of the input weight", attention.context_weight, wide, values)
    query = attention.query_weight
    addresses.check("the memory's keys", attention.key, "cpu")
    if query is not None and tuple(query.shape) != (size, hidden):
        raise ValueError(
            f"score: came with queries of {query.shape[1]} features, of which it makes {query.shape[0]}; allowed: "
            f"{hidden}, as the states have (hidden_size), of which it makes {size}, as the memory's keys have"
        )
    if query is None and size != hidden:
        raise ValueError(f"memory: came with keys of {size} features; allowed: {hidden}, as the states have")
    _fit("the queries' weight", query, size, hidden)
    _fit("the queries' bias", attention.query_bias, size)


def _fit_run(
    rows: Rows,
    layers: list[Layer],
    attention: Attention | None,
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    dropped: Tensor | None,
) -> None:
    """What a run reads fits its sequences and its weights."""
    _fit_weights(layers, attention)
    (wide, hidden), tokens = layers[0].hidden_weight.shape, len(rows.places)
    _fit("gates", gates, tokens, wide)
    _fit("state", state, len(layers), rows.batch, hidden)
    _fit("cell", cell, len(layers), rows.batch, hidden)
    _fit("dropped", dropped, len(layers) - 1, tokens, hidden)
    if attention is not None:
        _fit("the memory's keys", attention.key, rows.batch, *attention.key.shape[1:])
        _fit("kept", attention.kept, tokens, attention.key.shape[1])


def _kind(gates: Tensor) -> torch.dtype:
    """What is computed in."""
    return torch.promote_types(gates.dtype, torch.float32)


def _in_type(operand: Any, kind: torch.dtype) -> Any:
    """Numbers in that type; nothing, and whole numbers, as they are."""
    if operand is None or operand.dtype == kind or not operand.is_floating_point():
        return operand
    return operand.to(kind)


_OPERANDS = ("key", "value", "seen", "weight", "query_weight", "query_bias", "context_weight", "kept")
_ATTENDED = len(_OPERANDS)


class _Spec(NamedTuple):
    rows: Rows
    reverse: bool
    layers: int
    pair: Pair | None
    profile: Profile | None
    grads: bool = False  # whether any are to be had
    low: torch.dtype | None = None  # of the products over all steps, where it is not that of everything


def _steps() -> ModuleType:
    """The compiled kernels, imported when first used."""
    from dikkat.cpu.recurrence import kernel as recurrence_kernel

    return recurrence_kernel


class _Record:
    """A call as the record that the kernels read; keeps alive what its addresses point to."""

    def __init__(self, spec: _Spec, dtype: torch.dtype, hidden: int, lstm: bool) -> None:
        self.spec, self.dtype = spec, dtype
        self.wide = 2 * BYTES // dtype.itemsize
        self.kept: dict[str, Tensor] = {}
        self.packs: list[tuple[int, ...]] = []
        self.sources: list[Tensor] = []
        self.fields: dict[str, Any] = _steps().NOTHING_YET.copy()
        rows, batch = spec.rows, spec.rows.batch
        threads = torch.get_num_threads()
        # As many for each thread, so that none waits for another.
        tasks = min(batch, threads * -(-batch // (threads * _ROWS)))
        self.fields |= {
            "tasks": tasks,
            "cell": int(lstm),
            "reverse": int(spec.reverse),
            "layers": spec.layers,
            "hidden": self.up(hidden),
            "own": hidden,
            "batch": batch,
            "tokens": len(rows.places),
            "pair": _PAIRS.index(spec.pair),
            "profile": 0 if spec.profile is None else _PROFILES.index(spec.profile),
        }
        self.fields |= zip(("folded", "single", "highest", "most"), _RANGES[dtype], strict=True)
        for name in ("order", "lengths", "offsets"):
            self.point(name, getattr(rows, name))

    def again(self) -> "_Record":
        """The same call, with the same addresses, for another kernel."""
        made = object.__new__(_Record)
        made.spec, made.dtype, made.wide = self.spec, self.dtype, self.wide
        made.kept, made.packs, made.sources, made.fields = {}, [], [], self.fields.copy()
        return made

    def forget(self) -> None:
        """What the backward does not read."""
        self.sources.clear()
        for name in ("gates", "scratch", "hidden_weight", "hidden_bias", "below_weight", "below_bias"):
            self.kept.pop(name, None)

    def up(self, size: int) -> int:
        """The next multiple of a panel's columns."""
        return -(-size // self.wide) * self.wide

    def fill(self, tensor: Tensor, groups: int = 1) -> Tensor:
        """The last dimension, of so many groups, each filled up with zeros to whole panels; contiguous."""
        size = tensor.shape[-1] // groups
        if more := self.up(size) - size:
            tensor = pad(tensor.unflatten(-1, (groups, size)), (0, more)).flatten(-2)
        return tensor.contiguous()

    def panels(self, name: str, weights: list[Tensor], groups: int, *, transposed: bool) -> None:
        """Weights (out, in) as panels of the matrix that inputs are multiplied with, or, transposed, gradients."""
        rows, columns = weights[0].shape[0] // groups, weights[0].shape[1]
        out, size = groups * self.up(rows), self.up(columns)
        into = self.new(name, len(weights), out, size)
        for weight, packed in zip(weights, into, strict=True):
            weight = weight if weight.stride(1) == 1 else weight.contiguous()
            self.sources.append(weight)
            sizes = (weight.stride(0), columns, rows, self.up(rows))
            shape = (out, size // self.wide, 1) if transposed else (size, out // self.wide, 0)
            self.packs.append((*self._apart(name, weight, packed), *sizes, *shape))

    def _apart(self, name: str, weight: Tensor, packed: Tensor) -> tuple[int, int]:
        """Where a weight is, whose rows may be a part of wider ones, and where it is to be."""
        source = addresses.rows_address(name, weight, self.dtype)
        return source, addresses.address(name, packed, self.dtype)

    def pack(self) -> None:
        """Fill all panels."""
        numbers = [number for pack in self.packs for number in pack]
        packs = (ctypes.c_int64 * len(numbers))(*numbers)
        tasks = sum(pack[_steps().PANELS] for pack in self.packs)
        now = self.fields | {"packs": ctypes.addressof(packs), "packings": len(self.packs), "tasks": tasks}
        self.launch(_steps().pack, now)

    def point(self, name: str, tensor: Tensor) -> Tensor:
        """Put a tensor's address into the record."""
        self.kept[name] = tensor
        self.fields[name] = addresses.address(name, tensor, torch.int64 if name in _INTEGERS else self.dtype)
        return tensor

    def new(self, name: str, *shape: int) -> Tensor:
        made, self.fields[name] = addresses.made(shape, self.dtype)
        self.kept[name] = made
        return made

    def zeros(self, name: str, *shape: int) -> Tensor:
        return self.point(name, torch.zeros(shape, dtype=self.dtype, device="cpu"))

    def run(self, kernel: Any, scratch: int) -> None:
        """Run a kernel whose workers need so many numbers of scratch each."""
        scratch = self.up(scratch)
        self.new("scratch", min(self.fields["tasks"], torch.get_num_threads()), scratch)
        self.launch(kernel, self.fields | {"scratch_size": scratch})

    def launch(self, kernel: Any, at: dict[str, Any]) -> None:
        values = list(at.values())[1:-1]
        threads.launch(kernel(_NUMPY[self.dtype]), _steps().FORM, values, at["tasks"])


def _point_weights(record: _Record, operands: dict[str, Tensor | None], layers: list[Layer], transposed: bool) -> None:
    """The weights of a stack, for its forward or, transposed, its backward."""
    groups = 4 if record.fields["cell"] else 3
    record.panels("hidden_weight", [layer.hidden_weight for layer in layers], groups, transposed=transposed)
    below = [layer.below_weight for layer in layers if layer.below_weight is not None]
    if below:
        record.panels("below_weight", below, groups, transposed=transposed)
    for name, count in (("context_weight", groups), ("query_weight", 1)):
        weight = operands[name]
        if weight is not None:
            record.panels(name, [weight], count, transposed=transposed)
    record.pack()
    if not transposed:
        record.point("hidden_bias", _several([record.fill(layer.hidden_bias, groups) for layer in layers]))
        if below:
            biases = [record.fill(layer.below_bias, groups) for layer in layers if layer.below_bias is not None]
            record.point("below_bias", _several(biases))
        if operands["query_bias"] is not None:
            record.point("query_bias", record.fill(operands["query_bias"]))


def _several(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)


def _point_attention(record: _Record, operands: dict[str, Tensor | None]) -> None:
    """Keys and values, filled up."""
    key, value = operands["key"], operands["value"]
    if key is None or value is None:
        return
    key, value = record.point("key", record.fill(key)), record.point("value", record.fill(value))
    keys = key.shape[1]
    record.fields |= {
        "keys": keys,
        "key_row": max(record.up(keys), record.wide),
        "features": key.shape[2],
        "values": value.shape[2],
    }
    if operands["seen"] is not None:
        record.point("seen", operands["seen"].to(torch.int64).contiguous())
    if operands["kept"] is not None:
        record.point("kept", pad(operands["kept"], (0, record.fields["key_row"] - keys)).contiguous())
    if record.spec.pair == "additive" and operands["weight"] is not None:
        record.point("weight", record.fill(operands["weight"]))
        record.point("key_exp", (key + key).exp_())
        reach = key.new_zeros(key.shape[0]) if keys == 0 else key.flatten(1).abs().amax(1)
        record.point("reach", reach)


def _forward(record: _Record, gates: Tensor, state: Tensor, cell: Tensor | None) -> None:
    """Run the kernel on a record that has its weights."""
    at, layers, tokens = record.fields, record.fields["layers"], record.fields["tokens"]
    hidden, batch, values = at["hidden"], at["batch"], at["values"]
    groups = 3 if cell is None else 4
    record.point("gates", record.fill(gates, groups))
    record.point("state", record.fill(state))
    record.new("states", layers, tokens, hidden)
    record.new("last_state", layers, batch, hidden)
    if cell is not None:
        record.point("memory_cell", record.fill(cell))
        record.new("last_cell", layers, batch, hidden)
    if at["pair"]:
        record.new("contexts", tokens, values)
        record.new("weights", tokens, at["key_row"])
    if record.spec.grads:
        record.new("saved", layers, tokens, 4 * hidden)
        record.new("began", layers, tokens, hidden)
        if cell is not None:
            record.new("cells", layers, tokens, hidden)
        if at["pair"]:
            record.new("queries", tokens, at["features"])
            if record.spec.pair == "additive":
                record.new("query_exp", tokens, at["features"])
    most = -(-batch // at["tasks"])
    own = most * (hidden * (layers * (1 if cell is None else 2) + 2 * groups + 1) + at["features"] + values)
    record.run(_steps().forward, own + 4 * hidden + at["features"] + at["key_row"])


class _Run(torch.autograd.Function):
    """`run`, its operands in the order of `_OPERANDS` and of the fields of `Layer`."""

    @staticmethod
    def forward(ctx: Any, spec: _Spec, *tensors: Tensor | None) -> Any:
        gates, state, cell, dropped, *rest = tensors
        if gates is None or state is None:
            raise TypeError("gates and state are tensors")
        operands = dict(zip(_OPERANDS, rest[:_ATTENDED], strict=True))
        layers = _layers(rest[_ATTENDED:])
        record = _Record(spec, gates.dtype, state.shape[-1], cell is not None)
        _point_weights(record, operands, layers, transposed=False)
        _point_attention(record, operands)
        if dropped is not None:
            record.point("dropped", record.fill(dropped))
        _forward(record, gates, state, cell)
        ctx.set_materialize_grads(False)
        if spec.grads:
            record.forget()
            ctx.spec, ctx.record = spec, record
            ctx.save_for_backward(None, *tensors[1:])
        # Not the record's own tensors, which would be its results and belong to it: a circle.
        found = _results(record, state.shape[-1], operands)
        return tuple(None if result is None else result.detach() for result in found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None, *_backward(ctx.spec, ctx.record, ctx.saved_tensors, grads, ctx.needs_input_grad[1:])


def _layers(weights: list[Tensor | None]) -> list[Layer]:
    count = len(fields(Layer))
    return [Layer(*weights[start : start + count]) for start in range(0, len(weights), count)]  # type: ignore[arg-type]


def _results(record: _Record, hidden: int, operands: dict[str, Tensor | None]) -> Sequences:
    kept = record.kept
    contexts = weights = cell = None
    if operands["value"] is not None and operands["key"] is not None:
        contexts = _first(kept["contexts"], operands["value"].shape[2])
        weights = _first(kept["weights"], operands["key"].shape[1])
    if "last_cell" in kept:
        cell = _first(kept["last_cell"], hidden)
    return Sequences(_first(kept["states"][-1], hidden), contexts, weights, _first(kept["last_state"], hidden), cell)


def _first(tensor: Tensor, size: int) -> Tensor:
    """Without what the last dimension was filled up with."""
    return tensor if tensor.shape[-1] == size else tensor[..., :size]


def _backward(
    spec: _Spec,
    record: _Record,
    tensors: tuple[Tensor | None, ...],
    grads: tuple[Tensor | None, ...],
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    _, state, _cell, dropped, *rest = tensors
    operands = dict(zip(_OPERANDS, rest[:_ATTENDED], strict=True))
    layers = _layers(rest[_ATTENDED:])
    if state is None:
        raise TypeError("the state is a tensor")
    made = record.again()
    _point_weights(made, operands, layers, transposed=True)
    _point_gradients(made, record, grads)
    _run_backward(made)
    return _gradients(made, record, operands, layers, needed, (state.shape[-1], dropped))


def _point_gradients(made: _Record, record: _Record, grads: tuple[Tensor | None, ...]) -> None:
    """What comes from above, and where the results go."""
    at = made.fields
    layers, tokens, hidden, batch = at["layers"], at["tokens"], at["hidden"], at["batch"]
    lstm = bool(at["cell"])
    wide = (4 if lstm else 3) * hidden

    def given(name: str, grad: Tensor | None, *shape: int) -> None:
        made.point(name, torch.zeros(shape, dtype=made.dtype, device="cpu") if grad is None else made.fill(grad))

    states, contexts, weights, last_state, last_cell = grads
    given("states_grad", states, tokens, hidden)
    given("last_state_grad", last_state, layers, batch, hidden)
    made.new("state_grad", layers, batch, hidden)
    gates = made.new("gates_grad", layers, tokens, wide)
    if lstm:
        given("last_cell_grad", last_cell, layers, batch, hidden)
        made.new("cell_grad", layers, batch, hidden)
        made.point("recurrent_grad", gates)
    else:
        made.new("recurrent_grad", layers, tokens, wide)
    if at["pair"]:
        given("contexts_grad", contexts, tokens, at["values"])
        if weights is not None:
            made.point("weights_grad", pad(weights, (0, at["key_row"] - weights.shape[-1])).contiguous())
        if at["query_weight"]:
            made.new("query_grad", tokens, at["features"])
        made.new("score_grad", tokens, at["key_row"])
        made.new("context_sums", tokens, at["values"])
        made.zeros("key_grad", *record.kept["key"].shape)
        made.zeros("value_grad", *record.kept["value"].shape)
        made.zeros("weight_grad", at["tasks"], at["features"])


def _run_backward(made: _Record) -> None:
    at = made.fields
    groups, most = (4, 3)[not at["cell"]], -(-at["batch"] // at["tasks"])
    own = at["hidden"] * (at["layers"] * (1 + at["cell"]) + 2 * groups + 1) + at["values"] + at["features"]
    made.run(_steps().backward, most * own + 2 * at["key_row"])


def _gradients(
    made: _Record,
    record: _Record,
    operands: dict[str, Tensor | None],
    layers: list[Layer],
    needed: tuple[bool, ...],
    more: tuple[int, Tensor | None],
) -> list[Tensor | None]:
    """All gradients in the order of the operands; those of weights are products over all steps."""
    hidden, dropped = more
    at, kept, now = made.fields, record.kept, made.kept
    groups = 4 if at["cell"] else 3

    def cut(tensor: Tensor, size: int) -> Tensor:
        """The gates' features without what they were filled up with."""
        if tensor.shape[-1] == groups * size:
            return tensor
        found: Tensor = tensor.unflatten(-1, (groups, -1))[..., :size].flatten(-2)
        return found

    def product(by: Tensor, of: Tensor, rows: int, columns: int, groups: int) -> Tensor:
        if record.spec.low is not None:
            by, of = by.to(record.spec.low), of.to(record.spec.low)
        found = (by.t() @ of)[:, :columns].to(made.dtype)
        return found if found.shape[0] == groups * rows else found.unflatten(0, (groups, -1))[:, :rows].flatten(0, 1)

    gates, recurrent = now["gates_grad"], now["recurrent_grad"]
    first = [
        cut(gates[0], hidden) if needed[0] else None,
        _first(now["state_grad"], hidden) if needed[1] else None,
        _first(now["cell_grad"], hidden) if needed[2] and "cell_grad" in now else None,
        None,
    ]
    states, began = kept["states"], kept["began"]
    attended: dict[str, Tensor | None] = dict.fromkeys(_OPERANDS)
    if at["pair"]:
        key, value, query_weight = operands["key"], operands["value"], operands["query_weight"]
        if key is None or value is None:
            raise TypeError("keys and values are tensors")
        attended["key"] = _first(now["key_grad"], key.shape[-1])
        attended["value"] = _first(now["value_grad"], value.shape[-1])
        attended["context_weight"] = product(gates[0], kept["contexts"], hidden, value.shape[-1], groups)
        if at["weight"]:
            attended["weight"] = now["weight_grad"].sum(0)[: key.shape[-1]]
        if query_weight is not None:
            by_query = now["query_grad"]
            attended["query_weight"] = product(by_query, began[-1], key.shape[-1], hidden, 1)
            if operands["query_bias"] is not None:
                attended["query_bias"] = by_query.sum(0)[: key.shape[-1]]
    weights: list[Tensor | None] = []
    for number, layer in enumerate(layers):
        weights += [
            product(recurrent[number], began[number], hidden, hidden, groups),
            cut(recurrent[number].sum(0), hidden),
        ]
        if layer.below_weight is None:
            weights += [None, None]
            continue
        below = states[number - 1]
        if dropped is not None:
            below = below * kept["dropped"][number - 1]
        weights += [
            product(gates[number], below, hidden, hidden, groups),
            cut(gates[number].sum(0), hidden),
        ]
    return [*first, *attended.values(), *weights]


class Stepper:
    """A stack that attends, step by step and without gradients: what steps share is made once.

    It is not written to once it is made: any number of threads may step it.

    Args:
        layers: The weights, which nobody changes; G = 3 or 4 is seen by them.
        attention: What it attends to.
    """

    def __init__(self, layers: list[Layer], attention: Attention) -> None:
        _fit_weights(layers, attention)
        kind = _kind(layers[0].hidden_weight)
        self._layers = [Layer(*(_in_type(getattr(layer, f.name), kind) for f in fields(Layer))) for layer in layers]
        self._operands = {name: _in_type(getattr(attention, name), kind) for name in _OPERANDS}
        self._pair, self._profile = attention.pair, attention.profile
        groups, hidden = layers[0].hidden_weight.shape
        self._hidden, self._lstm = hidden, groups == 4 * hidden
        weights = self._record(1)
        _point_weights(weights, self._operands, self._layers, transposed=False)
        self._weights = {name: t for name, t in weights.kept.items() if name not in _ROW_FIELDS}
        key = self._record(attention.key.shape[0])
        _point_attention(key, self._operands)
        # Not the memory's own tensors, which their owner can cut off from their storage.
        shared = {id(tensor) for tensor in self._operands.values()}
        self._sentences = {
            name: t.clone() if id(t) in shared else t for name, t in key.kept.items() if name not in _ROW_FIELDS
        }
        self._sizes = {name: key.fields[name] for name in ("keys", "key_row", "features", "values")}
        self._owners: Tensor | None = None
        self._use(key)

    def _record(self, batch: int) -> _Record:
        spec = _Spec(Rows.of(None, batch, 1), False, len(self._layers), self._pair, self._profile)
        return _Record(spec, self._layers[0].hidden_weight.dtype, self._hidden, self._lstm)

    def _use(self, record: _Record) -> None:
        for name, tensor in (self._weights | self._sentences).items():
            record.point(name, tensor)
        record.fields |= self._sizes
        if self._owners is not None:
            record.point("owners", self._owners)
        self._now = record

    @property
    def batch(self) -> int:
        """How many sequences go on."""
        return int(self._now.fields["batch"])

    def select(self, rows: Tensor) -> "Stepper":
        """That of some of the sequences, of which nothing is copied."""
        selected = object.__new__(Stepper)
        selected.__dict__ |= self.__dict__
        selected._owners = rows if self._owners is None else self._owners.index_select(0, rows)
        selected._use(self._record(len(rows)))
        return selected

    def step(self, gates: Tensor, state: Tensor, cell: Tensor | None) -> Sequences:
        """One step on.

        Args:
            gates: (B, G·h), the inputs' side of the first layer's gates, its bias in it.
            state: (layers, B, h).
            cell: The same of an LSTM; None for a GRU.
        """
        batch = self.batch
        _fit_shape("gates", gates, batch, (4 if self._lstm else 3) * self._hidden)
        _fit_shape("state", state, len(self._layers), batch, self._hidden)
        _fit_shape("cell", cell, len(self._layers), batch, self._hidden)
        record, kind = self._now.again(), state.dtype  # of this call, whoever else steps meanwhile
        gates, state, cell = (_in_type(operand, record.dtype) for operand in (gates, state, cell))
        _forward(record, gates, state, cell)
        found = _results(record, self._hidden, self._operands)
        return Sequences(*(_in_type(result, kind) for result in found))


_ROW_FIELDS = ("order", "lengths", "offsets")
