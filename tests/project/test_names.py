"""The names of the package, and those that are near to them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dikkat
import kit
from processes import python


@kit.each(
    ("guess", "meant"),
    [
        ("Additive", "scores.Additive"),
        ("MultiheadAttention", "MultiHeadAttention"),
        ("NadarayaWatson", "regression.NadarayaWatson"),
        ("Translator", "translation.Translator"),
        ("heatmap", "show.heatmaps"),
        ("aditive", "scores.Additive"),
        ("attend_memry", "attend_memory"),
    ],
)
def test_a_guess_is_told_the_right_name(guess, meant):
    with pytest.raises(AttributeError, match=rf"no attribute '{guess}'; did you mean dikkat\.{meant}\?$"):
        getattr(dikkat, guess)


def test_every_name_that_is_meant_is_there():
    for name in {*dikkat._SUGGESTIONS.values(), *dikkat._SUBMODULES}:
        home = dikkat
        for part in name.split("."):
            home = getattr(home, part)


def test_a_wild_guess_and_a_private_one():
    with pytest.raises(AttributeError, match=r"no attribute 'qqq'\. See help"):
        _ = dikkat.qqq
    code = "import sys, dikkat; assert not hasattr(dikkat, '__wrapped__'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_packages_are_attributes_of_dikkat():
    code = "import dikkat; print(dikkat.attention.attend is dikkat.attend, dikkat.regression.NadarayaWatson.__name__)"
    assert python(code).stdout == "True NadarayaWatson\n"


def test_what_benchmarks_tools_and_examples_import_is_there():
    root = Path(__file__).parents[2]
    for path in [each for folder in ("benchmarks", "tools", "examples") for each in (root / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dikkat":
                for each in node.names:
                    exec(f"from {node.module} import {each.name}", {})
