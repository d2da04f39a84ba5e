"""A translator's weights packed into panels for a compiled search."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dikkat._engine import addresses
from dikkat._engine.record import BYTES, round_up
from dikkat.recurrent.fused.record import CHOICES
from dikkat.storage.int8 import quantized
from dikkat.translation.decoding.compiled import record
from dikkat.translation.network.layout import Affine, Cells, Network

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
    """A network's weights in panels, and the phases of a search that read them; not written to once they are made.

    Attributes:
        int8: Whether they are.
        dtype: The type that is computed in.
        phases: The phases, of `record.PHASE`.
        parts: What they read, of `record.PART`.
        loop: The first phase of a step.
        sizes: Sizes, by the names of the kernel's record.
        scale: The factor of embeddings.
        blocks: Of the output layer.
        widest: The most numbers of a block's row.
        reads: The most numbers that a phase reads of a row.
        tensors: Tables and vectors that the kernel's record points to, by its names.
        attends: As of `Network`.
        nbytes: How much memory the weights take here.
        matrices: Of this, the bytes of those that rows are multiplied with.
        idle: Memory of searches that are over, by their shapes, for the next of these.
    """

    def __init__(self, network: Network, int8: bool) -> None:
        self.int8, self.dtype = int8, network.target_table.dtype
        self._lanes = BYTES // self.dtype.itemsize
        self._wide = 2 * self._lanes  # rows of buffers are filled up to a multiple
        self._phases: list[dict[str, int]] = []
        self._parts: list[tuple[int, ...]] = []
        self._packed: list[Tensor] = []
        self.scale, self.attends = network.scale, network.attends
        self.tensors: dict[str, Tensor] = {}
        self.sizes = self._sizes_of(network)
        self._tables(network)
        self._encoder(network)
        self._first_states(network)
        self.loop = len(self._phases)
        self._step(network)
        self.blocks = self._phases[-1]["blocks"]
        self.widest = max(phase["panels"] for phase in self._phases) * self._lanes
        reads = [sum(part[3] for part in self._parts[p["part"] :][: p["parts"]]) for p in self._phases]
        self.reads = max(reads)
        self.phases = np.array(
            [tuple(phase[name] for name in record.PHASE.names or ()) for phase in self._phases], record.PHASE
        )
        self.parts = np.array(self._parts, record.PART)
        self.nbytes = sum(tensor.nbytes for tensor in self._packed)
        self.matrices = int(self.phases["stride"] @ self.phases["blocks"])
        self.idle: dict[tuple[int, ...], Any] = {}

    def _up(self, size: int) -> int:
        return round_up(size, self._wide)

    def _sizes_of(self, net: Network) -> dict[str, int]:
        own = self._up(net.encoder[0][0].weight_hh.shape[1])
        return {
            "lstm": int(net.lstm), "embedded": self._up(net.source_table.shape[1]), "hidden": self._up(net.hidden),
            "own": own, "directions": len(net.encoder[0]), "layers": len(net.decoder),
            "encoder_layers": len(net.encoder), "readout": self._up(len(net.readout.weight)) if net.readout else 0,
            "pair": CHOICES.index(net.compared.pair), "features": self._up(len(net.compared.key.weight)),
            "values": len(net.encoder[0]) * own, "lexical": int(net.lexical is not None),
        }  # fmt: skip

    def _tables(self, net: Network) -> None:
        """The embeddings, and the weight of an additive score."""
        for side, table in (("source", net.source_table), ("target", net.target_table)):
            numbers, scales = self._numbers(table)
            self.tensors[f"{side}_table"] = filled = self._filled(numbers)
            if self.int8 or filled is not numbers:  # a table that is the model's own takes no further memory
                self._packed.append(filled)
            if scales is not None:
                self.tensors[f"{side}_scales"] = scales
        if net.compared.weight is not None:
            self.tensors["weight"] = self._filled(net.compared.weight.detach())

    def _filled(self, tensor: Tensor) -> Tensor:
        """A tensor, its last dimension filled up with zeros to a multiple of `_wide`."""
        more = self._up(tensor.shape[-1]) - tensor.shape[-1]
        return pad(tensor, (0, more)) if more or not tensor.is_contiguous() else tensor

    # --- phases

    def _encoder(self, net: Network) -> None:
        at, own = self.sizes, net.encoder[0][0].weight_hh.shape[1]
        self._phase(record.READ, record.POSITIONS)
        read = _Read("embedded_source", 0, net.source_table.shape[1], at["embedded"])
        gates = 4 if net.lstm else 3
        for layer, cells in enumerate(net.encoder):
            for direction, each in enumerate(cells):
                wide = _Write("gates", direction, gates * at["own"])
                inputs, panels = self._gates(each.weight_ih, [read], input_side=True)
                self._phase(
                    record.DENSE, record.POSITIONS, inputs, [(read, panels)], self._biases(each)[:, :gates], wide
                )
            out = ("outputs", "outputs_below")[(len(net.encoder) - 1 - layer) % 2]
            state = _Read("encoder_state", 0, own, at["own"])
            both = [self._gates(each.weight_hh, [state], input_side=False) for each in cells]
            packed = _joined([directed for directed, _ in both], dim=0)
            biases = torch.cat([self._biases(each) for each in cells])
            self._phase(
                record.ENCODE, record.SENTENCES, packed, [(state, both[0][1])], biases, _Write(out, 0, 0), layer=layer
            )
            read = _Read(out, 0, own, at["values"], len(cells))
        if not net.attends:
            read = _Read("final", len(net.encoder) - 1, own, at["values"], at["directions"])
        rows = record.POSITIONS if net.attends else record.SENTENCES
        self._affine(rows, net.compared.key, [read], _Write("keys", 0, at["features"]))
        if net.compared.pair == "additive":
            self._phase(record.KEYS, record.SENTENCES)

    def _first_states(self, net: Network) -> None:
        """The decoder's, of the encoder's last ones."""
        at, own = self.sizes, net.encoder[0][0].weight_hh.shape[1]
        unit = Affine(torch.eye(net.hidden, dtype=self.dtype, device="cpu"))
        for layer in range(len(net.decoder)):
            last = _Read("final", layer, own, at["values"], at["directions"])
            into = _Write("after", layer, at["hidden"], tanh=net.bridge is not None)
            self._affine(record.SENTENCES, net.bridge or unit, [last], into)
            if net.lstm:
                into = _Write("cell_after", layer, at["hidden"])
                self._affine(record.SENTENCES, net.cell_bridge or unit, [last._replace(buffer="final_cell")], into)

    def _step(self, net: Network) -> None:
        at, hidden, top = self.sizes, net.hidden, len(net.decoder) - 1
        embedding = _Read("embedding", 0, net.target_table.shape[1], at["embedded"])
        context = _Read("context", 0, net.encoder[0][0].weight_hh.shape[1], at["values"], at["directions"])
        attended = [_Read("attended", 0, net.source_table.shape[1], at["embedded"])] if at["lexical"] else []
        self._phase(record.GATHER, record.LIVE)
        state = _Read("before", top, hidden, at["hidden"])
        self._affine(record.LIVE, net.compared.query, [state], _Write("query", 0, at["features"]))
        self._phase(record.ATTEND, record.LIVE)
        below = [embedding, context, *attended]
        for layer, each in enumerate(net.decoder):
            own = _Read("before", layer, hidden, at["hidden"])
            inputs, first = self._gates(each.weight_ih, below, input_side=True)
            recurrent, second = self._gates(each.weight_hh, [own], input_side=False)
            reads = [*((read, first) for read in below), (own, second)]
            packed = _joined([inputs, recurrent], dim=1)
            self._phase(record.CELL, record.LIVE, packed, reads, self._biases(each), layer=layer)
            below = [_Read("after", layer, hidden, at["hidden"])]
        said = below[0]
        if net.readout is not None:
            size = len(net.readout.weight)
            into = _Write("readout", 0, self._up(size), tanh=True)
            self._affine(record.LIVE, net.readout, [said, context, *attended, embedding], into)
            if net.lexical is not None:
                self._affine(record.LIVE, Affine(net.lexical), attended, into._replace(tanh=False, adds=True))
            said = _Read("readout", 0, size, self._up(size))
        self._affine(record.LIVE, net.output, [said], None)

    def _affine(self, rows: int, affine: Affine, reads: list[_Read], into: _Write | None) -> None:
        """Add a phase of a matrix and a bias; without `into`, of the scores of tokens, to be ranked."""
        size, lanes = len(affine.weight), self._lanes
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
        gates = 4 if self.sizes["lstm"] else 3
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
            self._filled(bias.detach().unflatten(0, (4 if self.sizes["lstm"] else 3, -1)))
            for bias in (cells.bias_ih, cells.bias_hh)
        )
        both = ours + theirs
        biases = both if self.sizes["lstm"] else torch.stack([ours[2], both[0], both[1], theirs[2]])
        return biases.unflatten(1, (-1, self._lanes)).transpose(0, 1)

    # --- their matrices

    def _numbers(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """A matrix's numbers, and of int8 ones the scales of its rows."""
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
        self, kind: int, rows: int, packed: "_Packed | None" = None,
        reads: Sequence[tuple[_Read, tuple[int, int]]] = (), biases: Tensor | None = None, into: _Write | None = None,
        layer: int = 0,
    ) -> None:  # fmt: skip
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
