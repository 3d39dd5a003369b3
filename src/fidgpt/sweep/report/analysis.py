"""Statistics of a report: leaders, groups, effects and importance."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fidgpt.graph import ConfigError, suggest
from fidgpt.sweep.objective import USUAL, Objective, kept, objective_of
from fidgpt.sweep.report.records import Column, Record, is_number


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
    chosen = kept(directory) if said is None else objective_of(said)
    anywhere = _metrics(records)
    if chosen is not None and chosen.name not in anywhere:
        raise ConfigError(
            f"no point of {directory} has measured {chosen.name}. {suggest(chosen.name, anywhere)}"
        )
    finished = [record for record in records if record.is_finished]
    if not finished:
        raise ConfigError(f"no point of {directory} is finished yet: {_states(records)}")
    known = _metrics(finished)
    if chosen is not None and chosen.name not in known:
        raise ConfigError(f"no finished point of {directory} has measured {chosen.name}.")
    if chosen is not None:
        return chosen
    usual = next((name for name in USUAL if name in known), None)
    if usual is None:
        there = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"say what to compare by: --objective=NAME, of these: {there}.")
    return Objective(usual)


def _metrics(records: Sequence[Record]) -> list[str]:
    """All that was measured as a number, in the order of its first appearance."""
    found: dict[str, None] = {}
    for record in records:
        for row in (*record.rows, record.row["metrics"]):
            found |= {key: None for key, value in row.items() if is_number(value)}
    found.pop("step", None)
    return list(found)


def _states(records: Sequence[Record]) -> str:
    """How many points are how far; of those that failed, why the first one did."""
    counts = Counter(record.status for record in records)
    text = ", ".join(f"{count} {status}" for status, count in counts.items()) + "."
    words = next((one for one in records if one.row["last_words"]), None)
    return f"{text} {words.name} said: {words.row['last_words']}" if words else text


_ALL = "all"
_Key = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Effect:
    """What leaving out one thing changed.

    Attributes:
      label: what was left out: `without use_moe`.
      rest: what the other axes were, but for those that repeat; empty where there are none.
      mean: the objective without it, over the repeated runs.
      differences: the objective without it less that with all, for each pair of runs that differ in
        nothing else; so a seed is compared with itself.
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
        """The sample standard deviation of the differences; None of fewer than two."""
        return statistics.stdev(self.differences) if len(self.differences) > 1 else None


def effects_of(
    records: Sequence[Record], columns: Sequence[Column], objective: Objective
) -> list[Effect]:
    """The effects of all ablations of a sweep, in the order in which things were left out."""
    finals = {
        tuple(sorted(record.values.items())): final
        for record in records
        if (final := record.final(objective.name)) is not None
    }
    repeats = {column.label for column in columns if column.is_repeat}
    return [
        effect
        for column in columns
        if column.is_ablation
        for text in column.texts
        if text != _ALL
        for effect in _effects(finals, column.label, text, repeats)
    ]


def _effects(
    finals: dict[_Key, float], label: str, text: str, repeats: set[str]
) -> Iterator[Effect]:
    pairs: dict[str, list[tuple[float, float]]] = {}
    for key, final in finals.items():
        values = dict(key)
        reference = finals.get(tuple(sorted((values | {label: _ALL}).items())))
        if values.get(label) == text and reference is not None:
            others = {one: value for one, value in key if one not in repeats and one != label}
            rest = " ".join(f"{one}={value}" for one, value in others.items())
            pairs.setdefault(rest, []).append((final, reference))
    for rest, found in pairs.items():
        mean = statistics.fmean(final for final, _ in found)
        yield Effect(text, rest, mean, tuple(final - before for final, before in found))


# Student's t, of which 95 % lie between minus and plus this, for 1, 2, ... degrees of freedom.
_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Points that differ in nothing but what repeats them.

    Attributes:
      values: what they have in common, by axis.
      members: the numbers of its points among all.
      by_repeat: the objective at the end of those that are finished, by what repeats them.
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
        """The sample standard deviation; None of fewer than two."""
        return statistics.stdev(self.finals) if len(self.finals) > 1 else None


def groups_of(
    records: Sequence[Record], columns: Sequence[Column], objective: Objective
) -> list[Group]:
    """The points by what they have in common, in the order of their first ones."""
    repeats = {column.label for column in columns if column.is_repeat}
    members: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for at, record in enumerate(records):
        key = tuple(item for item in record.values.items() if item[0] not in repeats)
        members.setdefault(key, []).append(at)
    return [
        Group(dict(key), tuple(at), _by_repeat([records[i] for i in at], repeats, objective))
        for key, at in members.items()
    ]


def ranked(groups: Sequence[Group], objective: Objective) -> list[Group]:
    """Those of which a point is finished, the best mean first."""
    means = [(group, group.mean) for group in groups]
    known = [(group, objective.sorted_by(mean)) for group, mean in means if mean is not None]
    return [group for group, _ in sorted(known, key=lambda one: one[1])]


def group_name(group: Group, records: Sequence[Record], columns: Sequence[Column]) -> str:
    """The name of its first point without what repeats it."""
    first = records[group.members[0]]
    repeats = [column.label for column in columns if column.is_repeat]
    dropped = {f"{label}={first.values.get(label)}" for label in repeats}
    words = [word for word in first.name.split(" ") if word not in dropped]
    return " ".join(words) or first.name


