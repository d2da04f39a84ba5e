"""What a kept kernel is launched for, against what Triton would compile apart; and how it is launched."""

import inspect
from itertools import combinations
from typing import Any, NamedTuple

import pytest
import torch

from dikkat._core.implementations import launcher


class Pair(NamedTuple):
    first: Any
    second: Any = None


ROW = torch.zeros(64)
WHOLE = [0, 1, 2, 15, 16, 17, 48, -1, -16, 2**31 - 1, 2**31, 2**31 + 16, -(2**31), -(2**31) - 1, 2**32, 2**63 - 1]
WHOLE += [2**63, 2**64 - 1, -(2**63)]
TENSORS = [ROW, ROW[1:], ROW[4:], ROW.half(), ROW.half()[1:], ROW.bfloat16(), ROW.long(), ROW.byte(), ROW.bool()]
SINGLE = [*WHOLE, *TENSORS, None, True, False, 0.0, 1.0, 16.0, 1e300]
NESTED = [Pair(a, b) for a in (*SINGLE[::4], (1, 2), (16, 1), ()) for b in SINGLE[1::5]]


def test_two_operands_are_of_one_kind_where_triton_compiles_them_alike() -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    base = pytest.importorskip("triton.backends.compiler").BaseBackend
    operands = [*SINGLE, *NESTED]
    compiled = [repr(jit.native_specialize_impl(base, each, False, True, True)) for each in operands]
    kinds = [launcher.kind(each) for each in operands]
    assert len(set(compiled)) > 60
    for one, other in combinations(range(len(operands)), 2):
        alike = compiled[one] == compiled[other]
        assert alike == (kinds[one] == kinds[other]), (operands[one], operands[other])


class Kernel:
    """A kernel as `kernel[grid](...)` compiles and launches it, and the compiled one."""

    def __init__(self) -> None:
        self.compiled: list[dict[str, Any]] = []
        self.launched: list[tuple[Any, ...]] = []

    @staticmethod
    def fn(x: Any, count: int, SIZE: Any, WHOLE: Any) -> None:
        """The source, whose signature has the order of the constants."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*operands: Any, **constants: Any) -> Any:
            self.compiled.append(constants)
            return Compiled(self)

        return run


class Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments: self.kernel.launched.append((grid, *arguments))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(launcher, "_kernel", lambda name: made)
    monkeypatch.setattr(launcher, "_COMPILED", {})
    return made


def test_a_kernel_is_compiled_once_for_arguments_of_one_kind(kernel: Kernel) -> None:
    assert list(inspect.signature(Kernel.fn).parameters) == ["x", "count", "SIZE", "WHOLE"]
    options = {"WHOLE": True, "num_warps": 4, "SIZE": 32}  # in another order than the signature's
    launcher.launch("own", (7,), ROW, 5, **options)
    assert kernel.compiled == [options]
    assert kernel.launched == []  # the first went the long way
    other = torch.ones(3)
    launcher.launch("own", (7, 2), other, 11, **options)
    assert len(kernel.compiled) == 1
    ((grid, x, *rest),) = kernel.launched
    assert grid == (7, 2, 1)
    assert x is other
    assert rest == [11, 32, True]


@pytest.mark.parametrize(
    ("x", "count", "changed"),
    [
        (ROW[1:], 5, {}), (ROW.half(), 5, {}), (None, 5, {}), (ROW, 1, {}), (ROW, 16, {}), (ROW, 2**31 + 1, {}),
        (ROW, 5, {"SIZE": 64}), (ROW, 5, {"num_warps": 8}), (ROW, 5, {"WHOLE": False}),
    ],
    ids=lambda each: str(each)[:12],
)  # fmt: skip
def test_another_kind_is_compiled_anew(kernel: Kernel, x: Any, count: int, changed: dict[str, Any]) -> None:
    options = {"SIZE": 32, "WHOLE": True, "num_warps": 4}
    launcher.launch("own", (7,), ROW, 5, **options)
    launcher.launch("own", (7,), x, count, **(options | changed))
    launcher.launch("another", (7,), ROW, 5, **options)
    assert len(kernel.compiled) == 3
    assert kernel.launched == []


def test_so_many_are_kept(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_MAX_COMPILED", 3)
    for size in range(11):
        launcher.launch("own", (1,), ROW, 5, SIZE=size, WHOLE=True)
        assert 1 <= len(launcher._COMPILED) <= 3
