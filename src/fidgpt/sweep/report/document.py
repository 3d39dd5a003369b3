"""The report as text and as a page."""

import base64
import hashlib
import html
import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fidgpt.files import write_whole
from fidgpt.graph import ConfigError
from fidgpt.sweep.report.analysis import METHOD
from fidgpt.sweep.report.commands import best_commands, repeat_command
from fidgpt.sweep.report.records import Record, Said, differing
from fidgpt.sweep.report.report import (
    Report,
    by_rank,
    csv_text,
    deviation,
    leaders_table,
    markdown_text,
    percent,
)

_CURVES = ("loss", "learning_rate", "grad_norm", "tokens_per_second")
_NUMBERS = 40_000  # in all curves of a metric together, which a browser draws at once
_FEWEST, _MOST = 60, 600  # in one of them
_DIGITS = 5


def document(
    report: Report, command: str, *, repeat: str | None = None, allowed: Sequence[str] = ()
) -> dict[str, Any]:
    """A report as plain data.

    Args:
      report: what is told.
      command: the best point's.
      repeat: what runs the two best with other seeds.
      allowed: packages of the user's own that configs may name.
    """
    said = differing(report.records, allowed=allowed)
    return {
        "title": report.directory.resolve().name,
        "objective": report.objective.name,
        "larger": report.objective.is_larger_better,
        "verdict": report.verdict,
        "command": command.strip(),
        "repeat": repeat,
        "leaders": {label: leaders_table(report, label) for label in report.leaders},
        "method": METHOD,
        "best": report.records.index(report.best),
        "points": [_point(report, at, config) for at, config in enumerate(said)],
        "order": by_rank(report),
        "axes": _axes(report),
        "groups": _groups(report),
        "effects": _effects(report),
        "curves": _curves(report),
    }


def _point(report: Report, at: int, config: Said | None) -> dict[str, Any]:
    record = report.records[at]
    row, best, last = record.row, record.best(report.objective), record.last(report.objective.name)
    return {
        "name": record.name,
        "short": row["fingerprint"][:12],
        "status": record.status,
        "values": dict(record.values),
        "final": record.final(report.objective.name),
        "last": None if last is None else last.value,
        "best": None if best is None else [best.value, best.step],
        "step": row["step"],
        "steps": row["num_steps"],
        "parameters": row["parameters"],
        "seconds": row["seconds"],
        "words": row["last_words"],
        "directives": row["directives"],
        "config": config,
    }


def _axes(report: Report) -> list[dict[str, Any]]:
    """The axes, the most important first."""
    return [
        {
            "label": column.label,
            "texts": column.texts,
            "numbers": column.numbers,
            "log": column.is_log,
            "repeat": column.is_repeat,
            "share": share,
            "told": percent(share),
        }
        for column, share in report.importances
    ]


def _groups(report: Report) -> list[dict[str, Any]]:
    """The groups, the best first, then those of which no point is finished."""
    rest = [group for group in report.groups if not group.finals]
    return [
        {
            "name": report.name_of(group),
            "members": group.members,
            "count": len(group.finals),
            "mean": group.mean,
            "spread": group.spread,
        }
        for group in [*report.ranking, *rest]
    ]


def _effects(report: Report) -> list[dict[str, Any]]:
    return [
        {
            "label": " ".join(filter(None, (effect.label, effect.rest))),
            "mean": effect.mean,
            "difference": effect.difference,
            "spread": effect.spread,
            "all": effect.differences,
            "told": deviation(effect),
        }
        for effect in report.effects
    ]


def _curves(report: Report) -> dict[str, list[list[list[float]]]]:
    """Steps and numbers of each point, by metric; what nobody measured is left out."""
    metrics = dict.fromkeys((report.objective.name, *_CURVES))
    most = max(_FEWEST, min(_MOST, _NUMBERS // len(report.records)))
    drawn = {
        metric: [_curve(record, metric, most) for record in report.records] for metric in metrics
    }
    return {metric: curves for metric, curves in drawn.items() if any(x for x, _ in curves)}


def _curve(record: Record, metric: str, most: int) -> list[list[float]]:
    """Steps and numbers, no more than `most`: of neighbours that are too many, their mean."""
    measured = record.series(metric)
    width = math.ceil(len(measured) / most) or 1
    buckets = [measured[at : at + width] for at in range(0, len(measured), width)]
    return [
        [bucket[-1].step for bucket in buckets],
        [_rounded(sum(one.value for one in bucket) / len(bucket)) for bucket in buckets],
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


# In the order in which they use each other.
_SCRIPTS = (
    "data",
    "dom",
    "chosen",
    "plots",
    "curves",
    "axes",
    "importance",
    "map",
    "parallel",
    "points",
    "difference",
    "main",
)


def page(document: dict[str, Any]) -> str:
    """A report as an HTML page that needs nothing but itself, to be opened from a file.

    Args:
      document: all that it shows, as `document` makes it.
    """
    from plotly.offline import get_plotlyjs  # late: an extra

    library = get_plotlyjs()
    script = "\n".join(["'use strict';", *(_read(f"{name}.js") for name in _SCRIPTS)])
    data = json.dumps(document, separators=(",", ":"), allow_nan=False)
    parts = {
        "title": html.escape(document["title"]),
        "policy": _policy(library, script),
        "style": _read("style.css"),
        "data": data.replace("<", "\\u003c"),  # no text in a config may end the script
        "library": library,
        "script": script,
    }
    pieces = _read("page.html").split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _policy(*scripts: str) -> str:
    """Nothing from outside, and no script but these: whatever a sweep holds, it cannot run.

    Plotly writes styles of its own, draws pictures, and makes functions for the graphics card.
    """
    sources = " ".join(map(_digest, scripts))
    return (
        "default-src 'none'; form-action 'none'; base-uri 'none'; style-src 'unsafe-inline'; "
        f"img-src data: blob:; script-src 'unsafe-eval' {sources}"
    )


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _read(name: str) -> str:
    return resources.files("fidgpt.sweep.report").joinpath(name).read_text(encoding="utf-8")


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
        texts[".html"] = page(document(report, command, repeat=repeat, allowed=allowed))
    base.parent.mkdir(parents=True, exist_ok=True)
    paths = [base.with_name(base.name + suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_whole(path, text)
    return Written(paths, command, repeat)
