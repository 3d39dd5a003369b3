"""Schedules of a run as drawings, and as numbers where they turn."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fidgpt.data import Curve
from fidgpt.schedule import Schedule
from fidgpt.train.facts import GroupFacts

_HEIGHT = 10
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LISTED = 16
_LONG = 1e15  # larger numbers are written with an exponent
# What a curve does at a step, by the signs of its slopes before and after it.
_TURNS = {
    (1, -1): "peak",
    (1, 0): "stays from here",
    (-1, 0): "stays from here",
    (0, -1): "falls from here",
    (0, 1): "rises from here",
    (-1, 1): "minimum",
}


class Turn(NamedTuple):
    """A step, counted from 1, at which a schedule starts, ends or changes its course."""

    step: int
    value: float
    what: str


def schedules_text(
    schedule: Schedule,
    *,
    others: Mapping[str, Schedule],
    curves: Sequence[Curve],
    groups: Sequence[GroupFacts],
    num_steps: int,
    width: int = 80,
) -> str:
    """Draw everything that changes over a run.

    Args:
      schedule: of the learning rate.
      others: schedules of other settings, by name.
      curves: what changes in the data.
      groups: what the schedules apply to.
      num_steps: of the run.
      width: columns of each drawing.
    """
    peaks = [(group.name, group.learning_rate or 1.0) for group in groups]
    drawings = [schedule_text(schedule, num_steps=num_steps, peaks=peaks, width=width)]
    for name, other in others.items():
        # Shown for the first group that has something to change.
        held = [(group.name, group.settings[name]) for group in groups if group.settings.get(name)]
        where, peak = held[0] if held else ("every group", 1.0)
        values = [other(step) * peak for step in range(num_steps)]
        curve = Curve(f"{name.replace('_', ' ')} of {where}", "value", values, peak)
        drawings.append(curve_text(curve, width=width))
    return "\n\n".join([*drawings, *(curve_text(curve, width=width) for curve in curves)])


def curve_text(curve: Curve, *, width: int = 80) -> str:
    """Draw a curve, with a table of its values where it turns or jumps."""
    title = f"{curve.name} over {len(curve.values):,} steps"
    parts = [value / curve.full for value in curve.values]
    whole = None if curve.full == 1 else "of the full"
    table = _table(turns_of(parts), curve.full, unit=curve.unit, whole=whole)
    lines = [title, "", *_drawing(curve.values, width), "", *table]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def schedule_text(
    schedule: Schedule, *, num_steps: int, peaks: Sequence[tuple[str, float]], width: int = 80
) -> str:
    """Draw the learning rate of a run, with a table of its values where it turns.

    Args:
      schedule: multiplier of the peak.
      num_steps: steps of the run.
      peaks: names of parameter groups and their peak rates; the first one's is drawn.
      width: columns of the drawing.
    """
    values = [schedule(step) for step in range(num_steps)]
    name, peak = peaks[0]
    title = f"learning rate of {name} over {num_steps:,} steps"
    lines = [title, "", *_drawing([value * peak for value in values], width), ""]
    lines += _table(turns_of(values), peak, unit="rate", whole="of the peak")
    others = [(other, rate) for other, rate in peaks[1:] if rate != peak]
    lines += [""] * bool(others)
    lines += [f"{other}: {rate / peak:.3g} times as much" for other, rate in others]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def turns_of(values: Sequence[float]) -> list[Turn]:
    """Return the first and the last step, and those between at which a curve changes direction.

    For a step function, the steps at which it jumps.
    """
    slopes = [_sign(after - before) for before, after in itertools.pairwise(values)]
    found = [Turn(1, values[0], "first step")]
    if any(slopes) and not any(one and other for one, other in itertools.pairwise(slopes)):
        jumps = [i + 1 for i, slope in enumerate(slopes) if slope]
        found += [Turn(i + 1, values[i], "from here") for i in jumps if i + 1 < len(values)]
        return [*found, Turn(len(values), values[-1], "last step")]
    for i, (before, after) in enumerate(itertools.pairwise(slopes), start=1):
        if before != after:
            found.append(Turn(i + 1, values[i], _TURNS[before, after]))
    return [*found, Turn(len(values), values[-1], "last step")] if len(values) > 1 else found


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _drawing(values: Sequence[float], width: int) -> list[str]:
    """Draw a filled curve above an axis of steps; each column is the mean of its steps."""
    top = max(*values, 0.0)
    labels = [f"{top:.3g}", f"{top / 2:.3g}", "0"]
    margin = max(map(len, labels)) + 1
    parts = [max(0.0, value) / top if top > 0 else 0.0 for value in values]
    columns = _columns(parts, width - margin - 2)
    heights = [round(8 * _HEIGHT * part) for part in columns]
    lines = []
    for row in reversed(range(_HEIGHT)):
        label = {_HEIGHT - 1: labels[0], _HEIGHT // 2 - 1: labels[1]}.get(row, "")
        drawn = "".join(_BLOCKS[min(8, max(0, height - 8 * row))] for height in heights)
        lines.append(f"{label:>{margin}} {'┤' if label else '│'}{drawn}")
    last = f"{len(values):,}"
    axis = f"{'1':<{len(columns) - len(last)}}{last}"
    return [*lines, f"{labels[2]:>{margin}} └{'─' * len(columns)}", f"{'':>{margin + 2}}{axis}"]


def _columns(values: Sequence[float], count: int) -> list[float]:
    means = []
    for column in range(count):
        first = column * len(values) // count
        steps = values[first : max(first + 1, (column + 1) * len(values) // count)]
        means.append(sum(steps) / len(steps))
    return means


def _table(turns: Sequence[Turn], peak: float, *, unit: str, whole: str | None) -> list[str]:
    """Format rows of numbers; `whole` titles the column of fractions, None omits it."""
    shown = turns if len(turns) <= _LISTED else [*turns[: _LISTED - 1], turns[-1]]
    rows = [("step", unit, whole or "", "")]
    rows += [(f"{t.step:,}", _number(t.value * peak), f"{t.value:.4g}", t.what) for t in shown]
    columns = range(3 if whole else 2)
    widths = [max(len(row[i]) for row in rows) for i in columns]
    lines = ["  ".join([*(f"{row[i]:>{widths[i]}}" for i in columns), row[3]]) for row in rows]
    left = len(turns) - len(shown)
    return [*lines[:-1], f"{'...':>{widths[0]}}  {left} more", lines[-1]] if left else lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) < _LONG and value == int(value) else f"{value:.4g}"
