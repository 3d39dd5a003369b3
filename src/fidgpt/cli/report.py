"""Show the results of a sweep, and write its page: `fidgpt report runs/SWEEP`."""

from pathlib import Path

from absl import flags

from fidgpt.cli import app
from fidgpt.errors import ConfigError

FLAGS = flags.FLAGS

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
      OSError: the page cannot be written.
    """
    # Late: --help needs none of it.
    from fidgpt.sweep.report import document, read_report, write_page
    from fidgpt.sweep.results import console_of_log, table

    report = read_report(_directory(arguments), objective=FLAGS.objective, repeats=FLAGS.repeats)
    page = write_page(report, FLAGS.out, allowed=FLAGS.allow) if FLAGS.page else None
    print("\n".join(report.verdict))
    for sentence, command in document.commands(report, allowed=FLAGS.allow):
        print(f"\n{sentence}\n  {command}")
    print()
    console = console_of_log()
    tables = [
        *document.leader_tables(report).values(),
        document.scores_table(report),
        document.effects_table(report),
    ]
    tables += [document.importance_table(report)] if len(report.columns) > 1 else []
    for head, rows in [filled for filled in tables if filled[1]]:
        console.print(table(head, rows))
        console.print()
    if page is not None:
        print(f"Written: {page}")


def _directory(arguments: list[str]) -> Path:
    match arguments:
        case ["report", directory] | [directory] if directory != "report":
            return Path(directory)
    raise ConfigError("name one sweep: fidgpt report DIRECTORY")
