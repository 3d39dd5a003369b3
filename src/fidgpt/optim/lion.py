"""Lion, which steps by the sign of an average."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.optim.adam import Closure, loss_of
from fidgpt.optim.groups import require_betas, require_rates

__all__ = ["Lion"]


class Lion(Optimizer):
    """Steps by the sign of a mean of gradients (Chen et al., 2023, arXiv:2302.06675).

    It remembers one number for each weight, half of what AdamW does. Its authors take a learning
    rate 3 to 10 times smaller than AdamW's, and a weight decay as many times larger.

    Args:
      params: parameters, or groups of them with settings of their own.
      lr: learning rate; every weight moves by it at every step.
      betas: share of the running mean in the step, and in the mean that is kept.
      weight_decay: lr * weight_decay is the share of a weight that each step takes away.

    Raises:
      ValueError: a rate, decay or share is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.1,
    ) -> None:
        require_rates(lr=lr, weight_decay=weight_decay)
        require_betas(betas)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step; returns what the closure does."""
        loss = loss_of(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (now, kept) = self.state[parameter], group["betas"]
        if not state:
            state["mean"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        direction = state["mean"].lerp(gradient, 1 - now).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"])
        state["mean"].lerp_(gradient, 1 - kept)
