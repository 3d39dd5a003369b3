"""`sweep.py --bisect`: which difference between two runs did it."""

from rich.console import Console

from fidgpt.cli.flags import FLAGS
from fidgpt.cli.running.saying import allow_flags
from fidgpt.cli.sweeping.common import needed_objective, refuse, runner, stopped
from fidgpt.cli.sweeping.flags import PLACED
from fidgpt.graph import ConfigError
from fidgpt.sweep.bisect import Bisection, Measuring, Stopped


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
