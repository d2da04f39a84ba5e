"""Build the wheel, check its content, metadata and links, and run the installation examples of the README with it.

Run `python tools/wheel.py` in a clone. An example is a shell block of the README that installs from the clone, with the
shell and Python blocks that follow in its section. It runs in a new environment and folder with a file of sentence
pairs, installs the wheel instead of the clone, and must create a picture or a page.
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

FEWEST_EXAMPLES = 3
LARGEST = 2_000_000  # bytes of the wheel
_BLOCK = re.compile(r"(?<!skip: next -->\n)^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CLONE = "'.["


def find_examples(readme: str) -> list[list[tuple[str, str]]]:
    r"""Return the blocks of each example, as (language, text).

    Example:
        >>> find_examples("```sh\npip install '.[show]'\n```\n```python\n1\n```\n## Next\n```python\n2\n```\n")
        [[('sh', "pip install '.[show]'\n"), ('python', '1\n')]]
    """
    examples: list[list[tuple[str, str]]] = []
    for section in re.split(r"^## ", readme, flags=re.MULTILINE):
        count = len(examples)
        for language, text in _BLOCK.findall(section):
            if language == "sh" and f"pip install {_CLONE}" in text:
                examples.append([])
            if len(examples) > count and not text.startswith("make"):
                examples[-1].append((language, text))
    return examples


def faults(wheel: Path, tracked: Sequence[str]) -> Iterator[str]:
    """Yield the faults in the content and metadata of a wheel.

    Args:
        wheel: The file.
        tracked: The files of the repository, for the links of the description.
    """
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        message = message_from_bytes(archive.read(metadata))
    if wheel.stat().st_size > LARGEST:
        yield f"{wheel.name}: got {wheel.stat().st_size:,} bytes; expected at most {LARGEST:,}"
    yield from (f"{name}: outside the package" for name in names if not re.match(r"dikkat(-[\d.]+\.dist-info)?/", name))
    for required in ("py.typed", "show/living.js", "recipes/phrasebook.toml"):
        if f"dikkat/{required}" not in names:
            yield f"{required}: missing"
    for field in ("Author", "Classifier", "Description-Content-Type", "License-Expression", "Project-URL", "Summary"):
        if field not in message:
            yield f"{field}: missing in the metadata"
    (home,) = (url.partition(", ")[2] for url in message.get_all("Project-URL", []) if url.startswith("Repository"))
    paths = {*tracked, *(str(parent) for name in tracked for parent in Path(name).parents)}
    repository_link = re.compile(rf"{re.escape(urlsplit(home).path)}/(?:blob/)?main/([^#]*)")
    for link in _LINK.findall(str(message.get_payload())):
        if not link.startswith("https://"):
            yield f"{link}: a relative link, which does not work on the page of a package index"
        elif (path := repository_link.search(link)) and path[1].rstrip("/") not in paths:
            yield f"{link}: no such path in the repository"


def run_example(blocks: Sequence[tuple[str, str]], wheel: Path, folder: Path, versions: str) -> str:
    """Run the blocks of an example in a new environment; return size, times and output files as one line."""
    begin, home = time.monotonic(), folder / "home"
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
        installed = installed or time.monotonic() - begin
    outputs = [path for pattern in ("*.html", "*.png") for path in home.rglob(pattern) if path.stat().st_size]
    if not outputs:
        raise SystemExit(f"{blocks[0][1].strip()}: created no page and no picture")
    size = subprocess.run(["du", "-sm", folder / "venv"], capture_output=True, text=True, check=True).stdout.split()[0]
    names = ", ".join(str(path.relative_to(home)) for path in outputs)
    return f"{size} MB installed in {installed:.0f} s, {time.monotonic() - begin:.0f} s in total: {names}"


def _write_pairs(path: Path) -> None:
    from dikkat.translation.phrasebook import pairs

    path.write_text("".join("\t".join(pair) + "\n" for pair in pairs()[:300]), encoding="utf-8")


def _run(command: Sequence[str | Path], folder: Path, environment: dict[str, str]) -> None:
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{command[-1]}: exit status {result.returncode}\n{result.stdout}\n{result.stderr}")


def main() -> None:
    """Build and check the wheel and run the examples; stop at the first fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", metavar="FOLDER", help="folder for the archives")
    parser.add_argument("--versions", choices=VERSIONS, default="tested", help="versions of the dependencies")
    arguments = parser.parse_args()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    examples = find_examples((ROOT / "README.md").read_text(encoding="utf-8"))
    if len(examples) < FEWEST_EXAMPLES:
        raise SystemExit(f"README.md: got {len(examples)} installation examples; expected at least {FEWEST_EXAMPLES}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        output = Path(arguments.output or folder).resolve()
        subprocess.run([sys.executable, "-m", "build", "--outdir", output, ROOT], check=True, stdout=subprocess.DEVNULL)
        (sources,), (wheel,) = output.glob("*.tar.gz"), output.glob("*.whl")
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", sources, wheel], check=True)
        if messages := list(faults(wheel, tracked.split("\n"))):
            raise SystemExit("\n".join(messages))
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB; the sources {sources.stat().st_size / 1e6:.2f} MB")
        # Two at a time: most of an example is one process that unpacks or compiles kernels.
        with ThreadPoolExecutor(2) as workers:
            folders = (folder / str(number) for number in range(len(examples)))
            lines = workers.map(lambda blocks, f: run_example(blocks, wheel, f, arguments.versions), examples, folders)
            for blocks, line in zip(examples, lines, strict=True):
                print(f"{blocks[0][1].splitlines()[0]}: {line}", flush=True)


if __name__ == "__main__":
    main()
