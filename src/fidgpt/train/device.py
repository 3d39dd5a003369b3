"""The devices of a run, and what they can do at best, which utilisation is measured against."""

import math
import os
import time
from dataclasses import dataclass
from itertools import chain, repeat

import torch

from fidgpt.parallel import DataParallel
from fidgpt.train.data_sheets import bfloat16_flops, bfloat16_flops_of, short_names

# Of a matrix. A GPU is not filled by a small one; a CPU that has to imitate a number format is
# quicker with one, and takes seconds for a large one.
_SIZES = {"cpu": [128, 256, 512, 1024]}
_SIZE = 8192
_BUDGET = 0.1  # seconds


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a run computes on.

    Attributes:
      device: that of one process.
      world_size: processes, each with a device of its own.
      peak_flops: what all of them can do at best, per second.
      memory: bytes that the device has; None where it is not known.
    """

    device: torch.device
    world_size: int
    peak_flops: float
    memory: int | None = None


def machine_at_hand(parallel: DataParallel, dtype: torch.dtype) -> Machine:
    """The devices of the processes that run, which compute in `dtype`."""
    each = peak_flops(parallel.device, dtype)
    return Machine(
        device=parallel.device,
        world_size=parallel.world_size,
        peak_flops=parallel.world_size * each,
        memory=_memory_of(parallel.device),
    )


def machine_named(name: str, dtype: torch.dtype) -> Machine:
    """A machine by a name such as `h100x8` or `cpux1`, which need not be at hand.

    GPUs are taken to compute in bfloat16, of which their data sheets tell, and CPUs to be as fast
    as the one at hand is in `dtype`.

    Raises:
      ValueError: no data sheet of such a device is known.
    """
    kind, _, count = name.rpartition("x")
    if bfloat16_flops_of(name) is not None or not count.isdecimal():
        kind, count = name, "1"  # as of mi300x
    world_size = int(count)
    if kind == "cpu":
        each, device = peak_flops(torch.device("cpu"), dtype), torch.device("cpu")
    elif (sheet := bfloat16_flops_of(kind)) is not None:
        each, device = sheet, torch.device("cuda")
    else:
        known = ", ".join(["cpu", *short_names()])
        raise ValueError(
            f"how fast {kind!r} of {name!r} is, no data sheet here says: name one of {known} and a "
            "number of devices, such as h100x8."
        )
    return Machine(device=device, world_size=world_size, peak_flops=world_size * each)


def _memory_of(device: torch.device) -> int | None:
    if device.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return None


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product at its best.

    Read from a data sheet where the device has one and computes in bf16. Elsewhere the best of
    as many products as fit into a tenth of a second: what else runs on the machine hides part of
    it, and a short pause in that shows it.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        said = bfloat16_flops(torch.cuda.get_device_name(device))
        if said is not None:
            return said
    sizes = _SIZES.get(device.type, [_SIZE])
    matrices = [torch.ones(size, size, device=device, dtype=dtype) for size in sizes]
    best, end = 0.0, math.inf
    for matrix in chain(matrices, repeat(matrices[-1])):
        best = max(best, 2 * len(matrix) ** 3 / _seconds(matrix))
        end = min(end, time.perf_counter() + _BUDGET)  # the first one loads what it needs
        if time.perf_counter() >= end:
            break
    return best


def _seconds(matrix: torch.Tensor) -> float:
    begin = time.perf_counter()
    product = matrix @ matrix
    product[0, 0].item()  # waits for a device that works on its own
    return time.perf_counter() - begin
