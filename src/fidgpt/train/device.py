"""The devices of a run, and what they can do at best, which utilisation is measured against."""

import time
from dataclasses import dataclass

import torch

from fidgpt.parallel import DataParallel
from fidgpt.train.machine import short_name

_SIZE = 1024
_BUDGET = 0.1  # seconds

# Dense bf16 products per second without sparsity, from the makers' data sheets.
_DATA_SHEETS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
}
_SHEETS_BY_SHORT_NAME = {short_name(model): flops for model, flops in _DATA_SHEETS.items()}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a run computes on.

    Attributes:
      device: that of one process.
      world_size: processes, each with a device of its own.
      peak_flops: what all of them can do at best, per second.
    """

    device: torch.device
    world_size: int
    peak_flops: float


def machine_at_hand(parallel: DataParallel, dtype: torch.dtype) -> Machine:
    """The devices of the processes that run, which compute in `dtype`."""
    each = peak_flops(parallel.device, dtype)
    return Machine(
        device=parallel.device,
        world_size=parallel.world_size,
        peak_flops=parallel.world_size * each,
    )


def machine_named(name: str, dtype: torch.dtype) -> Machine:
    """A machine by a name such as `h100x8` or `cpux1`, which need not be at hand.

    GPUs are taken to compute in bfloat16, of which their data sheets tell, and CPUs to be as fast
    as the one at hand is in `dtype`.

    Raises:
      ValueError: no data sheet of such a device is known.
    """
    kind, _, count = name.rpartition("x")
    if name in _SHEETS_BY_SHORT_NAME or not count.isdecimal():
        kind, count = name, "1"
    world_size = int(count)
    if kind == "cpu":
        each, device = peak_flops(torch.device("cpu"), dtype), torch.device("cpu")
    elif (sheet := _SHEETS_BY_SHORT_NAME.get(kind)) is not None:
        each, device = sheet, torch.device("cuda")
    else:
        known = ", ".join(["cpu", *_SHEETS_BY_SHORT_NAME])
        raise ValueError(
            f"how fast {kind!r} of {name!r} is, no data sheet here says: name one of {known} and a "
            "number of devices, such as h100x8."
        )
    return Machine(device=device, world_size=world_size, peak_flops=world_size * each)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product at its best.

    Read from a data sheet where the device has one and computes in bf16. Elsewhere the best of
    as many products as fit into a tenth of a second: what else runs on the machine hides part of
    it, and a short pause in that shows it.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        for model, flops in _DATA_SHEETS.items():
            if model in name:
                return flops
    left = torch.ones(_SIZE, _SIZE, device=device, dtype=dtype)
    best, end = _seconds(left), time.perf_counter() + _BUDGET
    while time.perf_counter() < end:
        best = min(best, _seconds(left))
    return 2 * _SIZE**3 / best


def _seconds(matrix: torch.Tensor) -> float:
    begin = time.perf_counter()
    product = matrix @ matrix
    product[0, 0].item()  # waits for a device that works on its own
    return time.perf_counter() - begin
