"""Settings of parameter groups that rise and fall over a run, as learning rates do."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from fidgpt.optim.schedules import Schedule

Group = dict[str, Any]


class GroupSchedules:
    """Multiplies what groups were configured with, at every step.

    Args:
      optimizer: its groups are changed in place.
      schedule: multiplier of every group's learning rate at a step.
      others: the same of other settings, by their name in a group.

    Raises:
      ValueError: a setting is `lr`, or no number in any group.
    """

    def __init__(
        self, optimizer: Optimizer, *, schedule: Schedule, others: Mapping[str, Schedule]
    ) -> None:
        groups = optimizer.param_groups
        for name in others:
            _require_number(name, groups)
        self._optimizer = optimizer  # which has other groups once it was restored
        self._schedules = {"lr": schedule, **others}
        self._peaks = [
            {"lr": peak_rate(group), **{name: group[name] for name in others if name in group}}
            for group in groups
        ]

    def apply(self, step: int) -> None:
        """Sets everything for a step, counted from 0."""
        multipliers = {name: schedule(step) for name, schedule in self._schedules.items()}
        for group, peaks in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group.update((name, peak * multipliers[name]) for name, peak in peaks.items())


def peak_rate(group: Group) -> float:
    """The learning rate of a group, which may say how it relates to that of the others."""
    return group["lr"] * group.get("lr_scale", 1.0)


def _require_number(name: str, groups: Sequence[Group]) -> None:
    if name == "lr":
        raise ValueError("the learning rate has a schedule already, the trainer's `schedule`.")
    found = [group[name] for group in groups if name in group]
    wrong = [v for v in found if isinstance(v, bool) or not isinstance(v, int | float)]
    if wrong or not found:
        known = sorted(
            key
            for key, value in groups[0].items()
            if isinstance(value, float) and key not in ("lr", "lr_scale")
        )
        is_what = f"is {wrong[0]!r}, no number," if wrong else "is unknown"
        raise ValueError(
            f"the setting {name!r} {is_what} to the optimizer, so that no schedule can move it; "
            f"it has {', '.join(known) or 'none'}."
        )
