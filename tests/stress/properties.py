"""A million random calls against an oracle: no crash, no exception that is not documented, no answer beyond the budget.

    python -m tests.stress.properties --cases 1000000 --workers 2
    python -m tests.stress.properties --fences

`random_calls` makes three calls of each signature, and `oracle` says what they should give. Workers are processes of
their own: one that dies is counted with the signature that it was at, and another goes on behind them. What is done is
kept in benchmarks/results/properties.json, and a run of the same seed at the same commit goes on where it was
interrupted. Of every tenth block three threads make the calls at once, each one of each signature: what dikkat keeps
of a signature is then kept and used by all of them. With `--fences` every tensor lies between NaN and huge numbers.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kit import report
from tests.stress import oracle, random_calls
from tests.stress.random_calls import Call

# Signatures of a block, which a worker does in one go; and every how many blocks one is done by how many threads.
BLOCK, THREADED, THREADS = 200, 10, random_calls.ROUNDS
# Seconds that a block may take, and failures that are told in full.
LIMIT, TOLD = 600, 200
PATH = report.RESULTS / "properties.json"
_CRASH = "crash"


def one(seed: int, signature: int, *, fences: bool = False) -> tuple[list[str], str | None]:
    """What comes of a signature's calls, one after the other, and what is to be told of it."""
    return _judged(seed, signature, oracle.attempts, fences)


def _judged(
    seed: int, signature: int, attempts: Callable[[list[Call]], list[Any]], fences: bool
) -> tuple[list[str], str | None]:
    calls: list[Call] = []
    try:
        calls = random_calls.make(seed, signature, fences=fences)
        return oracle.judge(calls, attempts(calls)), None
    except oracle.WrongError as error:
        return ["beyond the budget"] * random_calls.ROUNDS, f"{error} in {calls[0].describe()}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno}) in "
        told += calls[0].describe() if calls else f"signature {signature}, while it was made"
        return ["undocumented exception"] * random_calls.ROUNDS, told


def block(seed: int, start: int, stop: int, at: np.ndarray, *, fences: bool = False) -> tuple[Counter[str], list[str]]:
    """The signatures of a block; `at` says meanwhile which one is under way."""
    counts: Counter[str] = Counter()
    told: list[str] = []

    def judge(signature: int, attempts: Callable[[list[Call]], list[Any]]) -> None:
        at[0] = signature
        outcomes, words = _judged(seed, signature, attempts, fences)
        counts.update(outcomes)
        if words is not None:
            told.append(words)

    if start // BLOCK % THREADED:
        for signature in range(start, stop):
            judge(signature, oracle.attempts)
    else:
        with ThreadPoolExecutor(THREADS) as pool:
            for signature in range(start, stop):
                judge(signature, lambda calls: list(pool.map(oracle.attempt, calls)))
    at[:] = -1
    return counts, told


def work(seed: int, fences: bool, at: Any, pipe: Connection) -> None:
    """What a worker does: blocks, until it is told to stop."""
    torch.set_num_threads(1)
    places = np.frombuffer(at, dtype=np.int64)
    while (task := pipe.recv()) is not None:
        pipe.send(block(seed, *task, places, fences=fences))


