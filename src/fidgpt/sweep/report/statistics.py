"""Statistics of a sweep: repeated runs, ranking, noise, effects and importance."""

import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeGuard

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.objective import USUAL, Objective, objective_of, read_objective
from fidgpt.sweep.results import TABLE, Result, num_damaged, read_table, recorded_sweeps
from fidgpt.train.trackers.trackers import Row, read_rows

METHOD = (
    "One-way analysis of variance over the finished points, one axis at a time: the share of the "
    "variance of the final value that the means at the axis's values explain, adjusted for their "
    "number (epsilon squared, which is the adjusted R²). Shares need not add up to 100 %: the "
    "joint effects of axes, and noise, belong to none of them."
)
_SEEDS = "run them with other seeds, by --repeat=seed:3."
_CLONES = "run the commands of the best with another seed."
_BEYOND = "That is more than repeated runs explain (t-test of the two, 95 %)."
_WITHIN = "Repeated runs differ as much (t-test of the two, 95 %): consider them equal."
_ALL = "all"
_SEED = re.compile(r"(?i)\bseed(_\d+)?$")
_ABLATION = re.compile(r"ablate(_\d+)?")
_FAR = 5.0  # ratio of two numbers from which an axis of these two is logarithmic
_MOST_BINS = 8
_MOST_LEADERS = 12  # an axis with more values is a search
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


class Measured(NamedTuple):
    """A number, and the step at which it was measured."""

    value: float
    step: int


@dataclass(frozen=True)
class Record:
    """A point and its run.

    Attributes:
      row: the point's row in the table of the sweep.
      rows: what its run measured, in the order of steps; empty before it starts.
      directory: the run directory.
    """

    row: Result
    rows: Sequence[Row]
    directory: Path

    @property
    def name(self) -> str:
        return self.row["name"]

    @property
    def values(self) -> Mapping[str, str]:
        return self.row["values"]

    def series(self, metric: str) -> list[Measured]:
        """Return all finite measurements of a metric."""
        return [
            Measured(float(row[metric]), row["step"])
            for row in self.rows
            if is_number(row.get(metric))
        ]

    def last(self, metric: str) -> Measured | None:
        """Return the last measurement of a metric, however far the run got."""
        if series := self.series(metric):
            return series[-1]
        value = self.row["metrics"].get(metric)
        return Measured(value, self.row["step"]) if is_number(value) else None

    def final(self, metric: str) -> float | None:
        """Return the last value of a metric; None unless the run is finished."""
        last = self.last(metric) if self.row["status"] == "finished" else None
        return None if last is None else last.value

    def best(self, objective: Objective) -> Measured | None:
        """Return the best measurement of the run, which may precede its end."""
        series = self.series(objective.name)
        best = min(series, key=lambda one: objective.sorted_by(one.value), default=None)
        return best or self.last(objective.name)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a measurement is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value)


@dataclass(frozen=True)
class Column:
    """An axis on which points differ.

    Attributes:
      label: its name.
      texts: its values as written, in order.
      numbers: its values as numbers; None unless all are.
      is_log: whether the numbers are spaced evenly by their ratios.
      is_repeat: whether it only repeats runs, as an axis of seeds does.
    """

    label: str
    texts: tuple[str, ...]
    numbers: tuple[float, ...] | None
    is_log: bool = False
    is_repeat: bool = False


def columns_of(records: Sequence[Record], *, repeats: Sequence[str] = ()) -> list[Column]:
    """Return the axes on which points differ.

    Args:
      records: the points.
      repeats: the axes that only repeat runs; defaults to those named `seed`.

    Raises:
      ConfigError: there is no axis of that name.
    """
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for label, text in record.values.items():
            found.setdefault(label, {})[text] = None
    for name in repeats:
        if name not in found:
            raise ConfigError(f"no axis is called {name}. {suggest(name, found)}")
    columns = []
    for label, texts in found.items():
        if len(texts) > 1:
            is_repeat = label in repeats if repeats else bool(_SEED.search(label))
            columns.append(_column(label, list(texts), is_repeat))
    return columns


def _column(label: str, texts: list[str], is_repeat: bool) -> Column:
    try:
        pairs = sorted((float(text), text) for text in texts)
    except ValueError:
        return Column(label, tuple(texts), None, is_repeat=is_repeat)
    numbers, ordered = zip(*pairs, strict=True)
    if not all(map(math.isfinite, numbers)):
        return Column(label, tuple(texts), None, is_repeat=is_repeat)
    return Column(label, ordered, numbers, not is_repeat and is_log_spaced(numbers), is_repeat)


