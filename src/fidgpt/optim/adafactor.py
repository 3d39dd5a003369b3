"""Adafactor, which remembers a row and a column for each matrix."""

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_step = inspect.unwrap(torch.optim.Adafactor.step)


class Adafactor(torch.optim.Adafactor):
    """Torch's (Shazeer and Stern, 2018, arXiv:1804.04235), for dealt parameters as well.

    Rows, columns and sizes are those of a whole matrix: a parameter that is dealt over processes is
    gathered while it steps, one after the other, and what is remembered of it is on each of them.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what the closure does."""
        groups, state = self.param_groups, self.state
        dealt = [
            (group, parameter)
            for group in groups
            for parameter in group["params"]
            if parameter.grad is not None and hasattr(parameter, "full_tensor")
        ]
        if not dealt:
            return _step(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
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


def _put_back(whole: Tensor, parameter: Tensor) -> None:
    # Imported late: it takes longer than all else that a command starts.
    from torch.distributed.tensor.experimental import implicit_replication

    with implicit_replication():
        parameter.copy_(whole)
