"""Statistics of a sweep: repeated runs, ranking, noise, effects and importance."""

import contextlib
import functools
import itertools
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fidgpt.compose.directives import DIRECTIVES
from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep import results
from fidgpt.sweep.objective import USUAL, Objective, objective_of, read_objective
from fidgpt.train.trackers.trackers import Row, read_rows

METHOD = (
    "Analysis of variance over the finished points: the share of the variance of the final value "
    "that the values of an axis explain beyond all other axes, or that the pairs of values of two "
    "axes explain beyond both alone (×, from 5 % on), less what as many random values would "
    "explain. The shift of a repeated run, such as that of a seed, is no part of the variance that "
    "the other axes share."
)
_ONCE = (
    "Each of them ran once, so that may be noise: run them with other seeds, by --repeat=seed:3."
)
_BEYOND = "That is more than repeated runs explain (t-test of the two, 95 %)."
_WITHIN = "Repeated runs differ as much (t-test of the two, 95 %): consider them equal."
_ALL = "all"
_CALLS = re.compile(rf"({'|'.join(DIRECTIVES)})(_\d+)?")  # axes that are called by a directive
_MOST_NAMED = 3
_ABLATION = re.compile(r"ablate(_\d+)?")
_FAR = 5.0  # ratio of two numbers from which an axis of these two is logarithmic
_MOST_BINS = 8
_SMALLEST_JOINT = 0.05
_TINY = 1e-18  # squares that are rounding errors
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


class Record:
    """A point and its run.

    Attributes:
      row: the point's row in the table of the sweep.
      directory: the run directory.
      name: of the point.
      values: of the point, by axis.
      last: the last value of the objective, however far the run got; None before there is one.
      final: the same; None unless the run is finished.
      best: the best value, which may precede the end, and its step.
      group: the points that differ from this one only in what repeats them.
    """

    group: "Group"

    def __init__(
        self, row: results.Result, directory: Path, rows: Sequence[Row], objective: Objective
    ) -> None:
        self.row, self.directory, self._rows = row, directory, rows
        self.name: str = row["name"]
        self.values: Mapping[str, str] = row["values"]
        measured = self.series(objective.name)
        self.last = measured[-1][0] if measured else None
        self.final = self.last if row["status"] == "finished" else None
        self.best = min(measured, key=lambda m: objective.sorted_by(m[0]), default=None)

    def series(self, metric: str) -> list[tuple[float, int]]:
        """Return all finite measurements of a metric and their steps.

        A run whose metrics are lost has only its row of the table.
        """
        for rows in (self._rows, [{**self.row["metrics"], "step": self.row["step"]}]):
            if pairs := [(row[metric], row["step"]) for row in rows if _is_number(row.get(metric))]:
                return pairs
        return []


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


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
    texts: Sequence[str]
    numbers: Sequence[float] | None
    is_log: bool
    is_repeat: bool

    @property
    def title(self) -> str:
        """What a reader calls it; an axis of fiddlers or configs is called by its values."""
        if not _CALLS.fullmatch(self.label):
            return self.label
        names = [*dict.fromkeys(text.partition("(")[0] for text in self.texts)]
        return " / ".join(names[:_MOST_NAMED] + ["…"] * (len(names) > _MOST_NAMED))

    def named(self, text: str) -> str:
        """Return a value with the name of the axis, if it has another one than its values."""
        return f"{self.label}={text}" if self.title == self.label else text


def columns_of(records: Sequence[Record], *, repeats: Sequence[str] = ()) -> list[Column]:
    """Return the axes on which points differ.

    Args:
      records: the points.
      repeats: the axes that only repeat runs; defaults to those named `seed`.

    Raises:
      ConfigError: there is no axis of that name.
    """
    labels: dict[str, dict[str, None]] = {}
    for record in records:
        for label, text in record.values.items():
            labels.setdefault(label, {})[text] = None
    for name in repeats:
        if name not in labels:
            raise ConfigError(f"no axis is called {name}. {suggest(name, labels)}")
    columns = []
    for label, texts in labels.items():
        is_repeat = label in repeats if repeats else bool(results.SEED.search(label))
        numbers, ordered = None, tuple(texts)
        with contextlib.suppress(ValueError):
            pairs = sorted((float(text), text) for text in texts)
            if all(math.isfinite(value) for value, _ in pairs):
                numbers, ordered = zip(*pairs, strict=True)
        is_log = numbers is not None and not is_repeat and is_log_spaced(numbers)
        if len(texts) > 1:
            columns.append(Column(label, ordered, numbers, is_log, is_repeat))
    return columns


