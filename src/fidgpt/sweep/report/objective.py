"""What points are compared by: one metric, at the end of a run and at its best."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.tables import OBJECTIVES


class Measured(NamedTuple):
    """A number, and the step that it was measured at."""

    value: float
    step: int


@dataclass(frozen=True)
class Objective:
    """A metric, and which way is better.

    Attributes:
      name: of the metric.
      is_larger_better: as of an accuracy; a loss is better when it is smaller.
    """

    name: str
    is_larger_better: bool = False

    def sorted_by(self, value: float) -> float:
        """A number that is smaller for what is better."""
        return -value if self.is_larger_better else value

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
    records: Sequence[Record],
    directory: Path,
    *,
    name: str | None = None,
    is_larger_better: bool = False,
) -> Objective:
    """The metric that a report is about: the held-out loss where it is measured, unless said.

    Raises:
      ConfigError: no point is finished, or none that is has measured it.
    """
    finished = [record for record in records if record.is_finished]
    known = _metrics(finished)
    if name is not None and name not in (anywhere := _metrics(records)):
        raise ConfigError(f"no point of {directory} has measured {name}. {suggest(name, anywhere)}")
    if not finished:
        raise ConfigError(f"no point of {directory} is finished yet: {_states(records)}")
    usual = [one for one in OBJECTIVES if one in known]
    if name is not None and name not in known:
        raise ConfigError(f"no finished point of {directory} has measured {name}.")
    if name is None and not usual:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"say what to compare by: --objective=NAME, of these: {there}.")
    return Objective(name or usual[0], is_larger_better)


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
