"""Random calls of every kind against an oracle: the first of the million of `benchmarks.attention.properties`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.attention import properties

CASES, BLOCKS = 600, 6


@pytest.mark.parametrize("start", range(0, CASES, CASES // BLOCKS))
def test_random_calls_are_right_or_refused(start: int) -> None:
    outcomes: Counter[str] = Counter()
    for index in range(start, start + CASES // BLOCKS):
        outcome, told = properties.one(0, index)
        assert told is None, f"python -m benchmarks.attention.properties --only {index}: {told}"
        outcomes[outcome] += 1
    assert outcomes["right"] > 0.6 * CASES / BLOCKS  # the rest is refused, or says nothing


def test_random_calls_are_right_in_several_threads() -> None:
    places = np.full(properties.THREADS, -1)
    counts, told = properties.block(1, 0, 80, places)
    assert told == []
    assert sum(counts.values()) == 80
    assert bool((places == -1).all())


@pytest.mark.parametrize(
    ("name", "by"),
    [("output", 1e3), ("grad query", 1e5), ("grad value", 1e3), ("weights", 1e3)],
)
def test_the_oracle_notices(name: str, by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer whose largest number is off by so many times its type's precision."""
    from benchmarks.attention import oracle, random_calls

    real, noticed, tried = random_calls.run, 0, 0

    def off(call: Any) -> Any:
        came = real(call)
        if name in came and came[name].numel():
            came[name] = came[name].clone(memory_format=torch.contiguous_format)
            flat = came[name].view(-1)
            place = int(flat.abs().argmax())
            flat[place] *= 1 + by * torch.finfo(flat.dtype).eps
        return came

    for index in range(300):
        call = random_calls.make(0, index)
        if call.dtype in (torch.float16, torch.bfloat16) or call.impl != "auto":
            continue
        expected = oracle.expected(call)
        if expected is None or name not in (came := real(call)) or not came[name].any():
            continue
        tried += 1
        monkeypatch.setattr(oracle, "run", off)
        try:
            oracle.judge(call)
        except oracle.WrongError:
            noticed += 1
        monkeypatch.setattr(oracle, "run", real)
    assert tried > 5
    assert noticed > 0.5 * tried  # others have scores so large that their rounding allows for more


def test_what_was_done_before_a_crash_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "properties.json"
    state = properties.Run(0, 1200, path)
    first, second = state.left.pop(), state.left.pop()
    assert (first, second) == ((0, 500), (500, 1000))
    state.took(first, Counter(right=500), [])
    state.left += state.crashed(second, -11, [500, 700, 999])
    assert state.failed()
    state.write([])
    again = properties.Run(0, 1200, path)
    assert sorted(again.left) == [(501, 700), (701, 999), (1000, 1200)]
    assert again.counts == {"right": 500, "crash": 1, "in a crash": 3}
    assert json.loads(path.read_text())["results"]["done"] == 503
    assert properties.Run(1, 1200, path).counts == {}  # another seed begins anew
    with pytest.raises(RuntimeError, match="before its first case"):
        state.crashed(second, 1, [])
