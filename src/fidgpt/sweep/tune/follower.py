"""The runs that trials of Ray Tune's train, followed for a person and for the table of a sweep."""

from fidgpt.sweep.runners.job import Ending, Job
from fidgpt.sweep.runners.tail import Tail
from fidgpt.sweep.showing.screen import Screen


class Follower:
    """Passes on what the runs of trials write, and how they end.

    Args:
      screen: hears of the runs.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._running: dict[str, tuple[Job, Tail]] = {}  # by trial

    def tick(self) -> None:
        """Some time has passed."""
        for trial in self._running:
            self._follow(trial)
        self._screen.tick()

    def stopped(self) -> None:
        """No trial runs any more: those that had not come to their end were stopped."""
        for trial, (job, _) in list(self._running.items()):
            self._end(trial, job, Ending("stopped"))

    def _start(self, trial: str, job: Job) -> None:
        self._running[trial] = job, Tail(job.directory / "metrics.jsonl")
        self._screen.started(job)

    def _end(self, trial: str, job: Job, ending: Ending, *, again: bool = False) -> None:
        self._follow(trial)
        self._running.pop(trial, None)
        self._screen.ended(job, ending, again=again)

    def _follow(self, trial: str) -> None:
        if trial in self._running:
            job, tail = self._running[trial]
            for row in tail.rows():
                self._screen.progressed(job, row)
