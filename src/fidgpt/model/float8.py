"""Matrix products in 8 bits, by torchao, on the GPUs that have them."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fidgpt.model.blocks import BlockFactory
from fidgpt.model.extended import MachineError, extended

_OLDEST = (8, 9)  # Nvidia's Ada and Hopper


class Float8:
    """A factory whose blocks multiply in float8: weights stay, and are scaled and cast at each use.

    Inputs, weights and gradients are each scaled by their largest number, as torchao's training in
    float8 does by default (Micikevicius et al., 2022, arXiv:2209.05433). It gains where products
    are large, in bfloat16 otherwise, and compiled. Maps whose sizes are no multiples of 16, and
    those with adapters, compute as before.

    Args:
      block: makes the block, which stays of its class and keeps its names.

    Raises:
      MachineError: as a run begins, or in the first step, where torchao or the GPU is missing.
    """

    MAY_STAND_AROUND: ClassVar[Mapping[str, str]] = {"block": "restart"}

    def __init__(self, block: BlockFactory) -> None:
        self._make = block

    def __call__(self) -> nn.Module:
        """A block."""
        block = self._make()
        for module in block.modules():
            if isinstance(module, nn.Linear) and _fits(module):
                extended(module, InFloat8)
        return block


class InFloat8(nn.Linear):
    """What `Float8` makes of a linear map."""

    def forward(self, input: Tensor) -> Tensor:
        """The product in float8; without memory, in the format of its input."""
        if input.is_meta:
            return super().forward(input)
        require_float8(input.device)
        return _product(self, input)

    def require_machine(self, device: torch.device) -> None:
        """Raises MachineError as `require_float8` does."""
        require_float8(device)


def require_float8(device: torch.device) -> None:
    """Raises MachineError unless a device multiplies in float8, and torchao is there to do it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _OLDEST:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"a {device.type}"
        raise MachineError(
            f"{name} does not multiply in float8: use_float8 needs an Nvidia GPU of compute "
            f"capability {_OLDEST[0]}.{_OLDEST[1]} (Ada, Hopper) or later. Train without it."
        )
    _torchao()


def _torchao() -> Any:
    try:
        from torchao.float8 import float8_linear  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MachineError(
            f"use_float8 needs torchao ({error}): install it with `pip install fidgpt[float8]`, or "
            "train without it."
        ) from error
    return float8_linear.Float8Linear


def _product(module: nn.Linear, input: Tensor) -> Tensor:
    linear = _torchao()
    if not hasattr(module, "linear_mm_config"):
        # A Float8Linear in its place would hold the weight of this moment, which FSDP replaces.
        with torch.no_grad():
            settings = vars(linear.from_float(module))
        own = vars(module)
        own.update((name, value) for name, value in settings.items() if name not in own)
    return linear.forward(module, input)


def _fits(module: nn.Linear) -> bool:
    is_plain = type(module).forward is nn.Linear.forward
    return is_plain and not (module.in_features % 16 or module.out_features % 16)
