"""Parallelism over a mesh of processes, whose axes are computed by parts."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import nn

from fidgpt.parallel.axes import AxisPart, MeshSizes
from fidgpt.parallel.data_parallel import Computation, DataParallel
from fidgpt.placement import wholes

__all__ = ["MeshParallel"]


class MeshParallel(DataParallel):
    """Divides rows, weights, sequences and matrix products over the axes of a mesh.

    Every combination computes what one process would, up to the rounding of sums.

    Args:
      mesh: the size of each axis.
      tensor: divides matrix products, if `mesh.tensor` is above 1.
      context: divides sequences, if `mesh.context` is above 1.
      others: by the name of another axis of the mesh, what divides a model along it.
      device: device of the model; defaults to this process's accelerator, or the CPU.
      timeout: seconds that processes wait for each other; see `DataParallel`.

    Raises:
      ValueError: an axis that divides weights or sequences has several processes and no part.
      ParallelError: the processes do not fill the mesh; raised when they join.
    """

    def __init__(
        self,
        mesh: MeshSizes,
        *,
        tensor: AxisPart | None = None,
        context: AxisPart | None = None,
        others: Mapping[str, AxisPart] | None = None,
        device: torch.device | None = None,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(device=device, timeout=timeout)
        self.mesh = mesh
        parts = {"tensor": tensor, "context": context, **(others or {})}
        self.parts = {name: part for name, part in parts.items() if part is not None}
        for axis in mesh.axes():
            size = mesh.sizes[axis.name]
            if axis.needs_part and size != 1 and axis.name not in self.parts:
                raise ValueError(
                    f"mesh.{axis.name}={size} needs a part that divides the model along that axis, "
                    f"and {axis.name} is None: set one, or a size of 1."
                )

    def layout(self, world_size: int) -> MeshSizes:
        """Return the mesh of so many processes."""
        return self.mesh.over(world_size)

    @property
    def planned_size(self) -> int:
        """The number of processes; before they have joined, the least that fill the mesh."""
        return self.world_size if self._joined else self.mesh.size

    def _used(self, mesh: MeshSizes) -> dict[str, AxisPart]:
        """Return the parts of axes of several processes."""
        return {name: part for name, part in self.parts.items() if mesh.sizes.get(name, 1) > 1}

    def check(self, model: nn.Module, *, seq_len: int) -> None:
        """Raise ValueError if a part cannot divide the model, or sequences of `seq_len` tokens."""
        for part in self._used(self.mesh).values():
            part.check(model, mesh=self.mesh, seq_len=seq_len)

    def part_of_weights(self, model: nn.Module) -> float:
        """Return the fraction of a whole model's parameters that FSDP would shard."""
        fraction = 1.0
        for name, part in self._used(self.mesh).items():
            fraction *= part.part_of_weights(model, self.mesh.sizes[name])
        return fraction

    def plan(self, model: nn.Module, mesh: MeshSizes) -> None:
        """Divide a model without memory as on a mesh, to measure what a process computes."""
        for name, part in self._used(mesh).items():
            part.plan(model, mesh.sizes[name])

    def undivided(self, model: nn.Module) -> list[str]:
        """Return paths of modules that processes compute whole, though they divide the others."""
        paths = [path for part in self._used(self.mesh).values() for path in part.undivided(model)]
        return [*dict.fromkeys(paths)]

    def dropout_matches_one_process(self, model: nn.Module, mesh: MeshSizes) -> bool:
        """Return whether a step on a mesh drops the elements that one process would drop."""
        if super().dropout_matches_one_process(model, mesh):
            return True
        parts = self._used(mesh).values()
        matches = all(part.dropout_matches_one_process(model) for part in parts)
        return mesh.token_copies == mesh.size and matches

    @contextlib.contextmanager
    def filling(self, model: nn.Module) -> Iterator[None]:
        """Context in which full tensors may be copied into the parameters of a model.

        Parameters that are divided along an axis are whole in it, in main memory.
        """
        with wholes(model), super().filling(model):
            yield

    def shard(self, model: nn.Module, precision: Computation) -> None:
        """Give a model on the meta device this process's part of the weights."""
        for name, part in self._used(self.places.mesh).items():
            part(model, self.places.axes[name])
        super().shard(model, precision)
