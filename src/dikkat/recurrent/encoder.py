"""GRU and LSTM encoders of sequences of different lengths, which never read padding."""

from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from dikkat._engine.addresses import check_dense, tensor_obstacles, to_device
from dikkat.recurrent import cells
from dikkat.recurrent.fused.launch import run_stack
from dikkat.recurrent.fused.stack import Layer, Operands, Results, Rows, pack_rows, unpack_rows
from dikkat.recurrent.stack import check_lengths, check_stack, choose_implementation, has_values

StateT = TypeVar("StateT", Tensor, tuple[Tensor, Tensor])


class _Encoder(nn.Module, Generic[StateT]):
    network_type: ClassVar[type[nn.GRU] | type[nn.LSTM]]
    network_name: ClassVar[str]  # the network's name in the state dict

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bidirectional: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_stack(num_layers, dropout, input_size=input_size, hidden_size=hidden_size)
        self.directions = 2 if bidirectional else 1
        self.output_size = self.directions * hidden_size
        network = self.network_type(
            input_size, hidden_size, num_layers, batch_first=True, dropout=dropout, bidirectional=bidirectional
        )
        self.add_module(self.network_name, network)

    @classmethod
    def of(cls, network: nn.RNNBase) -> Self:
        """Wrap a network that another module owns, for one call; the weights are shared."""
        encoder = cls.__new__(cls)
        nn.Module.__init__(encoder)
        encoder.directions = 2 if network.bidirectional else 1
        encoder.output_size, encoder.training = encoder.directions * network.hidden_size, network.training
        encoder.add_module(cls.network_name, network)
        return encoder

    @property
    def _network(self) -> nn.RNNBase:
        return cast(nn.RNNBase, self.get_submodule(self.network_name))

    def forward(self, inputs: Tensor, lengths: Tensor, *, impl: str = "auto") -> tuple[Tensor, StateT]:
        """Encode a batch.

        Args:
            inputs: (B, S, e), padded to S positions.
            lengths: (B,) integers from 1 to S.
            impl: `"numba"` runs on a CPU, as one operation for all layers, or for each layer of a bidirectional
                encoder. `"reference"`, PyTorch's network, runs everywhere. `"auto"` uses `"numba"` if it can run.

        Returns:
            The outputs (B, S, c), 0 after each length, and each layer's final state (layers, B, c), from which a
            decoder can start: the forward direction's features, then the backward direction's. An LSTM's final state
            is a pair of states and cells.

        Raises:
            TypeError: `inputs` is not a dense tensor, or `lengths` are not integers.
            ValueError: `inputs` is not (B, S, e), a length is outside 1…S, or `impl` is unknown or cannot run.
        """
        network = self._network
        check_dense("inputs", inputs)
        if inputs.ndim != 3 or inputs.shape[2] != network.input_size:
            raise ValueError(
                f"inputs: got shape {tuple(inputs.shape)}; expected (batch, positions, {network.input_size})"
            )
        lengths = check_lengths(lengths, inputs.shape[0], inputs.shape[1], "positions of inputs")
        if choose_implementation(impl, self._find_obstacles(inputs)) == "numba":
            outputs, final = self._run_fused(inputs, lengths)
        elif not has_values(lengths):
            outputs, final = self._run_padded(inputs, lengths)
        elif not len(inputs):  # PyTorch does not pack an empty batch
            outputs, last = network(inputs)
            final = [self._join_directions(state) for state in (last if isinstance(last, tuple) else (last,))]
        else:
            rows = Rows.of(lengths, *inputs.shape[:2])
            tables = rows.positions, rows.order, rows.order.argsort()
            positions, order, inverse_order = (to_device(table, inputs.device) for table in tables)
            counts, rows = rows.counts(), replace(rows, positions=positions)
            # PyTorch's functions for packing would wait for the device.
            packed = PackedSequence(pack_rows(inputs, rows), counts, order, inverse_order)
            packed_outputs, last = network(packed)
            outputs = unpack_rows(packed_outputs.data, rows)
            final = [self._join_directions(state) for state in (last if isinstance(last, tuple) else (last,))]
        return outputs, cast(StateT, final[0] if len(final) == 1 else tuple(final))

    def _find_obstacles(self, inputs: Tensor) -> list[str]:
        network = self._network
        reasons = tensor_obstacles((inputs, *self.parameters()))
        if type(network) not in (self.network_type,) or network._forward_hooks or network._forward_pre_hooks:
            reasons.append(f"{self.network_name} is not a plain {self.network_type.__name__}, or has hooks")
        if not len(inputs):
            reasons.append("the batch is empty")
        return reasons

    def _run_padded(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run over all positions and keep the states past each length, for lengths that cannot be read."""
        network, lstm = self._network, isinstance(self._network, nn.LSTM)
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        real = (positions < lengths.to(inputs.device)[:, None])[..., None]
        below, last, last_cells = torch.where(real, inputs, 0.0), [], []
        for layer in range(network.num_layers):
            if layer:
                below = F.dropout(below, network.dropout, self.training)
            sides = []
            for direction in range(self.directions):
                outputs, state, cell = self._run_padded_layer(below, real, layer, direction, lstm)
                sides.append(torch.where(real, outputs, 0.0))
                last.append(state)
                last_cells.append(cell)
            below = torch.cat(sides, -1)
        return below, [self._join_directions(torch.stack(runs)) for runs in ((last, last_cells) if lstm else (last,))]

    def _run_padded_layer(
        self, inputs: Tensor, real: Tensor, layer: int, direction: int, lstm: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one layer in one direction; return its states at all positions, its last state, and its last cell."""
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

    def _join_directions(self, last: Tensor) -> Tensor:
        """Reshape (layers · directions, B, h) to (layers, B, c)."""
        joined: Tensor = last.unflatten(0, (-1, self.directions)).transpose(1, 2).flatten(2)
        return joined

    def _run_fused(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, list[Tensor]]:
        network, rows = self._network, Rows.of(lengths, inputs.shape[0], inputs.shape[1])
        layers = range(network.num_layers)
        # Layers of one direction are one stack. With two directions, a layer reads both directions of the layer below.
        stacks = [list(layers)] if self.directions == 1 else [[layer] for layer in layers]
        below, last_states = pack_rows(inputs, rows), []
        for stack in stacks:
            if stack[0]:
                below = F.dropout(below, network.dropout, self.training)
            runs = [self._run_direction(below, rows, stack, direction) for direction in range(self.directions)]
            below = runs[0].states if len(runs) == 1 else torch.cat([run.states for run in runs], dim=-1)
            last_states += [(run.state, run.cell) if isinstance(network, nn.LSTM) else (run.state,) for run in runs]
        final_states = [torch.cat(cast(tuple[Tensor, ...], states)) for states in zip(*last_states, strict=True)]
        return unpack_rows(below, rows), [self._join_directions(states) for states in final_states]

    def _run_direction(self, inputs: Tensor, rows: Rows, stack: list[int], direction: int) -> Results:
        network, state_factors = self._network, None
        w_ih, w_hh, b_ih, b_hh = self.layer_weights(stack[0], direction)
        layers = [Layer(w_hh, b_hh)]
        for layer in stack[1:]:
            further_ih, further_hh, further_b_ih, further_b_hh = self.layer_weights(layer, direction)
            layers.append(Layer(further_hh, further_b_hh, further_ih, further_b_ih))
        if self.training and network.dropout and len(stack) > 1:
            ones = inputs.new_ones(len(stack) - 1, inputs.shape[0], network.hidden_size)
            state_factors = F.dropout(ones, network.dropout)
        zeros = inputs.new_zeros(len(stack), rows.batch, network.hidden_size)
        cell = zeros if isinstance(network, nn.LSTM) else None
        operands = Operands(F.linear(inputs, w_ih, b_ih), zeros, cell, state_factors)
        return run_stack(operands, layers, rows, reverse=direction == 1)

    def layer_weights(self, layer: int, direction: int) -> list[Tensor]:
        """Return `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh` of a layer. The backward direction is 1."""
        suffix = f"l{layer}" + ("_reverse" if direction else "")
        return [getattr(self._network, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


class GRUEncoder(_Encoder[Tensor]):
    """A GRU over batches of sequences of different lengths, in one or both directions, that never reads padding.

    A sequence's outputs and final state depend only on its first `length` positions. The backward direction starts at
    the last real position. Padding has no effect, even if it is NaN.
    Bahdanau, Cho, Bengio (2015), section 3.2. The parameters are those of `torch.nn.GRU`, under `gru.`.

    Args:
        input_size: Features of an input, e.
        hidden_size: Features of a direction's state.
        num_layers: GRU layers on top of each other.
        bidirectional: Whether a second GRU reads backwards; its features follow those of the first.
        dropout: The probability of dropping a feature between layers, in training. It needs at least two layers.

    Attributes:
        output_size: Features of an output, c: `hidden_size`, or twice `hidden_size` with two directions.

    Raises:
        ValueError: A size is below 1, or `dropout` is outside 0…1 or not 0 with a single layer.

    Example:
        >>> import torch
        >>> from dikkat.recurrent import GRUEncoder
        >>> encoder = GRUEncoder(3, 5, num_layers=2)
        >>> outputs, state = encoder(torch.randn(2, 7, 3), torch.tensor([7, 4]))
        >>> outputs.shape, state.shape
        (torch.Size([2, 7, 10]), torch.Size([2, 2, 10]))
    """

    network_type, network_name = nn.GRU, "gru"


class LSTMEncoder(_Encoder[tuple[Tensor, Tensor]]):
    """An LSTM over batches of sequences of different lengths, in one or both directions, that never reads padding.

    Arguments, attributes and errors are those of `GRUEncoder`. The final state is a pair of states and cells, each
    (layers, B, c). The parameters are those of `torch.nn.LSTM`, under `lstm.`.
    Hochreiter, Schmidhuber, "Long short-term memory" (1997), with forget gates.

    Example:
        >>> import torch
        >>> from dikkat.recurrent import LSTMEncoder
        >>> outputs, (state, cell) = LSTMEncoder(3, 5)(torch.randn(2, 7, 3), torch.tensor([7, 4]))
        >>> outputs.shape, cell.shape
        (torch.Size([2, 7, 10]), torch.Size([1, 2, 10]))
    """

    network_type, network_name = nn.LSTM, "lstm"
