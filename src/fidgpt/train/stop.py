"""Stopping in order: a signal is a wish that the loop grants between two steps."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopSignals:
    """Remembers Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP while entered; a second Ctrl-C ends at once.

    Schedulers send SIGTERM, or what they are told to, some time before they take a machine away;
    with Slurm it is `--signal=USR1@120`. SIGHUP is what a terminal sends that is closed; where
    `nohup` has it ignored, it stays so.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def agreed(self, largest: Callable[[int], int]) -> signal.Signals | None:
        """The signal that all processes of a run stop for, whichever of them it was sent to.

        Args:
          largest: gives every process the largest of their numbers; all of them call this.
        """
        number = largest(self.received or 0)
        return signal.Signals(number) if number else None

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
