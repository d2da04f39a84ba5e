"""The commands of the workflows, against the tree: their files and targets exist, and the version is found."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

import dikkat

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# A command is all that follows `run:`, on the same line or in a block that is indented below.
COMMAND = re.compile(r"^(?P<indent> *)(?:- )?run: *(?:[|>]-?\n(?P<block>(?:(?P=indent) +.*\n)+)|(?P<line>.+\n))", re.M)


def commands(workflow: Path) -> list[str]:
    found = (match["block"] or match["line"] for match in COMMAND.finditer(workflow.read_text()))
    return [line.strip() for command in found for line in command.splitlines()]


def missing(command: str) -> list[str]:
    """The files, make targets and groups of dependencies that a command names and the tree does not have."""
    words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", command))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    found = [word for word in words if re.fullmatch(r"[.\w-]*/[\w./-]+|[\w-]+\.(txt|py|toml)", word)]
    lost = [word for word in found if not (ROOT / word).exists()]
    if words[0] == "make":
        lost += [word for word in words[1:] if "=" not in word and word not in targets]
    for at, word in enumerate(words):
        if word == "--group" and f"\n{words[at + 1]} = [" not in (ROOT / "pyproject.toml").read_text():
            lost.append(words[at + 1])
    return lost


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_the_commands_name_what_the_tree_has(workflow: Path) -> None:
    assert commands(workflow)
    assert not [(command, lost) for command in commands(workflow) if (lost := missing(command))]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_search_of_the_tree_finds_the_version(workflow: Path) -> None:
    for command in commands(workflow):
        if command.startswith("grep "):
            for tag, status in ((f"v{dikkat.__version__}", 0), ("v0.0.0", 1)):
                found = subprocess.run(["sh", "-c", command], cwd=ROOT, env=os.environ | {"GITHUB_REF_NAME": tag})
                assert found.returncode == status, (command, tag)


def test_what_is_missing_is_noticed() -> None:
    assert missing("make nothing") == ["nothing"]
    assert missing("python tools/nothing.py --group nothing") == ["tools/nothing.py", "nothing"]
    assert commands(ROOT / ".github" / "workflows" / "publish.yml")[0].startswith("grep ")
