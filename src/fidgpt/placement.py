"""What a component declares so that its matrix products can be divided over processes.

A component that computes on heads or widths has a method `own_split()`, which returns for each of
its projections whether its outputs or its inputs are split:

    def own_split(self) -> Split:
        return Split({"up": Columns(self.ffn_dim), "down": Rows(self.ffn_dim)})

and everything else follows (see `fidgpt.parallel.tensor`): its input is the same on all processes,
its output is summed over them, and whole parameters inside it have their gradients summed. A linear
layer declares by `SPLIT_DIMS` which dimensions of its parameters that means. A component without a
declaration is computed whole on every process.

Of what is divided, a process holds parts: here is also how whole tensors are made of them, and
parts of whole ones. FSDP may shard a part again, as a DTensor of torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

T = TypeVar("T", bound=Tensor)
Dims = Mapping[str, int | None]  # by parameter; None if it counts on one process only


@dataclass(frozen=True)
class Columns:
    """A module whose outputs are split, or a parameter that is split along `dim`.

    Attributes:
      units: number of heads, or of elements, which are not split further.
      dim: the dimension of a parameter; a module declares those of its own.
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


@runtime_checkable
class Placement(Protocol):
    """What the attribute `placement` of a parameter records about its whole."""

    def whole_shape(self, shape: tuple[int, ...], /) -> tuple[int, ...]:
        """Return the shape of the whole, of which a part has `shape`."""
        ...

    def cut(self, whole: Any, /) -> Any:
        """Return this process's part of a whole tensor."""
        ...

    def gather(self, part: Any, /) -> Any:
        """Return the whole tensor; all processes that hold parts call this."""
        ...


def placement_of(parameter: object) -> Placement | None:
    """Return the placement of a parameter; None if this process holds all of it."""
    return getattr(parameter, "placement", None)


def placed_like(tensor: T, parameter: object) -> T:
    """Return a tensor that is divided as a parameter is, with its placement."""
    if (placement := placement_of(parameter)) is not None:
        vars(tensor)["placement"] = placement
    return tensor


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a DTensor, without its import, which takes a second."""
    return hasattr(tensor, "device_mesh")


def is_divided(tensor: object) -> bool:
    """Return whether processes may hold parts of a tensor; the same on all of them."""
    return is_sharded(tensor) or placement_of(tensor) is not None


def held(tensor: Any) -> Any:
    """Return what this process holds of a tensor, as a plain one that shares its memory."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of the whole tensor of which this process may hold a part."""
    placement, shape = placement_of(tensor), tuple(tensor.shape)
    return shape if placement is None else placement.whole_shape(shape)


@torch.no_grad()
def whole_of(tensor: Any, parameter: object) -> Any:
    """Return a whole tensor from this process's part; all processes call this.

    Args:
      tensor: the parameter or, divided in the same way, its gradient or state.
      parameter: with its placement.
    """
    placement = placement_of(parameter)
    tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return tensor if placement is None else placement.gather(tensor)


@torch.no_grad()
def keep(tensor: Any, whole: Tensor) -> None:
    """Copy this process's part of a whole tensor, which all processes have, into a tensor."""
    if (placement := placement_of(tensor)) is not None:
        whole = placement.cut(whole)
    if is_sharded(tensor):
        from torch.distributed.tensor import distribute_tensor  # late: it takes a second

        mesh, placements = tensor.device_mesh, tensor.placements
        # Every process has the same values, so no communication is needed.
        whole = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    tensor.copy_(whole)


class Job(NamedTuple):
    """A function of a whole matrix, or of each one in a stack, of which a process may hold a part.

    Attributes:
      part: what this process holds of the matrix, divided as the parameter is.
      parameter: with its placement.
      function: returns a matrix of the same shape and dtype.
    """

    part: Any
    parameter: Any
    function: Callable[[Any], Any]


@runtime_checkable
class Workers(Protocol):
    """Processes that share jobs, so that each matrix is computed by one of them."""

    def map(self, jobs: Sequence[Job], /) -> list[Any]:
        """Return this process's part of each result; all processes call this with the same jobs."""
        ...


@runtime_checkable
class SharesWork(Protocol):
    """An optimizer that gives its work on whole matrices to `workers`."""

    workers: Workers


class Share(NamedTuple):
    """What a process holds of a parameter.

    Attributes:
      shape: of the whole.
      place: of what it holds in each dimension; None if that is nothing.
      counts: whether it is the first of the processes that hold the same.
      most: elements of the largest part that any process holds.
    """

    shape: tuple[int, ...]
    place: tuple[slice, ...] | None
    counts: bool
    most: int


@runtime_checkable
class Statistics(Protocol):
    """Sums over divided parameters, and vectors of which each process keeps a part."""

    def shares(self, parameters: Sequence[Any], /) -> list[Share]:
        """Return what this process holds of parameters."""
        ...

    def sum(self, values: Sequence[Any], /) -> list[Any]:
        """Return the sums of tensors over all processes."""
        ...

    def kept(self, whole: Any, dim: int, /) -> Any:
        """Return this process's part of a whole tensor, which is divided along a dimension."""
        ...

    def placed(self, part: Any, dim: int, size: int, /) -> Any:
        """Note that a tensor is this process's part of one of `size` along a dimension."""
        ...

    def wholes(self, parts: Sequence[Any], /) -> list[Any]:
        """Return whole tensors of the parts that processes keep."""
        ...


@runtime_checkable
class KeepsStatistics(Protocol):
    """An optimizer that keeps sums over divided parameters as `statistics` of the processes."""

    statistics: Statistics | None
