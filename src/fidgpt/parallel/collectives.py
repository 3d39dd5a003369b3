"""Collectives over an axis of the mesh, with their gradients.

Whether a tensor is the same on all processes, a part or a summand decides the gradient:

| | forward | backward |
|---|---|---|
| `copied` | whole to whole | gradients are summands: summed |
| `summed` | summands to whole | gradients are whole: as they are |
| `gathered` | parts to whole | gradients are summands: summed and split |
| `scattered` | summands to parts of the sum | gradients are parts: gathered |
| `joined` | parts to whole | gradients are whole: split |
| `sliced` | whole to parts | gradients are parts: gathered |
| `exchanged` | parts to other parts | the same way back |
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fidgpt.parallel.mesh import Axis


def all_sum(x: Tensor, axis: Axis) -> Tensor:
    """Return the sum over an axis, which is the same on all of its processes, bit for bit."""
    return begin_sum(x, axis, None)()


def all_max(x: Tensor, axis: Axis) -> Tensor:
    """Return the elementwise maximum over an axis."""
    if axis.is_planned:
        return x.clone()
    functional = _functional()
    return functional.wait_tensor(functional.all_reduce(x.contiguous(), "max", group_of(axis)))


def all_gather(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return the tensors of all processes, which have one shape, side by side in `dim`."""
    return begin_all_gather(x, axis, dim)()


def sum_scatter(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return this process's part in `dim` of the sum over an axis."""
    return begin_sum(x, axis, dim)()


Coming = Callable[[], Tensor]  # waits for a tensor that is being sent


def begin_all_gather(x: Tensor, axis: Axis, dim: int) -> Coming:
    """Begin `all_gather`."""
    if axis.is_planned:
        return lambda: torch.cat([x] * axis.size, dim)
    functional, part = _functional(), x.movedim(dim, 0).contiguous()
    # torch 2.13 renames it, and warns about the old name.
    collective = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    coming = collective(part, 0, group_of(axis))
    return lambda: functional.wait_tensor(coming).movedim(0, dim)


def begin_sum(x: Tensor, axis: Axis, dim: int | None) -> Coming:
    """Begin `sum_scatter`; without a dimension, `all_sum`."""
    if axis.is_planned:
        return (x if dim is None else own_part(x, axis, dim)).clone
    functional = _functional()
    if dim is None:
        whole = functional.all_reduce(x.contiguous(), "sum", group_of(axis))
        return lambda: functional.wait_tensor(whole)
    name = "reduce_scatter_single"  # renamed likewise
    collective = getattr(functional, name, None) or functional.reduce_scatter_tensor
    part = collective(x.movedim(dim, 0).contiguous(), "sum", 0, group_of(axis))
    return lambda: functional.wait_tensor(part).movedim(0, dim)


def own_part(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return this process's part of a whole tensor, of equal parts in `dim`."""
    return x.chunk(axis.size, dim)[axis.index]


def exchanged(x: Tensor, axis: Axis) -> Tensor:
    """Send part i of a tensor to process i, and return what each process sent, in their order.

    Args:
      x: a tensor [processes, ...].
      axis: the processes.
    """
    return _functional().all_to_all_single_autograd(x.contiguous(), None, None, group_of(axis))


def group_of(axis: Axis) -> dist.ProcessGroup:
    """Return the process group of an axis."""
    group = dist.group.WORLD if axis.group is None else axis.group
    assert group is not None
    return group


def _functional() -> Any:
    """Return torch's functional collectives, whose module has no public name yet."""
    from torch.distributed import _functional_collectives

    return _functional_collectives


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return all_sum(outer[0], ctx.axis), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        return all_sum(x, axis)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return outer[0], None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int) -> Tensor:
        ctx.axis, ctx.dim = axis, dim
        # Once: of a strided tensor, each projection would keep a copy for its backward pass.
        return all_gather(x, axis, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return sum_scatter(outer[0], ctx.axis, ctx.dim), None, None


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int) -> Tensor:
        ctx.axis, ctx.dim = axis, dim
        return sum_scatter(x, axis, dim)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return all_gather(outer[0], ctx.axis, ctx.dim), None, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int) -> Tensor:
        ctx.axis, ctx.dim = axis, dim
        # No view: FSDP warns of those that leave its modules, as this does with the last block.
        return all_gather(x, axis, dim).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return own_part(outer[0], ctx.axis, ctx.dim), None, None


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int) -> Tensor:
        ctx.axis, ctx.dim = axis, dim
        return own_part(x, axis, dim).contiguous()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return all_gather(outer[0], ctx.axis, ctx.dim), None, None


def copied(x: Tensor, axis: Axis) -> Tensor:
    """Return a whole tensor, which enters a computation that is divided over an axis."""
    return _Copied.apply(x, axis)


def summed(x: Tensor, axis: Axis) -> Tensor:
    """Return the sum of what a divided computation gives."""
    return _Summed.apply(x, axis)


def gathered(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return a whole tensor from parts, which enters a divided computation."""
    return _Gathered.apply(x, axis, dim)


def scattered(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return this process's part of the sum of what a divided computation gives."""
    return _Scattered.apply(x, axis, dim)


def joined(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return a whole tensor from parts, which enters a computation that all processes repeat."""
    return _Joined.apply(x, axis, dim)


def sliced(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return this process's part of what all processes have computed."""
    return _Sliced.apply(x, axis, dim)
