"""What is followed over a run and reported at its end: time, loads of experts, and the plan."""

import importlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fidgpt.files import write_whole
from fidgpt.heap import resident_memory
from fidgpt.model.wrappers import Compiled
from fidgpt.plan import Plan
from fidgpt.train.trackers.trackers import last_row

PHASES = ("data", "forward", "backward", "optimizer", "evaluation", "saving")
PREFIX, SLOWEST = "goodput/", "slowest/"
_KINDS = ("productive", "saving", "restoring", "redone", "waiting")
_IN_WORDS = {"restoring": "starting or restoring"}


class Goodput:
    """Adds up the seconds of a run by what they were spent on, over all of its attempts.

    An attempt is a process that trains the run, from its start to its end or its resumption. The
    sums of earlier attempts come from the last row of `metrics.jsonl`, which may be of a step
    after the checkpoint from which the run continues.

    - `productive`: steps, with their evaluation.
    - `saving`: the time that training waits for checkpoints.
    - `restoring`: from the start of an attempt to its first step, and roll-backs.
    - `redone`: steps that the run had taken before, and lost.
    - `waiting`: from the last row of an attempt to the start of the next one.

    Args:
      metrics: the file of the run's rows; None for the first attempt.
      started: when this attempt began, by `clock`.
      clock: returns seconds.
    """

    def __init__(
        self,
        metrics: Path | None,
        *,
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        row = {} if metrics is None else last_row(metrics)
        self._seconds = {kind: row.get(f"{PREFIX}{kind}", 0.0) for kind in _KINDS}
        self._attempts = row.get(f"{PREFIX}attempts", 0) + 1
        self._redone_steps = row.get(f"{PREFIX}redone_steps", 0)
        self._reached = int(row.get("step", 0))  # by earlier attempts, or before a roll-back
        self._clock, self._mark = clock, started
        self._processes: Counter[int] = Counter()
        self._phases = [0.0] * len(PHASES)
        if row and metrics is not None:
            idle = time.time() - metrics.stat().st_mtime - (clock() - started)
            self._seconds["waiting"] += max(0.0, idle)  # clocks of machines may differ

    def spent(self, kind: str) -> None:
        """Count the time since the last call."""
        now = self._clock()
        self._seconds[kind] += now - self._mark
        self._mark = now

    def stepped(self, step: int) -> dict[str, int | float]:
        """Count the time since the last call for a step; return the sums so far, by name."""
        is_redone = step <= self._reached
        self._redone_steps += is_redone
        self._reached = max(self._reached, step)
        self.spent("redone" if is_redone else "productive")
        counts = {"attempts": self._attempts, "redone_steps": self._redone_steps}
        named: dict[str, int | float] = {**self._seconds, **counts}
        return {f"{PREFIX}{name}": value for name, value in named.items()}

    def slowest(self, seconds: Sequence[Sequence[float]]) -> dict[str, int | float]:
        """Return the process that was slowest in a step, with its seconds in each phase.

        It is the process that took longest for data and the forward pass: the backward pass waits
        for all processes, and so takes the others as long. `slowest/behind` is how much longer than
        the median of all processes that was. A row names the slowest process of an earlier step,
        the last one that all processes had finished when they agreed on the numbers of the row.

        Args:
          seconds: of each process, by phase as in `PHASES`.
        """
        if len(seconds) == 1:
            return {}
        own = [row[0] + row[1] for row in seconds]
        rank = own.index(max(own))
        self._processes[rank] += 1
        self._phases = [a + b for a, b in zip(self._phases, seconds[rank], strict=True)]
        phases = {f"seconds/{name}": s for name, s in zip(PHASES, seconds[rank], strict=True)}
        behind = own[rank] - statistics.median(own)
        named: dict[str, int | float] = {"process": rank, "behind": behind, **phases}
        return {f"{SLOWEST}{name}": value for name, value in named.items()}

    def summary(self) -> str:
        """Describe where the time went, in a line or two."""
        total = sum(self._seconds.values())
        shares = ", ".join(
            f"{seconds / max(total, 1e-9):.1%} {_IN_WORDS.get(kind, kind)}"
            + (f" ({self._redone_steps:,} steps)" if kind == "redone" else "")
            for kind, seconds in self._seconds.items()
            if kind == "productive" or seconds >= 0.0005 * total
        )
        attempts = "one attempt" if self._attempts == 1 else f"{self._attempts} attempts"
        text = f"Time: {timedelta(seconds=round(total))} in {attempts}: {shares}."
        if not self._processes:
            return text
        (rank, times), steps = self._processes.most_common(1)[0], self._processes.total()
        phases = ", ".join(
            f"{name} {seconds / steps:.2g}"
            for name, seconds in zip(PHASES, self._phases, strict=True)
        )
        return (
            f"{text}\nSlowest process: {rank}, in {times / steps:.0%} of {steps:,} steps; seconds "
            f"per step of the slowest: {phases}."
        )


def phase_seconds(row: Mapping[str, Any]) -> list[float]:
    """Return the seconds of this process in each phase of a step, as in `PHASES`."""
    return [float(row.get(f"seconds/{name}", 0.0)) for name in PHASES]


_METRIC = "moe/rank_load/layers"
_MOST_LOAD = 2.0  # times its share, above which a process is named


class ExpertLoads:
    """Follows the loads of the processes that share the experts of each layer.

    Args:
      model: of the run, divided over its processes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._paths = [
            path for path, part in model.named_modules() if getattr(part, "num_ranks", 1) > 1
        ]
        self._most: dict[str, tuple[float, int, int]] = {}  # load, process and step by path

    def add(self, row: Mapping[str, Any]) -> list[str]:
        """Return a warning for each layer of a step where a process first has too much to do.

        Args:
          row: metrics of the step.
        """
        warnings = []
        for path, loads in zip(self._paths, row.get(_METRIC, ()), strict=False):
            load, before = max(loads), self._most.get(path, (0.0, 0, 0))
            if load > before[0]:
                self._most[path] = load, loads.index(load), row["step"]
            if load > _MOST_LOAD >= before[0]:
                warnings.append(
                    f"warning: step {row['step']}: process {loads.index(load)} of the {len(loads)} "
                    f"that share the experts of {path} gets {load:.2g} times its share of tokens, "
                    "and the others wait for it. Balance more, as with a larger weight of "
                    "use_moe's losses or use_loss_free_balancing, or use a smaller axis expert."
                )
        return warnings

    def summary(self) -> list[str]:
        """Describe the most that a process had to do, in a line if processes share experts."""
        if not self._most:
            return []
        path, (load, rank, step) = max(self._most.items(), key=lambda item: item[1])
        return [
            f"Experts: at most {load:.3g} times an even share of tokens on one process ({rank}, "
            f"in {path} at step {step})."
        ]


_LEAST_STEPS = 20  # after which a difference of the plan is reported
_SAID = 0.15  # relative difference of planned and measured that is reported
PLAN = "plan.json"  # in the directory of a run


class PlannedRun:
    """The planned time and memory of a run beside the measured ones.

    Args:
      device: of this process, before it allocates anything for the run.
      model: that the run trains.
    """

    def __init__(self, device: torch.device, model: nn.Module) -> None:
        if any(isinstance(module, Compiled) for module in model.modules()):
            importlib.import_module("torch._inductor.compile_fx")  # as the first step would
        # Of a CPU, the memory of the process counts, which has Python and torch in it.
        self._before = resident_memory() if device.type == "cpu" else 0
        self._seconds: list[float] = []
        self._bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Take note of a step's row of metrics."""
        self._seconds.append(row["step_seconds"])
        self._bytes = max(self._bytes, row["memory"])

    def finish(self, plan: Plan, directory: Path) -> list[str]:
        """Write planned and measured numbers into a run's directory; return what to say of them."""
        if not plan.is_executed or not self._seconds:
            return []
        held = plan.memory[plan.worst]
        planned = {"seconds": plan.step, "bytes": self._before + held.total - held.communication}
        measured = {
            "seconds": statistics.median(self._seconds[len(self._seconds) // 4 :]),
            "bytes": self._bytes,
        }
        write_whole(directory / PLAN, json.dumps({"planned": planned, "measured": measured}) + "\n")
        lines = []
        remedy = " `python -m fidgpt.calibrate` measures this machine for the next plan."
        for kind, unit, end in (("seconds", "s a step", remedy), ("bytes", "bytes of memory", "")):
            ratio = measured[kind] / max(planned[kind], 1e-9)
            if abs(ratio - 1) > _SAID and len(self._seconds) >= _LEAST_STEPS:
                lines.append(
                    f"Measured {measured[kind]:,.4g} {unit}, where the plan says "
                    f"{planned[kind]:,.4g}: {ratio:.2f} times as much.{end}"
                )
        return lines
