"""The error of a run, on each machine once: which of its processes prints it, and that one does."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_PAUSE = 0.05  # seconds between looks at the file
_PRINTED = "printed"


def has_agent() -> bool:
    """Whether torchrun keeps the store of the run, and not process 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def node_of(host: str) -> str:
    """Return what only the processes of this machine have in common: of one torchrun, if used."""
    return os.environ.get("GROUP_RANK") or host


class ErrorPrinter:
    """What the processes of a machine print once of a run that has failed.

    The first that claims it prints it, by a file, since the store may be gone with the failure.
    torchrun ends all processes once one has ended, so the others wait until it is printed, and
    print it themselves if that does not come about: rather twice than never.

    Args:
      start: name of the start of the run.
      host: name of its machine.
      seconds: how long to wait for another process.

    Attributes:
      is_first: whether this process prints it; None before it has claimed it.
    """

    def __init__(self, start: str, *, host: str, seconds: float) -> None:
        self.is_first: bool | None = None
        self._file = Path(tempfile.gettempdir(), f"fidgpt-{start}-{node_of(host)}-reported")
        self._seconds = seconds

    def claim(self) -> bool:
        """Return whether this process is the first of its machine to call this."""
        if self.is_first is None:
            try:
                self._file.touch(exist_ok=False)
                self.is_first = True
            except OSError as error:  # of other kinds, as on a full disk, all print it
                self.is_first = not isinstance(error, FileExistsError)
        return self.is_first

    def print(self, show: Callable[[], object]) -> None:
        """Show the error, unless another process of this machine does so in time."""
        if self.claim() or not self._is_printed():
            show()
            with contextlib.suppress(OSError):  # then the others print it, too
                self._file.write_text(_PRINTED, encoding="utf-8")

    def _is_printed(self) -> bool:
        """Wait until another process has printed it; return whether one has."""
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            try:
                if self._file.read_text(encoding="utf-8") == _PRINTED:
                    return True
            except OSError:
                return False
            time.sleep(_PAUSE)
        return False
