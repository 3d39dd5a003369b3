"""How the processes of a run find each other, after a restart too."""

import contextlib
import hashlib
import inspect
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

_PAUSE_SECONDS = 0.02
_PATIENCE_SECONDS = 600.0


def join_processes() -> None:
    """Makes the process group of what `torchrun` started, or started again.

    Since torch 2.5, `torchrun --max-restarts` keeps one store for all starts of a group, in which
    new processes find the addresses of dead ones and connect to nobody. So where a restart may
    have been, the group is made under a name of its own in the store. How often a process was
    started does not serve as that name: each machine counts for itself.

    Raises:
      ValueError: the environment does not say who there is.
      RuntimeError: the others do not come.
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) < 1:
        dist.init_process_group()
        return
    store, rank, world_size = next(iter(rendezvous("env://")))
    name = _agree_on_name(store, rank=rank, world_size=world_size)
    dist.init_process_group(store=PrefixStore(name, store), rank=rank, world_size=world_size)


def _agree_on_name(store: Store, *, rank: int, world_size: int) -> str:
    """A text that all processes of this start hold, and none of an earlier one."""
    own = uuid.uuid4().hex
    if rank == 0:
        _invite(store, own, world_size=world_size)
        return own
    store.set(f"guest/{rank}", own)
    name = store.get(f"invitation/{own}").decode()  # waits for it
    store.set(f"arrived/{name}/{rank}", "")
    return name


def _invite(store: Store, name: str, *, world_size: int) -> None:
    """Answers every guest that asks, those long dead among them, until all living ones are here."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    missing = set(range(1, world_size))
    while missing:
        for rank in sorted(missing):
            if store.check([f"arrived/{name}/{rank}"]):
                missing.discard(rank)
            elif store.check([f"guest/{rank}"]):
                store.set(f"invitation/{store.get(f'guest/{rank}').decode()}", name)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {sorted(missing)} of {world_size} did not come")
        time.sleep(_PAUSE_SECONDS)


