"""Sums over an axis in chunks, each of which is sent while the next one is computed."""

from typing import Any

import torch
from torch import Tensor, nn

from fidgpt.model.linear import extended
from fidgpt.parallel.collectives import (
    Coming,
    all_gather,
    begin_all_sum,
    begin_sum_scatter,
    scattered,
    summed,
)
from fidgpt.parallel.mesh import Axis

__all__ = ["sum_in_chunks"]

_SEQUENCE = 1  # the dimension of a stream [batch, seq, hidden]


def sum_in_chunks(projection: nn.Module, axis: Axis, *, num_chunks: int, on_part: bool) -> None:
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

    chunk_axis: Axis
    num_chunks: int
    on_part: bool

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum, or this process's part of it."""
        axis, number, length = self.chunk_axis, self.num_chunks, x.shape[_SEQUENCE]
        on_part = self.on_part and self.training
        parts = axis.size if on_part else 1
        if torch.compiler.is_compiling() or length % (parts * number):
            whole = super().forward(x)
            return scattered(whole, axis, _SEQUENCE) if on_part else summed(whole, axis)
        # A chunk has tokens of each process's part, so that what it keeps is consecutive.
        each = x.unflatten(_SEQUENCE, (parts, number, -1)).unbind(_SEQUENCE + 1)
        begin = begin_sum_scatter if on_part else begin_all_sum
        outputs: list[Tensor] = []
        coming: list[Coming] = []
        for chunk in each:
            outputs.append(super().forward(chunk.flatten(_SEQUENCE, _SEQUENCE + 1)))
            coming.append(begin(outputs[-1].detach(), axis, _SEQUENCE))
        return _Arrived.apply(coming, axis, on_part, *outputs)


class _Arrived(torch.autograd.Function):
    """The sums of chunks, once all have arrived, side by side."""

    @staticmethod
    def forward(ctx: Any, coming: list[Coming], axis: Axis, on_part: bool, *_: Tensor) -> Tensor:
        ctx.axis, ctx.on_part, ctx.number = axis, on_part, len(coming)
        return torch.cat([wait() for wait in coming], dim=_SEQUENCE)

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        chunks = outer[0].chunk(ctx.number, _SEQUENCE)
        if ctx.on_part:
            chunks = [all_gather(chunk, ctx.axis, _SEQUENCE) for chunk in chunks]
        return None, None, None, *chunks
