"""One try at a job, wherever its processes run: what every engine has to make of it."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Literal, Protocol

from fidgpt.sweep.runners.job import Job
from fidgpt.train.tracking.described import GROUP


@dataclass(frozen=True)
class Exit:
    """How the processes of an attempt ended.

    Attributes:
      status: 0 at the end of the run; else an exit status, or minus the signal that killed it.
      words: why it ended; "" where it came to its end.
      is_lost: whether the machine went away under it, which is no fault of the job's.
      is_told: whether somebody told it to end, who is not the sweep.
    """

    status: int
    words: str = ""
    is_lost: bool = False
    is_told: bool = False


# It waits for a machine; somebody else runs the job; its processes run; they ended.
State = Literal["placing", "refused", "running"] | Exit


class Attempt(Protocol):
    """One try at a job."""

    def look(self) -> State:
        """How it stands; a refusal and an end are told once."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to its processes; what still waits for a machine is given up."""
        ...


# Begins an attempt: with the log, locked until this returns, and the number of its place.
Launch = Callable[[Job, IO[bytes], int], Attempt]

# Finds the attempt at a job that an earlier sweep left behind, if it is still under way.
Adopt = Callable[[Job], Attempt | None]


def environment_of(job: Job, dealt: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job's process: this one's, and what it was dealt of a machine."""
    return {GROUP: job.directory.resolve().parent.name, **os.environ, **dealt}
