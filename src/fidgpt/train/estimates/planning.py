"""The plan of a run beside its measurements."""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fidgpt.files import write_whole
from fidgpt.plan import Plan
from fidgpt.train.device import resident_memory

_LEAST = 20  # steps, after which a difference is reported
_SAID = 0.15  # relative difference of planned and measured that is reported
FILE = "plan.json"  # in the directory of a run


class PlannedRun:
    """The planned time and memory of a run beside the measured ones.

    Args:
      device: of this process, before it allocates anything for the run.
    """

    def __init__(self, device: torch.device) -> None:
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
        write_whole(directory / FILE, json.dumps({"planned": planned, "measured": measured}) + "\n")
        lines = []
        remedy = " `python -m fidgpt.calibrate` measures this machine for the next plan."
        for kind, unit, end in (("seconds", "s a step", remedy), ("bytes", "bytes of memory", "")):
            ratio = measured[kind] / max(planned[kind], 1e-9)
            if abs(ratio - 1) > _SAID and len(self._seconds) >= _LEAST:
                lines.append(
                    f"Measured {measured[kind]:,.4g} {unit}, where the plan says "
                    f"{planned[kind]:,.4g}: {ratio:.2f} times as much.{end}"
                )
        return lines
