"""The changes made on purpose, which the tests must notice."""

import ast

import pytest

import kit
from sabotage import run


@kit.each("change", run.changes(), ids=lambda change: change["id"])
def test_a_change_still_finds_what_it_changes(change):
    text = (run.ROOT / "src" / "dikkat" / change["file"]).read_text(encoding="utf-8")
    changed = run.changed(text, change)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    assert run.unknown_names(changed) == run.unknown_names(text)


def test_each_change_has_a_name_of_its_own():
    names = [change["id"] for change in run.changes()]
    assert len(set(names)) == len(names)


def test_a_change_is_made_in_its_function_alone():
    text = "def f():\n    return 1\n\nclass C:\n    def f(self):\n        return 1\n"
    change = {"id": "one", "file": "x.py", "function": "C.f", "old": "return 1", "new": "return two"}
    assert run.changed(text, change) == text[:-2] + "two\n"
    assert run.unknown_names(run.changed(text, change)) == {"two"}
    with pytest.raises(ValueError, match=r"there is no C\.g"):
        run.changed(text, change | {"function": "C.g"})
    with pytest.raises(ValueError, match="got its old text 3 times"):
        run.changed(text, change | {"function": "C.f", "old": "f"})
