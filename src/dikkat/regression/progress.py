"""A progress bar for long computations over pairs of rows."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dikkat.regression.moments import launch

_EVERY = 30.0  # seconds between lines, without a terminal


@contextmanager
def working(name: str, total: int | None, all_pairs: int) -> Iterator[None]:
    """Show a bar of the compared pairs of rows (`all_pairs` in one pass), in a terminal or Jupyter.

    Elsewhere, and in Jupyter without ipywidgets, print a line every 30 s.
    """
    console, done = Console(stderr=True), 0
    shows_bar = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    begin = last = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
    clock = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    bar = Progress(*columns, clock, console=console, disable=not shows_bar, transient=True, redirect_stdout=False)
    task = bar.add_task(name, total=total, text="")

    def count(pairs: int) -> None:
        nonlocal done, last
        done += pairs
        text = f"{done / all_pairs:.1f} passes over all pairs of rows"
        if total is not None:
            text = f"{min(100 * done / total, 100):.0f}%"
        bar.update(task, completed=done, text=text)
        now = time.monotonic()
        if bar.disable and now - last > _EVERY:
            last = now
            print(f"{name}: {text}, {now - begin:.0f} s", file=sys.stderr, flush=True)

    with bar, launch.observed(count):
        yield
