"""The rows of runs, each under the shortest name that tells it from the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fidgpt.train import RunError
from fidgpt.train.run_directory import print_stderr
from fidgpt.train.trackers.trackers import Row, read_rows

FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Recorded:
    """A run as it was recorded.

    Attributes:
      name: what a person knows it by, beside the others.
      rows: its steps in order, never none.
    """

    name: str
    rows: Sequence[Row]

    @property
    def metrics(self) -> list[str]:
        """What was measured as a number at any step, in the order of its first appearance."""
        found = {
            key: None
            for row in self.rows
            for key, value in row.items()
            if isinstance(value, int | float) and key != "step"
        }
        return list(found)


def read_runs(paths: Sequence[Path]) -> list[Recorded]:
    """Reads the metrics of run directories; one without a step is left out, with a warning.

    Raises:
      RunError: there is no run, one cannot be read, or none has done a step.
    """
    whole = [path.resolve() for path in paths]
    twice = {str(path) for path, one in zip(paths, whole, strict=True) if whole.count(one) > 1}
    if twice:
        raise RunError(f"{', '.join(sorted(twice))}: name each run once.")
    names = _names(whole)
    rows = {path: _rows(path) for path in paths}
    idle = [path for path, found in rows.items() if not found]
    lacking = [
        f"{path} has nothing to draw: {path / FILE} has no row of a step yet." for path in idle
    ]
    if len(lacking) == len(rows):
        raise RunError("\n".join(lacking))
    for line in lacking:
        print_stderr(f"warning: {line}")
    return [Recorded(n, rows[p]) for n, p in zip(names, paths, strict=True) if rows[p]]


def _rows(path: Path) -> list[Row]:
    file = path / FILE
    try:
        return read_rows(file)
    except OSError as error:
        inside = sorted(str(one.parent) for one in path.glob(f"*/{FILE}"))
        hint = f" Runs are inside: {', '.join(inside[:5])}." if inside else ""
        reason = error.strerror if path.exists() else "no such directory"
        raise RunError(f"{path} holds no run: {FILE} cannot be read ({reason}).{hint}") from None


def _names(paths: Sequence[Path]) -> list[str]:
    """The ends of paths, as long as it takes to tell them apart."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len({*names}) == len(names):
            return names
    return [str(path) for path in paths]
