"""Population-based training by Ray Tune, on a cluster or on this machine alone."""

import dataclasses
import logging
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray import cloudpickle, tune
from ray.tune.schedulers import PopulationBasedTraining
from rich.console import Console

from fidgpt import files
from fidgpt.compose.runs import allow_flags
from fidgpt.graph import ConfigError
from fidgpt.sweep import member
from fidgpt.sweep.member import Lineage, Plan
from fidgpt.sweep.points import Point
from fidgpt.sweep.population import Population, draw
from fidgpt.sweep.progress import Screen, opened
from fidgpt.sweep.results import Result
from fidgpt.sweep.runners import remote
from fidgpt.sweep.runners.jobs import Ending, Job, jobs_of
from fidgpt.sweep.runners.keeper import keeping
from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.runners.scheduler import Signals, failure
from fidgpt.sweep.search import Found, only_driver
from fidgpt.sweep.tables import Results
from fidgpt.train.device import derive_seed
from fidgpt.train.trackers.background import GROUP

_FOLDER = ".tune"  # Ray's own files, which nothing reads afterwards
_MAX_LOSSES = 20  # of nodes or workers under a member, which continues from its last look
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints tables even when it should be silent
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # most reports have no objective
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "600",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
}


class _Follower(tune.Callback):
    """Shows the runs of members, and records their lineage, from what the members report.

    Attributes:
      error: why the population cannot continue; None while it can.
    """

    def __init__(self, screen: Screen, population: Population, flags: Sequence[str]) -> None:
        self.error: ConfigError | None = None
        self.lineages = member.read_lineages(population.directory)
        self._screen = screen
        self._population = population
        self._flags = tuple(flags)
        self._jobs: dict[str, Job] = {}  # by trial, the run that it trains or trained last
        self._running: set[str] = set()  # trials

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune saves callbacks for restoring an experiment, which this module does not

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        name, event, reason = trial.trial_id, result["event"], result.get("reason", "")
        if event == "broken":
            self.error = ConfigError(
                f"the population cannot continue: {reason}\nThe same command tries it again."
            )
            return
        job = self._job(name, Lineage(**result["lineage"]))
        if event == "runs" and name not in self._running:
            self._running.add(name)
            self._screen.started(job)
        if "row" in result:
            self._screen.progressed(job, result["row"])
        if event == "look" and reason and name in self._running:
            self._end(name, failure(reason))
        elif event == "look" and result["done"] and not reason:
            job.finish()
            self._end(name, Ending("finished"))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._screen.tick()

    def stop(self) -> None:
        """Show that the runs which have not ended were stopped, once they have saved."""
        for name in list(self._running):
            self._end(name, Ending("stopped"))

    def _end(self, name: str, ending: Ending, *, again: bool = False) -> None:
        self._running.discard(name)
        self._screen.ended(self._jobs[name], ending, again=again)

    def _job(self, name: str, lineage: Lineage) -> Job:
        """Return the job of a run; a new run replaces the one that its member trained before."""
        book, old = self._screen.book, self._jobs.get(name)
        if old is not None and old.point.fingerprint == lineage.fingerprint:
            return old
        if old is not None and book.row(old)["status"] not in ("stopped early", *_FAILED):
            self._end(name, Ending("stopped early", f"{lineage.short} continues in its place"))
        directory = self._population.directory
        job = self._jobs[name] = jobs_of([self._point(lineage)], directory, self._flags)[0]
        if lineage.fingerprint not in self.lineages:
            self.lineages[lineage.fingerprint] = lineage
            member.add_lineage(directory, lineage)
            if lineage.parent is not None:
                values = ", ".join(f"{key}={value}" for key, value in lineage.values.items())
                self._screen.log(
                    f"member {lineage.member} continues from {book.rows[lineage.parent]['name']} "
                    f"after step {lineage.step:,}, with {values}"
                )
        if job not in book.jobs:
            book.add(job)
            if lineage.parent is not None:
                self._screen.more()
        return job

    def _point(self, lineage: Lineage) -> Point:
        """Return the point of its values, under the name and identity of the run."""
        point = self._population.points.of(lineage.values)
        start = f" from step {lineage.step}" if lineage.parent is not None else ""
        return dataclasses.replace(
            point,
            fingerprint=lineage.fingerprint,
            name=f"member {lineage.member}{start}: {point.name}",
            values={"member": str(lineage.member), **point.values},
        )


_FAILED = ("failed", "diverged")


