"""A stack's call as the record that the kernels read, `record.CALL`, with the weights and the memory in it."""

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from dikkat._core.compiled.scoring import PROFILES, RANGES
from dikkat._engine import addresses
from dikkat._engine.record import CallRecord, round_up
from dikkat.recurrent.fused.record import CALL, CHOICES, PANEL, PANELS
from dikkat.recurrent.fused.stack import Layer, Operands, Results, Rows
from dikkat.scores import Pair, Profile

# Sequences of a task at most: their states, and what else a step needs, stay in a core's cache.
_ROWS = 64


class Spec(NamedTuple):
    """The settings of a run that are not tensors."""

    rows: Rows
    reverse: bool
    pair: Pair | None
    profile: Profile | None
    grads: bool = False  # whether gradients are recorded
    low: torch.dtype | None = None  # the dtype of the products over all steps under autocast; None for that of the rest


def wide_type(gates: Tensor) -> torch.dtype:
    """The dtype that a stack computes in."""
    return torch.promote_types(gates.dtype, torch.float32)


def in_type(operand: Any, kind: torch.dtype) -> Any:
    """Convert real numbers to a dtype; None and whole numbers stay as they are."""
    if operand is None or operand.dtype == kind or not operand.is_floating_point():
        return operand
    return operand.to(kind)