class Worker:
    """A process, and the block that it is at."""

    def __init__(self, seed: int, fences: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._at = context.RawArray("q", [-1])
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(seed, fences, self._at, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self.task: tuple[int, int] | None = None
        self.since = time.monotonic()

    def give(self, task: tuple[int, int]) -> None:
        self.task, self.since = task, time.monotonic()
        self.pipe.send(task)

    def died(self) -> tuple[int, list[int]]:
        """How, and at which cases."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        return self._process.exitcode or 0, sorted(index for index in self._at if index >= 0)

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


class Run:
    """What has been done so far."""

    def __init__(self, seed: int, signatures: int, path: Path) -> None:
        self.seed, self.signatures, self.path = seed, signatures, path
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.seconds = 0.0
        self.left: list[tuple[int, int]] = [(i, min(i + BLOCK, signatures)) for i in range(0, signatures, BLOCK)][::-1]
        self._read()

    def _read(self) -> None:
        if not self.path.exists():
            return
        made = json.loads(self.path.read_text())
        results = made["results"]
        if (results["seed"], results["of"], made["environment"]["commit"]) != (
            self.seed,
            self.signatures,
            report.COMMIT,
        ):
            return
        self.counts, self.failures = Counter(results["counts"]), results["failures"]
        self.seconds, self.left = results["seconds"], [tuple(each) for each in results["left"]]

    def took(self, task: tuple[int, int], counts: Counter[str], told: list[str]) -> None:
        self.counts += counts
        told = told[: TOLD - len(self.failures)]
        self.failures += told
        for words in told:
            print(words, flush=True)

    def crashed(self, task: tuple[int, int], status: int, at: list[int]) -> list[tuple[int, int]]:
        """Count it, and what of its block is still to be done: all that it was not at, whose outcome died with it."""
        if not at:
            raise RuntimeError(f"a worker died before its first call, with exit status {status}")
        words = f"crash (exit status {status}) in signature {at}"
        self.counts[_CRASH] += 1
        self.counts["in a crash"] += random_calls.ROUNDS * len(at)
        self.failures = [*self.failures, words][:TOLD]
        print(words, flush=True)
        points = [task[0] - 1, *(i for i in at if task[0] <= i < task[1]), task[1]]
        return [(a + 1, b) for a, b in pairwise(points) if a + 1 < b]

    def write(self, under_way: list[tuple[int, int]]) -> None:
        results = {
            "seed": self.seed,
            "of": self.signatures,
            "done": sum(count for name, count in self.counts.items() if name != _CRASH),
            "counts": dict(sorted(self.counts.items())),
            "seconds": round(self.seconds),
            "threaded": f"every {THREADED}th block of {BLOCK} by {THREADS} threads",
            "failures": self.failures,
            "left": [*under_way, *self.left],
        }
        made = {"environment": report.environment("numba"), "results": results}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_suffix(".part")
        aside.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n")
        aside.replace(self.path)

    def failed(self) -> bool:
        return bool(self.counts[_CRASH] + self.counts["undocumented exception"] + self.counts["beyond the budget"])


def run(seed: int, signatures: int, workers: int, path: Path = PATH, *, fences: bool = False) -> Run:
    """All cases that are left."""
    state, before, written = Run(seed, signatures, path), time.monotonic(), time.monotonic()
    done_before = state.seconds
    crew = [Worker(seed, fences) for _ in range(min(workers, max(1, len(state.left))))] if state.left else []
    try:
        while state.left or any(worker.task for worker in crew):
            for worker in crew:
                if worker.task is None and state.left:
                    worker.give(state.left.pop())
            ready = wait([worker.pipe for worker in crew if worker.task], timeout=5)
            for place, worker in enumerate(crew):
                if worker.task is None:
                    continue
                late = time.monotonic() - worker.since > LIMIT
                if worker.pipe not in ready and not late:
                    continue
                try:
                    if late:
                        raise EOFError
                    state.took(worker.task, *worker.pipe.recv())
                    worker.task = None
                except (EOFError, ConnectionResetError):
                    state.left += state.crashed(worker.task, *worker.died())
                    crew[place] = Worker(seed, fences)
            state.seconds = done_before + time.monotonic() - before
            if time.monotonic() - written > 15:
                written = time.monotonic()
                state.write([worker.task for worker in crew if worker.task])
                print(
                    f"{sum(state.counts.values())} of {random_calls.ROUNDS * signatures}: {dict(state.counts)}",
                    flush=True,
                )
    finally:
        state.write([worker.task for worker in crew if worker.task])
        for worker in crew:
            worker.stop()
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="one signature, in this process, with its traceback")
    parser.add_argument("--fences", action="store_true", help="each tensor between NaN and huge numbers")
    parser.add_argument("--path", type=Path, default=PATH, help="where the report is kept")
    options = parser.parse_args()
    if options.only is not None:
        calls = random_calls.make(options.seed, options.only, fences=options.fences)
        print(calls[0].describe())
        print(oracle.judge(calls, oracle.attempts(calls)))
        return
    signatures = -(-options.cases // random_calls.ROUNDS)
    state = run(options.seed, signatures, options.workers, options.path, fences=options.fences)
    print(f"{dict(state.counts)} in {state.seconds:.0f} s")
    sys.exit(state.failed())


if __name__ == "__main__":
    main()
