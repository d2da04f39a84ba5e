"""A search of a batch of sentences as one compiled call: its record and its memory."""

import time
from collections.abc import Sequence

import torch

from dikkat._core.compiled.scoring import RANGES
from dikkat._engine import addresses, cancellation
from dikkat._engine.record import CallRecord, round_up
from dikkat.errors import InputError
from dikkat.translation.decoding.compiled import record
from dikkat.translation.decoding.compiled.beams import Beams
from dikkat.translation.decoding.compiled.network import Panels
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.decoding.options import Search

# About the seconds between two checks for Ctrl-C.
_PART = 0.05
# Bytes of weights times rows of the first part, a few hundredths of a second; and the least of any part, however long
# it takes: a busy machine would otherwise do little but begin and end.
_FIRST, _LEAST = 1 << 28, 1 << 26
# Bytes of a step's weights times rows up to which one thread is faster than several that wait for each other.
_ONE_THREAD_BYTES = 1 << 19
# Steps that there is room for at first.
_STEPS = 64
# Bytes up to which a search's memory is kept for the next of its shape, since making it may take longer than the
# search; and the number of shapes of which it is kept.
_SMALL, _IDLE = 1 << 18, 64


def search(
    panels: Panels, sentences: Sequence[Sentence], search: Search, slot_bits: torch.Tensor
) -> list[list[Hypothesis]]:
    """Beam search of a batch as one call: each sentence's best hypotheses, best first."""
    numbers, known = [token for each in sentences for token in each.tokens], len(panels.tensors["source_table"])
    least, most = min(numbers), max(numbers)
    if least < 0 or most >= known:
        raise InputError(
            f"sources: got token {least if least < 0 else most}; expected 0 to {known - 1}, the model's source "
            "vocabulary"
        )
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index].tokens))
    shape = len(sentences), len(sentences[order[0]].tokens), search.beam, search.n_best
    run = panels.idle.pop(shape, None) or Run(panels, *shape, min(_STEPS, max(each.most for each in sentences)))
    run.begin([sentences[index] for index in order], search, slot_bits)
    run.go()
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for index, group in zip(order, run.results(), strict=True):
        results[index] = group
    if run.nbytes <= _SMALL:  # not after an error
        if len(panels.idle) >= _IDLE:
            panels.idle.pop(next(iter(tuple(panels.idle))), None)
        panels.idle[shape] = run
    return results


