"""Gradients of parameters: reduced over processes, transformed, and their norms."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fidgpt.parallel.places import Places
from fidgpt.placement import held, holders_of, is_absent, is_sharded, shards_of
from fidgpt.processes import Processes
from fidgpt.processes.collectives import FusedAllReduce, all_sum
from fidgpt.ranges import require_positive

__all__ = ["ClipByValue", "GradientTransform"]


@torch.no_grad()
def reduce_gradients(parameters: Iterable[nn.Parameter], places: Places) -> None:
    """Make the gradients of divided parameters right after a backward pass, in place.

    Summands are summed over their axis, by one all-reduce: gradients of whole parameters inside of
    divided components, and of shards that several processes hold. What counts on the first process
    only gets no gradient on the others. Where the processes of the axis compute different tokens,
    the gradient of what it divides is averaged here: over those with copies of it, and by the
    number of all that compute different tokens. The gradients of a parameter that several stages
    of a pipeline use are summed over these.
    """
    parameters = [*parameters]
    if not any(map(shards_of, parameters)):
        return  # no axis divides a parameter, nor does a pipeline
    for parameter in parameters:
        # Others list it in sums and norms too: of another stage, or of an expert without tokens.
        if parameter.grad is None and parameter.requires_grad and holders_of(parameter):
            parameter.grad = torch.zeros_like(parameter)
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    _sum_over_holders(parameters)
    _average_stages(parameters, places)
    divided = [(held(p.grad), p) for p in parameters if shards_of(p)]
    averaged: dict[Processes, list[_Summand]] = {}
    for gradient, parameter in divided:
        copies = places.processes_to_sum_over(parameter)
        if copies is not None and copies is not places.tokens:
            gradient.div_(places.tokens.size)
            averaged.setdefault(copies, []).append((gradient, gradient.flatten().float()))
    for copies, summands in averaged.items():
        _sum_over(copies, summands)
    shards = [(gradient, shard) for gradient, p in divided for shard in shards_of(p)]
    for axis in dict.fromkeys(shard.axis for _, shard in shards):
        summands = []
        for gradient, shard in shards:
            if shard.axis is not axis:
                continue
            if shard.is_once and axis.rank:
                gradient.zero_()
            elif shard.is_partial:
                summands.append((gradient, gradient.flatten().float()))
            elif shard.dim is not None and shard.copies > 1:
                slots = gradient.new_zeros(shard.num_shards, gradient.numel(), dtype=torch.float32)
                slots[axis.rank // shard.copies] = gradient.flatten()
                summands.append((gradient, slots))
        _sum_over(axis, summands)


_Summand = tuple[Tensor, Tensor]  # a gradient, and what of it is summed: a row for each shard


def _sum_over(axis: Processes, summands: Sequence[_Summand]) -> None:
    """Sum over an axis by one all-reduce, and copy to each gradient its row of the sum."""
    if axis.size == 1 or not summands:
        return
    summed = all_sum(torch.cat([buffer.flatten() for _, buffer in summands]), axis)
    sums = summed.split([buffer.numel() for _, buffer in summands])
    for (gradient, buffer), total in zip(summands, sums, strict=True):
        own = total.view_as(buffer)
        if buffer.dim() == 2:
            own = own[axis.rank * len(buffer) // axis.size]
        gradient.copy_(own.view_as(gradient))


_BUCKET = 2**24  # elements that are copied to be sent together


def _average_stages(parameters: Sequence[nn.Parameter], places: Places) -> None:
    """Average gradients over the processes with the same stage and different tokens."""
    buckets: list[list[Tensor]] = [[]]
    for parameter in parameters:
        if places.processes_to_sum_over(parameter) is places.tokens and parameter.numel():
            assert parameter.grad is not None
            if sum(gradient.numel() for gradient in buckets[-1]) > _BUCKET:
                buckets.append([])
            buckets[-1].append(parameter.grad)
    for bucket in buckets:
        for gradient, total in zip(bucket, places.tokens.all_reduce(bucket), strict=True):
            gradient.copy_(total).div_(places.tokens.size)


def _sum_over_holders(parameters: Sequence[nn.Parameter]) -> None:
    """Sum the gradients of each parameter that several processes hold, the same on all of them."""
    outgoing: list[tuple[int, Tensor]] = []
    incoming: list[tuple[int, Tensor]] = []
    summed: list[tuple[Tensor, list[Tensor]]] = []
    axis = None
    for parameter in parameters:
        tied = [holders for holders in holders_of(parameter) if len(holders.ranks) > 1]
        if not tied:
            continue
        (holders,) = tied  # of a pipeline
        axis, gradient = holders.axis, held(parameter.grad)
        if is_absent(parameter):
            continue
        parts = {rank: torch.empty_like(gradient) for rank in holders.ranks}
        parts[axis.rank] = gradient
        others = [(rank, part) for rank, part in parts.items() if rank != axis.rank]
        outgoing += [(rank, gradient) for rank, _ in others]
        incoming += others
        summed.append((gradient, [*parts.values()]))
    if axis is None:
        return
    axis.exchange(outgoing, incoming, like=held(parameters[0].grad))()
    for gradient, parts in summed:
        gradient.copy_(sum(parts[1:], parts[0]))


@torch.no_grad()
def norms_of_wholes(norms: Tensor, parameters: Sequence[object]) -> Tensor:
    """Return the norms of whole tensors from the norms of this process's shards.

    Args:
      norms: Euclidean norm of each tensor on this process.
      parameters: to which the tensors belong, with the places of their shards.
    """
    divided = [
        {shard.axis: shard for shard in shards_of(parameter) if shard.divides}
        for parameter in parameters
    ]
    for axis in dict.fromkeys(axis for shards in divided for axis in shards):
        each, zero = norms.unbind(), norms.new_zeros(())
        is_owner = [axis in shards and shards[axis].is_owner for shards in divided]
        # Chosen by Python: a mask would be copied from the CPU, which waits for an accelerator.
        own = [norm if owns else zero for norm, owns in zip(each, is_owner, strict=True)]
        whole = all_sum(torch.stack(own).square(), axis).sqrt().unbind()
        norms = torch.stack(
            [
                total if axis in shards else norm
                for total, norm, shards in zip(whole, each, divided, strict=True)
            ]
        )
    return norms


@torch.no_grad()
def own_squares(
    gradients: Sequence[Tensor], parameters: Sequence[object], places: Places
) -> Tensor:
    """Return squared norms, [gradients] in float64, which all processes sum to the wholes' norms.

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