def is_log_spaced(numbers: Sequence[float]) -> bool:
    """Return whether numbers are spaced more evenly by ratios than by differences."""
    low, middle, high = min(numbers), statistics.median({*numbers}), max(numbers)
    if low <= 0 or len({*numbers}) == 2:
        return 0 < low * _FAR <= high
    return abs(middle - math.sqrt(low * high)) < abs(middle - (low + high) / 2)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


class Group:
    """Points that differ only in what repeats them.

    Args:
      records: the points.
      repeats: the axes that repeat them.

    Attributes:
      records: as given.
      name: of the first point, without what repeats it.
      values: what they have in common, by axis.
      by_repeat: the final values of the finished ones, by what repeats them.
      finals: the same as a list.
      mean: of the final values; None if no point is finished.
      spread: of the final values; None for fewer than two.
      rank: 1 for the best mean; None if no point is finished.
    """

    def __init__(self, records: Sequence[Record], repeats: Sequence[str]) -> None:
        first = records[0]
        self.records = records
        self.values = {key: text for key, text in first.values.items() if key not in repeats}
        self.name = results.name_without(first.row, repeats)
        self.by_repeat = {
            tuple(text for key, text in record.values.items() if key in repeats): record.final
            for record in records
            if record.final is not None
        }
        self.finals = [*self.by_repeat.values()]
        self.mean = statistics.fmean(self.finals) if self.finals else None
        self.spread = _deviation(self.finals)
        self.rank: int | None = None
        for record in records:
            record.group = self


def lead(first: Group, second: Group) -> str:
    """Return how far two groups with final values are apart."""
    return f"{abs(statistics.fmean(second.finals) - statistics.fmean(first.finals)):.3g}"


def is_beyond_noise(first: Group, second: Group) -> bool | None:
    """Return whether two groups differ by more than repeated runs do; None if unknown.

    A t-test at 95 %: paired if they ran with the same seeds, as a seed shifts both alike; else of
    two samples with pooled variance.
    """
    one, other = first.finals, second.finals
    if first.by_repeat.keys() == second.by_repeat.keys() and len(one) > 1:
        gaps = [second.by_repeat[key] - value for key, value in first.by_repeat.items()]
        degrees, gap = len(gaps) - 1, statistics.fmean(gaps)
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
    else:
        degrees, gap = len(one) + len(other) - 2, statistics.fmean(one) - statistics.fmean(other)
        if degrees < 1:
            return None
        variance = (_squares(one) + _squares(other)) / degrees
        error = math.sqrt(variance * (1 / len(one) + 1 / len(other)))
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
    differences: Sequence[float]

    @property
    def difference(self) -> float:
        return statistics.fmean(self.differences)

    @property
    def spread(self) -> float | None:
        return _deviation(self.differences)


def _has_one_more(whole: Record, record: Record) -> bool:
    """Return whether a point is made by the directives of another one and one besides."""
    lost = Counter(whole.row["directives"])
    lost.subtract(record.row["directives"])
    return min(lost.values(), default=0) >= 0 and lost.total() == 1


@dataclass(frozen=True)
class Importance:
    """How much an axis matters, or two of them together.

    Optuna's evaluators are not used: PED-ANOVA gave 53 % to an axis that only repeated runs, and
    fANOVA takes scikit-learn.

    Attributes:
      columns: the axis, or both.
      share: of the variance, from 0 to 1; of two axes, beyond what each of them explains. None for
        too few points.
    """

    columns: tuple[Column, ...]
    share: float | None

    @property
    def label(self) -> str:
        return " × ".join(column.title for column in self.columns)

    @property
    def is_repeat(self) -> bool:
        return self.columns[0].is_repeat


