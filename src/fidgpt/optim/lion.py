"""Lion."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.optim.adam import Closure, loss_of
from fidgpt.optim.groups import require_betas, require_rates

__all__ = ["Lion"]


class Lion(Optimizer):
    """Steps by the sign of an interpolated momentum (Chen et al., 2023, arXiv:2302.06675).

    It keeps one value per weight, half as much as AdamW. Its authors use a learning rate 3 to 10
    times smaller than AdamW's, and a weight decay as many times larger.

    Args:
      params: parameters, or parameter groups.
      lr: learning rate; every weight moves by it at every step.
      betas: share of the momentum in the step's direction, and in its own update.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.

    Raises:
      ValueError: a value is out of range.
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
        """Step once, and return the value of the closure."""
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
