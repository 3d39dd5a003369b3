"""The files of a report: a page for a browser, and tables beside it."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fidgpt.drafts import write_whole
from fidgpt.graph import ConfigError
from fidgpt.sweep.report.commands import best_commands, repeat_command
from fidgpt.sweep.report.report import Report
from fidgpt.sweep.report.tables import csv_text, markdown_text


@dataclass(frozen=True)
class Written:
    """What a report was written to, and the commands in it.

    Attributes:
      paths: the files.
      command: what runs the best point again; of a population, a line for each stretch.
      repeat: what runs the two best with other seeds; None where they were, or cannot be.
    """

    paths: Sequence[Path]
    command: str
    repeat: str | None


def write_report(
    report: Report,
    out: str | Path | None = None,
    *,
    with_page: bool = True,
    allowed: Sequence[str] = (),
) -> Written:
    """Writes `NAME.csv`, `NAME.md` and `NAME.html` for `out=NAME`.

    Args:
      report: what is told.
      out: where to; `report` in the directory of the sweep unless said.
      with_page: whether to write the page, which Plotly draws.
      allowed: packages of the user's own that configs may name.

    Raises:
      ConfigError: Plotly is missing.
      OSError: a file cannot be written.
    """
    base = Path(out) if out is not None else report.directory / "report"
    if with_page and importlib.util.find_spec("plotly") is None:
        raise ConfigError(
            'the page needs Plotly. Install it with: pip install "fidgpt[report]" or write the '
            "tables alone, with --nopage"
        )
    command = "\n".join(best_commands(report, allowed=allowed))
    repeat = repeat_command(report, allowed=allowed)
    texts = {".csv": csv_text(report), ".md": markdown_text(report, command, repeat)}
    if with_page:
        from fidgpt.sweep.report.document import document
        from fidgpt.sweep.report.page import page

        texts[".html"] = page(document(report, command, repeat=repeat, allowed=allowed))
    base.parent.mkdir(parents=True, exist_ok=True)
    paths = [base.with_name(base.name + suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, text)
    return Written(paths, command, repeat)
