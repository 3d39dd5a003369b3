"""Speed-ups for CPUs only: backward passes and blockwise attention.

Results are the same up to rounding. The environment variable FIDGPT_CPU_KERNELS=0 disables them,
and the packed weights of `generation.weights`, so that CPUs run the same torch operations as GPUs.
"""

import os

import torch
from torch import Tensor

ENABLED = os.environ.get("FIDGPT_CPU_KERNELS", "1") != "0"


def has_own_backward(x: Tensor) -> bool:
    """Return whether an operation on `x` should use its backward pass in this package."""
    eager = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return ENABLED and eager and x.device.type == "cpu"
