"""The record `record.CALL` of one run of a stack of recurrent layers, and the launch of its kernels.

Matrices are padded to panels of `panel_width` columns, which the kernels multiply at a time.
"""

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

# The most sequences of a task, so that the numbers of a step stay in a core's cache.
_ROWS = 64


class Spec(NamedTuple):
    """The settings of a run that are not tensors."""

    rows: Rows
    reverse: bool
    pair: Pair | None
    profile: Profile | None
    grads: bool = False  # whether gradients are recorded
    product_dtype: torch.dtype | None = None  # dtype of the products over all steps under autocast; None: unchanged


def find_dtype(gates: Tensor) -> torch.dtype:
    """Return the dtype that a stack computes in: at least float32."""
    return torch.promote_types(gates.dtype, torch.float32)


def to_dtype(operand: Any, kind: torch.dtype) -> Any:
    """Convert a floating-point tensor to a dtype; return None and integers unchanged."""
    if operand is None or operand.dtype == kind or not operand.is_floating_point():
        return operand
    return operand.to(kind)


class StackRecord(CallRecord):
    """One run of a stack: its sizes, and the addresses of its operands and results."""

    def __init__(self, spec: Spec, operands: Operands) -> None:
        dtype, hidden, lstm = operands.gates.dtype, operands.state.shape[-1], operands.cell is not None
        super().__init__(CALL, dtype)
        self.spec, self.panel_width = spec, PANEL * self.lanes
        self._packs: list[tuple[int, ...]] = []
        self._sources: list[Tensor] = []
        rows, batch, ranges = spec.rows, spec.rows.batch, RANGES[dtype]
        threads = torch.get_num_threads()
        # A multiple of the number of threads, so that all threads get equally many tasks.
        tasks = min(batch, threads * -(-batch // (threads * _ROWS)))
        self.fields |= {
            "tasks": tasks, "cell": int(lstm), "reverse": int(spec.reverse), "layers": len(operands.state),
            "hidden": self.pad_size(hidden), "gate_row": (4 if lstm else 3) * self.pad_size(hidden),
            "task_rows": -(-batch // tasks), "unpadded": hidden, "batch": batch, "step_rows": len(rows.positions),
            "pair": CHOICES.index(spec.pair), "profile": 0 if spec.profile is None else PROFILES.index(spec.profile),
            "folded": ranges.folded, "single": ranges.single, "exp_limit": ranges.most,
            "largest": torch.finfo(dtype).max,
        }  # fmt: skip
        for name in ("order", "lengths", "offsets"):
            self.point(name, getattr(rows, name))

    def for_kernel(self) -> Self:
        """Return a copy with the same addresses, for another kernel."""
        record = super().copy()
        record._packs, record._sources = [], []
        return record

    def forget(self) -> None:
        """Release the forward tensors that the backward pass does not read."""
        self._sources.clear()
        for name in ("gates", "hidden_weight", "hidden_bias", "below_weight", "below_bias"):
            self.kept.pop(name, None)

    @property
    def groups(self) -> int:
        """The number of gates of a cell: 4 for an LSTM, 3 for a GRU."""
        return 4 if self.fields["cell"] else 3

    def pad_size(self, size: int) -> int:
        """Round up to whole panels."""
        return round_up(size, self.panel_width)

    def pad_groups(self, tensor: Tensor, groups: int = 1) -> Tensor:
        """Pad each of `groups` groups of the last dimension with zeros to whole panels; return it contiguous."""
        size = tensor.shape[-1] // groups
        if padding := self.pad_size(size) - size:
            tensor = pad(tensor.unflatten(-1, (groups, size)), (0, padding)).flatten(-2)
        return tensor.contiguous()

    def _pack_weights(self, name: str, weights: list[Tensor], groups: int, *, transposed: bool) -> None:
        """Pack weights (out, in) as panels (outs, ins) for products with inputs or (transposed) gradients."""
        rows, columns = weights[0].shape[0] // groups, weights[0].shape[1]
        outs, ins = groups * self.pad_size(rows), self.pad_size(columns)
        panels = self.new(name, len(weights), outs, ins)
        for weight, packed in zip(weights, panels, strict=True):
            weight = weight if weight.stride(1) == 1 else weight.contiguous()
            self._sources.append(weight)
            # The weight may be a slice of a wider matrix.
            source = addresses.rows_address(name, weight, self.dtype)
            target = addresses.address(name, packed, self.dtype)
            shape = (outs, ins // self.panel_width, 1) if transposed else (ins, outs // self.panel_width, 0)
            self._packs.append((source, target, weight.stride(0), columns, rows, self.pad_size(rows), *shape))

    def point_weights(self, operands: Operands, layers: list[Layer], *, transposed: bool) -> None:
        """Add a stack's weights to the call, packed for the forward pass or (`transposed`) for the backward pass."""
        from dikkat.recurrent.fused import panels

        groups = self.groups
        self._pack_weights("hidden_weight", [layer.hidden_weight for layer in layers], groups, transposed=transposed)
        below = [layer.below_weight for layer in layers if layer.below_weight is not None]
        if below:
            self._pack_weights("below_weight", below, groups, transposed=transposed)
        for name, count in (("context_weight", groups), ("query_weight", 1)):
            weight = getattr(operands, name)
            if weight is not None:
                self._pack_weights(name, [weight], count, transposed=transposed)
        self.point("packs", torch.tensor(self._packs, dtype=torch.int64, device="cpu"))
        self.fields["packings"] = len(self._packs)
        self.run(panels.pack, sum(pack[PANELS] for pack in self._packs))
        del self.kept["packs"]
        if not transposed:
            self.point("hidden_bias", _stack([self.pad_groups(layer.hidden_bias, groups) for layer in layers]))
            if below:
                biases = [self.pad_groups(layer.below_bias, groups) for layer in layers if layer.below_bias is not None]
                self.point("below_bias", _stack(biases))
            if operands.query_bias is not None:
                self.point("query_bias", self.pad_groups(operands.query_bias))

    def point_attention(self, operands: Operands) -> None:
        """Store the addresses of keys and values, padded to whole panels, and of the score's other operands."""
        key, value = operands.key, operands.value
        if key is None or value is None:
            return
        key, value = self.point("key", self.pad_groups(key)), self.point("value", self.pad_groups(value))
        keys = key.shape[1]
        self.fields |= {
            "keys": keys, "key_row": max(self.pad_size(keys), self.panel_width), "features": key.shape[2],
            "values": value.shape[2],
        }  # fmt: skip
        if operands.key_counts is not None:
            self.point("key_counts", operands.key_counts.to(torch.int64).contiguous())
        if operands.weight_factors is not None:
            self.point("weight_factors", pad(operands.weight_factors, (0, self.fields["key_row"] - keys)).contiguous())
        if self.spec.pair == "additive" and operands.weight is not None:
            self.point("weight", self.pad_groups(operands.weight))
            self.point("key_exp", (key + key).exp_())
            peaks = key.new_zeros(key.shape[0]) if keys == 0 else key.flatten(1).abs().amax(1)
            self.point("key_peaks", peaks)

    def forward(self, operands: Operands) -> None:
        """Run the forward kernel, after `point_weights` and `point_attention`."""
        from dikkat.recurrent.fused import kernel

        fields, cell = self.fields, operands.cell
        layers, step_rows, hidden, batch = fields["layers"], fields["step_rows"], fields["hidden"], fields["batch"]
        rows, features, values, key_row = fields["task_rows"], fields["features"], fields["values"], fields["key_row"]
        self.point("gates", self.pad_groups(operands.gates, self.groups))
        self.point("state", self.pad_groups(operands.state))
        self.new("states", layers, step_rows, hidden)
        self.new("last_state", layers, batch, hidden)
        if cell is not None:
            self.point("memory_cell", self.pad_groups(cell))
            self.new("last_cell", layers, batch, hidden)
        if fields["pair"]:
            self.new("contexts", step_rows, values)
            self.new("weights", step_rows, key_row)
        if self.spec.grads:
            self.new("saved", layers, step_rows, 4 * hidden)
            self.new("states_before", layers, step_rows, hidden)
            if cell is not None:
                self.new("cells", layers, step_rows, hidden)
            if fields["pair"]:
                self.new("queries", step_rows, features)
                if self.spec.pair == "additive":
                    self.new("query_exp", step_rows, features)
        gates = rows * fields["gate_row"]
        # The keywords are the sizes of each worker's buffers.
        self.run(
            kernel.forward, fields["tasks"], states=layers * rows * hidden,
            cells=0 if cell is None else layers * rows * hidden, gates=gates, recurrent=gates, inputs=rows * hidden,
            unsaved=4 * hidden, queries=rows * features, exps=features, contexts=rows * values, row_weights=key_row,
        )  # fmt: skip

    def backward(self) -> None:
        """Run the backward kernel, after the addresses of the incoming and outgoing gradients are stored."""
        from dikkat.recurrent.fused import kernel

        fields = self.fields
        layers, hidden, key_row, rows = fields["layers"], fields["hidden"], fields["key_row"], fields["task_rows"]
        gates = rows * fields["gate_row"]
        self.run(
            kernel.backward, fields["tasks"], grads=layers * rows * hidden, gates=gates, recurrent=gates,
            cell_grads=layers * rows * hidden if fields["cell"] else 0, inputs=rows * hidden,
            contexts=rows * fields["values"], queries=rows * fields["features"], by_score=key_row, squares=key_row,
        )  # fmt: skip

    def results(self, operands: Operands) -> Results:
        """Return the results of the forward pass, without padding."""
        kept, hidden, contexts, weights, cell = self.kept, operands.state.shape[-1], None, None, None
        if operands.value is not None and operands.key is not None:
            contexts = unpad(kept["contexts"], operands.value.shape[2])
            weights = unpad(kept["weights"], operands.key.shape[1])
        if "last_cell" in kept:
            cell = unpad(kept["last_cell"], hidden)
        return Results(unpad(kept["states"][-1], hidden), contexts, weights, unpad(kept["last_state"], hidden), cell)


def _stack(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)


def unpad(tensor: Tensor, size: int) -> Tensor:
    """Remove the padding of the last dimension."""
    return tensor if tensor.shape[-1] == size else tensor[..., :size]
