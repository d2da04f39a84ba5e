"""A whole search of a batch of sentences: memory for it, its record, and Ctrl-C between its parts."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat import addresses
from dikkat.cpu.engine.record import Call, up
from dikkat.cpu.scoring import RANGES
from dikkat.cpu.search.network import Panels
from dikkat.cpu.search.record import (
    BUDGET,
    BUFFERS,
    CHUNK,
    CONTROL,
    DONE,
    FINISHED,
    FULL,
    GOING,
    OVER,
    PUBLISHED,
    SEARCH,
    STATE,
    TICKETS,
    UNKNOWN_SCORES,
)  # fmt: skip
from dikkat.cpu.search.rules import BEGIN

_PART = 0.05
"""Seconds between two looks for Ctrl-C, about."""
_FIRST = 1 << 28
"""Bytes of weights times rows of the first part: a few hundredths of a second."""
_LEAST = 1 << 26
"""Of any part, however long it takes: a busy machine would otherwise do little but begin and end."""
_ALONE = 1 << 19
"""Bytes of a step's weights times rows up to which one thread is faster than several that wait for each other."""
_STEPS = 64
"""Steps that there is room for at first."""


class Sentence(NamedTuple):
    """A sentence to be translated.

    Attributes:
        tokens: Token numbers, at least one.
        copies: Whether `<unk>` may come out.
        fewest: Tokens, at least one, before which `<eos>` may not.
        most: Tokens after which it is cut.
    """

    tokens: Sequence[int]
    copies: bool
    fewest: int
    most: int


class Found(NamedTuple):
    """A hypothesis.

    Attributes:
        ids: Its tokens, without the end.
        total: Its log-probability.
        weights: (tokens, positions), where each token looked; None without attention.
        finished: Whether the model ended it.
    """

    ids: list[int]
    total: float
    weights: Tensor | None
    finished: bool


class UnknownScoresError(ValueError):
    """A row's best score is not a finite number."""


def search(panels: Panels, sentences: Sequence[Sentence], beam: int, n_best: int, penalty: float) -> list[list[Found]]:
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
    run = _Run(panels, [sentences[index] for index in order], beam, n_best, penalty)
    run.go()
    found: list[list[Found]] = [[] for _ in sentences]
    for index, group in zip(order, run.found(), strict=True):
        found[index] = group
    return found


