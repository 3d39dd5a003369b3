"""What each thing that an ablation leaves out had done: differences to the runs that have all."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fidgpt.sweep.report.columns import Column
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.results.objective import Objective

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
