"""The machine of a run: its devices, their speed, memory, and random seeds."""

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

import torch

from fidgpt import __version__, heap
from fidgpt.files import cache_directory, only_one, read_json, write_whole
from fidgpt.parallel import DataParallel
from fidgpt.plan import Plan
from fidgpt.plan.hardware import CPU, Cluster, Device, calibrated, cluster_named, find_device
from fidgpt.train.run_directory import RunError

__all__ = ["derive_seed", "machine_name"]

VARIABLE = "FIDGPT_MACHINE"
_MAKERS = re.compile(r"\b(NVIDIA|AMD|Intel|Tesla|GeForce|Quadro|Instinct|Graphics)\b|\(\w+\)")


def machine_name() -> str:
    """Return the device of a process and the number of processes: `h100x8`, `cpux1`.

    The environment variable FIDGPT_MACHINE overrides it, to name another machine.
    """
    if known := os.environ.get(VARIABLE):
        return known
    if torch.cuda.is_available():
        device = short_name(torch.cuda.get_device_name())
    else:
        kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = "cpu" if kind is None else kind.type
    return f"{device}x{os.environ.get('WORLD_SIZE', '1')}"


def short_name(device: str) -> str:
    """Return the short name of a device: `h100` for `NVIDIA H100 80GB HBM3`."""
    words = re.split(r"[\s\-_,]+", _MAKERS.sub(" ", device).strip())
    has_number = next((i for i, word in enumerate(words) if re.search(r"\d", word)), 0)
    return "".join(words[: has_number + 1]).lower() or "unknown"


def derive_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose, independent of all others, by SHA-256.

    `derive_seed(seed, "dropout", step)` is the same on every machine and in every Python.
    """
    text = json.dumps([seed, *purpose])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_torch(seed: int, *, device: torch.device) -> None:
    """Seed torch's random numbers on the CPU and on `device`.

    On a CPU `torch.manual_seed` takes 1 ms, because it records the stack for each accelerator.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def widest_dtype(device: torch.device) -> torch.dtype:
    """Return the most exact number format of a device: Apple's GPUs have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


T = TypeVar("T")
MEASURED = "measured.json"  # in the cache directory


def remembered(key: object, measure: Callable[[], T], *, read: Callable[[Any], T | None]) -> T:
    """Return what was measured on this machine before under a key, or measure and remember it.

    It holds for one processor, number of threads, and version of torch and fidgpt. Of processes
    that measure at once, all return what the first of them has remembered.

    Args:
      key: whatever else the measurement depends on; equal ones have equal texts.
      measure: returns something that JSON can hold.
      read: returns what was remembered as JSON gives it back; None to measure again.
    """
    machine = (processor(), torch.get_num_threads(), torch.__version__, __version__)
    digest = hashlib.sha256(repr((machine, key)).encode()).hexdigest()[:20]
    path = cache_directory() / MEASURED

    def known() -> T | None:
        return read(read_json(path).get(digest))

    if (value := known()) is not None:
        return value
    made = measure()
    with contextlib.suppress(OSError):  # measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(path, on_wait=lambda: None):
            if (value := known()) is not None:
                return value
            write_whole(path, json.dumps(read_json(path) | {digest: made}, indent=1) + "\n")
    return made


def processor() -> str:
    """Return lines that identify the kind of processor; the first line names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = ("model name", "cpu family", "model\t", "stepping", "flags")
    described = dict.fromkeys(line for line in lines if line.startswith(names))
    return "\n".join(sorted(described, key=lambda line: not line.startswith("model name")))


# Matrices to measure with: a GPU is not filled by a small one, and a CPU takes seconds for a large
# one in a number format that it emulates.
_CPU_SIZES, _SIZES = (128, 256, 512, 1024), (8192,)
_BUDGET = 0.1  # seconds


def cluster_at_hand(parallel: DataParallel, dtype: torch.dtype) -> Cluster:
    """Return the devices of the current processes, which compute in `dtype`."""
    device, hardware = parallel.device, None
    if device.type == "cuda":
        hardware = find_device(torch.cuda.get_device_name(device))
    hardware = hardware or measured_device(device, dtype)
    return calibrated(replace(hardware, memory=_memory_of(device)), parallel.planned_size)


def _memory_of(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(main_memory()) if device.type == "cpu" else math.inf


CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def main_memory() -> int:
    """Return the bytes of main memory that this process may use, beside others.

    A scheduler or a container ends processes that take more than their control group has.
    """
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *_limits()])


