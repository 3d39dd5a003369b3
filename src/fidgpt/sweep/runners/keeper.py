"""Keeps a process on a cluster node alive until it has saved, whatever becomes of who started it.

It is run as a script, so it imports the standard library alone.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from subprocess import DEVNULL, Popen

_GRACE = 300  # seconds that a run has to save in once its owner is gone


def keeping(command: Sequence[str]) -> list[str]:
    """Return the command that runs another command under a keeper.

    The keeper reads signal numbers for the process from its standard input and writes the exit
    status to its standard output. When its input closes, it asks the process to save and exit.
    """
    return [sys.executable, "-I", __file__, str(_GRACE), *command]


def main() -> None:
    """Start the command, pass signals on to it, and report its exit status."""
    grace, command = float(sys.argv[1]), sys.argv[2:]
    if os.fork():
        return  # the child belongs to no one, so ending all children of a worker spares it
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)  # a parent may have blocked or ignored them
    log = sys.stderr.fileno()
    process = Popen(command, stdin=DEVNULL, stdout=log, start_new_session=True)
    threading.Thread(target=_obey, args=(process, grace), daemon=True).start()
    status = process.wait()
    with contextlib.suppress(BrokenPipeError):  # its owner is gone
        os.write(sys.stdout.fileno(), str(status).encode())
    os._exit(0)  # the other thread may be waiting


def _obey(process: Popen[bytes], grace: float) -> None:
    while number := os.read(sys.stdin.fileno(), 1):
        process.send_signal(number[0])
    process.terminate()
    time.sleep(grace)
    process.kill()


if __name__ == "__main__":
    main()