def is_beyond_noise(first: Group, second: Group) -> bool | None:
    """Whether two groups differ more than the spread of their members explains; None: unknown.

    A t-test at 95 % of the two groups alone: paired where they ran with the same seeds, as a seed
    shifts both alike; else of two samples, with pooled variance.
    """
    if first.by_repeat.keys() == second.by_repeat.keys() and len(first.finals) > 1:
        gaps = [second.by_repeat[key] - value for key, value in first.by_repeat.items()]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        return abs(statistics.fmean(gaps)) > quantile(len(gaps) - 1) * error
    degrees = len(first.finals) + len(second.finals) - 2
    if degrees < 1 or first.mean is None or second.mean is None:
        return None
    squares = sum(
        (value - statistics.fmean(group.finals)) ** 2
        for group in (first, second)
        for value in group.finals
    )
    share = 1 / len(first.finals) + 1 / len(second.finals)
    error = math.sqrt(squares / degrees * share)
    return abs(first.mean - second.mean) > quantile(degrees) * error


def quantile(degrees: int) -> float:
    """Student's t within which 95 % lie; from 21 degrees on that of 20, which is a little more."""
    return _QUANTILES[min(degrees, len(_QUANTILES)) - 1]


def _by_repeat(
    records: Sequence[Record], repeats: set[str], objective: Objective
) -> dict[tuple[str, ...], float]:
    return {
        tuple(text for label, text in record.values.items() if label in repeats): final
        for record in records
        if (final := record.final(objective.name)) is not None
    }


METHOD = (
    "One-way analysis of variance over the finished points, one axis at a time: the share of the "
    "variance of the final value that the means at the axis's values explain, adjusted for their "
    "number (epsilon squared, which is the adjusted R²). Shares need not add up to 100 %: what "
    "axes do together, and noise, belongs to none of them."
)
_MOST_BINS = 8


def importance(column: Column, records: Sequence[Record], objective: Objective) -> float | None:
    """Epsilon squared of an axis (Kelley 1935), from 0 to 1; None where points are too few.

    They are where some have no value on the axis, as of an earlier sweep without it: shares of
    the variance of different points cannot be compared. Numbers that hardly any two points have
    in common, as of a search, are put in bins of equal counts.
    """
    finals = [(record, record.final(objective.name)) for record in records]
    finished = [(record, final) for record, final in finals if final is not None]
    if any(column.label not in record.values for record, _ in finished):
        return None
    found = [(column.texts.index(record.values[column.label]), final) for record, final in finished]
    levels = sorted({level for level, _ in found})
    if 2 * len(levels) > len(found) and column.numbers is not None:
        found = _binned(found)
    return _epsilon_squared(found)


def _epsilon_squared(found: Sequence[tuple[int, float]]) -> float | None:
    by_level: dict[int, list[float]] = {}
    for level, value in found:
        by_level.setdefault(level, []).append(value)
    within_degrees = len(found) - len(by_level)
    if len(by_level) < 2 or within_degrees < 1:
        return None
    total = _squares([value for _, value in found])
    if total == 0:
        return 0.0
    within = sum(_squares(values) for values in by_level.values())
    return max(0.0, 1 - (within / within_degrees) / (total / (len(found) - 1)))


def _binned(found: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    count = max(2, min(_MOST_BINS, math.isqrt(len(found))))
    ordered = sorted(found)
    return [(at * count // len(ordered), value) for at, (_, value) in enumerate(ordered)]


def _squares(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return sum((value - mean) ** 2 for value in values)


_MOST = 12  # values of an axis, of which more are a search


@dataclass(frozen=True)
class Leader:
    """What won at one value of an axis.

    Attributes:
      text: the value.
      group: what won there.
      second: what came next there; None where nothing else is finished.
    """

    text: str
    group: Group
    second: Group | None

    @property
    def ahead(self) -> float | None:
        """How far what won is ahead of the next."""
        if self.second is None or self.second.mean is None or self.group.mean is None:
            return None
        return abs(self.second.mean - self.group.mean)

    @property
    def is_beyond_noise(self) -> bool | None:
        """Whether that is more than repeated runs explain; None: unknown."""
        return None if self.second is None else is_beyond_noise(self.group, self.second)

    def others(self, columns: Sequence[Column], label: str) -> str:
        """What won, by what it has on the other axes."""
        known = [one.label for one in columns if not one.is_repeat and one.label != label]
        values = self.group.values
        return " ".join(f"{one}={values[one]}" for one in known if one in values)


def leaders_of(ranking: Sequence[Group], columns: Sequence[Column]) -> dict[str, list[Leader]]:
    """What won at each value, by the label of the axis; of axes where there is something to win.

    Args:
      ranking: the groups of which a point is finished, the best first.
      columns: all axes.
    """
    choices = [column for column in columns if not column.is_repeat]
    if len(choices) < 2:
        return {}
    found = {column.label: _leaders(ranking, column) for column in choices}
    return {
        label: leaders
        for label, leaders in found.items()
        if 1 < len(leaders) <= _MOST
        and 2 * sum(one.second is not None for one in leaders) > len(leaders)
    }


def _leaders(ranking: Sequence[Group], column: Column) -> list[Leader]:
    at_value = {
        text: [group for group in ranking if group.values.get(column.label) == text]
        for text in column.texts
    }
    return [
        Leader(text, groups[0], groups[1] if len(groups) > 1 else None)
        for text, groups in at_value.items()
        if groups
    ]
