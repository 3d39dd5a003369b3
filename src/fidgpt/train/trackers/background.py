"""Trackers that run in the background."""

import abc
import ast
import contextlib
import importlib.util
import json
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from fidgpt.train.facts import Facts
from fidgpt.train.run_directory import RunDirectory, RunError
from fidgpt.train.trackers.trackers import Journal, Row, Tracker, read_rows

GROUP = "FIDGPT_GROUP"  # set by a sweep for its points, or by who starts runs that belong together
_ROOT = "trainer"  # of the graph, which has no path: MLflow takes no value without a name

Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Described:
    """A run as a tracker shows it.

    Attributes:
      path: its directory.
      name: that of its directory.
      group: what it belongs to, such as a sweep; None where it stands alone.
      config: every value of the graph by its path, and what is known of the run as a whole.
    """

    path: Path
    name: str
    group: str | None
    config: Mapping[str, Scalar]


def described(run: RunDirectory, facts: Facts) -> Described:
    """Reads what the run directory holds; what is missing there is left out."""
    environment = _environment(_text(run, "environment.json"))
    whole: dict[str, Scalar] = {
        "run/directory": str(run.path.resolve()),
        "run/command": _text(run, "command.txt").strip(),
        "run/git_commit": environment.get("git", {}).get("commit"),
        "run/parameters": facts.parameters,
        "run/tokens": facts.tokens,
        "run/device": str(facts.device),
        "run/world_size": facts.world_size,
    }
    return Described(
        path=run.path,
        name=run.path.resolve().name,
        group=os.environ.get(GROUP) or None,
        config={path or _ROOT: _value(text) for path, text in run.identity.items()}
        | {name: value for name, value in whole.items() if value not in (None, "")},
    )


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a row: its numbers, without the step."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "step"
    }


def texts(row: Mapping[str, Any]) -> dict[str, str]:
    """What the model wrote at a step, each text by a name of its own."""
    return {f"samples/{number}": text for number, text in enumerate(row.get("samples", ()))}


def _environment(text: str) -> dict[str, Any]:
    """What the file holds; nothing where it is damaged."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {}


def _text(run: RunDirectory, name: str) -> str:
    try:
        return (run.path / name).read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return run.texts.get(name, "")


def _value(text: str) -> Scalar:
    """A number where the text is one, so that a tracker can sort by it."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, Scalar) else text


PERIOD = 1.0  # seconds over which rows are gathered before they are written
PAUSE = 30.0  # seconds after a failure before the tracker is opened anew
PATIENCE = 30.0  # seconds for the last rows, once the run is over
ROWS = 10_000  # that wait at most; the oldest go first


