"""A twin of a model that has shapes and no memory, to try things on that cost nothing."""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def without_memory(model: Model) -> Model:
    """A copy on the meta device, with the same ties; the model itself may have memory or none."""
    return twin_of(model, lambda tensor: torch.empty_like(tensor, device="meta"))


def twin_of(model: Model, make: Callable[[Tensor], Tensor]) -> Model:
    """A copy with the same ties, and with what `make` gives in place of each tensor."""
    twins: dict[int, Tensor] = {}
    for parameter in model.parameters():
        twins[id(parameter)] = nn.Parameter(make(parameter), parameter.requires_grad)
    for buffer in model.buffers():
        twins[id(buffer)] = make(buffer)
    return copy.deepcopy(model, twins)