class StackRecord(CallRecord):
    """A call of a stack; `wide` is how many numbers a panel is wide."""

    def __init__(self, spec: Spec, operands: Operands) -> None:
        dtype, hidden, lstm = operands.gates.dtype, operands.state.shape[-1], operands.cell is not None
        super().__init__(CALL, dtype)
        self.spec, self.wide = spec, PANEL * self.lanes
        self._packs: list[tuple[int, ...]] = []
        self._sources: list[Tensor] = []
        rows, batch, ranges = spec.rows, spec.rows.batch, RANGES[dtype]
        threads = torch.get_num_threads()
        # The same number of tasks for each thread.
        tasks = min(batch, threads * -(-batch // (threads * _ROWS)))
        self.fields |= {
            "tasks": tasks, "cell": int(lstm), "reverse": int(spec.reverse), "layers": len(operands.state),
            "hidden": self.up(hidden), "wide": (4 if lstm else 3) * self.up(hidden), "task_rows": -(-batch // tasks),
            "own": hidden, "batch": batch, "tokens": len(rows.places), "pair": CHOICES.index(spec.pair),
            "profile": 0 if spec.profile is None else PROFILES.index(spec.profile), "folded": ranges.folded,
            "single": ranges.single, "most": ranges.most, "largest": torch.finfo(dtype).max,
        }  # fmt: skip
        for name in ("order", "lengths", "offsets"):
            self.point(name, getattr(rows, name))

    def for_kernel(self) -> Self:
        """A call with the same addresses, for another kernel."""
        made = super().copy()
        made._packs, made._sources = [], []
        return made

    def forget(self) -> None:
        """Release the tensors that the backward does not read."""
        self._sources.clear()
        for name in ("gates", "hidden_weight", "hidden_bias", "below_weight", "below_bias"):
            self.kept.pop(name, None)

    @property
    def groups(self) -> int:
        """The number of a cell's gates."""
        return 4 if self.fields["cell"] else 3

    def up(self, size: int) -> int:
        """The next multiple of a panel's columns."""
        return round_up(size, self.wide)

    def fill(self, tensor: Tensor, groups: int = 1) -> Tensor:
        """The last dimension in groups, each padded with zeros to whole panels; contiguous."""
        size = tensor.shape[-1] // groups
        if more := self.up(size) - size:
            tensor = pad(tensor.unflatten(-1, (groups, size)), (0, more)).flatten(-2)
        return tensor.contiguous()

    def _panels(self, name: str, weights: list[Tensor], groups: int, *, transposed: bool) -> None:
        """Pack weights (out, in) into panels that inputs are multiplied with, or, transposed, gradients."""
        rows, columns = weights[0].shape[0] // groups, weights[0].shape[1]
        out, size = groups * self.up(rows), self.up(columns)
        into = self.new(name, len(weights), out, size)
        for weight, packed in zip(weights, into, strict=True):
            weight = weight if weight.stride(1) == 1 else weight.contiguous()
            self._sources.append(weight)
            # The weight's rows may be a part of wider ones.
            source = addresses.rows_address(name, weight, self.dtype)
            place = addresses.address(name, packed, self.dtype)
            shape = (out, size // self.wide, 1) if transposed else (size, out // self.wide, 0)
            self._packs.append((source, place, weight.stride(0), columns, rows, self.up(rows), *shape))

    def point_weights(self, operands: Operands, layers: list[Layer], *, transposed: bool) -> None:
        """Point the record to the weights of a stack, for its forward or, transposed, its backward."""
        from dikkat.recurrent.fused import panels

        groups = self.groups
        self._panels("hidden_weight", [layer.hidden_weight for layer in layers], groups, transposed=transposed)
        below = [layer.below_weight for layer in layers if layer.below_weight is not None]
        if below:
            self._panels("below_weight", below, groups, transposed=transposed)
        for name, count in (("context_weight", groups), ("query_weight", 1)):
            weight = getattr(operands, name)
            if weight is not None:
                self._panels(name, [weight], count, transposed=transposed)
        self.point("packs", torch.tensor(self._packs, dtype=torch.int64, device="cpu"))
        self.fields["packings"] = len(self._packs)
        self.run(panels.pack, sum(pack[PANELS] for pack in self._packs))
        del self.kept["packs"]
        if not transposed:
            self.point("hidden_bias", _several([self.fill(layer.hidden_bias, groups) for layer in layers]))
            if below:
                biases = [self.fill(layer.below_bias, groups) for layer in layers if layer.below_bias is not None]
                self.point("below_bias", _several(biases))
            if operands.query_bias is not None:
                self.point("query_bias", self.fill(operands.query_bias))

    def point_attention(self, operands: Operands) -> None:
        """Point the record to keys and values, padded to whole panels."""
        key, value = operands.key, operands.value
        if key is None or value is None:
            return
        key, value = self.point("key", self.fill(key)), self.point("value", self.fill(value))
        keys = key.shape[1]
        self.fields |= {
            "keys": keys, "key_row": max(self.up(keys), self.wide), "features": key.shape[2], "values": value.shape[2],
        }  # fmt: skip
        if operands.seen is not None:
            self.point("seen", operands.seen.to(torch.int64).contiguous())
        if operands.kept is not None:
            self.point("kept", pad(operands.kept, (0, self.fields["key_row"] - keys)).contiguous())
        if self.spec.pair == "additive" and operands.weight is not None:
            self.point("weight", self.fill(operands.weight))
            self.point("key_exp", (key + key).exp_())
            reach = key.new_zeros(key.shape[0]) if keys == 0 else key.flatten(1).abs().amax(1)
            self.point("reach", reach)

    def forward(self, operands: Operands) -> None:
        """Run the forward kernel, after `point_weights`, and `point_attention` for a stack that attends."""
        from dikkat.recurrent.fused import kernel

        at, cell = self.fields, operands.cell
        layers, tokens, hidden, batch, rows = at["layers"], at["tokens"], at["hidden"], at["batch"], at["task_rows"]
        features, values, key_row = at["features"], at["values"], at["key_row"]
        self.point("gates", self.fill(operands.gates, self.groups))
        self.point("state", self.fill(operands.state))
        self.new("states", layers, tokens, hidden)
        self.new("last_state", layers, batch, hidden)
        if cell is not None:
            self.point("memory_cell", self.fill(cell))
            self.new("last_cell", layers, batch, hidden)
        if at["pair"]:
            self.new("contexts", tokens, values)
            self.new("weights", tokens, key_row)
        if self.spec.grads:
            self.new("saved", layers, tokens, 4 * hidden)
            self.new("began", layers, tokens, hidden)
            if cell is not None:
                self.new("cells", layers, tokens, hidden)
            if at["pair"]:
                self.new("queries", tokens, features)
                if self.spec.pair == "additive":
                    self.new("query_exp", tokens, features)
        wide = rows * at["wide"]
        self.run(
            kernel.forward, at["tasks"], states=layers * rows * hidden,
            cells=0 if cell is None else layers * rows * hidden, gates=wide, recurrent=wide, reads=rows * hidden,
            unsaved=4 * hidden, queries=rows * features, exps=features, contexts=rows * values, row_weights=key_row,
        )  # fmt: skip

    def backward(self) -> None:
        """Run the backward kernel, when the record points to the incoming gradients and to room for the others."""
        from dikkat.recurrent.fused import kernel

        at = self.fields
        layers, hidden, key_row, rows = at["layers"], at["hidden"], at["key_row"], at["task_rows"]
        wide = rows * at["wide"]
        self.run(
            kernel.backward, at["tasks"], grads=layers * rows * hidden,
            cell_grads=layers * rows * hidden if at["cell"] else 0, gates=wide, recurrent=wide, reads=rows * hidden,
            contexts=rows * at["values"], queries=rows * at["features"], by_score=key_row, squares=key_row,
        )  # fmt: skip

    def results(self, operands: Operands) -> Results:
        """The results of the forward, without padding."""
        kept, hidden, contexts, weights, cell = self.kept, operands.state.shape[-1], None, None, None
        if operands.value is not None and operands.key is not None:
            contexts = first(kept["contexts"], operands.value.shape[2])
            weights = first(kept["weights"], operands.key.shape[1])
        if "last_cell" in kept:
            cell = first(kept["last_cell"], hidden)
        return Results(first(kept["states"][-1], hidden), contexts, weights, first(kept["last_state"], hidden), cell)


def _several(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)


def first(tensor: Tensor, size: int) -> Tensor:
    """Remove the padding of the last dimension."""
    return tensor if tensor.shape[-1] == size else tensor[..., :size]
