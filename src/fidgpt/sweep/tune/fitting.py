"""Trials that are driven and followed."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from fidgpt import files as locking
from fidgpt.graph import ConfigError
from fidgpt.sweep.objective import Objective
from fidgpt.sweep.progress import Screen
from fidgpt.sweep.runners import ray_place
from fidgpt.sweep.runners import work as tail
from fidgpt.sweep.runners.attempt import Ending, Job
from fidgpt.sweep.runners.keeper import keeping
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.runners.work import Signals, Tail
from fidgpt.sweep.search import only_driver as present
from fidgpt.sweep.tune import member
from fidgpt.sweep.tune import trial as trials
from fidgpt.sweep.tune.trial import BROKEN, Surroundings, trainable
from fidgpt.train.trackers.background import GROUP

FOLDER = ".tune"  # what Ray keeps, which nobody reads afterwards
_LOSSES = 20  # of nodes or workers under a trial; each time it goes on from its newest checkpoint
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the other one writes tables, whatever it is told
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # our files say it all
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # not each report has the objective
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "600",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
}
# Sent to the nodes as they are, which so load nothing but Ray.
_SENT = (member, trials, tail, ray_place, locking)


class Stop:
    """Whether all of it is to end: by a signal, or because going on makes no sense.

    Args:
      told: called when a signal asks for it.
      is_hopeless: looked at now and then.
    """

    def __init__(self, told: Callable[[], None], is_hopeless: Callable[[], bool]) -> None:
        self.is_asked = False
        self._told = told
        self._is_hopeless = is_hopeless

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt  # the second one: the runs save as their keepers are left
        self.is_asked = True
        self._told()

    @property
    def is_due(self) -> bool:
        return self.is_asked or self._is_hopeless()


@contextlib.contextmanager
def driven_alone(directory: Path) -> Iterator[None]:
    """While entered, no other process drives the search of a directory by Ray Tune.

    Raises:
      ConfigError: another one does.
    """
    with present(directory) as is_alone:
        if not is_alone:
            raise ConfigError(
                f"another process runs the search in {directory}: wait for its end, or stop it "
                "first. More of its points at a time are --jobs=8."
            )
        yield


def surroundings_of(runner: RayRunner, directory: Path) -> Surroundings:
    """What all runs of a search have in common.

    Raises:
      ConfigError: the runner asks for several processes a point.
    """
    if runner.processes != 1:
        raise ConfigError(
            f"processes={runner.processes}: a trial of Ray Tune's is one process here; leave it "
            "out, or sweep with --sweep."
        )
    return Surroundings(
        environment={GROUP: directory.resolve().name, **os.environ},
        folder=os.getcwd(),
        threads=max(1, int(runner.cpus)),
        keeper=keeping([]),
    )


def fit(
    make: Callable[[Mapping[str, Any], str], Any],
    runner: RayRunner,
    directory: Path,
    *,
    objective: Objective,
    searcher: Any,
    scheduler: Any,
    callback: Any,
    stop: Stop,
    max_concurrent: int | None,
    num_samples: int = -1,
    choices: Mapping[str, Any] | None = None,
) -> None:
    """Runs trials until the searcher has no more, or it is to stop.

    Args:
      make: makes what is trained from a trial's config and identity.
      runner: what each needs.
      directory: of the search.
      objective: what is to get small, or large.
      searcher: Tune's; what it suggests is tried.
      scheduler: Tune's.
      callback: hears of the trials.
      stop: whether to stop.
      max_concurrent: how many at a time, at most.
      num_samples: how many trials; -1 leaves it to the searcher.
      choices: distributions by name, for a searcher that draws of them.
    """
    from ray import cloudpickle, tune

    for module in _SENT:
        cloudpickle.register_pickle_by_value(module)
    with _settings(), Signals(stop):
        storage = directory.resolve() / FOLDER / "ray"
        shutil.rmtree(storage, ignore_errors=True)
        tune.Tuner(
            tune.with_resources(trainable(make), {"cpu": runner.cpus, "gpu": runner.gpus}),
            param_space=dict(choices or {}),
            tune_config=tune.TuneConfig(
                metric=objective.name,
                mode=objective.way,
                num_samples=num_samples,
                search_alg=searcher,
                scheduler=scheduler,
                max_concurrent_trials=max_concurrent,
                reuse_actors=True,
                trial_name_creator=lambda one: one.trial_id,
                trial_dirname_creator=lambda one: one.trial_id,
            ),
            run_config=tune.RunConfig(
                name="ray",
                storage_path=str(storage.parent),
                callbacks=[callback],
                stop=_stopper(stop),
                failure_config=tune.FailureConfig(max_failures=_LOSSES),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()
        shutil.rmtree(storage, ignore_errors=True)


def _stopper(stop: Stop) -> Any:
    from ray import tune

    class Stopping(tune.Stopper):
        def __init__(self, stop: Stop) -> None:
            self._stop = stop

        def __getstate__(self) -> dict[str, Any]:
            return {}

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return self._stop.is_due

    return Stopping(stop)


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """While entered, Tune is set as we need it, and keeps silent."""
    before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update(_SETTINGS)
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


class Heard(Protocol):
    """Hears of trials, by their identity."""

    def reported(self, trial: str, report: Mapping[str, Any]) -> None:
        """A trial has reported."""
        ...

    def broke(self, trial: str, words: str) -> None:
        """The code of a trial raised something, so that going on makes no sense."""
        ...

    def completed(self, trial: str, report: Mapping[str, Any]) -> None:
        """A trial came to its end, or is ended; with its last report."""
        ...

    def lost(self, trial: str, words: str, *, again: bool) -> None:
        """The node of a trial is gone; `again` where it is moved to another one."""
        ...

    def tick(self) -> None:
        """Some time has passed."""
        ...


def callback(heard: Heard) -> Any:
    """The callback by which Ray Tune tells of its trials."""
    from ray import tune

    class Calling(tune.Callback):
        def __init__(self, heard: Heard) -> None:
            self._heard = heard

        def __getstate__(self) -> dict[str, Any]:
            return {}  # Tune keeps a copy, for what we do otherwise

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            if result.get("event") == BROKEN:
                self._heard.broke(trial.trial_id, result["words"])
            else:
                self._heard.reported(trial.trial_id, result)

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.completed(trial.trial_id, trial.last_result or {})

        def on_trial_error(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.lost(trial.trial_id, _reason(trial), again=False)

        def on_trial_recover(
            self, iteration: int, trials: list[Any], trial: Any, **info: Any
        ) -> None:
            self._heard.lost(trial.trial_id, _reason(trial), again=True)

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            self._heard.tick()

    return Calling(heard)


def _reason(trial: Any) -> str:
    """Why Ray took a trial for lost, in a line."""
    lines = [line.strip() for line in str(trial.get_error() or "").splitlines() if line.strip()]
    return f"its process on the node is gone: {lines[-1]}" if lines else "its node is gone."


def broken(words: str) -> ConfigError:
    """What ends a search in which a trial's own code fails, as it would on any node."""
    return ConfigError(f"the search cannot go on: {words}\nThe same command tries it again.")


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
