"""A lock on an open file, which goes with the file to every process that has it."""

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
