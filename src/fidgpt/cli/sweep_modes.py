"""Grids, searches and bisections from the command line."""

import importlib
import importlib.util
import shlex
from pathlib import Path

from rich.console import Console

from fidgpt.cli import app
from fidgpt.cli.flags import FLAGS
from fidgpt.cli.sweep_flags import AXES, PLACED, placed
from fidgpt.compose.catalogue import call_with
from fidgpt.compose.runs import allow_flags
from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.errors import at
from fidgpt.graph.formulas import parse_call
from fidgpt.sweep import Results, Runner, Sweep
from fidgpt.sweep.bisection import Bisection, Measuring, Stopped
from fidgpt.sweep.objective import refuse_unreported
from fidgpt.sweep.runners.ray_cluster import RayRunner

_CLASSES = {
    "local": "fidgpt.sweep.runners.local:LocalRunner",
    "ray": "fidgpt.sweep.runners.ray_cluster:RayRunner",
    "slurm": "fidgpt.sweep.runners.slurm:SlurmRunner",
}
_FLAGS = ("jobs", "retries")


def read_runner(text: str, *, jobs: int, retries: int) -> Runner:
    """The runner that a text names, with the arguments that it gives.

    Args:
      text: such as `ray(address=auto,gpus=1)`.
      jobs: points that are trained side by side.
      retries: how often a point that failed is tried again.

    Raises:
      ConfigError: there is no such runner, or it does not take these arguments.
    """
    with at(f"--runner={text:.80}"):
        call = parse_call(text)
        if call.name not in _CLASSES:
            raise ConfigError(f"there is no runner {call.name!r}. {suggest(call.name, _CLASSES)}")
        for name in _FLAGS:
            if name in call.named:
                raise ConfigError(f"{name} is a flag of its own: --{name}={call.named[name]}.")
        module, _, made = _CLASSES[call.name].partition(":")
        call.named.update(jobs=str(jobs), retries=str(retries))
        return call_with(getattr(importlib.import_module(module), made), call)


def refuse(*names: str) -> None:
    """Refuses flags that say nothing here.

    Raises:
      ConfigError: one of them was given.
    """
    what = next((f"--{one}" for one in ("bisect", "search") if FLAGS[one].present), "a sweep")
    for name in names:
        if FLAGS[name].present:
            raise ConfigError(f"--{name} says nothing to {what}: leave one of them out.")


def needed_objective(flag: str) -> str:
    """What --objective says, without which a flag makes no sense.

    Raises:
      ConfigError: it says nothing.
    """
    if not FLAGS.objective:
        raise ConfigError(f"--{flag} needs a number to compare: --objective=validation/loss")
    return FLAGS.objective


def runner() -> Runner:
    """What --runner, --jobs and --retries say.

    Raises:
      ConfigError: there is no such runner.
    """
    return read_runner(FLAGS.runner, jobs=FLAGS.jobs, retries=FLAGS.retries)


def tell_of_report(console: Console, directory: Path) -> None:
    """Says how to see more of what came of a directory."""
    told = f"More of it: python -m fidgpt.sweep report {shlex.quote(str(directory))}"
    console.print(told, soft_wrap=True)


def stopped(console: Console, directory: Path) -> int:
    """Says how to go on; returns the exit status of what was stopped."""
    console.print(f"Stopped; the same command goes on in {directory}", soft_wrap=True)
    return app.INTERRUPTED


def sweep(console: Console) -> int | None:
    """Trains every point that is not done yet; returns 1 when one of them failed.

    Raises:
      ConfigError: there is no axis, or one is wrong, or none of the points reports the objective.
    """
    refuse("search", "search_seed", "stop", "space", "threshold", "steps")
    made, runs_on = _sweep(), runner()
    if FLAGS.print:
        console.print(made)
        return None
    results = made.run(runner=runs_on, console=console)
    console.print(results)
    _refuse_unreported(made, results)
    tell_of_report(console, made.directory)
    statuses = {row["status"] for row in results}
    if statuses & {"waiting", "stopped"}:
        return stopped(console, made.directory)
    # What still runs is run by another process, which tried again what had failed here.
    return 1 if statuses & {"failed", "diverged", "running"} else 0


