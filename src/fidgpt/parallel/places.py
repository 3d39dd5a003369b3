"""A process's places on the axes of a mesh, and the groups in which it communicates."""

import functools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

from fidgpt.parallel.axes import Axis, MeshSizes
from fidgpt.placement import holders_of, is_sharded, shards_of
from fidgpt.processes import Processes

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# torch.distributed.device_mesh is imported where it is used, because its import is slow.


@dataclass(frozen=True, eq=False, kw_only=True)
class Places:
    """A process's places on the mesh, and those with which it talks.

    Attributes:
      mesh: with all sizes known.
      world: all processes of the run.
      axes: the processes that differ on one axis only, by its name, if its part talks.
      tokens: the processes that compute different tokens.
      rows: the processes that compute different tokens of the same rows.
      copies: by the name of an axis that divides weights and tokens: the processes with copies of
        what this one has of these weights, which compute other tokens.
      fsdp: mesh of the processes that share weights, over which torch's `fully_shard` works; None
        if they do not.
      fsdp_apart: by the name of an axis that divides weights and tokens: the mesh of those that
        share these weights; empty if none do.
    """

    mesh: MeshSizes
    world: Processes = field(default_factory=Processes)
    axes: Mapping[str, Processes]
    tokens: Processes = field(default_factory=Processes)
    rows: Processes = field(default_factory=Processes)
    copies: Mapping[str, Processes] = field(default_factory=dict)
    fsdp: "DeviceMesh | None" = None
    fsdp_apart: "Mapping[str, DeviceMesh]" = field(default_factory=dict)

    @property
    def data_rank(self) -> int:
        """Which rows of a batch this process reads, of `mesh.data_size` parts."""
        return self._index(lambda axis: axis.splits_rows)

    @property
    def is_first(self) -> bool:
        """Whether this process is the first of those that compute the same tokens."""
        return not self._index(lambda axis: not axis.splits_tokens)

    @property
    def is_first_of_stage(self) -> bool:
        """Whether this process is the first of those that compute the same layers and tokens."""
        return not self._index(lambda axis: not axis.splits_tokens and not axis.splits_layers)

    def _index(self, choose: Callable[[Axis], bool]) -> int:
        """Return this process's place among those that differ on some axes only."""
        grid = self.mesh.grid()
        return index_on(grid, [axis for axis in grid if choose(axis)], self.world.rank)

    @property
    def passes_together(self) -> bool:
        """Whether processes with different rows communicate in a pass, so that all take as many."""
        return self.fsdp is not None or bool(self.copies)

    def holds_first(self, tensor: Tensor, parameter: object) -> bool:
        """Return whether this process is the first of those that hold the same part of a parameter.

        Args:
          tensor: the parameter, or a tensor that is divided as it is.
          parameter: with the place of its shard.
        """
        shards = shards_of(parameter)
        divided = frozenset(name for shard in shards if (name := self._name_of(shard.axis)))
        is_first = is_first_of(self.mesh, divided, is_sharded(tensor), self.world.rank)
        return is_first and all(shard.is_owner for shard in shards)

    def processes_to_sum_over(self, parameter: object) -> Processes | None:
        """Return who must sum a gradient that is not averaged as other parameters' gradients are.

        Such gradients belong to parameters in a component that an axis divides whose processes
        compute different tokens, as DistributedDataParallel averages over all of these. And they
        belong to stages of a pipeline, as several passes are under way at a time. FSDP averages the
        gradients of stages, and sums the others over `fsdp_of`, so that only this process is left.
        """
        copies = self.copies.get(self._apart(parameter))
        if self.fsdp is not None:
            return None if copies is None else Processes()
        is_stage = bool(holders_of(parameter)) and self.tokens.size > 1
        return self.tokens if copies is None and is_stage else copies

    def fsdp_of(self, parameter: object) -> "DeviceMesh | None":
        """Return the mesh over which FSDP shards a parameter."""
        return self.fsdp_apart.get(self._apart(parameter), self.fsdp)

    def _apart(self, parameter: object) -> str:
        """Return the name of the axis that divides a parameter and tokens; "" if there is none."""
        names = [self._name_of(shard.axis) for shard in shards_of(parameter)]
        return next((name for name in names if name in self.copies), None) or ""

    def _name_of(self, processes: Processes) -> str | None:
        return next((name for name, axis in self.axes.items() if axis is processes), None)


@functools.lru_cache(maxsize=256)  # asked for every parameter in every step
def is_first_of(mesh: MeshSizes, divided: Collection[str], is_sharded: bool, rank: int) -> bool:
    """Return whether a process is the first on all axes that do not divide a parameter."""
    grid = mesh.grid(*(axis for axis in mesh.axes() if axis.name in divided and axis.borrows))
    others = [
        axis for axis in grid if axis.name not in divided and not (is_sharded and axis.may_shard)
    ]
    return not index_on(grid, others, rank)


def index_on(grid: Mapping[Axis, int], axes: Collection[Axis], rank: int) -> int:
    """Return the place of a process among those that differ on some axes of a grid only."""
    place, scale = 0, 1
    for axis, size in reversed([*grid.items()]):
        rank, index = divmod(rank, size)
        if axis in axes:
            place, scale = place + index * scale, scale * size
    return place


