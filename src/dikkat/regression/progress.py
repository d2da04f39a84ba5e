"""A progress bar for a long computation over pairs of rows."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dikkat.regression.moments import launch

_EVERY = 30.0  # seconds between lines, where there is no terminal for a bar


@contextmanager
def working(name: str, total: int | None, once: int) -> Iterator[None]:
    """A bar of the pairs of rows that are compared within, or a line every half a minute; `once` is all pairs."""
    console, done = Console(stderr=True), 0
    begin = last = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
    clock = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    bar = Progress(
        *columns, clock, console=console, disable=not console.is_terminal, transient=True, redirect_stdout=False
    )
    task = bar.add_task(name, total=total, text="")

    def count(pairs: int) -> None:
        nonlocal done, last
        done += pairs
        text = f"{done / once:.1f} times over all pairs of rows"
        if total is not None:
            text = f"{min(100 * done / total, 100):.0f}%"
        bar.update(task, completed=done, text=text)
        now = time.monotonic()
        if bar.disable and now - last > _EVERY:
            last = now
            print(f"{name}: {text}, {now - begin:.0f} s", file=sys.stderr, flush=True)

    with bar, launch.observed(count):
        yield
