"""When a checkpoint is written: at once, or beside the steps that follow."""

import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Writer(Protocol):
    """Writes one checkpoint at a time."""

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """What will be written of a tensor that training may change as soon as it goes on."""
        ...

    def write(self, job: Callable[[], None]) -> None:
        """Does the job, at once or soon; the one before is done."""
        ...

    def wait(self) -> None:
        """Returns once nothing is being written, and raises what the last job raised."""
        ...


class WriteAtOnce:
    """Training waits until a checkpoint is written."""

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def write(self, job: Callable[[], None]) -> None:
        """Does the job."""
        job()

    def wait(self) -> None:
        """Nothing is being written."""


class WriteBeside:
    """Copies at once, and writes in a thread while training goes on.

    The copy lies in the main memory and is kept for the next one, so a process needs once more what
    its part of a checkpoint takes. Where a save comes before the one before is written, it waits.
    What a writing raises is raised by the next save, or at the end of the run.
    """

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def keep(self, name: str, tensor: Tensor) -> Tensor:
        """A copy of the tensor; of one name there is one, so nothing may be being written."""
        copy = self._copies.get(name)
        if copy is None or (copy.shape, copy.dtype) != (tensor.shape, tensor.dtype):
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._copies[name] = copy
        return copy.copy_(tensor.detach())

    def write(self, job: Callable[[], None]) -> None:
        """Starts the job in a thread, which ends with the process: who leaves in order waits."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(job,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Waits for the thread; raises what the job raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error
