"""The planner of a run, and what is planned of it before it begins."""

import copy
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fidgpt import cost
from fidgpt.files import write_whole
from fidgpt.parallel import DataParallel
from fidgpt.plan import Cluster, Planner, calibrated, find_device
from fidgpt.train.device import cpu_at_hand, peak_memory
from fidgpt.train.estimates.facts import measured_flops
from fidgpt.train.estimates.recipe import Recipe


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
    step = copy.copy(recipe.step)
    others = [recipe.precision.replica(cost.without_memory(one)) for one in step.others()]
    step.rehearse(others)
    return Planner(
        recipe,
        step.objective,
        sequences_per_row=step.sequences_per_row,
        other_bytes=sum(cost.bytes_of([*one.parameters(), *one.buffers()]) for one in others),
        flops_per_token=cost.TRAINING_PASSES * forward,
        cluster=cluster,
    )


_LEAST = 20  # steps, after which a median says something
_SAID = 0.15  # relative difference of planned and measured that is reported
FILE = "plan.json"  # in the directory of a run


class PlannedRun:
    """What was planned of a run beside what is measured of it.

    Args:
      recipe: of the run, before its model is sharded.
    """

    def __init__(self, recipe: Recipe) -> None:
        device = recipe.parallel.device
        # Of a CPU, the memory of the process counts, which has Python and torch in it.
        self._before = peak_memory(device) if device.type == "cpu" else 0
        self._seconds: list[float] = []
        self._bytes = 0
        try:
            cluster = cluster_at_hand(recipe.parallel, recipe.precision.dtype)
            self._planner = planner_of(recipe, cluster)
            self._mesh = recipe.parallel.layout(cluster.size)
        except ValueError:  # of an accelerator without a table
            self._planner = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Take note of a step's row of metrics."""
        self._seconds.append(row["step_seconds"])
        self._bytes = max(self._bytes, row["memory"])

    def finish(self, directory: Path) -> list[str]:
        """Write planned and measured numbers into a run's directory; return what to say of them."""
        if self._planner is None or len(self._seconds) < _LEAST:
            return []
        try:
            plan = self._planner.plan(self._planner.setting(self._mesh))
        except (RuntimeError, TypeError, ValueError):  # of models that read values
            return []
        held = plan.memory[plan.worst]
        planned = {"seconds": plan.step, "bytes": self._before + held.total - held.communication}
        measured = {
            "seconds": statistics.median(self._seconds[len(self._seconds) // 4 :]),
            "bytes": self._bytes,
        }
        write_whole(directory / FILE, json.dumps({"planned": planned, "measured": measured}) + "\n")
        lines = []
        for kind, unit in (("seconds", "s a step"), ("bytes", "bytes of memory")):
            ratio = measured[kind] / max(planned[kind], 1e-9)
            if abs(ratio - 1) > _SAID:
                lines.append(
                    f"Measured {measured[kind]:,.4g} {unit}, where the plan says "
                    f"{planned[kind]:,.4g}: {ratio:.2f} times as much. `python -m "
                    "fidgpt.calibrate` measures this machine for the next plan."
                )
        return lines
