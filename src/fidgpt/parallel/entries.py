"""What enters a divided component, and the sum of its gradient, sent beside computation.

The gradients of the weights that multiply the input do not need that sum: they are computed while
it is sent, as Megatron-LM does (Shoeybi et al., 2019, arXiv:1909.08053).
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.model.linear import extended
from fidgpt.processes import Processes
from fidgpt.processes.collectives import all_gather, begin_sum, copied, gathered


def can_defer_weight_grad(projection: nn.Module | nn.Parameter | None) -> bool:
    """Let a projection leave the gradient of its weight to `gather_input`; return whether it can.

    Layers that compute anything else than a matrix product and a bias cannot.
    """
    if not isinstance(projection, nn.Linear) or type(projection).forward is not nn.Linear.forward:
        return False
    extended(projection, DeferredGradient)
    return True


class DeferredGradient(nn.Module):
    """Mixin of projections changed by `can_defer_weight_grad`."""

    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """Return the product with the weight, whose gradient another function may compute."""
        if torch.compiler.is_compiling():  # which cannot see what a tensor has of its own
            return super().forward(input)
        receiver = vars(input).get("receivers", {}).get(id(self.weight))
        if receiver is None:
            return super().forward(input)
        return _Passed.apply(F.linear(input, self.weight.detach(), self.bias), receiver)


def gather_input(x: Tensor, axis: Processes, dim: int | None, weights: Iterable[Tensor]) -> Tensor:
    """Return a whole tensor, which enters a computation that is divided over an axis.

    Args:
      x: the whole; or, with a `dim`, this process's part of it.
      axis: the processes.
      dim: in which the whole is divided.
      weights: of the projections that may multiply it, all changed by `can_defer_weight_grad`.
    """
    trained = [weight for weight in weights if weight.requires_grad]
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not trained:
        return copied(x, axis) if dim is None else gathered(x, axis, dim)
    whole, *receivers = _Entered.apply(x, axis, dim, *trained)
    # On the tensor itself: tensors computed from it have none, and they are freed with it.
    vars(whole)["receivers"] = {id(w): r for w, r in zip(trained, receivers, strict=True)}
    return whole


class _Entered(torch.autograd.Function):
    """The whole, and for each weight a tensor that gets the gradient of its product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Processes, dim: int | None, *weights: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.axis, ctx.dim = axis, dim
        whole = x.view_as(x) if dim is None else all_gather(x, axis, dim).contiguous()
        ctx.save_for_backward(whole)
        nothing = whole.new_zeros(())
        return whole, *(nothing.expand(*whole.shape[:-1], len(weight)) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        outer, *received = gradients
        pending = None
        if outer is not None and ctx.needs_input_grad[0]:
            pending = begin_sum(outer, ctx.axis, ctx.dim)
        rows = ctx.saved_tensors[0].flatten(0, -2)
        weights = [None if g is None else g.flatten(0, -2).t() @ rows for g in received]
        return None if pending is None else pending(), None, None, *weights


class _Passed(torch.autograd.Function):
    """A product, whose gradient goes to a receiver too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, receiver: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return outer[0], outer[0]
