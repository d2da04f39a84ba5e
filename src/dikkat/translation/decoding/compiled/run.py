"""A search of a batch of sentences as one compiled call: its record, its memory and its runs."""

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
from dikkat.translation.memory.states import NEGLIGIBLE

# Seconds between two checks for Ctrl-C, about.
_RUN_SECONDS = 0.05
# The work of the first run of workers, in bytes of weights times rows: a few hundredths of a second. And the least work
# of any run, so that a busy machine does not spend its time on starts.
_FIRST_BUDGET, _SMALLEST_BUDGET = 1 << 28, 1 << 26
# Up to this many bytes of weights times rows in a step, one thread is faster than several.
_ONE_THREAD_BYTES = 1 << 19
# The steps that new tables have memory for.
_STEPS = 64
# Buffers up to this many bytes are kept for the next search of the same shape, for up to this many shapes, because
# allocation may take longer than the search.
_IDLE_BYTES, _IDLE_SHAPES = 1 << 18, 64


def search(
    panels: Panels, sentences: Sequence[Sentence], search: Search, slot_bits: torch.Tensor
) -> list[list[Hypothesis]]:
    """Search a batch as one call; return each sentence's best hypotheses, best first."""
    tokens, size = [token for sentence in sentences for token in sentence.tokens], len(panels.tensors["source_table"])
    smallest, largest = min(tokens), max(tokens)
    if smallest < 0 or largest >= size:
        raise InputError(
            f"sources: got token {smallest if smallest < 0 else largest}; expected 0 to {size - 1}, "
            "the model's source vocabulary"
        )
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index].tokens))
    shape = len(sentences), len(sentences[order[0]].tokens), search.beam, search.n_best
    steps = min(_STEPS, max(sentence.max_tokens for sentence in sentences))
    run = panels.idle.pop(shape, None) or Run(panels, *shape, steps)
    run.begin([sentences[index] for index in order], search, slot_bits)
    run.execute()
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for index, hypotheses in zip(order, run.results(), strict=True):
        results[index] = hypotheses
    if run.nbytes <= _IDLE_BYTES:  # not after an error
        if len(panels.idle) >= _IDLE_SHAPES:
            panels.idle.pop(next(iter(tuple(panels.idle))), None)
        panels.idle[shape] = run
    return results


