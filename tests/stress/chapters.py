"""Do the attention chapters of *Dive into Deep Learning* run unchanged on `dikkat.textbook`?

    python -m tests.stress.chapters --book FOLDER [--framework torch] [--python PYTHON]
        [--output FOLDER]

FOLDER is a checkout of d2l-en or d2l-zh, or its bare git directory. Each chapter's cells of the framework run as they
are, in order, in a fresh process; only the line that imports the helper library is another. What the cells print, and
their figures, are kept in the output folder. A chapter that fails is reported with its error, and the exit status is 1.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.kit.processes import environment

# By the name of the helper library's module, the name that the book's tabs have.
TABS = {"torch": "pytorch", "tensorflow": "tensorflow", "mxnet": "mxnet"}
CHAPTERS = {
    "chapter_attention-mechanisms": (
        "attention-cues", "nadaraya-waston", "attention-scoring-functions", "bahdanau-attention",
        "multihead-attention", "self-attention-and-positional-encoding", "transformer",
    ),
    "chapter_attention-mechanisms-and-transformers": (
        "queries-keys-values", "attention-pooling", "attention-scoring-functions", "bahdanau-attention",
        "multihead-attention", "self-attention-and-positional-encoding", "transformer",
    ),
}  # fmt: skip
IMPORT = re.compile(r"^from d2l import (\w+) as d2l", re.MULTILINE)
CELL = re.compile(r"```\{\.python \.input[^}]*\}\n(.*?)```", re.DOTALL)
TAB = re.compile(r"\A\s*(?:#@tab|%%tab)\s+(.*)\n")
OF_THE_BUILD = ("%load_ext", "import d2lbook", "tab.interact_select")  # cells that only the book's own build has


def main() -> int:
    if sys.argv[1:] and sys.argv[1] == "--run":
        run(Path(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--book", type=Path, required=True, help="a checkout or a bare git directory of the book")
    parser.add_argument("--framework", choices=TABS, default="torch")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has dikkat and the framework")
    parser.add_argument("--chapter", action="append", help="only these (their file's name without .md)")
    parser.add_argument("--output", type=Path, default=Path(tempfile.gettempdir()) / "textbook-chapters")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for a chapter")
    options = parser.parse_args()
    found = chapters(options.book, options.chapter)
    if not found:
        parser.error(f"--book: {options.book} has none of the attention chapters")
    results = [measure(name, cells(text, TABS[options.framework]), options) for name, text in found.items()]
    print(json.dumps(results, indent=2, ensure_ascii=False))
    return 0 if all(result["ran"] for result in results) else 1


def chapters(book: Path, wanted: list[str] | None) -> dict[str, str]:
    """The chapters' texts by their names, of whichever edition this is."""
    texts = (
        (name, read(book, f"{folder}/{name}.md"))
        for folder, names in CHAPTERS.items()
        for name in names
        if name in (wanted or names)
    )
    return {name: text for name, text in texts if text}


def read(book: Path, path: str) -> str:
    if (book / path).exists():
        return (book / path).read_text(encoding="utf-8")
    shown = subprocess.run(
        ["git", "-C", str(book), "show", f"HEAD:{path}"], capture_output=True, encoding="utf-8", check=False
    )
    return shown.stdout


def cells(text: str, framework: str) -> list[str]:
    """A chapter's cells for a framework; one without a tab line is of all, or of the book's first framework."""
    first = "all" if "%%tab" in text else "mxnet"
    found = []
    for body in CELL.findall(text):
        tab = TAB.match(body)
        tabs = tab.group(1).replace(",", " ").split() if tab else [first]
        if {framework, "all"} & set(tabs) and not any(mark in body for mark in OF_THE_BUILD):
            found.append(IMPORT.sub(r"from dikkat.textbook import \1 as d2l", TAB.sub("", body)))
    return found


def measure(name: str, code: list[str], options: argparse.Namespace) -> dict[str, object]:
    folder = options.output / f"{options.book.resolve().name}-{options.framework}" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cells.json").write_text(json.dumps({"tab": TABS[options.framework], "cells": code}), encoding="utf-8")
    around = environment(MPLBACKEND="Agg")
    words = [options.python, __file__, "--run", str(folder)]
    started = time.perf_counter()
    with (folder / "output.txt").open("w+", encoding="utf-8") as output:
        try:
            status = subprocess.run(
                words, env=around, stdout=output, stderr=subprocess.STDOUT, timeout=options.limit, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
            output.write(f"stopped after {options.limit} seconds\n")
        seconds = time.perf_counter() - started
        output.seek(0)
        said = output.read().strip()
    print(
        f"{name}: {'ran' if status == 0 else 'FAILED'}, {len(code)} cells, {seconds:.0f} s, {folder}", file=sys.stderr
    )
    return {
        "chapter": name,
        "framework": options.framework,
        "cells": len(code),
        "ran": status == 0 and bool(code),
        "seconds": round(seconds, 1),
        "figures": len(list(folder.glob("*.png"))),
        "says": [line for line in said.splitlines() if re.search(r"bleu|tokens/sec|loss", line)],
        "error": None if status == 0 else said.splitlines()[-1:],
    }


class Tab:
    """What the cells of the second generation ask which framework they run in."""

    def __init__(self, framework: str) -> None:
        self.framework = framework

    def selected(self, *frameworks: str) -> bool:
        return self.framework in frameworks


def run(folder: Path) -> None:
    """Run a chapter's cells, as a notebook does: one name space, and after each cell its figures."""
    from matplotlib import pyplot

    chapter = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
    for old in folder.glob("*.png"):
        old.unlink()
    names = {"__name__": "__main__", "tab": Tab(chapter["tab"])}
    for index, cell in enumerate(chapter["cells"]):
        exec(compile(cell, f"cell {index}", "exec"), names)
        for number in pyplot.get_fignums():
            pyplot.figure(number).savefig(folder / f"cell-{index:02}-{number}.png", bbox_inches="tight")
        pyplot.close("all")


if __name__ == "__main__":
    sys.exit(main())
