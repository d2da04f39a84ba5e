"""The lowest or the newest versions that pyproject.toml allows, as constraints for pip.

`python tools/versions.py lowest translation,regression` prints one for each library of the package and of these extras.
Torch and Triton stay as constraints.txt has them, whichever is asked for: others would bring CUDA along.
"""

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("tested", "lowest", "newest")
_HELD = ("torch", "triton")


def constraints(which: str, extras: Sequence[str]) -> list[str]:
    """The lines of a file of constraints.

    Args:
        which: "tested", those of constraints.txt; "lowest"; or "newest", of which pip takes what it finds.
        extras: What is installed beside the package's own dependencies.

    Example:
        >>> [line for line in constraints("lowest", ["show"]) if not line.startswith("torch")]
        ['numpy==1.23.5', 'numba==0.60', 'filelock==3.12', 'matplotlib==3.9', 'triton==3.7.1']
    """
    tested = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if which == "tested":
        return tested
    lowest = {each.name: f"{each.name}=={_bound(each)}" for each in requirements(extras)} if which == "lowest" else {}
    held = {name: line for line in tested if (name := line.partition("=")[0]) in _HELD}
    return list({**lowest, **held}.values())


def requirements(extras: Sequence[str]) -> Iterator[Requirement]:
    """What the package needs, and what these extras bring; dikkat's own extras among them unfolded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    for each in (Requirement(text) for texts in waiting for text in texts):
        if each.name == "dikkat":
            waiting += [project["optional-dependencies"][extra] for extra in each.extras]
        else:
            yield each


def _bound(requirement: Requirement) -> str:
    (lowest,) = (each.version for each in requirement.specifier if each.operator in (">=", "=="))
    return lowest


def main() -> None:
    """Print the constraints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("which", choices=VERSIONS)
    parser.add_argument("extras", help="their names, with commas between")
    arguments = parser.parse_args()
    print("\n".join(constraints(arguments.which, arguments.extras.split(","))))


if __name__ == "__main__":
    main()
