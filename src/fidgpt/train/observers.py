"""Observers of a run: profiling, determinism and a watchdog."""

import abc
import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol, cast, runtime_checkable

import torch
from torch.profiler import ProfilerActivity, profile

from fidgpt.parallel import DataParallel
from fidgpt.train.run_directory import RunDirectory, RunError, print_stderr


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


_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_MEMORY: Any = torch.utils.deterministic  # a module whose attributes no type says
_REPEATABLE = ":4096:8"  # one of the two settings that Nvidia's manual of cuBLAS gives


class Determinism:
    """Lets torch use only algorithms that give the same bits whenever they are given the same.

    On a CPU with the same number of threads they all do. On a GPU some add up in the order in which
    threads come by, such as the backward pass of FlashAttention, so that two runs of one config, or
    a run and what it was before it was resumed, part in the last digits. The others take longer.
    """

    @contextlib.contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        os.environ.setdefault(_CUBLAS, _REPEATABLE)  # read at the first product
        before = _settings()
        # No NaN in fresh memory: what nobody reads before it is written costs time only.
        _set(True, False, False)
        try:
            yield
        finally:
            _set(*before)

    @contextlib.contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise RunError(
                f"a part of the run has no form whose numbers come again: "
                f"{str(error).splitlines()[0]:.200}\nUse another part, or train without "
                "fiddler:use_determinism."
            ) from error


def _settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        _MEMORY.fill_uninitialized_memory,
    )


def _set(is_on: bool, only_warns: bool, fills: bool) -> None:
    torch.use_deterministic_algorithms(is_on, warn_only=only_warns)
    _MEMORY.fill_uninitialized_memory = fills


_ROWS = 40  # of the table: what took the most time


class SomeSteps(abc.ABC):
    """Records steps `begin` to `begin + num_steps - 1`, counted from 1, on every process.

    A run that ends in between leaves what was recorded until then. What cannot be written, or what
    torch cannot make of it, is said, and the run goes on.

    Args:
      begin: the first step; the very first ones warm up and compile.
      num_steps: how many.

    Raises:
      ValueError: a number is below one.
    """

    def __init__(self, *, begin: int = 10, num_steps: int = 3) -> None:
        if begin < 1 or num_steps < 1:
            raise ValueError(f"{begin=} and {num_steps=} must be 1 or more; steps count from 1.")
        self.begin = begin
        self.num_steps = num_steps
        self._recording = contextlib.ExitStack()
        self._files = Path()

    @contextlib.contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        self._files = run.path / "profile" / f"rank{parallel.rank}"
        try:
            yield
        finally:
            self._end()

    @contextlib.contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        if step == self.begin:
            self._start()
        yield
        if step == self.begin + self.num_steps - 1:
            self._end()

    def _start(self) -> None:
        with self._reporting():
            self._files.parent.mkdir(exist_ok=True)
            self._recording.enter_context(self.recording(self._files))

    def _end(self) -> None:
        with self._reporting():
            self._recording.close()

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        # Torch's profiler fails now and then, as at names that it recorded of another thread's
        # code and that are no text any more.
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            print_stderr(
                f"warning: {type(self).__name__} cannot write {self._files}.* ({reason}): the run "
                "goes on without it."
            )

    @abc.abstractmethod
    def recording(self, files: Path) -> contextlib.AbstractContextManager[None]:
        """Entered before the first of the steps; left after the last one, when it writes.

        Args:
          files: what the names of its files begin with, in a folder that is there.
        """


class Profiler(SomeSteps):
    """Traces some steps with torch's profiler.

    In the run directory, `profile/rank0.json.gz` opens in Perfetto or Chrome's tracing page, and
    `profile/rank0.txt` lists what took the most time. The traced steps are slower, their numbers
    the same.

    Args:
      begin: the first step, counted from 1.
      num_steps: how many.
      with_stack: whether each operation says which line called it.
      with_memory: whether it says what it allocated.

    Raises:
      ValueError: a number is below one.
    """

    def __init__(
        self,
        *,
        begin: int = 10,
        num_steps: int = 3,
        with_stack: bool = False,
        with_memory: bool = False,
    ) -> None:
        super().__init__(begin=begin, num_steps=num_steps)
        self.with_stack = with_stack
        self.with_memory = with_memory

    @contextlib.contextmanager
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
        table = tracer.key_averages().table(sort_by=order, row_limit=_ROWS)
        files.with_suffix(".txt").write_text(table, encoding="utf-8")


