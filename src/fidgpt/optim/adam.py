"""AdamW, fused where torch can."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fidgpt.optim.groups import require_adam

__all__ = ["adamw"]


Closure = Callable[[], Any]


def loss_of(closure: Closure | None) -> Any:
    """Call the closure with gradients enabled, and return its value; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


_FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}
_step = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """Torch's AdamW without its wrappers for torch.compile.

    Each of these imports torch's compiler at its first call, which takes 1.5 s.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        return _step(self, closure)


def adamw(
    params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> torch.optim.AdamW:
    """Return torch's AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), fused if possible.

    The fused kernel passes over memory once instead of a dozen times: 65 ms instead of 215 per
    step of 124 million parameters on two cores. Where torch has no fused kernel for the
    parameters' device or dtype, this is torch's default implementation.

    Args:
      params: parameters, or parameter groups.
      lr: learning rate.
      betas: decay rates of the running means of the gradient and of its square.
      eps: added to the denominator.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.

    Raises:
      ValueError: a value is out of range.
    """
    require_adam(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    groups: list[Any] = [
        {**group, "params": list(group["params"])} if isinstance(group, Mapping) else group
        for group in params
    ]
    return AdamW(
        groups,
        lr=lr,
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        fused=_fusible(groups) or None,
    )


def _fusible(groups: list[Any]) -> bool:
    """Return whether torch has a fused kernel for all parameters; it would fail in `step`."""
    lists = [group["params"] if isinstance(group, dict) else [group] for group in groups]
    return all(
        parameter.is_floating_point() and parameter.device.type in _FUSED_DEVICES
        for parameters in lists
        for parameter in parameters
    )
