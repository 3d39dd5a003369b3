"""A schedule drawn for a terminal, with its values where it turns."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from fidgpt.optim.schedules import Schedule

_HEIGHT = 10
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LISTED = 16
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
    """A step, counted from 1, at which a schedule begins, ends or does something else."""

    step: int
    value: float
    what: str


def schedule_text(
    schedule: Schedule, *, num_steps: int, peaks: Sequence[tuple[str, float]], width: int = 80
) -> str:
    """The learning rate of a run as a drawing, and as numbers where it turns.

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
    lines += _table(turns_of(values), peak)
    others = [(other, rate) for other, rate in peaks[1:] if rate != peak]
    lines += [""] * bool(others)
    lines += [f"{other}: {rate / peak:.3g} times as much" for other, rate in others]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def turns_of(values: Sequence[float]) -> list[Turn]:
    """The first step, the last one, and those between after which a curve goes another way."""
    slopes = [_sign(after - before) for before, after in itertools.pairwise(values)]
    found = [Turn(1, values[0], "first step")]
    for i, (before, after) in enumerate(itertools.pairwise(slopes), start=1):
        if before != after:
            found.append(Turn(i + 1, values[i], _TURNS[before, after]))
    return [*found, Turn(len(values), values[-1], "last step")] if len(values) > 1 else found


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)


def _drawing(values: Sequence[float], width: int) -> list[str]:
    """A filled curve above an axis of steps; a column is the mean of its steps."""
    top = max(*values, 0.0)
    labels = [f"{top:.3g}", f"{top / 2:.3g}", "0"]
    margin = max(map(len, labels)) + 1
    columns = _columns(values, width - margin - 2)
    heights = [round(8 * _HEIGHT * max(0.0, value) / top) if top > 0 else 0 for value in columns]
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


def _table(turns: Sequence[Turn], peak: float) -> list[str]:
    rows = [("step", "rate", "of the peak", "")]
    shown = turns if len(turns) <= _LISTED else [*turns[: _LISTED - 1], turns[-1]]
    rows += [(f"{t.step:,}", f"{t.value * peak:.4g}", f"{t.value:.4g}", t.what) for t in shown]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(f"{row[i]:>{widths[i]}}" for i in range(3)), row[3]]) for row in rows]
    left = len(turns) - len(shown)
    return [*lines[:-1], f"{'...':>{widths[0]}}  {left} more", lines[-1]] if left else lines
