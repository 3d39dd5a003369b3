"""A tracker on a thread of its own, so that nothing which happens to it ends or slows a run."""

import abc
import contextlib
import threading
import zlib
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from fidgpt.train.facts.facts import Facts
from fidgpt.train.run import RunDirectory
from fidgpt.train.tracking.described import Described, described
from fidgpt.train.tracking.journal import Journal
from fidgpt.train.tracking.trackers import Row, read_rows

PERIOD = 1.0  # seconds over which rows are gathered before they are written
PAUSE = 30.0  # seconds after a failure before the tracker is opened anew
PATIENCE = 30.0  # seconds for the last rows, once the run is over
ROWS = 10_000  # that wait at most; the oldest go first


class Aside(abc.ABC):
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
                self._leave(back_to=min(step - 1, self._told()))
            self._last = step
            if step > self._told():
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

    def _told(self) -> int:
        """The last step that the tracker has, of the way that the run went."""
        told = self._journal.step
        return told if self._back_to is None else min(told, self._back_to)

    def say(self, text: str) -> None:
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
        told = self._journal.step
        self._mark(rows[-1]["step"])
        try:
            self.write(rows)
        except Exception:
            with self._lock:
                told = min(told, self._told())
            self._mark(told)
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
                self._journal.begin_anew(step=self._told())
            self._back_to, self._left = None, False
        if left:
            self._closed()

    def _mark(self, step: int) -> None:
        self._journal.write(step=step)

    def _forget(self, step: int) -> None:
        with self._lock:
            told = step if self._back_to is None else min(step, self._back_to)
            while self._rows and self._rows[0]["step"] <= told:
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
