"""Parameter groups and schedules in a summary."""

import contextlib
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from fidgpt.cost import without_memory
from fidgpt.data import Curve
from fidgpt.optim.groups import train_only
from fidgpt.schedule import Schedule
from fidgpt.train.footprint import NEEDS_NUMBERS
from fidgpt.train.step import peak_rate

if TYPE_CHECKING:
    from fidgpt.train.trainer import Trainer


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
Layers = Mapping[str, Collection[int]]


@dataclass(frozen=True, kw_only=True)
class GroupFacts:
    """A group of parameters.

    Attributes:
      name: what it is called; its number where it has no name.
      learning_rate: at the peak of the schedule; None where the optimizer has none.
      weight_decay: None where the optimizer has none.
      settings: every other one that is a number, too.
      num_tensors: parameters.
      num_parameters: numbers in them.
      holds: the parameters' names, those that differ in a layer or in one module as one.
    """

    name: str
    learning_rate: float | None
    weight_decay: float | None
    settings: Mapping[str, float]
    num_tensors: int
    num_parameters: int
    holds: str


def trainable_copy(trainer: "Trainer") -> nn.Module:
    """The model of a run without memory, with `requires_grad` as the run will set it."""
    model = without_memory(trainer.model)
    train_only(model, trainer.trainable)
    return model


def groups_of(trainer: "Trainer") -> list[GroupFacts]:
    """The groups of a run; its model may be on the meta device, and is left as it is."""
    model = trainable_copy(trainer)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    layers = _layers_by_pattern(names.values())
    groups = trainer.groups(model)
    with contextlib.suppress(*NEEDS_NUMBERS):  # what the groups themselves say is known anyway
        groups = trainer.optimizer(groups).param_groups
    return [
        GroupFacts(
            name=str(group.get("name", number)),
            learning_rate=peak_rate(group) if "lr" in group else None,
            weight_decay=group.get("weight_decay"),
            settings={name: value for name, value in group.items() if _is_number(value)},
            num_tensors=len(group["params"]),
            num_parameters=_size(group["params"]),
            holds=in_short([names[id(p)] for p in group["params"]], layers),
        )
        for number, group in enumerate(groups)
    ]


def in_short(names: Iterable[str], layers: Layers) -> str:
    """Names as one would write them: `blocks.*.attention.{query,key}.weight, norm.weight`.

    Args:
      names: of parameters.
      layers: numbers of all layers that have a parameter, by its name with `*` for the number.
    """
    siblings: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for pattern, numbers in _layers_by_pattern(names).items():
        place = "*" if numbers >= {*layers[pattern]} else _ranges(sorted(numbers))
        module, _, leaf = pattern.replace("*", place, 1).rpartition(".")
        parent, _, own = module.rpartition(".")
        siblings[parent, leaf].append(own)
    texts = []
    for (parent, leaf), own in siblings.items():
        together = own[0] if len(own) == 1 else f"{{{','.join(own)}}}"
        texts.append(".".join(part for part in (parent, together, leaf) if part))
    return ", ".join(texts)


def _layers_by_pattern(names: Iterable[str]) -> dict[str, set[int]]:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for name in names:
        number = _NUMBER.search(name)
        found[_NUMBER.sub("*", name, count=1)] |= {int(number[0])} if number else set()
    return found


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` as `{0..2,5}`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _size(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


_HEIGHT = 10
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LISTED = 16
_LONG = 1e15  # from which on a number is written by its power of ten
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


def schedules_text(trainer: "Trainer", *, width: int = 80) -> str:
    """Everything that changes over a run by a schedule or a stage: one drawing after the other."""
    groups = groups_of(trainer)
    peaks = [(group.name, group.learning_rate or 1.0) for group in groups]
    num_steps = trainer.num_steps
    rates = schedule_text(trainer.schedule, num_steps=num_steps, peaks=peaks, width=width)
    others = [
        _curve_of_setting(name, schedule, groups=groups, num_steps=num_steps)
        for name, schedule in (trainer.schedules or {}).items()
    ]
    others += trainer.data.curves(num_steps)
    return "\n\n".join([rates, *(curve_text(curve, width=width) for curve in others)])


def _curve_of_setting(
    name: str, schedule: Schedule, *, groups: Sequence[GroupFacts], num_steps: int
) -> Curve:
    """What becomes of a setting in the first group where there is something to change."""
    held = [(group.name, group.settings[name]) for group in groups if group.settings.get(name)]
    where, peak = held[0] if held else ("every group", 1.0)
    values = [schedule(step) * peak for step in range(num_steps)]
    return Curve(f"{name.replace('_', ' ')} of {where}", "value", values, peak)


def curve_text(curve: Curve, *, width: int = 80) -> str:
    """A curve as a drawing, and as numbers where it turns, or where it leaps."""
    title = f"{curve.name} over {len(curve.values):,} steps"
    parts = [value / curve.full for value in curve.values]
    whole = None if curve.full == 1 else "of the full"
    table = _table(turns_of(parts), curve.full, unit=curve.unit, whole=whole)
    lines = [title, "", *_drawing(curve.values, width), "", *table]
    return "".join(f"{line.rstrip()}\n" for line in lines)


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
    lines += _table(turns_of(values), peak, unit="rate", whole="of the peak")
    others = [(other, rate) for other, rate in peaks[1:] if rate != peak]
    lines += [""] * bool(others)
    lines += [f"{other}: {rate / peak:.3g} times as much" for other, rate in others]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def turns_of(values: Sequence[float]) -> list[Turn]:
    """The first step, the last one, and those between after which a curve goes another way.

    Of a curve that only leaps, the steps to which it does.
    """
    slopes = [_sign(after - before) for before, after in itertools.pairwise(values)]
    found = [Turn(1, values[0], "first step")]
    if any(slopes) and not any(one and other for one, other in itertools.pairwise(slopes)):
        leaps = [i + 1 for i, slope in enumerate(slopes) if slope]
        found += [Turn(i + 1, values[i], "from here") for i in leaps if i + 1 < len(values)]
        return [*found, Turn(len(values), values[-1], "last step")]
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
    """Rows of numbers; `whole` heads the parts of the peak, and without it they are left out."""
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
