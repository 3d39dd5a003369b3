"""Parallelism over a mesh of processes, whose axes are computed by parts."""

import contextlib
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from fidgpt.parallel import tensor as matrices
from fidgpt.parallel.data_parallel import Computation, DataParallel
from fidgpt.parallel.mesh import Axis, Mesh
from fidgpt.parallel.placement import wholes
from fidgpt.ranges import require_size

__all__ = ["AxisPart", "FullyShardedDataParallel", "MeshParallel"]


@runtime_checkable
class AxisPart(Protocol):
    """Divides a model along one axis of a mesh, such as `tensor`."""

    def check(self, model: nn.Module, *, mesh: Mesh, seq_len: int) -> None:
        """Raise ValueError if the mesh cannot divide the model, or sequences of `seq_len` tokens.

        Called when the config is built, on one process, with the whole model on the meta device.
        """

    def __call__(self, model: nn.Module, axis: Axis, /) -> None:
        """Change a whole model on the meta device to compute this process's part.

        Parameters may be replaced by parts of them; their names and ties stay.
        """


class FullyShardedDataParallel(DataParallel):
    """Shards weights, gradients and optimizer state over the processes (ZeRO stage 3, FSDP2).

    This is a mesh of the axes `replicate` and `shard`; see `shard_fully`. A single process behaves
    as with `DataParallel`.

    Args:
      num_shards: number of consecutive ranks that share one copy of the model, such as those of a
        node (hybrid sharding); defaults to all processes, and is at most their number.
      device: device of the shards; defaults to this process's accelerator, or the CPU.
      timeout: seconds that processes wait for each other; see `DataParallel`.

    Raises:
      ValueError: num_shards is below 1.
      ParallelError: num_shards does not divide the number of processes; raised when they join.
    """

    def __init__(
        self,
        *,
        num_shards: int | None = None,
        device: torch.device | None = None,
        timeout: float = 600.0,
    ) -> None:
        require_size(num_shards=num_shards)
        super().__init__(device=device, timeout=timeout)
        self.num_shards = num_shards

    def layout(self, world_size: int) -> Mesh:
        """Return the mesh of so many processes."""
        shards = min(self.num_shards or world_size, world_size)
        if world_size % shards:
            raise ValueError(
                f"num_shards={self.num_shards} does not divide {world_size} processes; start "
                "a multiple of it with torchrun, or set another num_shards."
            )
        return Mesh(replicate=world_size // shards, shard=shards)


class MeshParallel(DataParallel):
    """Divides rows, weights, sequences and matrix products over the axes of a mesh.

    Every combination computes what one process would, up to the rounding of sums.

    Args:
      mesh: the size of each axis.
      tensor: divides matrix products, if `mesh.tensor` is above 1.
      context: divides sequences, if `mesh.context` is above 1.
      device: device of the model; defaults to this process's accelerator, or the CPU.
      timeout: seconds that processes wait for each other; see `DataParallel`.

    Raises:
      ValueError: an axis has several processes and no part.
      ParallelError: the processes do not fill the mesh; raised when they join.
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        tensor: AxisPart | None = None,
        context: AxisPart | None = None,
        device: torch.device | None = None,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(device=device, timeout=timeout)
        self.mesh = mesh
        self.parts = {"tensor": tensor, "context": context}
        for name, part in self.parts.items():
            if (size := mesh.sizes[name]) != 1 and part is None:
                raise ValueError(
                    f"mesh.{name}={size} needs a part that divides the model along that axis, and "
                    f"{name} is None: set one, or a size of 1."
                )

    def layout(self, world_size: int) -> Mesh:
        """Return the mesh of so many processes."""
        return self.mesh.over(world_size)

    @property
    def planned_size(self) -> int:
        """The number of processes; before they have joined, the least that fill the mesh."""
        return self.world_size if self._joined else self.mesh.size

    def check(self, model: nn.Module, *, seq_len: int) -> None:
        """Raise ValueError if a part cannot divide the model, or sequences of `seq_len` tokens."""
        for name, part in self.parts.items():
            if part is not None and self.mesh.sizes[name] > 1:
                part.check(model, mesh=self.mesh, seq_len=seq_len)

    def part_of_weights(self, model: nn.Module) -> float:
        """Return the fraction of a whole model's parameters that FSDP would shard."""
        return matrices.part_of_weights(model, self.mesh.tensor) if self._divides_matrices else 1.0

    def divide(self, model: nn.Module, mesh: Mesh) -> None:
        """Divide the matrices of a model as on a mesh, to measure what a process computes."""
        if (part := self.parts["tensor"]) is not None and self._divides_matrices:
            part(model, Axis(mesh.tensor, is_planned=True))

    def undivided(self, model: nn.Module) -> list[str]:
        """Return paths of modules that processes compute whole, though they divide the others."""
        return matrices.undivided(model) if self._divides_matrices else []

    def drops_alike(self, model: nn.Module, mesh: Mesh) -> bool:
        """Return whether a step on a mesh drops the elements that one process would drop."""
        is_alone = (
            mesh.tensor == mesh.size and type(self.parts["tensor"]) is matrices.TensorParallel
        )
        return super().drops_alike(model, mesh) or (is_alone and not matrices.drops_apart(model))

    @property
    def _divides_matrices(self) -> bool:
        return self.mesh.tensor > 1 and isinstance(self.parts["tensor"], matrices.TensorParallel)

    @contextlib.contextmanager
    def filling(self, model: nn.Module) -> Iterator[None]:
        """Context in which full tensors may be copied into the parameters of a model.

        Parameters that are divided along an axis are whole in it, in main memory.
        """
        with wholes(model), super().filling(model):
            yield

    def shard(self, model: nn.Module, precision: Computation) -> None:
        """Give a model on the meta device this process's part of the weights."""
        for name, part in self.parts.items():
            if part is not None and (axis := self.places.axes[name]).size > 1:
                part(model, axis)
        super().shard(model, precision)