class _Run:
    """One search: the record of its kernels, and the tables of its steps."""

    def __init__(self, panels: Panels, sentences: Sequence[Sentence], beam: int, n_best: int, penalty: float) -> None:
        self._panels, self._sentences, self._n_best = panels, sentences, n_best
        self._lengths = [len(each.tokens) for each in sentences]
        count, longest = len(sentences), self._lengths[0]
        self._capacity = count * beam
        self._call = call = Call(SEARCH, panels.dtype, (True if panels.int8 else None,))
        ranges = RANGES[panels.dtype]
        keys = longest if panels.attends else 1
        call.fields |= panels.sizes | {
            "phases": panels.phases.ctypes.data, "parts": panels.parts.ctypes.data,
            "phase_count": len(panels.phases), "part_count": len(panels.parts), "loop": panels.loop,
            "sentences": count, "longest": longest, "positions": count * longest, "capacity": self._capacity,
            "beam": beam, "n_best": n_best, "count": beam, "blocks": panels.blocks,
            "keys": keys, "key_row": up(keys, 2 * call.lanes), "penalty": penalty, "scale": panels.scale,
            "folded": ranges.folded, "single": ranges.single, "most": ranges.most,
            "largest": torch.finfo(panels.dtype).max,
        }  # fmt: skip
        for name, tensor in panels.tensors.items():
            call.point(name, tensor, tensor.dtype)
        self._read(sentences, longest)
        self._buffers(count, longest)
        self._scores(beam)
        self._hypotheses(beam)
        self._room = min(_STEPS, max(each.most for each in sentences))
        self._make_room(self._room)
        self._start()

    def _whole(self, name: str, numbers: Any) -> Tensor:
        return self._call.point(name, torch.tensor(numbers, dtype=torch.int64, device="cpu"))

    def _read(self, sentences: Sequence[Sentence], longest: int) -> None:
        """The sources, and what is known of each sentence."""
        padded = [number for each in sentences for number in (*each.tokens, *[0] * (longest - len(each.tokens)))]
        self._whole("sources", padded)
        lengths = self._whole("lengths", self._lengths)
        if self._panels.attends:
            self._call.point("seen", lengths)
        self._whole("fewest", [each.fewest for each in sentences])
        self._whole("limits", [each.most for each in sentences])
        self._call.point("copies", torch.tensor([each.copies for each in sentences], device="cpu"))
        chunks = [
            (b * longest + first, min(CHUNK, length - first))
            for b, length in enumerate(self._lengths)
            for first in range(0, length, CHUNK)
        ]
        self._whole("chunk_first", [first for first, _ in chunks])
        self._whole("chunk_rows", [rows for _, rows in chunks])
        self._call.fields["chunks"] = len(chunks)

    def _buffers(self, count: int, longest: int) -> None:
        """What phases read and write, in one piece of memory: each buffer some layers of some rows."""
        at, rows, positions = self._panels.sizes, self._capacity, count * longest
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
            "keys": (1, count * self._call.fields["keys"] * at["features"]),
            "before": (layers, rows * at["hidden"]),
            "cell_before": (layers * lstm, rows * at["hidden"]),
            "after": (layers, rows * at["hidden"]),
            "cell_after": (layers * lstm, rows * at["hidden"]),
            "embedding": (1, rows * at["embedded"]),
            "context": (1, rows * at["values"]),
            "query": (1, rows * at["features"]),
            "readout": (1, rows * at["readout"]),
        }
        sizes = [shapes[name][0] * shapes[name][1] for name in BUFFERS]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        # Zeros: of the padding behind sentences nothing comes out, but it is read.
        room = torch.zeros(sum(sizes), dtype=self._panels.dtype, device="cpu")
        base, size = addresses.address("buffers", room, room.dtype), room.itemsize
        self._room_of_buffers = room
        self._whole("buffers", [base + start * size for start in starts])
        self._whole("strides", [shapes[name][1] for name in BUFFERS])
        where = dict(zip(BUFFERS, starts, strict=True))
        last = where["outputs"] if self._panels.attends else where["final"] + (at["encoder_layers"] - 1) * (
            count * at["values"]
        )  # fmt: skip
        self._call.fields |= {"value": base + last * size, "key": base + where["keys"] * size}
        self._call.new("key_exp", count, self._call.fields["keys"], at["features"])
        self._call.new("reach", count)
        if self._panels.int8:
            most = max(positions, rows, 2 * count)
            halves = torch.empty(most * self._panels.reads, dtype=torch.int16, device="cpu")
            self._call.point("quantized", halves, halves.dtype)
            self._call.new("quantized_scales", most * 4)

    def _scores(self, beam: int) -> None:
        """The likeliest tokens of each row, by blocks of the vocabulary and of all."""
        rows, blocks, call = self._capacity, self._panels.blocks, self._call
        call.new("block_peaks", rows, blocks)
        call.new("block_sums", rows, blocks)
        call.new("block_gains", rows, blocks, beam)
        call.new("block_tokens", rows, blocks, beam)
        call.new("gains", rows, beam)
        call.new("tokens", rows, beam)

    def _hypotheses(self, beam: int) -> None:
        call, count = self._call, len(self._sentences)
        impossible = torch.tensor(-torch.inf, dtype=torch.float64, device="cpu")
        totals = call.point("totals", impossible.repeat(count, beam))
        totals[:, 0] = 0.0
        call.point("best_ended", impossible.repeat(count, self._n_best))
        call.point("open", torch.full((count,), beam, device="cpu"))
        first = torch.arange(self._capacity, device="cpu")
        call.point("next_rows", first)
        call.point("next_sentences", first.clone())
        call.point("owners", call.kept["next_sentences"])
        call.point("next_tokens", torch.full((self._capacity,), BEGIN, device="cpu"))
        for name in ("result_steps", "result_places", "result_ended", "result_scores", "result_totals"):
            call.new(name, count, self._n_best)

    def _make_room(self, steps: int) -> None:
        """Tables for so many steps, with what there is in the present ones."""
        count, beam, call = len(self._sentences), self._call.fields["beam"], self._call
        old = {name: call.kept.get(name) for name in ("weights", *_TABLES)}
        call.new("weights", steps if self._panels.attends else 1, self._capacity, call.fields["key_row"])
        for name in _TABLES:
            call.new(name, steps, count, beam)
        for name, tensor in old.items():
            if tensor is not None and len(tensor) > 1:
                call.kept[name][: len(tensor)] = tensor

    def _start(self) -> None:
        self._state = np.zeros(1, STATE)
        chunks, sentences = self._call.fields["chunks"], len(self._sentences)
        self._state["tasks"], self._state["rows"], self._state["room"] = chunks, sentences, self._room
        self._control = torch.zeros(CONTROL // 8, dtype=torch.int64, device="cpu")
        self._call.point("control", self._control)
        self._call.fields["state"] = self._state.ctypes.data
        self._set(PUBLISHED, chunks)

    def _set(self, place: int, number: int) -> None:
        self._control[place // 8] = number

    def go(self) -> None:
        """Search, in parts of about `_PART` seconds: Python hears of Ctrl-C between two of them."""
        from dikkat.cpu.search import phases

        call, budget, at = self._call, _FIRST, self._panels.sizes
        step = int(self._panels.phases["stride"] @ self._panels.phases["blocks"])
        workers = 1 if step * min(self._capacity, CHUNK) < _ALONE else torch.get_num_threads()
        regions = {"block": CHUNK * self._panels.widest, "exps": at["features"]}
        while True:
            self._set(BUDGET, budget)
            began = time.perf_counter()
            call.run(phases.search, workers, **regions)
            seconds = time.perf_counter() - began
            status = int(self._state["status"][0])
            if status == UNKNOWN_SCORES:
                raise UnknownScoresError
            if status == DONE:
                return
            if status == FULL:
                self._go_on()
            elif seconds < _PART / 2:
                budget *= 2
            elif seconds > _PART:
                budget = max(_LEAST, budget // 2)

    def _go_on(self) -> None:
        """With more room."""
        limit = max(each.most for each in self._sentences)
        self._room = min(limit, 2 * self._room)
        self._make_room(self._room)
        first, tasks = (int(self._state[name][0]) for name in ("first", "tasks"))
        self._state["room"], self._state["status"] = self._room, GOING
        for place, number in ((TICKETS, first), (FINISHED, first), (OVER, 0), (PUBLISHED, first + tasks)):
            self._set(place, number)

    def found(self) -> list[list[Found]]:
        """The best hypotheses of each sentence."""
        from dikkat.cpu.search import phases

        call, kept, attends = self._call, self._call.kept, self._panels.attends
        steps, ended = kept["result_steps"].tolist(), kept["result_ended"].tolist()
        totals = kept["result_totals"].tolist()
        lengths = [[s + 1 - e for s, e in zip(*each, strict=True) if s >= 0] for each in zip(steps, ended, strict=True)]
        looked = sum(n * keys for group, keys in zip(lengths, self._lengths, strict=True) for n in group)
        call.new("result_ids", sum(map(sum, lengths)))
        call.new("result_weights", looked if attends else 0)
        call.variant = ()  # which tells nothing of tables
        call.run(phases.trace, 1, exps=0)
        ids, weights = kept["result_ids"].tolist(), kept["result_weights"].float()
        results: list[list[Found]] = []
        first = first_weight = 0
        for b, (group, keys) in enumerate(zip(lengths, self._lengths, strict=True)):
            results.append([])
            for k, length in enumerate(group):
                looked_at = None
                if attends:
                    looked_at = weights[first_weight : first_weight + length * keys].view(length, keys).clone()
                    first_weight += length * keys
                results[b].append(Found(ids[first : first + length], totals[b][k], looked_at, bool(ended[b][k])))
                first += length
        return results


_TABLES = ("step_totals", "step_tokens", "step_rows", "step_origins", "step_ended", "step_out")
