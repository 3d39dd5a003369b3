"""Speed-ups for CPUs only: backward passes and blockwise attention.

They change no result, up to rounding. FIDGPT_CPU_KERNELS=0 in the environment switches them off,
and the packed weights of `generation.weights` too, so that CPUs run torch's operations as GPUs do.
"""

import os

import torch
from torch import Tensor

ENABLED = os.environ.get("FIDGPT_CPU_KERNELS", "1") != "0"


def has_own_backward(x: Tensor) -> bool:
    """Return whether an operation on `x` should take its backward pass from this package."""
    eager = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return ENABLED and eager and x.device.type == "cpu"
