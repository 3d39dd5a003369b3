"""What an optimizer's `step` may be handed: a function that computes the loss and its gradients."""

from collections.abc import Callable
from typing import Any

import torch

Closure = Callable[[], Any]


def loss_of(closure: Closure | None) -> Any:
    """What the function returns, which is called with gradients switched on; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
