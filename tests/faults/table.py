"""The table of kinds of faults and what became of the runs."""

from collections.abc import Mapping
from dataclasses import dataclass

_HEAD = "| fault | times | ended exactly alike | a clear word first | seconds each |"


@dataclass
class Line:
    """Of one kind.

    Attributes:
      faults: runs that were disturbed so.
      exact: runs whose every number and byte was that of the undisturbed one in the end.
      refused: runs that stopped with one `error:` line on the way there.
      seconds: for all of them.
    """

    faults: int = 0
    exact: int = 0
    refused: int = 0
    seconds: float = 0.0


def table(lines: Mapping[str, Line]) -> str:
    """Markdown, with the sum of all kinds in the last line."""
    total = Line(
        faults=sum(line.faults for line in lines.values()),
        exact=sum(line.exact for line in lines.values()),
        refused=sum(line.refused for line in lines.values()),
        seconds=sum(line.seconds for line in lines.values()),
    )
    rows = [
        f"| {name} | {line.faults} | {line.exact} | {line.refused} "
        f"| {line.seconds / max(line.faults, 1):.1f} |"
        for name, line in [*lines.items(), ("all", total)]
    ]
    return "\n".join([_HEAD, "|---|---|---|---|---|", *rows])
