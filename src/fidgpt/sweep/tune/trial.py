"""One trial of a search, on its node: trains a point, and reports how it goes."""

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from fidgpt.sweep.tune.attended import BEAT, Attended, Surroundings

_LOOK = 0.1  # seconds between two looks at what the process wrote


class Task(TypedDict):
    """A job in plain values.

    Attributes:
      run: its run directory.
      log: takes what it writes.
      begin: the command that begins it.
      go_on: the command that goes on with it.
      num_steps: how long it is trained.
    """

    run: str
    log: str
    begin: Sequence[str]
    go_on: Sequence[str]
    num_steps: int


class Trial:
    """Trains a point in a process of its own, and reports the objective as it is measured.

    Each report has an `event`: runs, waits (another process has the run), again (it failed, and is
    tried once more), finished or failed; the last two are the end of it.

    Args:
      task: what is to be done.
      objective: the name of what is reported.
      worst: reported of what fails.
      retries: how often a point that failed is tried again.
      surroundings: of its processes.
    """

    def __init__(
        self,
        task: Task,
        *,
        objective: str,
        worst: float,
        retries: int,
        surroundings: Surroundings,
    ) -> None:
        self._task = task
        self._objective = objective
        self._worst = worst
        self._retries = retries
        self._surroundings = surroundings
        self._attended: Attended | None = None
        self._rows: deque[dict[str, Any]] = deque()
        self._last: dict[str, Any] = {"step": 0, objective: worst}

    def step(self) -> dict[str, Any]:
        """The next report, after a second at most."""
        run = Path(self._task["run"])
        if (run / "done.json").exists():  # since an earlier process of this trial
            self._attended = self._attended or self._begun(run)
            self._read()
            return self._report("finished")
        if self._attended is None:
            return self._begin(run)
        end = time.monotonic() + BEAT
        while time.monotonic() < end:
            status = self._attended.wait(_LOOK)
            self._read()
            if status is not None:
                return self._ended(status)
            if self._rows:
                return {"event": "runs", **self._rows.popleft()}
        return {"event": "runs"}

    def end(self) -> None:
        """Lets the process save where it is, and waits for its end."""
        if self._attended is not None:
            self._attended.end()

    def _begun(self, run: Path) -> Attended:
        return Attended(run, Path(self._task["log"]), self._surroundings)

    def _begin(self, run: Path) -> dict[str, Any]:
        is_begun = (run / "config.json").exists()
        attended = self._begun(run)
        if not attended.start(self._task["go_on" if is_begun else "begin"]):
            time.sleep(BEAT)
            return {"event": "waits"}
        self._attended = attended
        return {"event": "runs"}

    def _read(self) -> None:
        assert self._attended is not None  # it was begun
        for row in self._attended.rows():
            if self._objective in row:
                value = float(row[self._objective])
                value = self._worst if math.isnan(value) else value
                row = {"step": row["step"], self._objective: value}
                self._last = row
                if row["step"] < self._task["num_steps"]:
                    self._rows.append(row)

    def _ended(self, status: int) -> dict[str, Any]:
        assert self._attended is not None  # it was begun
        if status == 0:
            return self._report("finished")
        words = self._attended.words(status)
        if self._retries > 0:
            self._retries -= 1
            self._attended = None
            return {"event": "again", "words": words}
        self._last[self._objective] = self._worst
        return self._report("failed", words)

    def _report(self, event: str, words: str = "") -> dict[str, Any]:
        return {"event": event, "words": words, "done": True, **self._last}


def trial_of(
    config: Mapping[str, Any],
    identity: str,
    *,
    objective: str,
    worst: float,
    retries: int,
    surroundings: Surroundings,
) -> Trial:
    """The trial of a config of Ray Tune's; all that follows the identity is alike for all."""
    return Trial(
        config["task"],
        objective=objective,
        worst=worst,
        retries=retries,
        surroundings=surroundings,
    )
