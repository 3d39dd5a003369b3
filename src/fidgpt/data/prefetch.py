"""Batches that threads make ahead while the model computes."""

import atexit
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from typing import ClassVar

from jaxtyping import Int64
from torch import Tensor

from fidgpt.data.streams import TrainingStream, WrappedStream

__all__ = ["Prefetch"]


_Request = tuple[int, int, int]
_Job = tuple[_Request, "Future[Tensor]"]
_SECONDS_AT_EXIT = 1.0  # to wait for batches that are being made
# Upper bounds of batches and threads, and of the bytes of all batches made ahead.
_MAX_COUNT, MAX_BYTES = 1000, 2**30


class Prefetch(WrappedStream):
    """A stream whose next batches are made by threads, in the order of the steps.

    Batches are those of the stream, and no random state is touched. An error is raised at the step
    whose batch failed. After a request for any step but the next, the batches made ahead are
    discarded. The threads are daemons; the process waits at its end for at most a second for the
    batches that they are making.

    Args:
      stream: where the batches come from.
      depth: batches made ahead, or as many as fit into 1 GiB if those are fewer.
      num_workers: threads; more than one help if a batch waits for a disk.

    Raises:
      ValueError: depth or num_workers is below 1, or above 1,000.
    """

    WRAPS: ClassVar[Mapping[str, str]] = {"stream": "live"}

    def __init__(self, stream: TrainingStream, *, depth: int = 2, num_workers: int = 1) -> None:
        for name, value in {"depth": depth, "num_workers": num_workers}.items():
            if not 1 <= value <= _MAX_COUNT:
                raise ValueError(f"{name}={value} must be from 1 to {_MAX_COUNT}.")
        super().__init__(stream)
        self.depth = depth
        self.num_workers = num_workers
        self._ahead: dict[_Request, Future[Tensor]] = {}
        self._reach = 0  # no further than the first batch until its size is known
        self._workers: _Workers | None = None

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """Return the stream's batch of this step and start making the next ones.

        Raises whatever the stream raised for this step.
        """
        if self._workers is None or not self._workers.are_alive():  # a fork has no threads
            self._forget()
            self._workers = _Workers(self.stream, count=self.num_workers)
            weakref.finalize(self, self._workers.stop)
        request = (step, rank, world_size)
        if request not in self._ahead:
            self._forget()
        self._begin_until(step + self._reach, request, self._workers)
        made = self._ahead.pop(request).result()
        is_first = self._reach == 0
        self._reach = min(self.depth, max(1, MAX_BYTES // max(1, made.nbytes)))
        if is_first:
            self._begin_until(step + self._reach, (step + 1, rank, world_size), self._workers)
        return made

    def _begin_until(self, last: int, request: _Request, workers: "_Workers") -> None:
        """Request the batches from the given one to the last."""
        for step in range(request[0], last + 1):
            if (later := (step, *request[1:])) not in self._ahead:
                self._ahead[later] = Future()
                workers.jobs.put((later, self._ahead[later]))

    def _forget(self) -> None:
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()


class _Workers:
    """Threads that make batches; they reference the stream, not the `Prefetch`."""

    def __init__(self, stream: TrainingStream, *, count: int) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=_work, args=(stream, self.jobs), name="prefetch", daemon=True)
            for _ in range(count)
        ]
        for thread in self.threads:
            thread.start()
        _ALL.add(self)

    def are_alive(self) -> bool:
        return all(thread.is_alive() for thread in self.threads)

    def stop(self) -> None:
        """Make the threads end after the batches that they are making now."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.jobs.get_nowait()
        for _ in self.threads:
            self.jobs.put(None)


_ALL: "weakref.WeakSet[_Workers]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # Python ends threads that return from C++ during its shutdown, for which C++ aborts the whole
    # process: "terminate called without an active exception".
    end = time.monotonic() + _SECONDS_AT_EXIT
    workers_left = list(_ALL)
    for workers in workers_left:
        workers.stop()
    for thread in (thread for workers in workers_left for thread in workers.threads):
        thread.join(max(0.0, end - time.monotonic()))


def _work(stream: TrainingStream, jobs: "queue.SimpleQueue[_Job | None]") -> None:
    while (job := jobs.get()) is not None:
        (step, rank, world_size), future = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(stream.batch(step, rank=rank, world_size=world_size))
        except BaseException as error:  # raised again at the step that it belongs to
            future.set_exception(error)
