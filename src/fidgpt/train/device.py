"""The device, its speed and its random state."""

import hashlib
import json
import math
import os
import re
import time
from dataclasses import dataclass
from itertools import chain, repeat

import torch

from fidgpt.parallel import DataParallel

VARIABLE = "FIDGPT_MACHINE"
_MAKERS = re.compile(r"\b(NVIDIA|AMD|Intel|Tesla|GeForce|Quadro|Instinct|Graphics)\b|\(\w+\)")


def machine_name() -> str:
    """What one process computes on, and how many processes there are: `h100x8`, `cpux1`.

    The environment variable FIDGPT_MACHINE, where it is set, is the answer: it stands for a
    machine that is not at hand.
    """
    known = os.environ.get(VARIABLE)
    return known or f"{_device_name()}x{os.environ.get('WORLD_SIZE', '1')}"


def short_name(device: str) -> str:
    """The model of a device from its full name: h100 of `NVIDIA H100 80GB HBM3`."""
    words = re.split(r"[\s\-_,]+", _MAKERS.sub(" ", device).strip())
    has_number = next((i for i, word in enumerate(words) if re.search(r"\d", word)), 0)
    return "".join(words[: has_number + 1]).lower() or "unknown"


def _device_name() -> str:
    if torch.cuda.is_available():
        return short_name(torch.cuda.get_device_name())
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if kind is None else kind.type


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose, as independent of every other as SHA-256 makes it.

    `derive_seed(seed, "dropout", step)` is the same on every machine and in every Python. The
    result has 63 bits, so that it fits a signed integer.
    """
    text = json.dumps([seed, *purpose])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_torch(seed: int, *, device: torch.device) -> None:
    """Seeds torch's own random numbers on the CPU and on `device`, as `torch.manual_seed` does.

    That one writes down the whole stack for each kind of accelerator that is not in use: 1 ms.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


# Dense products in bfloat16 per second, summed in float32 and without sparsity, by what stands in
# the name that a driver gives. Kinds of a model come before the model itself.
_BFLOAT16 = {
    "GB200": 2500e12,
    "B300": 2250e12,
    "B200": 2250e12,
    "GH200": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 150e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "L4": 121e12,
    "RTX A6000": 155e12,
    "RTX 5090": 209e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "MI325X": 1307e12,
    "MI300X": 1307e12,
    "MI250X": 191.5e12,  # of one of its two halves, each of which is a device
}
_BY_SHORT_NAME = {short_name(model): flops for model, flops in _BFLOAT16.items()}


def bfloat16_flops(device: str) -> float | None:
    """Peak of a device by its full name, as `NVIDIA H100 80GB HBM3`; None if no sheet is known."""
    for model, flops in _BFLOAT16.items():
        if re.search(rf"\b{model}\b", device):
            return flops
    return None


def bfloat16_flops_of(short: str) -> float | None:
    """The same by its short name, as `h100`."""
    return _BY_SHORT_NAME.get(short)


def short_names() -> list[str]:
    """The devices whose data sheets are known."""
    return sorted(_BY_SHORT_NAME)


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
        known = bfloat16_flops(torch.cuda.get_device_name(device))
        if known is not None:
            return known
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
