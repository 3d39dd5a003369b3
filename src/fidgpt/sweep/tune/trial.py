"""Trials on Ray Tune."""

import json
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
