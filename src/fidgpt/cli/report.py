"""The command `python -m fidgpt.sweep report DIRECTORY`: what came of a sweep, drawn and told."""

import sys
from pathlib import Path

from absl import flags

from fidgpt.cli import app

FLAGS = flags.FLAGS
_USAGE = "python -m fidgpt.sweep report DIRECTORY"

flags.DEFINE_string(
    "objective",
    None,
    "What to compare by; max:NAME where more of it is better. Unless said, that of the sweep, or "
    "else validation/loss.",
)
flags.DEFINE_multi_string(
    "repeats", [], "An axis that only repeats runs; those named seed unless said. Repeated."
)
flags.DEFINE_string(
    "out",
    None,
    "Where to: NAME makes NAME.html, .csv and .md, or report.* where it is a directory; in that of "
    "the sweep unless said.",
)
flags.DEFINE_bool("page", True, "Write the page, which needs Plotly.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Writes the report of a sweep, and says what won.

    Raises:
      ConfigError: the command or the directory is none, or there is nothing to tell yet.
      RunError: a file cannot be written.
    """
    from fidgpt.sweep.report import (
        read_report,  # late: --help needs none of it
        write_report,  # late: --help needs none of it
    )
    from fidgpt.sweep.report.records import oddities
    from fidgpt.sweep.report.report import aligned, leaders_table
    from fidgpt.train import RunError

    report = read_report(
        _directory(arguments),
        objective=FLAGS.objective,
        repeats=FLAGS.repeats,
    )
    for line in oddities(report.directory):
        print(f"warning: {line}", file=sys.stderr)
    try:
        written = write_report(report, _out(), with_page=FLAGS.page, allowed=FLAGS.allow)
    except OSError as error:
        where = FLAGS.out or report.directory
        raise RunError(f"the report cannot be written to {where}: {error.strerror}.") from error
    print("\n".join(report.verdict))
    print("\nThe best point again:", *written.command.splitlines(), sep="\n  ", end="\n\n")
    if written.repeat is not None:
        print(f"The two best with other seeds:\n  {written.repeat}\n")
    for label in report.leaders:
        print(f"{aligned(*leaders_table(report, label))}\n")
    print(f"Written: {', '.join(map(str, written.paths))}")


def _directory(arguments: list[str]) -> Path:
    from fidgpt.graph import ConfigError

    match arguments:
        case ["report", directory]:
            return Path(directory)
        case ["report", *_]:
            raise ConfigError(f"name one sweep: {_USAGE}")
        case _:
            said = f"{arguments[0]} is no command. " if arguments else ""
            raise ConfigError(f"{said}Write {_USAGE}")


def _out() -> Path | None:
    """The name without the ending of any of the files; in a directory, that which it has there."""
    if not FLAGS.out:
        return None
    path = Path(FLAGS.out)
    if path.is_dir() or FLAGS.out.endswith("/"):
        return path / "report"
    return path.with_suffix("") if path.suffix in (".html", ".csv", ".md") else path
