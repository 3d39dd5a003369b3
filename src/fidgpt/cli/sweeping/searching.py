"""`sweep.py --search`: points that a sampler chooses, or a population that evolves."""

import importlib.util

from rich.console import Console

from fidgpt.cli.flags import FLAGS
from fidgpt.cli.sweeping.common import needed_objective, refuse, runner, stopped, tell_of_report
from fidgpt.cli.sweeping.flags import AXES, placed
from fidgpt.graph import ConfigError
from fidgpt.sweep import Runner
from fidgpt.sweep.runners.ray_cluster import RayRunner


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
