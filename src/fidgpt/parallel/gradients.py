"""Gradients of divided parameters: how they become right, and the norms of whole ones."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fidgpt.parallel.places import Places
from fidgpt.placement import held, shard_of
from fidgpt.processes import Processes
from fidgpt.processes.collectives import all_sum


@torch.no_grad()
def reduce_gradients(parameters: Iterable[nn.Parameter], places: Places) -> None:
    """Make the gradients of divided parameters right after a backward pass, in place.

    Summands are summed over their axis, by one all-reduce: those of whole parameters inside of
    divided components, and of shards that several processes hold. What counts on the first process
    only gets no gradient on the others. Where the processes of the axis compute different tokens,
    the gradient of what it divides is averaged here: over those with copies of it, and by the
    number of all that compute different tokens.
    """
    buffers: dict[Processes, list[tuple[Tensor, Tensor]]] = {}
    for parameter in parameters:
        shard = shard_of(parameter)
        if shard is None or parameter.grad is None:
            continue
        gradient, axis = held(parameter.grad), shard.axis
        if (copies := places.averaged_over(parameter)) is not None:
            gradient.div_(places.tokens.size)
            if copies.size > 1:
                buffers.setdefault(copies, []).append((gradient, gradient.flatten().float()))
        if shard.is_once and axis.rank:
            gradient.zero_()
        elif shard.is_partial:
            buffers.setdefault(axis, []).append((gradient, gradient.flatten().float()))
        elif shard.dim is not None and shard.copies > 1:
            slots = gradient.new_zeros(shard.num_shards, gradient.numel(), dtype=torch.float32)
            slots[axis.rank // shard.copies] = gradient.flatten()
            buffers.setdefault(axis, []).append((gradient, slots))
    for axis, pairs in buffers.items():
        summed = all_sum(torch.cat([buffer.flatten() for _, buffer in pairs]), axis)
        sums = summed.split([buffer.numel() for _, buffer in pairs])
        for (gradient, buffer), total in zip(pairs, sums, strict=True):
            own = total.view_as(buffer)
            if buffer.dim() == 2:
                own = own[axis.rank * len(buffer) // axis.size]
            gradient.copy_(own.view_as(gradient))


@torch.no_grad()
def norms_of_wholes(norms: Tensor, parameters: Sequence[object]) -> Tensor:
    """Return the norms of whole tensors from those of this process's shards.

    Args:
      norms: Euclidean norm of each tensor on this process.
      parameters: to which the tensors belong, with the places of their shards.
    """
    shards = [shard_of(parameter) for parameter in parameters]
    divided = [shard if shard is not None and shard.divides else None for shard in shards]
    for axis in dict.fromkeys(shard.axis for shard in divided if shard is not None):
        each, zero = norms.unbind(), norms.new_zeros(())
        is_owner = [shard is not None and shard.is_owner for shard in divided]
        # Chosen by Python: a mask would be copied from the CPU, which waits for an accelerator.
        own = [norm if owns else zero for norm, owns in zip(each, is_owner, strict=True)]
        whole = all_sum(torch.stack(own).square(), axis).sqrt().unbind()
        norms = torch.stack(
            [
                total if shard is not None and shard.axis is axis else norm
                for total, norm, shard in zip(whole, each, divided, strict=True)
            ]
        )
    return norms


@torch.no_grad()
def own_squares(
    gradients: Sequence[Tensor], parameters: Sequence[object], places: Places
) -> Tensor:
    """Return squared norms, [gradients] in float64, which all processes sum to those of wholes.

    Of what several processes hold, the first of them counts.
    """
    norms: Any = torch._foreach_norm(  # pyright: ignore[reportPrivateImportUsage]
        [held(gradient) for gradient in gradients]
    )
    zero = norms[0].new_zeros(())
    counted = [
        norm if places.holds_first(gradient, parameter) else zero
        for norm, gradient, parameter in zip(norms, gradients, parameters, strict=True)
    ]
    return torch.stack(counted).double().square()
