"""Keeps a process for whoever asked for it, and ends it in order once that one is gone.

It is run by its path, with the standard library alone, so that it costs no more than Python:
`keeper.py PATIENCE COMMAND...`, with a pipe as its input and another as its output. A byte that
comes in is a signal for the process; the end of the input, whatever closed the pipe, is SIGTERM
for it, and SIGKILL if it is still there after PATIENCE seconds. What goes out is how it ended.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from subprocess import DEVNULL, Popen

_PATIENCE = 300  # seconds that a run has to save in, when whoever asked for it is gone


def keeping(command: Sequence[str]) -> list[str]:
    """The command that keeps the process of a command."""
    return [sys.executable, "-I", __file__, str(_PATIENCE), *command]


def main() -> None:
    """Starts the command, stays with it, and tells of its end."""
    patience, command = float(sys.argv[1]), sys.argv[2:]
    if os.fork():
        return  # so it is nobody's child, and what ends all children of a worker passes it by
    os.setsid()
    _forget_signals()
    log = sys.stderr.fileno()
    process = Popen(command, stdin=DEVNULL, stdout=log, start_new_session=True)
    threading.Thread(target=_obey, args=(process, patience), daemon=True).start()
    status = process.wait()
    with contextlib.suppress(BrokenPipeError):  # nobody is left who wants to know
        os.write(sys.stdout.fileno(), str(status).encode())
    os._exit(0)  # the other thread may be waiting


def _forget_signals() -> None:
    """Undoes what a parent blocked or ignored: the process is to hear its signals."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def _obey(process: Popen[bytes], patience: float) -> None:
    while said := os.read(sys.stdin.fileno(), 1):
        process.send_signal(said[0])
    process.terminate()
    time.sleep(patience)
    process.kill()


if __name__ == "__main__":
    main()
