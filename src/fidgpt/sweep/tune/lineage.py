"""The lineage of a population in a file: which run was cloned from which, and with which values."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from fidgpt.sweep.runners.tail import Tail
from fidgpt.sweep.tune.descent import Descent

FILE = "lineage.jsonl"


class Lineage:
    """All runs of a population, as they were begun.

    Args:
      directory: of the sweep.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._known = {one.fingerprint: one for one in map(Descent.of_row, Tail(self._path).rows())}

    def __iter__(self) -> Iterator[Descent]:
        return iter(self._known.values())

    def add(self, descent: Descent) -> bool:
        """Takes down a run; False where it is known."""
        if descent.fingerprint in self._known:
            return False
        self._known[descent.fingerprint] = descent
        with self._path.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"run": descent.short, **descent.row()}, ensure_ascii=False) + "\n"
            )
        return True

    def ancestors(self, fingerprint: str) -> list[Descent]:
        """A run and all that it descends from, the first one first."""
        line: list[Descent] = []
        at: str | None = fingerprint
        while at is not None:
            line.insert(0, self._known[at])
            at = line[0].parent
        return line


def schedule(line: Sequence[Descent], *, run_dir: str, flags: Sequence[str] = ()) -> list[str]:
    """The commands that make the last run of a line anew: from its first step, through all changes.

    Args:
      line: a run and what it descends from, the first one first.
      run_dir: where it is made.
      flags: what every command is told.
    """
    commands: list[str] = []
    for number, one in enumerate(line):
        before = line[number - 1].directives if number else ()
        changes = [f"--config={said}" for said in one.directives if said not in before]
        words = ["python", "train.py", *flags, *changes]
        words += [f"--{'resume' if number else 'run_dir'}={run_dir}", "--allow_noop"]
        if number + 1 < len(line):
            words.append(f"--until_step={line[number + 1].step}")
        commands.append(shlex.join(words))
    return commands
