"""A translator's weights packed into panels for a compiled search."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dikkat._engine import addresses
from dikkat._engine.record import BYTES, round_up
from dikkat.recurrent.fused.record import CHOICES
from dikkat.storage.int8 import quantized
from dikkat.translation.decoding.compiled import record
from dikkat.translation.memory.states import States
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.network.weights import Affine, Cells, Compared, compared

_OUTPUT_PANELS = 16
"""Panels of a block of the output layer. A block's scores are ranked while they are in the cache."""
_PANELS = 4
"""Panels of a block of another matrix: as many as the kernel multiplies a single row by at once."""


# --- panels


class _Read(NamedTuple):
    """A layer of a buffer, as a factor of a product. Its rows are `step` numbers apart.

    A row has `groups` times `size` numbers, each group padded to whole panels.
    """

    buffer: str
    layer: int
    size: int
    step: int
    groups: int = 1


class _Write(NamedTuple):
    """The layer of a buffer that a phase writes to. Its rows are `step` numbers apart."""

    buffer: str
    layer: int
    step: int
    tanh: bool = False
    adds: bool = False


class Panels:
    """A network's weights in panels, and the phases of a search that read them. Nothing writes to them later.

    `sizes` and `tensors` have the names of the kernel's record. Steps begin with the phase `loop`. A phase reads at
    most `reads` numbers of a row, and a block's row has at most `widest` numbers. The matrices take `matrices` bytes of
    `nbytes`. `idle` keeps the memory of finished searches by their shapes.
    """

    def __init__(self, model: TranslationModel, int8: bool) -> None:
        self.int8, self.dtype = int8, model.output_bias.dtype
        self._lanes = BYTES // self.dtype.itemsize
        self._multiple = 2 * self._lanes  # the length of a buffer's rows is a multiple of this
        self._phases: list[dict[str, int]] = []
        self._terms: list[tuple[int, ...]] = []
        self._kept: list[Tensor] = []
        self._lstm = hasattr(model, "cell_bridge")
        self._gate_count = 4 if self._lstm else 3
        self._direction_size = model.encoder.output_size // model.encoder.directions
        self.scale, self.attends = math.sqrt(model.decoder.input_size), model.attends
        self.tensors: dict[str, Tensor] = {}
        attention = compared(model.decoder)
        direction_size = self._round_up(self._direction_size)
        self.sizes = {
            "lstm": int(self._lstm),
            "embedded": self._round_up(model.decoder.input_size),
            "hidden": self._round_up(model.decoder.hidden_size),
            "direction_size": direction_size,
            "directions": model.encoder.directions,
            "layers": model.decoder.num_layers,
            "encoder_layers": model.decoder.num_layers,
            "readout": self._round_up(len(model.readout.weight)),
            "pair": CHOICES.index(attention.pair),
            "features": self._round_up(len(attention.key.weight)),
            "values": model.encoder.directions * direction_size,
            "lexical": int(model.is_lexical),
            "nearest": 0,
            "state_blocks": 0,
            "state_size": 0,
        }
        self._add_tables(model, attention)
        self._add_encoder(model, attention)
        self._add_first_states(model)
        self.loop = len(self._phases)
        self._add_step(model, attention)
        self.blocks = self._phases[-1]["blocks"]
        self._features = len(model.readout.weight)
        self._extended: tuple[States, Panels] | None = None
        self._summarize()

    def with_states(self, states: States) -> "Panels":
        """Return panels with phases that find the nearest of the stored states; the newest one is kept."""
        newest = self._extended  # another thread may replace the attribute
        if newest is None or newest[0] is not states:
            self._extended = newest = states, self._extend(states)
        return newest[1]

    def _extend(self, states: States) -> "Panels":
        extended = copy.copy(self)
        *phases, output = self._phases
        extended._phases, extended._terms, extended._kept, extended._extended = phases, list(self._terms), [], None
        dtype, dimensions = self.dtype, len(states.projection)
        size, keys, biases = self._round_up(dimensions), states.keys.to(dtype), states.biases.to(dtype)
        extended.tensors = self.tensors | {
            "state_keys": self._pad(keys), "state_biases": biases, "state_tokens": states.tokens,
        }  # fmt: skip
        readout = _Read("readout", 0, self._features, self.sizes["readout"])
        projection = Affine(states.projection.to(dtype), None)
        extended._add_affine(record.LIVE, projection, [readout], _Write("probe", 0, size), record.PROBE)
        scored = Affine(keys, biases - keys.square().sum(1) / 2)  # without −‖q‖²/2, which is equal for all states
        extended._add_affine(record.LIVE, scored, [_Read("probe", 0, dimensions, size)], None, record.NEAR)
        blocks = extended._phases[-1]["blocks"]
        extended.sizes = self.sizes | {"nearest": states.count, "state_blocks": blocks, "state_size": size}
        extended._phases.append(output)
        extended._summarize()
        return extended

    def _summarize(self) -> None:
        """Set the attributes that follow from the phases."""
        self.widest = max(phase["panels"] for phase in self._phases) * self._lanes
        terms = (self._terms[phase["first_term"] :][: phase["terms"]] for phase in self._phases)
        self.reads = max(sum(term[3] for term in group) for group in terms)
        names = record.PHASE.names or ()
        self.phases = np.array([tuple(phase[name] for name in names) for phase in self._phases], record.PHASE)
        self.terms = np.array(self._terms, record.TERM)
        self.nbytes = sum(tensor.nbytes for tensor in self._kept)
        self.matrices = int(self.phases["stride"] @ self.phases["blocks"])
        self.idle: dict[tuple[int, ...], Any] = {}

    def _round_up(self, size: int) -> int:
        return round_up(size, self._multiple)

    def _add_tables(self, model: TranslationModel, attention: Compared) -> None:
        for side, table in (("source", model.source_table), ("target", model.target_embedding)):
            numbers, scales = _quantize(table.weight, int8=self.int8)
            self.tensors[f"{side}_table"] = padded = self._pad(numbers)
            if self.int8 or padded is not numbers:  # an unchanged table takes no more memory
                self._kept.append(padded)
            if scales is not None:
                self.tensors[f"{side}_scales"] = scales
        if attention.weight is not None:
            self.tensors["weight"] = self._pad(attention.weight.detach())

    def _pad(self, tensor: Tensor) -> Tensor:
        """Pad the last dimension with zeros to a multiple of `_multiple`."""
        padding = self._round_up(tensor.shape[-1]) - tensor.shape[-1]
        return pad(tensor, (0, padding)) if padding or not tensor.is_contiguous() else tensor

    # --- phases

    def _add_encoder(self, model: TranslationModel, attention: Compared) -> None:
        sizes, direction_size, layers = self.sizes, self._direction_size, model.decoder.num_layers
        self._add_phase(record.READ, record.POSITIONS)
        read = _Read("embedded_source", 0, model.decoder.input_size, sizes["embedded"])
        state = _Read("encoder_state", 0, direction_size, sizes["direction_size"])
        for layer in range(layers):
            cells = [Cells(*model.encoder.layer_weights(layer, n)) for n in range(model.encoder.directions)]
            biases = [self._order_biases(cell) for cell in cells]
            for direction, cell in enumerate(cells):
                target = _Write("gates", direction, self._gate_count * sizes["direction_size"])
                inputs, panels = self._pack_gates(cell.weight_ih, [read], input_side=True)
                bias = biases[direction][:, : self._gate_count]
                self._add_phase(record.DENSE, record.POSITIONS, inputs, [(read, panels)], bias, target)
            out = ("outputs", "outputs_below")[(layers - 1 - layer) % 2]
            packed_gates = [self._pack_gates(cell.weight_hh, [state], input_side=False) for cell in cells]
            packed, reads = _concatenate([gates for gates, _ in packed_gates], dim=0), [(state, packed_gates[0][1])]
            target = _Write(out, 0, 0)
            self._add_phase(record.ENCODE, record.SENTENCES, packed, reads, torch.cat(biases), target, layer=layer)
            read = _Read(out, 0, direction_size, sizes["values"], len(cells))
        if not model.attends:
            read = _Read("final", layers - 1, direction_size, sizes["values"], sizes["directions"])
        rows = record.POSITIONS if model.attends else record.SENTENCES
        self._add_affine(rows, attention.key, [read], _Write("keys", 0, sizes["features"]))
        if attention.pair == "additive":
            self._add_phase(record.KEYS, record.SENTENCES)

    def _add_first_states(self, model: TranslationModel) -> None:
        sizes = self.sizes
        for layer in range(model.decoder.num_layers):
            last = _Read("final", layer, self._direction_size, sizes["values"], sizes["directions"])
            self._add_affine(record.SENTENCES, model.bridge, [last], _Write("after", layer, sizes["hidden"], tanh=True))
            if self._lstm:
                last, target = last._replace(buffer="final_cell"), _Write("cell_after", layer, sizes["hidden"])
                self._add_affine(record.SENTENCES, model.cell_bridge, [last], target)

    def _add_step(self, model: TranslationModel, attention: Compared) -> None:
        sizes, hidden, embedded = self.sizes, model.decoder.hidden_size, model.decoder.input_size
        embedding = _Read("embedding", 0, embedded, sizes["embedded"])
        context = _Read("context", 0, self._direction_size, sizes["values"], sizes["directions"])
        attended = [_Read("attended", 0, embedded, sizes["embedded"])] * sizes["lexical"]
        self._add_phase(record.GATHER, record.LIVE)
        state = _Read("before", model.decoder.num_layers - 1, hidden, sizes["hidden"])
        self._add_affine(record.LIVE, attention.query, [state], _Write("query", 0, sizes["features"]))
        self._add_phase(record.ATTEND, record.LIVE)
        below = [embedding, context, *attended]
        for layer in range(model.decoder.num_layers):
            cells = Cells(*(model.decoder.part(name, layer) for name in Cells._fields))
            hidden_state = _Read("before", layer, hidden, sizes["hidden"])
            inputs, input_panels = self._pack_gates(cells.weight_ih, below, input_side=True)
            recurrent, recurrent_panels = self._pack_gates(cells.weight_hh, [hidden_state], input_side=False)
            reads = [*((read, input_panels) for read in below), (hidden_state, recurrent_panels)]
            packed = _concatenate([inputs, recurrent], dim=1)
            self._add_phase(record.CELL, record.LIVE, packed, reads, self._order_biases(cells), layer=layer)
            below = [_Read("after", layer, hidden, sizes["hidden"])]
        target = _Write("readout", 0, sizes["readout"], tanh=True)
        self._add_affine(record.LIVE, model.readout, [*below, context, *attended, embedding], target)
        if model.is_lexical:
            self._add_affine(record.LIVE, model.lexical, attended, target._replace(tanh=False, adds=True))
        output = Affine(model.output_table, model.output_bias)
        self._add_affine(record.LIVE, output, [_Read("readout", 0, len(model.readout.weight), sizes["readout"])], None)

    def _add_affine(
        self, rows: int, affine: Affine | nn.Linear, reads: list[_Read], target: _Write | None, kind: int | None = None
    ) -> None:
        """Add a phase of a matrix and a bias; without `target`, the output layer, whose scores are ranked."""
        weight, bias, lanes = affine.weight, affine.bias, self._lanes
        size = len(weight)
        if target is not None:
            panels = _PANELS if self._round_up(size) // lanes % _PANELS == 0 else self._multiple // lanes
            blocks = self._round_up(size) // lanes // panels
        else:
            blocks = -(-size // (_OUTPUT_PANELS * lanes))
            panels = -(-size // (blocks * lanes))
        padding = blocks * panels * lanes - size
        if kind is None:
            kind = record.DENSE if target is not None else record.RANK
        packed = self._pack(
            affine.weight, reads, lambda t: pad(t, (0, 0, 0, padding)).view(blocks, panels, lanes, -1),
            int8=self.int8 and kind < record.PROBE,
        )  # fmt: skip
        bias = torch.zeros(size, dtype=self.dtype, device="cpu") if affine.bias is None else affine.bias.detach()
        padding_bias = 0.0 if target is not None else -torch.inf  # so that padding is never a token
        biases = pad(bias, (0, padding), value=padding_bias).view(blocks, panels * lanes)
        self._add_phase(kind, rows, packed, [(read, (0, panels)) for read in reads], biases, target)

    def _pack_gates(self, weight: Tensor, reads: list[_Read], *, input_side: bool) -> tuple["_Packed", tuple[int, int]]:
        """Pack one side of a layer's gates in blocks of a vector of features; return it and its range of panels.

        An LSTM's gates are i, f, g, o. A GRU's block has four panels: n's input side, r, z, n's recurrent side. The
        input side is the first three panels, the recurrent side the last three, so r and z are summed.
        """
        gates = self._gate_count
        order = torch.tensor([2, 0, 1] if input_side and gates == 3 else list(range(gates)), device="cpu")

        def in_blocks(matrix: Tensor) -> Tensor:
            by_gate = matrix.unflatten(0, (gates, -1)).index_select(0, order)
            filled = pad(by_gate, (0, 0, 0, self._round_up(by_gate.shape[1]) - by_gate.shape[1]))
            return filled.unflatten(1, (-1, self._lanes)).transpose(0, 1)

        packed = self._pack(weight, reads, in_blocks, int8=self.int8)
        return packed, (0 if input_side or gates == 4 else 1, gates)

    def _order_biases(self, cells: Cells) -> Tensor:
        """Return biases (blocks, 4, lanes).

        For an LSTM: the sums of input and recurrent biases. For a GRU: input n, the sums of r and z, recurrent n.
        """
        input_side, recurrent_side = (
            self._pad(bias.detach().unflatten(0, (self._gate_count, -1))) for bias in (cells.bias_ih, cells.bias_hh)
        )
        sums = input_side + recurrent_side
        biases = sums if self._lstm else torch.stack([input_side[2], sums[0], sums[1], recurrent_side[2]])
        return biases.unflatten(1, (-1, self._lanes)).transpose(0, 1)

    # --- matrices

    def _pack(
        self, weight: Tensor, reads: list[_Read], in_blocks: Callable[[Tensor], Tensor], *, int8: bool
    ) -> "_Packed":
        """Pack a matrix into panels. The columns of each read are padded with zeros to the size of its term."""
        numbers, scales = _quantize(weight, int8=int8)
        packed = []
        for read, columns in zip(reads, numbers.split([read.size * read.groups for read in reads], dim=1), strict=True):
            padded = self._pad(columns.unflatten(1, (read.groups, read.size))).flatten(1)
            panels = in_blocks(padded).transpose(2, 3)
            if scales is None:
                packed.append(_Packed(panels.flatten(1), None))
            else:
                pairs = panels.unflatten(2, (-1, 2)).transpose(3, 4)
                packed.append(_Packed(pairs.flatten(1), in_blocks(scales.unsqueeze(1)).flatten(1)))
        return _concatenate(packed, dim=1)

    def _add_phase(
        self,
        kind: int,
        rows: int,
        packed: "_Packed | None" = None,
        reads: Sequence[tuple[_Read, tuple[int, int]]] = (),
        biases: Tensor | None = None,
        target: _Write | None = None,
        layer: int = 0,
    ) -> None:
        phase = dict.fromkeys(record.PHASE.names or (), 0) | {"kind": kind, "rows": rows, "blocks": 1, "layer": layer}
        if target is not None:
            phase |= {"out": record.BUFFERS.index(target.buffer), "out_layer": target.layer, "out_step": target.step}
            phase |= {"tanh": int(target.tanh), "adds": int(target.adds)}
        if packed is not None and biases is not None:
            biases = biases.flatten(1).contiguous()
            phase |= {"blocks": len(biases), "panels": biases.shape[1] // self._lanes}
            phase |= {"first_term": len(self._terms), "terms": len(reads)}
            phase |= {"weight": self._address(packed.panels), "stride": packed.panels[0].nbytes}
            phase["bias"] = self._address(biases)
            if packed.scales is not None:
                phase |= {"scales": self._address(packed.scales), "scale_stride": packed.scales[0].nbytes}
            for read, (first, panels) in reads:
                count = read.groups * self._round_up(read.size)
                self._terms.append((record.BUFFERS.index(read.buffer), read.layer, read.step, count, first, panels))
        self._phases.append(phase)

    def _address(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return addresses.address("a weight", tensor, tensor.dtype)


class _Packed(NamedTuple):
    """The blocks of a matrix, (blocks, numbers), and for int8 the scales of their columns."""

    panels: Tensor
    scales: Tensor | None


def _quantize(weight: Tensor, *, int8: bool) -> tuple[Tensor, Tensor | None]:
    return quantized(weight) if int8 else (weight.detach(), None)


def _concatenate(packed: Sequence[_Packed], dim: int) -> _Packed:
    """Concatenate matrices within each block (`dim` 1) or block after block (0)."""
    scales = [matrix.scales for matrix in packed if matrix.scales is not None]
    return _Packed(torch.cat([matrix.panels for matrix in packed], dim), torch.cat(scales, dim) if scales else None)
