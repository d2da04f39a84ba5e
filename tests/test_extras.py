"""The extras that messages name, and those that are installed."""

import re
import tomllib
from pathlib import Path

import pytest

from dikkat import extras

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Distributions that are imported under another name.
IMPORTED = {
    "prometheus-client": "prometheus_client",
    "scikit-learn": "sklearn",
    "huggingface-hub": "huggingface_hub",
}


def packages(extra: str) -> set[str]:
    """What an extra installs, by the names that are imported; dikkat's own extras unfolded."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name = re.match(r"[\w-]+", requirement)[0]
        inner = re.search(r"\[([\w,-]+)\]", requirement)
        found |= set().union(*map(packages, inner[1].split(","))) if name == "dikkat" else {IMPORTED.get(name, name)}
    return found


@pytest.mark.parametrize("extra", extras._EXTRAS)
def test_a_message_names_an_extra_that_brings_the_package(extra):
    own = packages(extra)
    assert extras._EXTRAS[extra] <= own
    named = set().union(*extras._EXTRAS.values())
    assert own <= named, "a package of an extra that no message names"
