"""What points are compared by: one metric, at the end of a run and at its best."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.results import objective
from fidgpt.sweep.results.objective import USUAL


class Measured(NamedTuple):
    """A number, and the step that it was measured at."""

    value: float
    step: int


class Objective(objective.Objective):
    """A metric, which way is better, and what runs came to."""

    def series(self, record: Record) -> list[Measured]:
        """All that a run measured of it, where it is finite."""
        return series(record, self.name)

    def last(self, record: Record) -> Measured | None:
        """What was measured last, of any run."""
        measured = self.series(record)
        if measured:
            return measured[-1]
        value = record.row["metrics"].get(self.name)
        return Measured(value, record.row["step"]) if _is_number(value) else None

    def final(self, record: Record) -> float | None:
        """What a run came to; None unless it is finished."""
        last = self.last(record) if record.is_finished else None
        return None if last is None else last.value

    def best(self, record: Record) -> Measured | None:
        """The best of a run, which may lie before its end."""
        measured = self.series(record)
        if not measured:
            return self.last(record)
        return min(measured, key=lambda one: self.sorted_by(one.value))


def series(record: Record, metric: str) -> list[Measured]:
    """All that a run measured of a metric, where it is finite."""
    return [
        Measured(float(row[metric]), row["step"])
        for row in record.rows
        if _is_number(row.get(metric))
    ]


def choose_objective(
    records: Sequence[Record], directory: Path, *, said: str | None = None
) -> Objective:
    """The metric that a report is about.

    Args:
      records: the points.
      directory: of the sweep.
      said: what to compare by; unless said, what the sweep was told to compare by, or else the
        held-out loss where it is measured.

    Raises:
      ConfigError: no point is finished, or none that is has measured it.
    """
    finished = [record for record in records if record.is_finished]
    known = _metrics(finished)
    by = objective.kept(directory) if said is None else objective.objective_of(said)
    name = None if by is None else by.name
    if name is not None and name not in (anywhere := _metrics(records)):
        raise ConfigError(f"no point of {directory} has measured {name}. {suggest(name, anywhere)}")
    if not finished:
        raise ConfigError(f"no point of {directory} is finished yet: {_states(records)}")
    usual = [one for one in USUAL if one in known]
    if name is not None and name not in known:
        raise ConfigError(f"no finished point of {directory} has measured {name}.")
    if name is None and not usual:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"say what to compare by: --objective=NAME, of these: {there}.")
    return Objective(usual[0]) if by is None else Objective(by.name, by.is_larger_better)


def _metrics(records: Sequence[Record]) -> list[str]:
    """All that was measured as a number, in the order of its first appearance."""
    found: dict[str, None] = {}
    for record in records:
        for row in (*record.rows, record.row["metrics"]):
            found |= {key: None for key, value in row.items() if _is_number(value)}
    found.pop("step", None)
    return list(found)


def _states(records: Sequence[Record]) -> str:
    """How many points are how far; of those that failed, why the first one did."""
    counts = Counter(record.status for record in records)
    text = ", ".join(f"{count} {status}" for status, count in counts.items()) + "."
    words = next((one for one in records if one.row["last_words"]), None)
    return f"{text} {words.name} said: {words.row['last_words']}" if words else text


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)
