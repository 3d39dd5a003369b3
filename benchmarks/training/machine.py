"""What a machine can do at best, which bounds every ratio of speeds measured on it."""

import platform
from typing import Any

import torch

from fidgpt.train.device import peak_flops


def machine(threads: int) -> str:
    """The processor, and how fast its matrix products are."""
    torch.set_num_threads(threads)
    peaks: dict[str, Any] = {
        str(dtype).removeprefix("torch."): peak_flops(torch.device("cpu"), dtype) / 1e9
        for dtype in (torch.float32, torch.bfloat16)
    }
    speeds = ", ".join(f"{name} {speed:,.0f}" for name, speed in peaks.items())
    return (
        f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {threads} threads, "
        f"torch {torch.__version__}; products of 1,024 x 1,024 in GFLOP/s: {speeds}"
    )


def gpu() -> str:
    """The GPU, and what its maker says of it."""
    flops = peak_flops(torch.device("cuda"), torch.bfloat16)
    return (
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}; "
        f"bfloat16 products in TFLOP/s, as its maker says: {flops / 1e12:,.0f}"
    )
