"""Prefetching of batches by threads."""

import os
import weakref
from concurrent.futures import Future, ThreadPoolExecutor

from fidgpt.data.batches import Batch
from fidgpt.data.streams import TrainingStream, WrappedStream
from fidgpt.ranges import require_size

__all__ = ["Prefetch"]


_Request = tuple[int, int, int]  # step, rank and number of ranks
MAX_BYTES = 2**30  # of prefetched batches


class Prefetch(WrappedStream):
    """Prefetches the next batches of a stream in background threads.

    Batches are unchanged, and no global random state is used. An error is raised at the step whose
    batch failed. A request for any step but the next discards the prefetched batches.

    Args:
      stream: the stream to read.
      depth: number of batches to prefetch, fewer if they exceed 1 GiB together.
      num_workers: number of threads; more than one helps if reading is bound by disk latency.

    Raises:
      ValueError: `depth` or `num_workers` is below 1.
    """

    def __init__(self, stream: TrainingStream, *, depth: int = 2, num_workers: int = 1) -> None:
        require_size(depth=depth, num_workers=num_workers)
        super().__init__(stream)
        self.depth = depth
        self.num_workers = num_workers
        self._ahead: dict[_Request, Future[Batch]] = {}
        self._reach = 0  # current depth; 0 until the size of a batch is known
        self._process = 0  # that has the threads

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the stream's batch of this step, and start on the next ones.

        Raises whatever the stream raised for this step.
        """
        if self._process != os.getpid():  # threads do not survive a fork
            self._ahead.clear()
            self._process = os.getpid()
            self._executor = ThreadPoolExecutor(self.num_workers, thread_name_prefix="prefetch")
            weakref.finalize(self, self._executor.shutdown, wait=False, cancel_futures=True)
        request = (step, rank, world_size)
        if request not in self._ahead:
            for future in self._ahead.values():
                future.cancel()
            self._ahead.clear()
        self._begin_until(step + self._reach, request)
        batch = self._ahead.pop(request).result()
        is_first = self._reach == 0
        self._reach = min(self.depth, max(1, MAX_BYTES // max(1, batch.nbytes)))
        if is_first:
            self._begin_until(step + self._reach, (step + 1, rank, world_size))
        return batch

    def _begin_until(self, last: int, request: _Request) -> None:
        """Enqueue the batches from the one of `request` to the one of step `last`."""
        first, rank, world_size = request
        for step in range(first, last + 1):
            if (step, rank, world_size) not in self._ahead:
                self._ahead[step, rank, world_size] = self._executor.submit(
                    self.stream.batch, step, rank=rank, world_size=world_size
                )
