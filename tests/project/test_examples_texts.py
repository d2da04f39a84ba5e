"""The example of texts end to end."""

import re
import runpy
from pathlib import Path


def test_the_example_tells_languages_apart(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["texts.py"])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "texts.py"), run_name="__main__")
    first, *others = capsys.readouterr().out.splitlines()
    assert float(re.search(r"([\d.]+)% right", first)[1]) > 90
    assert len(others) == 6
    assert all(any(letter.isupper() for letter in line.split(maxsplit=1)[1]) for line in others)
