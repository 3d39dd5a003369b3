"""A search by Ray Tune: its searcher chooses, its rules stop, its trials train our points."""

import math
from functools import partial
from typing import Any, cast

from rich.console import Console

from fidgpt.sweep.runners.ray_cluster import RayRunner
from fidgpt.sweep.search.sampling import HALVING, RUNGS
from fidgpt.sweep.search.search import Found, LedgerOf, Search
from fidgpt.sweep.search.study import Study
from fidgpt.sweep.showing.screen import Screen
from fidgpt.sweep.tune.callback import callback
from fidgpt.sweep.tune.choices import Choices, searcher_of
from fidgpt.sweep.tune.fitting import Stop, driven_alone, fit, surroundings_of
from fidgpt.sweep.tune.search_follower import SearchFollower
from fidgpt.sweep.tune.trial import trial_of


def search_with_tune(search: Search, runner: RayRunner, *, console: Console | None = None) -> Found:
    """Trains the points of a search on a Ray cluster, or on from where it was stopped.

    The study lies in the directory of the search as that of any other engine, so the same command
    goes on with it, and Optuna alone could, too. No point is trained twice.

    Args:
      search: what is chosen, how, and what ends early.
      runner: the cluster, what a trial needs of it, how many run at a time, and how often one that
        failed is tried again.
      console: where to tell of it; standard output unless said.

    Raises:
      ConfigError: none of the points could be run, or Ray cannot run them, or another process runs
        this search.
    """

    def drive(study: Study, screen: Screen, ledger_of: LedgerOf) -> bool:
        return _drive(search, runner, study, screen, ledger_of)

    return search.driven_by(drive, side_by_side=runner.jobs > 1, console=console)


def _drive(
    search: Search, runner: RayRunner, study: Study, screen: Screen, ledger_of: LedgerOf
) -> bool:
    surroundings = surroundings_of(runner, search.directory)
    with driven_alone(search.directory), runner.connected(screen.say):
        choices = Choices(study, search.objective, ledger_of)
        follower = SearchFollower(choices, screen)
        stop = Stop(screen.stops, lambda: choices.mistake is not None)
        fit(
            partial(
                trial_of,
                objective=search.objective.name,
                worst=search.objective.worst,
                retries=runner.retries,
                surroundings=surroundings,
            ),
            runner,
            search.directory,
            objective=search.objective,
            searcher=searcher_of(choices, search.objective),
            scheduler=_scheduler(search),
            callback=callback(follower),
            stop=stop,
            max_concurrent=runner.jobs,
        )
        follower.stopped()
    if choices.mistake is not None:
        raise choices.mistake
    return not stop.is_asked


def _scheduler(search: Search) -> Any:
    """Tune's rule of that name, as Optuna's on one machine."""
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

    num_steps = search.points.num_steps() or 1
    if search.stop == "asha":
        return ASHAScheduler(
            time_attr="step",
            max_t=num_steps,
            grace_period=max(1, num_steps // HALVING**RUNGS),
            reduction_factor=HALVING,
            stop_last_trials=False,
        )
    if search.stop == "median":
        # To hand the place of one that runs to one that waits would cost a process each time.
        return MedianStoppingRule(
            time_attr="step", grace_period=num_steps // 10, min_time_slice=cast("int", math.inf)
        )
    return FIFOScheduler()