def _sweep() -> Sweep:
    if not any(FLAGS[name].value for name in AXES):
        raise ConfigError("name an axis: --sweep=tag:LearningRate=1e-3,3e-3")
    return Sweep(
        *placed(AXES),
        directory=FLAGS.run_dir,
        objective=FLAGS.objective,
        allowed=tuple(FLAGS.allow),
    )


def _refuse_unreported(made: Sweep, results: Results) -> None:
    finished = [row["metrics"] for row in results if row["status"] == "finished"]
    if made.objective is not None and finished:
        refuse_unreported(made.objective, dict.fromkeys(key for row in finished for key in row))


def search(console: Console) -> int | None:
    """Trains points until there were enough; returns 1 when one of them failed.

    Raises:
      ConfigError: there is no space, or a flag is wrong, or an extra is missing.
    """
    refuse("bisect", *AXES, "threshold", "steps")
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError('--search needs Optuna. Install it with: pip install "fidgpt[search]"')
    is_population = FLAGS.search.strip().startswith("pbt")
    return _population(console) if is_population else _search(console)


def _search(console: Console) -> int | None:
    from fidgpt.sweep.search import Search

    made = Search(
        *placed(("space",)),
        sampler=FLAGS.search,
        objective=needed_objective("search"),
        stop=FLAGS.stop[-1] if FLAGS.stop else None,
        seed=FLAGS.search_seed,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )
    runs_on = runner()
    if FLAGS.print:
        console.print(made)
        return None
    if isinstance(runs_on, RayRunner):  # Ray has searchers of its own
        from fidgpt.sweep.tune import search_with_tune

        found = search_with_tune(made, runs_on, console=console)
    else:
        found = made.run(jobs=FLAGS.jobs, runner=runs_on, console=console)
    console.print(found)
    tell_of_report(console, made.directory)
    if not found.is_whole:
        return stopped(console, made.directory)
    return 1 if any(row["status"] == "failed" for row in found.results) else 0


def _population(console: Console) -> int | None:
    from fidgpt.sweep.tune import Population, evolve, read_pbt

    refuse("stop", "jobs")
    size, every = read_pbt(FLAGS.search)
    runs_on = _ray(runner())
    population = Population(
        *placed(("space",)),
        size=size,
        every=every,
        objective=needed_objective("search"),
        seed=FLAGS.search_seed,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )
    if FLAGS.print:
        console.print(population)
        return None
    evolved = evolve(population, runs_on, console=console)
    console.print(evolved)
    tell_of_report(console, population.directory)
    if not evolved.is_whole:
        return stopped(console, population.directory)
    return 1 if evolved.best is None else None


def _ray(runs_on: Runner) -> RayRunner:
    if not isinstance(runs_on, RayRunner):
        raise ConfigError(
            f"--search={FLAGS.search} is done by Ray Tune: add --runner=ray, which runs it on this "
            "machine, or --runner='ray(address=auto)' for a cluster."
        )
    return runs_on


def bisect(console: Console) -> int | None:
    """Trains probes until the differences that are to blame are known.

    Raises:
      ConfigError: the two runs cannot be compared, or a flag is wrong.
    """
    refuse("config", "search", "search_seed", "stop", *PLACED)
    bisection = _bisection()
    if FLAGS.print:
        console.print(bisection)
        return None
    try:
        found = bisection.find(
            _measuring(bisection, console),
            jobs=FLAGS.jobs,
            say=lambda text: console.print(text, soft_wrap=True, markup=False, emoji=False),
        )
    except Stopped:
        return stopped(console, bisection.directory)
    console.print(found, soft_wrap=True)
    return None


def _bisection() -> Bisection:
    good, _, bad = FLAGS.bisect.rpartition(":")
    if not (good and bad):
        raise ConfigError("--bisect needs two run directories: --bisect=runs/good:runs/bad")
    return Bisection(
        good,
        bad,
        objective=needed_objective("bisect"),
        threshold=FLAGS.threshold,
        steps=FLAGS.steps,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )


def _measuring(bisection: Bisection, console: Console) -> Measuring:
    return Measuring(
        bisection.directory,
        objective=needed_objective("bisect"),
        runner=runner(),
        flags=allow_flags(FLAGS.allow),
        console=console,
    )
