"""Adafactor, which remembers a row and a column for each matrix."""

import inspect
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from fidgpt.optim.adam import Closure, loss_of
from fidgpt.optim.groups import require_rates

_step = inspect.unwrap(torch.optim.Adafactor.step)


class Adafactor(torch.optim.Adafactor):
    """Torch's (Shazeer and Stern, 2018, arXiv:1804.04235), for dealt parameters as well.

    Rows, columns and sizes are those of a whole matrix: a parameter that is dealt over processes is
    gathered while it steps, one after the other, and what is remembered of it is on each of them.
    """

    @staticmethod
    def check_arguments(*, lr: float, weight_decay: float, beta2_decay: float, d: float) -> None:
        """Raises ValueError where torch's own constructor would, and for what is infinite."""
        require_rates(lr=lr, weight_decay=weight_decay)
        if not -math.inf < beta2_decay <= 0:
            raise ValueError(f"{beta2_decay=} must be 0 or less, and finite: -0.8 is usual.")
        if not 1 <= d < math.inf:
            raise ValueError(f"{d=} must be 1 or more, and finite: it bounds the size of a step.")

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step; returns what the closure does."""
        groups, state = self.param_groups, self.state
        dealt = [
            (group, parameter)
            for group in groups
            for parameter in group["params"]
            if parameter.grad is not None and hasattr(parameter, "device_mesh")
        ]
        if not dealt:
            return _step(self, closure)
        loss = loss_of(closure)
        try:
            for group, parameter in dealt:
                whole = _whole(parameter)
                whole.grad = _whole(parameter.grad)
                self.param_groups = [group | {"params": [whole]}]
                remembered = state[parameter]
                for name, value in remembered.items():  # as a checkpoint gives it back
                    remembered[name] = _whole(value)
                self.state = defaultdict(dict, {whole: remembered})
                _step(self)
                _put_back(whole, parameter)
        finally:
            self.param_groups, self.state = groups, state
        return loss


def _whole(tensor: Tensor) -> Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)()


def _put_back(whole: Tensor, parameter: Any) -> None:
    # Imported late: it takes longer than all else that a command starts.
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    # Every process has the same values: nothing is sent.
    own = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    parameter.to_local().copy_(own.to_local())
