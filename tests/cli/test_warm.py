"""`dikkat warm`, and what a terminal is told while kernels are compiled."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import dikkat
from dikkat._engine import compile as compiling
from dikkat.cli import warm


def test_every_kernel_is_compiled_for_every_kind_that_it_has_code_for():
    variants = list(warm._variants())
    assert len(variants) == len(set(variants))
    named = {(module, kernel) for module, kernel, _, _ in variants}
    assert {
        ("dikkat.recurrent.fused.kernel", "backward"),
        ("dikkat._core.implementations.numba.kernel", "forward"),
    } <= named
    folder = Path(dikkat.__file__).parent
    assert len(named) == sum(path.read_text(encoding="utf-8").count("\n@Kernel\n") for path in folder.rglob("*.py"))
    kinds = {
        flags
        for module, kernel, _, flags in variants
        if (module, kernel) == ("dikkat._core.implementations.numba.kernel", "forward")
    }
    assert kinds == {(True, None, None), (None, True, None), (None, None, True)}
    assert {flags for module, _, _, flags in variants if module == "dikkat.translation.decoding.compiled.phases"} == {
        (True,),
        (None,),
    }
    assert {dtype for _, _, dtype, _ in variants} == {"float32", "float64"}


def test_a_kernel_is_compiled_by_its_name(monkeypatch):
    asked = []
    monkeypatch.setattr(
        import_module("dikkat.translation.network.fused_loss.kernel"),
        "cross_entropy",
        lambda *given: asked.append(given),
    )
    name, seconds = warm._compile(("dikkat.translation.network.fused_loss.kernel", "cross_entropy", "float64", ()))
    assert (name, asked) == (
        "dikkat.translation.network.fused_loss.kernel.cross_entropy, float64",
        [(np.dtype("float64"),)],
    )
    assert seconds >= 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_told_once_why_a_call_takes_long(monkeypatch, capsys, terminal):
    monkeypatch.setattr(compiling, "is_cached", lambda *_: False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    compiling._announce.cache_clear()
    for _ in range(2):
        with compiling._compiling(test_a_kernel_is_compiled_by_its_name):
            pass
    told = capsys.readouterr().err
    assert told.count("\n") == told.count("dikkat warm") == terminal
