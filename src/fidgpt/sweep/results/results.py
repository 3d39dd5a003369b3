"""What came of a sweep, as rows that show themselves in a notebook and on a terminal."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.text import Text

from fidgpt.graph import ConfigError
from fidgpt.sweep.results.files import Result, read_table
from fidgpt.sweep.results.objective import Objective, kept, objective_of, usual
from fidgpt.sweep.showing.tables import best, results_table


class Results(Sequence[Result]):
    """The rows of a sweep, one a point; shows itself in a notebook.

    Each is a dict with name, fingerprint, status, values (by axis), directives, metrics (the last
    of each), step, attempts, seconds and last_words.

    Args:
      rows: the rows.
      objective: what they are compared by; the held-out loss unless said.
    """

    def __init__(self, rows: Sequence[Result], objective: Objective | None = None) -> None:
        self._rows = list(rows)
        self._objective = objective

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def best(self, name: str | None = None) -> Result | None:
        """The best row by a metric, such as `max:tasks/arc_easy/acc`; None without any.

        Raises:
          ConfigError: the metric says not which way is better.
        """
        return best(self._rows, objective_of(name) if name else self._objective)

    def __rich__(self) -> RenderableType:
        row, name = self.best(), (self._objective or usual(self._rows)).name
        told = f"best: {row['name']}, {name} {row['metrics'][name]:.4f}" if row else "no result yet"
        return Group(results_table(self._rows, self._objective), Text(told))

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
    return Results(rows, kept(Path(directory)))


def as_html(shown: Any) -> str:
    """Something that rich can show, as a piece of HTML."""
    console = Console(file=io.StringIO(), record=True, width=160, highlight=False)
    console.print(shown)
    return console.export_html(
        inline_styles=True, code_format="<pre style='line-height:1.3'>{code}</pre>"
    )
