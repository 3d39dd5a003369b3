"""A run in a process of the node where Ray has placed it: started, followed, and ended in order."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidgpt.sweep.runners.ray_place import Place
from fidgpt.sweep.runners.tail import Tail, last_words

BEAT = 1.0  # seconds between two reports at most: what is trained is ended between two of them


@dataclass(frozen=True)
class Surroundings:
    """What all processes of a search have in common.

    Attributes:
      environment: of the process that asked for them.
      folder: where they run.
      threads: those that each of them computes with, unless the environment says it.
      keeper: the command that keeps a process for whoever asked for it.
    """

    environment: Mapping[str, str]
    folder: str
    threads: int
    keeper: Sequence[str]


class Attended:
    """A run, from its first step or on from where it was stopped.

    The module is sent to the nodes as it is, so that nothing but Ray is loaded there.

    Args:
      run: its directory.
      log: takes what it writes; locked while it runs.
      surroundings: what it has in common with others.
    """

    def __init__(self, run: Path, log: Path, surroundings: Surroundings) -> None:
        self._log = log
        self._surroundings = surroundings
        self._tail = Tail(run / "metrics.jsonl")
        self._place: Place | None = None
        self._log_at = 0

    def start(self, command: Sequence[str]) -> bool:
        """Starts the process; False where another one has the log, and so the run."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.touch()
        place = Place()
        at, _, _, _, gpus = place.claim(str(self._log))
        if at is None:
            return False
        around = self._surroundings
        place.launch(
            [*around.keeper, *command],
            environment={
                "OMP_NUM_THREADS": str(around.threads),
                **around.environment,
                "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            },
            directory=around.folder,
        )
        self._place, self._log_at = place, at
        return True

    def rows(self) -> list[dict[str, Any]]:
        """The rows of its metrics that were written since one last looked."""
        return self._tail.rows()

    def wait(self, seconds: float) -> int | None:
        """How it ended, as soon as it did; None where it runs on for so long."""
        assert self._place is not None  # it was started
        status = self._place.wait(seconds)
        if status is not None:
            self._place = None
        return status

    def words(self, status: int) -> str:
        """Why it ended, in a line."""
        return last_words(self._log, after=self._log_at, status=status)

    def end(self) -> None:
        """Lets the process save where it is, and waits for its end."""
        if self._place is None:
            return
        self._place.send(signal.SIGTERM)
        while self.wait(1.0) is None:
            pass
