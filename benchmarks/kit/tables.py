"""Tables of a documentation page, made of the newest records of benchmarks/results.

A table stands between `<!-- table NAME -->` and `<!-- end -->`; below it, where and when it was measured.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kit.report import RESULTS

Record = dict[str, Any]
PLACE = re.compile(r"<!-- table ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Run:
    """A record: its name without the date, where and when it was made, and its results."""

    name: str
    environment: Record
    results: Any

    def where(self) -> str:
        made = self.environment
        cores = "1 core" if made["cores"] == 1 else f"{made['cores']} cores"
        machine = made["cpu"].replace("(R)", "").removesuffix(" Processor")
        return f"{cores} of {machine}, {made['date']}, commit {made['commit']}"

    def find(self, **wanted: Any) -> list[Record]:
        return [r for r in self.results if all(r.get(name) == value for name, value in wanted.items())]

    def first(self, **wanted: Any) -> Record:
        """The first record of this description, or an empty one."""
        return next(iter(self.find(**wanted)), {})


@dataclass(frozen=True)
class Table:
    """A table of a page: `rows` makes it of the newest record of each name, those left out that are not there."""

    name: str
    records: Sequence[str]
    head: Sequence[str]
    rows: Callable[[list[Run]], Iterable[Sequence[str]]]

    def markdown(self, folder: Path = RESULTS) -> str:
        runs = [run for name in self.records if (run := newest(name, folder))]
        lines = [self.head, ["---"] * len(self.head), *self.rows(runs)]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        made: dict[str, list[str]] = {}
        for run in runs:
            made.setdefault(run.where(), []).append(f"`{run.name}`")
        return f"{table}\n\n" + "; ".join(f"{where} ({', '.join(names)})" for where, names in made.items()) + "."


def newest(name: str, folder: Path = RESULTS) -> Run | None:
    found = sorted(folder.glob(f"{name}-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].json")) or sorted(
        folder.glob(f"{name}.json")
    )
    if not found:
        return None
    content = json.loads(found[-1].read_text())
    return Run(name, content["environment"], content["results"])


def update(page: Path, tables: Sequence[Table], folder: Path = RESULTS) -> None:
    """Write the tables into their places in the page.

    Raises:
        ValueError: A table has no place, or a place no table.
    """
    text, by_name = page.read_text(encoding="utf-8"), {table.name: table for table in tables}
    if (found := PLACE.findall(text)) != list(by_name):
        raise ValueError(f"{page}: got places for {', '.join(found)}; expected {', '.join(by_name)}, in this order")
    made = PLACE.sub(lambda at: f"<!-- table {at[1]} -->\n{by_name[at[1]].markdown(folder)}\n<!-- end -->", text)
    page.write_text(made, encoding="utf-8")


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(found: Record, by: float = 1.0) -> str:
    """A median with the smallest and the largest, each times a factor."""
    if found["runs"] == 1:
        return number(by * found["median"])
    return f"{number(by * found['median'])} ({number(by * found['min'])}–{number(by * found['max'])})"


def times(above: float, below: float) -> str:
    return f"{number(above / below)} ×"
