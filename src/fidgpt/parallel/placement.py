"""Parameters of which a process holds a part: where it lies, and how gradients become right.

The weights of a model divided along `tensor` are plain tensors; the attribute `placement` of a
parameter is all that distinguishes a part from a whole. FSDP may shard the part again.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.parallel.collectives import all_gather, all_sum
from fidgpt.parallel.mesh import Axis, Places
from fidgpt.placement import held, is_sharded, keep, placement_of, whole_of, whole_shape


@dataclass(frozen=True, eq=False)
class Part:
    """The place of a part of a parameter on an axis; see `fidgpt.placement.Placement`.

    Attributes:
      axis: over whose processes the parameter is divided.
      dim: the dimension that is split; None if the parameter is whole.
      size: of that dimension, in the whole.
      num_parts: of the whole; if there are fewer than processes, neighbors hold the same.
      is_once: the first process holds the parameter, and the others zeros.
      is_partial: the gradient of a whole parameter is a summand.
    """

    axis: Axis = field(repr=False)
    dim: int | None = None
    size: int = 0
    num_parts: int = 1
    is_once: bool = False
    is_partial: bool = False

    @property
    def copies(self) -> int:
        """Number of processes that hold the same part."""
        return self.axis.size // self.num_parts

    @property
    def is_owner(self) -> bool:
        """Whether this process is the first of those that hold its part."""
        return self.axis.index == 0 if self.dim is None else self.axis.index % self.copies == 0

    @property
    def begin(self) -> int:
        """Where the part begins in the split dimension."""
        return self.bounds(self.axis.index)[0]

    def bounds(self, index: int) -> tuple[int, int]:
        """Return where the part of a process begins and ends; the last ones may be smaller."""
        step = -(-self.size // self.num_parts)
        begin = min(self.size, index // self.copies * step)
        return begin, min(self.size, begin + step)

    def part_shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of this process's part."""
        shape = [*whole]
        if self.dim is not None:
            begin, end = self.bounds(self.axis.index)
            shape[self.dim] = end - begin
        return tuple(shape)

    def whole_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the whole, of which a part has `shape`."""
        whole = [*shape]
        if self.dim is not None:
            whole[self.dim] = self.size
        return tuple(whole)

    def cut(self, whole: Tensor) -> Tensor:
        """Return this process's part of a whole tensor, a view or zeros."""
        if self.dim is not None:
            begin, end = self.bounds(self.axis.index)
            return whole.narrow(self.dim, begin, end - begin)
        return torch.zeros_like(whole) if self.is_once and self.axis.index else whole

    def gather(self, part: Tensor) -> Tensor:
        """Return the whole tensor; all processes of the axis call this."""
        if self.is_once:
            return all_sum(part, self.axis)
        if self.dim is None:
            return part
        return gather_uneven(part, self, self.dim)


def gather_uneven(x: Tensor, part: Part, dim: int) -> Tensor:
    """Return the parts of a tensor along `dim`, whose sizes are those of `part`, as one."""
    bounds = [part.bounds(index) for index in range(0, part.axis.size, part.copies)]
    longest = max(end - begin for begin, end in bounds)
    padded = x.movedim(dim, 0)
    if missing := longest - len(padded):
        padded = F.pad(padded.movedim(0, -1), (0, missing)).movedim(-1, 0)
    pieces = all_gather(padded, part.axis, 0).split(longest)[:: part.copies]
    kept = [piece[: end - begin] for piece, (begin, end) in zip(pieces, bounds, strict=True)]
    return torch.cat(kept).movedim(0, dim)


def part_of(parameter: object) -> Part | None:
    """Return the place of a parameter; None if it is not divided along an axis."""
    part: Any = placement_of(parameter)
    return part


class Block(NamedTuple):
    """What this process holds of a tensor.

    Attributes:
      tensor: on this process.
      begin: its first index in each dimension of the whole.
      shape: of the whole.
    """

    tensor: Tensor
    begin: tuple[int, ...]
    shape: tuple[int, ...]


