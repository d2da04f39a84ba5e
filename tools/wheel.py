"""The wheel as a stranger has it: built, its metadata and links checked, and each of the README's doors tried with it.

Run `python tools/wheel.py` in a clone. A door is a block of shell in the README that installs from the clone, with the
blocks of shell and Python behind it: each is run as it stands, the wheel in the clone's place, in an environment and a
folder of its own, with a file of sentence pairs, and has to leave a picture or a page there.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from pathlib import Path
from urllib.parse import urlsplit
from zipfile import ZipFile

from versions import ROOT, VERSIONS, constraints

FEWEST_DOORS = 3
LARGEST = 2_000_000  # bytes of the wheel
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CLONE = "'.["


def doors(readme: str) -> list[list[tuple[str, str]]]:
    r"""The blocks of each door, as (language, text).

    Example:
        >>> doors("```sh\npip install '.[show]'\n```\n```python\n1\n```\n## Next\n```python\n2\n```\n")
        [[('sh', "pip install '.[show]'\n"), ('python', '1\n')]]
    """
    found: list[list[tuple[str, str]]] = []
    for section in re.split(r"^## ", readme, flags=re.MULTILINE):
        begun = len(found)
        for language, text in _BLOCK.findall(section):
            if language == "sh" and f"pip install {_CLONE}" in text:
                found.append([])
            if len(found) > begun and not text.startswith("make"):
                found[-1].append((language, text))
    return found


def faults(wheel: Path, tracked: Sequence[str]) -> Iterator[str]:
    """What is wrong with the wheel's content and metadata.

    Args:
        wheel: The file.
        tracked: The files of the repository, to which the description's links lead.
    """
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        message = message_from_bytes(archive.read(metadata))
    if wheel.stat().st_size > LARGEST:
        yield f"{wheel.name}: got {wheel.stat().st_size:,} bytes; expected at most {LARGEST:,}"
    yield from (f"{name}: not of the package" for name in names if not re.match(r"dikkat(-[\d.]+\.dist-info)?/", name))
    for needed in ("py.typed", "show/living.js", "recipes/phrasebook.toml"):
        if f"dikkat/{needed}" not in names:
            yield f"{needed}: missing"
    for field in ("Author", "Classifier", "Description-Content-Type", "License-Expression", "Project-URL", "Summary"):
        if field not in message:
            yield f"{field}: missing in the metadata"
    (home,) = (each.partition(", ")[2] for each in message.get_all("Project-URL", []) if each.startswith("Repository"))
    places = {*tracked, *(str(parent) for name in tracked for parent in Path(name).parents)}
    inside = re.compile(rf"{re.escape(urlsplit(home).path)}/(?:blob/)?main/([^#]*)")
    for link in _LINK.findall(str(message.get_payload())):
        if not link.startswith("https://"):
            yield f"{link}: a link that an index's page cannot follow"
        elif (path := inside.search(link)) and path[1].rstrip("/") not in places:
            yield f"{link}: leads to nothing in the repository"


def try_door(blocks: Sequence[tuple[str, str]], wheel: Path, folder: Path, versions: str) -> str:
    """Run the blocks of a door in a new environment; return its figures in a line."""
    begun, home = time.monotonic(), folder / "home"
    home.mkdir(parents=True)
    _write_pairs(home / "pairs.tsv")
    extras = blocks[0][1].partition(_CLONE)[2].partition("]")[0].split(",")
    (folder / "constraints.txt").write_text("\n".join(constraints(versions, extras)), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {
        "PATH": f"{folder / 'venv/bin'}:{environment['PATH']}",
        "NUMBA_CACHE_DIR": str(folder / "kernels"),
        "PIP_CONSTRAINT": str(folder / "constraints.txt"),
    }
    _run([sys.executable, "-m", "venv", folder / "venv"], home, environment)
    installed = 0.0
    for language, text in blocks:
        if language == "python":
            _run(["python", "-c", text], home, environment)
        else:
            _run(["bash", "-euo", "pipefail", "-c", text.replace(_CLONE, f"'{wheel}[")], home, environment)
        installed = installed or time.monotonic() - begun
    shown = [path for pattern in ("*.html", "*.png") for path in home.rglob(pattern) if path.stat().st_size]
    if not shown:
        raise SystemExit(f"{blocks[0][1].strip()}: left no page and no picture")
    size = subprocess.run(["du", "-sm", folder / "venv"], capture_output=True, text=True, check=True).stdout.split()[0]
    made = ", ".join(str(path.relative_to(home)) for path in shown)
    return f"{size} MB installed in {installed:.0f} s, {time.monotonic() - begun:.0f} s in all: {made}"


def _write_pairs(path: Path) -> None:
    from dikkat.translation.phrasebook import pairs

    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs()[:300]), encoding="utf-8")


def _run(command: Sequence[str | Path], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[-1]}: exit status {done.returncode}\n{done.stdout}\n{done.stderr}")


def main() -> None:
    """Build, check and try the wheel; the first fault ends it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", metavar="FOLDER", help="where the archives are kept")
    parser.add_argument("--versions", choices=VERSIONS, default="tested", help="what to install beside it")
    arguments = parser.parse_args()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = doors((ROOT / "README.md").read_text(encoding="utf-8"))
    if len(found) < FEWEST_DOORS:
        raise SystemExit(f"README.md: got {len(found)} doors; expected at least {FEWEST_DOORS}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = Path(arguments.output or folder).resolve()
        subprocess.run([sys.executable, "-m", "build", "--outdir", made, ROOT], check=True, stdout=subprocess.DEVNULL)
        (sources,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sources, wheel], check=True)
        if wrong := list(faults(wheel, tracked.split("\n"))):
            raise SystemExit("\n".join(wrong))
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB; the sources {sources.stat().st_size / 1e6:.2f} MB")
        # Two at a time: most of a door is one process that unpacks, or that compiles kernels.
        with ThreadPoolExecutor(2) as workers:
            folders = (folder / str(number) for number in range(len(found)))
            tried = workers.map(lambda door, home: try_door(door, wheel, home, arguments.versions), found, folders)
            for blocks, figures in zip(found, tried, strict=True):
                print(f"{blocks[0][1].splitlines()[0]}: {figures}", flush=True)


if __name__ == "__main__":
    main()
