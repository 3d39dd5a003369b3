"""NorMuon: Muon by Polar Express, whose neurons move by equal amounts."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fidgpt.optim.muon import Muon, on_whole, products_format, scale_of
from fidgpt.optim.optimizers import Group
from fidgpt.placement import held, is_divided, whole_shape
from fidgpt.ranges import require_not_negative, require_probability

__all__ = ["NorMuon"]

Matrices = Float[Tensor, "*stack rows columns"]

# For five iterations, with a safety factor of 0.02 and a cushion of 2 (Amsel et al., 2025,
# arXiv:2505.16932, algorithm 1).
_POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
_LEAST_NORM = 1e-6
_LEAST_SQUARE = 1e-10


class NorMuon(Muon):
    """Muon with four changes for groups with `orthogonal` set, AdamW for the others.

    The rows of a momentum are brought to one norm (arXiv:2603.28254), it is made orthogonal by
    Polar Express (arXiv:2505.16932) and gets the norm of an orthogonal matrix (arXiv:2602.21545).
    Then its rows, or its columns if there are more of them, are divided by the root of a running
    mean of their squares (NorMuon, arXiv:2510.05491). Weights decay only where the update agrees
    with that (cautious decay, arXiv:2510.12402). These are the steps of nanochat.

    Args:
      groups: parameter groups, such as `split_hidden_matrices` returns.
      lr: learning rate of both.
      weight_decay: AdamW's.
      cautious_decay: of the matrices, per unit of learning rate.
      momentum: of the matrices, with Nesterov's step ahead.
      ns_steps: iterations, up to 5.
      beta2: decay rate of the running means of squares.
      adjust_lr_fn: as of `Muon`.
      betas: AdamW's decay rates.
      eps: added to AdamW's denominator.

    Raises:
      ValueError: as in `Muon`, or there are more than 5 iterations.
    """

    def __init__(
        self,
        groups: Sequence[Mapping[str, Any]],
        *,
        lr: float,
        weight_decay: float = 0.1,
        cautious_decay: float = 0.1,
        momentum: float = 0.95,
        ns_steps: int = 5,
        beta2: float = 0.9,
        adjust_lr_fn: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        require_not_negative(cautious_decay=cautious_decay)
        require_probability(beta2=beta2)
        if ns_steps > len(_POLAR_EXPRESS):
            raise ValueError(f"{ns_steps=} must be at most {len(_POLAR_EXPRESS)}.")
        super().__init__(
            groups,
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            ns_steps=ns_steps,
            adjust_lr_fn=adjust_lr_fn,
            betas=betas,
            eps=eps,
        )
        for group in self.groups_of(orthogonal=True):
            group.setdefault("beta2", beta2)
            group.setdefault("cautious_decay", cautious_decay)

    def _format(self, momentum: Tensor) -> torch.dtype:
        """Return bfloat16 on devices with products in it, else the dtype of the weights."""
        is_cpu = momentum.device.type == "cpu"
        return momentum.dtype if is_cpu else products_format(momentum.device)

    def _orthogonalizer(self, group: Group) -> Any:
        return partial(polar, steps=group["ns_steps"])

    def _move(self, group: Group, parameter: Tensor, update: Tensor) -> None:
        state, weights = self.state[parameter], held(parameter)
        shape = whole_shape(parameter)
        if "second_momentum_buffer" not in state:
            kept = [*shape]
            kept[-1 if shape[-2] >= shape[-1] else -2] = 1
            state["second_momentum_buffer"] = weights.new_zeros(kept)
        squares = held(state["second_momentum_buffer"])
        equalize = partial(equalized, squares=squares, beta2=group["beta2"])
        update = update.to(weights.dtype)
        if is_divided(parameter):
            update = on_whole(update, parameter, equalize)
        else:
            update = equalize(update)
        rate = group["lr"] * scale_of(group, shape)
        agrees = update * weights >= 0
        weights.sub_(rate * update + rate * group["cautious_decay"] * weights * agrees)


def polar(matrix: Float[Tensor, "rows columns"], *, steps: int) -> Float[Tensor, "rows columns"]:
    """Return about UV^T of a matrix USV^T by Polar Express, in the format of the matrix.

    Args:
      matrix: of any scale.
      steps: iterations.
    """
    norms = matrix.float() if matrix.dtype.itemsize < 4 else matrix
    rows = norms.norm(dim=-1, keepdim=True).clamp_min(_LEAST_NORM)
    x = matrix * (norms.norm() / len(matrix) ** 0.5 / rows).to(matrix.dtype)
    x = x / (x.norm() * 1.01 + 1e-6)
    is_tall = matrix.shape[0] > matrix.shape[1]  # products of the smaller side are cheaper
    x = x.mT if is_tall else x
    for first, cubic, quintic in _POLAR_EXPRESS[:steps]:
        gram = x @ x.mT
        x = first * x + (cubic * gram + quintic * (gram @ gram)) @ x
    return x.mT if is_tall else x


def equalized(update: Matrices, *, squares: Tensor, beta2: float) -> Matrices:
    """Return updates whose rows or columns are divided by the root of a mean of their squares.

    Args:
      update: about orthogonal matrices.
      squares: running means over the longer side, which are moved; their shape has a 1 there.
      beta2: decay rate of the running means.
    """
    rows, columns = update.shape[-2:]
    norm = update.norm(dim=(-2, -1), keepdim=True).clamp_min(_LEAST_NORM)
    update = update * (min(rows, columns) ** 0.5 / norm)
    dim = -1 if rows >= columns else -2
    means = update.square().mean(dim, keepdim=True)
    squares.lerp_(means, 1 - beta2)
    factors = squares.clamp_min(_LEAST_SQUARE).rsqrt()
    before = means.sum((-2, -1), keepdim=True).sqrt()
    after = (means * factors.square()).sum((-2, -1), keepdim=True).sqrt()
    return update * factors * (before / after.clamp_min(_LEAST_SQUARE))
