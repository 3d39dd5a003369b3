"""Several trackers as one: each hears everything, and none can end the run by breaking."""

import importlib.util
from collections.abc import Callable, Sequence
from types import TracebackType

from fidgpt.train.facts.facts import Facts
from fidgpt.train.run import RunDirectory, RunError
from fidgpt.train.tracking.aside import Aside
from fidgpt.train.tracking.trackers import Row, Tracker


def require_packages(trackers: Sequence[Tracker]) -> None:
    """Raises RunError where a tracker's package is not installed, before anything is written."""
    for tracker in trackers:
        if isinstance(tracker, Aside):
            missing = [name for name in tracker.packages if importlib.util.find_spec(name) is None]
            if missing:
                raise RunError(
                    f"{type(tracker).__name__} needs the package {missing[0]}, which is not "
                    f'installed. Install it with: pip install "fidgpt[{tracker.extra}]"'
                )


class Trackers:
    """Several trackers as one, finished in any case.

    One that raises is heard of once and then left alone, unless it raises RunError: so says the
    run's own record that it cannot be kept, and the run stops.
    """

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asides = [tracker for tracker in self._trackers if isinstance(tracker, Aside)]
        for tracker in asides:  # all of them end at once
            tracker.finish_soon()
        self._all(lambda tracker: tracker.finish(), asides)
        self._all(
            lambda tracker: tracker.finish(),
            [tracker for tracker in self._trackers if not isinstance(tracker, Aside)],
        )

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        self._all(lambda tracker: tracker.start(run, facts, step=step), self._trackers)

    def log(self, row: Row) -> None:
        self._all(lambda tracker: tracker.log(row), self._trackers)

    def say(self, text: str) -> None:
        self._all(lambda tracker: tracker.say(text), self._trackers)

    def _all(self, tell: Callable[[Tracker], None], trackers: Sequence[Tracker]) -> None:
        news: list[str] = []
        for tracker in list(trackers):
            try:
                tell(tracker)
            except RunError:
                raise
            except (Exception, SystemExit) as error:
                self._trackers.remove(tracker)
                news.append(
                    f"warning: {type(tracker).__name__} broke ({type(error).__name__}: {error}): "
                    "the run goes on without it."
                )
            if isinstance(tracker, Aside):
                news += tracker.news()
        for text in news:
            self.say(text)
