"""Run `python -m fidgpt.calibrate`: measure this machine for plans, in about a minute.

It measures matrix products by size and format, attention, memory bandwidth, the time to launch an
operation and, under torchrun, collectives between the devices. The numbers are written to a file in
fidgpt's cache directory, which `--print=plan` reads for devices of this kind.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from absl import flags
from torch import Tensor

from fidgpt.cli import app
from fidgpt.files import cache_directory, only_one, read_json, write_whole
from fidgpt.parallel import DataParallel
from fidgpt.plan.hardware import CALIBRATION, find_device

FLAGS = flags.FLAGS
flags.DEFINE_float("seconds", 60.0, "How long to measure, about.", lower_bound=1.0)

_FORMATS = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_SIZES = {"cpu": (64, 256, 1024), "cuda": (512, 2048, 4096, 8192)}
_PARTS = 12  # that share the time
_REPEATS = 3  # at least: the first one loads libraries and touches memory


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Measure, print and write what was measured."""
    with DataParallel() as parallel:
        device = parallel.device
        title = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
        known = find_device(title)
        name = known.name if known is not None else title
        measured = measure(device, seconds=FLAGS.seconds)
        if parallel.world_size > 1:
            measured |= _collectives(device, parallel.world_size)
        if not parallel.is_main:
            return
        path = cache_directory() / CALIBRATION
        path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(path, on_wait=lambda: None):
            whole = read_json(path)
            whole[name] = {**whole.get(name, {}), **measured}
            write_whole(path, json.dumps(whole, indent=1) + "\n")
    for kind, value in measured.items():
        print(f"{kind}: {value if isinstance(value, dict) else format(value, '.4g')}")
    print(f"Written: {path}, for {name}")


def measure(device: torch.device, *, seconds: float) -> dict[str, Any]:
    """Return what a `Device` says of one process's device, as far as it can be measured."""
    each, sizes = seconds / _PARTS, _SIZES["cuda" if device.type == "cuda" else "cpu"]
    speeds = {form: _product_speeds(device, dtype, sizes, each) for form, dtype in _FORMATS.items()}
    peaks = {form: max(own) for form, own in speeds.items()}
    best = max(peaks, key=peaks.__getitem__)
    # The share that the smallest product reaches: s / (s + h) for each of its three sizes.
    share = min(0.9, (speeds[best][0] / peaks[best]) ** (1 / 3))
    large = torch.empty(1 << (28 if device.type == "cuda" else 25), device=device)
    bandwidth = 2 * large.nbytes / _time(device, lambda: large.clone(), each)
    small = torch.ones(8, device=device)
    return {
        "flops": peaks,
        "products": 0.95,
        "half_size": sizes[0] * (1 / share - 1),
        "attention": _attention_speed(device, each) / peaks[best],
        "bandwidth": bandwidth,
        "moving": 0.9,
        "launch": _time(device, lambda: small + 1, each, waits=False),
    }


def _time(
    device: torch.device, action: Callable[[], object], seconds: float, *, waits: bool = True
) -> float:
    """Return the shortest time of an action; other programs slow down most of them."""
    best, end, number = float("inf"), time.perf_counter() + seconds, 0
    while True:
        begin = time.perf_counter()
        action()
        if waits and device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begin)
        number += 1
        if number >= _REPEATS and time.perf_counter() > end:
            return best


def _product_speeds(
    device: torch.device, dtype: torch.dtype, sizes: Sequence[int], seconds: float
) -> list[float]:
    """Return operations per second of products, up to the size that takes too long."""
    speeds: list[float] = []
    for size in sizes:
        x = torch.ones(size, size, device=device, dtype=dtype)
        taken = _time(device, lambda x=x: x @ x, seconds / len(sizes))
        speeds.append(2 * size**3 / taken)
        if 64 * taken > seconds:  # as of a CPU that emulates a format
            break
    return speeds


def _attention_speed(device: torch.device, seconds: float) -> float:
    """Return operations per second of causal attention, forward and backward."""
    length = 4096 if device.type == "cuda" else 512
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.ones(1, 8, length, 128, device=device, dtype=dtype, requires_grad=True)

    def attend() -> Tensor:
        out = F.scaled_dot_product_attention(x, x, x, is_causal=True)
        out.backward(torch.ones_like(out))
        return out

    flops = 3.5 * 4 * 8 * length * length / 2 * 128
    return flops / _time(device, attend, seconds)


def _collectives(device: torch.device, size: int) -> dict[str, Any]:
    """Return the bandwidth and latency of sums over all processes."""
    large = torch.ones(1 << (26 if device.type == "cuda" else 22), device=device)
    small = torch.ones(1, device=device)
    times = []
    for tensor in (large, small):
        taken = []
        for _ in range(10):  # as many on every process
            taken.append(_time(device, lambda: dist.all_reduce(tensor), 0.0))  # noqa: B023
        times.append(min(taken))
    passed = 2 * large.nbytes * (size - 1) / size
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    name = "link" if inside == size else "network"
    near = times[1] / 2
    return {name: passed / times[0], "sending": 1.0, "latency": [near, 2.5 * near]}


if __name__ == "__main__":
    run()
