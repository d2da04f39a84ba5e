"""Calls as they run on a GPU: held against the kit's twin, and their operations counted. No GPU is needed."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import device
import dikkat
import kit
import test_hidden
from dikkat import program, scores

KEPT = ["none", "lengths", "lengths above 0", "lengths a query", "mask", "mask a head", "mask of keys", "causal"]
CASES = [*kit.KINDS, "vector sum", "gaussian, learned", "gated", "dot, capped"]


@pytest.mark.parametrize(
    ("case", "restriction", "dtype", "weights"),
    kit.pairwise(
        {
            "case": CASES,
            "restriction": [*KEPT, "all", "exclude", "window", "pair bias"],
            "dtype": [torch.float64, torch.float32, torch.bfloat16],
            "weights": [False, True],
        },
        lambda restriction, dtype, **_: dtype.itemsize > 2 or restriction in KEPT,
    ),
    ids=str,
)
def test_a_kept_call_is_right(case: str, restriction: str, dtype: torch.dtype, weights: bool) -> None:
    made = kit.call(case, restriction, round_to=dtype).to(dtype)
    budget = kit.expected(case, restriction, dtype)
    with device.kept():
        found = made.run(return_weights=weights)
        assert bool(program._PROGRAMS) == (restriction in KEPT and case != "dot, capped")
    out = found[0] if weights else found
    came = {"output": out} | kit.gradients(made, out, kit.upstream_of(out))
    for name, tensor in came.items():
        assert tensor.dtype == dtype
        kit.assert_within_budget(name, tensor.detach(), budget)
    if weights:
        kit.assert_within_budget("weights", found[1].detach(), budget)


@pytest.fixture
def way(monkeypatch: pytest.MonkeyPatch) -> str:
    """A way of the kit whose calls are the second of their signature, on a device."""
    monkeypatch.setattr(kit, "way", lambda _: _kept())
    return "on a device"


class _kept:
    def __enter__(self) -> str:
        self._within = device.kept()
        self._within.__enter__()
        return "auto"

    def __exit__(self, *raised: Any) -> None:
        self._within.__exit__(*raised)


@pytest.mark.parametrize("case", kit.KINDS)
@pytest.mark.parametrize("restriction", ["lengths", "lengths a query", "mask", "causal"])
def test_a_row_without_a_key_is_zero_everywhere(way: str, case: str, restriction: str) -> None:
    test_hidden.test_a_row_without_a_key_is_zero_everywhere(way, case, restriction)


@pytest.mark.parametrize("case", kit.KINDS)
@pytest.mark.parametrize("restriction", [restriction for restriction in KEPT if restriction != "none"])
@pytest.mark.parametrize("how", [math.nan, math.inf])
def test_keys_that_nobody_sees_have_no_effect(way: str, case: str, restriction: str, how: float) -> None:
    test_hidden.test_keys_that_nobody_sees_have_no_effect(way, case, restriction, how)


@pytest.mark.parametrize("case", ["scaled dot", "additive", "gaussian"])
@pytest.mark.parametrize("restriction", ["lengths a query", "mask", "causal"])
@pytest.mark.parametrize("where", ["key", "value"])
@pytest.mark.parametrize("how", [math.nan, math.inf])
def test_a_key_hidden_from_some_reaches_only_those_who_see_it(
    way: str, case: str, restriction: str, where: str, how: float
) -> None:
    if case == "scaled dot" and restriction == "mask":
        return  # PyTorch's fused kernels, for which it would have to be looked at: the exception that `attend` has
    test_hidden.test_a_key_hidden_from_some_reaches_only_those_who_see_it(way, case, restriction, where, how)


@pytest.mark.parametrize(
    ("case", "restriction"),
    [("dot", "causal"), ("additive", "none"), ("additive", "lengths"), ("gaussian, learned", "causal")],
)
def test_second_derivatives(case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    leaves = [each for each in made.leaves().values() if each.requires_grad]

    def second(out: Tensor) -> list[Tensor]:
        first = torch.autograd.grad((out * kit.upstream_of(out)).sum(), leaves, create_graph=True, allow_unused=True)
        norm = sum(each.square().sum() for each in first if each is not None)
        return [g for g in torch.autograd.grad(norm, leaves, allow_unused=True) if g is not None]

    with device.kept():
        came = second(made.run())
    for one, other in zip(came, second(kit.twin(made)[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
