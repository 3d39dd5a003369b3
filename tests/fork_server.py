"""Forks Python processes for all workers of the tests: `python fork_server.py ADDRESS`.

One server, which imports all of torch and of what commands import once, for all workers that test
at once. It ends when the last of them is gone.
"""

import contextlib
import gc
import importlib
import io
import os
import pickle
import runpy
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple, NoReturn

# None of these defines flags, which belong to one command only.
_IMPORTED = (
    "pytest",
    "fidgpt.fiddlers",
    "fidgpt.configs",
    "fidgpt.interop",
    "fidgpt.compose.catalogue",
    "fidgpt.compose.directives",
    "fidgpt.runs.building",
    "torch.distributed.checkpoint.default_planner",
    "fidgpt.train.estimates.summary_text",
    "rich.progress",
    "rich.table",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.select_algorithm",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "beartype.door",
    "numpy.ma",
    "fidgpt.sweep.report",
    "fidgpt.runs.shrinking",
    "fidgpt.runs.tuning",
    "fidgpt.interop.hugging_face",
    "fidgpt.train.mesh_check",
    "measured",
)
HERE = b""  # what a worker sends that is there, in place of a program


class Program(NamedTuple):
    """What a process does.

    Attributes:
      arguments: a script, or `-m` and a module, and its arguments.
      outputs: files for what it prints, and for its errors.
      directory: its working directory.
      environment: all its variables.
      paths: where it finds modules, after those of its arguments and variables.
      first: called before it.
    """

    arguments: list[str]
    outputs: tuple[Path, Path]
    directory: Path
    environment: dict[str, str]
    paths: list[str]
    first: Callable[[], None] | None

    def run(self) -> None:
        """Does what `python ARGUMENTS` does, in this process."""
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environment)
        if (number := self.environment.get("OMP_NUM_THREADS")) is not None:
            import torch  # late: the server listens before

            torch.set_num_threads(int(number))  # which torch looks at when it is imported
        for stream, path in enumerate(self.outputs, start=1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
        sys.stdout, sys.stderr = _lines_to(1), _lines_to(2)
        sys.path[:] = self.paths
        if self.first is not None:
            self.first()
        own = [path for path in self.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        begin, *words = self.arguments
        if begin == "-m":
            sys.path[:0] = [str(self.directory), *own]
            sys.argv = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[:0] = [str(Path(begin).parent), *own]
            sys.argv = self.arguments
            runpy.run_path(begin, run_name="__main__")


class Server:
    """Forks a process for each program that it is sent.

    Args:
      listener: listens already.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._woken, self._wake = os.pipe()
        self._workers: set[Connection] = set()
        self._running: dict[Connection, int] = {}

    def serve(self) -> None:
        """Serve until no worker is there any more."""
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._accept()
        while self._workers:
            for ready in wait([self._listener, self._woken, *self._workers, *self._running]):
                if ready is self._listener:
                    self._accept()
                elif ready is self._woken:
                    os.read(self._woken, 1000)
                    self._report()
                elif isinstance(ready, Connection):
                    self._forget(ready)
        for connection in [*self._running]:
            self._forget(connection)

    def _accept(self) -> None:
        accepted, _ = self._listener.accept()
        owner = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        connection = Connection(accepted.detach())
        sent = _received(connection)
        if struct.unpack("3i", owner)[1] != os.getuid() or sent is None:
            connection.close()
        elif sent == HERE:
            self._workers.add(connection)
        else:
            self._running[connection] = pid = self._forked(sent)
            with contextlib.suppress(OSError):
                connection.send(pid)

    def _report(self) -> None:
        """Send the statuses of the processes that have ended."""
        ended: dict[int, int] = {}
        with contextlib.suppress(ChildProcessError):
            while (ended_child := os.waitpid(-1, os.WNOHANG))[0]:
                ended[ended_child[0]] = os.waitstatus_to_exitcode(ended_child[1])
        for connection, pid in [*self._running.items()]:
            if pid in ended:
                del self._running[connection]
                with contextlib.suppress(OSError):  # no one waits for it any more
                    connection.send(ended[pid])
                connection.close()

    def _forget(self, connection: Connection) -> None:
        """Handle that a worker is gone, or whoever waited for a process."""
        self._workers.discard(connection)
        if (pid := self._running.pop(connection, None)) is not None:
            os.kill(pid, signal.SIGKILL)
        connection.close()

    def _forked(self, sent: bytes) -> int:
        """Fork a process that runs a program; return its number."""
        if pid := os.fork():
            return pid
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for one in (self._listener, *self._workers, *self._running):
            one.close()
        os.close(self._woken)
        os.close(self._wake)
        _end(_status_of(lambda: pickle.loads(sent).run()))


def _received(connection: Connection) -> bytes | None:
    try:
        return connection.recv_bytes()
    except (EOFError, OSError):
        return None


def _status_of(run: Callable[[], None]) -> int:
    """Return the status with which Python ends after this."""
    try:
        run()
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """End as Python does, but for what the server would do at its own end."""
    try:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] # no public one ends pools
        util._exit_function()  # pyright: ignore[reportAttributeAccessIssue] # ends child processes
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _lines_to(descriptor: int) -> io.TextIOWrapper:
    """A stream that writes each line at once, so that both outputs keep their order."""
    file = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(file), "utf-8", line_buffering=True)


def main(address: str) -> None:
    """Serve at an abstract address, unless another process does so already."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(f"\0{address}")
        except OSError:
            return
        listener.listen(64)
        os.setsid()  # Ctrl-C is for the tests, whose end ends all
        for name in _IMPORTED:
            importlib.import_module(name)
        if os.environ.get("OMP_NUM_THREADS") == "1":  # processes with more threads cannot be forked
            importlib.import_module("fidgpt.train").native_precision()  # is measured once
        gc.collect()
        gc.freeze()  # or each process looks through all of torch for garbage
        Server(listener).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
