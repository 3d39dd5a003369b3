"""What a run records of its surroundings: hardware, packages, variables and the code's state."""

import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from fidgpt import __version__
from fidgpt.train import device

# Variables that change results, or how fast they are computed. Others may hold secrets.
_VARIABLE = re.compile(
    "(CUBLAS|CUDA|FIDGPT|GLOO|KMP|MKL|NCCL|OMP|PYTORCH)_|TORCH|PYTHONHASHSEED|NVIDIA_TF32|"
    "SLURM_JOB_ID|(LOCAL_)?WORLD_SIZE"
)
_SECRET = re.compile("KEY|PASSWORD|SECRET|TOKEN")


def record() -> dict[str, object]:
    """Return time, place, hardware, packages, variables and the state of the code."""
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    # The folder of a package has its version; reading metadata takes longer.
    folders = [path for place in sys.path if place for path in Path(place).glob("*.dist-info")]
    versions = [folder.name.removesuffix(".dist-info").rpartition("-") for folder in folders]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "working_directory": str(Path.cwd()),
        "hardware": {
            "processor": device.processor().partition("\n")[0].partition(": ")[2],
            "processor_count": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "accelerators": [{"name": d.name, "memory_bytes": d.total_memory} for d in devices],
            "cuda": torch.version.cuda,
        },
        "threads": torch.get_num_threads(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if _VARIABLE.match(name) and not _SECRET.search(name)
        },
        "packages": {"fidgpt": __version__}
        | {name: version for name, _, version in sorted(versions)},
        "git": {"commit": _git("rev-parse", "HEAD"), "changes": _git("status", "--porcelain")},
    }


def patch() -> str | None:
    """Return what turns the commit into the code that runs, for `git apply`; None if nothing does.

    Files that git does not know are not in it; `changes` of the environment names them.
    """
    text = _git("diff", "HEAD", "--binary")
    return f"{text}\n" if text else None


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
