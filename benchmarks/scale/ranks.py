"""Attention over ranks beside one process: memory of a rank, and time.

    python -m benchmarks.scale.ranks memory|time [--length 65536] [--write]

- `memory`: forward and backward on four ranks of a thread, and on one process: how much a process's peak grew after a
  small call of the same kind. Beside it stands the size of query, key, value, output and their gradients, and that of
  these with the queries and keys that the score projects.
- `time`: two ranks of one thread and one process of two, in turns.

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
from benchmarks.kit.worker import Peak
from dikkat.distributed import attend
from dikkat.scores import Additive, ScaledDot, Score

SIZE = 64
TURNS, PIECES = 3, 4
_SCORES: dict[str, Callable[[], Score]] = {
    "additive": lambda: Additive(SIZE, SIZE, SIZE),
    "scaled dot": ScaledDot,
}
_PROJECTED = {"additive": 2, "scaled dot": 1}  # of query and key
_WAYS = {"forward": False, "forward and backward": True}
_WITHIN = 1e-4  # largest difference from one process's output, float32


def sequence(length: int, rank: int = 0, world: int = 1) -> list[torch.Tensor]:
    """This rank's part of query, key and value, drawn in four pieces however many ranks there are."""
    made = []
    for number in range(3):
        parts = []
        for piece in range(PIECES * rank // world, PIECES * (rank + 1) // world):
            torch.manual_seed(1000 * number + piece)
            parts.append(torch.randn(1, length // PIECES, SIZE))
        made.append(torch.cat(parts, 1).requires_grad_())
    return made


def call(score: Score, tensors: list[torch.Tensor], method: str, back: bool = True) -> torch.Tensor:
    """Forward and perhaps backward; the output."""
    compute = dikkat.attend if method == "one" else partial(attend, method="ring")
    with torch.set_grad_enabled(back):
        out = compute(*tensors, score=score)
    if back:
        out.backward(torch.ones_like(out))
    return out.detach()


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
        memory = Peak("cpu")
        out = call(score, sequence(length, rank, world), method)
        found = {"bytes": memory.extra()}
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


def timed(work: Callable[[], Any], world: int) -> float:
    """Seconds until every rank has done its work."""
    if world > 1:
        dist.barrier()
    begin = time.perf_counter()
    work()
    if world > 1:
        dist.barrier()
    return time.perf_counter() - begin


def run(what: str, name: str, length: int, rounds: int, world: int, folder: Path) -> list[dict[str, Any]]:
    """The findings of each process."""
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


def memory(length: int, world: int = 4) -> list[dict[str, Any]]:
    found = []
    for name in _SCORES:
        with tempfile.TemporaryDirectory() as folder:
            ranks = run("memory", name, length, 1, world, Path(folder))
            one = run("memory", name, length, 1, 1, Path(folder))
            compared(Path(folder), world)
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
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def beside(length: int, rounds: int = 2) -> list[dict[str, Any]]:
    found = []
    for name in _SCORES:
        ranks, one = ({way: list[float]() for way in _WAYS} for _ in range(2))
        for _ in range(TURNS):
            with tempfile.TemporaryDirectory() as folder:
                both = run("time", name, length, rounds, 2, Path(folder))
                alone = run("time", name, length, rounds, 1, Path(folder))
                off = compared(Path(folder), 2)
            for way in _WAYS:
                ranks[way] += [max(pair) for pair in zip(*(each[way] for each in both), strict=True)]
                one[way] += alone[0][way]
        for way in _WAYS:
            ratio = statistics.median(ranks[way]) / statistics.median(one[way])
            times = {"ranks": spread(ranks[way]), "one": spread(one[way]), "ratio": ratio}
            what = f"two ranks of one thread beside one process of two, {way}"
            found.append({"what": what, "score": name, "length": length, "off": off, "time": times})
            print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        what, name, *numbers, folder = sys.argv[2:]
        return child(what, name, *map(int, numbers), folder)  # type: ignore[arg-type]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "time"])
    parser.add_argument("--length", type=int, nargs="+")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    results = []
    for length in given.length or ([65_536] if given.what == "memory" else [2048, 8192, 16_384]):
        results += memory(length) if given.what == "memory" else beside(length)
    if given.write:
        print(write(f"scale-{given.what}", results))


if __name__ == "__main__":
    main()
