"""The command `sweep.py`: many configs as one set, each point trained once."""

import importlib.util
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fidgpt.cli import app
from fidgpt.cli.flags import FLAGS, refuse_arguments
from fidgpt.cli.showing import asked
from fidgpt.cli.sweeping.flags import AXES, PLACED, placed

if TYPE_CHECKING:
    from rich.console import Console

    from fidgpt.sweep import Runner, Sweep
    from fidgpt.sweep.search import Found, Search


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> int | None:
    """Trains every point that is not done yet; returns 1 when one of them failed."""
    refuse_arguments(arguments)
    if asked.answered():
        return None
    from rich.console import Console  # late: --help and --list load no torch

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # nothing is there to be filled, and a row stays in one line
    try:
        return _asked_for(console)
    except BrokenPipeError:
        raise
    except OSError as error:
        from fidgpt.train import RunError

        raise RunError(
            f"{error.filename or 'a file of the sweep'} cannot be written or read: "
            f"{error.strerror}. Mend that, and give the same command again."
        ) from error


def _asked_for(console: "Console") -> int | None:
    _refuse_file()
    if FLAGS.bisect is not None:
        return _bisect(console)
    if FLAGS.search is not None:
        return _search(console)
    _refuse("search", "search_seed", "stop", "space", "threshold", "steps")
    return _run(console)


def _refuse_file() -> None:
    """Refuses a --run_dir that no directory can be made at.

    Raises:
      ConfigError: a file is there.
    """
    from fidgpt.graph import ConfigError

    path = FLAGS.run_dir
    if path is not None and any(one.is_file() for one in (Path(path), *Path(path).parents)):
        raise ConfigError(f"--run_dir={path} is a file, or lies in one: name a directory.")


def _run(console: "Console") -> int | None:
    from fidgpt.sweep.results.objective import refuse_unreported

    sweep, runner = _sweep(), _runner()
    if FLAGS.print:
        console.print(sweep)
        return None
    results = sweep.run(runner=runner, console=console)
    console.print(results)
    finished = [row["metrics"] for row in results if row["status"] == "finished"]
    if sweep.objective is not None and finished:
        refuse_unreported(sweep.objective, dict.fromkeys(key for row in finished for key in row))
    _tell_more(console, sweep.directory)
    statuses = {row["status"] for row in results}
    if statuses & {"waiting", "stopped"}:
        return _stopped(console, sweep.directory)
    # What still runs is run by another process, which tried again what had failed here.
    return 1 if statuses & {"failed", "diverged", "running"} else 0


def _search(console: "Console") -> int | None:
    from fidgpt.graph import ConfigError

    _refuse("bisect", *AXES, "threshold", "steps")
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError('--search needs Optuna. Install it with: pip install "fidgpt[search]"')
    if FLAGS.search.strip().startswith("pbt"):
        return _population(console)
    from fidgpt.sweep.search import Search

    search = Search(
        *placed(("space",)),
        sampler=FLAGS.search,
        objective=_objective("search"),
        stop=FLAGS.stop[-1] if FLAGS.stop else None,
        seed=FLAGS.search_seed,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )
    runner = _runner()
    if FLAGS.print:
        console.print(search)
        return None
    found = _found(search, runner, console)
    console.print(found)
    _tell_more(console, search.directory)
    if not found.is_whole:
        return _stopped(console, search.directory)
    return 1 if any(row["status"] == "failed" for row in found.results) else 0


def _found(search: "Search", runner: "Runner", console: "Console") -> "Found":
    """What a search finds: Ray has searchers of its own."""
    from fidgpt.sweep.runners.ray_cluster import RayRunner

    if isinstance(runner, RayRunner):
        from fidgpt.sweep.tune import search_with_tune

        return search_with_tune(search, runner, console=console)
    return search.run(jobs=FLAGS.jobs, runner=runner, console=console)


