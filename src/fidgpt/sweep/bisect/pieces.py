"""The difference between two configs in pieces, of which some can be applied without the others."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fiddle as fdl

from fidgpt.cli.running.constraints import CONSTRAINTS
from fidgpt.graph import ConfigError, apply_patch, checked, diff, diff_text
from fidgpt.graph.difference.patch import Patch, patch_of
from fidgpt.sweep.bisect.minimal import together

Pieces = tuple[str, ...]  # the places of the good graph in which something is changed


class Difference:
    """What makes a bad graph of a good one, in pieces by their places.

    Attributes:
      good: the graph to begin with.
      bad: that in which all pieces are changed.
      pieces: all of them.

    Raises:
      ConfigError: the graphs are the same, or a value has no form in a file.
    """

    def __init__(self, good: fdl.Config, bad: fdl.Config, *, allowed: tuple[str, ...] = ()) -> None:
        self.good = good
        self.bad = bad
        self._allowed = allowed
        self._patch = patch_of(good, bad)
        self.pieces: Pieces = tuple(self._patch.changes)
        if not self.pieces:
            raise ConfigError(
                "the two runs have one and the same config: what differs between them is the "
                "code, the data or the machine; compare their environment.json."
            )

    def applied(self, pieces: Pieces) -> fdl.Config:
        """The good graph in which some pieces are changed.

        Raises:
          ConfigError: they cannot be changed without others.
        """
        if len(pieces) == len(self.pieces):
            return self.bad
        return apply_patch(self.good, self.text(pieces), allowed=self._allowed)

    def text(self, pieces: Pieces) -> str:
        """Some pieces as the text of a patch file."""
        changes = {place: self._patch.changes[place] for place in pieces}
        parts = dict(sorted(self._parts(list(changes.values()))))
        return Patch(changes, parts, self._patch.known).text()

    def _parts(self, todo: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The new parts that some changes put somewhere, with those that these hold."""
        seen: set[str] = set()
        while todo:
            value = todo.pop()
            if isinstance(value, list):
                todo += value
            elif isinstance(value, dict):
                path = value.get("part") if [*value] == ["part"] else None
                if isinstance(path, str) and path not in seen:
                    seen.add(path)
                    todo.append(self._patch.parts[path])
                    yield path, self._patch.parts[path]
                todo += value.values()

    def told(self, pieces: Pieces) -> list[str]:
        """Some pieces for a person, a line each."""
        return diff_text(diff(self.good, self.applied(pieces))).splitlines()

    def groups(self) -> list[Pieces]:
        """The pieces, those together that cannot stand alone."""
        return together(self.pieces, self._holds)

    def _holds(self, pieces: Pieces) -> bool:
        ordered = tuple(one for one in self.pieces if one in set(pieces))
        try:
            checked(self.applied(ordered), constraints=CONSTRAINTS)
        except ConfigError:
            return False
        return True

    def write(self, pieces: Pieces, directory: Path) -> Path:
        """Writes some pieces as a patch file, called after what is in it; returns its path."""
        text = self.text(pieces)
        path = directory / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.patch"
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path
