"""Collectives through which gradients flow, on plain local tensors of an axis of the mesh."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from fidgpt.parallel.mesh import Axis


def gathered(x: Tensor, axis: Axis, dim: int) -> Tensor:
    """Return the tensors of all processes side by side in a dimension below 0.

    The gradient of each tensor is summed over the processes, by a reduce-scatter.
    """
    functional = _functional()
    # torch 2.13 renames it, and warns about the old name.
    name = "all_gather_single_autograd"
    collective = getattr(functional, name, None) or functional.all_gather_tensor_autograd
    parts = collective(x.unsqueeze(0).contiguous(), 0, group_of(axis))
    return parts.movedim(0, dim - 1).flatten(dim - 1, dim)


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
