"""What a bisection found: the differences that are to blame, and how to run with them alone."""

import math
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from fidgpt.cli.running.saying import train_command
from fidgpt.sweep.bisect.bounds import Bounds
from fidgpt.sweep.bisect.pieces import Pieces


@dataclass(frozen=True)
class Culprits:
    """The smallest set of differences that makes a good run bad.

    Attributes:
      objective: the name of what was measured.
      pieces: the places of the differences.
      told: the differences for a person, a line each.
      num_pieces: among how many they were found.
      value: what the good run came to with them; nan where it diverged.
      bounds: what the two ends came to.
      directives: what makes the good config with these differences and no others.
      cure: what makes the bad config without them; None where that does not check.
      allowed: packages of the user's own that configs may name.
    """

    objective: str
    pieces: Pieces
    told: list[str]
    num_pieces: int
    value: float
    bounds: Bounds
    directives: tuple[str, ...]
    cure: tuple[str, ...] | None
    allowed: tuple[str, ...] = ()

    def text(self) -> str:
        """All of it, for a person."""
        count = len(self.pieces)
        whose = "differences makes" if count == 1 else "differences, only together, make"
        lines = [
            f"{count} of {self.num_pieces} {whose} {self.objective} bad: "
            f"{_number(self.bounds.good)} -> {_number(self.value)} "
            f"(the bad run {_number(self.bounds.bad)}{self._threshold()})",
            *(f"  {line}" for line in self.told),
            "the good run with nothing else changed:",
            f"  {train_command(self.directives, allowed=self.allowed)}",
        ]
        if self.cure:
            cure = train_command(self.cure, allowed=self.allowed)
            lines += ["the bad run without it:", f"  {cure}"]
        return "\n".join(lines)

    def _threshold(self) -> str:
        known = self.bounds.threshold
        return "" if known is None else f", the threshold {_number(known)}"

    def __rich__(self) -> RenderableType:
        return Group(*map(Text, self.text().splitlines()))


def _number(value: float) -> str:
    return "diverged" if math.isnan(value) else f"{value:.4f}"
