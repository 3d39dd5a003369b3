"""A lock on an open file, which goes with the file to every process that has it."""

import contextlib
import fcntl
from typing import IO


def lock(file: IO[bytes] | int) -> bool:
    """Locks an open file; False where another process holds it.

    It is held until the last process that has this file open ends, whatever becomes of the one
    that opened it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system that knows no locks keeps nobody out
        pass
    return True


def wait_for_lock(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> None:
    """Locks an open file as soon as no other process holds it.

    Args:
      file: held until it is closed.
      kind: fcntl.LOCK_EX for one process alone; fcntl.LOCK_SH for all that ask so.
    """
    with contextlib.suppress(OSError):  # a file system that knows no locks keeps nobody out
        fcntl.flock(file, kind)
