"""The processes that write a checkpoint together, at once or in the background."""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _set_pg_timeout

from fidgpt.parallel import ParallelError
from fidgpt.parallel.meeting import Patience
from fidgpt.parallel.presence import live

__all__ = ["BackgroundWriter", "SyncWriter"]


class Peers:
    """This process and those that it saves with; a single process needs no group.

    They use a gloo group of their own, so that a background save can finish while later steps use
    the group of the run. All of them construct it at the same time.
    """

    def __init__(self) -> None:
        self.world = _world()
        self.rank, self.size, self.group = 0, 1, None
        self._gate: Callable[[], None] = lambda: None
        if self.world is not None and dist.get_world_size() > 1:
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self.group = _meet()
            if (here := live()) is not None:
                self._gate = here.gate()

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files that exist once."""
        return self.rank == 0

    def current(self) -> "Peers":
        """Return these, or new ones if the process group has changed since."""
        return self if _world() is self.world else Peers()

    def all(self, value: Any) -> list[Any]:
        """Return the values of all processes, on each of them.

        Raises:
            RuntimeError: one is gone, or does not come and writes nothing meanwhile.
        """
        if self.size == 1:
            return [value]
        self._gate()
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def together(self, action: Callable[[], Any]) -> list[Any]:
        """Run an action on every process; return all results on each of them.

        Raises:
            ParallelError: it failed on another process; the failing one raises the error itself.
        """
        result, error = None, None
        try:
            result = action()
        except Exception as caught:
            error = caught
        outcomes = self.all((result, None if error is None else str(error)))
        if error is not None:
            raise error
        failed = [rank for rank, (_, message) in enumerate(outcomes) if message is not None]
        if failed:
            raise ParallelError(f"process {failed[0]} failed: {outcomes[failed[0]][1]}")
        return [result for result, _ in outcomes]

    def on_main(self, action: Callable[[], Any]) -> Any:
        """Run an action on the main process; return its result on all of them.

        Raises:
            ParallelError: on the others, if it failed on the main one.
        """
        return self.together(lambda: action() if self.is_main else None)[0]


def _world() -> dist.ProcessGroup | None:
    """Return the process group of the run; None for a single process."""
    return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None


def _meet() -> dist.ProcessGroup:
    """Return a gloo group of all processes.

    A process that dies while they connect is only noticed by a timeout, which is short; they wait
    for each other before in the run's own group, which notices at once.

    Raises:
        RuntimeError: one of them died here; `DataParallel` reports it.
    """
    here = live()
    patience = here.patience if here is not None else Patience()
    dist.barrier()
    group = dist.new_group(backend="gloo", timeout=patience.connecting)
    assert isinstance(group, dist.ProcessGroup)  # every process is in it
    _set_pg_timeout(patience.collective, group)
    return group


class SyncWriter:
    """Training waits until a checkpoint is written."""

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """Return what to write for a tensor that training may change after the save."""
        return tensor

    def write(self, job: Callable[[], None]) -> None:
        """Do the job, now or soon; the previous one is done."""
        job()

    def wait(self) -> None:
        """Wait until nothing is being written; raise what the last job raised."""

    def require_all(self) -> None:
        """Raise what the last job raised if it has lost another process of the run."""


class BackgroundWriter(SyncWriter):
    """Copies tensors at once, and writes them in a thread while training continues.

    The copy is in main memory and reused by the next save, so a process needs its part of a
    checkpoint once more. A save waits for the previous one. What writing raises is raised by the
    next save, or at the end of the run.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """Copy a tensor into the memory kept for its name, while nothing is being written."""
        copy = self._copies.get(name)
        if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[name] = copy
        return copy.copy_(tensor.detach())

    def write(self, job: Callable[[], None]) -> None:
        """Start the job in a thread, which ends with the process unless someone waits for it."""

        def run() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        self.wait()
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def require_all(self) -> None:
        """Raise at once, and not with the next save, that another process does not write."""
        if isinstance(self._error, dist.DistError):
            self.wait()

    def wait(self) -> None:
        """Wait for the thread; raise what the job raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
