"""When the Triton kernels refuse, and what they say. What they compute is tested in tests/interpreted."""

from typing import Any

import pytest
import torch

import dikkat
from dikkat import scores
from dikkat._core.implementations.triton import launch as gpu_launch
from processes import python

ON_CPU = "it needs CUDA tensors, and got some on cpu, where 'numba', 'chunked' and 'reference' run"


def reasons(score: scores.Score, **more: Any) -> tuple[str, ...]:
    x = torch.zeros(2, 3, **more)
    return next(i.reasons for i in dikkat.implementations(x, x, x, score=score) if i.name == "triton")


@pytest.fixture(autouse=True)
def not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_launch, "_INTERPRETED", False)
    monkeypatch.setattr(gpu_launch, "_INSTALLED", True)


def test_a_cpu_without_the_interpreter_is_refused() -> None:
    assert reasons(scores.Gaussian(1.0)) == (ON_CPU,)
    x = torch.zeros(2, 3)
    with pytest.raises(
        ValueError, match="impl: got 'triton', which cannot run this call: it needs CUDA tensors, and got some on cpu"
    ):
        dikkat.attend(x, x, x, score=scores.Gaussian(1.0), impl="triton")
    assert reasons(scores.Gaussian(1.0), device="meta") == (ON_CPU.replace("cpu", "meta"),)


def test_each_obstacle_says_what_runs_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_launch, "_INTERPRETED", True)
    assert reasons(scores.Gaussian(1.0)) == ()
    assert reasons(scores.Gaussian(1.0), dtype=torch.bfloat16) == ()
    (inner,) = reasons(scores.Dot())
    assert inner == "it computes additive and distance scores; inner ones run on 'sdpa'"
    (wide,) = reasons(scores.Gaussian(1.0), dtype=torch.float64)
    assert wide == "it computes in float32; 'chunked' and 'reference' take float64"
    with torch.autograd.forward_ad.dual_level():
        x = torch.zeros(2, 3)
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(ValueError, match="it has no forward-mode derivative; 'reference' has"):
            dikkat.attend(dual, x, x, score=scores.Gaussian(1.0), impl="triton")
    monkeypatch.setattr(gpu_launch, "_INSTALLED", False)
    (missing,) = reasons(scores.Gaussian(1.0))
    assert missing.startswith("Triton is not installed")


def test_triton_is_not_imported_before_it_is_used() -> None:
    code = (
        "import sys, torch, dikkat; x = torch.zeros(2, 3);"
        "dikkat.implementations(x, x, x, score=dikkat.scores.Gaussian(1.0));"
        "dikkat.attend(x, x, x, score=dikkat.scores.Gaussian(1.0));"
        "sys.exit('triton' in sys.modules)"
    )
    python(code)
