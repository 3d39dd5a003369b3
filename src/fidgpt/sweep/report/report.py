"""A sweep read and judged: its points ranked, what each axis did, and whether it may be noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fidgpt.sweep.report.columns import Column, columns_of
from fidgpt.sweep.report.compared import choose_objective
from fidgpt.sweep.report.effects import Effect, effects_of
from fidgpt.sweep.report.groups import Group, group_name, groups_of, is_beyond_noise, ranked
from fidgpt.sweep.report.importance import importance
from fidgpt.sweep.report.leaders import Leader, leaders_of
from fidgpt.sweep.report.records import Record, read_records
from fidgpt.sweep.results.objective import Objective

_LINEAGE, _MEMBER = "lineage.jsonl", "member"  # of a population
_ONCE = (
    "Each of them ran once, so nobody knows whether that is noise: run them with other seeds, by "
    "--repeat=seed:3."
)
_POPULATION = (
    "Each of them ran once, so nobody knows whether that is noise: run the commands of the best "
    "with another seed."
)
_BEYOND = "That is more than repeated runs explain (t-test of the two, 95 %)."
_WITHIN = "Repeated runs differ as much (t-test of the two, 95 %): take them for equal."


@dataclass(frozen=True)
class Report:
    """What a sweep came to.

    Attributes:
      directory: of the sweep.
      records: its points, in the order of its table.
      columns: its axes on which points differ.
      objective: what points are compared by.
      is_population: whether runs were cloned from one another, with other values from there on.
    """

    directory: Path
    records: Sequence[Record]
    columns: Sequence[Column]
    objective: Objective
    is_population: bool = False

    @cached_property
    def groups(self) -> list[Group]:
        """The points by what they have in common, where some only repeat others."""
        return groups_of(self.records, self.columns, self.objective)

    @cached_property
    def ranking(self) -> list[Group]:
        """The groups of which a point is finished, the best mean first."""
        return ranked(self.groups, self.objective)

    @property
    def best(self) -> Record:
        """The first finished point of the best group: not that with the luckiest seed."""
        members = [self.records[at] for at in self.ranking[0].members]
        return next(one for one in members if one.final(self.objective.name) is not None)

    @cached_property
    def leaders(self) -> dict[str, list[Leader]]:
        """What won at each value of an axis, by the axis, where there are several axes."""
        return leaders_of(self.ranking, self.columns)

    @cached_property
    def effects(self) -> list[Effect]:
        """What each thing did that an ablation left out."""
        return effects_of(self.records, self.columns, self.objective)

    @cached_property
    def importances(self) -> list[tuple[Column, float | None]]:
        """The axes with the share of the variance that they explain, the largest first."""
        shares = [(one, importance(one, self.records, self.objective)) for one in self.columns]
        return sorted(shares, key=lambda one: -1.0 if one[1] is None else one[1], reverse=True)

    @property
    def has_repeats(self) -> bool:
        """Whether some points only repeat others."""
        return any(column.is_repeat for column in self.columns)

    def name_of(self, group: Group) -> str:
        """What the points of a group have in common, in short."""
        return group_name(group, self.records, self.columns)

    @property
    def verdict(self) -> list[str]:
        """Sentences: which one won, by how much, and whether that may be noise."""
        first, *others = self.ranking
        count = f", the mean of {len(first.finals)} runs" if len(first.finals) > 1 else ""
        name, value = self.objective.name, first.mean
        won = f"{self.name_of(first)} won, with {name} {number(value)}{count}."
        if not others:
            return [won, "No other point is finished, so there is nothing to compare it with."]
        second = others[0]
        gap = abs((second.mean or 0.0) - (value or 0.0))
        ahead = f"It is {gap:.3g} ahead of {self.name_of(second)} ({number(second.mean)})."
        return [won, ahead, self._noise(first, second)]

    def _noise(self, first: Group, second: Group) -> str:
        is_beyond = is_beyond_noise(first, second)
        if is_beyond is None:
            return _POPULATION if self.is_population else _ONCE
        told = _BEYOND if is_beyond else _WITHIN
        once = next((one for one in (first, second) if len(one.finals) == 1), None)
        return told if once is None else f"{told} But {self.name_of(once)} ran once only."


def number(value: float | None) -> str:
    """A number with five digits; a dash for none."""
    return "-" if value is None else f"{value:#.5g}".rstrip(".")


def read_report(
    directory: str | Path,
    *,
    objective: str | None = None,
    repeats: Sequence[str] = (),
) -> Report:
    """What a sweep came to so far, from its directory alone.

    Args:
      directory: of the sweep.
      objective: the metric to compare by, `max:NAME` where more of it is better; unless said, that
        of the sweep, or else the held-out loss.
      repeats: the axes that only repeat a run; those named `seed` unless said.

    Raises:
      ConfigError: there is no sweep, no point of it is finished, or none measured the objective.
    """
    path = Path(directory)
    records = read_records(path)
    chosen = choose_objective(records, path, said=objective)
    columns = columns_of(records, repeats=repeats)
    is_population = (path / _LINEAGE).exists()
    if is_population:  # which member a run is of says nothing about it
        columns = [column for column in columns if column.label != _MEMBER]
    return Report(path, records, columns, chosen, is_population)
