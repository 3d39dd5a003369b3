"""How much each axis matters: the share of the objective's variance that its values explain."""

import math
import statistics
from collections.abc import Sequence

from fidgpt.sweep.report.columns import Column
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.results.objective import Objective

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
