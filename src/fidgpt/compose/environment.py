"""The environment that is recorded with a run: machine, packages, variables, state of the code."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from fidgpt import __version__

# Variables of the environment that change what is computed, or how fast. Others may hold secrets.
_VARIABLES = (
    "CUBLAS_",
    "CUDA_",
    "FIDGPT_",
    "GLOO_",
    "KMP_",
    "LOCAL_WORLD_SIZE",
    "MKL_",
    "NCCL_",
    "NVIDIA_TF32",
    "OMP_",
    "PYTHONHASHSEED",
    "PYTORCH_",
    "SLURM_JOB_ID",
    "TORCH",
    "WORLD_SIZE",
)
_SECRET = ("KEY", "PASSWORD", "SECRET", "TOKEN")
_LARGEST_PATCH = 5_000_000  # characters; more is data that was put under version control


def environment() -> dict[str, object]:
    """Return time, place, hardware, packages, variables and the state of the code."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "working_directory": str(Path.cwd()),
        "hardware": _hardware(),
        "threads": torch.get_num_threads(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES) and not any(word in name for word in _SECRET)
        },
        "packages": {"fidgpt": __version__} | _packages(),
        "git": {"commit": _git("rev-parse", "HEAD"), "changes": _git("status", "--porcelain")},
    }


def patch() -> str | None:
    """Return what turns the commit into the code that runs, for `git apply`; None if nothing does.

    Files that git does not know are not in it; `changes` of the environment names them.
    """
    text = _git("diff", "HEAD", "--binary")
    if not text:
        return None
    if len(text) > _LARGEST_PATCH:
        return f"The changes are {len(text):,} characters long and were left out.\n"
    return text + "\n"


def _hardware() -> dict[str, object]:
    devices = range(torch.cuda.device_count())
    kinds = [torch.cuda.get_device_properties(device) for device in devices]
    return {
        "processor": _processor(),
        "processor_count": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerators": [{"name": kind.name, "memory_bytes": kind.total_memory} for kind in kinds],
        "cuda": torch.version.cuda,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _packages() -> dict[str, str]:
    """Return the version of every installed package, by its folder: metadata takes longer."""
    folders = (path for place in sys.path if place for path in Path(place).glob("*.dist-info"))
    pairs = (folder.name.removesuffix(".dist-info").rpartition("-") for folder in folders)
    return dict(sorted((name, version) for name, _, version in pairs))


def _git(*command: str) -> str | None:
    """Return what git prints about the checkout that this code runs from; None if it is none."""
    whole = ["git", "-C", str(Path(__file__).resolve().parent), *command]
    try:
        done = subprocess.run(
            whole, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None
