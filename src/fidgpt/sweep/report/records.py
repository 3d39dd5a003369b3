"""Records of runs as columns."""

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeGuard

from fidgpt.graph import ConfigError, load, suggest
from fidgpt.graph.outlines import rows
from fidgpt.sweep.objective import Objective, strangers
from fidgpt.sweep.results import TABLE, Result, num_damaged, read_table
from fidgpt.train.trackers.trackers import Row, read_rows

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


_SEED = re.compile(r"(?i)\bseed(_\d+)?$")
_ABLATION = re.compile(r"ablate(_\d+)?")
_FAR = 5.0  # the ratio of two numbers alone from which one thinks of them as of powers


@dataclass(frozen=True)
class Column:
    """One axis.

    Attributes:
      label: its name.
      texts: its values as they were said, in order.
      numbers: the same as numbers; None where some are none.
      is_log: whether the numbers are spread evenly by their ratios, rather than their differences.
      is_repeat: whether it is there to repeat a run, so that its values are compared with nobody.
    """

    label: str
    texts: tuple[str, ...]
    numbers: tuple[float, ...] | None
    is_log: bool = False
    is_repeat: bool = False

    @property
    def is_ablation(self) -> bool:
        """Whether it leaves things out, one at a time."""
        return _ABLATION.fullmatch(self.label) is not None and "all" in self.texts


def columns_of(records: Sequence[Record], *, repeats: Sequence[str] = ()) -> list[Column]:
    """The axes on which points differ.

    Args:
      records: the points.
      repeats: the axes that only repeat a run; those named `seed` unless said.

    Raises:
      ConfigError: there is no axis of that name.
    """
    values: dict[str, dict[str, None]] = {}
    for record in records:
        for label, text in record.values.items():
            values.setdefault(label, {})[text] = None
    for name in repeats:
        if name not in values:
            raise ConfigError(f"no axis is called {name}. {suggest(name, values)}")
    return [
        _column(label, list(texts), label in repeats or (not repeats and bool(_SEED.search(label))))
        for label, texts in values.items()
        if len(texts) > 1
    ]


def _column(label: str, texts: list[str], is_repeat: bool) -> Column:
    known = [_number(text) for text in texts]
    numbers = [number for number in known if number is not None]
    if len(numbers) < len(texts):
        return Column(label, tuple(texts), None, is_repeat=is_repeat)
    pairs = sorted(zip(numbers, texts, strict=True))
    ordered = tuple(number for number, _ in pairs)
    log = not is_repeat and is_log_spaced(ordered)
    return Column(label, tuple(text for _, text in pairs), ordered, log, is_repeat)


def is_log_spaced(numbers: Sequence[float]) -> bool:
    """Whether sorted numbers are spread more evenly by their ratios than by their differences."""
    distinct = list(dict.fromkeys(numbers))
    if len(distinct) < 2 or distinct[0] <= 0:
        return False
    if len(distinct) == 2:
        return distinct[1] / distinct[0] >= _FAR
    return _unevenness([math.log(one) for one in distinct]) < _unevenness(distinct) - 1e-9


def _unevenness(numbers: Sequence[float]) -> float:
    """How much the gaps between sorted numbers differ, in units of a mean gap."""
    gaps = [after - before for before, after in itertools.pairwise(numbers)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


Said = dict[str, str]  # by path, in the order in which one reads a graph


def differing(records: Sequence[Record], *, allowed: Sequence[str] = ()) -> list[Said | None]:
    """What each config says where not all of them say the same, defaults among it.

    What is heard from another place is left out: it follows from what is said there.

    Args:
      records: the points; of one whose run has written no config that can be read, None is told.
      allowed: packages of the user's own that configs may name.
    """
    said = [_said(record, tuple(allowed)) for record in records]
    known = [one for one in said if one is not None]
    counts = Counter(item for one in known for item in one.items())
    common = {item for item, count in counts.items() if count == len(known)}
    return [
        None
        if one is None
        else {key: text for key, text in one.items() if (key, text) not in common}
        for one in said
    ]


def _said(record: Record, allowed: tuple[str, ...]) -> Said | None:
    path = record.directory / "config.json"
    try:
        cfg = load(path.read_text(encoding="utf-8"), source=str(path), allowed=allowed)
        return {
            row.path: row.text
            for row in rows(cfg, defaults=True)
            if row.path and row.text and row.kind != "inherited"
        }
    except (ConfigError, OSError):
        return None