class MemorySnapshot(SomeSteps):
    """Records every allocation of a GPU during some steps, with the line that made it.

    The file `profile/rank0.pickle` opens in https://pytorch.org/memory_viz.
    """

    def require_device(self, device: torch.device) -> None:
        """Raises RunError elsewhere than on a GPU of CUDA, whose allocator keeps such a record."""
        if device.type != "cuda":
            raise RunError(
                f"snapshots of memory are of CUDA's allocator, and this run is on {device.type}: "
                "fiddler:use_profiler(with_memory=True) says there what operations allocate."
            )

    @contextlib.contextmanager
    def recording(self, files: Path) -> Iterator[None]:
        torch.cuda.memory._record_memory_history()
        try:
            yield
        finally:
            torch.cuda.memory._dump_snapshot(f"{files}.pickle")
            torch.cuda.memory._record_memory_history(enabled=None)


_A_YEAR = 365 * 24 * 60 * 60  # seconds


class Watchdog:
    """Ends this process where the next step takes too long to come.

    The time runs from the beginning of a step to that of the next one, so what lies between them,
    as evaluating and saving, counts. The stacks of all threads go to `stacks/rank0.txt` in the run
    directory, each process writing its own, and the process leaves at once with status 1: a
    scheduler, or `torchrun --max-restarts`, starts it again. It is a thread of the interpreter
    below Python, so it wakes where all of Python waits for a lock too. Time that the process was
    stopped by Ctrl-Z, or a scheduler's SIGTSTP, does not count; nor does a machine's sleep.

    Args:
      seconds: the longest time from step to step.
      first_seconds: the same for the first step of a process, which may compile.

    Raises:
      ValueError: a time is not positive.
    """

    def __init__(self, *, seconds: float = 600.0, first_seconds: float = 1800.0) -> None:
        if not (0 < seconds <= _A_YEAR and 0 < first_seconds <= _A_YEAR):
            raise ValueError(
                f"{seconds=} and {first_seconds=} must be more than 0 seconds, and a year at most."
            )
        self.seconds = seconds
        self.first_seconds = first_seconds
        self._file: IO[str]  # while it observes
        self._begun = False
        self._longest = first_seconds

    @contextlib.contextmanager
    def observing(self, run: RunDirectory, parallel: DataParallel) -> Iterator[None]:
        path = run.path / "stacks" / f"rank{parallel.rank}.txt"
        self._begun = False
        with _opened(path) as self._file, self._pausing():
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()
        # Another rank may still have its own there, or somebody has removed it all.
        with contextlib.suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
                path.parent.rmdir()

    @contextlib.contextmanager
    def stepping(self, step: int) -> Iterator[None]:
        self._longest = self.seconds if self._begun else self.first_seconds
        self._begun = True
        self._watch()
        yield

    def _watch(self) -> None:
        faulthandler.dump_traceback_later(self._longest, file=self._file, exit=True)

    @contextlib.contextmanager
    def _pausing(self) -> Iterator[None]:
        """Inside, whoever stops the process from a terminal stops this clock as well."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's
            return
        before = signal.signal(signal.SIGTSTP, self._pause)
        try:
            yield
        finally:
            signal.signal(signal.SIGTSTP, before)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        faulthandler.cancel_dump_traceback_later()
        own = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # it is here that the process stands until it goes on
        signal.signal(number, own)
        if self._begun:
            self._watch()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file for stacks, behind those of an earlier process; or standard error."""
    try:
        path.parent.mkdir(exist_ok=True)
        file = path.open("a")
    except OSError as error:
        print_stderr(
            f"warning: {path} cannot be written ({error.strerror}): the stacks of a run that hangs "
            "would come here."
        )
        yield cast("IO[str]", sys.__stderr__)
        return
    with file:
        if file.tell():  # it could not say so itself
            print_stderr(
                f"{path} says where an earlier process hung, and so was ended by its watchdog."
            )
        yield file
