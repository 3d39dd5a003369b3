"""The processes of a run: their mesh, how they join, and data parallelism."""

import contextlib
import hashlib
import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fidgpt.model.quantized import require_copies
from fidgpt.parallel.axes import Axis, AxisPart, MeshSizes, Weights, axis_size
from fidgpt.parallel.context import CONTEXT
from fidgpt.parallel.experts import EXPERT
from fidgpt.parallel.pipeline import PIPELINE
from fidgpt.parallel.places import places_on, single_process_places
from fidgpt.parallel.sharding import shard_fully, without_reduction
from fidgpt.parallel.tensor import TENSOR, drops
from fidgpt.placement import wholes
from fidgpt.processes import ParallelError, Processes, heartbeat
from fidgpt.processes.collectives import FusedAllReduce
from fidgpt.processes.rendezvous import RendezvousFailure, Timeouts
from fidgpt.ranges import require_positive

__all__ = ["DataParallel", "Mesh", "MeshParallel", "ParallelError"]

REPLICATE = Axis(name="replicate", splits_rows=True)
SHARD = Axis(name="shard", splits_rows=True, weights=Weights.SHARDS)


@dataclass(frozen=True, kw_only=True)
class Mesh(MeshSizes):
    """The number of processes on each axis of parallelism; their product is the size of the run.

    The axis `expert` has no processes of its own and does not count.

    Args:
      pipeline: processes that share the layers of one copy, on the same tokens.
      replicate: copies of the model, each with its own rows of a batch.
      shard: processes that share the weights, gradients and optimizer state of one copy (FSDP),
        each with its own rows.
      context: processes that share the tokens of each sequence.
      tensor: processes that share each matrix product, on the same tokens.
      expert: of the processes of shard x context, how many share the experts of a mixture.

    One size may be -1: that axis takes the processes that the others leave.

    Raises:
      ValueError: a size is neither -1 nor at least 1, or several are -1.
    """

    pipeline: int = axis_size(PIPELINE)
    replicate: int = axis_size(REPLICATE)
    shard: int = axis_size(SHARD)
    context: int = axis_size(CONTEXT)
    tensor: int = axis_size(TENSOR)
    expert: int = axis_size(EXPERT)


_GLOO = "gloo/transport/"  # in the messages of gloo's errors, which have no class of their own
# torch 2.13 renames the argument, and warns about the old name.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


