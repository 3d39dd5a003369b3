"""The pieces of an optimizer step: micro-batches, gradients, loss scaling and schedules."""

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

__all__ = ["ClipByValue", "GradientTransform"]


class MicroBatch(NamedTuple):
    """Sequences that one device computes at once.

    Attributes:
      rows: on the device.
      num_targets: tokens that count in the loss.
      all_in_loss: whether all tokens do.
    """

    rows: Int64[Tensor, "rows window"]
    num_targets: int
    all_in_loss: bool


def micro_batches(
    batch: Int64[Tensor, "rows window"], *, size: int | None, device: torch.device
) -> list[MicroBatch]:
    """Split a batch, and copy it to a device at once.

    Reading a number from an accelerator waits for all queued work, and leaves it idle until Python
    has queued more. So tokens are counted where they were made, not micro-batch by micro-batch.

    Args:
      batch: on the CPU, as streams make it, or on the device.
      size: rows of a micro-batch, at most; None for all of them.
      device: where they are computed.
    """
    size = size or max(1, len(batch))
    counts = [(count_loss_targets(part), all_in_loss(part)) for part in batch.split(size)]
    if device.type == "cuda" and batch.device.type == "cpu":
        batch = batch.pin_memory()
    parts = batch.to(device, non_blocking=batch.is_pinned()).split(size)
    return [MicroBatch(rows, *count) for rows, count in zip(parts, counts, strict=True)]


_EPS_OF_TORCH = 1e-6  # which its clipping adds to a norm


