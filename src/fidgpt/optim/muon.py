"""Muon for the matrices inside a model and AdamW for everything else, as one optimizer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.optim.adam import Closure, adamw, loss_of
from fidgpt.optim.groups import require_adam

__all__ = ["Muon"]


Group = dict[str, Any]
_MOST_ITERATIONS = 100  # of torch's own Muon


class Muon(Optimizer):
    """Muon for groups with `orthogonal` set, AdamW for the others.

    Muon orthogonalizes the momentum of each matrix (Jordan et al., 2024; Liu et al., 2025,
    arXiv:2502.16982, whose scaling lets it share AdamW's learning rate and weight decay).
    A three-dimensional parameter is a stack of matrices, such as those of experts. The steps are
    those of `torch.optim.Muon` and `torch.optim.AdamW`.

    Args:
      groups: parameter groups, as `split_hidden_matrices` makes them.
      lr: learning rate of both.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.
      momentum: Muon's momentum.
      nesterov: whether Muon uses Nesterov momentum.
      ns_steps: Newton-Schulz iterations.
      adjust_lr_fn: how steps scale with a matrix' shape: "match_rms_adamw" gives them AdamW's size;
        "original" is Jordan's, with learning rates of about 0.02.
      betas: AdamW's decay rates.
      eps: added to AdamW's denominator.

    Raises:
      ValueError: no group is `orthogonal`, one of these holds a parameter that is not a matrix or
        a stack of them, or a value is out of range.
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
        require_adam(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        if not 0 <= momentum < 1:
            raise ValueError(f"{momentum=} must be from 0 to below 1.")
        if not 1 <= ns_steps < _MOST_ITERATIONS:
            raise ValueError(f"{ns_steps=} must be from 1 to below {_MOST_ITERATIONS}: 5 is usual.")
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
        """Let torch step a group, with every stack of matrices unbound."""
        matrices = [one for p in group["params"] if p.grad is not None for one in self._unbound(p)]
        self._muon.param_groups = [group | {"params": [matrix for matrix, _ in matrices]}]
        self._muon.state.clear()
        self._muon.state.update(
            (matrix, {"momentum_buffer": momentum}) for matrix, momentum in matrices
        )
        self._muon.step()
        self._muon.state.clear()

    def _unbound(self, parameter: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each matrix of a parameter with its momentum, as views."""
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
                "no parameter group is orthogonal, so Muon would be AdamW: use "
                "split_hidden_matrices."
            )
        for shape in (list(p.shape) for group in groups for p in group["params"]):
            if len(shape) not in (2, 3):
                raise ValueError(
                    f"Muon steps matrices and stacks of them, not a parameter of shape {shape}: "
                    "put it into a group that is not orthogonal."
                )


def _own(stack: Tensor) -> Tensor:
    """Return the full matrices that this process holds of a stack, sharded or not."""
    return getattr(stack, "to_local", lambda: stack)()


def _set_missing(group: Group, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        group.setdefault(name, value)