_GLOO = "gloo/transport/"  # in the text of its errors, which have no class of their own
# The newer name comes with torch 2.13, the older one warns from there on.
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
      dtype: that of activations and matrix products.
    """

    dtype: torch.dtype

    def replica(self, model: Model, /) -> Model:
        """The module that computes in it: the model itself, or a copy with the same ties."""
        ...


class ParallelError(RuntimeError):
    """Another process of the run failed; its message says why."""


class DataParallel:
    """The processes of a run, one or as many as `torchrun` started, and what they say together.

    Used as a context: entering joins the processes, unless they are joined already, and leaving
    parts what it joined. One process needs no group and pays nothing. Gradients are averaged by
    torch's DistributedDataParallel while the backward pass is under way; on CPUs over gloo, on
    GPUs over NCCL.

    Args:
      device: where the model lives; this process's accelerator, or the CPU, unless said.
    """

    def __init__(self, *, device: torch.device | None = None) -> None:
        self._device = device
        self._joined: list[bool] = []
        self._group: dist.ProcessGroup | None = None  # see __exit__
        self.rank = 0
        self.world_size = 1

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        if self._device is not None:
            return self._device
        if torch.accelerator.is_available():
            kind = torch.accelerator.current_accelerator()
            assert kind is not None  # there is one, and it says which
            return torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")))
        return torch.device("cpu")

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and speaks to the console."""
        return self.rank == 0

    def __enter__(self) -> "DataParallel":
        joins = "RANK" in os.environ and not dist.is_initialized()
        if joins:
            if self.device.type != "cpu":
                torch.accelerator.set_device_index(self.device)
            try:
                join_processes()
            except (ValueError, RuntimeError) as error:
                raise ParallelError(
                    f"the processes of the run do not come together: {str(error).splitlines()[0]}\n"
                    f"RANK={os.environ['RANK']} says that there are several: start all of them "
                    "with torchrun, or unset RANK."
                ) from error
        if dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._joined.append(joins)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        joined = self._joined.pop()
        lost = _wait_for_all() if kind is None else error
        if joined:
            # Torch ends a group whose last owner is a DistributedDataParallel without letting go of
            # the GIL, while a thread of the group may want it: a deadlock, one run in seven on a
            # busy machine. Held here, the group outlives the module.
            self._group = dist.group.WORLD
            dist.destroy_process_group()
        if not self._joined:
            self.rank, self.world_size = 0, 1
        if isinstance(lost, dist.DistError) or _GLOO in str(lost):
            reason = str(lost).splitlines()[0]
            raise ParallelError(f"another process of the run is gone: {reason:.200}") from lost
        if kind is None and lost is not None:
            raise lost

    def shards_of(self, world_size: int) -> int:
        """How many of so many processes share one copy of the model: each has its own."""
        return 1

    def shard(self, model: nn.Module, precision: Computation) -> None:
        """Deals the weights of a model that need no memory yet over the processes: not here."""

    def replica(self, model: Model, precision: Computation) -> Model:
        """What computes for a model: what the precision makes of it."""
        return precision.replica(model)

    @contextlib.contextmanager
    def filling(self) -> Iterator[None]:
        """Inside, whole tensors can be copied into the parameters of a model."""
        yield

    def place(self, module: nn.Module) -> nn.Module:
        """Wraps a module on this device, so that its gradients are those of the whole batch."""
        # Buffers are alike already: what moves them is summed over all processes first.
        if self.world_size == 1:
            return module
        buffers: dict[str, Any] = {_SYNC_BUFFERS: False}
        return DistributedDataParallel(module, **buffers)

    @contextlib.contextmanager
    def accumulating(self, module: nn.Module) -> Iterator[None]:
        """Inside, gradients stay on this process: for every micro-batch but the last."""
        if isinstance(module, DistributedDataParallel):
            with module.no_sync():
                yield
        else:
            yield

    def mean(self, value: Tensor) -> Tensor:
        """The mean of a tensor over the processes, on each of them."""
        return self.sum(value) / self.world_size

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over the processes, on each of them."""
        if self.world_size > 1:
            value = value.to(self.device, copy=True)
            dist.all_reduce(value)
        return value

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers, the same on each of them."""
        if self.world_size == 1:
            return number
        largest = torch.tensor(number, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def on_main(self, action: Callable[[], object]) -> None:
        """Does something on the main process alone, and fails on all of them if it fails there.

        Raises:
          ParallelError: on the other processes, in place of what the main one raised.
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
        """Ends the run at once where processes would run different things.

        Left alone, they would wait for each other for half an hour, or train on in disagreement.

        Args:
          values: what must be the same, by name, in an order that is the same everywhere.

        Raises:
          ParallelError: on every process, with the first name under which two of them differ.
        """
        if self.world_size == 1:
            return
        digest = hashlib.sha256(repr(list(values.items())).encode()).hexdigest()
        digests: list[str] = [""] * self.world_size
        dist.all_gather_object(digests, digest)
        if len(set(digests)) == 1:
            return
        gathered: list[dict[str, str]] = [{}] * self.world_size
        dist.all_gather_object(gathered, dict(values))
        other = next(rank for rank, one in enumerate(digests) if one != digests[0])
        raise ParallelError(_first_difference(gathered[0], gathered[other], other))

    def agree(self, value: Any) -> Any:
        """The first process's value, on each of them."""
        if self.world_size == 1:
            return value
        holder = [value]
        dist.broadcast_object_list(holder, src=0)
        return holder[0]


def _wait_for_all() -> RuntimeError | None:
    """Leaves nobody while another still writes; returns how it failed where one is gone."""
    try:
        if dist.is_initialized():
            dist.barrier()
    except RuntimeError as error:
        return error
    return None


def _first_difference(main: dict[str, str], other: dict[str, str], rank: int) -> str:
    names = [name for name in {**main, **other} if main.get(name) != other.get(name)]
    if not names:
        return f"process {rank} has the same config as process 0, in another order."
    here, there = (side.get(names[0], "absent") for side in (main, other))
    more = f" ({len(names) - 1} more differ)" if len(names) > 1 else ""
    return (
        f"process {rank} would run another config than process 0: {names[0]} is {here} on process "
        f"0 and {there} on process {rank}{more}. Start all of them with the same code and flags."
    )
