"""A stack that attends, step by step."""

from dataclasses import fields

from torch import Tensor

from dikkat.cpu.recurrence.calls import OPERANDS, ROW_FIELDS, Spec, Stack, in_type, wide_type
from dikkat.cpu.recurrence.rows import Rows
from dikkat.cpu.recurrence.stack import Attention, Layer, Sequences, fit_shape, fit_weights


class Stepper:
    """A stack that attends, step by step and without gradients: panels and memory are made once.

    It is not written to once it is made: any number of threads may step it.

    Args:
        layers: The weights; G = 3 or 4 is seen by them.
        attention: What it attends to.
    """

    def __init__(self, layers: list[Layer], attention: Attention) -> None:
        fit_weights(layers, attention)
        kind = wide_type(layers[0].hidden_weight)
        self._layers = [Layer(*(in_type(getattr(layer, f.name), kind) for f in fields(Layer))) for layer in layers]
        self._operands = {name: in_type(getattr(attention, name), kind) for name in OPERANDS}
        self._pair, self._profile = attention.pair, attention.profile
        groups, hidden = layers[0].hidden_weight.shape
        self._hidden, self._lstm = hidden, groups == 4 * hidden
        weights = self._record(1)
        weights.point_weights(self._operands, self._layers, transposed=False)
        key = self._record(attention.key.shape[0])
        key.point_attention(self._operands)
        # Copies of tensors that are not made here, whose owner could write to them or resize their storage.
        biases = (bias for layer in self._layers for bias in (layer.hidden_bias, layer.below_bias))
        shared = {id(tensor) for tensor in (*self._operands.values(), *biases)}
        self._kept = {
            name: t.clone() if id(t) in shared else t
            for name, t in (weights.kept | key.kept).items()
            if name not in ROW_FIELDS
        }
        self._sizes = {name: key.fields[name] for name in ("keys", "key_row", "features", "values")}
        self._owners: Tensor | None = None
        self._use(key)

    def _record(self, batch: int) -> Stack:
        spec = Spec(Rows.of(None, batch, 1), False, len(self._layers), self._pair, self._profile)
        return Stack(spec, self._layers[0].hidden_weight.dtype, self._hidden, self._lstm)

    def _use(self, record: Stack) -> None:
        for name, tensor in self._kept.items():
            record.point(name, tensor)
        record.fields |= self._sizes
        if self._owners is not None:
            record.point("owners", self._owners)
        self._now = record

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return int(self._now.fields["batch"])

    def select(self, rows: Tensor) -> "Stepper":
        """A stepper of some of the sequences, which copies nothing."""
        selected = object.__new__(Stepper)
        selected.__dict__ |= self.__dict__
        selected._owners = rows if self._owners is None else self._owners.index_select(0, rows)
        selected._use(self._record(len(rows)))
        return selected

    def step(self, gates: Tensor, state: Tensor, cell: Tensor | None) -> Sequences:
        """Advance all sequences by one step.

        Args:
            gates: (B, G·h), the inputs' side of the first layer's gates, its bias in it.
            state: (layers, B, h).
            cell: (layers, B, h) of an LSTM; None for a GRU.
        """
        batch = self.batch
        fit_shape("gates", gates, batch, (4 if self._lstm else 3) * self._hidden)
        fit_shape("state", state, len(self._layers), batch, self._hidden)
        fit_shape("cell", cell, len(self._layers), batch, self._hidden)
        record, kind = self._now.again(), state.dtype  # of this call, whoever else steps meanwhile
        gates, state, cell = (in_type(operand, record.dtype) for operand in (gates, state, cell))
        record.forward(gates, state, cell)
        found = record.results(self._hidden, self._operands)
        return Sequences(*(in_type(result, kind) for result in found))