class DataParallel:
    """The processes of a run, which read different rows of a batch and average gradients.

    As a context manager, it initializes the process group unless there is one already, and destroys
    the group that it initialized. A single process has no group and no overhead. Gradients are
    averaged by torch's DistributedDataParallel during the backward pass, over gloo on CPUs and NCCL
    on GPUs.

    `rank` and `world_size` count processes. Code that chooses rows of a batch uses `data_rank` and
    `data_size` instead: processes on other axes of a mesh (see `fidgpt.parallel.axes`) read the
    same rows. In this class, every process reads its own rows.

    Args:
      device: device of the model; defaults to this process's accelerator, or the CPU.
      timeout: seconds that processes wait for each other in a collective, before the run ends with
        an error that names who is missing. The times for joining, connecting and saving are
        fractions or multiples of it: see `fidgpt.processes.rendezvous.Timeouts`.

    Raises:
      ValueError: timeout is not positive.

    Attributes:
      mesh: the sizes of its axes; the size of one axis may be open.
      parts: by the name of an axis, the component that divides a model along it.
      reshards: whether gathered weights are freed after each pass; see `shard_fully`.
      timeouts: how long processes wait for each other.
      places: this process's places on the axes of the mesh.
    """

    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"timeout": "live"}

    def __init__(self, *, device: torch.device | None = None, timeout: float = 600.0) -> None:
        require_positive(timeout=timeout)
        self.mesh: MeshSizes = Mesh(replicate=-1)
        self.parts: dict[str, AxisPart] = {}
        self.reshards = True
        self.timeouts = Timeouts(timeout)
        self._device = device
        self._joined: list[bool] = []  # of each open context, whether it made the process group
        self._group: dist.ProcessGroup | None = None  # see __exit__
        self.places = single_process_places(Mesh())

    def layout(self, world_size: int) -> MeshSizes:
        """Return the mesh of so many processes.

        Raises:
          ValueError: they do not fill it.
        """
        return self.mesh.over(world_size)

    @property
    def planned_size(self) -> int:
        """The number of processes; before they have joined, the least that fill the mesh."""
        return self.world_size if self._joined else self.mesh.least_size

    def _used(self, mesh: MeshSizes) -> dict[str, AxisPart]:
        """Return the parts for the axes that have several processes."""
        return {name: part for name, part in self.parts.items() if mesh.sizes.get(name, 1) > 1}

    def check(self, model: nn.Module, *, seq_len: int) -> None:
        """Raise ValueError if a part cannot divide the model, or sequences of `seq_len` tokens."""
        require_copies(model, self.mesh.sizes)
        for axis in self.mesh.axes():
            size = self.mesh.sizes[axis.name]
            if axis.splits_layers and (size < 1 or (size > 1 and axis.name not in self.parts)):
                raise ValueError(
                    f"mesh.{axis.name}={size} needs a number of processes, by which layers are "
                    "divided, and a step that passes micro-batches from one to the next "
                    "(PipelineStep, fiddler:use_pipeline)."
                )
        for part in self._used(self.mesh).values():
            part.check(model, mesh=self.mesh, seq_len=seq_len)

    def undivided(self, model: nn.Module) -> list[str]:
        """Return paths of modules that processes compute whole, though they divide the others."""
        paths = [path for part in self._used(self.mesh).values() for path in part.undivided(model)]
        return [*dict.fromkeys(paths)]

    def dropout_matches_one_process(self, model: nn.Module, mesh: MeshSizes) -> bool:
        """Return whether a step on a mesh drops the elements that one process would drop."""
        if mesh.size == 1 or not drops(model):
            return True
        parts = self._used(mesh).values()
        matches = all(part.dropout_matches_one_process(model) for part in parts)
        return mesh.token_copies == mesh.size and matches

    @property
    def data_rank(self) -> int:
        """Which rows of a batch this process reads, from 0 to `data_size` - 1."""
        return self.places.data_rank

    @property
    def data_size(self) -> int:
        """Number of parts into which the rows of a batch are split."""
        return self.places.mesh.data_size

    @property
    def world(self) -> Processes:
        """All processes of the run."""
        return self.places.world

    @property
    def tokens(self) -> Processes:
        """The processes that compute different tokens."""
        return self.places.tokens

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.world.size

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        if self._device is not None:
            return self._device
        if torch.accelerator.is_available():
            kind = torch.accelerator.current_accelerator()
            assert kind is not None
            return torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("cpu")

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints to the console."""
        return self.world.is_main

    def __enter__(self) -> "DataParallel":
        joins = "RANK" in os.environ and not dist.is_initialized()
        if joins:
            if self.device.type != "cpu":
                torch.accelerator.set_device_index(self.device)
            self._join()
        self._joined.append(joins)
        try:
            mesh = self.layout(dist.get_world_size() if dist.is_initialized() else 1)
            self.places = places_on(
                mesh,
                parts=frozenset(self._used(mesh)),
                device_type=self.device.type,
                timeout=self.timeouts.collective,
            )
        except ValueError as error:
            self.__exit__(ParallelError, None, None)
            raise ParallelError(str(error)) from error
        except RuntimeError as error:  # a process ended while the others connected
            self.__exit__(type(error), error, None)
            raise
        return self

    def _join(self) -> None:
        """Initialize the process group, once all processes are there and alike."""
        try:
            run = heartbeat.begin(self.timeouts, device=self.device)
            dist.init_process_group(
                store=run.store,
                rank=run.rank,
                world_size=len(run.hosts),
                timeout=self.timeouts.collective,
            )
        except RendezvousFailure as error:
            raise ParallelError(str(error)) from error
        except (ValueError, RuntimeError) as error:
            raise ParallelError(
                f"processes of the run cannot connect: {str(error).splitlines()[0]}\n"
                f"RANK={os.environ['RANK']} is set; start all processes with torchrun, or "
                "unset RANK to run a single one."
            ) from error

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        joined = self._joined.pop()
        lost = error
        if kind is None:
            try:
                self.world.barrier()
            except RuntimeError as gone:  # a process died while the others were waiting
                lost = gone
        here, reason = heartbeat.live(), ""
        if lost is not None and (isinstance(lost, dist.DistError) or _GLOO in str(lost)):
            reason = f"another process of the run is gone: {str(lost).splitlines()[0]:.200}"
            reason = here.explain(lost) if here else reason
        elif error is not None and here is not None and joined:  # else an outer context decides
            here.fail(error)
        if joined:
            # If a DistributedDataParallel holds the last reference, torch destroys the group while
            # holding the GIL, which a thread of the group may need: one in seven runs deadlocked on
            # a busy machine. This reference keeps the group alive longer than the module.
            self._group = dist.group.WORLD
            dist.destroy_process_group()
            if here is not None:
                here.leave()
        if not self._joined:
            self.places = single_process_places(Mesh())
        if reason:
            raise ParallelError(reason) from lost
        if kind is None and lost is not None:
            raise lost

    def shard(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Give a model on the meta device this process's part of the weights.

        Args:
          model: a whole one.
          dtype: of activations and matrix products.
        """
        for name, part in self._used(self.places.mesh).items():
            part(model, self.places.axes[name])
        vars(model)["stream_dtype"] = dtype
        if self.places.fsdp is not None:
            meshes = {p: self.places.fsdp_of(p) for p in model.parameters()}
            shard_fully(
                model,
                mesh=self.places.fsdp,
                dtype=dtype,
                apart={p: m for p, m in meshes.items() if m is not None and m != self.places.fsdp},
                reshards=self.reshards,
            )

    @contextlib.contextmanager
    def filling(self, model: nn.Module) -> Iterator[None]:
        """Context in which full tensors may be copied into the parameters of a model.

        Parameters that are divided along an axis are whole in it, in main memory.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(wholes(model))
            if self.places.fsdp is not None:
                from torch.distributed.tensor.experimental import implicit_replication

                stack.enter_context(implicit_replication())
            yield

    def wrap(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are averaged over all processes.

        A sharded model reduces its own gradients, and `reduce_gradients` reduces the gradients of
        parameters that processes with different tokens divide.
        """
        # Buffers need no synchronization: their updates are all-reduced.
        if self.tokens.size == 1 or self.places.fsdp is not None:
            return module
        mesh = self.places.mesh
        if any(axis.splits_layers and mesh[axis] > 1 for axis in mesh.axes()):
            return module  # several passes of it are under way at a time
        apart = [n for n, p in module.named_parameters() if self.places.processes_to_sum_over(p)]
        vars(module)["_ddp_params_and_buffers_to_ignore"] = apart
        buffers: dict[str, Any] = {_SYNC_BUFFERS: False}
        return DistributedDataParallel(module, process_group=self.tokens.group, **buffers)

    def accumulating(self, module: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Context without the reduction of gradients, for all micro-batches but the last."""
        if isinstance(module, DistributedDataParallel):
            return module.no_sync()
        if self.places.fsdp is None:
            return contextlib.nullcontext()
        return without_reduction(module, reshards=self.reshards)

    def new_all_reduce(self) -> FusedAllReduce:
        """Return an all-reduce that numbers of a step can join."""
        places = self.places
        return FusedAllReduce(
            self.world, tokens=self.tokens, is_first_copy=places.is_first, device=self.device
        )

    def require_same(self, values: Mapping[str, str]) -> None:
        """Raise if processes differ in these values.

        Otherwise they would hang until a timeout, or train inconsistently.

        Args:
          values: by name, in the same order on all processes.

        Raises:
          ParallelError: on every process, naming the first value that differs.
        """
        if self.world_size == 1:
            return
        digest = hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()
        digests = self.world.gather(digest)
        if len(set(digests)) == 1:
            return
        gathered = self.world.gather(dict(values))
        other = next(rank for rank, other in enumerate(digests) if other != digests[0])
        raise ParallelError(_first_difference(gathered[0], gathered[other], other))


class MeshParallel(DataParallel):
    """Divides rows, weights, sequences and matrix products over the axes of a mesh.

    Every combination computes what one process would, up to the rounding of sums.

    Args:
      mesh: the size of each axis.
      tensor: divides matrix products, if `mesh.tensor` is above 1.
      context: divides sequences, if `mesh.context` is above 1.
      expert: divides experts of mixtures, if `mesh.expert` is above 1.
      others: by the name of another axis of the mesh, the component that divides a model along it.
      reshards: whether a process of `mesh.shard` frees the weights that it has gathered after each
        pass; else it keeps them until the last backward pass of a step.
      device: device of the model; defaults to this process's accelerator, or the CPU.
      timeout: seconds that processes wait for each other; see `DataParallel`.

    Raises:
      ValueError: an axis that divides weights or sequences has several processes and no part.
      ParallelError: the processes do not fill the mesh; raised when they join.
    """

    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"timeout": "live", "reshards": "restart"}

    def __init__(
        self,
        mesh: MeshSizes,
        *,
        tensor: AxisPart | None = None,
        context: AxisPart | None = None,
        expert: AxisPart | None = None,
        others: Mapping[str, AxisPart] | None = None,
        reshards: bool = True,
        device: torch.device | None = None,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(device=device, timeout=timeout)
        self.mesh, self.reshards = mesh, reshards
        parts = {"tensor": tensor, "context": context, "expert": expert, **(others or {})}
        self.parts = {name: part for name, part in parts.items() if part is not None}
        for axis in mesh.axes():
            size = mesh.sizes[axis.name]
            is_missing = axis.name not in self.parts and not axis.splits_layers  # part of a step
            if axis.needs_part and size != 1 and is_missing:
                raise ValueError(
                    f"mesh.{axis.name}={size} needs a part that divides the model along that axis, "
                    f"and {axis.name} is None: set one, or a size of 1."
                )


def _first_difference(main: dict[str, str], other: dict[str, str], rank: int) -> str:
    names = [name for name in {**main, **other} if main.get(name) != other.get(name)]
    here, there = (side.get(names[0], "absent") for side in (main, other))
    more = f" ({len(names) - 1} more differ)" if len(names) > 1 else ""
    return (
        f"process {rank} has a different config: {names[0]} is {here} on process 0 and "
        f"{there} on process {rank}{more}. Start all processes with the same code and flags."
    )
