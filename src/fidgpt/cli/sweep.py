"""The command `sweep.py`: many configs as one set, each point trained once."""

from pathlib import Path
from typing import TYPE_CHECKING

from fidgpt.cli import app
from fidgpt.cli import show as asked
from fidgpt.cli.flags import refuse_arguments
from fidgpt.cli.sweep_flags import FLAGS  # with those of a sweep

if TYPE_CHECKING:
    from rich.console import Console


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
    _refuse_directory()
    _refuse_form()
    if FLAGS.bisect is not None:
        from fidgpt.cli.sweep_modes import bisect

        return bisect(console)
    if FLAGS.search is not None:
        from fidgpt.cli.sweep_modes import search

        return search(console)
    from fidgpt.cli.sweep_modes import sweep

    return sweep(console)


def _refuse_directory() -> None:
    """Refuses a --run_dir where no sweep can lie.

    Raises:
      ConfigError: a file is there, or a run.
    """
    from fidgpt.graph import ConfigError

    path = FLAGS.run_dir
    if path is not None and any(one.is_file() for one in (Path(path), *Path(path).parents)):
        raise ConfigError(f"--run_dir={path} is a file, or lies in one: name a directory.")
    if path is not None and (Path(path) / "config.json").exists():
        raise ConfigError(f"--run_dir={path} holds a run: name a directory of the sweep's own.")


def _refuse_form() -> None:
    """Refuses forms of --print that show one config.

    Raises:
      ConfigError: it is said how to show it.
    """
    from fidgpt.graph import ConfigError

    if FLAGS.print not in (None, "text"):
        raise ConfigError(
            f"--print={FLAGS.print} shows one config: --print shows the points of a sweep, and "
            "train.py --print with the directives of one of them its config."
        )


if __name__ == "__main__":
    run()
