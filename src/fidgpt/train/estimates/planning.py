"""The planner of a run, and what is planned of it before it begins."""

import torch

from fidgpt import cost
from fidgpt.parallel import DataParallel
from fidgpt.plan import Cluster, Planner, calibrated, find_device
from fidgpt.train.device import cpu_at_hand
from fidgpt.train.estimates.facts import Recipe, measured_flops
from fidgpt.train.loss import NextToken


def cluster_at_hand(parallel: DataParallel, dtype: torch.dtype) -> Cluster:
    """Return the devices of the current processes.

    Raises:
      ValueError: there is no table of the accelerator.
    """
    kind = parallel.device.type
    device = cpu_at_hand(dtype) if kind == "cpu" else None
    if kind == "cuda":
        title = torch.cuda.get_device_name(parallel.device)
        device = find_device(title)
        kind = title
    if device is None:
        raise ValueError(
            f"there is no table of {kind!r}: name a machine like it, as --hardware=h100x8."
        )
    return calibrated(device, parallel.planned_size)


def planner_of(recipe: Recipe, cluster: Cluster) -> Planner:
    """Return the planner of a run on some devices."""
    measured = measured_flops(recipe.model, seq_len=recipe.seq_len) or {}
    forward = cost.flops_per_token(recipe.model, seq_len=recipe.seq_len) + sum(measured.values())
    flops = cost.TRAINING_PASSES * forward
    return Planner(recipe, NextToken, flops_per_token=flops, cluster=cluster)
