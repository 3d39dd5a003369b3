"""Batches that are made before they are asked for, while the model computes."""

import atexit
import contextlib
import queue
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import ClassVar

from jaxtyping import Int64
from torch import Tensor

from fidgpt.data.errors import DataError
from fidgpt.data.streams import BegunStage, Curve, TrainingStream
from fidgpt.data.tokenizers import Tokenizer

_Ask = tuple[int, int, int]
_Job = tuple[_Ask, "Future[Tensor]"]
# How often the one who waits looks whether anybody still works.
_PATIENCE_SECONDS = 1.0
# Batches or threads, of which some few do what can be done; and bytes of all batches made ahead.
_MOST, _MOST_BYTES = 1000, 2**30


class Prefetch(TrainingStream):
    """A stream whose next batches threads make, begun in the order of the steps.

    The batches are the stream's own, and no random state is touched. An error comes at the step
    whose batch it is, as it was raised. Asked for another step than the next, what was made ahead
    is thrown away. The threads are daemons; the end of the process waits a second at most for the
    batches that they are making.

    Args:
      stream: where the batches come from.
      depth: batches that are made ahead, or as many as fit into 1 GiB if those are fewer.
      num_workers: threads; more than one pay where a batch waits for a disk.

    Raises:
      ValueError: depth or num_workers is below 1, or above 1,000.
    """

    MAY_STAND_AROUND: ClassVar[Mapping[str, str]] = {"stream": "live"}

    def __init__(self, stream: TrainingStream, *, depth: int = 2, num_workers: int = 1) -> None:
        self.check_arguments(depth=depth, num_workers=num_workers)
        self.stream = stream
        self.depth = depth
        self.num_workers = num_workers
        self._ahead: dict[_Ask, Future[Tensor]] = {}
        self._reach = 0  # no further than the first batch until its size is known
        self._workers: _Workers | None = None

    @staticmethod
    def check_arguments(*, depth: int, num_workers: int) -> None:
        """Raises ValueError unless a batch is made ahead, by somebody."""
        if depth < 1:
            raise ValueError(f"{depth=} makes no batch ahead: use 1 or more, or no Prefetch.")
        if num_workers < 1:
            raise ValueError(f"{num_workers=} threads make no batch: use 1 or more.")
        if depth > _MOST:
            raise ValueError(f"{depth=} batches would wait in memory: use {_MOST} at most.")
        if num_workers > _MOST:
            raise ValueError(f"{num_workers=} threads are too many: use {_MOST} at most.")

    def prepare(self, *, show_progress: bool = True) -> None:
        self.stream.prepare(show_progress=show_progress)

    def batch(
        self, step: int, *, rank: int = 0, world_size: int = 1
    ) -> Int64[Tensor, "rows window"]:
        """The stream's batch of this step; those of the next steps are begun.

        Raises whatever the stream raised for this step.
        """
        if self._workers is None or not self._workers.are_alive():  # a forked process has none
            self._forget()
            self._workers = _Workers(self.stream, count=self.num_workers)
            weakref.finalize(self, self._workers.stop)
        ask = (step, rank, world_size)
        if ask not in self._ahead:
            self._forget()
        self._begin_until(step + self._reach, ask, self._workers)
        made = self._workers.wait_for(self._ahead.pop(ask))
        is_first = self._reach == 0
        self._reach = min(self.depth, max(1, _MOST_BYTES // max(1, made.nbytes)))
        if is_first:
            self._begin_until(step + self._reach, (step + 1, rank, world_size), self._workers)
        return made

    def full_batches(self, steps: int) -> float:
        return self.stream.full_batches(steps)

    def stages_begun(self, steps: int) -> list[BegunStage]:
        return self.stream.stages_begun(steps)

    def curves(self, num_steps: int) -> list[Curve]:
        return self.stream.curves(num_steps)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.stream.tokenizer

    @property
    def checksum(self) -> str:
        return self.stream.checksum

    def _begin_until(self, last: int, ask: _Ask, workers: "_Workers") -> None:
        """Has batches made from the one that is asked for to the last."""
        for step in range(ask[0], last + 1):
            if (later := (step, *ask[1:])) not in self._ahead:
                self._ahead[later] = Future()
                workers.jobs.put((later, self._ahead[later]))

    def _forget(self) -> None:
        for future in self._ahead.values():
            future.cancel()
        self._ahead.clear()


class _Workers:
    """Threads that make batches; they hold the stream, and not the one who asks."""

    def __init__(self, stream: TrainingStream, *, count: int) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=_work, args=(stream, self.jobs), name="prefetch", daemon=True)
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()
        _EVERY.add(self)

    def are_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """Lets the threads end behind the batches that they are making now."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.jobs.get_nowait()
        for _ in self._threads:
            self.jobs.put(None)

    def join(self, *, timeout: float) -> None:
        """Waits for threads that were stopped, but not for batches that never come."""
        end = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def wait_for(self, future: "Future[Tensor]") -> Tensor:
        """The batch; DataError rather than waiting for a thread that is no more."""
        while not wait([future], timeout=_PATIENCE_SECONDS).done:
            if not self.are_alive() and not future.done():
                raise DataError(
                    "A thread that makes batches ahead ended without a word.\n"
                    "Start again without prefetching to see why."
                )
        return future.result()


_EVERY: "weakref.WeakSet[_Workers]" = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # A thread that comes out of C++ once the interpreter is going is ended there and then by
    # Python, for which C++ aborts the whole process: "terminate called without an active exception"
    every = list(_EVERY)
    for workers in every:
        workers.stop()
    for workers in every:
        workers.join(timeout=_PATIENCE_SECONDS)


def _work(stream: TrainingStream, jobs: "queue.SimpleQueue[_Job | None]") -> None:
    while (job := jobs.get()) is not None:
        (step, rank, world_size), future = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(stream.batch(step, rank=rank, world_size=world_size))
        except BaseException as error:  # whatever it is, it belongs to the one who asks
            future.set_exception(error)
