"""Adafactor, which remembers a row and a column for each matrix."""

import inspect
import math
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from fidgpt.optim.adam import Closure, loss_of
from fidgpt.optim.groups import require_rates

__all__ = ["Adafactor"]


_step = inspect.unwrap(torch.optim.Adafactor.step)


class Adafactor(torch.optim.Adafactor):
    """Torch's (Shazeer and Stern, 2018, arXiv:1804.04235), for dealt parameters as well.

    Rows, columns and sizes are those of a whole matrix: a parameter that is dealt over processes is
    gathered while it steps, one after the other, and what is remembered of it is on each of them.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        require_rates(lr=float(lr), weight_decay=weight_decay)
        if not -math.inf < beta2_decay <= 0:
            raise ValueError(f"{beta2_decay=} must be 0 or less, and finite: -0.8 is usual.")
        if not 1 <= d < math.inf:
            raise ValueError(f"{d=} must be 1 or more, and finite: it bounds the size of a step.")
        super().__init__(
            params, lr, beta2_decay, eps, d, weight_decay, foreach=foreach, maximize=maximize
        )

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
