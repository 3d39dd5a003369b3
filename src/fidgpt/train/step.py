"""The parts of a step: micro-batches, gradients, loss scaling and schedules."""

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.optim import Optimizer

from fidgpt.data import all_in_loss, count_loss_targets
from fidgpt.parallel.fully_sharded import is_sharded
from fidgpt.schedule import Schedule
from fidgpt.train.run_directory import RunError


class MicroBatch(NamedTuple):
    """Sequences that one device computes at once.

    Attributes:
      rows: on the device.
      num_learned: tokens of them that are learned.
      all_in_loss: whether none of their tokens is masked.
    """

    rows: Int64[Tensor, "rows window"]
    num_learned: int
    all_in_loss: bool


def micro_batches(
    batch: Int64[Tensor, "rows window"], *, size: int | None, device: torch.device
) -> list[MicroBatch]:
    """Cuts a batch, and sends it to a device in one go.

    An accelerator that is asked for a number has to compute first all that it was given to do, and
    has nothing to do while Python thinks about the answer. So all that is to be known of the
    tokens is read where they were made, and not micro-batch by micro-batch.

    Args:
      batch: on the CPU, as streams make it, or on the device.
      size: rows of a part, at most; all of them unless said.
      device: where they are computed.
    """
    size = size or max(1, len(batch))
    told = [(count_loss_targets(part), all_in_loss(part)) for part in batch.split(size)]
    parts = _sent(batch, device).split(size)
    return [MicroBatch(rows, *each) for rows, each in zip(parts, told, strict=True)]


