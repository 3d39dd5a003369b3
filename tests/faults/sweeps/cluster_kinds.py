"""What strikes a sweep on any cluster, and how such a sweep goes on."""

import contextlib
import os
import signal
from collections.abc import Callable

from faults.sweeps.cluster_case import ClusterCase

_STEPS = 100  # of toys, somewhat more than a sweep has: it may end before all strikes have come
ClusterKind = Callable[[ClusterCase], None]
# Returns what it did, in a few words; "" where there was nothing to strike.
ClusterStrike = Callable[[ClusterCase], str]


class Absent(Exception):
    """There is no such cluster here; the message says why."""


def struck(*drawn: ClusterStrike, times: tuple[int, ...]) -> ClusterKind:
    """So many of several strikes, each at a moment of chance."""

    def kind(case: ClusterCase) -> None:
        num_strikes = case.draw.choice(times)
        for _ in range(num_strikes):
            case.wait(_STEPS // num_strikes)
            case.strikes[case.draw.choice(drawn)(case)] += 1
        case.finish()

    return kind


def driver_told(*numbers: int) -> ClusterStrike:
    """One of some signals to the driver, which ends."""

    def strike(case: ClusterCase) -> str:
        number = case.draw.choice(numbers)
        was_there = case.tell_driver(number)
        return f"{signal.Signals(number).name} to the driver" if was_there else ""

    return strike


def point_killed(case: ClusterCase) -> str:
    """SIGKILL of a process that trains, or of a toy."""
    return "point killed" if (found := case.points()) and kill(case.draw.choice(found)) else ""


def kill(pid: int) -> bool:
    """SIGKILL, unless it has just ended; returns whether it was there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
