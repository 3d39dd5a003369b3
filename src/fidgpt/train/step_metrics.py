"""What an optimizer step measures: numbers of parameter groups, and what modules report."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fidgpt.model.reports import Reports, Share, Tallier
from fidgpt.parallel import DataParallel
from fidgpt.processes.fused import FusedAllReduce, Handle
from fidgpt.ranges import require_size
from fidgpt.train.device import widest_dtype
from fidgpt.train.gradients import GradientNorms, norms_of
from fidgpt.train.optimizer_groups import Group

__all__ = ["StepMeters"]


class StepMeters:
    """Measures three numbers for each parameter group every `every` steps.

    `grad_norm/<group>`, before clipping; `learning_rate/<group>`; and `update_ratio/<group>`, the
    norm of the update over the norm of the weights, typically about 1e-3. Such a step keeps a copy
    of the trained weights.

    Args:
      every: steps.

    Raises:
      ValueError: it is below 1.
    """

    def __init__(self, *, every: int = 10) -> None:
        require_size(every=every)
        self.every = every

    def due(self, step: int) -> bool:
        """Return whether to measure a step, counted from 1."""
        return step % self.every == 0

    @contextmanager
    def measuring(
        self, groups: Sequence[Group], norms: GradientNorms
    ) -> Iterator[dict[str, float | Tensor]]:
        """Wrap the optimizer's step; the dict is filled when it is done."""
        before = [[p.detach().clone() for p in group["params"]] for group in groups]
        measured: dict[str, float | Tensor] = {}
        yield measured
        for name, group, old in zip(_names(groups), groups, before, strict=True):
            parameters: list[nn.Parameter] = group["params"]
            weights = torch.linalg.vector_norm(norms_of(old, parameters))
            with torch.no_grad():
                steps = [p - o for p, o in zip(parameters, old, strict=True)]
                moved = norms_of(steps, parameters)
            measured[f"grad_norm/{name}"] = norms.norm_of(parameters)
            # Weights that are all zero have no norm to compare with.
            update, dtype = torch.linalg.vector_norm(moved), widest_dtype(weights.device)
            ratio = update.to(dtype) / weights.to(dtype)
            measured[f"update_ratio/{name}"] = torch.where(weights == 0, 0.0, ratio)
            measured[f"learning_rate/{name}"] = float(group["lr"])


def _names(groups: Sequence[Group]) -> list[str]:
    """Return a name for each group that every tracker accepts; duplicates are numbered."""
    plain = [
        re.sub(r"\W+", "_", str(group.get("name", number)), flags=re.ASCII)
        for number, group in enumerate(groups)
    ]
    return [
        f"{name}_{plain[: number + 1].count(name)}" if plain.count(name) > 1 else name
        for number, name in enumerate(plain)
    ]


_MAX_NUMBERS = 1024  # of one metric in a row, which should stay readable


class StepReports:
    """Accumulates the reports of micro-batches, and settles them after the step."""

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}
        self._tallies: dict[Tallier, Tensor] = {}
        self._sums: Handle | None = None
        self._summed: dict[Tallier, Handle] = {}
        self._num_processes = 1

    @torch.no_grad()
    def add(self, reports: Reports, share: Share | None) -> None:
        """Add the metrics and tallies of a micro-batch."""
        for name, value in self._values(reports, share).items():
            part = value.detach().float()
            self._means[name] = self._means[name] + part if name in self._means else part
        for part, tally in reports.tallies.items():
            # Cloned because a CUDA graph overwrites its outputs.
            before = self._tallies.get(part)
            self._tallies[part] = tally.clone() if before is None else before + tally

    def _values(self, reports: Reports, share: Share | None) -> dict[str, Tensor]:
        """Return the values of a micro-batch that add up over the micro-batches of a step."""
        return {**reports.metrics_of(share), **reports.losses_of(share)}

    def join(self, fused: FusedAllReduce, parallel: DataParallel) -> None:
        """Let the fused all-reduce of a step sum what was reported over the processes."""
        self._num_processes = parallel.tokens.size
        self._sums = fused.sum(torch.stack(list(self._means.values())))
        self._summed = {part: fused.sum(tally) for part, tally in self._tallies.items()}

    def means(self) -> dict[str, Tensor]:
        """Return what was reported, the same on every process."""
        assert self._sums is not None, "join() has not been called"
        means = self._sums() / self._num_processes
        return dict(zip(self._means, means.unbind(), strict=True))

    def settle(self) -> dict[str, Tensor | list[Tensor]]:
        """Give every module its tally; return what they measure, the same on every process.

        A number that several modules measure is averaged over them under its name, and listed under
        `name/layers` too. A vector is only listed, if there are no more than 1,024 numbers.
        """
        measured: dict[str, list[Tensor]] = {}
        for part, tally in self._summed.items():
            for name, value in part.settle(tally()).items():
                measured.setdefault(name, []).append(value)
        row: dict[str, Tensor | list[Tensor]] = {}
        for name, values in measured.items():
            if not values[0].dim():
                row[name] = torch.stack(values).mean()
            if sum(value.numel() for value in values) <= _MAX_NUMBERS:
                row[f"{name}/layers"] = values
        return row
