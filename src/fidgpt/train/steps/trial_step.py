"""A trial step of the optimizer with small stand-ins for the weights, before a run begins."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from fidgpt.parallel.sharding import is_sharded
from fidgpt.train.run import RunError


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
