"""A sweep as its files tell it: the row of each point, with what its run measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.results.files import TABLE, Result, num_damaged, read_table
from fidgpt.sweep.results.neighbours import strangers
from fidgpt.sweep.results.objective import Objective
from fidgpt.train.tracking.trackers import Row, read_rows

_MOST_NAMED = 5


class Measured(NamedTuple):
    """A number, and the step that it was measured at."""

    value: float
    step: int


@dataclass(frozen=True)
class Record:
    """A point and its run.

    Attributes:
      row: the point's row in the table of the sweep.
      rows: what its run measured, in the order of steps; none where it has not begun.
      directory: where the run lies.
    """

    row: Result
    rows: Sequence[Row]
    directory: Path

    @property
    def name(self) -> str:
        return self.row["name"]

    @property
    def status(self) -> str:
        return self.row["status"]

    @property
    def values(self) -> Mapping[str, str]:
        return self.row["values"]

    @property
    def is_finished(self) -> bool:
        return self.status == "finished"

    def series(self, metric: str) -> list[Measured]:
        """All that the run measured of a metric, where it is finite."""
        return [
            Measured(float(row[metric]), row["step"])
            for row in self.rows
            if is_number(row.get(metric))
        ]

    def last(self, metric: str) -> Measured | None:
        """What was measured last of a metric, however far the run came."""
        if series := self.series(metric):
            return series[-1]
        value = self.row["metrics"].get(metric)
        return Measured(value, self.row["step"]) if is_number(value) else None

    def final(self, metric: str) -> float | None:
        """What the run came to; None unless it is finished."""
        last = self.last(metric) if self.is_finished else None
        return None if last is None else last.value

    def best(self, objective: Objective) -> Measured | None:
        """The best of the run, which may lie before its end."""
        series = self.series(objective.name)
        if not series:
            return self.last(objective.name)
        return min(series, key=lambda one: objective.sorted_by(one.value))


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value that was measured is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


def read_records(directory: Path) -> list[Record]:
    """All points of a sweep, from its directory alone, also while it runs.

    Raises:
      ConfigError: there is no such directory, or no sweep in it.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory}: there is no such directory. {_elsewhere(directory)}")
    if not (directory / TABLE).is_file():
        raise ConfigError(f"{directory} holds no sweep: there is no {TABLE}. {_inside(directory)}")
    table = read_table(directory)
    if not table and num_damaged(directory):
        raise ConfigError(
            f"{directory / TABLE} is damaged: no line of it is a row. The command of the sweep "
            "writes it anew."
        )
    if not table:
        raise ConfigError(f"{directory / TABLE} has no point in it.")
    return [_record(row, directory / row["directory"]) for row in table]


def oddities(directory: Path) -> list[str]:
    """What one should know of a sweep before one believes its report, a line each."""
    lines = []
    if count := num_damaged(directory):
        lost = "1 line is no row, and is" if count == 1 else f"{count} lines are no rows, and are"
        lines.append(f"{directory / TABLE}: {lost} left out; the command of the sweep mends it.")
    if several := strangers(directory):
        told = "; ".join(several)
        lines.append(f"{directory} holds points of several sweeps, which are compared here: {told}")
    return lines


def _record(row: Result, directory: Path) -> Record:
    path = directory / "metrics.jsonl"
    return Record(row, read_rows(path) if path.exists() else [], directory)


def _inside(directory: Path) -> str:
    """Where a sweep may be that somebody looks for here."""
    if (directory.parent / TABLE).is_file():
        return f"It is a run of the sweep {directory.parent}."
    return _named(_sweeps(directory), "Sweeps are inside")


def _elsewhere(directory: Path) -> str:
    sweeps = _sweeps(directory.parent)
    near = suggest(directory.name, sweeps) if sweeps else ""
    return near or _named(sweeps, f"Sweeps in {directory.parent} are")


def _named(sweeps: Sequence[str], words: str) -> str:
    return f"{words}: {', '.join(sweeps[:_MOST_NAMED])}." if sweeps else "Name that of a sweep."


def _sweeps(directory: Path) -> list[str]:
    return sorted(path.parent.name for path in directory.glob(f"*/{TABLE}"))
