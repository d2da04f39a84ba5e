"""Random calls of every kind against an oracle: the first of the million of `tests.stress.properties`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from tests.stress import oracle, properties, random_calls

SIGNATURES, BLOCKS = 300, 6


@pytest.mark.parametrize("start", range(0, SIGNATURES, SIGNATURES // BLOCKS))
def test_random_calls_are_right_or_refused(start: int) -> None:
    outcomes: Counter[str] = Counter()
    for index in range(start, start + SIGNATURES // BLOCKS):
        each, told = properties.one(0, index)
        assert told is None, f"python -m tests.stress.properties --only {index}: {told}"
        outcomes.update(each)
    assert outcomes["right"] > 0.6 * random_calls.ROUNDS * SIGNATURES / BLOCKS  # others are refused, or say nothing


@given(seed=st.integers(1, 2**32), index=st.integers(0, 2**32), fences=st.booleans())
@settings(max_examples=80, deadline=None)
def test_any_random_call_is_right_or_refused(seed: int, index: int, fences: bool) -> None:
    _, told = properties.one(seed, index, fences=fences)
    assert told is None, f"python -m tests.stress.properties --seed {seed} --only {index}: {told}"


def test_random_calls_are_right_in_several_threads() -> None:
    place = np.full(1, -1)
    counts, told = properties.block(1, 0, 27, place)
    assert told == []
    assert sum(counts.values()) == 27 * random_calls.ROUNDS
    assert place == -1


@pytest.mark.parametrize("name", ["query", "key", "value", "valid_lens", "mask", "key_bias", "exclude"])
def test_fences_keep_numbers_and_strides(name: str) -> None:
    found = 0
    for index in range(200):
        plain, fenced = (random_calls.make(3, index, fences=fences) for fences in (False, True))
        for one, other in zip(plain, fenced, strict=True):
            a, b = ((c.limits | {"query": c.query, "key": c.key, "value": c.value}).get(name) for c in (one, other))
            if isinstance(a, torch.Tensor) and a.numel():
                found += 1
                torch.testing.assert_close(a.detach(), b.detach(), rtol=0, atol=0, equal_nan=True)
                assert a.stride() == b.stride()
                assert b.storage_offset() >= 4 * a.numel() // max(1, a.shape[0] if a.ndim else 1)
    assert found > 20


@pytest.mark.parametrize("fill", [0, 1])
def test_a_read_outside_a_tensor_shows(fill: int) -> None:
    """As an operand that the batch shares would be read if it were taken for one of each element."""
    shared = random_calls._fenced(torch.ones(1, 3, 5), fill)
    beyond = shared.as_strided((2, 3, 5), (15, 5, 1), shared.storage_offset())
    assert not bool((beyond.abs() <= 1).all())


@kit.each(("name", "by"), [("output", 1e3), ("grad query", 1e5), ("grad value", 1e3), ("weights", 1e3)])
@kit.each("number", range(random_calls.ROUNDS))
def test_the_oracle_notices(name: str, by: float, number: int) -> None:
    """An answer of any of the calls whose largest number is off by so many times its type's precision."""
    noticed = tried = 0
    for index in range(150):
        calls = random_calls.make(0, index)
        if calls[0].dtype in (torch.float16, torch.bfloat16) or calls[0].impl != "auto":
            continue
        came: list[Any] = list(map(oracle.attempt, calls))
        if name not in came[number] or not came[number][name].any() or oracle.judge(calls, came)[number] != "right":
            continue
        tried += 1
        off = came[number][name].clone(memory_format=torch.contiguous_format)
        flat = off.view(-1)
        flat[int(flat.abs().argmax())] *= 1 + by * torch.finfo(flat.dtype).eps
        came[number][name] = off
        try:
            oracle.judge(calls, came)
        except oracle.WrongError:
            noticed += 1
    assert tried > 5
    assert noticed > 0.5 * tried  # others have scores so large that their rounding allows for more


def test_what_was_done_before_a_crash_is_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "properties.json"
    state = properties.Run(0, 500, path)
    first, second = state.left.pop(), state.left.pop()
    assert (first, second) == ((0, 200), (200, 400))
    state.took(first, Counter(right=600), [])
    state.left += state.crashed(second, -11, [300])
    assert state.failed()
    state.write([])
    again = properties.Run(0, 500, path)
    assert sorted(again.left) == [(200, 300), (301, 400), (400, 500)]
    assert again.counts == {"right": 600, "crash": 1, "in a crash": 3}
    assert json.loads(path.read_text())["results"]["done"] == 603
    assert properties.Run(1, 500, path).counts == {}  # another seed begins anew
    with pytest.raises(RuntimeError, match="before its first call"):
        state.crashed(second, 1, [])
