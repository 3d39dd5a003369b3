"""How each group of parameters learns: its gradient's norm, its rate, and how far it moves."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fidgpt.train.steps.gradients import GradientNorms, norms_of

Group = dict[str, Any]


class StepMeters:
    """Measures every `every` steps, of each group: three numbers, named after the group.

    `grad_norm/<group>`, before clipping; `learning_rate/<group>`; and `update_ratio/<group>`, the
    norm of what the step changed over the norm of the weights, of which about 1e-3 is usual. Such
    a step keeps a copy of the weights that are trained.

    Args:
      every: steps.

    Raises:
      ValueError: it is below 1.
    """

    def __init__(self, *, every: int = 10) -> None:
        self.check_arguments(every=every)
        self.every = every

    @staticmethod
    def check_arguments(*, every: int) -> None:
        """Raises ValueError unless `every` is at least 1."""
        if every < 1:
            raise ValueError(f"{every=} must be 1 or more steps.")

    def due(self, step: int) -> bool:
        """Whether to measure a step, counted from 1."""
        return step % self.every == 0

    @contextmanager
    def measuring(
        self, groups: Sequence[Group], norms: GradientNorms
    ) -> Iterator[dict[str, float]]:
        """Around the optimizer's step; the dict is filled once it is done."""
        before = [[p.detach().clone() for p in group["params"]] for group in groups]
        measured: dict[str, float] = {}
        yield measured
        for name, group, old in zip(_names(groups), groups, before, strict=True):
            parameters: list[nn.Parameter] = group["params"]
            weights = torch.linalg.vector_norm(norms_of(old)).item()
            with torch.no_grad():
                moved = norms_of([p - o for p, o in zip(parameters, old, strict=True)])
            measured[f"grad_norm/{name}"] = norms.over(parameters).item()
            # Weights that are all zero have no size to compare with.
            update = torch.linalg.vector_norm(moved).item()
            measured[f"update_ratio/{name}"] = update / weights if weights else 0.0
            measured[f"learning_rate/{name}"] = float(group["lr"])


def _names(groups: Sequence[Group]) -> list[str]:
    """One for each group, such as every tracker takes; groups of the same name are numbered."""
    said = [
        re.sub(r"\W+", "_", str(group.get("name", number)), flags=re.ASCII)
        for number, group in enumerate(groups)
    ]
    return [
        f"{name}_{said[: number + 1].count(name)}" if said.count(name) > 1 else name
        for number, name in enumerate(said)
    ]
