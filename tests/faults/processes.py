"""Commands in forked processes, which have imported everything already."""

import contextlib
import gc
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import torch
from absl import flags

from fidgpt.cli import train
from fidgpt.runs import directories
from fidgpt.train import device

Command = Callable[[], None]
TRAIN = str(Path(__file__).parents[2] / "train.py")
PATIENCE = 120.0  # seconds; a process that takes longer hangs
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_BEGIN = [sys.executable, "-m", train.__name__]


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
      status: its exit status, or minus the signal that killed it.
      output: what it printed, errors too.
    """

    status: int
    output: str


class Process:
    """One command; starting it costs a fork instead of importing torch.

    Args:
      arguments: those of the command.
      output: file for what it prints.
      disturbed: called in the new process before the command.
      environment: variables that differ from this process's.
      command: which one.

    Attributes:
      pid: its number.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output: Path,
        disturbed: Callable[[], None] | None = None,
        environment: Mapping[str, str] | None = None,
        command: Command = train.run,
    ) -> None:
        def begin() -> None:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.environ.update(environment or {})
            if disturbed is not None:
                disturbed()

        self._output = output
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            become(command, arguments, begin=begin)

    def has_ended(self) -> bool:
        """Whether it has; its status is still to be had."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def end(self) -> Ended:
        """Waits for its end; one that hangs is killed, and shows it by the status -9."""
        handle = os.pidfd_open(self.pid)
        try:
            ended, *_ = select.select([handle], [], [], PATIENCE)
            if not ended:
                os.kill(self.pid, signal.SIGKILL)
        finally:
            os.close(handle)
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        text = self._output.read_text(encoding="utf-8", errors="replace")
        return Ended(status, text if ended else f"{text}\n(hung for {PATIENCE:.0f} s)")


class Spawned(Process):
    """A command as a user starts it, with processes as it starts them."""

    def __init__(
        self, *words: str, output: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                env=os.environ | dict(environment or {}),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._process.pid


class ForkedPoint:
    """What `Popen` is to the driver of a sweep, of a child that need not import torch first.

    Args:
      words: the training command.
      run: what the child does, by its arguments.
      at_start: called first in the child.
      stdout: takes what it prints.
      env: its variables.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        run: Callable[[Sequence[str]], Command] = lambda _: train.run,
        at_start: Callable[[], None] = lambda: None,
        stdout: IO[bytes],
        env: Mapping[str, str],
        **_: Any,
    ) -> None:
        assert list(words[:3]) == _BEGIN, words
        self.returncode: int | None = None

        def begin() -> None:
            os.setsid()
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            _forget_files()
            os.environ.clear()
            os.environ.update(env)
            at_start()

        # As in a new process, no signal is taken by what the driver does on it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            become(run(words[3:]), words[3:], begin=begin)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def poll(self) -> int | None:
        """The status with which it ended; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends it a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _forget_files() -> None:
    """Lets go of files, and so of locks, as a new process would that inherits none."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the listing's own is closed already
            if handle > 2:
                os.dup2(nowhere, handle, inheritable=False)


def warm_up(arguments: Sequence[str], command: Command = train.run) -> None:
    """Runs a command in this very process, for all that it imports and traces but once.

    What it prints is dropped.

    Raises:
      RuntimeError: it failed, or left a thread behind, with which this process may not be forked.
    """
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        status = called(command, arguments)
    if status:
        raise RuntimeError(f"the undisturbed command ends with status {status}: {arguments}")
    gc.collect()
    gc.freeze()  # or every process that follows looks through all of torch for garbage
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"the command left threads behind: {threading.enumerate()}")


def prepare_forks() -> None:
    """Computes in one thread, and skips what takes long and has no part in any number.

    A fork has the calling thread alone. Runs take the machine's speed and the state of the code as
    they are now, and give up a process that dies in a meeting after seconds, not a minute.
    """
    torch.set_num_threads(1)
    machine, around = (
        device.peak_flops(torch.device("cpu"), torch.float32),
        directories.surroundings(),
    )
    device.peak_flops = lambda *_: machine
    directories.surroundings = lambda: around
    directories.uncommitted = lambda: None


def become(command: Command, arguments: Sequence[str], *, begin: Callable[[], None]) -> NoReturn:
    """Turns a forked process into a command.

    Args:
      command: which one.
      arguments: those of the command.
      begin: called first.
    """
    status = 1
    try:
        begin()
        status = called(command, arguments)
        # As the interpreter does at its end, which os._exit would not: it ends the threads of
        # executors, and waits for all that are no daemons.
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def called(command: Command, arguments: Sequence[str]) -> int:
    """Returns the exit status of a command in this process."""
    flags.FLAGS.unparse_flags()
    sys.argv = [command.__module__, *arguments]
    try:
        command()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0
