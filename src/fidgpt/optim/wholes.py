"""Whole tensors from the parts that processes hold, for optimizers that need whole matrices."""

from typing import Any

from torch import Tensor

from fidgpt.placement import placement_of


def is_divided(parameter: Tensor) -> bool:
    """Return whether processes may hold parts of a parameter; the same on all of them."""
    return hasattr(parameter, "device_mesh") or placement_of(parameter) is not None


def is_part(parameter: Tensor) -> bool:
    """Return whether this process holds a part of a parameter by its placement."""
    placement, shape = placement_of(parameter), tuple(parameter.shape)
    return placement is not None and placement.whole_shape(shape) != shape


def whole_shape(parameter: Tensor) -> tuple[int, ...]:
    """Return the shape of the whole of a parameter."""
    placement, shape = placement_of(parameter), tuple(parameter.shape)
    return shape if placement is None else placement.whole_shape(shape)


def whole_of(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor: a parameter, or a gradient or state that may be divided alike."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()  # pyright: ignore[reportAttributeAccessIssue]
    placement = placement_of(parameter)
    if placement is None or not is_part(parameter) or tensor.shape != parameter.shape:
        return tensor
    return placement.gather(tensor)


def put_back(whole: Tensor, tensor: Any, parameter: Tensor) -> None:
    """Copy this process's part of a whole tensor into a parameter, or what is divided alike."""
    if (placement := placement_of(parameter)) is not None:
        whole = placement.cut(whole)
    if not hasattr(tensor, "device_mesh"):
        tensor.copy_(whole)
        return
    # Imported here because it takes longer than the rest of a command's start.
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = tensor.device_mesh, tensor.placements
    # Every process has the same values, so no communication is needed.
    own = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    tensor.to_local().copy_(own.to_local())


def held(tensor: Any) -> Tensor:
    """Return what this process holds of a tensor, as a plain one that shares its memory."""
    return tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
