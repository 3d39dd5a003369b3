"""What came of a sweep, as rows that show themselves in a notebook and on a terminal."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.graph import ConfigError
from fidgpt.sweep.book import Result, read_table
from fidgpt.sweep.tables import best, objective, results_table


class Results(Sequence[Result]):
    """The rows of a sweep, one a point; shows itself in a notebook.

    Each is a dict with name, fingerprint, status, values (by axis), directives, metrics (the last
    of each), step, attempts, seconds and last_words.
    """

    def __init__(self, rows: Sequence[Result]) -> None:
        self._rows = list(rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def best(self, name: str | None = None) -> Result | None:
        """The row with the smallest `name`: the held-out loss unless said; None without any."""
        return best(self._rows, name)

    def __rich__(self) -> RenderableType:
        row, name = self.best(), objective(self._rows)
        told = f"best: {row['name']}, {name} {row['metrics'][name]:.4f}" if row else "no result yet"
        return Group(results_table(self._rows), Text(told))

    def _repr_html_(self) -> str:
        return as_html(self)


def read_results(directory: str | Path) -> Results:
    """What came of the points of a sweep, from its directory alone.

    Raises:
      ConfigError: no sweep has run there.
    """
    rows = read_table(Path(directory))
    if not rows:
        raise ConfigError(f"{directory} holds no sweep: there is no table.jsonl with rows in it.")
    return Results(rows)


def as_html(shown: Any) -> str:
    """Something that rich can show, as a piece of HTML."""
    console = Console(file=io.StringIO(), record=True, width=160, highlight=False)
    console.print(shown)
    return console.export_html(
        inline_styles=True, code_format="<pre style='line-height:1.3'>{code}</pre>"
    )
