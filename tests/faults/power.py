"""A loss of power: of a file, what was not synced is gone."""

import json
import os
from collections.abc import Callable
from pathlib import Path


class Power:
    """Notes how much of each file was synced, so that the rest can be taken away.

    Names are taken to be on the disk at once, which file systems mostly see to by themselves.

    Args:
      journal: a file outside of what loses its power.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal

    def listen(self) -> None:
        """From now on, what this process syncs is noted."""
        fsync = os.fsync
        journal = os.open(self._journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.fsync = _noting(fsync, journal)

    def fail(self, folder: Path) -> None:
        """Cuts the files in a folder down to what was synced of them."""
        lines = self._journal.read_text().splitlines() if self._journal.exists() else []
        synced = dict(json.loads(line) for line in lines)
        for path in folder.rglob("*"):
            if path.is_file():
                found = path.stat()
                os.truncate(path, min(found.st_size, synced.get(found.st_ino, 0)))


def _noting(fsync: Callable[[int], None], journal: int) -> Callable[[int], None]:
    def noted(descriptor: int) -> None:
        fsync(descriptor)
        found = os.fstat(descriptor)
        os.write(journal, f"[{found.st_ino}, {found.st_size}]\n".encode())

    return noted
