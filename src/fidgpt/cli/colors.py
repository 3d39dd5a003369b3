"""Colors and tables on a terminal, by rich; pipes get the plain text, and need no rich."""

import os
import re
import shutil
import sys
import textwrap
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
_TABLES = ((r"^[^ ].*", "bold"), (r"(?m)^  \S+", "cyan"))
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
    widths = [max(map(len, column)) for column in columns]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    below = " " * min(2 + sum(widths[:-1]) + 2 * len(widths[:-1]), room // 2, 60)
    lines = [title]
    for row in zip(*columns, strict=True):
        line = f"  {'  '.join(map(str.ljust, row, widths))}".rstrip()
        lines.append(textwrap.fill(line, room, subsequent_indent=below, break_on_hyphens=False))
    text = "\n".join(lines)
    print(colored(text, _TABLES) if has_color(sys.stdout) else text, end="\n\n")
