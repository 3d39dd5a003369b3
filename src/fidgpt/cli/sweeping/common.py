"""What sweeps, searches and bisections have in common: what they refuse, run on, and say last."""

import shlex
from pathlib import Path

from rich.console import Console

from fidgpt.cli import app
from fidgpt.cli.flags import FLAGS
from fidgpt.cli.sweeping.runners import read_runner
from fidgpt.graph import ConfigError
from fidgpt.sweep import Runner


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
