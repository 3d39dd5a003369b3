"""Axes of a mesh of processes: the facts of each axis, and what follows from them.

An `Axis` is a record of facts: whether its processes read different rows of a batch, whether they
compute different tokens, and what they hold of the weights. It stands beside the component that
computes on the axis (an `AxisPart`), and the size of the axis is a field of a `MeshSizes`, which
every process has. All else follows: which process reads which rows, which one counts a number that
several have, over which ones gradients are summed, and which one writes which part of a
checkpoint.

A process's index on each axis is a digit of its rank; the digit of the last axis varies
fastest, so that neighboring ranks, which are on one machine, share the axes that communicate most.
"""

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any

from torch import nn

from fidgpt.processes import Processes

__all__ = ["Axis", "AxisPart", "MeshSizes", "Weights", "axis_size"]

REST = -1  # the size of the axis that takes the processes that are left


class Weights(enum.Enum):
    """What the processes of an axis hold of the weights of a model.

    Attributes:
      COPIES: each has what the others have.
      SHARDS: each has a shard of every weight, which FSDP gathers before it is used.
      PARTS: each has parts of those weights whose `shards` name the axis, or some of these weights,
        and computes with what it has; of the other weights it has copies.
    """

    COPIES = "copies"
    SHARDS = "shards"
    PARTS = "parts"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What distinguishes the processes of an axis.

    Attributes:
      name: of the field of the mesh that holds its size.
      splits_rows: whether they read different rows of a batch.
      splits_sequences: whether they compute different tokens of the same rows.
      splits_heads: whether they compute different heads of an attention.
      splits_layers: whether they compute different layers, of the same tokens.
      weights: what they hold of the weights.
      joins_shards: whether FSDP shards weights over them too, where it does so over another axis.
      borrows: neighboring axes whose processes these are, because the axis divides some weights
        only: the product of their sizes is a multiple of this axis's size, and for the weights
        that it divides, it replaces them.
    """

    name: str
    splits_rows: bool = False
    splits_sequences: bool = False
    splits_heads: bool = False
    splits_layers: bool = False
    weights: Weights = Weights.COPIES
    joins_shards: bool = False
    borrows: tuple[str, ...] = ()

    @property
    def splits_tokens(self) -> bool:
        """Whether its processes compute different tokens."""
        return self.splits_rows or self.splits_sequences

    @property
    def may_shard(self) -> bool:
        """Whether FSDP shards weights over its processes, if it does so at all."""
        return self.weights is Weights.SHARDS or self.joins_shards

    @property
    def needs_part(self) -> bool:
        """Whether the axis needs an `AxisPart` that divides the model along it."""
        return self.splits_sequences or self.weights is Weights.PARTS


def axis_size(axis: Axis) -> Any:
    """Return the field of a mesh for the size of an axis, by default 1."""
    return field(default=1, metadata={"axis": axis})


@dataclass(frozen=True, kw_only=True)
class MeshSizes:
    """The sizes of the axes of a mesh, one for each field, outermost first.

    A mesh of other axes is a dataclass that adds fields, made by `axis_size`. One size may be -1:
    that axis takes the processes that the others leave.

    Raises:
      ValueError: a size is neither -1 nor at least 1, or several are -1.
    """

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            if size < 1 and size != REST:
                raise ValueError(f"{name}={size} must be 1 or more processes, or -1 for the rest.")
        if len(self._open) > 1:
            raise ValueError(
                f"{' and '.join(f'{name}=-1' for name in self._open)} cannot both take the "
                "processes that are left: set all but one of them."
            )
        for axis in self.axes():
            if axis.borrows and axis.name in self._open:
                raise ValueError(
                    f"{axis.name}=-1 takes no processes that are left, but those of "
                    f"{' x '.join(axis.borrows)}: set how many of them."
                )
        for axis in self.axes() if not self._open else ():
            lent = math.prod(self.sizes[name] for name in axis.borrows)
            if axis.borrows and lent % self[axis]:
                lender = axis.borrows[0]
                raise ValueError(
                    f"{axis.name}={self[axis]} must divide the {lent} processes of "
                    f"{' x '.join(axis.borrows)}, which it borrows, having none of its own: choose "
                    f"{', '.join(str(n) for n in range(1, lent + 1) if lent % n == 0)}, or set "
                    f"{lender}={self.sizes[lender] * self[axis]}."
                )

    @classmethod
    @cache
    def axes(cls) -> tuple[Axis, ...]:
        """Return the axes, outermost first."""
        return tuple(field.metadata["axis"] for field in fields(cls))

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis by name, outermost first."""
        return {axis.name: getattr(self, axis.name) for axis in self.axes()}

    def __getitem__(self, axis: Axis) -> int:
        """Return the size of an axis; 1 if it takes the rest, and this is not known yet."""
        return max(1, getattr(self, axis.name))

    def __str__(self) -> str:
        sizes = [f"{name}={size}" for name, size in self.sizes.items() if size != 1]
        return ", ".join(sizes) or "size 1"

    @property
    def _open(self) -> list[str]:
        return [name for name, size in self.sizes.items() if size == REST]

    def grid(self, divided: Axis | None = None) -> dict[Axis, int]:
        """Return the axes whose indices are the digits of a rank, with their sizes.

        Args:
          divided: an axis that borrows others; in their place, the grid has an axis of what it
            leaves of them, and then the axis itself.
        """
        grid = {axis: self[axis] for axis in self.axes() if not axis.borrows}
        if divided is None or not divided.borrows:
            return grid
        lenders = [axis for axis in grid if axis.name in divided.borrows]
        left = replace(lenders[0], name=f"{' x '.join(divided.borrows)} / {divided.name}")
        number = math.prod(grid[axis] for axis in lenders)
        replaced: dict[Axis, int] = {}
        for axis, size in grid.items():
            if axis is lenders[0]:
                replaced |= {left: number // self[divided], divided: self[divided]}
            elif axis not in lenders:
                replaced[axis] = size
        return replaced

    def splits_tokens(self, axis: Axis) -> bool:
        """Return whether processes of an axis, or of ones it borrows, compute different tokens."""
        lenders = [other for other in self.axes() if other.name in axis.borrows]
        return any(member.splits_tokens for member in (axis, *lenders))

    def _product(self, choose: Callable[[Axis], bool]) -> int:
        return math.prod(size for axis, size in self.grid().items() if choose(axis))

    @property
    def size(self) -> int:
        """Number of processes; the least possible one if an axis takes the rest."""
        return self._product(lambda axis: True)

    @property
    def data_size(self) -> int:
        """Number of groups of processes that read different rows of a batch."""
        return self._product(lambda axis: axis.splits_rows)

    @property
    def row_size(self) -> int:
        """Number of processes that compute different tokens of the same rows."""
        return self._product(lambda axis: axis.splits_sequences)

    @property
    def token_copies(self) -> int:
        """Number of processes that compute the same tokens."""
        return self._product(lambda axis: not axis.splits_tokens)

    @property
    def layer_copies(self) -> int:
        """Number of processes that compute the same layers of the same tokens."""
        return self._product(lambda axis: not axis.splits_tokens and not axis.splits_layers)

    @cached_property
    def sharding_axes(self) -> tuple[Axis, ...]:
        """The axes over which FSDP shards weights; none if it does not."""
        if self._product(lambda axis: axis.weights is Weights.SHARDS) == 1:
            return ()
        return tuple(axis for axis in self.grid() if axis.may_shard)

    @cached_property
    def num_shards(self) -> int:
        """Number of processes over which FSDP shards a weight; 1 if it does not."""
        return self._product(lambda axis: axis in self.sharding_axes)

    @property
    def dividing_axes(self) -> tuple[Axis, ...]:
        """The axes with several processes that hold parts of weights."""
        return tuple(a for a in self.axes() if a.weights is Weights.PARTS and self[a] > 1)

    @property
    def least_size(self) -> int:
        """The fewest processes that fill the mesh, and suffice for the axes that borrow."""
        borrowing = [axis for axis in self.axes() if axis.borrows and self._open]
        lent = [math.prod(abs(self.sizes[name]) for name in axis.borrows) for axis in borrowing]
        missing = (self[a] // math.gcd(n, self[a]) for a, n in zip(borrowing, lent, strict=True))
        return self.size * math.lcm(*missing)

    @property
    def num_parts(self) -> int:
        """Number of processes that hold different parts of the weights."""
        borrowed = [axis for axis in self.dividing_axes if axis.borrows]
        others = self._product(lambda axis: axis in self.dividing_axes)
        return others * max(self.num_shards, math.prod(self[axis] for axis in borrowed))

    def over(self, world_size: int) -> "MeshSizes":
        """Return the mesh of so many processes, with the size of every axis.

        Raises:
          ValueError: the sizes do not multiply to `world_size`.
        """
        rest, left = divmod(world_size, self.size)
        if left or (rest != 1 and not self._open):
            many = f"a multiple of {self.size}" if self._open else str(self.size)
            raise ValueError(
                f"the mesh of {self} takes {many} processes, and the run has "
                f"{world_size}: start {many} with torchrun, or change a size; one of them may be "
                "-1, for the processes that are left."
            )
        return replace(self, **dict.fromkeys(self._open, rest))


class AxisPart:
    """Divides a model along one axis of a mesh, such as `TensorParallel` along `tensor`.

    Only `__call__` has to be there; the other methods tell what can be known before a run begins.
    """

    def check(self, model: nn.Module, *, mesh: MeshSizes, seq_len: int) -> None:
        """Raise ValueError if the mesh cannot divide the model, or sequences of `seq_len` tokens.

        Called when the config is built, on one process, with the whole model on the meta device.
        """

    def __call__(self, model: nn.Module, axis: Processes, /) -> None:
        """Change a whole model on the meta device to compute this process's part.

        Parameters may be replaced by shards of them, as `fidgpt.placement.Shard.parameter` makes
        them; their names and ties stay. Hooks of modules stay; hooks of parameters do not, as
        parameters get their memory afterwards: let a hook of a module register them when it first
        computes.
        """
        raise NotImplementedError

    def undivided(self, model: nn.Module) -> list[str]:
        """Return paths of modules that processes compute whole, though they divide the others."""
        return []

    def dropout_matches_one_process(self, model: nn.Module) -> bool:
        """Return whether processes drop the elements that one process would drop."""
        return False
