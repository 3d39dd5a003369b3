"""What the modules of all stages of a pipeline report in a step, known to all of its processes."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fidgpt.model.reports import Reports, Share, Tallier
from fidgpt.parallel import DataParallel
from fidgpt.parallel.pipeline import PipelinedModel
from fidgpt.processes import Processes
from fidgpt.processes.fused import FusedAllReduce, Handle
from fidgpt.train.step_metrics import StepReports


class Layout(NamedTuple):
    """What a process reports in each step.

    Attributes:
      numbers: how many values a pass has of each metric, over the stages of the process; 0 of a
        loss.
      tallies: the shape of each module's tally, by its path.
    """

    numbers: dict[str, int]
    tallies: dict[str, tuple[int, ...]]


class StageReports(StepReports):
    """Accumulates the reports of the stages of a process.

    A metric is the mean of what all layers report, and a loss the sum. Tallies are known to all
    processes, each of which keeps the buffers of all modules.

    Args:
      axis: the processes of the pipeline.
      model: the replica.
      layouts: of all processes, filled in by the first step: all steps report the same.
    """

    def __init__(self, axis: Processes, model: PipelinedModel, layouts: list[Layout]) -> None:
        super().__init__()
        self._axis = axis
        self._model = model
        self._layouts = layouts
        self._numbers: dict[int, Counter[str]] = {}

    def add_stage(self, reports: Reports, share: Share | None, stage: int) -> None:
        """Add the reports of a micro-batch in a stage."""
        self._numbers[stage] = reports.num_metrics
        self.add(reports, share)

    def _values(self, reports: Reports, share: Share | None) -> dict[str, Tensor]:
        numbers, means = reports.num_metrics, reports.metrics_of(share)
        sums = {name: mean * numbers[name] for name, mean in means.items()}
        return {**sums, **reports.losses_of(share)}

    def join(self, fused: FusedAllReduce, parallel: DataParallel) -> None:
        """Let the fused all-reduce of a step sum what was reported over all processes."""
        self._num_processes = parallel.tokens.size
        tallies = {path: self._tallies[part] for path, part in self._paths().items()}
        if not self._layouts:
            numbers = sum(self._numbers.values(), Counter[str]())
            own = {name: numbers[name] for name in self._means}
            shapes = {path: tuple(tally.shape) for path, tally in tallies.items()}
            self._layouts += self._axis.gather(Layout(own, shapes))
        names = [*dict.fromkeys(name for layout in self._layouts for name in layout.numbers)]
        zero = torch.zeros((), device=parallel.device)
        values = torch.stack([self._means.get(name, zero) for name in names])
        counts = float(parallel.places.is_first_of_stage)
        self._sums = fused.sum_everywhere(values * counts)
        sizes = [sum(map(math.prod, layout.tallies.values())) for layout in self._layouts]
        if sum(sizes):
            rank = self._axis.rank
            parts = [tally.flatten().double() for tally in tallies.values()]
            flat = torch.cat([zero.double().new_zeros(0), *parts]) * counts
            padding = sum(sizes[:rank]), sum(sizes[rank + 1 :])
            self._join_tallies(fused.sum_everywhere(F.pad(flat, padding)))

    def means(self) -> dict[str, Tensor]:
        """Return what was reported, the same on every process."""
        assert self._sums is not None, "join() has not been called"
        means = self._sums() / self._num_processes
        numbers: dict[str, int] = {}
        for layout in self._layouts:
            for name, number in layout.numbers.items():
                numbers[name] = numbers.get(name, 0) + number
        return {
            name: mean / max(1, number)
            for (name, number), mean in zip(numbers.items(), means.unbind(), strict=True)
        }

    def _paths(self) -> dict[str, Tallier]:
        """Return the modules of these stages that have a tally, by path."""
        modules = {path: module for path, module in self._model.named_modules()}
        return {p: m for p, m in modules.items() if isinstance(m, Tallier) and m in self._tallies}

    def _join_tallies(self, sums: Handle) -> None:
        """Let each module find its tally among the sums, in the order of the model."""

        def part(begin: int, shape: Sequence[int]) -> Tensor:
            return sums().narrow(0, begin, math.prod(shape)).round().long().view(*shape)

        begin, parts = 0, dict[str, Handle]()
        for layout in self._layouts:
            for path, shape in layout.tallies.items():
                parts[path] = partial(part, begin, shape)
                begin += math.prod(shape)
        for path, module in self._model.named_modules():
            if path in parts and isinstance(module, Tallier):
                self._summed[module] = parts[path]
