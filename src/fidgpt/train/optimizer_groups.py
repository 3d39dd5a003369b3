"""The optimizer of a run: how it is made and stepped, and the settings of its groups."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fidgpt.cost import tensors_in
from fidgpt.optim import SharesWork
from fidgpt.parallel import DataParallel
from fidgpt.placement import is_divided, shards_of
from fidgpt.schedule import Schedule
from fidgpt.train.gradients import by_mesh
from fidgpt.train.run_directory import RunError

Group = dict[str, Any]
_TRIED_STEPS = 4  # SOAP changes nothing in its first
_ROWS = 64  # and columns of a matrix that is tried; of fewer numbers, none is kept in 8 bits


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
        if "lr" in others:
            raise RunError(
                "the trainer's schedules: the learning rate has a schedule already, `schedule`."
            )
        for name in others:
            values = [group[name] for group in groups if name in group]
            if not values or not all(isinstance(value, int | float) for value in values):
                raise RunError(
                    f"the trainer's schedules: the optimizer has no numeric setting {name!r}; "
                    "remove it."
                )
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
    """Return the peak learning rate of a group, with its factors `lr_scale` and `width_scale`."""
    return group["lr"] * group.get("lr_scale", 1.0) * group.get("width_scale", 1.0)


def decay_at_any_width(optimizer: Optimizer) -> None:
    """Divide the weight decay of groups by `width_scale`, with which learning rates multiply it."""
    for group in optimizer.param_groups:
        if "width_scale" in group and "weight_decay" in group:
            group["weight_decay"] /= group["width_scale"]


def make_optimizer(
    make: Callable[..., Optimizer], groups: Sequence[Group], *, parallel: DataParallel
) -> Optimizer:
    """Make the optimizer of parameter groups, which shares work and state with other processes.

    Raises:
      RunError: it refuses its arguments, or cannot work on parts of matrices.
    """
    try:
        optimizer = make(groups)
    except (TypeError, ValueError) as error:
        raise RunError(f"the optimizer refuses its arguments: {error}") from error
    decay_at_any_width(optimizer)
    is_own = isinstance(optimizer, SharesWork)
    name = type(optimizer).__name__
    for group in groups if not is_own else ():
        if not any(map(is_divided, group["params"])):
            continue
        treats_rows_alone, has_blocks = _tried(make, group)
        if has_blocks:
            raise RunError(
                f"{name} of {type(optimizer).__module__} keeps its state in blocks of numbers with "
                "a scale, which no checkpoint can put together where the mesh divides weights: use "
                "an optimizer of fidgpt, or fiddler:use_mesh(replicate=-1)."
            )
        if any(map(shards_of, group["params"])) and not treats_rows_alone:
            raise RunError(
                f"{name} of {type(optimizer).__module__} needs whole matrices, which an axis of "
                "the mesh divides: use an optimizer of fidgpt, or a size of 1 for that axis."
            )
    if parallel.world_size > 1 and is_own:
        optimizer.share_work(parallel.world)
    return optimizer


def _tried(make: Callable[..., Optimizer], group: Group) -> tuple[bool, bool]:
    """Try an optimizer on a small matrix and on its halves.

    An optimizer that takes a norm or a rotation of a matrix would silently be another one where
    each process has a part. One that cannot be tried, as it needs a closure, is left alone.

    Returns:
      Whether it changes both alike; whether its state is of tensors that are made of others.
    """
    generator = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(_TRIED_STEPS + 1, _ROWS, _ROWS, generator=generator)
    has_blocks = False

    def change(*sizes: int) -> torch.Tensor:
        nonlocal has_blocks
        weights = [nn.Parameter(part.clone()) for part in start.split(sizes)]
        optimizer = make([{**group, "params": weights}])
        for gradient in gradients:
            for weight, part in zip(weights, gradient.split(sizes), strict=True):
                weight.grad = part.clone()
            optimizer.step()
        state = tensors_in(optimizer.state.values())
        has_blocks = has_blocks or any(hasattr(one, "__tensor_flatten__") for one in state)
        return torch.cat([weight.detach() for weight in weights]) - start

    try:
        # Some compile their steps, which takes minutes.
        with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
            whole, halves = change(_ROWS), change(_ROWS // 2, _ROWS // 2)
    except (TypeError, ValueError, RuntimeError):
        return True, has_blocks
    bound = 1e-6 * whole.abs().max().item()
    return torch.allclose(whole, halves, rtol=1e-3, atol=bound), has_blocks


@contextmanager
def grouped_by_mesh(optimizer: Optimizer) -> Iterator[None]:
    """Context in which the parameters of a group are shared by the same processes.

    Optimizers give all of a group to one operation, which torch refuses for several meshes.
    """
    groups = optimizer.param_groups
    parts = [
        [{**group, "params": parameters} for (parameters,) in by_mesh(group["params"])]
        for group in groups
    ]
    if all(len(by_group) == 1 for by_group in parts):
        yield
        return
    optimizer.param_groups = [part for by_group in parts for part in by_group]
    try:
        yield
    finally:
        for group, by_group in zip(groups, parts, strict=True):  # a step may change settings
            group.update({**by_group[-1], "params": group["params"]})
        optimizer.param_groups = groups