class BackgroundTracker(abc.ABC):
    """Hands rows to a thread, which opens the tracker, writes to it and closes it.

    Rows wait while the tracker is down, and it is opened anew until it takes them; what a run that
    goes on finds in `metrics.jsonl` and the tracker never heard of is made up for. A row is marked
    as told before it is: a kill may lose those of the last second or two, and doubles none. A run
    that goes on with other settings from before what the tracker heard of becomes another there,
    and so does one that goes back by itself.

    Attributes:
      title: what a person calls the tracker.
      extra: the extra of fidgpt that installs it.
      packages: what must be there to be imported.
    """

    title: ClassVar[str]
    extra: ClassVar[str]
    packages: ClassVar[Sequence[str]]

    def __init__(self, *, destination: str) -> None:
        kept = f"{self.extra}-{zlib.crc32(destination.encode()):08x}.json"
        self._kept_in = kept  # two trackers of a kind go to two places
        self._rows: deque[Row] = deque(maxlen=ROWS)
        self._lock = threading.Lock()
        self._news: deque[str] = deque()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_open = self._is_down = False
        self._place = ""
        self._num_lost = self._last = 0
        self._back_to: int | None = None  # the step to which the run went back, until that is told
        self._left = False  # whether the tracker has steps after it

    @abc.abstractmethod
    def open(self, run: Described, journal: Journal) -> str:
        """Begins the run, or goes on after `journal.step`; returns where a person finds it."""

    @abc.abstractmethod
    def write(self, rows: Sequence[Row]) -> None:
        """Writes rows in order; they are with the tracker when this returns."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends what `open` began, even where that came to nothing."""

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        """The thread begins; what the tracker missed until `step` is the first that it hears."""
        self._journal = Journal(run.path / "tracking" / self._kept_in)
        self._last, self._back_to, self._left = 0, None, False
        if run.changes and self._journal.step > step:
            self._journal.begin_anew(step=step)
        metrics = run.path / "metrics.jsonl"
        if self._journal.step < step and metrics.exists():
            for row in read_rows(metrics):
                if row["step"] <= step:
                    self.log(row)
        self._thread = threading.Thread(
            target=self._work, args=[described(run, facts)], name=self.extra, daemon=True
        )
        self._thread.start()

    def log(self, row: Row) -> None:
        """The row waits for the thread, unless the tracker has it from before a resume."""
        step = row["step"]
        with self._lock:
            if step <= self._last:
                while self._rows and self._rows[-1]["step"] >= step:
                    self._rows.pop()
                self._leave(back_to=min(step - 1, self._delivered()))
            self._last = step
            if step > self._delivered():
                self._num_lost += len(self._rows) == ROWS
                self._rows.append(row)

    def _leave(self, *, back_to: int) -> None:
        """What the tracker has after a step is of a way that the run left."""
        self._back_to = back_to
        if self._journal.step > back_to:
            self._left = True
            # At once: a run that is killed while the tracker is down does not go back again.
            with contextlib.suppress(OSError):
                self._journal.begin_anew(step=back_to)

    def _delivered(self) -> int:
        """The last step that the tracker has, of the way that the run went."""
        delivered = self._journal.step
        return delivered if self._back_to is None else min(delivered, self._back_to)

    def print(self, text: str) -> None:
        """Text is no metric."""
        del text

    def news(self) -> list[str]:
        """What a person should hear of the tracker; each line once."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def finish_soon(self) -> None:
        """No further row will come."""
        self._over.set()

    def finish(self) -> None:
        """Waits for the last rows, but not for a tracker that does not answer."""
        self.finish_soon()
        if self._thread is None:
            return
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._news.append(f"{self.title} did not end within {PATIENCE:.0f} s: left behind.")
        self._num_lost += len(self._rows)
        if self._num_lost:
            self._news.append(
                f"{self.title} never got {self._num_lost:,} rows; metrics.jsonl has them all."
            )

    def _work(self, run: Described) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(PAUSE if self._is_down else PERIOD if self._is_open else 0)
            try:
                self._deliver(run)
            except Exception as error:  # whatever a library or a server comes up with
                self._failed(error)
        self._closed()

    def _deliver(self, run: Described) -> None:
        if not run.path.is_dir():  # a tracker may make it anew, where it is to be put back
            raise FileNotFoundError("the run's directory is gone")
        self._go_back()
        if not self._is_open:
            self._mark(self._journal.step)  # a kill as it opens must not leave a run by another id
            place = self.open(run, self._journal)
            if place != self._place:
                self._news.append(f"{self.title}: {place}")
            self._is_open, self._place = True, place
        with self._lock:
            rows = list(self._rows) if self._back_to is None else []
        if not rows:
            return
        delivered = self._journal.step
        self._mark(rows[-1]["step"])
        try:
            self.write(rows)
        except Exception:
            with self._lock:
                delivered = min(delivered, self._delivered())
            self._mark(delivered)
            raise
        self._forget(rows[-1]["step"])
        if self._is_down:
            self._is_down = False
            self._news.append(f"{self.title} is back, and has what it missed.")

    def _go_back(self) -> None:
        """Where the tracker heard of steps that the run left, what follows is another run there."""
        with self._lock:
            back = self._back_to
            left = back is not None and (self._left or back < self._journal.step)
            if left:  # once more: what was under way in this thread may have written over it
                self._journal.begin_anew(step=self._delivered())
            self._back_to, self._left = None, False
        if left:
            self._closed()

    def _mark(self, step: int) -> None:
        self._journal.write(step=step)

    def _forget(self, step: int) -> None:
        with self._lock:
            delivered = step if self._back_to is None else min(step, self._back_to)
            while self._rows and self._rows[0]["step"] <= delivered:
                self._rows.popleft()

    def _failed(self, error: Exception) -> None:
        if not self._is_down:
            reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
            self._news.append(
                f"warning: {self.title} is down ({reason}): the run goes on without it, its rows "
                f"wait, and it is tried again every {PAUSE:.0f} s."
            )
        self._is_down = True
        self._closed()

    def _closed(self) -> None:
        self._is_open = False
        try:
            self.close()
        except Exception as error:
            if not self._is_down:
                self._news.append(f"warning: {self.title} could not end well: {error}")


def require_packages(trackers: Sequence[Tracker]) -> None:
    """Raises RunError where a tracker's package is not installed, before anything is written."""
    for tracker in trackers:
        if isinstance(tracker, BackgroundTracker):
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
        asides = [tracker for tracker in self._trackers if isinstance(tracker, BackgroundTracker)]
        for tracker in asides:  # all of them end at once
            tracker.finish_soon()
        self._all(lambda tracker: tracker.finish(), asides)
        self._all(
            lambda tracker: tracker.finish(),
            [tracker for tracker in self._trackers if not isinstance(tracker, BackgroundTracker)],
        )

    def start(self, run: RunDirectory, facts: Facts, *, step: int) -> None:
        self._all(lambda tracker: tracker.start(run, facts, step=step), self._trackers)

    def log(self, row: Row) -> None:
        self._all(lambda tracker: tracker.log(row), self._trackers)

    def print(self, text: str) -> None:
        self._all(lambda tracker: tracker.print(text), self._trackers)

    def _all(self, call: Callable[[Tracker], None], trackers: Sequence[Tracker]) -> None:
        news: list[str] = []
        for tracker in list(trackers):
            try:
                call(tracker)
            except RunError:
                raise
            except (Exception, SystemExit) as error:
                self._trackers.remove(tracker)
                news.append(
                    f"warning: {type(tracker).__name__} broke ({type(error).__name__}: {error}): "
                    "the run goes on without it."
                )
            if isinstance(tracker, BackgroundTracker):
                news += tracker.news()
        for text in news:
            self.print(text)
