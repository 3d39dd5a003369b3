"""The loads of processes that share experts: which gets more tokens than others, in which layer."""

from collections.abc import Mapping
from typing import Any

from torch import nn

_METRIC = "moe/rank_load/layers"
_MOST = 2.0  # times its share, above which a process is named


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
            if load > _MOST >= before[0]:
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
