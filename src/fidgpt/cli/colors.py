"""Colors and tables on a terminal, by rich; pipes get the plain text, and need no rich."""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any

_MARKS = (
    (r"(?m)^error:", "bold red"),
    (r"(?m)^(warning|tuning|for_hardware):", "bold yellow"),
    (r"(?m)^ *\^+$", "bold red"),
)
_CHANGES = (
    (r"(?m)^ *\+ .*$", "green"),
    (r"(?m)^ *- .*$", "red"),
    (r"(?m)^ *~ .*$", "yellow"),
)
MESSAGES = (*_MARKS, *_CHANGES, (r"--[a-z_]+(=\S+)?", "cyan"))
GRAPHS = (
    *_CHANGES,
    (r"(?m)^ *[\w.\[\]']+(?=:( |$)|$| = )", "cyan"),
    (r"(?m)  <- .*$", "dim"),
    (r"(?<= )[&*][\w.\[\]']+", "magenta"),
)


def has_color(stream: Any) -> bool:
    """Return whether a stream shows colors: a terminal does, unless NO_COLOR is set.

    FORCE_COLOR makes pipes show them too.
    """
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (
        stream.isatty() and os.environ.get("TERM") != "dumb"
    )


def colored(text: str, styles: Sequence[tuple[str, str]]) -> str:
    """Return a text with the codes of terminal styles where patterns match."""
    from rich.console import Console  # late: pipes need none of it
    from rich.text import Text

    lines = text.rstrip("\n")
    shown = Text.from_ansi(lines)
    for pattern, style in styles:
        shown.highlight_regex(re.compile(pattern), style)
    console = Console(color_system="standard", force_terminal=True)
    with console.capture() as capture:
        console.print(shown, soft_wrap=True, end="")
    return capture.get() + text[len(lines) :]


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print a table under its title, as wide as the terminal; empty columns are left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    if sys.stdout.isatty() or has_color(sys.stdout):
        _print_wide(title, columns)
        return
    widths = [max(map(len, column)) for column in columns]
    print(title)
    for row in zip(*columns, strict=True):
        print(f"  {'  '.join(map(str.ljust, row, widths)).rstrip()}")
    print()


def _print_wide(title: str, columns: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not has_color(sys.stdout), highlight=False)
    console.print(Text(title, style="bold"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    for _ in columns[1:]:
        table.add_column(overflow="fold")
    for row in zip(*columns, strict=True):
        table.add_row(*map(Text, row))
    console.print(Padding(table, (0, 0, 1, 2)))