@runtime_checkable
class GradientTransform(Protocol):
    """Changes gradients in place, before their norm is measured and clipped."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> None: ...


def require_bound(max_grad_norm: float | None) -> None:
    """Raise ValueError unless a bound of gradients is positive."""
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"{max_grad_norm=} must be above 0, or None for no bound.")


class ClipByValue:
    """Clips every element of a gradient to [-max_grad_value, max_grad_value].

    Args:
      max_grad_value: above 0.

    Raises:
      ValueError: it is not.
    """

    def __init__(self, max_grad_value: float) -> None:
        if not max_grad_value > 0:
            raise ValueError(f"{max_grad_value=} must be above 0.")
        self.max_grad_value = max_grad_value

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        chosen = [p for p in parameters if p.grad is not None]
        for indices in group_by_mesh(chosen):
            nn.utils.clip_grad_value_([chosen[index] for index in indices], self.max_grad_value)


class GradientNorms:
    """Euclidean norms of gradients over all processes, of each parameter and of all together.

    Args:
      parameters: those without a gradient are ignored.

    Attributes:
      total: the norm of all of them as one vector; a tensor, to avoid waiting for it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.grad is not None]
        self._norms = norms_of([p.grad for p in self._parameters if p.grad is not None])
        self.total = torch.linalg.vector_norm(self._norms)

    def clip(self, max_norm: float | None) -> None:
        """Scale the gradients down, so that their total norm is at most `max_norm`."""
        if max_norm is None or self._is_within(max_norm):
            return
        for indices in group_by_mesh(self._parameters):
            chosen = [self._parameters[index] for index in indices]
            nn.utils.clip_grads_with_norm_(chosen, max_norm, self.total)

    def _is_within(self, max_norm: float) -> bool:
        """Whether torch would multiply by 1, a needless pass over memory.

        Not checked on a GPU, where reading the norm would wait for queued work.
        """
        return self.total.device.type == "cpu" and bool(self.total + _EPS_OF_TORCH < max_norm)

    def over(self, parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
        """Return the norm over some of the parameters, as it was before clipping."""
        chosen = {id(parameter) for parameter in parameters}
        indices = [i for i, p in enumerate(self._parameters) if id(p) in chosen]
        return torch.linalg.vector_norm(self._norms[indices])

    def not_finite(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients hold NaN or inf, in the model's order."""
        bad = (~self._norms.isfinite()).tolist()
        return [p for p, is_bad in zip(self._parameters, bad, strict=True) if is_bad]


@torch.no_grad()
def norms_of(tensors: Sequence[Tensor]) -> Float[Tensor, " tensors"]:
    """Return the Euclidean norm of each tensor; of a sharded one, over all its shards."""
    if not tensors:
        return torch.zeros(0)
    norms: list[Any] = [None] * len(tensors)
    for indices in group_by_mesh(tensors):
        # One launch for all of them, as in torch's own clipping.
        each: Any = torch._foreach_norm(  # pyright: ignore[reportPrivateImportUsage]
            [tensors[index] for index in indices]
        )
        if is_sharded(each[0]):  # stacked first, for one all-reduce
            joined: Any = torch.stack(each)
            each = joined.full_tensor().unbind()
        for index, norm in zip(indices, each, strict=True):
            norms[index] = norm
    return torch.stack(norms)


def group_by_mesh(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return indices of tensors on the same processes, which one operation may take together."""
    # By attribute: torch takes more than a second to import the class of sharded tensors.
    meshes = [getattr(tensor, "device_mesh", None) for tensor in tensors]
    return [[p for p, own in enumerate(meshes) if own == mesh] for mesh in dict.fromkeys(meshes)]


_LOWEST_SCALE = 1e-4  # below it, gradients did not overflow, but the run diverged


class LossScaling:
    """A factor that grows until gradients overflow, and shrinks when they do (torch's GradScaler).

    A step whose gradients overflow is skipped and the factor halved; after `growth_interval` steps
    in a row without overflow it is doubled.

    Args:
      init_scale: the initial factor.
      growth_interval: steps.

    Attributes:
      scale: the factor of the next step.

    Raises:
      ValueError: `init_scale` is not above 0, or `growth_interval` is below 1.
    """

    def __init__(self, *, init_scale: float = 65536.0, growth_interval: int = 2000) -> None:
        if not 0 < init_scale < math.inf:
            raise ValueError(f"{init_scale=} must be above 0, and finite, such as 65536.")
        if growth_interval < 1:
            raise ValueError(f"{growth_interval=} must be 1 or more steps.")
        self.scale = init_scale
        self.growth_interval = growth_interval
        self._steps = 0  # since the factor last changed

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to differentiate."""
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide gradients, which are in float32, by the factor; overflowed ones stay infinite."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self.scale)

    def accepts(self, *, is_finite: bool) -> bool:
        """Update the factor by a step's gradients; return whether to go on with the step.

        A step that is not finite with the lowest factor has diverged, which is for the policies to
        judge: it is accepted here.
        """
        if is_finite:
            self._steps += 1
            if self._steps >= self.growth_interval:  # a resumed run may have a shorter one
                self.scale, self._steps = 2 * self.scale, 0
            return True
        if self.scale < _LOWEST_SCALE:
            return True
        self.scale, self._steps = self.scale / 2, 0
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.scale, self._steps = state["scale"], state["steps"]


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


def make_optimizer(make: Callable[..., Optimizer], groups: Sequence[Group]) -> Optimizer:
    """Make the optimizer of parameter groups, after a trial step on small weights.

    Raises:
      RunError: the optimizer refuses its arguments, or cannot step such weights.
    """
    check_step(make, groups)
    try:
        return make(groups)
    except (TypeError, ValueError) as error:
        raise RunError(f"the optimizer refuses its arguments: {error}") from error


_LONGEST = 64  # rows and columns of stand-ins, per process: enough for block-wise optimizers


def check_step(make: Callable[..., Optimizer], groups: Sequence[Group]) -> None:
    """Try an optimizer on small weights, on the devices of the model's and sharded like them.

    Args:
      make: makes the optimizer from parameter groups.
      groups: the parameters of the run, which are left unchanged.

    Raises:
      RunError: the optimizer cannot step such weights.
    """
    try:
        optimizer = make([_stand_ins(group) for group in groups])
    except (RuntimeError, TypeError, ValueError):  # raised again by the real one
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, 0.5)
    try:
        optimizer.step()
    except torch.OutOfMemoryError:
        return
    except Exception as error:  # custom optimizers raise anything
        sharded = whole = ""
        if meshes := [p.device_mesh for group in groups for p in group["params"] if is_sharded(p)]:
            sharded = f", which are sharded over {meshes[0].size()} processes"
            whole = ", or keep whole weights in each process (DataParallel)"
        line = (str(error).splitlines() or [type(error).__name__])[0]
        reason = textwrap.shorten(line, 200, placeholder="...").rstrip(".")
        raise RunError(
            f"the optimizer {type(optimizer).__name__} cannot step the weights of this "
            f"model{sharded}: {reason}. Use another optimizer{whole}."
        ) from error


def _stand_ins(group: Group) -> Group:
    """Return a group with a stand-in for its smallest parameter of each number of dimensions."""
    smallest: dict[int, nn.Parameter] = {}
    for parameter in group["params"]:
        other = smallest.get(parameter.dim())
        if other is None or parameter.numel() < other.numel():
            smallest[parameter.dim()] = parameter
    return {**group, "params": [_stand_in(one) for one in smallest.values()]}


def _stand_in(parameter: nn.Parameter) -> nn.Parameter:
    longest, make = _LONGEST, partial(torch.full, device=parameter.device)
    if is_sharded(parameter):
        from torch.distributed.tensor import DTensor, full

        assert isinstance(parameter, DTensor)
        mesh = parameter.device_mesh
        make = partial(full, device_mesh=mesh, placements=parameter.placements)
        longest *= mesh.size()
    shape = [min(size, longest) for size in parameter.shape]
    copy = nn.Parameter(make(shape, 0.5, dtype=parameter.dtype))
    vars(copy).update(vars(parameter))
    return copy
