"""The optimizer of a run: how it is made and stepped, and the settings of its groups."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from fidgpt.optim import SharesWork
from fidgpt.parallel import DataParallel
from fidgpt.placement import is_sharded, shard_of
from fidgpt.schedule import Schedule
from fidgpt.train.device import first_line, is_lack_of_memory
from fidgpt.train.run_directory import RunError

Group = dict[str, Any]


class GroupSchedules:
    """Multiplies the configured settings of groups at every step.

    Args:
      optimizer: its groups are changed in place.
      schedule: multiplier of every group's learning rate at a step.
      others: multipliers of other settings, by their name in a group.

    Raises:
      RunError: a setting is `lr`, or not a number in every group.
    """

    def __init__(
        self, optimizer: Optimizer, *, schedule: Schedule, others: Mapping[str, Schedule]
    ) -> None:
        groups = optimizer.param_groups
        for name in others:
            _require_number(name, groups)
        self._optimizer = optimizer  # whose list of groups changes when it is restored
        self._schedules = {"lr": schedule, **others}
        self._peaks = [
            {"lr": peak_rate(group), **{name: group[name] for name in others if name in group}}
            for group in groups
        ]

    def apply(self, step: int) -> None:
        """Set all settings for a step, counted from 0."""
        multipliers = {name: schedule(step) for name, schedule in self._schedules.items()}
        for group, peaks in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group.update((name, peak * multipliers[name]) for name, peak in peaks.items())


def peak_rate(group: Group) -> float:
    """Return the peak learning rate of a group, scaled by its `lr_scale` if it has one."""
    return group["lr"] * group.get("lr_scale", 1.0)


def _require_number(name: str, groups: Sequence[Group]) -> None:
    if name == "lr":
        raise RunError(
            "the trainer's schedules: the learning rate has a schedule already, `schedule`."
        )
    found = [group[name] for group in groups if name in group]
    wrong = [v for v in found if isinstance(v, bool) or not isinstance(v, int | float)]
    if wrong or not found:
        known = sorted(
            key
            for key, value in groups[0].items()
            if isinstance(value, float) and key not in ("lr", "lr_scale")
        )
        problem = f"is {wrong[0]!r}, not a number" if wrong else "is unknown to the optimizer"
        raise RunError(
            f"the trainer's schedules: the setting {name!r} {problem}; choose one of "
            f"{', '.join(known) or 'none'}."
        )


def make_optimizer(
    make: Callable[..., Optimizer], groups: Sequence[Group], *, parallel: DataParallel
) -> Optimizer:
    """Make the optimizer of parameter groups, which shares work and state with other processes.

    Raises:
      RunError: it refuses its arguments, or needs whole matrices, of which there are parts here.
    """
    try:
        optimizer = make(groups)
    except (TypeError, ValueError) as error:
        raise RunError(f"the optimizer refuses its arguments: {error}") from error
    has_shards = any(shard_of(p) is not None for group in groups for p in group["params"])
    if has_shards and type(optimizer) in (torch.optim.Muon, torch.optim.Adafactor):
        name = type(optimizer).__name__
        raise RunError(
            f"torch.optim.{name} needs whole matrices, which an axis of the mesh divides: use "
            f"fidgpt's {name} (fiddler:use_{name.lower()}), or a size of 1 for that axis."
        )
    if parallel.world_size > 1 and isinstance(optimizer, SharesWork):
        optimizer.share_work(parallel.world)
    return optimizer


def step_optimizer(optimizer: Optimizer) -> None:
    """Take a step; RunError if the optimizer cannot step such weights."""
    try:
        optimizer.step()
    except Exception as error:  # custom optimizers raise anything
        if is_lack_of_memory(error):
            raise
        sharded = whole = ""
        if any(is_sharded(p) for group in optimizer.param_groups for p in group["params"]):
            sharded = ", which are sharded over processes"
            whole = ", or keep whole weights in each process (DataParallel)"
        raise RunError(
            f"the optimizer {type(optimizer).__name__} cannot step the weights of this "
            f"model{sharded}: {first_line(error).rstrip('.'):.200}. Use another optimizer{whole}."
        ) from error
