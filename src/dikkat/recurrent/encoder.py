"""Encoders: GRU and LSTM over sequences of different lengths, which never read padding."""

from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from dikkat._engine.addresses import check_dense, sent, tensor_obstacles
from dikkat.recurrent import cells
from dikkat.recurrent.fused.launch import run_stack
from dikkat.recurrent.fused.stack import Layer, Operands, Results, Rows, put, take
from dikkat.recurrent.stack import check_lengths, check_stack, chosen_implementation, has_values

StateT = TypeVar("StateT", Tensor, tuple[Tensor, Tensor])


class _Encoder(nn.Module, Generic[StateT]):
    kind: ClassVar[type[nn.GRU] | type[nn.LSTM]]
    part: ClassVar[str]  # the network's name in the state dict

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bidirectional: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_stack(num_layers, dropout, input_size=input_size, hidden_size=hidden_size)
        self.directions = 2 if bidirectional else 1
        self.output_size = self.directions * hidden_size
        network = self.kind(
            input_size, hidden_size, num_layers, batch_first=True, dropout=dropout, bidirectional=bidirectional
        )
        self.add_module(self.part, network)

    @classmethod
    def of(cls, network: nn.RNNBase) -> Self:
        """An encoder of a network that another module owns: for one call, and with the network's own weights."""
        encoder = cls.__new__(cls)
        nn.Module.__init__(encoder)
        encoder.directions = 2 if network.bidirectional else 1
        encoder.output_size, encoder.training = encoder.directions * network.hidden_size, network.training
        encoder.add_module(cls.part, network)
        return encoder

    @property
    def _network(self) -> nn.RNNBase:
        return cast(nn.RNNBase, self.get_submodule(self.part))

    def forward(self, inputs: Tensor, lengths: Tensor, *, impl: str = "auto") -> tuple[Tensor, StateT]:
        """Encode a batch.

        Args:
            inputs: (B, S, e), padded to S positions.
            lengths: (B,) integers from 1 to S.
            impl: `"numba"` runs the layers of one direction, or each layer of each of two, as one operation, on a CPU;
                `"reference"` is PyTorch's own network over a packed sequence, and runs everywhere; `"auto"` takes the
                first where it runs.

        Returns:
            The outputs (B, S, c), 0 behind each length; and each layer's final state (layers, B, c), that of the
            backward direction after that of the forward one, from which a decoder can start; of an LSTM the pair of
            its states and its cells.

        Raises:
            TypeError: Inputs that are no dense tensor, or lengths that are not integers.
            ValueError: Inputs that are not (B, S, e), a length outside 1…S, or an `impl` that is none or cannot run.
        """
        network = self._network
        check_dense("inputs", inputs)
        if inputs.ndim != 3 or inputs.shape[2] != network.input_size:
            raise ValueError(
                f"inputs: got shape {tuple(inputs.shape)}; expected (batch, positions, {network.input_size})"
            )
        lengths = check_lengths(lengths, inputs.shape[0], inputs.shape[1], "positions of inputs")
        if chosen_implementation(impl, self._obstacles(inputs)) == "numba":
            outputs, final = self._fused(inputs, lengths)
        elif not has_values(lengths):
            outputs, final = self._padded(inputs, lengths)
        elif not len(inputs):  # which PyTorch does not pack, and nothing is padded
            outputs, last = network(inputs)
            final = [self._by_layer(each) for each in (last if isinstance(last, tuple) else (last,))]
        else:
            rows = Rows.of(lengths, *inputs.shape[:2])
            counts, (places, order) = rows.counts(), (sent(each, inputs.device) for each in (rows.places, rows.order))
            rows = replace(rows, places=places)
            # PyTorch's own functions for packing wait for the device.
            packed = PackedSequence(take(inputs, rows), counts, order, sent(rows.order.argsort(), inputs.device))
            found, last = network(packed)
            outputs = put(found.data, rows)
            final = [self._by_layer(each) for each in (last if isinstance(last, tuple) else (last,))]
        return outputs, cast(StateT, final[0] if len(final) == 1 else tuple(final))

    def _obstacles(self, inputs: Tensor) -> list[str]:
        network = self._network
        reasons = tensor_obstacles((inputs, *self.parameters()))
        if type(network) not in (self.kind,) or network._forward_hooks or network._forward_pre_hooks:
            reasons.append(f"{self.part} is no plain torch.nn.{self.kind.__name__}, or has hooks: it has to be called")
        if not len(inputs):
            reasons.append("the batch is empty")
        return reasons

    def _padded(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs and last states over all positions, states held past each length: for lengths without values."""
        network, lstm = self._network, isinstance(self._network, nn.LSTM)
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        real = (positions < lengths.to(inputs.device)[:, None])[..., None]
        below, last, last_cells = torch.where(real, inputs, 0.0), [], []
        for layer in range(network.num_layers):
            if layer:
                below = F.dropout(below, network.dropout, self.training)
            sides = []
            for direction in range(self.directions):
                outputs, state, cell = self._over_all(below, real, layer, direction, lstm)
                sides.append(torch.where(real, outputs, 0.0))
                last.append(state)
                last_cells.append(cell)
            below = torch.cat(sides, -1)
        return below, [self._by_layer(torch.stack(each)) for each in ((last, last_cells) if lstm else (last,))]

    def _over_all(
        self, inputs: Tensor, real: Tensor, layer: int, direction: int, lstm: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer in one direction: its states at all positions, the last one, and the last cell."""
        w_ih, w_hh, b_ih, b_hh = self.layer_weights(layer, direction)
        gates = F.linear(inputs, w_ih, b_ih)
        state = cell = inputs.new_zeros(inputs.shape[0], w_hh.shape[1])
        states, steps = [], range(inputs.shape[1])
        for step in reversed(steps) if direction else steps:
            recurrent, new_cell = F.linear(state, w_hh, b_hh), cell
            if lstm:
                new, new_cell = cells.lstm(gates[:, step], recurrent, cell)
            else:
                new = cells.gru(gates[:, step], recurrent, state)
            state, cell = torch.where(real[:, step], new, state), torch.where(real[:, step], new_cell, cell)
            states.append(state)
        return torch.stack(states[::-1] if direction else states, 1), state, cell

    def _by_layer(self, last: Tensor) -> Tensor:
        """(layers · directions, B, h) -> (layers, B, c)."""
        by_layer: Tensor = last.unflatten(0, (-1, self.directions)).transpose(1, 2).flatten(2)
        return by_layer

    def _fused(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        network, rows = self._network, Rows.of(lengths, inputs.shape[0], inputs.shape[1])
        every = range(network.num_layers)
        # Layers that read one way go together; those that read what both directions below them found, one by one.
        stacks = [list(every)] if self.directions == 1 else [[layer] for layer in every]
        below, ends = take(inputs, rows), []
        for stack in stacks:
            if stack[0]:
                below = F.dropout(below, network.dropout, self.training)
            results = [self._run(below, rows, stack, direction) for direction in range(self.directions)]
            below = results[0].states if len(results) == 1 else torch.cat([each.states for each in results], dim=-1)
            ends += [(each.state, each.cell) if isinstance(network, nn.LSTM) else (each.state,) for each in results]
        final = [torch.cat(cast(tuple[Tensor, ...], each)) for each in zip(*ends, strict=True)]
        return put(below, rows), [self._by_layer(each) for each in final]

    def _run(self, below: Tensor, rows: Rows, stack: list[int], direction: int) -> Results:
        network, dropped = self._network, None
        w_ih, w_hh, b_ih, b_hh = self.layer_weights(stack[0], direction)
        layers = [Layer(w_hh, b_hh)]
        for layer in stack[1:]:
            further_ih, further_hh, further_b_ih, further_b_hh = self.layer_weights(layer, direction)
            layers.append(Layer(further_hh, further_b_hh, further_ih, further_b_ih))
        if self.training and network.dropout and len(stack) > 1:
            ones = below.new_ones(len(stack) - 1, below.shape[0], network.hidden_size)
            dropped = F.dropout(ones, network.dropout)
        zeros = below.new_zeros(len(stack), rows.batch, network.hidden_size)
        cell = zeros if isinstance(network, nn.LSTM) else None
        operands = Operands(F.linear(below, w_ih, b_ih), zeros, cell, dropped)
        return run_stack(operands, layers, rows, reverse=direction == 1)

    def layer_weights(self, layer: int, direction: int) -> list[Tensor]:
        """`weight_ih`, `weight_hh`, `bias_ih` and `bias_hh` of a layer in a direction: 0, or 1 for the backward one."""
        end = f"l{layer}" + ("_reverse" if direction else "")
        return [getattr(self._network, f"{n}_{end}") for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


class GRUEncoder(_Encoder[Tensor]):
    """A GRU over batches of sequences of different lengths, in one or both directions, that never reads padding.

    A sequence's outputs and final states depend on its own `length` positions alone: the backward direction starts at
    the last real position, and whatever stands behind it, even NaN, has no effect.
    Bahdanau, Cho, Bengio (2015), section 3.2; the parameters are those of `torch.nn.GRU`, under `gru.`.

    Args:
        input_size: Features of an input, e.
        hidden_size: Features of a direction's state.
        num_layers: GRU layers on top of each other.
        bidirectional: Whether a second GRU reads backwards; its features follow those of the first.
        dropout: Probability with which a feature is dropped between layers, in training only; it needs two layers.

    Attributes:
        output_size: Features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: A size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import torch
        >>> from dikkat.recurrent import GRUEncoder
        >>> encoder = GRUEncoder(3, 5, num_layers=2)
        >>> outputs, state = encoder(torch.randn(2, 7, 3), torch.tensor([7, 4]))
        >>> outputs.shape, state.shape
        (torch.Size([2, 7, 10]), torch.Size([2, 2, 10]))
    """

    kind, part = nn.GRU, "gru"


class LSTMEncoder(_Encoder[tuple[Tensor, Tensor]]):
    """An LSTM over batches of sequences of different lengths, in one or both directions, that never reads padding.

    Arguments, attributes and errors are those of `GRUEncoder`; the final state is the pair of states and cells, each
    (layers, B, c). The parameters are those of `torch.nn.LSTM`, under `lstm.`.
    Hochreiter, Schmidhuber, "Long short-term memory" (1997), with forget gates.

    Example:
        >>> import torch
        >>> from dikkat.recurrent import LSTMEncoder
        >>> outputs, (state, cell) = LSTMEncoder(3, 5)(torch.randn(2, 7, 3), torch.tensor([7, 4]))
        >>> outputs.shape, cell.shape
        (torch.Size([2, 7, 10]), torch.Size([1, 2, 10]))
    """

    kind, part = nn.LSTM, "lstm"
