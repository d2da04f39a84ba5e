"""A search of a batch of sentences as one compiled call: its record and its memory."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from dikkat._core.compiled.scoring import RANGES
from dikkat._engine import addresses, cancellation
from dikkat._engine.record import CallRecord, round_up
from dikkat.translation.decoding.compiled.network import Panels
from dikkat.translation.decoding.compiled.record import (
    BUDGET,
    BUFFERS,
    CHUNK,
    CONTROL,
    DONE,
    FINISHED,
    FULL,
    GOING,
    LINE,
    OVER,
    PUBLISHED,
    SEARCH,
    STATE,
    TICKETS,
    UNKNOWN_SCORES,
)  # fmt: skip
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.text.special_tokens import BEGIN

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
_TABLES = ("step_totals", "step_tokens", "step_rows", "step_origins", "step_ended", "step_out")


class UnknownScoresError(ValueError):
    """A row's best score is not a finite number."""


def search(
    panels: Panels, sentences: Sequence[Sentence], beam: int, n_best: int, penalty: float
) -> list[list[Hypothesis]]:
    """Beam search of a batch, as one call.

    Args:
        panels: The weights.
        sentences: At least one.
        beam: Hypotheses of a sentence that go on; at most as many as there are tokens.
        n_best: Hypotheses to return of a sentence, at most `beam`.
        penalty: The length penalty's exponent.

    Returns:
        Of each sentence its best hypotheses, best first.

    Raises:
        UnknownScoresError: The model's scores are not numbers.
    """
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index].tokens))
    shape = len(sentences), len(sentences[order[0]].tokens), beam, n_best
    run = panels.idle.pop(shape, None) or Run(panels, *shape, min(_STEPS, max(each.most for each in sentences)))
    run.begin([sentences[index] for index in order], penalty)
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
    """Searches of one shape, one after the other: the record of their kernels, and the memory that it points to.

    Args:
        panels: The weights; the caller keeps them alive.
        count: Sentences.
        longest: Tokens of the longest.
        beam: Hypotheses of a sentence that go on.
        n_best: Hypotheses to return of a sentence.
        steps: Steps that there is room for at first.

    Attributes:
        nbytes: The memory that it takes.
    """

    def __init__(self, panels: Panels, count: int, longest: int, beam: int, n_best: int, steps: int) -> None:
        self._count, self._longest, self._beam, self._n_best = count, longest, beam, n_best
        self._capacity, self._attends = count * beam, panels.attends
        self._call = call = CallRecord(SEARCH, panels.dtype, (True if panels.int8 else None,))
        ranges = RANGES[panels.dtype]
        keys = longest if panels.attends else 1
        call.fields |= panels.sizes | {
            "phases": addresses.array_address(panels.phases), "parts": addresses.array_address(panels.parts),
            "phase_count": len(panels.phases), "part_count": len(panels.parts), "loop": panels.loop,
            "sentences": count, "longest": longest, "positions": count * longest, "capacity": self._capacity,
            "beam": beam, "n_best": n_best, "blocks": panels.blocks,
            "keys": keys, "key_row": round_up(keys, 2 * call.lanes), "scale": panels.scale,
            "folded": ranges.folded, "single": ranges.single, "most": ranges.most,
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
        for name in ("gains", "tokens"):
            call.new(name, rows, beam)
        self._small()
        self._make_room(steps)
        call.alone = panels.matrices * min(self._capacity, CHUNK) < _ONE_THREAD_BYTES
        call.lay_out(block=CHUNK * panels.widest, exps=panels.sizes["features"])
        self.nbytes = sum(tensor.nbytes for name, tensor in call.kept.items() if name not in panels.tensors)

    def begin(self, sentences: Sequence[Sentence], penalty: float) -> None:
        """Take sentences of this shape, the longest first."""
        self._limit = max(each.most for each in sentences)
        self._lengths = [len(each.tokens) for each in sentences]
        self._memory[:] = self._before
        fields, small, longest = self._call.fields, self._tables, self._longest
        fields["penalty"] = penalty
        for b, each in enumerate(sentences):
            small["sources"][b * longest : b * longest + self._lengths[b]] = each.tokens
        small["lengths"][:] = self._lengths
        small["fewest"][:] = [each.fewest for each in sentences]
        small["limits"][:] = [each.most for each in sentences]
        small["copies"].view(np.bool_)[: self._count] = [each.copies for each in sentences]
        chunks = [
            (b * longest + first, min(CHUNK, length - first))
            for b, length in enumerate(self._lengths)
            for first in range(0, length, CHUNK)
        ]
        small["chunk_first"][: len(chunks)] = [first for first, _ in chunks]
        small["chunk_rows"][: len(chunks)] = [rows for _, rows in chunks]
        fields["chunks"] = len(chunks)
        self._state["tasks"], self._state["rows"], self._state["room"] = len(chunks), self._count, self._room
        self._set(PUBLISHED, len(chunks))

    def _small(self) -> None:
        """Allocate the small tables in one block; `begin` resets them to this state."""
        count, rows, best, call = self._count, self._capacity, self._count * self._n_best, self._call
        chunks = count * -(-self._longest // CHUNK)
        sizes = {
            "sources": count * self._longest, "lengths": count, "fewest": count, "limits": count, "open": count,
            "copies": round_up(count, 8) // 8, "chunk_first": chunks, "chunk_rows": chunks, "next_rows": rows,
            "next_sentences": rows, "next_tokens": rows, "totals": rows, "best_ended": best,
            "result_steps": best, "result_places": best, "result_ended": round_up(best, 8) // 8, "result_scores": best,
            "result_totals": best, "state": STATE.itemsize // 8, "control": round_up(CONTROL, LINE) // 8,
        }  # fmt: skip
        # One cache line of padding behind it: the last table is written by all workers, and must not share a line
        # (false sharing).
        room = call.point("control", torch.zeros(sum(sizes.values()) + LINE // 8, dtype=torch.int64, device="cpu"))
        self._memory = memory = room.numpy()
        base, at = call.fields["control"], 0
        self._tables: dict[str, Any] = {}
        tables = self._tables
        for name, size in sizes.items():
            if name == "control":
                at += -(base // 8 + at) % (LINE // 8)
            tables[name], call.fields[name] = memory[at : at + size], base + 8 * at
            at += size
        call.fields["seen"] = call.fields["lengths"] if self._attends else 0
        tables["open"][:] = self._beam
        tables["next_rows"][:] = tables["next_sentences"][:] = range(rows)
        tables["next_tokens"][:] = BEGIN
        for name in ("totals", "best_ended"):
            tables[name].view(np.float64)[:] = -np.inf
        tables["totals"].view(np.float64)[:: self._beam] = 0.0
        self._state = tables["state"].view(STATE)
        self._before = memory.copy()

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
        sizes = [shapes[name][0] * shapes[name][1] for name in BUFFERS]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        # Zeros: of the padding behind sentences nothing comes out, but it is read.
        room = self._call.point("value", torch.zeros(sum(sizes), dtype=panels.dtype, device="cpu"))
        base, size = self._call.fields["value"], room.itemsize
        for name, numbers in (
            ("buffers", [base + start * size for start in starts]),
            ("strides", [shapes[name][1] for name in BUFFERS]),
        ):
            self._call.point(name, torch.tensor(numbers, dtype=torch.int64, device="cpu"))
        start = dict(zip(BUFFERS, starts, strict=True))
        last = start["outputs"]
        if not panels.attends:
            last = start["final"] + (at["encoder_layers"] - 1) * count * at["values"]
        self._call.fields |= {"value": base + last * size, "key": base + start["keys"] * size}
        self._call.new("key_exp", count, keys, at["features"])
        self._call.new("reach", count)
        if panels.int8:
            most = max(positions, rows, 2 * count)
            halves = torch.empty(most * panels.reads, dtype=torch.int16, device="cpu")
            self._call.point("quantized", halves, halves.dtype)
            self._call.new("quantized_scales", most * 4)

    def _make_room(self, steps: int) -> None:
        """Make tables for `steps` steps, with the contents of the present ones."""
        count, beam, call = self._count, self._beam, self._call
        old = {name: call.kept.get(name) for name in ("weights", *_TABLES)}
        call.new("weights", steps if self._attends else 1, self._capacity, call.fields["key_row"])
        for name in _TABLES:
            call.new(name, steps, count, beam)
        for name, tensor in old.items():
            if tensor is not None:
                call.kept[name][: len(tensor)] = tensor
        call.new("result_ids", count, self._n_best, steps)
        call.new("result_weights", count, self._n_best, steps if self._attends else 0, self._longest)
        self._room = steps

    def _set(self, place: int, number: int) -> None:
        self._tables["control"][place // 8] = number

    def go(self) -> None:
        """Search, in parts of about `_PART` seconds, between which it may be interrupted or stopped."""
        from dikkat.translation.decoding.compiled import phases

        call, budget = self._call, _FIRST
        workers = 1 if call.alone else torch.get_num_threads()
        while True:
            self._set(BUDGET, budget)
            began = time.perf_counter()
            call.run(phases.search, workers)
            seconds = time.perf_counter() - began
            status = int(self._state["status"][0])
            if status == UNKNOWN_SCORES:
                raise UnknownScoresError
            if status == DONE:
                return
            cancellation.check()
            if status == FULL:
                self._make_room(min(self._limit, 2 * self._room))
                self.nbytes = _SMALL + 1  # and is not kept
                first, tasks = (int(self._state[name][0]) for name in ("first", "tasks"))
                self._state["room"], self._state["status"] = self._room, GOING
                for place, number in ((TICKETS, first), (FINISHED, first), (OVER, 0), (PUBLISHED, first + tasks)):
                    self._set(place, number)
            elif seconds < _PART / 2:
                budget *= 2
            elif seconds > _PART:
                budget = max(_LEAST, budget // 2)

    def results(self) -> list[list[Hypothesis]]:
        """The best hypotheses of each sentence."""
        kept, small, best = self._call.kept, self._tables, self._n_best
        steps, totals = small["result_steps"].tolist(), small["result_totals"].view(np.float64).tolist()
        ended, ids = small["result_ended"].view(np.bool_).tolist(), kept["result_ids"].numpy()
        results: list[list[Hypothesis]] = []
        for b, keys in enumerate(self._lengths):
            results.append([])
            for k, at in enumerate(range(b * best, (b + 1) * best)):
                if steps[at] < 0:
                    continue
                length = steps[at] + 1 - ended[at]
                if self._attends:
                    weights = kept["result_weights"][b, k, :length, :keys].to(torch.float32, copy=True)
                else:
                    weights = torch.full((length, keys), 1 / keys, device="cpu")
                results[b].append(Hypothesis(ids[b, k, :length].tolist(), totals[at], weights, ended[at]))
        return results
