"""Linear layers on meshes, which compute while something is sent, or later.

The gradients of the weights that multiply the input of a divided component do not need the sum of
the input's gradient: they are computed while it is sent, as Megatron-LM does (Shoeybi et al., 2019,
arXiv:1909.08053).

Sums over an axis may be in chunks, each of which is sent while the next one is computed. If a
process keeps its part of the sequence, the gradients of chunks are gathered likewise.

In a pipeline, gradients of weights are computed later than gradients of inputs, as zero-bubble
schedules do (Qi et al., 2023, arXiv:2401.10241). Plain linear layers do so wherever they are: torch
cuts the graph of autograd in two instead, and forgets the weights behind a layer without gradients.
Other parameters get their gradients in the first part of the backward pass.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.attributes import changed
from fidgpt.model.linear import extended
from fidgpt.processes import Processes
from fidgpt.processes.collectives import (
    Pending,
    all_gather,
    begin_all_gather,
    begin_sum,
    copied,
    gathered,
    scattered,
    summed,
)


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


_SEQUENCE = 1  # the dimension of a stream [batch, seq, hidden]


def sum_in_chunks(
    projection: nn.Module, axis: Processes, *, num_chunks: int, on_part: bool
) -> None:
    """Make a projection return its sum over an axis.

    Each chunk of the tokens is sent while the next is computed, after Domino (Wang et al., 2024,
    arXiv:2409.15241). In compiled blocks all tokens are one chunk.

    Args:
      projection: computes on each token [batch, seq, width] alone.
      axis: the processes.
      num_chunks: of the tokens.
      on_part: whether a process keeps its part of the sequence of the sum, in training.
    """
    chunked = extended(projection, Chunked)
    chunked.chunk_axis, chunked.num_chunks, chunked.on_part = axis, num_chunks, on_part


class Chunked(nn.Module):
    """Mixin of projections changed by `sum_in_chunks`."""

    chunk_axis: Processes
    num_chunks: int
    on_part: bool

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, or this process's part of it."""
        axis, number = self.chunk_axis, self.num_chunks
        on_part = self.on_part and self.training
        parts = axis.size if on_part else 1
        is_stream = x.dim() > _SEQUENCE + 1  # an expert among several computes on single rows
        if torch.compiler.is_compiling() or not is_stream or x.shape[_SEQUENCE] % (parts * number):
            whole = super().forward(x)
            return scattered(whole, axis, _SEQUENCE) if on_part else summed(whole, axis)
        # A chunk has tokens of each process's part, so that what it keeps is consecutive.
        each = x.unflatten(_SEQUENCE, (parts, number, -1)).unbind(_SEQUENCE + 1)
        outputs: list[Tensor] = []
        pending: list[Pending] = []
        returning: dict[int, Pending] = {}
        for index, chunk in enumerate(each):
            output = super().forward(chunk.flatten(_SEQUENCE, _SEQUENCE + 1))
            outputs.append(_Returned.apply(output, returning, index) if on_part else output)
            pending.append(begin_sum(output.detach(), axis, _SEQUENCE if on_part else None))
        return _Arrived.apply(pending, returning, axis, on_part, *outputs)


class _Arrived(torch.autograd.Function):
    """The sums of chunks, once all have arrived, side by side."""

    @staticmethod
    def forward(
        ctx: Any,
        pending: list[Pending],
        returning: dict[int, Pending],
        axis: Processes,
        on_part: bool,
        *outputs: Tensor,
    ) -> Tensor:
        ctx.returning, ctx.axis, ctx.on_part = returning, axis, on_part
        ctx.shapes = [output.shape for output in outputs]
        return torch.cat([wait() for wait in pending], dim=_SEQUENCE)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        chunks = outer[0].chunk(len(ctx.shapes), _SEQUENCE)
        if ctx.on_part:
            for index in reversed(range(len(chunks))):  # the last one is needed first
                ctx.returning[index] = begin_all_gather(chunks[index], ctx.axis, _SEQUENCE)
            nothing = outer[0].new_zeros(())
            chunks = [nothing.expand(shape) for shape in ctx.shapes]
        return None, None, None, None, *chunks


class _Returned(torch.autograd.Function):
    """A chunk, whose gradient is waited for where it is needed."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, returning: dict[int, Pending], index: int) -> Tensor:
        ctx.returning, ctx.index = returning, index
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return ctx.returning.pop(ctx.index)(), None, None


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
    """Mixin of plain linear layers changed by `defer_weight_gradients`."""

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
