"""The changes made on purpose, which the tests must notice."""

import pytest

from sabotage import run


@pytest.mark.parametrize("change", run.changes(), ids=lambda change: change["id"])
def test_a_change_still_finds_what_it_changes(change):
    text = (run.ROOT / "src" / "dikkat" / change["file"]).read_text(encoding="utf-8")
    assert run.changed(text, change) != text


def test_each_change_has_a_name_of_its_own():
    names = [change["id"] for change in run.changes()]
    assert len(set(names)) == len(names)
