"""What each of several processes gets of a machine: its GPUs in turns, a share of its cores."""

import os
from collections.abc import Mapping

import torch

_THREADS = "OMP_NUM_THREADS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def shares(num_jobs: int) -> list[dict[str, str]]:
    """The environment of each of as many processes as run side by side.

    Several GPUs are dealt out, in turns where there are more processes. The cores are divided
    among the processes unless OMP_NUM_THREADS says otherwise; one process alone has them all.
    """
    return shares_of(
        num_jobs,
        devices=visible_devices(os.environ),
        num_cores=len(os.sched_getaffinity(0)),
        environment=os.environ,
    )


def shares_of(
    num_jobs: int, *, devices: list[str], num_cores: int, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    """The same of a machine with these devices and cores."""
    dealt: list[dict[str, str]] = [{} for _ in range(num_jobs)]
    if len(devices) > 1:
        for i, share in enumerate(dealt):
            share[_VISIBLE] = devices[i % len(devices)]
    if num_jobs > 1 and _THREADS not in environment:
        for share in dealt:
            share[_THREADS] = str(max(1, num_cores // num_jobs))
    return dealt


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """The names of the GPUs that a process with this environment sees."""
    named = environment.get(_VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(i) for i in range(torch.cuda.device_count())]
