"""Show the results of a sweep, and write its page: `fidgpt report runs/SWEEP`."""

import sys
from pathlib import Path

from absl import flags

from fidgpt.cli import app

FLAGS = flags.FLAGS
_USAGE = "fidgpt report DIRECTORY, or python -m fidgpt.sweep report DIRECTORY"

flags.DEFINE_string(
    "objective",
    None,
    "Metric to compare by; max:NAME if larger is better. Defaults to that of the sweep, "
    "or else validation/loss.",
)
flags.DEFINE_multi_string(
    "repeats", [], "An axis that only repeats runs; defaults to those named seed. Repeatable."
)
app.define_path(
    "out", "The file of the page; defaults to report.html in the directory of the sweep."
)
flags.DEFINE_bool("page", True, "Write the HTML page, which needs Plotly.")


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> None:
    """Write the report of a sweep, and print what won.

    Raises:
      ConfigError: the command or the directory is wrong, or no point is finished.
      RunError: a file cannot be written.
    """
    from rich.console import Console  # late: --help needs none of it

    from fidgpt.sweep.report import read_report, write_page
    from fidgpt.sweep.report.document import (
        commands,
        effects_table,
        importance_table,
        leader_tables,
        scores_table,
    )
    from fidgpt.sweep.results import log_width, table
    from fidgpt.train import RunError

    report = read_report(_directory(arguments), objective=FLAGS.objective, repeats=FLAGS.repeats)
    try:
        page = write_page(report, FLAGS.out, allowed=FLAGS.allow) if FLAGS.page else None
    except OSError as error:
        where = FLAGS.out or report.directory
        raise RunError(f"the report cannot be written to {where}: {error.strerror}.") from error
    print("\n".join(report.verdict))
    for sentence, command in commands(report, allowed=FLAGS.allow):
        print(f"\n{sentence}\n  {command}")
    print()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else log_width())
    tables = [*leader_tables(report).values()]
    if (scores := scores_table(report)) is not None:
        tables.append(scores)
    if report.effects:
        tables.append(effects_table(report))
    if len(report.columns) > 1:
        tables.append(importance_table(report))
    for head, rows in tables:
        console.print(table(head, rows))
        console.print()
    if page is not None:
        print(f"Written: {page}")


def _directory(arguments: list[str]) -> Path:
    from fidgpt.graph import ConfigError

    match arguments:
        case ["report", directory] | [directory] if directory != "report":
            return Path(directory)
        case _:
            raise ConfigError(f"name one sweep: {_USAGE}")
