"""Muon: the momentum of each matrix, made orthogonal."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from fidgpt.optim.matrix_scheduler import Job, MatrixScheduler
from fidgpt.optim.optimizers import Closure, Group, adamw, loss_of, require_settings
from fidgpt.placement import held, keep, placed_like, whole_of, whole_shape
from fidgpt.processes import Processes
from fidgpt.ranges import require_probability

__all__ = ["Muon"]

_MOST_ITERATIONS = 100  # the limit of torch.optim.Muon


class Muon(Optimizer):
    """Muon for groups with `orthogonal` set, AdamW for the others.

    Muon orthogonalizes the momentum of each matrix (Jordan et al., 2024; Liu et al., 2025,
    arXiv:2502.16982, whose scaling lets it share AdamW's learning rate and weight decay). A
    three-dimensional parameter is a stack of matrices, such as the weights of experts. The updates
    equal those of `torch.optim.Muon` and `torch.optim.AdamW`.

    Args:
      groups: parameter groups, such as `split_hidden_matrices` returns.
      lr: learning rate of both.
      weight_decay: each step multiplies weights by 1 - lr * weight_decay.
      momentum: Muon's momentum.
      nesterov: whether Muon uses Nesterov momentum.
      ns_steps: Newton-Schulz iterations.
      adjust_lr_fn: how updates scale with the shape of a matrix: "match_rms_adamw" matches the RMS
        of AdamW's updates; "original" is Jordan's scaling, for learning rates of about 0.02.
      betas: AdamW's decay rates.
      eps: added to AdamW's denominator.

    Attributes:
      workers: orthogonalize whole matrices; of a run of several processes, each has some of them.

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
        require_probability(momentum=momentum)
        if not 1 <= ns_steps < _MOST_ITERATIONS:
            raise ValueError(f"{ns_steps=} must be from 1 to {_MOST_ITERATIONS - 1}, such as 5.")
        super().__init__(
            [dict(group) for group in groups],
            {"lr": lr, "weight_decay": weight_decay, "orthogonal": False},
        )
        self._require_matrices()
        self.workers: MatrixScheduler | _Alone = _Alone()
        settings = torch.optim.Muon(
            [torch.zeros(1, 1)],
            momentum=momentum,
            nesterov=nesterov,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
        ).defaults
        for group in self.groups_of(orthogonal=True):
            _set_missing(group, settings)
        self._adamw = None
        if others := self.groups_of(orthogonal=False):
            self._adamw = adamw(others, lr=lr, betas=betas, eps=eps)
            for group, complete in zip(others, self._adamw.param_groups, strict=True):
                _set_missing(group, complete)

    def share_work(self, processes: Processes) -> None:
        """Let each process orthogonalize some matrices; see `SharesWork`."""
        self.workers = MatrixScheduler(processes)

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Step once, and return the value of the closure."""
        loss = loss_of(closure)
        self._step_matrices()
        if self._adamw is not None:
            self._adamw.param_groups = self.groups_of(orthogonal=False)
            self._adamw.state = self.state
            self._adamw.step()
        return loss

    def _step_matrices(self) -> None:
        trained = [
            (group, parameter)
            for group in self.groups_of(orthogonal=True)
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        updates = self.workers.map(
            [
                Job(self._momentum(group, parameter), parameter, self._orthogonalizer(group))
                for group, parameter in trained
            ]
        )
        for (group, parameter), update in zip(trained, updates, strict=True):
            self._move(group, parameter, update)

    def _move(self, group: Group, parameter: Tensor, update: Tensor) -> None:
        """Decay weights, and move them by an orthogonal update."""
        weights, rate = held(parameter), group["lr"]
        weights.mul_(1 - rate * group["weight_decay"])
        weights.add_(update, alpha=-rate * scale_of(group, whole_shape(parameter)))

    def _orthogonalizer(self, group: Group) -> Any:
        names = {"steps": "ns_steps", "coefficients": "ns_coefficients", "eps": "eps"}
        return partial(orthogonalized, **{name: group[key] for name, key in names.items()})

    def _format(self, momentum: Tensor) -> torch.dtype:
        """Return the format in which matrices are sent to the processes that compute them."""
        return torch.bfloat16

    def _momentum(self, group: Group, parameter: Tensor) -> Tensor:
        """Update the momentum; return the matrix to orthogonalize, in the dtype for doing so."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        buffer = state["momentum_buffer"]
        own, momentum = held(gradient), held(buffer)
        momentum.lerp_(own, 1 - group["momentum"])
        ahead = own.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
        return ahead.to(self._format(ahead))

    def groups_of(self, *, orthogonal: bool) -> list[Group]:
        """Return the groups of matrices, or the others."""
        return [group for group in self.param_groups if group["orthogonal"] == orthogonal]

    def _require_matrices(self) -> None:
        groups = self.groups_of(orthogonal=True)
        if not groups:
            raise ValueError(
                "no parameter group is orthogonal, so Muon would be plain AdamW; use "
                "split_hidden_matrices."
            )
        named = ((group.get("name"), list(p.shape)) for group in groups for p in group["params"])
        for name, shape in named:
            if len(shape) not in (2, 3):
                raise ValueError(
                    f"Muon cannot optimize a parameter of shape {shape} in the group {name!r}, "
                    "which is not a matrix or a stack of matrices; move it to a group that is not "
                    "orthogonal, by the `match` of the rule of that name in `groups`."
                )


class _Alone:
    """Does all jobs in this process; matrices that are divided are gathered one at a time."""

    def map(self, jobs: Sequence[Job]) -> list[Tensor]:
        """Return this process's part of each result."""
        return [on_whole(job.part, job.parameter, partial(_each, job.function)) for job in jobs]


def _each(function: Any, whole: Tensor) -> Tensor:
    """Return a function of a matrix, or of each in a stack."""
    return torch.stack([*map(function, whole)]) if whole.dim() == 3 else function(whole)


def on_whole(part: Tensor, parameter: Any, function: Any) -> Tensor:
    """Return this process's part of a function of a whole, which is gathered for it.

    Args:
      part: of the whole, divided as the parameter is.
      parameter: with the place of its shard.
      function: returns a tensor of the shape of the whole.
    """
    like = placed_like(torch.zeros_like(parameter, dtype=part.dtype), parameter)
    held(like).copy_(part)
    keep(like, function(whole_of(like, parameter)))
    return held(like)


def orthogonalized(
    matrix: Float[Tensor, "rows columns"],
    *,
    steps: int,
    coefficients: tuple[float, float, float],
    eps: float,
) -> Float[Tensor, "rows columns"]:
    """Return about UV^T of a matrix USV^T in bfloat16, by Newton-Schulz iterations.

    Each iteration maps X to aX + b(XX^T)X + c(XX^T)^2 X, of singular values at most 1 (Jordan et
    al., 2024). A CPU without products in bfloat16 iterates in float32.

    Args:
      matrix: of any scale.
      steps: iterations.
      coefficients: a, b and c.
      eps: least norm of the matrix.
    """
    first, cubic, quintic = coefficients
    is_tall = matrix.shape[0] > matrix.shape[1]  # products of the smaller side are cheaper
    x = matrix.bfloat16().to(products_format(matrix.device))
    x = x.mT if is_tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        both = torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic)
        x = torch.addmm(x, both, x, beta=first)
    return (x.mT if is_tall else x).bfloat16()


def products_format(device: torch.device) -> torch.dtype:
    """Return bfloat16, or float32 on a CPU where oneDNN has no products in bfloat16.

    There torch emulates them: a product of 512 x 512 and 512 x 2,048 elements took 65 times as long
    on a Zen 3, which has AVX2 alone, as many laptops do.
    """
    is_emulated = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if is_emulated else torch.bfloat16


def scale_of(group: Group, shape: Sequence[int]) -> float:
    """Return the factor of the updates of matrices [..., rows, columns]."""
    rows, columns = shape[-2:]
    if group["adjust_lr_fn"] == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _set_missing(group: Group, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        group.setdefault(name, value)