class Run:
    """Searches of one shape, one after another: their record, and the memory of `nbytes` that it points to."""

    def __init__(self, panels: Panels, count: int, longest: int, beam: int, n_best: int, steps: int) -> None:
        self._count, self._longest = count, longest
        self._capacity, self._attends = count * beam, panels.attends
        self._call = call = CallRecord(record.SEARCH, panels.dtype, (True if panels.int8 else None,))
        ranges = RANGES[panels.dtype]
        keys = longest if panels.attends else 1
        call.fields |= panels.sizes | {
            "phases": addresses.array_address(panels.phases), "parts": addresses.array_address(panels.parts),
            "phase_count": len(panels.phases), "part_count": len(panels.parts), "loop": panels.loop,
            "longest": longest, "positions": count * longest, "capacity": self._capacity, "blocks": panels.blocks,
            "keys": keys, "key_row": round_up(keys, 2 * call.lanes), "scale": panels.scale,
            "folded": ranges.folded, "single": ranges.single, "exp_limit": ranges.most,
            "largest": torch.finfo(panels.dtype).max,
        }  # fmt: skip
        for name, tensor in panels.tensors.items():
            call.point(name, tensor, tensor.dtype)
        self._buffers(panels, keys)
        rows = self._capacity
        for name in ("block_peaks", "block_sums"):
            call.new(name, rows, panels.blocks)
        for name in ("block_gains", "block_tokens"):
            call.new(name, rows, panels.blocks, beam)
        chunks = count * -(-longest // record.CHUNK)
        self._beams = Beams(
            call, count, beam, n_best, sources=count * longest, lengths=count, chunk_first=chunks, chunk_rows=chunks,
            control=record.CONTROL // 8,
        )  # fmt: skip
        self._tables, self._state = self._beams.tables, self._beams.state
        call.fields["key_counts"] = call.fields["lengths"] if self._attends else 0
        self._make_room(steps)
        call.alone = panels.matrices * min(self._capacity, record.CHUNK) < _ONE_THREAD_BYTES
        call.lay_out(block=record.CHUNK * panels.widest, exps=panels.sizes["features"])
        self.nbytes = sum(tensor.nbytes for name, tensor in call.kept.items() if name not in panels.tensors)

    def begin(self, sentences: Sequence[Sentence], search: Search, slot_bits: torch.Tensor) -> None:
        """Take sentences of this shape, the longest first."""
        self._beams.begin(sentences, search, slot_bits)
        self._limit = max(each.most for each in sentences)
        lengths, tables, longest = [len(each.tokens) for each in sentences], self._tables, self._longest
        for b, each in enumerate(sentences):
            tables["sources"][b * longest : b * longest + lengths[b]] = each.tokens
        tables["lengths"][:] = lengths
        chunks = [
            (b * longest + first, min(record.CHUNK, length - first))
            for b, length in enumerate(lengths)
            for first in range(0, length, record.CHUNK)
        ]
        tables["chunk_first"][: len(chunks)] = [first for first, _ in chunks]
        tables["chunk_rows"][: len(chunks)] = [rows for _, rows in chunks]
        self._call.fields["chunks"] = self._state["tasks"] = len(chunks)
        self._set(record.PUBLISHED, len(chunks))

    def _buffers(self, panels: Panels, keys: int) -> None:
        """Make the buffers of the phases, in one piece of memory: each some layers of some rows."""
        at, count, rows, positions = panels.sizes, self._count, self._capacity, self._count * self._longest
        layers, directions, gates = at["layers"], at["directions"], 4 if at["lstm"] else 3
        lstm, recurrent = at["lstm"], count * at["own"]
        shapes = {
            "embedded_source": (1, positions * at["embedded"]),
            "outputs": (1, positions * at["values"]),
            "outputs_below": (int(at["encoder_layers"] > 1), positions * at["values"]),
            "gates": (directions, positions * gates * at["own"]),
            "encoder_state": (2 * directions, recurrent),
            "encoder_cell": (2 * directions * lstm, recurrent),
            "final": (at["encoder_layers"], count * at["values"]),
            "final_cell": (at["encoder_layers"] * lstm, count * at["values"]),
            "keys": (1, count * keys * at["features"]),
            "before": (layers, rows * at["hidden"]),
            "cell_before": (layers * lstm, rows * at["hidden"]),
            "after": (layers, rows * at["hidden"]),
            "cell_after": (layers * lstm, rows * at["hidden"]),
            "embedding": (1, rows * at["embedded"]),
            "context": (1, rows * at["values"]),
            "attended": (at["lexical"], rows * at["embedded"]),
            "query": (1, rows * at["features"]),
            "readout": (1, rows * at["readout"]),
        }
        sizes = [shapes[name][0] * shapes[name][1] for name in record.BUFFERS]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        # Zeros: of the padding behind sentences nothing comes out, but it is read.
        room = self._call.point("value", torch.zeros(sum(sizes), dtype=panels.dtype, device="cpu"))
        base, size = self._call.fields["value"], room.itemsize
        for name, numbers in (
            ("buffers", [base + start * size for start in starts]),
            ("strides", [shapes[name][1] for name in record.BUFFERS]),
        ):
            self._call.point(name, torch.tensor(numbers, dtype=torch.int64, device="cpu"))
        start = dict(zip(record.BUFFERS, starts, strict=True))
        last = start["outputs"]
        if not panels.attends:
            last = start["final"] + (at["encoder_layers"] - 1) * count * at["values"]
        self._call.fields |= {"value": base + last * size, "key": base + start["keys"] * size}
        self._call.new("key_exp", count, keys, at["features"])
        self._call.new("key_peaks", count)
        if panels.int8:
            most = max(positions, rows, 2 * count)
            halves = torch.empty(most * panels.reads, dtype=torch.int16, device="cpu")
            self._call.point("quantized", halves, halves.dtype)
            self._call.new("quantized_scales", most * 4)

    def _make_room(self, steps: int) -> None:
        self._beams.make_room(steps)
        self._beams.extend("weights", steps if self._attends else 1, self._capacity, self._call.fields["key_row"])

    def _set(self, place: int, number: int) -> None:
        self._tables["control"][place // 8] = number

    def go(self) -> None:
        """Search, in parts of about `_PART` seconds, between which it may be interrupted or stopped."""
        from dikkat.translation.decoding.compiled import phases

        call, budget = self._call, _FIRST
        workers = 1 if call.alone else torch.get_num_threads()
        while True:
            self._set(record.BUDGET, budget)
            began = time.perf_counter()
            call.run(phases.search, workers)
            seconds = time.perf_counter() - began
            status = int(self._state["status"][0])
            self._beams.check()
            if status == record.DONE:
                return
            cancellation.check()
            if status == record.FULL:
                self._make_room(min(self._limit, 2 * self._beams.room))
                self.nbytes = _SMALL + 1  # and is not kept
                first, tasks = (int(self._state[name][0]) for name in ("first", "tasks"))
                self._state["status"] = record.GOING
                for place, number in (
                    (record.TICKETS, first),
                    (record.FINISHED, first),
                    (record.OVER, 0),
                    (record.PUBLISHED, first + tasks),
                ):
                    self._set(place, number)
            elif seconds < _PART / 2:
                budget *= 2
            elif seconds > _PART:
                budget = max(_LEAST, budget // 2)

    def results(self) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        return self._beams.hypotheses(self._call.kept["weights"] if self._attends else [])
