"""A translator's weights packed into panels for a compiled search."""

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
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.network.weights import Affine, Cells, Compared, compared

_WIDE = 16
"""Panels of a block of the output layer; the scores of a block are ranked while they are in the cache."""
_NARROW = 4
"""Panels of a block of other matrices: as many as one row goes through at once."""


# --- panels


class _Read(NamedTuple):
    """A layer of a buffer that some columns of a matrix are multiplied with; its rows are `step` numbers apart.

    A row has `groups` times `size` numbers, for as many columns, each group filled up to whole panels.
    """

    buffer: str
    layer: int
    size: int
    step: int
    groups: int = 1


class _Write(NamedTuple):
    """The layer of a buffer that a phase writes to; its rows are `step` numbers apart."""

    buffer: str
    layer: int
    step: int
    tanh: bool = False
    adds: bool = False


class Panels:
    """A network's weights in panels, and the phases of a search that read them; nothing writes to them later.

    `sizes` and `tensors` have the names of the kernel's record. Steps begin with the phase `loop`. A phase reads at
    most `reads` numbers of a row, and a block's row has at most `widest`. The matrices take `matrices` bytes of
    `nbytes`. `idle` keeps the memory of finished searches by their shapes.
    """

    def __init__(self, model: TranslationModel, int8: bool) -> None:
        self.int8, self.dtype = int8, model.output_bias.dtype
        self._lanes = BYTES // self.dtype.itemsize
        self._wide = 2 * self._lanes  # rows of buffers are filled up to a multiple
        self._phases: list[dict[str, int]] = []
        self._parts: list[tuple[int, ...]] = []
        self._packed: list[Tensor] = []
        self._lstm = hasattr(model, "cell_bridge")
        self._gate_count = 4 if self._lstm else 3
        self._direction_size = model.encoder.output_size // model.encoder.directions
        self.scale, self.attends = math.sqrt(model.decoder.input_size), model.attends
        self.tensors: dict[str, Tensor] = {}
        attention = compared(model.decoder)
        own = self._up(self._direction_size)
        self.sizes = {
            "lstm": int(self._lstm),
            "embedded": self._up(model.decoder.input_size),
            "hidden": self._up(model.decoder.hidden_size),
            "own": own,
            "directions": model.encoder.directions,
            "layers": model.decoder.num_layers,
            "encoder_layers": model.decoder.num_layers,
            "readout": self._up(len(model.readout.weight)),
            "pair": CHOICES.index(attention.pair),
            "features": self._up(len(attention.key.weight)),
            "values": model.encoder.directions * own,
            "lexical": int(model.is_lexical),
        }
        self._tables(model, attention)
        self._encoder(model, attention)
        self._first_states(model)
        self.loop = len(self._phases)
        self._step(model, attention)
        self.blocks = self._phases[-1]["blocks"]
        self.widest = max(phase["panels"] for phase in self._phases) * self._lanes
        self.reads = max(sum(part[3] for part in self._parts[p["part"] :][: p["parts"]]) for p in self._phases)
        names = record.PHASE.names or ()
        self.phases = np.array([tuple(phase[name] for name in names) for phase in self._phases], record.PHASE)
        self.parts = np.array(self._parts, record.PART)
        self.nbytes = sum(tensor.nbytes for tensor in self._packed)
        self.matrices = int(self.phases["stride"] @ self.phases["blocks"])
        self.idle: dict[tuple[int, ...], Any] = {}

    def _up(self, size: int) -> int:
        return round_up(size, self._wide)

    def _tables(self, model: TranslationModel, attention: Compared) -> None:
        for side, table in (("source", model.source_table), ("target", model.target_embedding)):
            numbers, scales = self._numbers(table.weight)
            self.tensors[f"{side}_table"] = filled = self._filled(numbers)
            if self.int8 or filled is not numbers:  # a table that is the model's own takes no further memory
                self._packed.append(filled)
            if scales is not None:
                self.tensors[f"{side}_scales"] = scales
        if attention.weight is not None:
            self.tensors["weight"] = self._filled(attention.weight.detach())

    def _filled(self, tensor: Tensor) -> Tensor:
        """A tensor, its last dimension filled up with zeros to a multiple of `_wide`."""
        more = self._up(tensor.shape[-1]) - tensor.shape[-1]
        return pad(tensor, (0, more)) if more or not tensor.is_contiguous() else tensor

    # --- phases

    def _encoder(self, model: TranslationModel, attention: Compared) -> None:
        at, own, layers = self.sizes, self._direction_size, model.decoder.num_layers
        self._phase(record.READ, record.POSITIONS)
        read = _Read("embedded_source", 0, model.decoder.input_size, at["embedded"])
        state = _Read("encoder_state", 0, own, at["own"])
        for layer in range(layers):
            cells = [Cells(*model.encoder.layer_weights(layer, n)) for n in range(model.encoder.directions)]
            biases = [self._biases(each) for each in cells]
            for direction, each in enumerate(cells):
                into = _Write("gates", direction, self._gate_count * at["own"])
                inputs, panels = self._gates(each.weight_ih, [read], input_side=True)
                bias = biases[direction][:, : self._gate_count]
                self._phase(record.DENSE, record.POSITIONS, inputs, [(read, panels)], bias, into)
            out = ("outputs", "outputs_below")[(layers - 1 - layer) % 2]
            both = [self._gates(each.weight_hh, [state], input_side=False) for each in cells]
            packed, reads = _joined([directed for directed, _ in both], dim=0), [(state, both[0][1])]
            into = _Write(out, 0, 0)
            self._phase(record.ENCODE, record.SENTENCES, packed, reads, torch.cat(biases), into, layer=layer)
            read = _Read(out, 0, own, at["values"], len(cells))
        if not model.attends:
            read = _Read("final", layers - 1, own, at["values"], at["directions"])
        rows = record.POSITIONS if model.attends else record.SENTENCES
        self._affine(rows, attention.key, [read], _Write("keys", 0, at["features"]))
        if attention.pair == "additive":
            self._phase(record.KEYS, record.SENTENCES)

    def _first_states(self, model: TranslationModel) -> None:
        at = self.sizes
        for layer in range(model.decoder.num_layers):
            last = _Read("final", layer, self._direction_size, at["values"], at["directions"])
            self._affine(record.SENTENCES, model.bridge, [last], _Write("after", layer, at["hidden"], tanh=True))
            if self._lstm:
                last, into = last._replace(buffer="final_cell"), _Write("cell_after", layer, at["hidden"])
                self._affine(record.SENTENCES, model.cell_bridge, [last], into)

    def _step(self, model: TranslationModel, attention: Compared) -> None:
        at, hidden, embedded = self.sizes, model.decoder.hidden_size, model.decoder.input_size
        embedding = _Read("embedding", 0, embedded, at["embedded"])
        context = _Read("context", 0, self._direction_size, at["values"], at["directions"])
        attended = [_Read("attended", 0, embedded, at["embedded"])] * at["lexical"]
        self._phase(record.GATHER, record.LIVE)
        state = _Read("before", model.decoder.num_layers - 1, hidden, at["hidden"])
        self._affine(record.LIVE, attention.query, [state], _Write("query", 0, at["features"]))
        self._phase(record.ATTEND, record.LIVE)
        below = [embedding, context, *attended]
        for layer in range(model.decoder.num_layers):
            cells = Cells(*(model.decoder.part(name, layer) for name in Cells._fields))
            own = _Read("before", layer, hidden, at["hidden"])
            inputs, first = self._gates(cells.weight_ih, below, input_side=True)
            recurrent, second = self._gates(cells.weight_hh, [own], input_side=False)
            reads = [*((read, first) for read in below), (own, second)]
            packed = _joined([inputs, recurrent], dim=1)
            self._phase(record.CELL, record.LIVE, packed, reads, self._biases(cells), layer=layer)
            below = [_Read("after", layer, hidden, at["hidden"])]
        into = _Write("readout", 0, at["readout"], tanh=True)
        self._affine(record.LIVE, model.readout, [*below, context, *attended, embedding], into)
        if model.is_lexical:
            self._affine(record.LIVE, model.lexical, attended, into._replace(tanh=False, adds=True))
        output = Affine(model.output_table, model.output_bias)
        self._affine(record.LIVE, output, [_Read("readout", 0, len(model.readout.weight), at["readout"])], None)

    def _affine(self, rows: int, affine: Affine | nn.Linear, reads: list[_Read], into: _Write | None) -> None:
        """Add a phase of a matrix and a bias; without `into`, of the scores of tokens, to be ranked."""
        weight, bias, lanes = affine.weight, affine.bias, self._lanes
        size = len(weight)
        if into is not None:
            panels = _NARROW if self._up(size) // lanes % _NARROW == 0 else self._wide // lanes
            blocks = self._up(size) // lanes // panels
        else:
            blocks = -(-size // (_WIDE * lanes))
            panels = -(-size // (blocks * lanes))
        more = blocks * panels * lanes - size
        packed = self._packed_by(
            affine.weight, reads, lambda t: pad(t, (0, 0, 0, more)).view(blocks, panels, lanes, -1)
        )
        bias = torch.zeros(size, dtype=self.dtype, device="cpu") if affine.bias is None else affine.bias.detach()
        nothing = 0.0 if into is not None else -torch.inf  # so that no column beyond the last is a token
        biases = pad(bias, (0, more), value=nothing).view(blocks, panels * lanes)
        kind = record.DENSE if into is not None else record.RANK
        self._phase(kind, rows, packed, [(read, (0, panels)) for read in reads], biases, into)

    def _gates(self, weight: Tensor, reads: list[_Read], *, input_side: bool) -> tuple["_Packed", tuple[int, int]]:
        """One side of a layer's gates, in blocks of a vector of features, with the panels that it makes.

        An LSTM's are i, f, g, o; a GRU's n, r, z of the input's side and r, z, n of the other: so that in a block of n,
        r, z, n each side makes three that are neighbours, and what is added has been added.
        """
        gates = self._gate_count
        order = torch.tensor([2, 0, 1] if input_side and gates == 3 else list(range(gates)), device="cpu")

        def in_blocks(t: Tensor) -> Tensor:
            by_gate = t.unflatten(0, (gates, -1)).index_select(0, order)
            filled = pad(by_gate, (0, 0, 0, self._up(by_gate.shape[1]) - by_gate.shape[1]))
            return filled.unflatten(1, (-1, self._lanes)).transpose(0, 1)

        packed = self._packed_by(weight, reads, in_blocks)
        return packed, (0 if input_side or gates == 4 else 1, gates)

    def _biases(self, cells: Cells) -> Tensor:
        """(blocks, 4, lanes): of an LSTM both sides together; of a GRU n of the input's, r and z together, n."""
        ours, theirs = (
            self._filled(bias.detach().unflatten(0, (self._gate_count, -1))) for bias in (cells.bias_ih, cells.bias_hh)
        )
        both = ours + theirs
        biases = both if self._lstm else torch.stack([ours[2], both[0], both[1], theirs[2]])
        return biases.unflatten(1, (-1, self._lanes)).transpose(0, 1)

    # --- their matrices

    def _numbers(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        return quantized(weight) if self.int8 else (weight.detach(), None)

    def _packed_by(self, weight: Tensor, reads: list[_Read], in_blocks: Callable[[Tensor], Tensor]) -> "_Packed":
        """A matrix in panels, whose columns are filled up as what they are multiplied with."""
        numbers, scales = self._numbers(weight)
        parts = []
        for read, part in zip(reads, numbers.split([each.size * each.groups for each in reads], dim=1), strict=True):
            columns = self._filled(part.unflatten(1, (read.groups, read.size))).flatten(1)
            panels = in_blocks(columns).transpose(2, 3)
            if scales is None:
                parts.append(_Packed(panels.flatten(1), None))
            else:
                pairs = panels.unflatten(2, (-1, 2)).transpose(3, 4)
                parts.append(_Packed(pairs.flatten(1), in_blocks(scales.unsqueeze(1)).flatten(1)))
        return _joined(parts, dim=1)

    def _phase(
        self,
        kind: int,
        rows: int,
        packed: "_Packed | None" = None,
        reads: Sequence[tuple[_Read, tuple[int, int]]] = (),
        biases: Tensor | None = None,
        into: _Write | None = None,
        layer: int = 0,
    ) -> None:
        phase = dict.fromkeys(record.PHASE.names or (), 0) | {"kind": kind, "rows": rows, "blocks": 1, "layer": layer}
        if into is not None:
            phase |= {"out": record.BUFFERS.index(into.buffer), "out_layer": into.layer, "out_step": into.step}
            phase |= {"tanh": int(into.tanh), "adds": int(into.adds)}
        if packed is not None and biases is not None:
            biases = biases.flatten(1).contiguous()
            phase |= {"blocks": len(biases), "panels": biases.shape[1] // self._lanes}
            phase |= {"part": len(self._parts), "parts": len(reads)}
            phase |= {"weight": self._address(packed.panels), "stride": packed.panels[0].nbytes}
            phase["bias"] = self._address(biases)
            if packed.scales is not None:
                phase |= {"scales": self._address(packed.scales), "scale_stride": packed.scales[0].nbytes}
            for read, (first, panels) in reads:
                count = read.groups * self._up(read.size)
                self._parts.append((record.BUFFERS.index(read.buffer), read.layer, read.step, count, first, panels))
        self._phases.append(phase)

    def _address(self, tensor: Tensor) -> int:
        self._packed.append(tensor)
        return addresses.address("a weight", tensor, tensor.dtype)


class _Packed(NamedTuple):
    """Blocks of a matrix, or of a part of it: (blocks, numbers), and of int8 the scales of their columns."""

    panels: Tensor
    scales: Tensor | None


def _joined(parts: Sequence[_Packed], dim: int) -> _Packed:
    """Parts one behind the other, within each block (1) or block after block (0)."""
    scales = [part.scales for part in parts if part.scales is not None]
    return _Packed(torch.cat([part.panels for part in parts], dim), torch.cat(scales, dim) if scales else None)
