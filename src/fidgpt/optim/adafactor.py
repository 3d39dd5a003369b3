"""Adafactor, whose second moments are a row and a column for each matrix."""

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
    """Torch's Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235) that also steps DTensors.

    Rows, columns and sizes are those of the full matrix: sharded parameters are gathered one at a
    time for their step, and every process holds the full optimizer state.

    Raises:
      ValueError: a rate, decay or bound is out of range or not finite.
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
        """Step once, and return the value of the closure."""
        groups, state = self.param_groups, self.state
        sharded = [
            (group, parameter)
            for group in groups
            for parameter in group["params"]
            if parameter.grad is not None and hasattr(parameter, "device_mesh")
        ]
        if not sharded:
            return _step(self, closure)
        loss = loss_of(closure)
        try:
            for group, parameter in sharded:
                whole = _whole(parameter)
                whole.grad = _whole(parameter.grad)
                self.param_groups = [group | {"params": [whole]}]
                own = state[parameter]
                for name, value in own.items():  # sharded if loaded from a checkpoint
                    own[name] = _whole(value)
                self.state = defaultdict(dict, {whole: own})
                _step(self)
                _put_back(whole, parameter)
        finally:
            self.param_groups, self.state = groups, state
        return loss


def _whole(tensor: Tensor) -> Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)()


def _put_back(whole: Tensor, parameter: Any) -> None:
    # Imported here because it takes longer than the rest of a command's start.
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    # Every process has the same values, so nothing needs to be sent.
    own = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    parameter.to_local().copy_(own.to_local())
