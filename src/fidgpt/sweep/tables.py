"""Points and results as tables, on a terminal and in notebooks."""

import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fidgpt.graph import ConfigError
from fidgpt.sweep.objective import USUAL, Objective, objective_of, read_objective, usual
from fidgpt.sweep.points import Plan
from fidgpt.sweep.results import Result, read_table
from fidgpt.train.summary_text import counted, duration, magnitude

FAILED = ("failed", "diverged")
TO_COME = ("waiting", "running", "stopped")
_FLOPS = ["", "k", "M", "G", "T", "P", "E", "Z"]
_STYLES = {"failed": "red", "diverged": "red", "finished": "green", "running": "bold"}


def table(
    head: Sequence[str], rows: Iterable[Sequence[str | Text]], *, numbers: Collection[str] = ()
) -> Table:
    """Return a table whose columns of numbers are aligned to the right."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in head:
        made.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def points_table(plan: Plan, *, flops_per_second: float) -> Table:
    """Return the points of a sweep with their size, FLOPs and approximate time."""
    rows = [
        (
            *(point.name, point.short, f"{point.cost.parameters:,}"),
            magnitude(point.cost.flops, _FLOPS),
            duration(point.cost.flops / flops_per_second),
        )
        for point in plan.points
    ]
    numbers = ("parameters", "FLOPs", "about")
    return table(("point", "fingerprint", *numbers), rows, numbers=numbers)


def summary_lines(
    plan: Plan, *, flops_per_second: float, basis: str, done: Collection[str] = ()
) -> list[str]:
    """Return what follows a table of points: their number and time, and what each axis moves.

    Args:
      plan: the points.
      flops_per_second: the speed of the machine.
      basis: how that is known.
      done: fingerprints of finished points.
    """
    left = [point for point in plan.points if point.fingerprint not in done]
    num_done = len(plan.points) - len(left)
    text = counted(len(plan.points), "point") + (f", {num_done} of them done" if num_done else "")
    if left:
        seconds = sum(point.cost.flops for point in left) / flops_per_second
        rest = "for the rest, " if num_done else ""
        text += f", about {duration(seconds)} {rest}one after the other, {basis}"
    folded = [f"{plan.num_folded} more are the same runs as some of these"] * bool(plan.num_folded)
    return [text, *folded, *plan.moves]


def results_table(rows: Iterable[Result], objective: Objective | None = None) -> Table:
    """Return the results of points, with the last words of those that failed."""
    rows = list(rows)
    shown = [one for one in _metrics(objective) if any(one in row["metrics"] for row in rows)]
    words = ["last words"] if any(row["last_words"] for row in rows) else []
    lines: list[list[str | Text]] = []
    for row in rows:
        count = f" ({row['attempts']} attempts)" if row["attempts"] > 1 else ""
        status = Text(row["status"] + count, style=_STYLES.get(row["status"], ""))
        cells = [row["name"], row["fingerprint"][:12], status, *_progress(row, shown)]
        lines.append(cells + ([row["last_words"]] if words else []))
    numbers = ("step", *shown)
    return table(("point", "fingerprint", "status", *numbers, *words), lines, numbers=numbers)


def running_table(
    rows: Iterable[tuple[Result, float | None]], objective: Objective | None = None
) -> Table:
    """Return the points that run, each given with the seconds left of it."""
    numbers = ("step", *_metrics(objective), "left")
    lines = [
        (row["name"], *_progress(row, numbers[1:-1]), "-" if left is None else duration(left))
        for row, left in rows
    ]
    return table(("point", *numbers), lines, numbers=numbers)


def _metrics(objective: Objective | None) -> list[str]:
    """Return what tables show: the losses, and what is compared."""
    return list(dict.fromkeys((*reversed(USUAL), *([objective.name] if objective else []))))


def _progress(row: Result, metrics: Sequence[str]) -> list[str]:
    values = [row["metrics"].get(name) for name in metrics]
    cells = [f"{one:.4f}" if isinstance(one, int | float) else "-" for one in values]
    return [f"{row['step']:,}/{row['num_steps']:,}", *cells]


def best(rows: Iterable[Result], objective: Objective | None = None) -> Result | None:
    """Return the best finished row, or the best of those that still run if none is finished."""
    rows = [row for row in rows if row["status"] not in FAILED]
    by = objective or usual(rows)
    rows = [row for row in rows if by.name in row["metrics"]]
    rows = [row for row in rows if row["status"] == "finished"] or rows
    return min(rows, key=lambda row: by.sorted_by(row["metrics"][by.name]), default=None)


def tally(rows: Iterable[Result], count: int) -> str:
    """Return how many of so many points are done, and how many failed."""
    statuses = [row["status"] for row in rows]
    num_failed = sum(one in FAILED for one in statuses)
    failed = f", {num_failed} failed" if num_failed else ""
    return f"{statuses.count('finished')} of {count} done{failed}"


class Results(Sequence[Result]):
    """The rows of a sweep, one for each point; displays itself in a notebook.

    Each is a dict with name, fingerprint, status, values (by axis), directives, metrics (the last
    of each), step, attempts, seconds and last_words.

    Args:
      rows: the rows.
      objective: what they are compared by; defaults to the held-out loss.
    """

    def __init__(self, rows: Sequence[Result], objective: Objective | None = None) -> None:
        self._rows = list(rows)
        self._objective = objective

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def best(self, name: str | None = None) -> Result | None:
        """Return the best row by a metric, such as `max:tasks/arc_easy/acc`; None without any.

        Raises:
          ConfigError: the metric lacks a direction.
        """
        return best(self._rows, objective_of(name) if name else self._objective)

    def __rich__(self) -> RenderableType:
        row, name = self.best(), (self._objective or usual(self._rows)).name
        text = f"best: {row['name']}, {name} {row['metrics'][name]:.4f}" if row else "no result yet"
        return Group(results_table(self._rows, self._objective), Text(text))

    def _repr_html_(self) -> str:
        return as_html(self)


def read_results(directory: str | Path) -> Results:
    """Return the results of a sweep, from its directory alone.

    Raises:
      ConfigError: no sweep has run there.
    """
    rows = read_table(Path(directory))
    if not rows:
        raise ConfigError(f"{directory} holds no sweep: there is no table.jsonl with rows in it.")
    return Results(rows, read_objective(Path(directory)))


def as_html(shown: Any) -> str:
    """Return what rich can show as HTML."""
    console = Console(file=io.StringIO(), record=True, width=160, highlight=False)
    console.print(shown)
    return console.export_html(
        inline_styles=True, code_format="<pre style='line-height:1.3'>{code}</pre>"
    )
