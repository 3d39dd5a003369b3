"""A twin of a model that has shapes and no memory, to try things on that cost nothing."""

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def without_memory(model: Model) -> Model:
    """A copy on the meta device, with the same ties; the model itself may have memory or none."""
    twins: dict[int, Tensor] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        twins[id(parameter)] = nn.Parameter(empty, parameter.requires_grad)
    for buffer in model.buffers():
        twins[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(model, twins)