def single_process_places(mesh: MeshSizes) -> Places:
    """Return the places of a process that is the only one."""
    return Places(mesh=mesh, axes={axis.name: Processes() for axis in mesh.axes()})


def places_on(
    mesh: MeshSizes, *, parts: frozenset[str], device_type: str, timeout: timedelta
) -> Places:
    """Return this process's places; all processes of the run call this at the same time.

    Args:
      mesh: with all sizes.
      parts: names of axes along which a component divides the model, with a group for each.
      device_type: of the processes.
      timeout: of their collectives.

    The groups are torch's, of a `DeviceMesh`. They are kept until there is another group of the
    run: freed before that is destroyed, they may abort the process at its end.
    """
    key = (dist.group.WORLD, mesh, parts, device_type)
    if key not in _joined:
        for earlier in [other for other in _joined if other[0] is not key[0]]:
            del _joined[earlier]
        _joined[key] = _join(mesh, parts, device_type, timeout)
    return _joined[key]


# By the group of the run, which later runs in it use again.
_joined: dict[tuple[dist.ProcessGroup | None, MeshSizes, frozenset[str], str], Places] = {}


def _join(mesh: MeshSizes, parts: frozenset[str], device_type: str, timeout: timedelta) -> Places:
    if mesh.size == 1:
        return single_process_places(mesh)
    rank, grid = dist.get_rank(), mesh.grid()
    make = partial(_torch_mesh, device_type, timeout)

    def among(axes: Collection[Axis], grid: Mapping[Axis, int]) -> Processes:
        size = math.prod(grid[axis] for axis in axes)
        group = make(grid, among=axes).get_group("among") if size > 1 else None
        return Processes(size, index_on(grid, axes, rank), group)

    # What only splits rows, as no component computes on it, needs no group of its own.
    talking = [axis for axis in mesh.axes() if axis.needs_part or axis.name in parts]
    axes = {axis.name: Processes() for axis in mesh.axes()}
    axes |= {axis.name: among([axis], mesh.grid(axis)) for axis in talking}
    tokens = [axis for axis in grid if axis.splits_tokens]
    sequences = [axis for axis in grid if axis.splits_sequences and grid[axis] > 1]

    def sharing(axes: Collection[Axis], grid: Mapping[Axis, int]) -> "DeviceMesh":
        """Return the mesh of FSDP among processes that compute different tokens."""
        shards = [axis for axis in axes if axis.may_shard]
        whole = make(grid, copies=[axis for axis in axes if axis not in shards], shards=shards)
        return _of_own_ranks(whole) if whole["copies"].size() > 1 else whole["shards"]

    fsdp = sharing(tokens, grid) if mesh.sharding_axes else None
    copies, fsdp_apart = {}, {}
    for axis in filter(mesh.splits_tokens, mesh.dividing_axes):
        divided = mesh.grid(axis)
        others = [other for other in divided if other.splits_tokens and other is not axis]
        copies[axis.name] = among(others, divided)
        if fsdp is not None:
            fsdp_apart[axis.name] = sharing(others, divided)
    world = Processes(mesh.size, rank)
    return Places(
        mesh=mesh,
        world=world,
        axes=axes,
        tokens=world if mesh.token_copies == 1 else among(tokens, grid),
        rows=axes[sequences[0].name] if len(sequences) == 1 else among(sequences, grid),
        copies=copies,
        fsdp=fsdp,
        fsdp_apart=fsdp_apart,
    )


def _of_own_ranks(whole: Any) -> "DeviceMesh":
    """Return the mesh of the processes that share weights with this one, or have copies of them.

    A slice of `whole` would do, but FSDP slices it again for every parameter (torch 2.13), and each
    slice takes memory for all processes of the run: 0.7 MB for 16,384 of them.
    """
    from torch.distributed.device_mesh import DeviceMesh

    names = ("copies", "shards")
    own = whole[names]
    groups = [own.get_group(name) for name in names]
    return DeviceMesh.from_group(groups, whole.device_type, own.mesh, mesh_dim_names=names)


def _torch_mesh(
    device_type: str, timeout: timedelta, grid: Mapping[Axis, int], /, **dims: Collection[Axis]
) -> Any:
    """Return torch's mesh: a first dimension of all other axes, then the given dimensions."""
    from torch.distributed.device_mesh import DeviceMesh

    order = {axis: number for number, axis in enumerate(grid)}
    chosen = [axis for axes in dims.values() for axis in axes]
    rest = [axis for axis in grid if axis not in chosen]
    ranks = torch.arange(math.prod(grid.values())).view(*grid.values())
    ranks = ranks.permute([order[axis] for axis in [*rest, *chosen]])
    shape = [math.prod(grid[axis] for axis in axes) for axes in (rest, *dims.values())]
    mesh = DeviceMesh(device_type, ranks.reshape(shape), mesh_dim_names=("rest", *dims))
    for group in mesh.get_all_groups():  # which do not take over the time of the run's group
        _set_pg_timeout(timeout, group)
    return mesh
