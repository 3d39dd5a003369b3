"""The mesh of a run's processes: its axes, their sizes, and a process's place on each.

A mesh gives every process an index on each of its axes, the last of which varies fastest, so that
neighboring ranks, which are on one machine, share the axes that communicate most:

- `replicate`: copies of the model, which read different rows of a batch and average gradients.
- `shard`: shards of one copy (FSDP), which read different rows too.
- `context`: parts of each sequence.
- `tensor`: parts of each matrix product, on the same tokens.

`Mesh` is the configuration, plain sizes; `Axis` is what a process has of one axis once all have
joined; `Places` are all of its axes. What computes on an axis is a part of `MeshParallel`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Axis", "Mesh"]

# torch.distributed.device_mesh is imported where it is used, because its import is slow.
REST = -1  # the size of the axis that takes the processes that are left


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """How many processes each axis of parallelism has; their product is that of the run.

    Args:
      replicate: copies of the model, each with its own rows of a batch.
      shard: processes that share the weights, gradients and optimizer state of one copy, each with
        its own rows.
      context: processes that share the tokens of each sequence.
      tensor: processes that share each matrix product.

    One size may be -1: that axis takes the processes that the others leave.

    Raises:
      ValueError: a size is neither -1 nor at least 1, or several are -1.
    """

    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name, size in self.sizes.items():
            if size < 1 and size != REST:
                raise ValueError(f"{name}={size} must be 1 or more processes, or -1 for the rest.")
        if len(self._open) > 1:
            raise ValueError(
                f"{' and '.join(f'{name}=-1' for name in self._open)} cannot both take the "
                "processes that are left: set all but one of them."
            )

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis, outermost first."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def _open(self) -> list[str]:
        return [name for name, size in self.sizes.items() if size == REST]

    @property
    def size(self) -> int:
        """Number of processes; the least possible one if an axis takes the rest."""
        return math.prod(size for size in self.sizes.values() if size != REST)

    @property
    def data_size(self) -> int:
        """Number of groups of processes that read different rows of a batch."""
        return self.replicate * self.shard

    @property
    def num_shards(self) -> int:
        """Number of processes over which a weight is sharded: those of a sequence take part."""
        return self.shard * self.context

    def __str__(self) -> str:
        sizes = [f"{name}={size}" for name, size in self.sizes.items() if size != 1]
        return ", ".join(sizes) or "size 1"

    def over(self, world_size: int) -> Mesh:
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


@dataclass(frozen=True, eq=False)
class Axis:
    """A process's place on an axis of the mesh.

    Attributes:
      size: number of processes that differ only on this axis.
      index: place of this process among them.
      group: for collectives among them; None if it is alone, or if they are all of the run.
      is_planned: whether there are no other processes: this one measures what it would hold, and
        collectives take its own tensors for theirs.
    """

    size: int = 1
    index: int = 0
    group: dist.ProcessGroup | None = None
    is_planned: bool = False

    def __deepcopy__(self, memo: object) -> Axis:
        return self  # groups cannot be copied


@dataclass(frozen=True, eq=False)
class Places:
    """A process's places on the mesh, and the groups for collectives.

    Attributes:
      mesh: with all sizes known.
      axes: the place on each axis by name.
      tokens: the place among the processes that compute different tokens: all axes but `tensor`.
      fsdp: mesh of the processes that share weights, over which torch's `fully_shard` works; None
        if they do not.
    """

    mesh: Mesh
    axes: Mapping[str, Axis]
    tokens: Axis
    fsdp: DeviceMesh | None = None

    @property
    def data_rank(self) -> int:
        """Which rows of a batch this process reads, of `mesh.data_size` parts."""
        return self.axes["replicate"].index * self.mesh.shard + self.axes["shard"].index


ALONE = Places(Mesh(), {name: Axis() for name in Mesh().sizes}, Axis())


def places_on(mesh: Mesh, *, device_type: str, timeout: timedelta) -> Places:
    """Return this process's places; all processes of the run call this at the same time.

    The groups are torch's, of a `DeviceMesh`. They are kept until there is another group of the
    run: freed before that is destroyed, they may abort the process at its end.
    """
    key = (dist.group.WORLD, mesh, device_type)
    if key not in _made:
        for earlier in [one for one in _made if one[0] is not key[0]]:
            del _made[earlier]
        _made[key] = _join(mesh, device_type, timeout)
    return _made[key]


# By the group of the run, which later runs in it use again.
_made: dict[tuple[dist.ProcessGroup | None, Mesh, str], Places] = {}


def _join(mesh: Mesh, device_type: str, timeout: timedelta) -> Places:
    if mesh.size == 1:
        return ALONE
    make = partial(_torch_mesh, device_type, timeout)
    index = rank = dist.get_rank()
    axes = {}
    for name, size in reversed(mesh.sizes.items()):
        index, place = divmod(index, size)
        axes[name] = Axis(size, place)
    tokens, fsdp = Axis(mesh.size // mesh.tensor, rank // mesh.tensor), None
    if mesh.tensor > 1:
        both = make(tokens=tokens.size, tensor=mesh.tensor)
        axes["tensor"] = replace(axes["tensor"], group=both.get_group("tensor"))
        tokens = replace(tokens, group=both.get_group("tokens"))
    if mesh.context > 1:
        three = make(data=mesh.data_size, context=mesh.context, tensor=mesh.tensor)
        axes["context"] = replace(axes["context"], group=three.get_group("context"))
    if mesh.shard > 1:
        sizes = {"replicate": mesh.replicate, "shard": mesh.num_shards, "tensor": mesh.tensor}
        whole = make(**sizes)
        fsdp = whole["replicate", "shard"] if mesh.replicate > 1 else whole["shard"]
    return Places(mesh, axes, tokens, fsdp)


def _torch_mesh(device_type: str, timeout: timedelta, /, **sizes: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    made = init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    for group in made.get_all_groups():  # which do not take over the time of the run's group
        _set_pg_timeout(timeout, group)
    return made
