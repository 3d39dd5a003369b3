"""What was reported during an optimizer step, over all its micro-batches and processes."""

from typing import Any

import torch
from torch import Tensor

from fidgpt.model.reports import Reports, Tallier
from fidgpt.parallel import DataParallel

_MOST_NUMBERS = 1024  # of one metric in a row, which is to stay a line that can be read


class StepReports:
    """Adds up the reports of micro-batches, and settles them once the step is done."""

    def __init__(self) -> None:
        self._means: dict[str, Tensor] = {}
        self._tallies: dict[Tallier, Tensor] = {}

    def add(self, reports: Reports, *, share: float) -> None:
        """Adds those of a micro-batch that has `share` of the rows."""
        for name, value in {**reports.metrics, **reports.losses}.items():
            part = value.detach().float() * share
            self._means[name] = self._means[name] + part if name in self._means else part
        for part, tally in reports.tallies.items():
            # Kept for longer than a CUDA graph keeps what it gives.
            before = self._tallies.get(part)
            self._tallies[part] = tally.clone() if before is None else before + tally

    def means(self, parallel: DataParallel) -> dict[str, float]:
        """What was reported as numbers, the same on every process."""
        means = parallel.mean(torch.stack(list(self._means.values()))).tolist()
        return dict(zip(self._means, means, strict=True))

    def settle(self, parallel: DataParallel) -> dict[str, Any]:
        """Lets every part hear its tally; returns what they measure, the same on every process.

        A number that several parts measure is averaged over them under its name, and is in a list
        under `name/layers` too. A vector is there alone, if there are no more than 1,024 numbers.
        """
        measured: dict[str, list[Tensor]] = {}
        for part, tally in self._summed(parallel):
            for name, value in part.settle(tally).items():
                measured.setdefault(name, []).append(value)
        row: dict[str, Any] = {}
        for name, values in measured.items():
            row |= _listed(name, values)
        return row

    def _summed(self, parallel: DataParallel) -> list[tuple[Tallier, Tensor]]:
        """Each part with its tally over all processes, which speak of all of them at once."""
        if not self._tallies:
            return []
        tallies = list(self._tallies.values())
        joined = parallel.sum(torch.cat([tally.flatten() for tally in tallies]))
        summed = joined.split([tally.numel() for tally in tallies])
        return [
            (part, total.view_as(tally))
            for (part, tally), total in zip(self._tallies.items(), summed, strict=True)
        ]


def _listed(name: str, values: list[Tensor]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if not values[0].dim():
        row[name] = torch.stack(values).mean().item()
    if sum(value.numel() for value in values) <= _MOST_NUMBERS:
        row[f"{name}/layers"] = [value.tolist() for value in values]
    return row
