"""Attention over ranks beside one process: memory of a rank, and time.

    python -m benchmarks.scale.ranks memory [--length 65536] [--ranks 4] [--write]
    python -m benchmarks.scale.ranks time [--length 2048 8192] [--rounds 2] [--write]

`memory`: forward and backward of self-attention over so many positions, on one process with all threads,
and on ranks with a thread each. A process's memory is how much its peak grew over what it was after a small call of the
same kind, so that libraries and compiled kernels do not count. Beside it stands what query, key, value, output and the
gradient of each take, and the same with what the score projects, which is an operand too and has a gradient: query and
key with additive scores, the query alone with scaled dot products. `time`: the same work in one process with two
threads and on two ranks with one each, three times in turns; and the processor time of both, which says what the ranks
do beyond the one process also where something else takes a share of the processors.
Every output is compared with the one process's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import dikkat
from benchmarks.kit.processes import command, environment
from benchmarks.kit.report import spread, write
from dikkat.distributed import attend, positions
from dikkat.scores import Additive, ScaledDot, Score

SIZE = 64
TURNS = 3
_SCORES: dict[str, Callable[[], Score]] = {
    "additive": lambda: Additive(SIZE, SIZE, SIZE),
    "scaled dot": ScaledDot,
}
_PROJECTED = {"additive": 2, "scaled dot": 1}  # of query and key
_WAYS = {"forward": False, "forward and backward": True}
_WITHIN = 1e-4  # largest difference from one process's output, float32


def sequence(length: int, rank: int = 0, world: int = 1) -> list[torch.Tensor]:
    """This rank's part of query, key and value, the same numbers however many ranks there are."""
    made = []
    mine = positions(length, rank, world, "contiguous")
    for number in range(3):
        torch.manual_seed(number)
        made.append(torch.randn(1, length, SIZE)[:, mine].clone().requires_grad_())
    return made


def call(score: Score, tensors: list[torch.Tensor], method: str, back: bool = True) -> torch.Tensor:
    """Forward and perhaps backward; the output."""
    compute = dikkat.attend if method == "one" else partial(attend, method="ring")
    with torch.set_grad_enabled(back):
        out = compute(*tensors, score=score)
    if back:
        out.backward(torch.ones_like(out))
    return out.detach()


def status(name: str) -> int:
    """A number of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def peak(work: Callable[[], Any]) -> tuple[Any, int]:
    """What the work returns, and by how much this process's memory grew at most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    before = status("VmRSS")
    return work(), status("VmHWM") - before


def child(what: str, name: str, length: int, rounds: int, rank: int, world: int, folder: str) -> None:
    """One process: alone, or a rank."""
    torch.set_num_threads(1 if world > 1 else len(os.sched_getaffinity(0)))
    method = "one"
    if world > 1:
        store = dist.FileStore(f"{folder}/store", world)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
        method = "ring"
    torch.manual_seed(7)
    score = _SCORES[name]()
    call(score, sequence(256, rank, world), method)  # what is compiled at first
    found: dict[str, Any]
    if what == "memory":
        begin = time.perf_counter()
        out, grown = peak(lambda: call(score, sequence_lean(length, rank, world), method))
        found = {"bytes": grown, "seconds": time.perf_counter() - begin}
    else:
        tensors = sequence(length, rank, world)
        out = call(score, tensors, method)
        found = {
            way: [timed(lambda back=back: call(score, tensors, method, back), world) for _ in range(rounds)]
            for way, back in _WAYS.items()
        }
    torch.save(out, f"{folder}/out-{world}-{rank}.pt")
    Path(f"{folder}/{world}-{rank}.json").write_text(json.dumps(found))
    if world > 1:
        dist.destroy_process_group()


def timed(work: Callable[[], Any], world: int) -> tuple[float, float]:
    """Seconds until every rank has done its work, and those that this process's threads computed for."""
    if world > 1:
        dist.barrier()
    begin, computed = time.perf_counter(), time.process_time()
    work()
    computed = time.process_time() - computed
    if world > 1:
        dist.barrier()
    return time.perf_counter() - begin, computed


