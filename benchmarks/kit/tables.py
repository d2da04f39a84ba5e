"""Write the tables of a documentation page from the newest records of benchmarks/results.

A table is between `<!-- table NAME -->` and `<!-- end -->`, followed by the machine and date of its records.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import RESULTS

Record = dict[str, Any]
PLACE = re.compile(r"<!-- table ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Run:
    """A record: its name without the date, its machine, commit and date, and its results."""

    name: str
    environment: Record
    results: Any

    def where(self) -> str:
        environment = self.environment
        cores = "1 core" if environment["cores"] == 1 else f"{environment['cores']} cores"
        machine = environment["cpu"].replace("(R)", "").removesuffix(" Processor")
        return f"{cores} of {machine}, {environment['date']}, commit {environment['commit']}"

    def find(self, **fields: Any) -> list[Record]:
        return [r for r in self.results if all(r.get(name) == value for name, value in fields.items())]

    def first(self, **fields: Any) -> Record:
        """Return the first matching record, or an empty one."""
        return next(iter(self.find(**fields)), {})


@dataclass(frozen=True)
class Table:
    """A table of a page: `rows` makes it from the newest record of each name; missing records are skipped."""

    name: str
    records: Sequence[str]
    head: Sequence[str]
    rows: Callable[[list[Run]], Iterable[Sequence[str]]]

    def runs(self, folder: Path = RESULTS) -> list[Run]:
        """Return the newest record of each name."""
        return [run for name in self.records if (run := newest(name, folder))]

    def markdown(self, folder: Path = RESULTS) -> str:
        runs = self.runs(folder)
        lines = [self.head, ["---"] * len(self.head), *self.rows(runs)]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        by_machine: dict[str, list[str]] = {}
        for run in runs:
            by_machine.setdefault(run.where(), []).append(f"`{run.name}`")
        sources = "; ".join(f"{machine} ({', '.join(names)})" for machine, names in by_machine.items())
        return f"{table}\n\n{sources or 'Not measured yet'}."


def newest(name: str, folder: Path = RESULTS) -> Run | None:
    paths = sorted(folder.glob(f"{name}-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].json")) or sorted(
        folder.glob(f"{name}.json")
    )
    if not paths:
        return None
    content = json.loads(paths[-1].read_text())
    return Run(name, content["environment"], content["results"])


def update(page: Path, tables: Sequence[Table], folder: Path = RESULTS) -> None:
    """Replace the tables in the page.

    Raises:
        ValueError: If the markers of the page do not match the tables.
    """
    text, by_name = page.read_text(encoding="utf-8"), {table.name: table for table in tables}
    if (names := PLACE.findall(text)) != list(by_name):
        raise ValueError(f"{page}: got tables {', '.join(names)}; expected {', '.join(by_name)}, in this order")
    updated = PLACE.sub(
        lambda match: f"<!-- table {match[1]} -->\n{by_name[match[1]].markdown(folder)}\n<!-- end -->", text
    )
    page.write_text(updated, encoding="utf-8")


def changed_lines(commit: str) -> int | None:
    """Return how many lines of src/ a commit lacks or has in another form; None if the commit is no ancestor."""
    if subprocess.run(["git", "merge-base", "--is-ancestor", commit, "HEAD"], cwd=ROOT, check=False).returncode:
        return None
    process = subprocess.run(
        ["git", "diff", "--numstat", commit, "HEAD", "--", "src/dikkat/*.py"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return sum(int(line.split()[0]) for line in process.stdout.splitlines())


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(samples: Record, factor: float = 1.0) -> str:
    """Format a median with minimum and maximum, each multiplied by a factor."""
    if samples["runs"] == 1:
        return number(factor * samples["median"])
    return f"{number(factor * samples['median'])} ({number(factor * samples['min'])}–{number(factor * samples['max'])})"


def times(numerator: float, denominator: float) -> str:
    return f"{number(numerator / denominator)} ×"
