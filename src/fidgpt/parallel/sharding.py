"""How a tensor is dealt over processes, told without the import of torch's class for such."""

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is spread over a mesh of devices, whose class takes a second to import."""
    return hasattr(tensor, "device_mesh")