class _Scheduler(PopulationBasedTraining):
    """Ray's population-based training, with random choices that depend on a seed and the step."""

    def __init__(self, population: Population) -> None:
        self._seed = population.seed
        spaces = population.spaces

        def drawing(one: Any) -> Callable[[], Any]:
            return lambda: draw(one, random)  # pyright: ignore[reportArgumentType]  # seeded below

        super().__init__(
            time_attr="step",
            perturbation_interval=population.every,
            hyperparam_mutations={
                "member": {"values": {one.name: one.values or drawing(one) for one in spaces}}
            },
            custom_explore_fn=lambda config: {
                "member": population.config(config["member"]["values"])
            },
            require_attrs=False,
            synch=True,
            log_config=False,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        before = random.getstate()
        random.seed(derive_seed(self._seed, "look", result.get("step", 0)))
        try:
            return super().on_trial_result(tune_controller, trial, result)
        finally:
            random.setstate(before)


class _Stopper(tune.Stopper):
    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._should_stop()


def evolve(population: Population, runner: RayRunner, *, console: Console | None = None) -> Found:
    """Train a population on a Ray cluster, or continue one that was stopped.

    Which runs are cloned is decided once all of them have reached a look, by a seed: so the same
    command makes the same choices, and nothing is trained twice.

    Args:
      population: what is trained.
      runner: the cluster, and the resources of a run; runs for which the cluster has no room take
        turns, whatever its `jobs`.
      console: where to show progress; defaults to standard output.

    Raises:
      ConfigError: the population cannot be trained, or Ray cannot run it, or another process does;
        or the first look shows that the objective is not measured.
    """
    if runner.processes != 1:
        raise ConfigError(
            f"processes={runner.processes}: a member of a population is one process; leave it out."
        )
    directory, objective = population.directory, population.objective
    first, flags = population.points.of(), tuple(allow_flags(population.allowed))
    plan = Plan(
        folder=directory.resolve(),
        program=jobs_of([first], directory, flags)[0].program,
        every=population.every,
        num_steps=first.cost.num_steps,
        objective=objective.name,
        worst=objective.worst,
        environment={
            "OMP_NUM_THREADS": str(max(1, int(runner.cpus))),
            GROUP: directory.resolve().name,
            **os.environ,
        },
        working_directory=os.getcwd(),
        keeper=keeping([]),
    )
    with (
        opened(
            directory,
            [],
            items=population.points.items,
            objective=objective,
            console=console,
            num_jobs=population.size,
        ) as screen,
        only_driver(directory) as is_alone,
    ):
        if not is_alone:
            raise ConfigError(f"another process trains the population in {directory}: stop it.")
        follower = _Follower(screen, population, flags)
        with runner.connected(screen.log):
            is_whole = _fit(population, plan, runner, follower, screen)
        follower.stop()
        if follower.error is not None:
            raise follower.error
        if is_whole:
            shutil.rmtree(directory / member.SNAPSHOTS, ignore_errors=True)

    def commands(row: Result) -> list[str]:
        line = member.ancestors(follower.lineages, row["fingerprint"])
        return member.schedule(line, run_dir="runs/best", flags=flags)

    results = Results(list(screen.book.rows.values()), objective)
    clones = sum(one.parent is not None for one in follower.lineages.values())
    summary = f"{len(results)} runs, {clones} of them clones of others"
    return Found(results, objective, is_whole, summary, commands)


def _fit(
    population: Population, plan: Plan, runner: RayRunner, follower: _Follower, screen: Screen
) -> bool:
    """Let Ray Tune train all members; returns whether no signal stopped it."""
    stops: list[int] = []

    def stop(number: int, frame: object) -> None:
        if stops:
            raise KeyboardInterrupt  # a second signal: the runs save as their keepers are left
        stops.append(number)
        screen.stops()

    for module in (member, remote, files):
        cloudpickle.register_pickle_by_value(module)
    os.environ.update(_SETTINGS)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    storage = Path(plan.folder) / _FOLDER / "ray"
    shutil.rmtree(storage, ignore_errors=True)
    resources = {"cpu": runner.cpus, "gpu": runner.gpus}
    with Signals(stop):
        tune.Tuner(
            tune.with_resources(tune.with_parameters(member.train_member, plan=plan), resources),
            param_space={"member": tune.grid_search(population.first_configs())},
            tune_config=tune.TuneConfig(
                metric=population.objective.name,
                mode=population.objective.way,
                scheduler=_Scheduler(population),
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="ray",
                storage_path=str(storage.parent),
                callbacks=[follower],
                stop=_Stopper(lambda: bool(stops) or follower.error is not None),
                failure_config=tune.FailureConfig(max_failures=_MAX_LOSSES),
                verbose=0,
            ),
        ).fit()
    shutil.rmtree(storage, ignore_errors=True)
    return not stops
