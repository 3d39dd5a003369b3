"""Scaling of the loss, so that the gradients of a narrow number format do not vanish."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_LEAST = 1e-4  # below, it is no overflow of the scaled gradients any more, but a divergence


class LossScaling:
    """A factor that grows until gradients overflow, and shrinks when they do (torch's GradScaler).

    A step whose gradients overflow is left out and the factor halved; after `growth_interval` steps
    in a row without that it is doubled.

    Args:
      init_scale: the factor at first.
      growth_interval: steps.

    Attributes:
      scale: the factor of the next step.

    Raises:
      ValueError: `init_scale` is not above 0, or `growth_interval` is below 1.
    """

    def __init__(self, *, init_scale: float = 65536.0, growth_interval: int = 2000) -> None:
        self.check_arguments(init_scale=init_scale, growth_interval=growth_interval)
        self.scale = init_scale
        self.growth_interval = growth_interval
        self._steps = 0  # since the factor last changed

    @staticmethod
    def check_arguments(*, init_scale: float, growth_interval: int) -> None:
        """Raises ValueError unless there is a factor, and steps to wait for."""
        if not 0 < init_scale < math.inf:
            raise ValueError(f"{init_scale=} would leave no gradient: use one above 0, as 65536.")
        if growth_interval < 1:
            raise ValueError(f"{growth_interval=} must be 1 or more steps.")

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss that is differentiated."""
        return loss * self.scale

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divides gradients, which are in float32, by the factor; overflown ones stay infinite."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self.scale)

    def takes(self, *, is_finite: bool) -> bool:
        """Hears of every step's gradients; whether they are what the loss asks for.

        A step that is not finite however small the factor is has diverged, and is taken for one
        that somebody else has to judge.
        """
        if is_finite:
            self._steps += 1
            if self._steps >= self.growth_interval:  # which may be shorter than before a resume
                self.scale, self._steps = 2 * self.scale, 0
            return True
        if self.scale < _LEAST:
            return True
        self.scale, self._steps = self.scale / 2, 0
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        self.scale, self._steps = state["scale"], state["steps"]
