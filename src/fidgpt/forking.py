"""Python programs in forked processes, which have imported what a run needs.

Importing torch and fidgpt takes longer than a short run. `Forks` starts one process that imports
them, `python -m fidgpt.forking`, and forks another one from it for every program.
"""

import contextlib
import functools
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import IO

import torch

from fidgpt.heap import without_cache

# What a run imports until its first step, beside what these import. None of them defines flags, or
# uses a device.
PRELOADED = (
    "fidgpt.compose.report",
    "fidgpt.compose.reproduction",
    "fidgpt.graph.codegen",
    "fidgpt.graph.docs",
    "fidgpt.interop.trained_models",
    "fidgpt.runs.building",
    "fidgpt.runs.tuning",
    "fidgpt.train.estimates.summary_text",
    "fidgpt.train.mesh_check",
    "torch._dynamo",
    "torch.distributed.checkpoint.default_planner",
)
_THREADS = "OMP_NUM_THREADS"


def preload(modules: Sequence[str] = ()) -> None:
    """Import what a run needs, and these modules."""
    for name in (*PRELOADED, *modules):
        importlib.import_module(name)


def is_safe() -> bool:
    """Return whether runs may be forked: accelerators do not work in a process that was."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


def run_program(program: str, arguments: Sequence[str], *, is_module: bool) -> None:
    """Run a program in a forked process, as `python PROGRAM` or `python -m PROGRAM` would.

    Args:
      program: the path of a script, or the name of a module.
      arguments: the program's arguments.
      is_module: whether `program` is the name of a module.
    """
    # Torch reads the variable when it is imported, which was before the process was forked.
    torch.set_num_threads(int(os.environ.get(_THREADS, torch.get_num_threads())))
    sys.argv = [program, *arguments]
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
        runpy.run_path(program, run_name="__main__")


class Forked:
    """A program in a forked process, with the methods of `subprocess.Popen` that a runner uses.

    Attributes:
      pid: the number of the process.
    """

    def __init__(self, forks: "Forks", pid: int) -> None:
        self._forks, self.pid = forks, pid

    def poll(self) -> int | None:
        """Return the exit status, or minus the signal that ended it; None while it runs."""
        return self._forks.status(self.pid)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Forks:
    """A process that has imported what a run needs, and forks others.

    Processes that it has forked continue after its end.

    Args:
      modules: names of what it imports, too.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._connection, theirs = Pipe()
        self._statuses: dict[int, int] = {}
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "fidgpt.forking", *modules],
                stdin=theirs.fileno(),
                start_new_session=True,
                env=without_cache(os.environ),
            )

    def start(
        self, arguments: Sequence[str], *, output: IO[bytes], env: Mapping[str, str]
    ) -> Forked:
        """Start `python ARGUMENTS` in a session of its own.

        Args:
          arguments: a script, or `-m` and a module, and the program's arguments.
          output: receives what the program prints, and its errors.
          env: all its variables.

        Raises:
          OSError: the process that forks has ended.
        """
        self._connection.send(([*arguments], without_cache(env)))
        send_handle(self._connection, output.fileno(), self._server.pid)
        while True:
            pid, status = self._received()
            if status is None:
                return Forked(self, pid)

    def status(self, pid: int) -> int | None:
        """Return the exit status of a forked process; None while it runs."""
        try:
            while pid not in self._statuses and self._connection.poll():
                self._received()
        except OSError:  # the status is lost with the server
            return None if Path(f"/proc/{pid}").exists() else -signal.SIGKILL
        return self._statuses.get(pid)

    def close(self) -> None:
        """Start no more processes; those that run continue."""
        self._connection.close()
        self._server.wait()

    def _received(self) -> tuple[int, int | None]:
        """Return a process and its status, which it has at its end, and remember that."""
        try:
            pid, status = self._connection.recv()
        except EOFError as error:
            raise OSError("the process that forks points has ended.") from error
        if status is not None:
            self._statuses[pid] = status
        return pid, status


def main() -> None:
    """Fork a process for each message on standard input, until the other end closes."""
    preload(sys.argv[1:])
    gc.collect()
    gc.freeze()  # or each process looks through all of torch for garbage
    connection = Connection(os.dup(0))
    running: dict[int, ForkProcess] = {}  # by descriptors that are ready at their end
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            for ready in wait([connection, *running]):
                if isinstance(ready, int):
                    process = running.pop(ready)
                    process.join()
                    os.close(ready)
                    connection.send((process.pid, process.exitcode))
                    continue
                program, output = connection.recv(), recv_handle(connection)
                _find_facts(program[1].get(_THREADS, ""))
                inherited = [connection.fileno(), *running]
                process = ForkProcess(target=_run, args=(*program, output, inherited))
                process.start()
                os.close(output)
                running[os.pidfd_open(process.pid or 0)] = process
                connection.send((process.pid, None))
    os._exit(0)  # without waiting for those that run


@functools.cache
def _find_facts(num_threads: str) -> None:
    """Find out what does not differ between runs on a machine: those that are forked know it."""
    from fidgpt.data import StandardLibrary
    from fidgpt.train.device import peak_flops

    _ = StandardLibrary().identity()
    if num_threads == "1":  # others would be missing in a forked process
        torch.set_num_threads(1)
        peak_flops(torch.device("cpu"), torch.float32)


def _run(arguments: list[str], env: dict[str, str], output: int, inherited: list[int]) -> None:
    """Run a program in a forked process, whose memory is not freed at its end, but dropped."""
    os.setsid()
    for descriptor, stream in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(descriptor, stream)
        os.set_inheritable(stream, True)
    for descriptor in inherited:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(env)
    is_module = arguments[0] == "-m"
    program, *rest = arguments[is_module:]
    run_program(program, rest, is_module=is_module)


if __name__ == "__main__":
    main()
