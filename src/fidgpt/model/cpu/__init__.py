"""What only serves CPUs: own backward passes, blockwise attention, packed weights.

Nothing here changes what a model computes, up to rounding. FIDGPT_CPU_KERNELS=0 in the environment
switches all of it off, so that CPUs run torch's own operations as GPUs do.
"""

import os

import torch
from torch import Tensor

ENABLED = os.environ.get("FIDGPT_CPU_KERNELS", "1") != "0"


def has_own_backward(x: Tensor) -> bool:
    """Return whether an operation on `x` should take its backward pass from this package."""
    eager = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return ENABLED and eager and x.device.type == "cpu"
