"""Gradients of weights, computed later than gradients of inputs, as zero-bubble schedules do.

(Qi et al., 2023, arXiv:2401.10241.) Plain linear layers compute these gradients later, wherever
they are: torch cuts the graph of autograd in two instead, and forgets the weights behind a layer
without gradients. Other parameters get their gradients in the first part of the backward pass.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.attributes import changed
from fidgpt.model.linear import extended

Products = list[tuple[nn.Parameter, Tensor, Tensor]]  # weight, gradient of the output, and input


class _Deferring:
    products: Products | None = None  # None outside of `deferring`


@contextlib.contextmanager
def deferring() -> Iterator[Products]:
    """Context of a backward pass, which lists the products that it leaves out."""
    products: Products = []
    with changed(_Deferring, products=products):
        yield products


@torch.no_grad()
def multiply(products: Products) -> None:
    """Compute the products, and add them to the gradients of the weights."""
    for weight, outer, x in products:
        gradient = outer.flatten(0, -2).t() @ x.flatten(0, -2)
        weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)


def defer_weight_gradients(module: nn.Module) -> None:
    """Let the plain linear layers in a module leave out the gradients of their weights."""
    for part in module.modules():
        if isinstance(part, nn.Linear) and type(part).forward is nn.Linear.forward:
            extended(part, DeferringLinear)


class DeferringLinear(nn.Module):
    """Mixin of linear layers."""

    weight: nn.Parameter
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """Return `x W^T + b`."""
        if torch.compiler.is_compiling() or not self.weight.requires_grad:
            return F.linear(input, self.weight, self.bias)
        product = _Product.apply(input, self.weight)
        return product if self.bias is None else product + self.bias


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter = weight
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        inner = outer[0] @ weight if ctx.needs_input_grad[0] else None
        if _Deferring.products is None:
            return inner, outer[0].flatten(0, -2).t() @ x.flatten(0, -2)
        _Deferring.products.append((ctx.parameter, outer[0], x))
        return inner, None
