"""The processes of a run: how they start, their collectives, and data parallelism."""

import contextlib
import hashlib
import inspect
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fidgpt.parallel import presence
from fidgpt.parallel.meeting import MeetingError, Patience
from fidgpt.parallel.mesh import ALONE, Axis, Mesh, places_on
from fidgpt.parallel.sharding import shard_fully, without_reduction
from fidgpt.parallel.tensor import drops
from fidgpt.ranges import require_positive

__all__ = ["Computation", "DataParallel", "ParallelError"]

_GLOO = "gloo/transport/"  # in the messages of gloo's errors, which have no class of their own
# torch 2.13 renames the argument, and warns about the old name.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


Model = TypeVar("Model", bound=nn.Module)


@runtime_checkable
class Computation(Protocol):
    """The number format in which a model computes.

    Attributes:
      dtype: dtype of activations and matrix products.
    """

    dtype: torch.dtype

    def replica(self, model: Model, /) -> Model:
        """Return the module that computes: the model itself, or a copy with the same ties."""
        ...


class ParallelError(RuntimeError):
    """Another process of the run failed; the message has the reason."""


class DataParallel:
    """The processes of a run, and their collective operations.

    As a context manager, it initializes the process group unless there is one already, and destroys
    the group that it initialized. A single process has no group and no overhead. Gradients are
    averaged by torch's DistributedDataParallel during the backward pass, over gloo on CPUs and NCCL
    on GPUs.

    `rank` and `world_size` count processes. What chooses rows of a batch counts `data_rank` and
    `data_size` instead: processes on other axes of a mesh (see `fidgpt.parallel.mesh`) read the
    same rows. Every process of this class has rows of its own.

    Args:
      device: device of the model; defaults to this process's accelerator, or the CPU.
      timeout: seconds that processes wait for each other in a collective, before the run ends with
        an error that names who is missing. The times for joining, connecting and saving are
        fractions or multiples of it: see `fidgpt.parallel.meeting.Patience`.

    Raises:
      ValueError: timeout is not positive.

    Attributes:
      patience: how long processes wait for each other.
      rank: number of this process.
      world_size: number of processes.
      places: this process's places on the axes of the mesh.
    """

    MAY_CHANGE: ClassVar[Mapping[str, str]] = {"timeout": "live"}

    def __init__(self, *, device: torch.device | None = None, timeout: float = 600.0) -> None:
        require_positive(timeout=timeout)
        self.patience = Patience(timeout)
        self._device = device
        self._joined: list[bool] = []
        self._group: dist.ProcessGroup | None = None  # see __exit__
        self.rank = 0
        self.world_size = 1
        self.places = ALONE
        self._sums_of_shapes: dict[Hashable, Sequence[Tensor]] = {}

    def layout(self, world_size: int) -> Mesh:
        """Return the mesh of so many processes.

        Raises:
          ValueError: they do not fill it.
        """
        return Mesh(replicate=world_size)

    @property
    def planned_size(self) -> int:
        """The number of processes; before they have joined, the least that this could have."""
        return self.world_size if self._joined else 1

    def check(self, model: nn.Module, *, seq_len: int) -> None:
        """Raise ValueError if the model, or sequences of `seq_len` tokens, cannot be divided."""

    def part_of_weights(self, model: nn.Module) -> float:
        """Return the fraction of a whole model's parameters that FSDP would shard."""
        return 1.0

    def divide(self, model: nn.Module, mesh: Mesh) -> None:
        """Divide the matrices of a model as on a mesh, to measure what a process computes."""

    def undivided(self, model: nn.Module) -> list[str]:
        """Return paths of modules that processes compute whole, though they divide the others."""
        return []

    def drops_alike(self, model: nn.Module, mesh: Mesh) -> bool:
        """Return whether a step on a mesh drops the elements that one process would drop."""
        return mesh.size == 1 or not drops(model)

    @property
    def data_rank(self) -> int:
        """Which rows of a batch this process reads, from 0 to `data_size` - 1."""
        return self.places.data_rank

    @property
    def data_size(self) -> int:
        """Number of parts into which the rows of a batch are split."""
        return self.places.mesh.data_size

    @property
    def tokens(self) -> Axis:
        """This process's place among those that compute different tokens."""
        return self.places.tokens

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
        return self.rank == 0

    def __enter__(self) -> "DataParallel":
        joins = "RANK" in os.environ and not dist.is_initialized()
        if joins:
            if self.device.type != "cpu":
                torch.accelerator.set_device_index(self.device)
            self._join()
        if dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._joined.append(joins)
        try:
            mesh = self.layout(self.world_size)
        except ValueError as error:
            self.__exit__(ParallelError, None, None)
            raise ParallelError(str(error)) from error
        if self.world_size > 1:
            self.places = places_on(
                mesh, device_type=self.device.type, timeout=self.patience.collective
            )
        return self

    def _join(self) -> None:
        """Initialize the process group, once all processes are there and alike."""
        try:
            meeting = presence.begin(self.patience, device=self.device)
            dist.init_process_group(
                store=meeting.store,
                rank=meeting.rank,
                world_size=len(meeting.hosts),
                timeout=self.patience.collective,
            )
        except MeetingError as error:
            raise ParallelError(str(error)) from error
        except (ValueError, RuntimeError) as error:
            raise ParallelError(
                f"processes of the run cannot connect: {str(error).splitlines()[0]}\n"
                f"RANK={os.environ['RANK']} is set; start all processes with torchrun, or "
                "unset RANK to run a single one."
            ) from error

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        joined = self._joined.pop()
        lost = _wait_for_all() if kind is None else error
        here, reason = presence.live(), ""
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
            self.rank, self.world_size, self.places = 0, 1, ALONE
            self._sums_of_shapes.clear()
        if reason:
            raise ParallelError(reason) from lost
        if kind is None and lost is not None:
            raise lost

    def shard(self, model: nn.Module, precision: Computation) -> None:
        """Give a model on the meta device this process's part of the weights."""
        if self.places.fsdp is not None:
            shard_fully(model, mesh=self.places.fsdp, dtype=precision.dtype)

    def replica(self, model: Model, precision: Computation) -> Model:
        """Return the module that computes for a model in the given precision.

        It is the model itself if weights are sharded, which computes with what it gathers.
        """
        return model if self.places.fsdp is not None else precision.replica(model)

    @contextlib.contextmanager
    def filling(self, model: nn.Module) -> Iterator[None]:
        """Context in which full tensors may be copied into the parameters of a model."""
        if self.places.fsdp is None:
            yield
            return
        from torch.distributed.tensor.experimental import implicit_replication

        with implicit_replication():
            yield

    def place(self, module: nn.Module) -> nn.Module:
        """Wrap a module so that its gradients are averaged over all processes.

        A sharded model reduces its own gradients.
        """
        # Buffers need no synchronization: their updates are all-reduced.
        if self.tokens.size == 1 or self.places.fsdp is not None:
            return module
        buffers: dict[str, Any] = {_SYNC_BUFFERS: False}
        return DistributedDataParallel(module, process_group=self.tokens.group, **buffers)

    @contextlib.contextmanager
    def accumulating(self, module: nn.Module) -> Iterator[None]:
        """Context without the reduction of gradients, for all micro-batches but the last."""
        if isinstance(module, DistributedDataParallel):
            with module.no_sync():
                yield
        elif self.places.fsdp is not None:
            with without_reduction(module):
                yield
        else:
            yield

    def sum(self, value: Tensor, axis: Axis | None = None) -> Tensor:
        """Return the sum of a tensor over processes; of an axis, or that compute other tokens."""
        axis = self.tokens if axis is None else axis
        if axis.size > 1:
            value = value.to(self.device, copy=True)
            dist.all_reduce(value, group=axis.group)
        return value

    def sum_all(self, values: Sequence[Tensor], axis: Axis | None = None) -> list[Tensor]:
        """Return the sums of tensors of one type over processes, by one all-reduce."""
        if not values:
            return []
        joined = self.sum(torch.cat([value.flatten() for value in values]), axis)
        parts = joined.split([value.numel() for value in values])
        return [part.view_as(value) for part, value in zip(parts, values, strict=True)]

    def sums_of_shapes(self, shape: Hashable, numbers: Sequence[int]) -> Sequence[Tensor]:
        """Return the sums of numbers over the axis `context`, by one all-reduce for each shape.

        Args:
          shape: on which the numbers depend, and nothing else; the same on all processes.
          numbers: of this process.
        """
        if shape not in self._sums_of_shapes:
            made = [torch.full((), n, dtype=torch.int64, device=self.device) for n in numbers]
            self._sums_of_shapes[shape] = self.sum_all(made, axis=self.places.axes["context"])
        return self._sums_of_shapes[shape]

    def on_main(self, action: Callable[[], object]) -> None:
        """Run an action on the main process; if it fails there, raise on all processes.

        Raises:
          ParallelError: on the other processes, if the action failed.
        """
        error: Exception | None = None
        if self.is_main:
            try:
                action()
            except Exception as caught:
                error = caught
        message = self.agree(str(error) if error else None)
        if error is not None:
            raise error
        if message is not None:
            raise ParallelError(f"the main process failed: {message}")

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
        digest = hashlib.sha256(repr(list(values.items())).encode()).hexdigest()
        digests = self.gather(digest)
        if len(set(digests)) == 1:
            return
        gathered = self.gather(dict(values))
        other = next(rank for rank, one in enumerate(digests) if one != digests[0])
        raise ParallelError(_first_difference(gathered[0], gathered[other], other))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank, on each of them."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def agree(self, value: Any) -> Any:
        """Return the main process's value on all processes."""
        if self.world_size == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]


def _wait_for_all() -> RuntimeError | None:
    """Wait until all processes are done; return the error if one died."""
    try:
        if dist.is_initialized():
            dist.barrier()
    except RuntimeError as error:
        return error
    return None


def _first_difference(main: dict[str, str], other: dict[str, str], rank: int) -> str:
    names = [name for name in {**main, **other} if main.get(name) != other.get(name)]
    if not names:
        return f"process {rank} has the same config as process 0 in a different order."
    here, there = (side.get(names[0], "absent") for side in (main, other))
    more = f" ({len(names) - 1} more differ)" if len(names) > 1 else ""
    return (
        f"process {rank} has a different config: {names[0]} is {here} on process 0 and "
        f"{there} on process {rank}{more}. Start all processes with the same code and flags."
    )
