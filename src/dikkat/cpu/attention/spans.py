"""Sequences end to end, as the kernels take them: where each begins in every operand, and which tasks there are."""

import math

import torch
from torch import Tensor

from dikkat.cpu.attention.record import PEAK_KEYS, SHARED, SPANS
from dikkat.cpu.engine.record import Call
from dikkat.problem import Problem
from dikkat.problem.sequences import lengths_of

# Whose batch elements those of a packed operand are.
_OWNERS = {"packed_key": "key", "key_peak": "key", "key_beyond": "key", "packed_value": "value"}


class Spans:
    """Where the sequences of a call begin, in each unit that `record.SPANS` counts in.

    Args:
        problem: A call with offsets.
        lanes: How many numbers a vector has.

    Attributes:
        each: How many each sequence has, (S,): queries, keys, blocks and tiles of keys, pairs.
        counted: What a sequence's part of each operand and result is counted in, as in `record.SPANS`.
    """

    def __init__(self, problem: Problem, lanes: int) -> None:
        queries, keys = lengths_of(problem)
        blocks, tiles = (-(-keys // step) for step in (lanes, PEAK_KEYS))
        self.each = {"query": queries, "key": keys, "block": blocks, "tile": tiles, "pair": queries * keys}
        self.each["sequence"] = torch.ones_like(keys)
        self.counted = dict(SPANS)
        # The longest first, so that threads end at about one time.
        self._order = (keys * queries.clamp(1, 32)).argsort(descending=True, stable=True)

    def __len__(self) -> int:
        return len(self.each["key"])

    def total(self, kind: str) -> int:
        """How many there are of a unit."""
        return int(self.each[kind].sum())

    def count_backward(self, parts: Tensor) -> None:
        """Count tasks of a backward too, and the slots that each of them has for its sequence's keys."""
        self.each |= {"task": parts, "slot": parts * self.each["key"]}

    def row_of_pairs(self) -> Tensor:
        """The query of each pair."""
        rows = torch.arange(self.total("query"), device="cpu")
        return rows.repeat_interleave(self.each["key"].repeat_interleave(self.each["query"]))

    def divide(self, call: Call, heads: int, parts: Tensor, *, of_owners: bool) -> int:
        """Write into a call what its tasks need; return how many there are.

        Args:
            call: The call, its operands and outputs in place.
            heads: How many batch elements each sequence has.
            parts: (S,): how many tasks each of them makes.
            of_owners: Whether these are the batch elements of the operands themselves, and not the call's.
        """
        fields, moves = call.fields, []
        begins = torch.nn.functional.pad(torch.stack(list(self.each.values())).cumsum(1), (1, 0))
        call.point("spans", begins)
        places = {kind: fields["spans"] + begins.stride(0) * 8 * at for at, kind in enumerate(self.each)}
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
        sequence = self._order.repeat_interleave(own_parts)
        part = torch.arange(len(sequence), device="cpu") - (own_parts.cumsum(0) - own_parts).repeat_interleave(
            own_parts
        )
        elements = torch.empty(len(sequence), heads, 4, dtype=torch.int64, device="cpu")
        elements[..., 0] = torch.arange(heads, device="cpu")
        elements[..., 1:] = torch.stack([sequence, part, parts[sequence]], -1)[:, None]
        call.point("elements", elements)
        fields |= {"sequences": len(self), "moved": len(moves)}
        return elements.shape[0] * heads

    def summed(self, parts: Tensor, slots: Tensor) -> Tensor:
        """Add up what each part of a sequence has of its keys: (heads, slots, ...) -> (heads, keys, ...)."""
        keys, number = self.each["key"], self.each["slot"]
        if not len(self) or int(parts.max()) == 1:
            return slots
        own = torch.arange(len(self), device="cpu").repeat_interleave(keys)
        place = torch.arange(len(own), device="cpu") + ((number.cumsum(0) - number) - (keys.cumsum(0) - keys))[own]
        whole = slots.index_select(1, place)
        for part in range(1, int(parts.max())):
            rows = (parts[own] > part).nonzero().flatten()
            whole.index_add_(1, rows, slots.index_select(1, place[rows] + part * keys[own[rows]]))
        return whole