def _sent(batch: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda" or batch.device.type != "cpu":
        return batch.to(device)
    return batch.pin_memory().to(device, non_blocking=True)


_TORCHS_EPS = 1e-6  # what its clipping adds to a norm


@runtime_checkable
class GradientTransform(Protocol):
    """Changes gradients in place, before their norm is measured and clipped."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> None: ...


def require_bound(max_grad_norm: float | None) -> None:
    """Raises ValueError where gradients of no such norm would be left, or ones turned round."""
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(
            f"{max_grad_norm=} would leave no gradient: use one above 0, or None for no bound."
        )


class ClipByValue:
    """No number of a gradient is further from zero than `max_grad_value`.

    Args:
      max_grad_value: above 0.

    Raises:
      ValueError: it is not.
    """

    def __init__(self, max_grad_value: float) -> None:
        self.check_arguments(max_grad_value=max_grad_value)
        self.max_grad_value = max_grad_value

    @staticmethod
    def check_arguments(*, max_grad_value: float) -> None:
        """Raises ValueError unless the bound is above 0."""
        if not max_grad_value > 0:
            raise ValueError(f"{max_grad_value=} would leave no gradient: use one above 0.")

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        chosen = [p for p in parameters if p.grad is not None]
        for places in together(chosen):
            nn.utils.clip_grad_value_([chosen[place] for place in places], self.max_grad_value)


class GradientNorms:
    """Euclidean norms of gradients over all processes, of each parameter and of all together.

    Args:
      parameters: those without a gradient count nothing.

    Attributes:
      total: the norm of all of them as one vector, a tensor, so that nobody waits for it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.grad is not None]
        self._norms = norms_of([p.grad for p in self._parameters if p.grad is not None])
        self.total = torch.linalg.vector_norm(self._norms)

    def clip(self, max_norm: float | None) -> None:
        """Scales the gradients down, so that their total norm is `max_norm` at most."""
        if max_norm is None or self._is_within(max_norm):
            return
        for places in together(self._parameters):
            chosen = [self._parameters[place] for place in places]
            nn.utils.clip_grads_with_norm_(chosen, max_norm, self.total)

    def _is_within(self, max_norm: float) -> bool:
        """Whether torch would multiply with 1, which passes over memory for nothing.

        Not asked on a GPU, which would have to be waited for.
        """
        return self.total.device.type == "cpu" and bool(self.total + _TORCHS_EPS < max_norm)

    def over(self, parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
        """The norm over some of the parameters, as it was before clipping."""
        chosen = {id(parameter) for parameter in parameters}
        places = [i for i, p in enumerate(self._parameters) if id(p) in chosen]
        return torch.linalg.vector_norm(self._norms[places])

    def not_finite(self) -> list[nn.Parameter]:
        """The parameters whose gradients hold an infinity or no number, in the model's order."""
        wrong = (~self._norms.isfinite()).tolist()
        return [p for p, is_wrong in zip(self._parameters, wrong, strict=True) if is_wrong]


@torch.no_grad()
def norms_of(tensors: Sequence[Tensor]) -> Float[Tensor, " tensors"]:
    """The Euclidean norm of each tensor; of one that is dealt over processes, that of all parts."""
    if not tensors:
        return torch.zeros(0)
    norms: list[Any] = [None] * len(tensors)
    for places in together(tensors):
        # One launch for all of them; torch's own clipping calls it too.
        each: Any = torch._foreach_norm(  # pyright: ignore[reportPrivateImportUsage]
            [tensors[place] for place in places]
        )
        if is_sharded(each[0]):  # stacked first, so that processes speak once
            joined: Any = torch.stack(each)
            each = joined.full_tensor().unbind()
        for place, norm in zip(places, each, strict=True):
            norms[place] = norm
    return torch.stack(norms)


def together(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Places of tensors that one operation may take together, which lie on the same processes."""
    # Asked by name: torch takes more than a second to import the class of what is dealt out.
    meshes = [getattr(tensor, "device_mesh", None) for tensor in tensors]
    return [[p for p, own in enumerate(meshes) if own == mesh] for mesh in dict.fromkeys(meshes)]


_LEAST = 1e-4  # below, it is no overflow of the scaled gradients any more, but a divergence


class LossScaling:
    """A factor that grows until gradients overflow, and shrinks when they do (torch's GradScaler).

    A step whose gradients overflow is left out and the factor halved; after `growth_interval` steps
    in a row without that it is doubled.

    Args:
      init_scale: the factor at first.
      growth_interval: steps.

    Attributes:
      scale: the factor of the next step.

    Raises:
      ValueError: `init_scale` is not above 0, or `growth_interval` is below 1.
    """

    def __init__(self, *, init_scale: float = 65536.0, growth_interval: int = 2000) -> None:
        self.check_arguments(init_scale=init_scale, growth_interval=growth_interval)
        self.scale = init_scale
        self.growth_interval = growth_interval
        self._steps = 0  # since the factor last changed

    @staticmethod
    def check_arguments(*, init_scale: float, growth_interval: int) -> None:
        """Raises ValueError unless there is a factor, and steps to wait for."""
        if not 0 < init_scale < math.inf:
            raise ValueError(f"{init_scale=} would leave no gradient: use one above 0, as 65536.")
        if growth_interval < 1:
            raise ValueError(f"{growth_interval=} must be 1 or more steps.")

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss that is differentiated."""
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divides gradients, which are in float32, by the factor; overflown ones stay infinite."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self.scale)

    def takes(self, *, is_finite: bool) -> bool:
        """Hears of every step's gradients; whether they are what the loss asks for.

        A step that is not finite however small the factor is has diverged, and is taken for one
        that somebody else has to judge.
        """
        if is_finite:
            self._steps += 1
            if self._steps >= self.growth_interval:  # which may be shorter than before a resume
                self.scale, self._steps = 2 * self.scale, 0
            return True
        if self.scale < _LEAST:
            return True
        self.scale, self._steps = self.scale / 2, 0
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.scale, self._steps = state["scale"], state["steps"]


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


def require_steps(optimizer: Callable[..., Optimizer], groups: Sequence[Mapping[str, Any]]) -> None:
    """Tries an optimizer on small weights, on the devices and sharded as the model's weights are.

    Where it fails with those, it is tried again with some as large as the model's smallest, because
    an optimizer may be right to want more than a few numbers.

    Args:
      optimizer: makes the optimizer from parameter groups.
      groups: the parameters of the run, which are left as they are.

    Raises:
      RunError: the optimizer cannot step such weights.
    """
    failed = None
    for most in (2, None):
        try:
            stepping = optimizer([_stand_ins(group, most=most) for group in groups])
        except (RuntimeError, TypeError, ValueError):  # told where the real one is made
            return
        failed = _failure(stepping)
        if failed is None:
            return
    over = whole = ""
    if meshes := [p.device_mesh for group in groups for p in group["params"] if is_sharded(p)]:
        over = f", which are dealt over {meshes[0].size()} processes"
        whole = ", or keep whole weights in each process (DataParallel)"
    line = (str(failed).splitlines() or [type(failed).__name__])[0]
    said = textwrap.shorten(line, 200, placeholder="...").rstrip(".")
    raise RunError(
        f"the optimizer {type(stepping).__name__} cannot step the weights of this model{over}: "
        f"{said}. Take another optimizer{whole}."
    ) from failed


def _failure(stepping: Optimizer) -> Exception | None:
    """What a step with dense gradients raises, but for a lack of memory."""
    for group in stepping.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, 0.5)
    try:
        stepping.step()
    except torch.OutOfMemoryError:
        return None
    except Exception as error:  # whatever goes wrong in an optimizer of somebody's own
        return error
    return None


def _stand_ins(group: Mapping[str, Any], *, most: int | None) -> dict[str, Any]:
    """A group with one parameter of each number of dimensions, the smallest one there is.

    Args:
      group: as it is.
      most: the longest that a dimension may be, for each process; None: as long as it is.
    """
    smallest: dict[int, nn.Parameter] = {}
    for parameter in group["params"]:
        other = smallest.get(parameter.dim())
        if other is None or parameter.numel() < other.numel():
            smallest[parameter.dim()] = parameter
    return {**group, "params": [_stand_in(one, most=most) for one in smallest.values()]}


def _stand_in(parameter: nn.Parameter, *, most: int | None) -> nn.Parameter:
    make = partial(torch.full, device=parameter.device)
    if is_sharded(parameter):
        from torch.distributed.tensor import DTensor, full

        assert isinstance(parameter, DTensor)
        make = partial(full, device_mesh=parameter.device_mesh, placements=parameter.placements)
        most = most and most * parameter.device_mesh.size()
    shape = [min(size, most or size) for size in parameter.shape]
    twin = nn.Parameter(make(shape, 0.5, dtype=parameter.dtype))
    vars(twin).update(vars(parameter))
    return twin
