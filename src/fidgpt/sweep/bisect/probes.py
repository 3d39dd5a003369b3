"""Sets of differences as points of a sweep: each is trained once, and its value is known then."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import fiddle as fdl

from fidgpt.cli.catalogue.catalogue import Catalogue
from fidgpt.cli.directives.directives import compose
from fidgpt.graph import ConfigError
from fidgpt.model import StartError
from fidgpt.sweep.bisect.pieces import Difference, Pieces
from fidgpt.sweep.points.dry_runs import DryRuns
from fidgpt.sweep.points.point import Point

# Trains points and reads their values: nan of one that diverged, None where there is none.
Measure = Callable[[Sequence[Point]], Sequence[float | None]]


@dataclass(frozen=True)
class Probe:
    """One set of differences that is tried.

    Attributes:
      pieces: the differences.
      point: how it is trained; None where it cannot be.
      why: what is wrong with it, where something is.
    """

    pieces: Pieces
    point: Point | None
    why: str = ""


class Probes:
    """Makes points of sets of differences, and measures them.

    Args:
      difference: between the two ends.
      begins: the directive that makes the good end.
      ends: directives that every point ends with.
      catalogue: what has a name.
      patches: the directory of the patch files.
      measure: trains points and reads their values.
    """

    def __init__(
        self,
        difference: Difference,
        *,
        begins: str,
        ends: Sequence[str],
        catalogue: Catalogue,
        patches: Path,
        measure: Measure,
    ) -> None:
        self.known: dict[str, float | None] = {}
        self._difference = difference
        self._begins = begins
        self._ends = list(ends)
        self._catalogue = catalogue
        self._patches = patches
        self._measure = measure
        self._dry_runs = DryRuns()
        self._made: dict[Pieces, Probe] = {}

    def probe(self, pieces: Pieces) -> Probe:
        """How a set of differences is tried."""
        if pieces not in self._made:
            self._made[pieces] = self._new(pieces)
        return self._made[pieces]

    def _new(self, pieces: Pieces) -> Probe:
        try:
            identity, cost, _ = self._dry_runs.of(self.graph(pieces))
        except (ConfigError, StartError) as error:
            return Probe(pieces, None, str(error))
        directives = self.directives(pieces)
        count = len(pieces)
        name = f"{count} difference{'' if count == 1 else 's'} ({identity[:6]})"
        values = {"differences": ", ".join(pieces)}
        return Probe(pieces, Point(directives, directives[1:], identity, name, cost, values))

    def graph(self, pieces: Pieces) -> fdl.Config:
        """The config in which some differences are made, and nothing else.

        Raises:
          ConfigError: they cannot be.
        """
        return compose(self._ends, self._catalogue, base=self._difference.applied(pieces))

    def directives(self, pieces: Pieces) -> tuple[str, ...]:
        """What makes the config of some differences; writes the patch file that it names."""
        if not pieces:
            return (self._begins, *self._ends)
        path = self._difference.write(pieces, self._patches)
        return (self._begins, f"patch:{path}", *self._ends)

    def values(self, probes: Sequence[Probe]) -> list[float | None]:
        """What each probe came to; those that are not known yet are trained."""
        points = [one.point for one in probes if one.point is not None]
        todo = {one.fingerprint: one for one in points if one.fingerprint not in self.known}
        if todo:
            values = self._measure(list(todo.values()))
            self.known |= dict(zip(todo, values, strict=True))
        return [one.point and self.known[one.point.fingerprint] for one in probes]
