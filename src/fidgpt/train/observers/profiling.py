"""Observers that record what a few steps compute, and what memory they take."""

import abc
import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from fidgpt.parallel import DataParallel
from fidgpt.train.run import RunDirectory, RunError
from fidgpt.train.telling import tell

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
        self.check_arguments(begin=begin, num_steps=num_steps)
        self.begin = begin
        self.num_steps = num_steps
        self._recording = contextlib.ExitStack()
        self._files = Path()

    @staticmethod
    def check_arguments(*, begin: int, num_steps: int) -> None:
        """Raises ValueError where a number is below one."""
        if begin < 1 or num_steps < 1:
            raise ValueError(f"{begin=} and {num_steps=} must be 1 or more; steps count from 1.")

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
        with self._said():
            self._files.parent.mkdir(exist_ok=True)
            self._recording.enter_context(self.recording(self._files))

    def _end(self) -> None:
        with self._said():
            self._recording.close()

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        # Torch's profiler fails now and then, as at names that it recorded of another thread's
        # code and that are no text any more.
        except (OSError, RuntimeError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            tell(
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
