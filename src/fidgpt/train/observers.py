"""Observers of a run: determinism, profiling and a watchdog."""

import abc
import contextlib
import faulthandler
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol, runtime_checkable

import torch
from torch.profiler import ProfilerActivity, profile

from fidgpt.attributes import changed
from fidgpt.parallel import DataParallel
from fidgpt.ranges import require_positive, require_size
from fidgpt.train.run_directory import RunDirectory, print_stderr

__all__ = ["Determinism", "MemorySnapshot", "Observer", "Profiler", "Watchdog"]


@runtime_checkable
class Observer(Protocol):
    """Accompanies a run on every process, without changing its numbers."""

    def observing(self, run: RunDirectory, parallel: DataParallel) -> AbstractContextManager[None]:
        """Wrap all steps of the run, however it ends."""
        ...

    def stepping(self, step: int) -> AbstractContextManager[None]:
        """Wrap one optimizer step, counted from 1."""
        ...


@contextmanager
def stepping(observers: Sequence[Observer], step: int) -> Iterator[None]:
    """Wrap one step with all observers."""
    with ExitStack() as stack:
        for observer in observers:
            stack.enter_context(observer.stepping(step))
        yield


class Determinism:
    """Restricts torch to algorithms that give the same bits for the same inputs.

    On a CPU with a fixed number of threads all of them do. On a GPU some add up in the order in
    which threads finish, such as the backward pass of FlashAttention, so that two runs of one
    config, or a run and its resumption, differ in the last digits. The others are slower.
    """

    @contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        # One of the two settings in Nvidia's manual, read at the first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        memory: Any = torch.utils.deterministic  # a module whose attributes are untyped
        is_on = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            # Filling memory that is written anyway is slow.
            with changed(memory, fill_uninitialized_memory=False):
                yield
        finally:
            torch.use_deterministic_algorithms(is_on, warn_only=warn_only)

    @contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        yield  # torch raises an error at an operation without such a form


@dataclass(eq=False, kw_only=True)
class SomeSteps(abc.ABC):
    """Records steps `begin` to `begin + num_steps - 1`, counted from 1, on every process.

    A run that ends in between leaves what was recorded so far. Failures are reported, and the run
    continues.

    Args:
      begin: the first step; the very first ones warm up and compile.
      num_steps: how many.

    Raises:
      ValueError: a number is below one.
    """

    begin: int = 10
    num_steps: int = 3

    def __post_init__(self) -> None:
        require_size(begin=self.begin, num_steps=self.num_steps)
        self._recording = contextlib.ExitStack()
        self._files = Path()

    @contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        self._files = run.path / "profile" / f"rank{parallel.rank}"
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        if step == self.begin:
            with self._reporting():
                self._files.parent.mkdir(exist_ok=True)
                self._recording.enter_context(self.recording(self._files))
        yield
        if step == self.begin + self.num_steps - 1:
            self._end()

    def _end(self) -> None:
        with self._reporting():
            self._recording.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        # Torch's profiler fails now and then, as at names recorded in another thread.
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            print_stderr(
                f"warning: {type(self).__name__} cannot write {self._files}.* ({reason}): the run "
                "continues without it."
            )

    @abc.abstractmethod
    def recording(self, files: Path) -> contextlib.AbstractContextManager[None]:
        """Wrap the steps, and write the files whose names start with `files`."""


@dataclass(eq=False, kw_only=True)
class Profiler(SomeSteps):
    """Traces some steps with torch's profiler.

    In the run directory, `profile/rank0.json.gz` opens in Perfetto or Chrome's tracing page, and
    `profile/rank0.txt` lists what took the most time. The traced steps are slower, their numbers
    the same.

    Args:
      begin: the first step, counted from 1.
      num_steps: how many.
      with_stack: whether to record the line that called each operation.
      with_memory: whether to record what it allocated.

    Raises:
      ValueError: a number is below one.
    """

    with_stack: bool = False
    with_memory: bool = False

    @contextmanager
    def recording(self, files: Path) -> Iterator[None]:
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        tracer = profile(
            activities=kinds, with_stack=self.with_stack, profile_memory=self.with_memory
        )
        with tracer:
            yield
        tracer.export_chrome_trace(f"{files}.json.gz")
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = tracer.key_averages().table(sort_by=order, row_limit=40)
        files.with_suffix(".txt").write_text(table, encoding="utf-8")


class MemorySnapshot(SomeSteps):
    """Records every allocation of a GPU during some steps, with the line that made it.

    The file `profile/rank0.pickle` opens in https://pytorch.org/memory_viz.
    """

    @contextmanager
    def recording(self, files: Path) -> Iterator[None]:
        torch.cuda.memory._record_memory_history()
        try:
            yield
        finally:
            torch.cuda.memory._dump_snapshot(f"{files}.pickle")
            torch.cuda.memory._record_memory_history(enabled=None)


class Watchdog:
    """Ends this process if the next step takes too long.

    The time runs from the start of a step to the start of the next one, so evaluation and saving
    count. The stacks of all threads go to `stacks/rank0.txt` in the run directory, one file per
    process, and the process exits at once with status 1: a scheduler, or `torchrun --max-restarts`,
    starts it again. The timer is a native thread, so it fires even if all of Python waits for a
    lock. While the process is stopped by SIGTSTP (Ctrl-Z, or a scheduler), or the machine sleeps,
    time does not count.

    Args:
      seconds: the longest time from step to step.
      first_seconds: the same for the first step of a process, which may compile.

    Raises:
      ValueError: a time is not positive.
    """

    def __init__(self, *, seconds: float = 600.0, first_seconds: float = 1800.0) -> None:
        require_positive(seconds=seconds, first_seconds=first_seconds)
        self.seconds = seconds
        self.first_seconds = first_seconds
        self._file: IO[str]  # while it observes
        self._longest: float | None = None  # once the first step has begun

    @contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        path = run.path / "stacks" / f"rank{parallel.rank}.txt"
        self._longest = None
        with _opened(path) as self._file, self._pausing():
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        # Another rank may still have its file there, or it was all removed.
        with contextlib.suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
                path.parent.rmdir()

    @contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        self._longest = self.first_seconds if self._longest is None else self.seconds
        self._watch()
        yield

    def _watch(self) -> None:
        if self._longest is not None:
            faulthandler.dump_traceback_later(self._longest, file=self._file, exit=True)

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """Stop the timer while the process is stopped from a terminal."""
        before = signal.signal(signal.SIGTSTP, self._pause)
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, before)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        faulthandler.cancel_dump_traceback_later()
        own = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # stops here until SIGCONT
        signal.signal(number, own)
        self._watch()


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open the file for stacks, after the stacks of an earlier process."""
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        if file.tell():  # the process that wrote it could not report it
            print_stderr(f"{path} shows where the watchdog ended an earlier process that hung.")
        yield file
