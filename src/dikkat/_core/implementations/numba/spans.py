"""Sequences end to end, as the kernels take them: where each begins in every operand, and which tasks there are."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dikkat._core.implementations.numba.record import PEAK_KEYS, SHARED, SPANS
from dikkat._core.problem import Problem
from dikkat._core.sequences import lengths_of
from dikkat._engine.record import CallRecord

# Whose batch elements those of a packed operand are.
_OWNERS = {"packed_key": "key", "key_peak": "key", "key_beyond": "key", "packed_value": "value"}
Numbers = NDArray[np.int64]  # NumPy's: PyTorch starts its threads for some operations of a few numbers


class Spans:
    """Where the sequences of a call begin, in each unit that `record.SPANS` counts in.

    Attributes:
        each: How many each sequence has, (S,): queries, keys, blocks and tiles of keys, pairs.
        counted: What a sequence's part of each operand and result is counted in, as in `record.SPANS`.
    """

    def __init__(self, problem: Problem, lanes: int) -> None:
        queries, keys = (lengths.numpy() for lengths in lengths_of(problem))
        blocks, tiles = (-(-keys // step) for step in (lanes, PEAK_KEYS))
        self.each = {"query": queries, "key": keys, "block": blocks, "tile": tiles, "pair": queries * keys}
        self.each["sequence"] = np.ones_like(keys)
        self.counted = dict(SPANS)
        # The longest first, so that threads end at about one time.
        self._order = np.argsort(-keys * queries.clip(1, 32), kind="stable")

    def __len__(self) -> int:
        return len(self.each["key"])

    def total(self, kind: str) -> int:
        """How many there are of a unit."""
        return int(self.each[kind].sum())

    def small(self, workers: float) -> NDArray[np.bool_]:
        """The sequences that are so small a part of a worker's share that each can be one task."""
        pairs = self.each["pair"]
        return pairs * (4 * workers) <= pairs.sum()

    def count_backward(self, parts: Numbers) -> None:
        """Count tasks of a backward too, and the slots that each of them has for its sequence's keys."""
        self.each |= {"task": parts, "slot": parts * self.each["key"]}

    def row_of_pairs(self) -> Tensor:
        """The query of each pair."""
        rows = np.arange(self.total("query")).repeat(self.each["key"].repeat(self.each["query"]))
        return torch.from_numpy(rows)

    def divide(
        self, call: CallRecord, heads: int, parts: Numbers, together: Any = 1, *, of_owners: bool = False
    ) -> int:
        """Write into a call what its tasks need; return how many there are."""
        fields, moves = call.fields, []
        begins = np.zeros((len(self.each), len(self) + 1), np.int64)
        np.cumsum(np.stack(list(self.each.values())), axis=1, out=begins[:, 1:])
        call.point("spans", torch.from_numpy(begins))
        places = {kind: fields["spans"] + begins.strides[0] * at for at, kind in enumerate(self.each)}
        for name, (kind, inner) in self.counted.items():
            if not fields[name]:
                continue
            shape, size = call.kept[name].shape, call.kept[name].itemsize
            own = math.prod(shape[len(shape) - inner :]) * size
            pitch = own if kind is None else own * shape[len(shape) - inner - 1]
            of = _OWNERS.get(name, name)
            step, owners = (1, 0) if of_owners or of not in SHARED else (fields[f"{of}_step"], fields[f"{of}_table"])
            moves.append([call.record.place(name), fields[name], step, owners, places.get(kind or "", 0), pitch, own])
        call.point("moves", torch.tensor(moves, dtype=torch.int64, device="cpu"))
        own_parts = parts[self._order]
        sequence = self._order.repeat(own_parts)
        elements = np.empty((len(sequence), heads, 5), np.int64)
        elements[..., 0], elements[..., 1] = np.arange(heads), sequence[:, None]
        elements[..., 2] = (np.arange(len(sequence)) - (own_parts.cumsum() - own_parts).repeat(own_parts))[:, None]
        elements[..., 3] = parts[sequence][:, None]
        elements[..., 4] = np.broadcast_to(together, parts.shape)[sequence][:, None]
        call.point("elements", torch.from_numpy(elements))
        fields |= {"sequences": len(self), "moved": len(moves)}
        return len(sequence) * heads

    def summed(self, parts: Numbers, slots: Tensor) -> Tensor:
        """Add up what each part of a sequence has of its keys: (heads, slots, ...) -> (heads, keys, ...)."""
        keys, number = self.each["key"], self.each["slot"]
        if parts.max(initial=1) == 1:
            return slots
        own = np.arange(len(self)).repeat(keys)
        place = np.arange(len(own)) + ((number.cumsum() - number) - (keys.cumsum() - keys))[own]
        whole = slots.index_select(1, torch.from_numpy(place))
        for part in range(1, int(parts.max())):
            rows = (parts[own] > part).nonzero()[0]
            further = torch.from_numpy(place[rows] + part * keys[own[rows]])
            whole.index_add_(1, torch.from_numpy(rows), slots.index_select(1, further))
        return whole
