"""Runs of one config with several seeds as one group: its mean, its spread, and which one wins."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fidgpt.sweep.report.columns import Column
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.results.objective import Objective

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