def sequence_lean(length: int, rank: int, world: int) -> list[torch.Tensor]:
    """Likewise, without ever holding more than this rank's part and one row's worth of the rest."""
    mine, made = length // world, []
    for number in range(3):
        part = torch.empty(1, mine, SIZE)
        torch.manual_seed(number * 1000 + rank)
        made.append(part.normal_().requires_grad_())
    return made


def run(what: str, name: str, length: int, rounds: int, world: int, folder: Path) -> list[dict[str, Any]]:
    """What each process found."""
    words = [what, name, str(length), str(rounds)]
    threads = str(1 if world > 1 else len(os.sched_getaffinity(0)))
    around = environment(OMP_NUM_THREADS=threads, OMP_WAIT_POLICY="passive")
    started = [
        subprocess.Popen(command("scale.ranks", "--child", *words, rank, world, folder), env=around)
        for rank in range(world)
    ]
    try:
        if any(process.wait(3000) for process in started):
            raise SystemExit(f"{what}, {name}: a process failed")
    finally:
        for process in started:
            process.kill()
    return [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]


def compared(folder: Path, world: int) -> float:
    """The largest difference of the ranks' output from the one process's."""
    whole = torch.load(folder / "out-1-0.pt")
    parts = torch.cat([torch.load(folder / f"out-{world}-{rank}.pt") for rank in range(world)], 1)
    off = float((whole - parts).abs().max())
    if not off <= _WITHIN:
        raise SystemExit(f"the ranks' output is {off} from one process's")
    return off


def memory(length: int, world: int, scores: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in scores:
        with tempfile.TemporaryDirectory() as folder:
            ranks = run("memory", name, length, 1, world, Path(folder))
            one = run("memory", name, length, 1, 1, Path(folder))
        operands = 8 * length * SIZE * 4  # query, key, value, output and a gradient each
        projected = operands * (4 + _PROJECTED[name]) // 4
        largest = max(each["bytes"] for each in ranks)
        found.append(
            {
                "what": "memory of a rank, forward and backward",
                "score": name,
                "length": length,
                "ranks": world,
                "operands_and_gradients_bytes": operands,
                "with_projections_bytes": projected,
                "one_process_bytes": one[0]["bytes"],
                "rank_bytes": largest,
                "rank_over_share_of_operands": largest * world / operands,
                "rank_over_share_with_projections": largest * world / projected,
                "rank_over_share_of_one_process": largest * world / one[0]["bytes"],
                "seconds": {"ranks": max(each["seconds"] for each in ranks), "one": one[0]["seconds"]},
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def times(length: int, rounds: int, scores: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in scores:
        ranks: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
        one: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
        for _ in range(TURNS):
            with tempfile.TemporaryDirectory() as folder:
                both = run("time", name, length, rounds, 2, Path(folder))
                alone = run("time", name, length, rounds, 1, Path(folder))
                off = compared(Path(folder), 2)
            for way in _WAYS:
                for (a, a_computed), (b, b_computed) in zip(*(each[way] for each in both), strict=True):
                    ranks[way].append([max(a, b), a_computed + b_computed])
                one[way] += alone[0][way]
        for way in _WAYS:
            made: dict[str, Any] = {"score": name, "length": length, "off": off}
            for number, what in enumerate(("time", "processor time")):
                two, single = ([sample[number] for sample in samples[way]] for samples in (ranks, one))
                ratio = statistics.median(two) / statistics.median(single)
                made[what] = {"ranks": spread(two), "one": spread(single), "ratio": ratio}
            found.append({"what": f"two ranks of one thread beside one process of two, {way}", **made})
            print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        what, name, *numbers, folder = sys.argv[2:]
        return child(what, name, *map(int, numbers), folder)  # type: ignore[arg-type]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "time"])
    parser.add_argument("--length", type=int, nargs="+")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--score", choices=_SCORES, action="append")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    scores, results = given.score or list(_SCORES), []
    for length in given.length or ([65_536] if given.what == "memory" else [2048, 8192]):
        if given.what == "memory":
            results += memory(length, given.ranks, scores)
        else:
            results += times(length, given.rounds, scores)
    if given.write:
        print(write(f"scale-{given.what}", results))


if __name__ == "__main__":
    main()
