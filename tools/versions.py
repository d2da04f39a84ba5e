"""Print the lowest or newest versions that pyproject.toml allows, as constraints for pip.

`python tools/versions.py lowest translation,regression` prints one for each dependency of the package and these extras.
Torch and Triton always have the versions of constraints.txt, as other versions would install CUDA.
"""

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("tested", "lowest", "newest")
_FIXED = ("torch", "triton")


def constraints(which: str, extras: Sequence[str]) -> list[str]:
    """Return the lines of a constraints file.

    Args:
        which: "tested" for constraints.txt, "lowest", or "newest", which only fixes Torch and Triton.
        extras: Extras to install in addition to the dependencies of the package.

    Example:
        >>> [line for line in constraints("lowest", ["show"]) if not line.startswith("torch")]
        ['numpy==1.23.5', 'numba==0.60', 'filelock==3.12', 'matplotlib==3.9', 'pillow==10.1', 'triton==3.7.1']
    """
    tested = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if which == "tested":
        return tested
    lowest = {r.name: f"{r.name}=={_lower_bound(r)}" for r in requirements(extras)} if which == "lowest" else {}
    fixed = {name: line for line in tested if (name := line.partition("=")[0]) in _FIXED}
    return list({**lowest, **fixed}.values())


def requirements(extras: Sequence[str]) -> Iterator[Requirement]:
    """Yield the dependencies of the package and of these extras, including extras that an extra names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    for requirement in (Requirement(text) for group in groups for text in group):
        if requirement.name == "dikkat":
            groups += [project["optional-dependencies"][extra] for extra in requirement.extras]
        else:
            yield requirement


def _lower_bound(requirement: Requirement) -> str:
    (lowest,) = (bound.version for bound in requirement.specifier if bound.operator in (">=", "=="))
    return lowest


def main() -> None:
    """Print the constraints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("which", choices=VERSIONS)
    parser.add_argument("extras", help="names of extras, separated by commas")
    arguments = parser.parse_args()
    print("\n".join(constraints(arguments.which, arguments.extras.split(","))))


if __name__ == "__main__":
    main()
