"""A sweep in a notebook: a table of its points, with how each is doing."""

import html
from collections.abc import Iterable, Mapping, Sequence

from fidgpt.sweep.points.point import Point
from fidgpt.sweep.results.files import Result
from fidgpt.sweep.results.objective import Objective, usual
from fidgpt.sweep.showing.tables import FAILED, best, tally

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
