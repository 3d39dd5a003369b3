"""`sweep.py` with axes: every combination of their values."""

from rich.console import Console

from fidgpt.cli.flags import FLAGS
from fidgpt.cli.sweeping.common import refuse, runner, stopped, tell_of_report
from fidgpt.cli.sweeping.flags import AXES, placed
from fidgpt.graph import ConfigError
from fidgpt.sweep import Results, Sweep
from fidgpt.sweep.results.objective import refuse_unreported


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
