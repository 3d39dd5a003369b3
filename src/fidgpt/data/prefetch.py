"""Prefetching of batches by threads."""

import atexit
import contextlib
import queue
import threading
import time
import weakref
from concurrent.futures import Future

from fidgpt.data.batches import Batch
from fidgpt.data.streams import TrainingStream, WrappedStream

__all__ = ["Prefetch"]


_Request = tuple[int, int, int]
_Job = tuple[_Request, "Future[Batch]"]
_SECONDS_AT_EXIT = 1.0  # maximum time to wait for batches in progress
# Maximum depth and number of threads; maximum bytes of prefetched batches.
_MAX_COUNT, MAX_BYTES = 1000, 2**30


class Prefetch(WrappedStream):
    """Prefetches the next batches of a stream in background threads.

    Batches are unchanged, and no global random state is used. An error is raised at the step whose
    batch failed. A request for any step but the next discards the prefetched batches. The threads
    are daemons; at exit, the process waits at most a second for batches in progress.

    Args:
      stream: the stream to read.
      depth: number of batches to prefetch, fewer if they exceed 1 GiB together.
      num_workers: number of threads; more than one helps if reading is bound by disk latency.

    Raises:
      ValueError: `depth` or `num_workers` is not from 1 to 1,000.
    """

    def __init__(self, stream: TrainingStream, *, depth: int = 2, num_workers: int = 1) -> None:
        for name, value in {"depth": depth, "num_workers": num_workers}.items():
            if not 1 <= value <= _MAX_COUNT:
                raise ValueError(f"{name}={value} must be from 1 to {_MAX_COUNT}.")
        super().__init__(stream)
        self.depth = depth
        self.num_workers = num_workers
        self._ahead: dict[_Request, Future[Batch]] = {}
        self._reach = 0  # current depth; 0 until the size of a batch is known
        self._workers: _Workers | None = None

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the stream's batch of this step, and start on the next ones.

        Raises whatever the stream raised for this step.
        """
        if self._workers is None or not self._workers.are_alive():  # threads do not survive a fork
            self._forget()
            self._workers = _Workers(self.stream, count=self.num_workers)
            weakref.finalize(self, self._workers.stop)
        request = (step, rank, world_size)
        if request not in self._ahead:
            self._forget()
        self._begin_until(step + self._reach, request, self._workers)
        batch = self._ahead.pop(request).result()
        is_first = self._reach == 0
        self._reach = min(self.depth, max(1, MAX_BYTES // max(1, batch.nbytes)))
        if is_first:
            self._begin_until(step + self._reach, (step + 1, rank, world_size), self._workers)
        return batch

    def _begin_until(self, last: int, request: _Request, workers: "_Workers") -> None:
        """Enqueue the batches from that of `request` to that of step `last`."""
        for step in range(request[0], last + 1):
            if (later := (step, *request[1:])) not in self._ahead:
                self._ahead[later] = Future()
                workers.jobs.put((later, self._ahead[later]))

    def _forget(self) -> None:
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()


class _Workers:
    """Threads that read batches, without a reference to the `Prefetch`, which can then be freed."""

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
        """Stop the threads after their current batches."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.jobs.get_nowait()
        for _ in self.threads:
            self.jobs.put(None)


_ALL: "weakref.WeakSet[_Workers]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # During shutdown, Python kills threads that return from C++ code, which aborts the process:
    # "terminate called without an active exception".
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
        except BaseException as error:  # re-raised by `batch` for this step
            future.set_exception(error)
