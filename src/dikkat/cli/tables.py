"""Tables on standard output: ruled on a terminal, plain columns elsewhere."""

import sys
from collections.abc import Sequence

from dikkat.cli.messages import printable


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> None:
    """Print a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place >= words else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    # Where no one looks on, no line may be broken: a file has no width.
    console = Console(markup=False, highlight=False, width=None if terminal else 1000)
    with console.capture() as written:
        console.print(table)
    print("\n".join(line.rstrip() for line in written.get().splitlines()))