class Report:
    """The results of a sweep.

    Attributes:
      directory: of the sweep.
      records: its points, in the order of its table.
      columns: the axes on which they differ.
      objective: what they are compared by.
      repeats: names of the axes that only repeat runs.
      groups: the points by what they have in common, in the order of their first ones.
      ranking: the groups with a finished point, the best mean first.
      best: the first finished point of the best group, which need not have the luckiest seed.
    """

    def __init__(
        self,
        directory: Path,
        records: Sequence[Record],
        columns: Sequence[Column],
        objective: Objective,
    ) -> None:
        self.directory, self.records, self.columns = directory, records, columns
        self.objective = objective
        self.repeats = [column.label for column in columns if column.is_repeat]
        alike: dict[Any, list[Record]] = {}
        for record in records:
            key = tuple(item for item in record.values.items() if item[0] not in self.repeats)
            alike.setdefault(key, []).append(record)
        self.groups = [Group(members, self.repeats) for members in alike.values()]
        self.ranking = sorted(
            (group for group in self.groups if group.finals),
            key=lambda group: objective.sorted_by(statistics.fmean(group.finals)),
        )
        for rank, group in enumerate(self.ranking, start=1):
            group.rank = rank
        self.best = next(record for record in self.ranking[0].records if record.final is not None)

    @property
    def order(self) -> list[Record]:
        """The points, the best group first; then those that are not finished."""
        return sorted(self.records, key=lambda r: (r.final is None, r.group.rank or math.inf))

    @property
    def verdict(self) -> list[str]:
        """Sentences: which group won, by how much, and whether that may be noise."""
        first, *others = self.ranking
        count = f", the mean of {len(first.finals)} runs" if len(first.finals) > 1 else ""
        lines = [f"{first.name} won, with {self.objective.name} {number(first.mean)}{count}."]
        if not others:
            return [*lines, "No other point is finished, so there is nothing to compare it with."]
        second = others[0]
        ahead = f"{lead(first, second)} ahead of {second.name} ({number(second.mean)})"
        is_beyond = is_beyond_noise(first, second)
        noise = _ONCE if is_beyond is None else _BEYOND if is_beyond else _WITHIN
        if is_beyond is not None and 1 in (len(first.finals), len(second.finals)):
            once = first if len(first.finals) == 1 else second
            noise += f" But {once.name} ran only once."
        return [*lines, f"It is {ahead}.", noise]

    @property
    def effects(self) -> list[Effect]:
        """The effects of all ablations, in the order in which things were left out."""
        known: dict[frozenset[tuple[str, str]], list[Record]] = {}
        for record in self.records:
            known.setdefault(frozenset(record.values.items()), []).append(record)
        effects: list[Effect] = []
        for column in self.columns:
            pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
            skipped = (*self.repeats, column.label)
            for record in self.records if _ABLATION.fullmatch(column.label) else ():
                text = record.values.get(column.label, _ALL)
                alike = known.get(frozenset({**record.values, column.label: _ALL}.items()), [])
                # A directory may hold several ablations, each with its own run with everything.
                whole = next((r.final for r in alike if _has_one_more(r, record)), None)
                if text != _ALL and record.final is not None and whole is not None:
                    rest = [f"{k}={v}" for k, v in record.values.items() if k not in skipped]
                    pairs.setdefault((text, " ".join(rest)), []).append((record.final, whole))
            effects += [
                Effect(*key, statistics.fmean(pair for pair, _ in both), [a - b for a, b in both])
                for key, both in sorted(pairs.items(), key=lambda x: column.texts.index(x[0][0]))
            ]
        return effects

    @property
    def importances(self) -> list[Importance]:
        """How much each axis matters, and pairs of them that do together, the largest first.

        Axes that only repeat runs are the last.
        """
        choices = [column for column in self.columns if not column.is_repeat]
        alone = [Importance((column,), self._importance(column)) for column in self.columns]
        pairs = [
            Importance(pair, self._joint(*pair)) for pair in itertools.combinations(choices, 2)
        ]
        together = [row for row in pairs if row.share is not None and row.share >= _SMALLEST_JOINT]
        shares = {id(row): -1.0 if row.share is None else row.share for row in alone + together}
        return sorted(alone + together, key=lambda row: (row.is_repeat, -shares[id(row)]))

    @functools.cached_property
    def _finished(self) -> list[Record]:
        return [record for record in self.records if record.final is not None]

    def _importance(self, column: Column) -> float | None:
        """Return the share of an axis; None for too few points.

        It is None too if some points have no value on the axis, such as points of an earlier sweep
        without it.
        """
        levels = self._levels(column)
        if levels is None:
            return None
        return self._share(levels, beyond=self._others(column), is_repeat=column.is_repeat)

    def _joint(self, first: Column, second: Column) -> float | None:
        """Return the share of pairs of values beyond both axes; None for too few points."""
        most = len(self._finished) // 2
        for limit in (most, math.isqrt(most)):
            levels, others = self._levels(first, most=limit), self._levels(second, most=limit)
            if levels is None or others is None:
                return None
            pairs = [*zip(levels, others, strict=True)]
            if len({*pairs}) <= most:
                return self._share(pairs, beyond=[levels, others, *self._others(first, second)])
        return None

    def _levels(self, column: Column, *, most: int | None = None) -> list[Any] | None:
        """Return the value of each finished point on an axis, or the bin of its number.

        Args:
          column: the axis.
          most: more values than that are binned, if they are numbers, as in a search, where
            hardly any two points share one; defaults to half of the points.
        """
        if any(column.label not in record.values for record in self._finished):
            return None
        levels = [column.texts.index(record.values[column.label]) for record in self._finished]
        most = len(levels) // 2 if most is None else most
        if len({*levels}) <= most or column.numbers is None:
            return levels
        bins = min(_MOST_BINS, most, math.isqrt(len(levels)), most // len(self.columns))
        places = {level: at for at, level in reversed([*enumerate(sorted(levels))])}
        return [places[level] * max(2, bins) // len(levels) for level in levels]

    def _others(self, *columns: Column) -> list[list[Any]]:
        """Return the levels of all other axes, of all together where points share them."""
        others = [self._levels(column) for column in self.columns if column not in columns]
        factors = [levels for levels in others if levels is not None]
        together = [*zip(*factors, strict=True)]
        return [together] if together and _are_shared(together) else factors

    def _share(
        self, factor: list[Any], *, beyond: Sequence[list[Any]], is_repeat: bool = False
    ) -> float | None:
        """Return the share of the variance that a factor explains beyond others.

        Of an axis that does not repeat runs, it is a share of what these leave of the variance.
        """
        values = np.array([record.final for record in self._finished])
        repeats = [tuple(map(record.values.get, self.repeats)) for record in self._finished]
        total, _ = _residual(values, [] if is_repeat or not _are_shared(repeats) else [repeats])
        before, most = _residual(values, beyond)
        after, freedom = _residual(values, [*beyond, factor])
        if freedom < 1 or freedom == most:
            return None
        explained = before - after - (most - freedom) * after / freedom
        return explained / total if explained > _TINY else 0.0


def _are_shared(levels: list[Any]) -> bool:
    """Return whether there are at least two points for each level, on average."""
    return 2 * len({*levels}) <= len(levels)


def _residual(values: "np.ndarray", factors: Sequence[list[Any]]) -> tuple[float, int]:
    """Return the squares that a sum of factors leaves of values, and its degrees of freedom."""
    columns = [np.ones(len(values))]
    for levels in factors:
        columns += [np.array([item == level for item in levels], float) for level in {*levels}]
    design = np.stack(columns, axis=1)
    solution, _, rank, _ = np.linalg.lstsq(design, values)
    return float(np.sum((values - design @ solution) ** 2)), len(values) - int(rank)


def number(value: float | None) -> str:
    """Format a number with five digits; a dash for None."""
    return "-" if value is None else f"{value:#.5g}".rstrip(".")


def read_report(
    directory: str | Path, *, objective: str | None = None, repeats: Sequence[str] = ()
) -> Report:
    """Read the results of a sweep so far, from its directory alone.

    Args:
      directory: of the sweep.
      objective: the metric to compare by, `max:NAME` if larger is better; defaults to the objective
        of the sweep, or else the held-out loss.
      repeats: the axes that only repeat runs; defaults to those named `seed`.

    Raises:
      ConfigError: there is no sweep, no point of it is finished, or none measured the objective.
    """
    path, runs = Path(directory), []
    for row in results.read_results(path):
        metrics = path / row["directory"] / "metrics.jsonl"
        runs.append((row, metrics.parent, read_rows(metrics) if metrics.exists() else []))
    given = read_objective(path) if objective is None else objective_of(objective)
    finished = [(row, rows) for row, _, rows in runs if row["status"] == "finished"]
    if not finished:
        counts = Counter(row["status"] for row, *_ in runs)
        states = ", ".join(f"{count} {status}" for status, count in counts.items())
        failed = next((row for row, *_ in runs if row["last_words"]), None)
        why = f" {failed['name']}: {failed['last_words']}" if failed else ""
        raise ConfigError(f"no point of {path} is finished yet: {states}.{why}")
    measured = (
        item for row, rows in finished for m in (*rows, row["metrics"]) for item in m.items()
    )
    known = {key: None for key, value in measured if _is_number(value) and key != "step"}
    name = given.name if given else next((metric for metric in USUAL if metric in known), "loss")
    if name not in known:
        raise ConfigError(
            f"no finished point of {path} has measured {name}. {suggest(name, known)}\n"
            "Name what to compare by: --objective=NAME."
        )
    by = given or Objective(name)
    records = [Record(row, run, rows, by) for row, run, rows in runs]
    return Report(path, records, columns_of(records, repeats=repeats), by)
