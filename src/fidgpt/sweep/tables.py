"""Results as tables."""

import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fidgpt.graph import ConfigError
from fidgpt.sweep.objective import USUAL, Objective, kept, objective_of, usual
from fidgpt.sweep.points import Plan
from fidgpt.sweep.results import Result, read_table
from fidgpt.train.summary_text import magnitude

FAILED = ("failed", "diverged")
TO_COME = ("waiting", "running", "stopped")
_FLOPS = ["", "k", "M", "G", "T", "P", "E", "Z"]
_MARKS = {"failed": "red", "diverged": "red", "finished": "green", "running": "bold"}


def points_table(plan: Plan, *, flops_per_second: float) -> Table:
    """The points of a sweep: name, fingerprint, size, operations, and how long each may take."""
    table = _table("point", "fingerprint")
    for column in ("parameters", "FLOPs", "about"):
        table.add_column(column, justify="right")
    for point in plan.points:
        table.add_row(
            Text(point.name),
            point.short,
            f"{point.cost.parameters:,}",
            magnitude(point.cost.flops, _FLOPS),
            duration(point.cost.flops / flops_per_second),
        )
    return table


def summary_lines(
    plan: Plan, *, flops_per_second: float, basis: str, done: Collection[str] = ()
) -> list[str]:
    """What stands below the points: how many there are, their time, and what each axis moves.

    Args:
      plan: the points.
      flops_per_second: how fast the machine is.
      basis: how that is known.
      done: fingerprints of points that were trained.
    """
    left = [point for point in plan.points if point.fingerprint not in done]
    count, num_done = len(plan.points), len(plan.points) - len(left)
    told = f"{count} point{'' if count == 1 else 's'}"
    told += f", {num_done} of them done" if num_done else ""
    if left:
        seconds = sum(point.cost.flops for point in left) / flops_per_second
        told += f", about {duration(seconds)} {'for the rest, ' if num_done else ''}"
        told += f"one after the other, {basis}"
    lines = [told]
    if plan.num_folded:
        lines.append(f"{plan.num_folded} more are the same runs as some of these")
    return lines + plan.moves


def results_table(rows: Iterable[dict[str, Any]], objective: Objective | None = None) -> Table:
    """What came of each point; where some failed, with their last words.

    Args:
      rows: the points.
      objective: what they are compared by, where it was said.
    """
    rows = list(rows)
    table = _table("point", "fingerprint", "status")
    shown = [one for one in _metrics(objective) if any(one in row["metrics"] for row in rows)]
    for column in ("step", *shown):
        table.add_column(column, justify="right")
    words = any(row["last_words"] for row in rows)
    if words:
        table.add_column("last words", overflow="fold")
    for row in rows:
        numbers = [_number(row["metrics"].get(name)) for name in shown]
        step = f"{row['step']:,}/{row['num_steps']:,}"
        cells = [Text(row["name"]), row["fingerprint"][:12], status(row), step, *numbers]
        table.add_row(*cells, *([Text(row["last_words"])] if words else []))
    return table


def running_table(
    rows: Iterable[tuple[dict[str, Any], float | None]], objective: Objective | None = None
) -> Table:
    """What runs now: each row with the seconds that are left of it."""
    table, shown = _table("point"), _metrics(objective)
    for column in ("step", *shown, "left"):
        table.add_column(column, justify="right")
    for row, left in rows:
        numbers = [_number(row["metrics"].get(name)) for name in shown]
        step = f"{row['step']:,}/{row['num_steps']:,}"
        table.add_row(Text(row["name"]), step, *numbers, "-" if left is None else duration(left))
    return table


def status(row: dict[str, Any]) -> Text:
    """How a point is doing; of one that needed several attempts, how many."""
    count = f" ({row['attempts']} attempts)" if row["attempts"] > 1 else ""
    return Text(row["status"] + count, style=_MARKS.get(row["status"], ""))


def best(
    rows: Iterable[dict[str, Any]], objective: Objective | None = None
) -> dict[str, Any] | None:
    """The row that is best by the objective among those that are done; None without any.

    While none is, among those that go on: where they are now, they can hardly be compared.
    """
    rows = [row for row in rows if row["status"] not in FAILED]
    by = objective or usual(rows)
    rows = [row for row in rows if by.name in row["metrics"]]
    rows = [row for row in rows if row["status"] == "finished"] or rows
    return min(rows, key=lambda row: by.sorted_by(row["metrics"][by.name]), default=None)


def tally(rows: Iterable[dict[str, Any]], count: int) -> str:
    """How many of so many points are done, and how many failed."""
    statuses = [row["status"] for row in rows]
    num_failed = sum(one in FAILED for one in statuses)
    told = f"{statuses.count('finished')} of {count} done"
    return told + (f", {num_failed} failed" if num_failed else "")


def duration(seconds: float) -> str:
    """A time with two units at most: `45 s`, `3 min 20 s`, `2 h 5 min`."""
    units: Sequence[tuple[str, int]] = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = round(seconds)
    if left < 1:
        return f"{seconds:.1g} s"
    first = next(i for i, (_, size) in enumerate(units) if left >= size)
    texts = []
    for unit, size in units[first : first + 2]:
        count, left = divmod(left, size)
        texts += [f"{count:,} {unit}"] if count else []
    return " ".join(texts)


def _metrics(objective: Objective | None) -> list[str]:
    """What tables show of points: the losses, and what is compared."""
    return list(dict.fromkeys((*reversed(USUAL), *([objective.name] if objective else []))))


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "-"


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


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
