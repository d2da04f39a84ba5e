"""Tables on standard output: with rules on a terminal, else plain columns."""

import sys
from collections.abc import Sequence

from dikkat.cli.messages import printable


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, text_columns: int = 1) -> None:
    """Print a table, with all but the first `text_columns` columns aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number >= text_columns else "left", overflow="fold")
    for row in rows:
        table.add_row(*("\n".join(map(printable, cell.split("\n"))) for cell in row))
    console = Console(markup=False, highlight=False, width=None if terminal else 1000)  # never wrap in a file
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
