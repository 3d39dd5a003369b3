"""Sums over an axis in chunks, each of which is sent while the next one is computed.

If a process keeps its part of the sequence, the gradients of chunks are gathered likewise.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fidgpt.model.linear import extended
from fidgpt.processes import Processes
from fidgpt.processes.collectives import Pending, begin_all_gather, begin_sum, scattered, summed

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
    changed = extended(projection, Chunked)
    changed.chunk_axis, changed.num_chunks, changed.on_part = axis, num_chunks, on_part


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
