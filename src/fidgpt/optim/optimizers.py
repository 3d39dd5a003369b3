"""Optimizers: AdamW, Adafactor, Lion and Muon."""

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.placement import Placement, placement_of
from fidgpt.ranges import require_not_negative

__all__ = ["Adafactor", "Lion", "Muon", "adamw"]


Closure = Callable[[], Any]
Group = dict[str, Any]


def require_settings(
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float] = (0.0, 0.0),
    eps: float = 0.0,
) -> None:
    """Raise ValueError unless betas are in [0, 1) and the others finite and non-negative."""
    require_not_negative("lr", lr)
    require_not_negative("weight_decay", weight_decay)
    require_not_negative("eps", eps)
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


def _fusible(groups: list[Any]) -> bool:
    """Return whether torch has a fused kernel for all parameters; `step` fails without one."""
    lists = [group["params"] if isinstance(group, dict) else [group] for group in groups]
    return all(
        parameter.is_floating_point() and parameter.device.type in _FUSED_DEVICES
        for parameters in lists
        for parameter in parameters
    )


_adafactor_step = inspect.unwrap(torch.optim.Adafactor.step)


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor (Shazeer and Stern, 2018, arXiv:1804.04235), for divided weights too.

    Row and column statistics are those of the full matrix: parameters that are divided over
    processes are gathered one at a time for their update, and every process holds the full
    optimizer state.

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
        require_settings(lr=float(lr), weight_decay=weight_decay)
        if not -math.inf < beta2_decay <= 0:
            raise ValueError(f"{beta2_decay=} must be finite and at most 0, such as -0.8.")
        if not 1 <= d < math.inf:
            raise ValueError(f"{d=} must be finite and at least 1; it bounds the update size.")
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
            if parameter.grad is not None and _is_divided(parameter)
        ]
        if not sharded:
            return _adafactor_step(self, closure)
        loss = loss_of(closure)
        try:
            for group, parameter in sharded:
                whole = _whole(parameter, parameter)
                whole.grad = _whole(parameter.grad, parameter)
                self.param_groups = [group | {"params": [whole]}]
                own = state[parameter]
                for name, value in own.items():  # loaded from a checkpoint, it is sharded
                    own[name] = _whole(value, parameter)
                self.state = defaultdict(dict, {whole: own})
                _adafactor_step(self)
                _put_back(whole, parameter)
            self.state = state
            self.param_groups = [
                group | {"params": [p for p in group["params"] if not _is_divided(p)]}
                for group in groups
            ]
            _adafactor_step(self)
        finally:
            self.param_groups, self.state = groups, state
        return loss


def _is_divided(parameter: Tensor) -> bool:
    """Return whether this process may hold a part of a parameter only."""
    return hasattr(parameter, "device_mesh") or _is_part(parameter)


def _is_part(parameter: Tensor) -> bool:
    placement, shape = placement_of(parameter), tuple(parameter.shape)
    return placement is not None and placement.whole_shape(shape) != shape


