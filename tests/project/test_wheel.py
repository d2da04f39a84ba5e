"""The check of the wheel, on wheels with a fault each."""

from pathlib import Path
from zipfile import ZipFile

import pytest

import wheel

METADATA = """Name: dikkat
Author: somebody
Classifier: Typing :: Typed
Description-Content-Type: text/markdown
License-Expression: Apache-2.0
Project-URL: Repository, https://github.com/some/where
Summary: It attends.

{text}
"""
CONTENT = ("dikkat/py.typed", "dikkat/show/living.js", "dikkat/recipes/phrasebook.toml")


def made(path: Path, text: str, *names: str) -> Path:
    with ZipFile(path, "w") as archive:
        archive.writestr("dikkat-1.0.dist-info/METADATA", METADATA.format(text=text))
        for name in names:
            archive.writestr(name, "")
    return path


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("https://example.org/some/where", None),
        ("https://github.com/some/where/blob/main/docs/index.md#top", None),
        ("https://raw.example.org/some/where/main/docs", None),
        ("docs/index.md", "a relative link"),
        ("https://github.com/some/where/blob/main/docs/gone.md", "no such path"),
    ],
)
def test_links_of_the_description(tmp_path, link, said):
    found = list(wheel.faults(made(tmp_path / "a.whl", f"[x]({link})", *CONTENT), ["docs/index.md"]))
    assert [said in each for each in found] == ([True] if said else [])


def test_content_and_fields(tmp_path):
    found = list(wheel.faults(made(tmp_path / "a.whl", "", *CONTENT[1:], "tests/test_a.py"), []))
    assert found == ["tests/test_a.py: outside the package", "py.typed: missing"]
