"""A progress bar for a long computation over pairs of rows."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dikkat.cpu.moments import launch

_EVERY = 30.0  # seconds between lines, where there is no terminal for a bar


class Working:
    """A bar on standard error, and a line every half a minute where that is no terminal.

    Args:
        name: What is done.
        total: How many pairs of rows will be compared; None where nobody knows, as in a search.
        once: How many pairs there are, each of which a search compares many times.
    """

    def __init__(self, name: str, total: int | None, once: int) -> None:
        self._name, self._total, self._once, self._done = name, total, once, 0
        self._begin = self._said = time.monotonic()
        # Here, since most fits show nothing.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
        clock = TimeElapsedColumn() if total is None else TimeRemainingColumn()
        self._bar = Progress(
            *columns, clock, console=console, disable=not console.is_terminal, transient=True, redirect_stdout=False
        )
        self._task = self._bar.add_task(name, total=total, text="")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within, pairs of rows that are compared count."""
        with self._bar, launch.observed(self._count):
            yield

    def _count(self, pairs: int) -> None:
        self._done += pairs
        self._bar.update(self._task, completed=self._done, text=self._share())
        now = time.monotonic()
        if self._bar.disable and now - self._said > _EVERY:
            self._said = now
            print(f"{self._name}: {self._share()}, {now - self._begin:.0f} s", file=sys.stderr, flush=True)

    def _share(self) -> str:
        if self._total is None:
            return f"{self._done / self._once:.1f} times over all pairs of rows"
        return f"{min(100 * self._done / self._total, 100):.0f}%"