def is_log_spaced(numbers: Sequence[float]) -> bool:
    """Return whether sorted numbers are spaced more evenly by ratios than by differences."""
    distinct = list(dict.fromkeys(numbers))
    if len(distinct) < 2 or distinct[0] <= 0:
        return False
    if len(distinct) == 2:
        return distinct[1] / distinct[0] >= _FAR

    def unevenness(numbers: Sequence[float]) -> float:
        gaps = [after - before for before, after in itertools.pairwise(numbers)]
        return statistics.pstdev(gaps) / statistics.fmean(gaps)

    return unevenness([math.log(one) for one in distinct]) < unevenness(distinct) - 1e-9


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation; None for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Group:
    """Points that differ only in what repeats them.

    Attributes:
      values: what they have in common, by axis.
      members: their indices among all points.
      by_repeat: the final values of the finished ones, by what repeats them.
    """

    values: Mapping[str, str]
    members: tuple[int, ...]
    by_repeat: Mapping[tuple[str, ...], float]

    @property
    def finals(self) -> list[float]:
        return list(self.by_repeat.values())

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.finals) if self.finals else None

    @property
    def spread(self) -> float | None:
        return deviation(self.finals)


def is_beyond_noise(first: Group, second: Group) -> bool | None:
    """Return whether two groups differ by more than repeated runs do; None if unknown.

    A t-test at 95 %: paired if they ran with the same seeds, as a seed shifts both alike; else of
    two samples with pooled variance.
    """
    if first.by_repeat.keys() == second.by_repeat.keys() and len(first.finals) > 1:
        gaps = [second.by_repeat[key] - value for key, value in first.by_repeat.items()]
        degrees, gap = len(gaps) - 1, statistics.fmean(gaps)
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
    else:
        degrees = len(first.finals) + len(second.finals) - 2
        if degrees < 1 or first.mean is None or second.mean is None:
            return None
        gap = first.mean - second.mean
        squares = _squares(first.finals) + _squares(second.finals)
        share = 1 / len(first.finals) + 1 / len(second.finals)
        error = math.sqrt(squares / degrees * share)
    return abs(gap) > _QUANTILES[min(degrees, len(_QUANTILES)) - 1] * error


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    return statistics.pvariance(values) * len(values)


