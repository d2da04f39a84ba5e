"""Measure tasks in turn, A B C A B C ..., so that other load affects all tasks alike."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.kit.report import spread

LEAST, MOST = 3, 15
# Seconds of a round. Shorter tasks are repeated within a round, to reduce the effect of pauses.
ROUND = 0.3


def nothing() -> None:
    """Do nothing before a run."""


@dataclass(frozen=True)
class Task:
    """A function to time, which returns the amount of its work; `before` is not timed."""

    run: Callable[[], float]
    before: Callable[[], object] = nothing


def once(run: Callable[[], object], before: Callable[[], object] = nothing) -> Task:
    """Return a task whose run is one unit of work."""

    def counted() -> float:
        run()
        return 1.0

    return Task(counted, before)


def measured(tasks: Mapping[str, Task], seconds: float, at_once: float = ROUND) -> dict[str, list[tuple[float, float]]]:
    """Return (seconds, amount) of each round of each task, with at least `LEAST` rounds.

    Args:
        tasks: Tasks by name.
        seconds: Total time of all tasks.
        at_once: Seconds of a round, in which shorter tasks are repeated.
    """
    repeats = {}
    for name, task in tasks.items():
        _run(task, 1)  # what is compiled and loaded at first
        repeats[name] = max(1, int(at_once / _run(task, 1)[0]))
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    start = time.monotonic()
    for round_number in range(MOST):
        if round_number >= LEAST and (time.monotonic() - start) * (round_number + 1) / round_number > seconds:
            break
        for name, task in tasks.items():
            samples[name].append(_run(task, repeats[name]))
    return samples


def _run(task: Task, times: int) -> tuple[float, float]:
    seconds = amount = 0.0
    for _ in range(times):
        task.before()
        start = time.perf_counter()
        amount += task.run()
        seconds += time.perf_counter() - start
    return seconds, amount


def milliseconds(samples: list[tuple[float, float]]) -> dict[str, float]:
    """Return the spread of milliseconds per unit of work."""
    return spread([1e3 * seconds / amount for seconds, amount in samples])


def in_turns(runs: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Return the seconds of each run in each turn, for runs that take long and have run before."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratios(seconds: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """Return the ratios of the seconds of all but the first run to those of the first, turn by turn."""
    first, *names = seconds
    return {name: [b / a for a, b in zip(seconds[first], seconds[name], strict=True)] for name in names}


class TooLongError(BaseException):
    """A run exceeded its time limit. Not an `Exception`, which a compiler would catch and replace."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `TooLongError` in the context after so many seconds."""

    def ring(*_: object) -> None:
        raise TooLongError(f"took more than {seconds} s")

    old_handler = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old_handler)
