"""What accompanies a run on each of its processes: profilers, watchdogs, snapshots of memory."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol, runtime_checkable

import torch

from fidgpt.parallel import DataParallel
from fidgpt.train.run import RunDirectory


@runtime_checkable
class Observer(Protocol):
    """Looks on while a run is under way, on every process, and changes no number of it."""

    def observing(self, run: RunDirectory, parallel: DataParallel) -> AbstractContextManager[None]:
        """Entered before the first step and left after the last one, however the run ends."""
        ...

    def stepping(self, step: int) -> AbstractContextManager[None]:
        """Entered before an optimizer step, counted from 1, and left once it is done."""
        ...


@runtime_checkable
class OfSomeDevices(Protocol):
    """An observer that not every device can be seen by."""

    def require_device(self, device: torch.device) -> None:
        """Raises RunError where a run is on a device that it cannot see."""
        ...


def require_devices(observers: Sequence[Observer], device: torch.device) -> None:
    """Raises RunError where an observer cannot see a device, before anything is written."""
    for observer in observers:
        if isinstance(observer, OfSomeDevices):
            observer.require_device(device)


@contextmanager
def stepping(observers: Sequence[Observer], step: int) -> Iterator[None]:
    """All observers around one step."""
    with ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observer.stepping(step))
        yield