def _limits() -> Iterator[int]:
    """Yield what the control groups of this process may use; of none that have no limit."""
    try:
        lines = OWN_CGROUPS.read_text().splitlines()
    except OSError:  # no Linux
        return
    for number, _, place in (line.split(":", 2) for line in lines):
        own = CGROUPS / place.lstrip("/")
        for folder in (own, *own.parents) if number == "0" else ():  # 0: of the second version
            with contextlib.suppress(OSError, ValueError):  # a missing one, or "max"
                yield int((folder / "memory.max").read_text())
            if folder == CGROUPS:
                break  # a container sees the last ones alone


def machine_named(name: str, dtype: torch.dtype) -> Cluster:
    """Return a machine by a name such as `h100x8` or `cpux1`, a CPU being as fast as this one.

    Raises:
      ValueError: the device is unknown.
    """
    is_cpu = name.startswith("cpu")
    cpu = measured_device(torch.device("cpu"), dtype) if is_cpu else None
    return cluster_named(name, cpu=cpu)


def measured_device(device: torch.device, dtype: torch.dtype) -> Device:
    """Return a device of this machine, measuring its products in a tenth of a second."""
    peak = peak_flops(device, dtype)
    return Device(
        name=device.type,
        title="this machine's CPU" if device.type == "cpu" else f"this machine's {device.type}",
        flops={str(dtype).removeprefix("torch."): peak, "bfloat16": peak},
        memory=_memory_of(device),
        source="measured as it is named",
        **CPU,
    )


@functools.cache
def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the peak operations per second of a matrix product, which a process measures once.

    From a data sheet for bfloat16 on known GPUs; else the best of as many products as fit into a
    tenth of a second, because other processes slow down most of them. On a CPU, the time of the
    threads counts, all of which a large product keeps busy.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        known = find_device(torch.cuda.get_device_name(device))
        if known is not None:
            return known.peak("bfloat16")
    is_cpu, threads = device.type == "cpu", torch.get_num_threads()
    matrices = [
        torch.ones(size, size, device=device, dtype=dtype)
        for size in (_CPU_SIZES if is_cpu else _SIZES)
    ]
    best, end = 0.0, math.inf
    for matrix in chain(matrices, repeat(matrices[-1])):
        begin = time.process_time() / threads if is_cpu else time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # waits for an accelerator
        now = time.process_time() / threads if is_cpu else time.perf_counter()
        speed = 2 * len(matrix) ** 3 / max(now - begin, 1e-9)
        best = max(best, speed) if matrix is matrices[-1] else speed
        end = min(end, now + _BUDGET)  # the first product loads libraries
        if now >= end:
            break
    return best


# What a lack of memory is called where it has no class of its own.
_LACKS = (
    *("can't allocate memory", "Cannot allocate memory", "cannot allocate memory", "bad_alloc"),
    *("failed to map segment", "could not create a memory", "could not create a primitive"),
    "Storage size calculation overflowed",
)
_SURELY = 1.25  # times the memory there is: an estimate may be a few per cent off
TRAIN_WITH_LESS = (
    "Compute fewer sequences at once, which leaves the batch unchanged "
    "(fiddler:set_micro_batch_size), recompute activations (fiddler:use_recompute), or choose "
    "smaller sizes; --print=summary shows what each needs."
)


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes of this process: of the accelerator's memory, or of the machine's."""
    if device.type == "cpu":
        return heap.peak_resident_memory()
    return torch.accelerator.max_memory_allocated(device)


@contextmanager
def within_memory(*, remedy: str = TRAIN_WITH_LESS) -> Iterator[None]:
    """Turn a lack of memory into a RunError with a remedy.

    Args:
      remedy: what to do; the remedy for training by default.

    Raises:
      RunError: there is not enough memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if not is_lack_of_memory(error):
            raise
        raise RunError(f"there is not enough memory: {first_line(error):.200}\n{remedy}") from error


def lack_of_memory(plan: Plan, *, margin: float = 1.0) -> str | None:
    """Return a sentence if a run needs more than `margin` times the memory of a device."""
    peak, there = plan.peak, plan.cluster.device.memory
    if peak <= margin * there:
        return None
    return f"the run needs {peak / 1e9:,.1f} GB per device, which has {there / 1e9:,.1f}."


def require_memory(plan: Plan) -> None:
    """Raise RunError if a run is far from fitting a device, before it slows down the machine."""
    if line := lack_of_memory(plan, margin=_SURELY):
        raise RunError(f"{line}\n{TRAIN_WITH_LESS}")


def is_lack_of_memory(error: Exception) -> bool:
    """Return whether an error is a lack of memory, for which torch has no class on CPUs."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or any(words in str(error) for words in _LACKS)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]