class Run:
    """A search's record and `nbytes` of buffers; later searches of the same sizes (the constructor's) reuse them."""

    def __init__(self, panels: Panels, count: int, longest: int, beam: int, n_best: int, steps: int) -> None:
        self._count, self._longest = count, longest
        self._capacity, self._attends = count * beam, panels.attends
        self._call = call = CallRecord(record.SEARCH, panels.dtype, (True if panels.int8 else None,))
        ranges = RANGES[panels.dtype]
        keys = longest if panels.attends else 1
        call.fields |= panels.sizes | {
            "phases": addresses.array_address(panels.phases), "terms": addresses.array_address(panels.terms),
            "phase_count": len(panels.phases), "term_count": len(panels.terms), "loop": panels.loop,
            "longest": longest, "positions": count * longest, "capacity": self._capacity, "blocks": panels.blocks,
            "keys": keys, "key_row": round_up(keys, 2 * call.lanes), "scale": panels.scale,
            "folded": ranges.folded, "single": ranges.single, "exp_limit": ranges.most,
            "largest": torch.finfo(panels.dtype).max, "negligible": NEGLIGIBLE,
        }  # fmt: skip
        for name, tensor in panels.tensors.items():
            call.point(name, tensor, tensor.dtype)
        self._make_buffers(panels, keys)
        rows = self._capacity
        for name in ("block_peaks", "block_sums"):
            call.new(name, rows, panels.blocks)
        for name in ("block_gains", "block_tokens"):
            call.new(name, rows, panels.blocks, beam)
        self._nearest = panels.sizes["nearest"]
        if self._nearest:
            for name in ("block_weights", "block_states"):
                call.new(name, rows, panels.sizes["state_blocks"], self._nearest)
            call.new("nearest_scores", rows, self._nearest)
        chunks = count * -(-longest // record.CHUNK)
        self._beams = Beams(
            call, count, beam, n_best, sources=count * longest, lengths=count, chunk_first=chunks, chunk_rows=chunks,
            control=record.CONTROL // 8,
        )  # fmt: skip
        self._tables, self._state = self._beams.tables, self._beams.state
        call.fields["key_counts"] = call.fields["lengths"] if self._attends else 0
        self._grow_tables(steps)
        call.alone = panels.matrices * min(self._capacity, record.CHUNK) < _ONE_THREAD_BYTES
        call.lay_out(block=record.CHUNK * panels.widest, exps=panels.sizes["features"])
        self.nbytes = sum(tensor.nbytes for name, tensor in call.kept.items() if name not in panels.tensors)

    def begin(self, sentences: Sequence[Sentence], search: Search, slot_bits: torch.Tensor) -> None:
        """Start a search of sentences of this shape, longest first."""
        self._beams.begin(sentences, search, slot_bits)
        self._limit = max(sentence.max_tokens for sentence in sentences)
        lengths, tables, longest = [len(sentence.tokens) for sentence in sentences], self._tables, self._longest
        for b, sentence in enumerate(sentences):
            tables["sources"][b * longest : b * longest + lengths[b]] = sentence.tokens
        tables["lengths"][:] = lengths
        chunks = [
            (b * longest + first, min(record.CHUNK, length - first))
            for b, length in enumerate(lengths)
            for first in range(0, length, record.CHUNK)
        ]
        tables["chunk_first"][: len(chunks)] = [first for first, _ in chunks]
        tables["chunk_rows"][: len(chunks)] = [rows for _, rows in chunks]
        self._call.fields["chunks"] = self._state["tasks"] = len(chunks)
        self._set_control(record.PUBLISHED, len(chunks))

    def _make_buffers(self, panels: Panels, keys: int) -> None:
        """Allocate the phases' buffers, (layers, numbers) each, as one tensor."""
        sizes, count, rows, positions = panels.sizes, self._count, self._capacity, self._count * self._longest
        layers, directions, gates = sizes["layers"], sizes["directions"], 4 if sizes["lstm"] else 3
        lstm, state_size = sizes["lstm"], count * sizes["direction_size"]
        shapes = {
            "embedded_source": (1, positions * sizes["embedded"]),
            "outputs": (1, positions * sizes["values"]),
            "outputs_below": (int(sizes["encoder_layers"] > 1), positions * sizes["values"]),
            "gates": (directions, positions * gates * sizes["direction_size"]),
            "encoder_state": (2 * directions, state_size),
            "encoder_cell": (2 * directions * lstm, state_size),
            "final": (sizes["encoder_layers"], count * sizes["values"]),
            "final_cell": (sizes["encoder_layers"] * lstm, count * sizes["values"]),
            "keys": (1, count * keys * sizes["features"]),
            "before": (layers, rows * sizes["hidden"]),
            "cell_before": (layers * lstm, rows * sizes["hidden"]),
            "after": (layers, rows * sizes["hidden"]),
            "cell_after": (layers * lstm, rows * sizes["hidden"]),
            "embedding": (1, rows * sizes["embedded"]),
            "context": (1, rows * sizes["values"]),
            "attended": (sizes["lexical"], rows * sizes["embedded"]),
            "query": (1, rows * sizes["features"]),
            "readout": (1, rows * sizes["readout"]),
            "probe": (1, rows * sizes["state_size"]),
        }
        lengths = [shapes[name][0] * shapes[name][1] for name in record.BUFFERS]
        starts = [sum(lengths[:index]) for index in range(len(lengths))]
        # Zeros, since padding after sentences is read, though it has no effect.
        memory = self._call.point("value", torch.zeros(sum(lengths), dtype=panels.dtype, device="cpu"))
        base, itemsize = self._call.fields["value"], memory.itemsize
        for name, numbers in (
            ("buffers", [base + start * itemsize for start in starts]),
            ("strides", [shapes[name][1] for name in record.BUFFERS]),
        ):
            self._call.point(name, torch.tensor(numbers, dtype=torch.int64, device="cpu"))
        start = dict(zip(record.BUFFERS, starts, strict=True))
        values_start = start["outputs"]
        if not panels.attends:
            values_start = start["final"] + (sizes["encoder_layers"] - 1) * count * sizes["values"]
        self._call.fields |= {"value": base + values_start * itemsize, "key": base + start["keys"] * itemsize}
        self._call.new("key_exp", count, keys, sizes["features"])
        self._call.new("key_peaks", count)
        if panels.int8:
            most_rows = max(positions, rows, 2 * count)
            rounded = torch.empty(most_rows * panels.reads, dtype=torch.int16, device="cpu")
            self._call.point("quantized", rounded, rounded.dtype)
            self._call.new("quantized_scales", most_rows * 4)

    def _grow_tables(self, steps: int) -> None:
        self._beams.grow_tables(steps)
        self._beams.extend("weights", steps if self._attends else 1, self._capacity, self._call.fields["key_row"])
        for name in ("nearest_states", "nearest_weights") if self._nearest else ():
            self._beams.extend(name, steps, self._capacity, self._nearest)

    def _set_control(self, offset: int, number: int) -> None:
        self._tables["control"][offset // 8] = number

    def execute(self) -> None:
        """Search in runs of about `_RUN_SECONDS`, between which Ctrl-C and cancellation are checked."""
        from dikkat.translation.decoding.compiled import phases

        call, budget = self._call, _FIRST_BUDGET
        workers = 1 if call.alone else torch.get_num_threads()
        while True:
            self._set_control(record.BUDGET, budget)
            start = time.perf_counter()
            call.run(phases.search, workers)
            seconds = time.perf_counter() - start
            status = int(self._state["status"][0])
            self._beams.check()
            if status == record.DONE:
                return
            cancellation.check()
            if status == record.FULL:
                self._grow_tables(min(self._limit, 2 * self._beams.table_steps))
                self.nbytes = _IDLE_BYTES + 1  # grown memory is not kept
                first, tasks = (int(self._state[name][0]) for name in ("first_ticket", "tasks"))
                self._state["status"] = record.RUNNING
                for offset, number in (
                    (record.TICKETS, first),
                    (record.FINISHED, first),
                    (record.OVER, 0),
                    (record.PUBLISHED, first + tasks),
                ):
                    self._set_control(offset, number)
            elif seconds < _RUN_SECONDS / 2:
                budget *= 2
            elif seconds > _RUN_SECONDS:
                budget = max(_SMALLEST_BUDGET, budget // 2)

    def results(self) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each sentence."""
        tensors = self._call.kept
        nearest = [tensors[name] for name in ("nearest_states", "nearest_weights")] if self._nearest else []
        return self._beams.hypotheses(tensors["weights"] if self._attends else [], nearest)
