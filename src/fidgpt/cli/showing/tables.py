"""Tables on standard output: drawn on a terminal, aligned plain text in a file or a pipe."""

import sys
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def print_table(title: str, columns: Sequence[str], rows: Rows) -> None:
    """Prints a table under its title; columns that are empty in every row are left out."""
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    columns = [columns[i] for i in kept]
    rows = [[row[i] for i in kept] for row in rows]
    if sys.stdout.isatty():
        _draw(title, columns, rows)
    else:
        print(f"{title}\n{aligned(rows)}\n")


def aligned(rows: Rows) -> str:
    """Rows with their columns below each other, indented."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(f"  {line}" for line in lines)


def _draw(title: str, columns: Sequence[str], rows: Rows) -> None:
    from rich.console import Console  # late: a pipe needs none of it
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, style="bold" if i == 0 else None, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False)
    console.print(Text(title, style="bold underline"))
    console.print(table)
    console.print()
