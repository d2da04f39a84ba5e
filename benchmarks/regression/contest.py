"""Time entrants in turn; an entrant with a wrong answer gets no time."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.kit.report import spread
from benchmarks.kit.turns import TooLongError, at_most, nothing

Record = dict[str, Any]
ROUNDS = 3
# Entrants above the first number of seconds are timed once; the second number is the time limit.
ONCE, LONGEST = 20.0, 400


@dataclass(frozen=True)
class Entrant:
    """Attributes:
    who: A name, unique in the contest.
    run: Computes the answer.
    judge: Returns facts about an answer, with `not_run` if it is wrong.
    facts: Further facts for the record.
    before: Called before each run, not timed.
    """

    who: str
    run: Callable[[], np.ndarray]
    judge: Callable[[np.ndarray], Record]
    facts: Record = field(default_factory=dict)
    before: Callable[[], object] = nothing


def contest(entrants: Sequence[Entrant]) -> list[Record]:
    """Return a record for each entrant, with `seconds` after a correct answer, and `not_run` otherwise."""
    records, samples = [], {}
    for entrant in entrants:
        entrant.before()
        seconds, answer, reason = attempt(entrant.run, LONGEST)
        record = {"who": entrant.who, **entrant.facts}
        record |= {"not_run": reason} if answer is None else entrant.judge(answer)
        records.append(record)
        if "not_run" not in record:
            samples[entrant.who] = [seconds] if seconds >= ONCE else []
        outcome = record.get("not_run") or f"{seconds:.3g} s"
        print(f"  {entrant.who}: {outcome}", flush=True)
    ready = [entrant for entrant in entrants if samples.get(entrant.who) == []]
    for _ in range(ROUNDS):
        for entrant in ready:
            entrant.before()
            start = time.perf_counter()
            entrant.run()
            samples[entrant.who].append(time.perf_counter() - start)
    return [r | ({"seconds": spread(samples[r["who"]])} if r["who"] in samples else {}) for r in records]


def attempt(run: Callable[[], Any], seconds: int) -> tuple[float, Any, str | None]:
    """Return the seconds, the answer or None, and the reason for None."""
    start = time.perf_counter()
    try:
        with at_most(seconds):
            answer = run()
    except TooLongError as error:
        return time.perf_counter() - start, None, str(error)
    except Exception as error:  # record the failure of a peer, and continue
        return time.perf_counter() - start, None, failure(error)
    return time.perf_counter() - start, answer, None


def failure(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {error}".partition("\n")[0][:300]
