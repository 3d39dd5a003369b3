"""Trials on Ray Tune."""

import json
import math
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from fidgpt.graph import ConfigError
from fidgpt.sweep.objective import Objective
from fidgpt.sweep.runners.ray_place import Place
from fidgpt.sweep.runners.work import Tail, last_words
from fidgpt.train import Trainer

FOLDER = ".stretches"


class Stretches:
    """The stretches of a run that are done: rows of step, value, and words where it failed.

    Args:
      folder: of the sweep.
      run: the name of the run directory.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / FOLDER / f"{run}.jsonl"

    def known(self, step: int) -> dict[str, Any] | None:
        """The row of a step; None where it was not come to yet."""
        return next((row for row in Tail(self._path).rows() if row["step"] == step), None)

    def add(self, step: int, value: float | None, words: str = "") -> None:
        """Takes down that a step was come to; without a value where it failed before."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        row = {"step": step, "value": value, "words": words}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    @staticmethod
    def names(run: Path) -> list[str]:
        """What a run has measured at all."""
        return list({name: None for row in Tail(run / "metrics.jsonl").rows() for name in row})

    @staticmethod
    def measured(run: Path, step: int, name: str) -> float | None:
        """What a run has measured at a step."""
        rows = [row for row in Tail(run / "metrics.jsonl").rows() if row["step"] == step]
        return float(rows[-1][name]) if rows and name in rows[-1] else None


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


BROKEN = "broken"  # the event of a report that only says what was raised


def trainable(make: Callable[[Mapping[str, Any], str], Any]) -> Any:
    """A class for Ray Tune.

    What is raised inside is reported, with the event `BROKEN`: Ray would begin it anew, as if the
    node were gone, again and again.

    Args:
      make: makes what is trained, on its node, from a trial's config and identity. It has
        `step()`, which trains on and reports, and `end()`, which saves and ends; what is moved or
        cloned by the scheduler has `state()`, where it is in plain values, and `go_on_from(state)`.
    """
    from ray import tune

    class Training(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self._made: Any = None
            self._words = ""
            self._try(lambda: self._make(config))

        def step(self) -> dict[str, Any]:
            report = None if self._words else self._try(lambda: self._made.step())
            return report or {"event": BROKEN, "words": self._words}

        def cleanup(self) -> None:
            if self._made is not None:
                self._made.end()

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._try(self.cleanup)
            self._try(lambda: self._make(new_config))
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            return {} if self._words else self._made.state()

        def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
            if checkpoint:
                self._try(lambda: self._made.go_on_from(checkpoint))

        def _make(self, config: dict[str, Any]) -> None:
            self._made = make(config, self.trial_id)

        def _try(self, do: Callable[[], Any]) -> Any:
            try:
                return do()
            except Exception as error:
                self._words = f"{type(error).__name__}: {error}"

    return Training


def refuse_unmeasured(trainer: Trainer, objective: Objective, every: int) -> None:
    """Refuses steps between two looks after which an objective is not measured.

    Raises:
      ConfigError: there is such a look, or none at all.
    """
    if every < 1 or every >= trainer.num_steps:
        raise ConfigError(
            f"--search=pbt(every={every}): a run has {trainer.num_steps} steps, and is to be "
            "looked at on its way."
        )
    if (step := unmeasured(trainer, objective, every)) is not None:
        raise ConfigError(
            f"--search=pbt(every={every}): {objective.name} is not measured after step {step}. "
            f"{_times(trainer, objective)}"
        )


def unmeasured(trainer: Trainer, objective: Objective, every: int) -> int | None:
    """The first look at which an objective is not measured, if there is one."""
    looks = range(every, trainer.num_steps, every)
    return next((at for at in looks if not _is_due(trainer, objective, at)), None)


def _times(trainer: Trainer, objective: Objective) -> str:
    """When it is measured, and what to do."""
    steps = range(1, trainer.num_steps)
    first = next((at for at in steps if _is_due(trainer, objective, at)), None)
    if first is None:
        return "It is measured after the last step only: let it be measured more often."
    if unmeasured(trainer, objective, first) is None:
        return (
            f"It is measured every {first} steps: say every={first} or a multiple, or let it be "
            "measured more often."
        )
    return (
        f"It is measured after step {first} first, and not at even distances from there: let it be "
        "measured every so many steps."
    )


def _is_due(trainer: Trainer, objective: Objective, step: int) -> bool:
    evaluator = trainer.evaluators.get(objective.name.partition("/")[0])
    return evaluator is None or evaluator.due(step, num_steps=trainer.num_steps)