def _population(console: "Console") -> int | None:
    from fidgpt.graph import ConfigError
    from fidgpt.sweep.runners.ray_cluster import RayRunner
    from fidgpt.sweep.tune import Population, evolve, read_pbt

    _refuse("stop", "jobs")
    size, every = read_pbt(FLAGS.search)
    if not isinstance(runner := _runner(), RayRunner):
        raise ConfigError(
            f"--search={FLAGS.search} is done by Ray Tune: add --runner=ray, which runs it on this "
            "machine, or --runner='ray(address=auto)' for a cluster."
        )
    population = Population(
        *placed(("space",)),
        size=size,
        every=every,
        objective=_objective("search"),
        seed=FLAGS.search_seed,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )
    if FLAGS.print:
        console.print(population)
        return None
    evolved = evolve(population, runner, console=console)
    console.print(evolved)
    _tell_more(console, population.directory)
    if not evolved.is_whole:
        return _stopped(console, population.directory)
    return 1 if evolved.best is None else None


def _bisect(console: "Console") -> int | None:
    from fidgpt.graph import ConfigError
    from fidgpt.sweep.bisect import Bisection, Measuring, Stopped

    _refuse("config", "search", "search_seed", "stop", *PLACED)
    good, _, bad = FLAGS.bisect.rpartition(":")
    if not (good and bad):
        raise ConfigError("--bisect needs two run directories: --bisect=runs/good:runs/bad")
    objective = _objective("bisect")
    bisection = Bisection(
        good,
        bad,
        objective=objective,
        threshold=FLAGS.threshold,
        steps=FLAGS.steps,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )
    if FLAGS.print:
        console.print(bisection)
        return None
    measuring = Measuring(
        bisection.directory,
        objective=objective,
        runner=_runner(),
        flags=[f"--allow={one}" for one in FLAGS.allow],
        console=console,
    )
    try:
        found = bisection.find(
            measuring,
            jobs=FLAGS.jobs,
            say=lambda text: console.print(text, soft_wrap=True, markup=False, emoji=False),
        )
    except Stopped:
        return _stopped(console, bisection.directory)
    console.print(found, soft_wrap=True)
    return None


def _runner() -> "Runner":
    from fidgpt.cli.sweeping.runners import read_runner

    return read_runner(FLAGS.runner, jobs=FLAGS.jobs, retries=FLAGS.retries)


def _tell_more(console: "Console", directory: Path) -> None:
    told = f"More of it: python -m fidgpt.sweep report {shlex.quote(str(directory))}"
    console.print(told, soft_wrap=True)


def _stopped(console: "Console", directory: Path) -> int:
    console.print(f"Stopped; the same command goes on in {directory}", soft_wrap=True)
    return app.INTERRUPTED


def _objective(flag: str) -> str:
    from fidgpt.graph import ConfigError

    if not FLAGS.objective:
        raise ConfigError(f"--{flag} needs a number to compare: --objective=validation/loss")
    return FLAGS.objective


def _refuse(*names: str) -> None:
    """Refuses flags that say nothing here.

    Raises:
      ConfigError: one of them was given.
    """
    from fidgpt.graph import ConfigError

    what = next((f"--{one}" for one in ("bisect", "search") if FLAGS[one].present), "a sweep")
    for name in names:
        if FLAGS[name].present:
            raise ConfigError(f"--{name} says nothing to {what}: leave one of them out.")


def _sweep() -> "Sweep":
    """The sweep that the flags say.

    Raises:
      ConfigError: there is no axis, or one is wrong.
    """
    from fidgpt.graph import ConfigError
    from fidgpt.sweep import Sweep

    if not any(FLAGS[name].value for name in AXES):
        raise ConfigError("name an axis: --sweep=tag:LearningRate=1e-3,3e-3")
    return Sweep(
        *placed(AXES),
        directory=FLAGS.run_dir,
        objective=FLAGS.objective,
        allowed=tuple(FLAGS.allow),
    )


if __name__ == "__main__":
    run()
