"""Commands and tables of a report."""

import html
import shlex
from collections.abc import Iterable, Mapping, Sequence

from fidgpt.compose.catalogue import own_catalogue
from fidgpt.compose.directives import assignment
from fidgpt.compose.reproduction import command_for
from fidgpt.compose.runs import allow_flags, train_command
from fidgpt.compose.spelling import split_directive
from fidgpt.graph import ConfigError, load
from fidgpt.sweep.objective import Objective, usual
from fidgpt.sweep.points import Point
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.report.report import Report
from fidgpt.sweep.results import Result
from fidgpt.sweep.tables import FAILED, best, tally
from fidgpt.sweep.values import ASSIGNED

_SEEDS = "--repeat=seed:3"


def best_commands(report: Report, *, allowed: Sequence[str] = ()) -> list[str]:
    """What to type so that the best point runs again; of a population, all changes on its way.

    Args:
      report: what came of the sweep.
      allowed: packages of the user's own that its config may name.

    Raises:
      ConfigError: it is a population, and what reads its lineage is not installed.
    """
    if not report.is_population:
        return [shortest_command(report.best, allowed=allowed).strip()]
    try:
        from fidgpt.sweep.tune.member import (
            Lineage,  # late: what it comes with is large
            schedule,  # late: what it comes with is large
        )
    except ImportError as error:
        raise ConfigError(
            "the report of a population needs what it was searched with. Install it with: "
            'pip install "fidgpt[search,ray]"'
        ) from error
    line = Lineage(report.directory).ancestors(report.best.row["fingerprint"])
    return schedule(line, run_dir="runs/best", flags=allow_flags(allowed))


def shortest_command(record: Record, *, allowed: Sequence[str] = ()) -> str:
    """What to type, from the config that the run wrote; as it was said, where that cannot be read.

    Args:
      record: the point.
      allowed: packages of the user's own that its config may name.
    """
    path = record.directory / "config.json"
    said = record.row["directives"]
    try:
        cfg = load(path.read_text(encoding="utf-8"), source=str(path), allowed=tuple(allowed))
        return command_for(cfg, own_catalogue(tuple(allowed)), directives=said, allowed=allowed)
    except (ConfigError, OSError):
        return train_command(said, allowed=allowed)


def repeat_command(report: Report, *, allowed: Sequence[str] = ()) -> str | None:
    """What to type so that the two best points run with other seeds, and their results join those.

    None where both were repeated, or they differ in more than values, or are runs of a population,
    whose values changed on their way.

    Args:
      report: what came of the sweep.
      allowed: packages of the user's own that configs may name.
    """
    two = report.ranking[:2]
    if report.is_population or len(two) < 2 or all(len(group.finals) > 1 for group in two):
        return None
    every = [_without_seeds(record, report) for record in report.records]
    first, second = (every[group.members[0]] for group in two)
    said = _both(first, second, every)
    if said is None:
        return None
    where = f"--run_dir={report.directory}"
    return shlex.join(["python", "sweep.py", *allow_flags(allowed), *said, _SEEDS, where])


def _without_seeds(record: Record, report: Report) -> list[str]:
    """The directives of a point but for those that repeat it."""
    repeats = [column.label for column in report.columns if column.is_repeat]
    said = record.row["directives"]
    return [one for one in said if not any(_apart(one)[0].endswith(f"{it}+=") for it in repeats)]


def _both(
    first: Sequence[str], second: Sequence[str], every: Sequence[Sequence[str]]
) -> list[str] | None:
    """Flags of a sweep over two points; None where points differ in more than values.

    All that varies between any of the points varies here, so that the two keep their names.
    """
    if len({*map(len, every)}) > 1:
        return None
    varying = [i for i, said in enumerate(zip(*every, strict=True)) if len({*said}) > 1]
    begin, end = varying[0], varying[-1] + 1
    pairs = [_axis(first[i], second[i]) for i in varying]
    if end - begin > len(varying) or None in pairs:
        return None
    flag = "--sweep=" if len(pairs) == 1 else "--zip="
    axis = flag + ";".join(filter(None, pairs))
    before, after = ([f"--config={one}" for one in part] for part in (first[:begin], first[end:]))
    return [*before, axis, *after]


def _axis(one: str, other: str) -> str | None:
    """Two directives as an axis of two values; None where they do not say the same thing."""
    prefixes, values = zip(_apart(one), _apart(other), strict=True)
    return f"{prefixes[0]}{','.join(values)}" if prefixes[0] == prefixes[1] else None


def _apart(directive: str) -> tuple[str, str]:
    """A directive up to its value, and the value."""
    kind, rest = split_directive(directive)
    value = assignment(rest, directive)[2] if kind in ASSIGNED else rest
    return directive.removesuffix(value), value


_MOST = 200  # points, of which more are left out
_SIGNS = {
    "finished": "✓",
    "running": "▶",
    "waiting": "…",
    "stopped": "‖",
    "stopped early": "‖",
    "failed": "✕",
    "diverged": "✕",
}
_STYLE = "padding:2px 14px 2px 0;text-align:{}"


def points_html(
    points: Sequence[Point],
    results: Iterable[Result],
    lines: Sequence[str] = (),
    *,
    objective: Objective | None = None,
) -> str:
    """A table: each point with its size, its state, and how far it came.

    Args:
      points: those of the sweep.
      results: the rows of what was run so far.
      lines: what stands below the table.
      objective: what points are compared by; the held-out loss unless said.
    """
    by_print = {row["fingerprint"]: row for row in results}
    mine = [by_print[one.fingerprint] for one in points if one.fingerprint in by_print]
    by = objective or usual(mine)
    measured = by.name
    leader = best([row for row in mine if row["status"] == "finished"], by)
    head = _row("th", ["point", "fingerprint", "parameters", "state", "step", measured])
    body = "".join(
        _row("td", _cells(point, by_print.get(point.fingerprint, {}), leader, measured))
        for point in points[:_MOST]
    )
    below = [tally(mine, len(points))]
    below += [f"{len(points) - _MOST} more points are not shown."] if len(points) > _MOST else []
    told = "".join(f"<div>{html.escape(line)}</div>" for line in (*below, *lines))
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{told}"


def _cells(
    point: Point, row: Mapping[str, object], leader: Result | None, measured: str
) -> list[str]:
    state = str(row.get("status", "waiting"))
    words = f": {row['last_words']}" if state in FAILED else ""
    metrics = row.get("metrics")
    value = metrics.get(measured) if isinstance(metrics, dict) else None
    number = f"{value:.4f}" if isinstance(value, int | float) else "-"
    is_best = leader is not None and leader["fingerprint"] == point.fingerprint
    return [
        point.name,
        point.short,
        f"{point.cost.parameters:,}",
        f"{_SIGNS.get(state, '')} {state}{words}",
        f"{row.get('step', 0):,}/{point.cost.num_steps:,}",
        f"{number}{' ★' if is_best else ''}",
    ]


def _row(kind: str, cells: Sequence[str]) -> str:
    right = (2, 4, 5)  # numbers
    return "".join(
        [
            "<tr>",
            *(
                f"<{kind} style='{_STYLE.format('right' if at in right else 'left')}'>"
                f"{html.escape(cell)}</{kind}>"
                for at, cell in enumerate(cells)
            ),
            "</tr>",
        ]
    )
