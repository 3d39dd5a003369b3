"""All that the page knows of a report, as plain data."""

import math
from collections.abc import Sequence
from typing import Any

from fidgpt.sweep.report.configs import Said, differing
from fidgpt.sweep.report.importance import METHOD
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.report.report import Report
from fidgpt.sweep.report.tables import by_rank, deviation, leaders_table, percent

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
