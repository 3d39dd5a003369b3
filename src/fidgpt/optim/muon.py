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
    """Groups that say `orthogonal` step by Muon, the others by AdamW.

    Muon makes the mean of a matrix' gradients orthogonal before it steps (Jordan et al., 2024;
    Liu et al., 2025, arXiv:2502.16982, whose scale lets it share AdamW's learning rate and weight
    decay). A parameter of three dimensions is a stack of matrices, such as those of experts. Steps
    are those of `torch.optim.Muon` and `torch.optim.AdamW`.

    Args:
      groups: groups of parameters with settings of their own; `split_hidden_matrices` makes them.
      lr: learning rate of both.
      weight_decay: lr * weight_decay is the share of a weight that each step takes away.
      momentum: Muon's, of the mean of gradients.
      nesterov: whether Muon looks one step ahead.
      ns_steps: iterations of Newton and Schulz that make a matrix orthogonal.
      adjust_lr_fn: torch's word for how a step is scaled by a matrix' shape: so that it is as large
        as AdamW's, or as Jordan first did, which asks for a learning rate of about 0.02.
      betas: AdamW's decay rates.
      eps: AdamW's, added to the denominator.

    Raises:
      ValueError: no group is `orthogonal`, one holds what is no matrix, or a number is out of
        range.
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
        # Each gives the groups that are its own the settings that it needs, and then steps them.
        self._muon = torch.optim.Muon(
            [torch.zeros(1, 1)],
            momentum=momentum,
            nesterov=nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        )
        for group in self._groups(orthogonal=True):
            _say(group, self._muon.defaults)
        self._adamw = None
        if others := self._groups(orthogonal=False):
            self._adamw = adamw(others, lr=lr, betas=betas, eps=eps)
            for group, complete in zip(others, self._adamw.param_groups, strict=True):
                _say(group, complete)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step; returns what the closure does."""
        loss = loss_of(closure)
        for group in self._groups(orthogonal=True):
            self._step_matrices(group)
        if self._adamw is not None:
            self._adamw.param_groups = self._groups(orthogonal=False)
            self._adamw.state = self.state
            self._adamw.step()
        return loss

    def _step_matrices(self, group: Group) -> None:
        """Lets torch step a group, in which every stack of matrices is taken apart."""
        matrices = [one for p in group["params"] if p.grad is not None for one in self._apart(p)]
        self._muon.param_groups = [group | {"params": [matrix for matrix, _ in matrices]}]
        self._muon.state.clear()
        self._muon.state.update(
            (matrix, {"momentum_buffer": momentum}) for matrix, momentum in matrices
        )
        self._muon.step()
        self._muon.state.clear()

    def _apart(self, parameter: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The matrices of a parameter, each with its gradient and momentum, as views of it."""
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
                "no group of parameters is orthogonal, so that Muon would be AdamW: deal them by "
                "split_hidden_matrices."
            )
        for shape in (list(p.shape) for group in groups for p in group["params"]):
            if len(shape) not in (2, 3):
                raise ValueError(
                    f"Muon steps matrices and stacks of them, not a parameter of shape {shape}: "
                    "leave it to a group that is not orthogonal."
                )


def _own(stack: Tensor) -> Tensor:
    """The matrices that this process holds of a stack, which are whole where the stack is dealt."""
    return getattr(stack, "to_local", lambda: stack)()


def _say(group: Group, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        group.setdefault(name, value)
