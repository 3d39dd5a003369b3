"""Dry runs, and the environment that is recorded with a run."""

import math
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from fidgpt import __version__
from fidgpt.cost import first_of_each, with_zeros
from fidgpt.graph import ConfigError
from fidgpt.graph.constraints import shown, shown_last
from fidgpt.model.materialization import check_inits
from fidgpt.train import Trainer
from fidgpt.train.facts import trainable_copy

_REMEDY = (
    "--debug shows the whole error, --print what each component inherits. Models are tried on the "
    "meta device: make tensors on the device of the input, as torch.arange(n, device=x.device), "
    "and read no values of them."
)


def try_model(trainer: Trainer) -> None:
    """Passes one sequence through a model on the meta device, and asks how its values start.

    Of layers that are alike it goes through one only: where that passes, all of them would.

    Raises:
      InitError: a part does not say how it starts.
      ConfigError: parts of the model do not fit each other.
    """
    check_inits(trainer.model)
    if _runs_small(trainer):
        return
    try:
        _pass_without_memory(trainer)
    except Exception as error:  # whatever goes wrong in a model of somebody's own
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"the model cannot read a sequence of seq_len={trainer.seq_len}: its parts do not fit "
            f"each other.\n  {_where(trainer.model, error)}{line:.200}\n  {_REMEDY}"
        ) from error


def try_optimizer(trainer: Trainer) -> None:
    """Deals the parameters of a model into groups and makes the optimizer, as the run will.

    Raises:
      ConfigError: there are no such groups, or the optimizer refuses its arguments, or one of them
        is infinite, which no optimizer can step by.
    """
    model = trainer.model
    if trainer.trainable is not None:
        model = trainable_copy(model, trainer.trainable)
    groups = _made("groups", trainer.groups, model)
    optimizer = _made("optimizer", trainer.optimizer, groups) if groups else None
    for group in optimizer.param_groups if optimizer is not None else ():
        for name, value in group.items():
            if name != "params" and math.inf in map(abs, _numbers(value)):
                raise ConfigError(
                    f"optimizer: {name}={value!r} is infinite, and no step is.",
                    place="optimizer",
                    sources=[f"optimizer.{name}"],
                )


def _made(place: str, make: Callable[[Any], Any], argument: Any) -> Any:
    """What somebody's function makes of a model without memory; None where it needs numbers."""
    try:
        return make(argument)
    except RuntimeError:  # as of tensors that have none
        return None
    except (TypeError, ValueError) as error:
        arguments = getattr(make, "keywords", {})
        names = shown(str(error), arguments) or shown_last(str(error), arguments)
        sources = [f"{place}.{name}" for name in names]
        raise ConfigError(f"{place}: {error}", place=place, sources=sources) from error


def _numbers(value: Any) -> Iterator[int | float]:
    """The numbers that a setting of a group is, or holds."""
    for one in value if isinstance(value, list | tuple) else (value,):
        if isinstance(one, int | float):
            yield one


def _pass_without_memory(trainer: Trainer) -> None:
    with first_of_each(trainer.model):
        trainer.model(torch.zeros(1, trainer.seq_len, dtype=torch.int64, device="meta"))


def _runs_small(trainer: Trainer) -> bool:
    """Whether the trial passes with zeros, which is sooner; if not, the one without memory says."""
    device = trainer.parallel.device
    model = with_zeros(trainer.model, num_tokens=trainer.seq_len, device=device)
    if model is None:
        return False
    try:
        # What is made without a device is on the wrong one, as it would be on a GPU.
        with first_of_each(model), torch.device("meta"):
            model(torch.zeros(1, trainer.seq_len, dtype=torch.int64, device=device))
    except Exception:  # whatever goes wrong in a model of somebody's own
        return False
    return True


def _where(model: nn.Module, error: Exception) -> str:
    """The innermost part of a model in whose code it went wrong, and the line; "" for none."""
    names = {id(module): name for name, module in model.named_modules() if name}
    walked = list(traceback.walk_tb(error.__traceback__))
    for frame, line in reversed(walked):
        module = frame.f_locals.get("self")
        if id(module) in names and not _is_torchs(frame):
            file = Path(frame.f_code.co_filename).name
            return f"{names[id(module)]} ({type(module).__name__}), {file}:{line}: "
    return ""


def _is_torchs(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").startswith("torch.")


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
_LARGEST_PATCH = 5_000_000  # characters; more is data that somebody put under version control


def surroundings() -> dict[str, object]:
    """Time, place, hardware, packages, variables and the state of the code, as plain values."""
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
    """What turns the commit into the code that runs, for `git apply`; None where nothing does.

    Files that git does not know are not in it; `changes` of the surroundings names them.
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
    """Version of every installed package. Its folder says it; reading all metadata takes longer."""
    folders = (path for place in sys.path if place for path in Path(place).glob("*.dist-info"))
    pairs = (folder.name.removesuffix(".dist-info").rpartition("-") for folder in folders)
    return dict(sorted((name, version) for name, _, version in pairs))


def _git(*command: str) -> str | None:
    """What git says of the checkout that this code runs from; None where there is none."""
    whole = ["git", "-C", str(Path(__file__).resolve().parent), *command]
    try:
        done = subprocess.run(
            whole, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None