def block_of(tensor: Any) -> Block | None:
    """Return what this process holds of a tensor; None if that is nothing.

    Args:
      tensor: whole, sharded, or with the attribute `placement`, or both of these.
    """
    part, shape, begin = part_of(tensor), whole_shape(tensor), [0] * tensor.dim()
    if is_sharded(tensor):
        chunks = tensor.__create_chunk_list__()
        if not chunks or (not tensor.to_local().numel() and tensor.numel()):
            return None
        begin, tensor = [*chunks[0].offsets], tensor.to_local()
    if part is not None and part.is_once and part.axis.index:
        return None
    if part is not None and part.dim is not None:
        if not tensor.numel() and math.prod(shape):
            return None
        begin[part.dim] += part.begin
    return Block(tensor, tuple(begin), shape)


@contextmanager
def wholes(model: nn.Module) -> Iterator[None]:
    """Give a model whole parameters in main memory inside the block, and parts of them after it."""
    owned = [module._parameters for module in model.modules()]
    places = [
        (own, name, p)
        for own in owned
        for name, p in own.items()
        if p is not None and part_of(p) is not None
    ]
    made = {p: nn.Parameter(whole_of(p.detach(), p).cpu(), p.requires_grad) for _, _, p in places}
    for own, name, parameter in places:
        own[name] = made[parameter]
    try:
        yield
    finally:
        for parameter, whole in made.items():
            keep(parameter, whole.detach())
        for own, name, parameter in places:
            own[name] = parameter


@torch.no_grad()
def reduce_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Make the gradients of divided parameters right after a backward pass, in place.

    Summands are summed over their axis, by one all-reduce: those of whole parameters inside of
    divided components, and of parts that several processes hold. What counts on the first process
    only gets no gradient on the others.
    """
    buffers: dict[Axis, list[tuple[Tensor, Tensor]]] = {}
    for parameter in parameters:
        part = part_of(parameter)
        if part is None or parameter.grad is None:
            continue
        gradient = held(parameter.grad)
        if part.is_once and part.axis.index:
            gradient.zero_()
        elif part.is_partial:
            buffers.setdefault(part.axis, []).append((gradient, gradient.flatten().float()))
        elif part.dim is not None and part.copies > 1:
            slots = gradient.new_zeros(part.num_parts, gradient.numel(), dtype=torch.float32)
            slots[part.axis.index // part.copies] = gradient.flatten()
            buffers.setdefault(part.axis, []).append((gradient, slots))
    for axis, pairs in buffers.items():
        summed = all_sum(torch.cat([buffer.flatten() for _, buffer in pairs]), axis)
        sums = summed.split([buffer.numel() for _, buffer in pairs])
        for (gradient, buffer), total in zip(pairs, sums, strict=True):
            own = total.view_as(buffer)
            if buffer.dim() == 2:
                own = own[axis.index * len(buffer) // axis.size]
            gradient.copy_(own.view_as(gradient))


@torch.no_grad()
def norms_of_wholes(norms: Tensor, parameters: Sequence[object]) -> Tensor:
    """Return the norms of whole tensors from those of this process's parts.

    Args:
      norms: Euclidean norm of each tensor on this process.
      parameters: to which the tensors belong, with their placements.
    """
    parts = [part_of(parameter) for parameter in parameters]
    divided = [p if p is not None and (p.dim is not None or p.is_once) else None for p in parts]
    for axis in dict.fromkeys(part.axis for part in divided if part is not None):
        each, zero = norms.unbind(), norms.new_zeros(())
        is_owner = [part is not None and part.is_owner for part in divided]
        # Chosen by Python: a mask would be copied from the CPU, which waits for an accelerator.
        own = [norm if owns else zero for norm, owns in zip(each, is_owner, strict=True)]
        whole = all_sum(torch.stack(own).square(), axis).sqrt().unbind()
        norms = torch.stack(
            [
                total if part is not None and part.axis is axis else norm
                for total, norm, part in zip(whole, each, divided, strict=True)
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
    counted, zero = [], norms[0].new_zeros(())
    for norm, gradient, parameter in zip(norms, gradients, parameters, strict=True):
        copies = places.axes["replicate"] if is_sharded(gradient) else places.tokens
        part = part_of(parameter)
        is_first = places.axes["tensor"].index == 0 if part is None else part.is_owner
        counted.append(norm if is_first and copies.index == 0 else zero)
    return torch.stack(counted).double().square()
