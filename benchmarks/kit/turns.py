"""Measuring in turn, A B C A B C ..., so that whatever else the machine does hits all alike."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.kit.report import spread

LEAST, MOST = 3, 15
# What takes less than so many seconds is done several times in a round: a pause of the machine weighs less.
ROUND = 0.3


def nothing() -> None:
    """Not measured."""


@dataclass(frozen=True)
class Task:
    """What is measured: it returns how much it has done; `before` is not part of it."""

    run: Callable[[], float]
    before: Callable[[], object] = nothing


def once(run: Callable[[], object], before: Callable[[], object] = nothing) -> Task:
    """A task that does one of something."""

    def counted() -> float:
        run()
        return 1.0

    return Task(counted, before)


def measured(tasks: Mapping[str, Task], seconds: float, at_once: float = ROUND) -> dict[str, list[tuple[float, float]]]:
    """(seconds, amount) of each round: for so long in all, but no fewer rounds than a spread needs.

    Args:
        tasks: By name.
        seconds: For all of them together.
        at_once: Seconds of a round, in which what takes less is done several times.
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
    """Of one."""
    return spread([1e3 * seconds / amount for seconds, amount in samples])


class TooLongError(BaseException):
    """Somebody took longer than he may. No Exception, or a compiler would make one of its own of it."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raises `TooLongError` in what takes longer."""

    def ring(*_: object) -> None:
        raise TooLongError(f"took more than {seconds} s")

    old_handler = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old_handler)
