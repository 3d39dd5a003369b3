"""A figure as a file: a picture, or a page that needs nothing else."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from fidgpt.curves.drawing import short_number
from fidgpt.curves.series import Curve
from fidgpt.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("html", "pdf", "png", "svg")
_STYLE = (
    "body{font:15px system-ui,sans-serif;margin:2rem auto;max-width:80rem;color:#222}"
    "svg{width:100%;height:auto}table{border-collapse:collapse}"
    "th,td{padding:.3rem 1rem .3rem 0;text-align:right;border-bottom:1px solid #ddd}"
    "th:first-child,td:first-child{text-align:left}"
)


def save(
    figure: "Figure", panels: Mapping[str, Sequence[Curve]], path: Path, *, title: str
) -> None:
    """Writes the kind of file that the name ends in, whole or not at all.

    Raises:
      OSError: it cannot be written; what was there before still is.
    """
    with atomic_path(path) as draft:
        if path.suffix == ".html":
            draft.write_text(_page(figure, panels, title or "Curves"), encoding="utf-8")
        else:
            _write(figure, draft, path.suffix)


def _write(figure: "Figure", to: "Path | IO[str]", suffix: str) -> None:
    """The same curves make the same bytes."""
    from matplotlib import rc_context

    undated = {".pdf": {"CreationDate": None}, ".png": {}, ".svg": {"Date": None}}[suffix]
    with rc_context({"svg.hashsalt": "fidgpt"}):
        figure.savefig(to, format=suffix[1:], dpi=150, metadata=undated)


def _page(figure: "Figure", panels: Mapping[str, Sequence[Curve]], title: str) -> str:
    svg = io.StringIO()
    _write(figure, svg, ".svg")
    drawn = svg.getvalue()
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>{drawn[drawn.index('<svg') :]}{_table(panels)}</html>\n"
    )


def _table(panels: Mapping[str, Sequence[Curve]]) -> str:
    """The last value of every metric, a row for each run."""
    runs = dict.fromkeys(curve.run for curves in panels.values() for curve in curves)
    head = "".join(f"<th>{html.escape(metric)}</th>" for metric in panels)
    body = ""
    for run in runs:
        last = [{curve.run: curve.y[-1] for curve in curves}.get(run) for curves in panels.values()]
        cells = "".join(f"<td>{'' if one is None else short_number(one)}</td>" for one in last)
        body += f"<tr><td>{html.escape(run)}</td>{cells}</tr>"
    return f"<table><tr><th>last value</th>{head}</tr>{body}</table>"
