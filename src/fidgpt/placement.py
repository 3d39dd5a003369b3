"""Divided computations: what components declare, and what a process holds of a parameter.

A component that computes on heads or widths has a method `own_split()`, which returns for each of
its projections whether its outputs or its inputs are split:

    def own_split(self) -> Split:
        return Split({"up": Columns(self.ffn_dim), "down": Rows(self.ffn_dim)})

and everything else follows (see `fidgpt.parallel.tensor`): its input is the same on all processes,
its output is summed over them, and whole parameters inside it have their gradients summed. A linear
layer declares by `SPLIT_DIMS` which dimensions of its parameters that means. A component without a
declaration is computed whole on every process.

The weights of a model that axes of the mesh divide are plain tensors; the attribute `shards` of a
parameter is all that distinguishes them from whole ones: the place on each axis, where every axis
divides what the one before it left. FSDP may shard a shard again, as a DTensor of torch.

Some processes hold a parameter that others do not, such as one of a stage of a pipeline or of a
single expert. Every process keeps the names, ties and kinds of all parameters of a model, so that
all processes' optimizers, checkpoints and norms list the same parameters; for a parameter that a
process does not hold, it has an empty tensor.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fidgpt.processes.collectives import all_gather, all_sum
from fidgpt.processes.processes import Processes

Dims = Mapping[str, int | None]  # by parameter; None if it counts on one process only


@dataclass(frozen=True)
class Columns:
    """A module whose outputs are split, or a parameter that is split along `dim`.

    Attributes:
      units: number of heads, or of elements, which are not split further.
      dim: the dimension of a parameter; a module declares its own parameters'.
      repeats: whether several processes may hold the same unit, as query heads share key heads.
      uneven: whether the last process may hold fewer units than the others.
    """

    units: int
    dim: int = 0
    repeats: bool = False
    uneven: bool = False


@dataclass(frozen=True)
class Rows:
    """A module whose inputs are split, so that the sum of its outputs is the result.

    Attributes:
      units: number of heads, or of elements, which are not split further.
      dim: the dimension of a parameter.
    """

    units: int
    dim: int = 1


@dataclass(frozen=True)
class Once:
    """A module or parameter that is added to a sum over processes, on the first of them."""


@dataclass(frozen=True)
class OnHeads:
    """A module that maps split heads [..., heads, head_dim] to the same, such as a norm.

    It gets all heads unless its class is `ELEMENTWISE`, which means that it treats each vector of
    the last dimension by itself.

    Attributes:
      units: number of heads.
      repeats: as of `Columns`.
    """

    units: int
    repeats: bool = False


@dataclass(frozen=True)
class Split:
    """How a component is divided.

    Attributes:
      parts: by the name of a child module or parameter, in its component; None children may be
        named too.
      gathers: whether the outputs are parts of the last dimension, instead of summands.
      returns: the child module with split inputs whose output the component returns as it is, by
        which a sum may begin before all tokens are computed; None if there is no such child.
    """

    parts: Mapping[str, Columns | Rows | Once | OnHeads]
    gathers: bool = False
    returns: str | None = None


@runtime_checkable
class Divisible(Protocol):
    """A module that declares how its computation can be divided."""

    def own_split(self) -> Split: ...


LINEAR_DIMS: Mapping[str, Dims] = {
    "columns": {"weight": 0, "bias": 0},
    "rows": {"weight": 1, "bias": None},
}

T = TypeVar("T", bound=Tensor)


@dataclass(frozen=True, eq=False)
class Shard:
    """The place of a process's shard of a parameter on an axis.

    Attributes:
      axis: over whose processes the parameter is divided.
      dim: the dimension that is split; None if the parameter is whole.
      size: of that dimension, in the whole.
      num_shards: of the whole; if there are fewer than processes, neighbors hold the same.
      is_once: the first process holds the parameter, and the others zeros.
      is_partial: the gradient of a whole parameter is a summand.
    """

    axis: Processes = field(repr=False)
    dim: int | None = None
    size: int = 0
    num_shards: int = 1
    is_once: bool = False
    is_partial: bool = False

    @property
    def copies(self) -> int:
        """Number of processes that hold the same shard."""
        return self.axis.size // self.num_shards

    @property
    def divides(self) -> bool:
        """Whether processes hold different values, so that the whole is made of them."""
        return self.dim is not None or self.is_once

    @property
    def is_owner(self) -> bool:
        """Whether this process is the first of those that hold its shard."""
        return self.axis.rank == 0 if self.dim is None else self.axis.rank % self.copies == 0

    @property
    def begin(self) -> int:
        """Where the shard begins in the split dimension."""
        return self.bounds(self.axis.rank)[0]

    def bounds(self, rank: int) -> tuple[int, int]:
        """Return where the shard of a process begins and ends; the last ones may be smaller."""
        step = -(-self.size // self.num_shards)
        begin = min(self.size, rank // self.copies * step)
        return begin, min(self.size, begin + step)

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of this process's shard, from the shape of the whole."""
        shape = [*whole]
        if self.dim is not None:
            begin, end = self.bounds(self.axis.rank)
            shape[self.dim] = end - begin
        return tuple(shape)

    def whole_shape(self, shard: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the whole, from the shape of this process's shard."""
        shape = [*shard]
        if self.dim is not None:
            shape[self.dim] = self.size
        return tuple(shape)

    def cut(self, whole: Tensor) -> Tensor:
        """Return this process's shard of a whole tensor, a view or zeros."""
        if self.dim is not None:
            begin, end = self.bounds(self.axis.rank)
            return whole.narrow(self.dim, begin, end - begin)
        return torch.zeros_like(whole) if self.is_once and self.axis.rank else whole

    def parameter(self, whole: nn.Parameter) -> nn.Parameter:
        """Return this process's shard of a parameter on the meta device.

        Args:
          whole: the parameter; or, where another axis divides it already, its shard of that.
        """
        shard = nn.Parameter(whole.new_empty(self.shape(whole.shape)), whole.requires_grad)
        vars(shard).update(vars(whole))  # such as its init
        vars(shard)["shards"] = (*shards_of(whole), self)
        return shard

    def gather(self, shard: Tensor) -> Tensor:
        """Return the whole tensor; all processes of the axis call this."""
        if self.is_once:
            return all_sum(shard, self.axis)
        return shard if self.dim is None else gather_uneven(shard, self, self.dim)


@dataclass(frozen=True, eq=False)
class Holders(Shard):
    """Who holds a parameter, of the processes of an axis.

    Attributes:
      ranks: of those that hold it, in the order in which its gradients are summed; several if it is
        tied.
      held_shape: of what each of them holds.
    """

    ranks: tuple[int, ...] = ()
    held_shape: tuple[int, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether this process is one of them."""
        return self.axis.rank in self.ranks

    @property
    def divides(self) -> bool:
        """Whether processes hold different values."""
        return True

    @property
    def is_owner(self) -> bool:
        """Whether this process is the first of them."""
        return self.axis.rank == self.ranks[0]

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what this process has: all of it, or nothing."""
        return tuple(whole) if self.is_here or not whole else (0, *whole[1:])

    def whole_shape(self, shard: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what a holder has."""
        return self.held_shape

    def cut(self, whole: Tensor) -> Tensor:
        """Return what this process has of a tensor."""
        return whole if self.is_here else whole.new_empty(self.shape(whole.shape))

    def gather(self, shard: Tensor) -> Tensor:
        """Return the first holder's tensor; all processes of the axis call this."""
        x = shard if self.is_here else shard.new_empty(self.held_shape)
        return self.axis.share(x, source=self.ranks[0])


def gather_uneven(x: Tensor, shard: Shard, dim: int) -> Tensor:
    """Return tensors of all processes as one along `dim`, where their sizes are the shards'."""
    bounds = [shard.bounds(rank) for rank in range(0, shard.axis.size, shard.copies)]
    longest = max(end - begin for begin, end in bounds)
    padded = x.movedim(dim, 0)
    if missing := longest - len(padded):
        padded = F.pad(padded.movedim(0, -1), (0, missing)).movedim(-1, 0)
    received = all_gather(padded, shard.axis, 0).split(longest)[:: shard.copies]
    kept = [values[: end - begin] for values, (begin, end) in zip(received, bounds, strict=True)]
    return torch.cat(kept).movedim(0, dim)


def shards_of(parameter: object) -> tuple[Shard, ...]:
    """Return the place of a parameter's shard on each axis that divides it, the first one first."""
    return getattr(parameter, "shards", ())


def holders_of(parameter: object) -> list[Holders]:
    """Return who holds a parameter, by axis; nothing if all processes do."""
    return [shard for shard in shards_of(parameter) if isinstance(shard, Holders)]


def is_absent(parameter: object) -> bool:
    """Return whether this process does not hold a parameter."""
    return not all(holders.is_here for holders in holders_of(parameter))


def placed_like(tensor: T, parameter: object) -> T:
    """Return a tensor that is divided as a parameter is, with its shards."""
    if shards := shards_of(parameter):
        vars(tensor)["shards"] = shards
    return tensor


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a DTensor, without its import, which takes a second."""
    return hasattr(tensor, "device_mesh")


def is_divided(tensor: object) -> bool:
    """Return whether processes may hold parts of a tensor; the same on all of them."""
    return is_sharded(tensor) or bool(shards_of(tensor))


def held(tensor: Any) -> Any:
    """Return what this process holds of a tensor, as a plain one that shares its memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of the whole tensor; this process may hold a part of it."""
    shape = tuple(tensor.shape)
    for shard in reversed(shards_of(tensor)):
        shape = shard.whole_shape(shape)
    return shape


@torch.no_grad()
def whole_of(tensor: Any, parameter: object) -> Any:
    """Return a whole tensor from what this process holds; all processes call this.

    Args:
      tensor: the parameter or, divided in the same way, its gradient or state.
      parameter: with the place of its shard.
    """
    gathers = is_sharded(tensor) and not is_absent(parameter)
    whole = tensor.full_tensor() if gathers else held(tensor)
    for shard in reversed(shards_of(parameter)):
        whole = shard.gather(whole)
    return whole


@torch.no_grad()
def keep(tensor: Any, whole: Tensor) -> None:
    """Copy this process's part of a whole tensor, which all processes have, into a tensor."""
    if is_absent(tensor):
        return
    for shard in shards_of(tensor):
        whole = shard.cut(whole)
    if is_sharded(tensor):
        from torch.distributed.tensor import distribute_tensor  # late: it takes a second

        mesh, placements = tensor.device_mesh, tensor.placements
        # Every process has the same values, so no communication is needed.
        whole = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    tensor.copy_(whole)


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
      tensor: whole, sharded by FSDP, with the attribute `shards`, or both of these.
    """
    if is_absent(tensor):
        return None
    shards, shape, begin = shards_of(tensor), whole_shape(tensor), [0] * tensor.dim()
    if is_sharded(tensor):
        chunks = tensor.__create_chunk_list__()
        if not chunks or (not tensor.to_local().numel() and tensor.numel()):
            return None
        begin, tensor = [*chunks[0].offsets], tensor.to_local()
    for shard in shards:
        if shard.is_once and shard.axis.rank:
            return None
        if shard.dim is not None:
            if not tensor.numel() and math.prod(shape):
                return None
            begin[shard.dim] += shard.begin
    return Block(tensor, tuple(begin), shape)


@contextmanager
def wholes(model: nn.Module) -> Iterator[None]:
    """Give a model whole parameters in main memory inside the block, and shards after it."""
    places = [
        (module._parameters, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and shards_of(parameter)
    ]
    whole_parameters = {
        parameter: nn.Parameter(
            whole_of(parameter.detach(), parameter).cpu(), parameter.requires_grad
        )
        for _, _, parameter in places
    }
    for parameters, name, parameter in places:
        parameters[name] = whole_parameters[parameter]
    try:
        yield
    finally:
        for parameter, whole in whole_parameters.items():
            keep(parameter, whole.detach())
        for parameters, name, parameter in places:
            parameters[name] = parameter
