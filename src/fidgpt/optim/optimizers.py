"""Optimizers: AdamW, schedule-free AdamW, AdEMAMix and Lion."""

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.processes import Processes
from fidgpt.ranges import require_not_negative

__all__ = ["Lion", "ScheduleFreeAdamW", "SharesWork", "adamw", "ademamix"]

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


class ScheduleFreeAdamW(Optimizer):
    """AdamW that replaces the decay of the learning rate by an average of the weights.

    Algorithm 1 of Defazio et al., 2024 (arXiv:2405.15682). With gradients g at y, step t does

        v = beta2 v + (1 - beta2) g^2
        rate = lr sqrt(1 - beta2^t)
        z = z - rate (g / (sqrt(v) + eps) + weight_decay y)
        x = (1 - c) x + c z,  where c = rate^2 / (sum of rate^2 so far)
        y = (1 - beta1) z + beta1 x

    The parameters are y, where gradients are computed, and the weights to evaluate are x, which
    `swap_weights` puts in their place. The state is z and v, the same memory as AdamW's; x follows
    from y and z. `lr` should be constant after a warm-up; AdamW's or a few times more is usual.

    Buffers such as the bias of loss-free balancing, which follows y, are not averaged: y is near x.
    Measured after 100 steps with 8 experts: at x 21 to 34% of tokens choose another expert than at
    y with that bias, and 40 to 53% with its average over the same steps.

    Args:
      params: parameters, or parameter groups.
      lr: learning rate.
      betas: share of x in y, and decay rate of the running mean of the squared gradient.
      eps: added to the denominator.
      weight_decay: of the weights y, times the rate of the step.

    Raises:
      ValueError: a value is out of range; the first beta must be above 0 too.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Mapping[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        require_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        if not betas[0] > 0:
            raise ValueError(f"{betas=}: the first must be above 0, such as 0.9.")
        groups: Any = [dict(group) if isinstance(group, Mapping) else group for group in params]
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(groups, defaults | {"steps": 0, "sum_of_squared_rates": 0.0})

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Step once, and return the value of the closure.

        Raises:
          ValueError: the parameters hold the weights to evaluate.
        """
        loss = loss_of(closure)
        for group in self.param_groups:
            group["steps"] += 1
            rate = group["lr"] * (1 - group["betas"][1] ** group["steps"]) ** 0.5
            group["sum_of_squared_rates"] += rate**2
            share = rate**2 / group["sum_of_squared_rates"] if rate else 0.0
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group, rate, share)
        return loss

    def _move(self, y: Tensor, gradient: Tensor, group: Group, rate: float, share: float) -> None:
        state, (beta1, beta2) = self.state[y], group["betas"]
        if "trained" in state:
            raise ValueError("the weights to evaluate cannot be stepped: call swap_weights first.")
        if not state:
            state["z"] = y.detach().clone()
            state["mean_square"] = torch.zeros_like(y)
        z = state["z"]
        mean_square = state["mean_square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = gradient / mean_square.sqrt().add_(group["eps"])
        update.add_(y, alpha=group["weight_decay"]).mul_(rate)
        # The recursion of y, without x.
        y.lerp_(z, share).sub_(update, alpha=1 - beta1 * (1 - share))
        z.sub_(update)

    @torch.no_grad()
    def swap_weights(self) -> None:
        """Swap the trained weights y in the parameters with x, the weights to evaluate.

        A second call restores y bit for bit: until then it is kept in the state as `trained`, which
        a checkpoint of the weights to evaluate therefore holds.
        """
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter) or {}
                if "trained" in state:
                    parameter.copy_(state.pop("trained"))
                elif state:
                    state["trained"] = parameter.detach().clone()
                    parameter.lerp_(state["z"], 1 - 1 / group["betas"][0])
