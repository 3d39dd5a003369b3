"""When a checkpoint is written: at once, or in the background."""

import threading
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["BackgroundWriter", "SyncWriter"]


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

    def wait(self) -> None:
        """Wait for the thread; raise what the job raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