@runtime_checkable
class GradientTransform(Protocol):
    """Changes gradients in place, before their norm is measured and clipped."""

    def __call__(self, parameters: Iterable[nn.Parameter], /) -> None: ...


class ClipByValue:
    """Clips every element of a gradient to [-max_grad_value, max_grad_value].

    Args:
      max_grad_value: above 0.

    Raises:
      ValueError: it is not.
    """

    def __init__(self, max_grad_value: float) -> None:
        require_positive(max_grad_value=max_grad_value)
        self.max_grad_value = max_grad_value

    def __call__(self, parameters: Iterable[nn.Parameter]) -> None:
        chosen = [p for p in parameters if p.grad is not None]
        for (group,) in by_mesh(chosen):
            nn.utils.clip_grad_value_(group, self.max_grad_value)


class GradientNorms:
    """Euclidean norms of gradients over all processes, of each parameter and of all together.

    Args:
      parameters: parameters of the model; parameters without a gradient are ignored.
      fused: sums the squares of processes that hold parts of parameters, and is started before a
        norm is read; None if each process holds whole parameters or communicates by itself.
      places: places of this process on the mesh, needed with `fused`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        fused: FusedAllReduce | None = None,
        places: Places | None = None,
    ) -> None:
        self._parameters = [p for p in parameters if p.grad is not None]
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if fused is None or places is None or not gradients:
            norms = norms_of(gradients, self._parameters)
            self._read = lambda: norms
        else:
            squares = fused.sum_everywhere(own_squares(gradients, self._parameters, places))
            self._read = lambda: squares().sqrt().float()

    @functools.cached_property
    def _norms(self) -> Float[Tensor, " parameters"]:
        return self._read()

    @functools.cached_property
    def total(self) -> Float[Tensor, ""]:
        """The norm of all gradients as one vector; a tensor, so that nothing waits for it."""
        return torch.linalg.vector_norm(self._norms)

    def clip(self, max_norm: float | None) -> None:
        """Scale the gradients down, so that their total norm is at most `max_norm`."""
        if max_norm is None:
            return
        # A factor of 1 would be one more pass over memory; only a CPU need not be waited for.
        if self.total.device.type == "cpu" and max_norm / (self.total + 1e-6) >= 1:
            return
        for (group,) in by_mesh(self._parameters):
            nn.utils.clip_grads_with_norm_(group, max_norm, self.total)

    def norm_of(self, parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
        """Return the norm over some of the parameters, as it was before clipping."""
        chosen = {id(parameter) for parameter in parameters}
        norms = zip(self._parameters, self._norms.unbind(), strict=True)
        selected = [norm for parameter, norm in norms if id(parameter) in chosen]
        if not selected:
            return self._norms.new_zeros(())
        return torch.linalg.vector_norm(torch.stack(selected))

    def not_finite(self) -> list[nn.Parameter]:
        """Return the parameters whose gradients hold NaN or inf, in the model's order."""
        bad = (~self._norms.isfinite()).tolist()
        return [p for p, is_bad in zip(self._parameters, bad, strict=True) if is_bad]


@torch.no_grad()
def norms_of(
    tensors: Sequence[Tensor], parameters: Sequence[nn.Parameter] | None = None
) -> Float[Tensor, " tensors"]:
    """Return the Euclidean norm of each whole tensor, whose part this process may hold.

    Args:
      tensors: gradients, or parameters themselves.
      parameters: the parameter of each tensor; defaults to the tensors.
    """
    if not tensors:
        return torch.zeros(0)
    norms: list[Any] = [None] * len(tensors)
    for group, indices in by_mesh(tensors, range(len(tensors))):
        # One launch for all of them, as in torch's own clipping.
        each: Any = torch._foreach_norm(group)  # pyright: ignore[reportPrivateImportUsage]
        if is_sharded(each[0]):  # stacked first, for one all-reduce
            joined: Any = torch.stack(each)
            each = joined.full_tensor().unbind()
        for index, norm in zip(indices, each, strict=True):
            norms[index] = norm
    return norms_of_wholes(torch.stack(norms), tensors if parameters is None else parameters)


def by_mesh(tensors: Sequence[Tensor], *others: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """Yield groups of tensors that the same processes hold, for one operation on each group.

    Args:
      tensors: tensors on any processes.
      *others: lists of the same length, whose corresponding items are yielded as well.
    """
    # By attribute: torch takes more than a second to import the class of sharded tensors.
    meshes = [getattr(tensor, "device_mesh", None) for tensor in tensors]
    for mesh in dict.fromkeys(meshes):
        is_here = [other == mesh for other in meshes]
        yield [[*itertools.compress(items, is_here)] for items in (tensors, *others)]