def _whole(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor: a parameter, or a gradient or state that may be divided alike."""
    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()  # pyright: ignore[reportAttributeAccessIssue]
    placement = placement_of(parameter)
    if placement is None or not _is_part(parameter) or tensor.shape != parameter.shape:
        return tensor
    return placement.gather(tensor)


def _put_back(whole: Tensor, parameter: Any, placement: Placement | None = None) -> None:
    """Copy this process's part of a whole tensor into a parameter, or into its state."""
    if (placement := placement or placement_of(parameter)) is not None:
        whole = placement.cut(whole)
    if not hasattr(parameter, "device_mesh"):
        parameter.copy_(whole)
        return
    # Imported here because it takes longer than the rest of a command's start.
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = parameter.device_mesh, parameter.placements
    # Every process has the same values, so no communication is needed.
    own = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    parameter.to_local().copy_(own.to_local())


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


_MOST_ITERATIONS = 100  # the limit of torch.optim.Muon


class Muon(Optimizer):
    """Muon for groups with `orthogonal` set, AdamW for the others.

    Muon orthogonalizes the momentum of each matrix (Jordan et al., 2024; Liu et al., 2025,
    arXiv:2502.16982, whose scaling lets it share AdamW's learning rate and weight decay). A
    three-dimensional parameter is a stack of matrices, such as those of experts. The updates are
    those of `torch.optim.Muon` and `torch.optim.AdamW`.

    Args:
      groups: parameter groups, such as those of `split_hidden_matrices`.
      lr: learning rate of both.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.
      momentum: Muon's momentum.
      nesterov: whether Muon uses Nesterov momentum.
      ns_steps: Newton-Schulz iterations.
      adjust_lr_fn: how updates scale with the shape of a matrix: "match_rms_adamw" matches the RMS
        of AdamW's updates; "original" is Jordan's scaling, for learning rates of about 0.02.
      betas: AdamW's decay rates.
      eps: added to AdamW's denominator.

    Raises:
      ValueError: no group is `orthogonal`, such a group holds a parameter that is not a matrix or a
        stack of matrices, or a value is out of range.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        *,
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        require_settings(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        if not 0 <= momentum < 1:
            raise ValueError(f"{momentum=} must be in [0, 1).")
        if not 1 <= ns_steps < _MOST_ITERATIONS:
            raise ValueError(f"{ns_steps=} must be from 1 to {_MOST_ITERATIONS - 1}, such as 5.")
        super().__init__(
            [dict(group) for group in groups],
            {"lr": lr, "weight_decay": weight_decay, "orthogonal": False},
        )
        self._require_matrices()
        self._muon = torch.optim.Muon(
            [torch.zeros(1, 1)],
            momentum=momentum,
            nesterov=nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )
        for group in self._groups(orthogonal=True):
            _set_missing(group, self._muon.defaults)
        self._adamw = None
        if others := self._groups(orthogonal=False):
            self._adamw = adamw(others, lr=lr, betas=betas, eps=eps)
            for group, complete in zip(others, self._adamw.param_groups, strict=True):
                _set_missing(group, complete)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Step once, and return the value of the closure."""
        loss = loss_of(closure)
        for group in self._groups(orthogonal=True):
            self._step_matrices(group)
        if self._adamw is not None:
            self._adamw.param_groups = self._groups(orthogonal=False)
            self._adamw.state = self.state
            self._adamw.step()
        return loss

    def _step_matrices(self, group: Group) -> None:
        """Update a group by torch's Muon, with stacks of matrices unbound."""
        trained = [p for p in group["params"] if p.grad is not None]
        parts = [p for p in trained if _is_part(p)]
        for parameter in parts:
            self._step_whole(group, parameter)
        self._step_own(group, [p for p in trained if not _is_part(p)])

    def _step_whole(self, group: Group, parameter: Tensor) -> None:
        """Update a parameter of which this process has a part, as a whole."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        whole = torch.nn.Parameter(_whole(parameter, parameter))
        whole.grad = _whole(gradient, parameter)
        momentum = _whole(state["momentum_buffer"], parameter)
        self.state[whole] = {"momentum_buffer": momentum}
        self._step_own(group, [whole])
        del self.state[whole]
        _put_back(whole, parameter)
        _put_back(momentum, state["momentum_buffer"], placement_of(parameter))

    def _step_own(self, group: Group, parameters: Sequence[Tensor]) -> None:
        """Update parameters of which this process has all matrices."""
        matrices = [one for p in parameters for one in self._unbound(p)]
        self._muon.param_groups = [group | {"params": [matrix for matrix, _ in matrices]}]
        self._muon.state.clear()
        self._muon.state.update(
            (matrix, {"momentum_buffer": momentum}) for matrix, momentum in matrices
        )
        self._muon.step()
        self._muon.state.clear()

    def _unbound(self, parameter: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each matrix of a parameter and its momentum, as views."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter.grad)
        if parameter.dim() == 2:
            yield parameter, state["momentum_buffer"]
            return
        stacks = map(_own, (parameter.detach(), parameter.grad, state["momentum_buffer"]))
        for matrix, gradient, momentum in zip(*(s.unbind() for s in stacks), strict=True):
            matrix.grad = gradient
            yield matrix, momentum

    def _groups(self, *, orthogonal: bool) -> list[Group]:
        return [group for group in self.param_groups if group["orthogonal"] == orthogonal]

    def _require_matrices(self) -> None:
        groups = self._groups(orthogonal=True)
        if not groups:
            raise ValueError(
                "no parameter group is orthogonal, so Muon would be plain AdamW; use "
                "split_hidden_matrices."
            )
        for shape in (list(p.shape) for group in groups for p in group["params"]):
            if len(shape) not in (2, 3):
                raise ValueError(
                    f"Muon cannot optimize a parameter of shape {shape}, which is not a matrix or "
                    "a stack of matrices; move it to a group that is not orthogonal."
                )


def _own(stack: Tensor) -> Tensor:
    """Return the full matrices of a stack that this process holds, sharded or not."""
    return getattr(stack, "to_local", lambda: stack)()


def _set_missing(group: Group, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        group.setdefault(name, value)
