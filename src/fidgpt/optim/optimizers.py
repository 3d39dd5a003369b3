"""Optimizers: AdamW, AdEMAMix and Lion."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.processes import Processes
from fidgpt.ranges import require_not_negative

__all__ = ["Lion", "SharesWork", "adamw", "ademamix"]


Closure = Callable[[], Any]
Group = dict[str, Any]


@runtime_checkable
class SharesWork(Protocol):
    """An optimizer whose steps the processes of a run share, such as work on whole matrices."""

    def share_work(self, processes: Processes, /) -> None:
        """Divide the steps that follow over all processes of the run; all of them call this."""
        ...


def require_settings(
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, ...] = (0.0, 0.0),
    eps: float = 0.0,
) -> None:
    """Raise ValueError unless betas are in [0, 1) and the others finite and non-negative."""
    require_not_negative(lr=lr, weight_decay=weight_decay, eps=eps)
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"{betas=} must be in [0, 1).")


def loss_of(closure: Closure | None) -> Any:
    """Call the closure with gradients enabled, and return its value; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


_FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}
_adamw_step = inspect.unwrap(torch.optim.AdamW.step)


class AdamW(torch.optim.AdamW):
    """torch's AdamW without its wrappers for torch.compile.

    Each wrapper imports torch's compiler on its first call, which takes 1.5 s.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    def begin(self) -> None:
        """Make the state, which the first step makes otherwise.

        Behind the gradients of that step, it would leave gaps in memory that the logits of later
        steps do not fit: 0.4 GB in the training of GPT-2.
        """
        for group in self.param_groups:
            for parameter in group["params"] if group["fused"] else ():
                if parameter.requires_grad:
                    self.state[parameter] = {
                        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        return _adamw_step(self, closure)


def adamw(
    params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> torch.optim.AdamW:
    """Return torch's AdamW (Loshchilov and Hutter, 2019, arXiv:1711.05101), fused if possible.

    The fused kernel makes one pass over memory instead of a dozen: a step of 124 million parameters
    takes 65 ms instead of 215 on two cores. If torch has no fused kernel for the parameters' device
    or dtype, its default implementation is used.

    Args:
      params: parameters, or parameter groups.
      lr: learning rate.
      betas: decay rates of the running means of the gradient and its square.
      eps: added to the denominator.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.

    Raises:
      ValueError: a value is out of range.
    """
    require_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
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


def ademamix(
    params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
    *,
    lr: float,
    betas: tuple[float, float, float] = (0.9, 0.95, 0.9999),
    alpha: float = 5.0,
    warmup_steps: int | None = None,
    eps: float = 1e-8,
    weight_decay: float = 0.1,
) -> Optimizer:
    """Return pytorch_optimizer's AdEMAMix (Pagliardini et al., 2024, arXiv:2409.03137).

    AdamW that adds a slow mean of the gradient, which remembers tens of thousands of steps. Each
    element is treated by itself, so that shards are exact.

    Args:
      params: parameters, or parameter groups.
      lr: learning rate.
      betas: decay rates of the running means of the gradient and its square, and of the slow mean.
      alpha: weight of the slow mean.
      warmup_steps: steps over which `alpha` and the last of `betas` rise (section 3); the paper
        takes all steps of the run. None for no rise.
      eps: added to the denominator.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.

    Raises:
      ValueError: a value is out of range, or the package is not installed.
    """
    require_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    try:
        package = importlib.import_module("pytorch_optimizer")
    except ImportError as error:
        raise ValueError('ademamix needs: pip install "fidgpt[optimizers]"') from error
    decay = {"weight_decay": weight_decay, "weight_decouple": True}
    rise = {"alpha": alpha, "t_alpha_beta3": warmup_steps}
    return package.AdEMAMix(params, lr=lr, betas=betas, eps=eps, **rise, **decay)


def _fusible(groups: list[Any]) -> bool:
    """Return whether torch has a fused kernel for all parameters; `step` fails without one."""
    lists = [group["params"] if isinstance(group, dict) else [group] for group in groups]
    return all(
        parameter.is_floating_point() and parameter.device.type in _FUSED_DEVICES
        for parameters in lists
        for parameter in parameters
    )


class Lion(Optimizer):
    """Lion: updates by the sign of an interpolated momentum (Chen et al., 2023, arXiv:2302.06675).

    Its state is one value per weight, half of AdamW's. The authors recommend a learning rate 3 to
    10 times smaller than AdamW's, and a weight decay larger by the same factor.

    Args:
      params: parameters, or parameter groups.
      lr: learning rate, the size of every weight's update before weight decay.
      betas: weight of the momentum in the interpolation, and decay rate of the momentum.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.

    Raises:
      ValueError: a value is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.1,
    ) -> None:
        require_settings(lr=lr, weight_decay=weight_decay, betas=betas)
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

    def _move(self, parameter: Tensor, gradient: Tensor, group: Group) -> None:
        state, (now, kept) = self.state[parameter], group["betas"]
        if not state:
            state["mean"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        direction = state["mean"].lerp(gradient, 1 - now).sign_()
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"])
        state["mean"].lerp_(gradient, 1 - kept)