@dataclass(frozen=True)
class Effect:
    """The effect of leaving one thing out.

    Attributes:
      label: what was left out: `without use_moe`.
      rest: the values of the other axes but those that repeat; "" if there are none.
      mean: the objective without it, over the repeated runs.
      differences: the objective without it minus that with everything, for each pair of runs that
        differ in nothing else, such as the seed.
    """

    label: str
    rest: str
    mean: float
    differences: tuple[float, ...]

    @property
    def difference(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def spread(self) -> float | None:
        return deviation(self.differences)


class Leader(NamedTuple):
    """The best group at one value of an axis, and the next best; None if no other is finished."""

    text: str
    group: Group
    second: Group | None


@dataclass(frozen=True)
class Report:
    """The results of a sweep.

    Attributes:
      directory: of the sweep.
      records: its points, in the order of its table.
      columns: the axes on which they differ.
      objective: what they are compared by.
      is_population: whether runs were cloned from one another and changed on their way.
    """

    directory: Path
    records: Sequence[Record]
    columns: Sequence[Column]
    objective: Objective
    is_population: bool = False

    @cached_property
    def finals(self) -> list[float | None]:
        """The final value of each point."""
        return [record.final(self.objective.name) for record in self.records]

    @cached_property
    def repeats(self) -> list[str]:
        """Names of the axes that only repeat runs."""
        return [column.label for column in self.columns if column.is_repeat]

    @cached_property
    def groups(self) -> list[Group]:
        """The points by what they have in common, in the order of their first ones."""
        members: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for at, record in enumerate(self.records):
            key = tuple(item for item in record.values.items() if item[0] not in self.repeats)
            members.setdefault(key, []).append(at)
        return [Group(dict(key), tuple(at), self._by_repeat(at)) for key, at in members.items()]

    def _by_repeat(self, members: Sequence[int]) -> dict[tuple[str, ...], float]:
        return {
            tuple(t for label, t in self.records[at].values.items() if label in self.repeats): final
            for at in members
            if (final := self.finals[at]) is not None
        }

    def group(self, at: int) -> Group:
        """Return the group of a point."""
        return next(group for group in self.groups if at in group.members)

    @cached_property
    def ranking(self) -> list[Group]:
        """The groups with a finished point, the best mean first."""
        known = [group for group in self.groups if group.finals]
        return sorted(known, key=lambda one: self.objective.sorted_by(one.mean or 0.0))

    @cached_property
    def order(self) -> list[int]:
        """The indices of the points, the best group first; then those that are not finished."""
        ranks = {at: place for place, group in enumerate(self.ranking) for at in group.members}
        every = range(len(self.records))
        return sorted(
            every, key=lambda at: (self.finals[at] is None, ranks.get(at, len(every)), at)
        )

    @property
    def best(self) -> Record:
        """The first finished point of the best group, which need not have the luckiest seed."""
        at = next(at for at in self.ranking[0].members if self.finals[at] is not None)
        return self.records[at]

    def name_of(self, group: Group) -> str:
        """Return the name of a group's first point without what repeats it."""
        first = self.records[group.members[0]]
        dropped = {f"{label}={first.values.get(label)}" for label in self.repeats}
        words = [word for word in first.name.split(" ") if word not in dropped]
        return " ".join(words) or first.name

    @property
    def verdict(self) -> list[str]:
        """Sentences: which group won, by how much, and whether that may be noise."""
        first, *others = self.ranking
        count = f", the mean of {len(first.finals)} runs" if len(first.finals) > 1 else ""
        value = f"{self.objective.name} {number(first.mean)}{count}"
        lines = [f"{self.name_of(first)} won, with {value}."]
        if not others:
            return [*lines, "No other point is finished, so there is nothing to compare it with."]
        second = others[0]
        gap = f"{abs((second.mean or 0.0) - (first.mean or 0.0)):.3g}"
        lines.append(f"It is {gap} ahead of {self.name_of(second)} ({number(second.mean)}).")
        is_beyond = is_beyond_noise(first, second)
        if is_beyond is None:
            remedy = _CLONES if self.is_population else _SEEDS
            return [*lines, f"Each of them ran once, so that may be noise: {remedy}"]
        lines.append(_BEYOND if is_beyond else _WITHIN)
        once = [self.name_of(one) for one in (first, second) if len(one.finals) == 1]
        return [*lines[:-1], f"{lines[-1]} But {once[0]} ran only once."] if once else lines

    @cached_property
    def leaders(self) -> dict[str, list[Leader]]:
        """The best group at each value of an axis, where there are several axes."""
        choices = [column for column in self.columns if not column.is_repeat]
        found: dict[str, list[Leader]] = {}
        for column in choices if len(choices) > 1 else ():
            groups = [(text, self._at(column.label, text)) for text in column.texts]
            leaders = [Leader(text, *[*two, None][:2]) for text, two in groups if two]
            num_compared = sum(one.second is not None for one in leaders)
            if 1 < len(leaders) <= _MOST_LEADERS and 2 * num_compared > len(leaders):
                found[column.label] = leaders
        return found

    def _at(self, label: str, text: str) -> list[Group]:
        return [group for group in self.ranking if group.values.get(label) == text]

    @cached_property
    def effects(self) -> list[Effect]:
        """The effects of all ablations, in the order in which things were left out."""
        ablations = [one for one in self.columns if _ABLATION.fullmatch(one.label)]
        return [
            effect
            for column in ablations
            if _ALL in column.texts
            for text in column.texts
            if text != _ALL
            for effect in self._effects(column.label, text)
        ]

    def _effects(self, label: str, text: str) -> list[Effect]:
        finals = {
            frozenset(record.values.items()): final
            for record, final in zip(self.records, self.finals, strict=True)
        }
        pairs: dict[str, list[tuple[float, float]]] = {}
        for record, final in zip(self.records, self.finals, strict=True):
            reference = finals.get(frozenset({**record.values, label: _ALL}.items()))
            if record.values.get(label) == text and final is not None and reference is not None:
                skipped = (*self.repeats, label)
                others = [f"{k}={v}" for k, v in record.values.items() if k not in skipped]
                pairs.setdefault(" ".join(others), []).append((final, reference))
        return [
            Effect(
                text,
                rest,
                statistics.fmean(final for final, _ in found),
                tuple(final - reference for final, reference in found),
            )
            for rest, found in pairs.items()
        ]

    @cached_property
    def importances(self) -> list[tuple[Column, float | None]]:
        """The axes with the share of the variance that they explain, the largest first."""
        shares = [(column, self._importance(column)) for column in self.columns]
        return sorted(shares, key=lambda one: -1.0 if one[1] is None else one[1], reverse=True)

    def _importance(self, column: Column) -> float | None:
        """Return epsilon squared of an axis (Kelley 1935), from 0 to 1; None for too few points.

        It is None too if some points have no value on the axis, as those of an earlier sweep
        without it. Numbers that hardly any two points share, as in a search, are binned.
        """
        found: list[tuple[int, float]] = []
        for record, final in zip(self.records, self.finals, strict=True):
            if final is not None and column.label not in record.values:
                return None
            if final is not None:
                found.append((column.texts.index(record.values[column.label]), final))
        if 2 * len({level for level, _ in found}) > len(found) and column.numbers is not None:
            count = max(2, min(_MOST_BINS, math.isqrt(len(found))))
            found = [(i * count // len(found), one) for i, (_, one) in enumerate(sorted(found))]
        by_level: dict[int, list[float]] = {}
        for level, value in found:
            by_level.setdefault(level, []).append(value)
        degrees = len(found) - len(by_level)
        if len(by_level) < 2 or degrees < 1:
            return None
        total = _squares([value for _, value in found])
        within = sum(map(_squares, by_level.values()))
        return max(0.0, 1 - (within / degrees) / (total / (len(found) - 1))) if total else 0.0


def number(value: float | None) -> str:
    """Format a number with five digits; a dash for None."""
    return "-" if value is None else f"{value:#.5g}".rstrip(".")


def read_report(
    directory: str | Path, *, objective: str | None = None, repeats: Sequence[str] = ()
) -> Report:
    """Read the results of a sweep so far, from its directory alone.

    Args:
      directory: of the sweep.
      objective: the metric to compare by, `max:NAME` if larger is better; defaults to that of the
        sweep, or else the held-out loss.
      repeats: the axes that only repeat runs; defaults to those named `seed`.

    Raises:
      ConfigError: there is no sweep, no point of it is finished, or none measured the objective.
    """
    path = Path(directory)
    records = _read_records(path)
    chosen = _choose_objective(records, path, objective)
    columns = columns_of(records, repeats=repeats)
    is_population = (path / "lineage.jsonl").exists()
    if is_population:  # which member a run belongs to does not matter
        columns = [column for column in columns if column.label != "member"]
    return Report(path, records, columns, chosen, is_population)


def _read_records(directory: Path) -> list[Record]:
    table = directory / TABLE
    if not table.is_file():
        if (directory.parent / TABLE).is_file():
            hint = f"It is a run of the sweep {directory.parent}."
        else:
            folder = directory if directory.is_dir() else directory.parent
            sweeps = [path.parent.name for path in folder.glob(f"*/{TABLE}")]
            hint = suggest(directory.name, sweeps)
        raise ConfigError(f"{directory} holds no sweep: there is no {TABLE}. {hint}")
    rows = read_table(directory)
    if not rows:
        raise ConfigError(f"{table} holds no valid row. The command of the sweep rewrites it.")
    records = []
    for row in rows:
        metrics = directory / row["directory"] / "metrics.jsonl"
        measured = read_rows(metrics) if metrics.exists() else []
        records.append(Record(row, measured, metrics.parent))
    return records


def _choose_objective(records: Sequence[Record], directory: Path, text: str | None) -> Objective:
    chosen = read_objective(directory) if text is None else objective_of(text)
    finished = [record for record in records if record.row["status"] == "finished"]
    if not finished:
        counts = Counter(record.row["status"] for record in records)
        states = ", ".join(f"{count} {status}" for status, count in counts.items())
        failed = next((one for one in records if one.row["last_words"]), None)
        why = f" {failed.name}: {failed.row['last_words']}" if failed else ""
        raise ConfigError(f"no point of {directory} is finished yet: {states}.{why}")
    known = {
        key: None
        for record in finished
        for row in (*record.rows, record.row["metrics"])
        for key, value in row.items()
        if is_number(value) and key != "step"
    }
    name = chosen.name if chosen else next((one for one in USUAL if one in known), None)
    if name is None:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"name what to compare by: --objective=NAME, of these: {there}.")
    if name not in known:
        raise ConfigError(
            f"no finished point of {directory} has measured {name}. {suggest(name, known)}"
        )
    return chosen or Objective(name)


def warnings_of(directory: Path) -> list[str]:
    """Return what to know about a sweep before trusting its report."""
    lines = []
    if count := num_damaged(directory):
        rows = "1 invalid row is" if count == 1 else f"{count} invalid rows are"
        lines.append(f"{directory / TABLE}: {rows} left out; the command of the sweep mends it.")
    if several := recorded_sweeps(directory):
        listed = "; ".join(several)
        lines.append(f"{directory} holds several sweeps, which are compared here: {listed}")
    return lines
