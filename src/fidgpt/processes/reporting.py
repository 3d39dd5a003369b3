"""The error of a run, on each machine once: which of its processes prints it, and that one does."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from torch.distributed.distributed_c10d import Store

__all__ = ["Report", "has_agent", "node_of"]

_PAUSE = 0.05  # seconds between looks at the store
_PRINTED = "printed"


def has_agent() -> bool:
    """Whether torchrun keeps the store of the run, and not process 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def node_of(host: str) -> str:
    """Return what only the processes of this machine have in common: of one torchrun, if used."""
    return os.environ.get("GROUP_RANK") or host


class Report:
    """What the processes of a machine print once of a run that has failed.

    The first that claims it prints it. torchrun ends all processes once one has ended, so the
    others wait until it is printed, and print it themselves if that does not come about: rather
    twice than never.

    Args:
      store: of this start of the run alone.
      start: name of the start.
      rank: of this process.
      host: name of its machine.
      seconds: how long to wait for another process.

    Attributes:
      store: of this start of the run alone.
      is_first: whether this process prints it; None before it has claimed it.
    """

    def __init__(self, store: Store, start: str, *, rank: int, host: str, seconds: float) -> None:
        self.store = store
        self.is_first: bool | None = None
        self._rank = rank
        self._key = f"{_PRINTED}/{node_of(host)}"
        self._file = Path(tempfile.gettempdir(), f"fidgpt-{start}-reported")
        self._seconds = seconds

    def claim(self) -> bool:
        """Return whether this process is the first of its machine to call this."""
        if self.is_first is None:
            try:
                self.is_first = self.store.add(self._key, 1) == 1
            except RuntimeError:  # the store is gone
                self.is_first = self._claim_file()
        return self.is_first

    def print(self, show: Callable[[], object]) -> None:
        """Show the error, unless another process of this machine does so in time."""
        if not self.claim() and self._is_printed():
            return
        show()
        try:
            self.store.set(f"{self._key}/{_PRINTED}", "")
        except RuntimeError:
            with contextlib.suppress(OSError):
                self._file.write_text(_PRINTED, encoding="utf-8")

    def leave(
        self,
        others: Iterable[int],
        *,
        seconds: float,
        is_alone: Callable[[set[int]], bool] = lambda left: not left,
    ) -> None:
        """Need the store no more; a process that keeps it waits until the others need it no more.

        Args:
          others: processes that use it.
          seconds: the longest wait.
          is_alone: whether none of those that have not left uses it.
        """
        waiting, begin = {*others} - {self._rank}, time.monotonic()
        try:
            self.store.set(f"left/{self._rank}", "")
            if self._rank or has_agent():
                return
            while time.monotonic() - begin < seconds:
                waiting -= {one for one in waiting if self.store.check([f"left/{one}"])}
                if not waiting or is_alone(waiting):
                    return
                time.sleep(_PAUSE)
        except RuntimeError:
            return  # it is gone

    def _is_printed(self) -> bool:
        """Wait until another process has printed it; return whether one has."""
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            try:
                if self.store.check([f"{self._key}/{_PRINTED}"]):
                    return True
            except RuntimeError:
                if self._is_printed_by_file():
                    return True
            time.sleep(_PAUSE)
        return False

    def _claim_file(self) -> bool:
        """Claim it without a store: the first one leaves an empty file for the others to find."""
        try:
            self._file.touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:
            pass  # as on a full disk
        return True

    def _is_printed_by_file(self) -> bool:
        try:
            return self._file.read_text(encoding="utf-8") == _PRINTED
        except OSError:
            return False
