"""The report of a sweep as an HTML page, with the commands that it suggests."""

import html
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fidgpt.compose.reproduction import allow_flags, program, train_command
from fidgpt.data.errors import import_extra
from fidgpt.files import write_whole
from fidgpt.graph import ConfigError, outlines
from fidgpt.graph.page.rendering import assembled
from fidgpt.runs.directories import load_run
from fidgpt.sweep.axes import split_value, written
from fidgpt.sweep.report import statistics as stats
from fidgpt.sweep.results import SEARCH
from fidgpt.train import RunError

_CURVES = ("loss", "learning_rate", "grad_norm", "tokens_per_second")
_NUMBERS = 40_000  # in all curves of a metric together, which a browser draws at once
_FEWEST, _MOST = 60, 600  # in one of them
_MOST_LEADERS = 12  # an axis with more values is a search
_FEWEST_ENDS = 3  # values of an axis that is worth extending
_SCRIPTS = (  # each uses those before it
    *("data", "dom", "chosen", "plots", "curves", "history", "axes", "importance", "map"),
    *("parallel", "points", "difference", "main"),
)


def effects_table(report: stats.Report) -> tuple[list[str], list[list[str]]]:
    """Return what each thing changed that an ablation left out."""
    head = ["", "where", report.objective.name, "difference to all"]
    rows = [[row.label, row.rest, stats.number(row.mean), _change(row)] for row in report.effects]
    if any(effect.rest for effect in report.effects):
        return head, rows
    return [head[0], *head[2:]], [[row[0], *row[2:]] for row in rows]


def importance_table(report: stats.Report) -> tuple[list[str], list[list[str]]]:
    """Return how much each axis matters, and pairs of them."""
    rows = [
        [f"{importance.label}{' (repeats)' * importance.is_repeat}", _percent(importance.share)]
        for importance in report.importances
    ]
    return ["axis", "share of the variance"], rows


def leader_tables(report: stats.Report) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Return what won at each value of an axis, by how much, and whether that may be noise.

    By axis, if there are several with few values, most of which have groups to compare.
    """
    tables = {}
    choices = [column for column in report.columns if not column.is_repeat]
    noise = ["more than noise"] if report.repeats else []
    for column in choices if len(choices) > 1 else ():
        rows, num_compared = [], 0
        for text in column.texts:
            groups = [group for group in report.ranking if group.values.get(column.label) == text]
            if not groups:
                continue
            group, second = groups[0], groups[1] if groups[1:] else None
            num_compared += second is not None
            others = " ".join(
                choice.named(group.values[choice.label])
                for choice in choices
                if choice is not column and choice.label in group.values
            )
            mean = _mean(group) if report.repeats else stats.number(group.mean)
            rows.append([text, others, mean, stats.lead(group, second) if second else "-"])
            is_beyond = stats.is_beyond_noise(group, second) if second else None
            rows[-1] += [{True: "yes", False: "no", None: "unknown"}[is_beyond]] * len(noise)
        if 1 < len(rows) <= _MOST_LEADERS and 2 * num_compared > len(rows):
            head = [column.title, "best", report.objective.name, "ahead of the next by", *noise]
            tables[column.label] = head, rows
    return tables


_MEASURED_BY_THE_RUN = "seconds/", "goodput/", "moe/"  # and not by an evaluator


def scores_table(report: stats.Report) -> tuple[list[str], list[list[str]]]:
    """Return mean and deviation of every score of repeated runs; no row if none was repeated.

    A score is what an evaluator measured at the end of a finished run.
    """
    repeated = [group for group in report.ranking if len(group.finals) > 1]
    rows = []
    for group in repeated:
        done = [record for record in group.records if record.final is not None]
        names = [key for key in done[0].row["metrics"] if "/" in key]
        for name in [key for key in names if not key.startswith(_MEASURED_BY_THE_RUN)]:
            finals = [series[-1][0] for record in done if (series := record.series(name))]
            if len(finals) > 1:
                mean, sigma = statistics.fmean(finals), statistics.stdev(finals)
                rows.append(
                    [group.name, name, stats.number(mean), f"{sigma:.2g}", str(len(finals))]
                )
    head = ["point", "score", "mean", "sigma", "runs"]
    if len(repeated) > 1:
        return head, rows
    return head[1:], [row[1:] for row in rows]


def _mean(group: stats.Group) -> str:
    spread = f" ± {group.spread:.2g}" if group.spread is not None else ""
    return f"{stats.number(group.mean)}{spread} ({len(group.finals)})"


def _percent(share: float | None) -> str:
    if share is None:
        return "too few points"
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _change(effect: stats.Effect) -> str:
    pairs = f"over {len(effect.differences)} pairs"
    spread = f" ± {effect.spread:.2g} {pairs}" if effect.spread is not None else ""
    return f"{effect.difference:+.4g}{spread}"


def commands(report: stats.Report, *, allowed: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return what to run next, each a sentence and a command."""
    lines = [
        ("Rerun the best point:", train_command(report.best.row["directives"], allowed=allowed))
    ]
    lines += extensions(report, allowed=allowed)
    if (repeat := repeat_command(report, allowed=allowed)) is not None:
        lines.append(("Repeat the two best with other seeds:", repeat))
    return lines


def repeat_command(report: stats.Report, *, allowed: Sequence[str] = ()) -> str | None:
    """Return a command that runs the two best points with other seeds, into the same directory.

    None if both were repeated, or if points differ in more than the values of directives.
    """
    two = report.ranking[:2]
    if len(two) < 2 or all(len(group.finals) > 1 for group in two):
        return None
    every = _directives(report)
    points = [every[report.records.index(group.records[0])] for group in two]
    return _command(report, every, points, "--repeat=seed:3", allowed=allowed)


def extensions(report: stats.Report, *, allowed: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Return each axis of numbers at whose end the best point is, with a command that goes on.

    It runs the best point with two further values, in steps as those before. A value at the end of
    one or two says nothing, and none follows where a number would leave its sign or become a
    fraction. Nor is a search extended, whose values are no axis.
    """
    longer, every, group = [], _directives(report), report.ranking[0]
    best = every[report.records.index(group.records[0])]
    repeat = [f"--repeat=seed:{len(group.records)}"] * (len(group.records) > 1)
    columns = [] if (report.directory / SEARCH).exists() else report.columns
    for column in columns:
        label, numbers = column.label, column.numbers or ()
        if column.is_repeat or len(numbers) < _FEWEST_ENDS or label not in group.values:
            continue
        text = group.values[label]
        place = column.texts.index(text)
        values = [record.values.get(label) for record in report.records]
        chosen = [
            i
            for i, (prefix, _) in enumerate(best)
            if all((prefix, value) in given for value, given in zip(values, every, strict=True))
        ]
        end = {0: "first", len(numbers) - 1: "last"}.get(place)
        if not end or not chosen:
            continue
        at = chosen[0]
        further = _further(numbers if place else numbers[::-1], is_log=column.is_log)
        points = [[*best[:at], (best[at][0], value), *best[at + 1 :]] for value in further]
        command = points and _command(report, every, points, *repeat, allowed=allowed)
        if command:
            longer.append(
                (f"The best {label}, {text}, is the {end} of its axis: extend it:", command)
            )
    return longer


def _further(numbers: Sequence[float], *, is_log: bool) -> list[str]:
    """Return two values that follow numbers as these follow each other."""
    first, last, steps = numbers[0], numbers[-1], len(numbers) - 1
    is_whole = all(float(number).is_integer() for number in numbers)
    further = []
    for count in (1, 2):
        share = count / steps
        value = last * (last / first) ** share if is_log else last + share * (last - first)
        if value * last > 0 and (not is_whole or abs(value - round(value)) < 1e-9 * abs(value)):
            further.append(written(value, 4))
    return further


def _directives(report: stats.Report) -> list[list[tuple[str, str]]]:
    """Return the directives of each point but those that repeat it, split before their values."""
    seeds = tuple(f"{label}{sign}" for label in report.repeats for sign in ("=", "+="))
    every = [[split_value(d) for d in record.row["directives"]] for record in report.records]
    return [[pair for pair in given if not (seeds and pair[0].endswith(seeds))] for given in every]


def _command(
    report: stats.Report,
    every: Sequence[Sequence[tuple[str, str]]],
    points: Sequence[Sequence[tuple[str, str]]],
    *flags: str,
    allowed: Sequence[str],
) -> str | None:
    """Return a command that adds points to a sweep; None if they do not differ in values alone."""
    best = every[report.records.index(report.ranking[0].records[0])]
    # All that varies between any of the points varies here, so that these keep their names; where
    # they differ in more than values, what the new ones change of the best point.
    for rows in (every, [best, *points]):
        if len({*map(len, rows)}) > 1:
            continue
        varying = [i for i, column in enumerate(zip(*rows, strict=True)) if len({*column}) > 1]
        begin, end = varying[0], varying[-1] + 1
        prefixes = [{point[i][0] for point in points} for i in varying]
        if end - begin == len(varying) and max(map(len, prefixes)) == 1:
            axes = [points[0][i][0] + ",".join(point[i][1] for point in points) for i in varying]
            axis = f"--{'zip' if axes[1:] else 'sweep'}={';'.join(axes)}"
            given = [f"--config={prefix}{value}" for prefix, value in points[0]]
            words = [*allow_flags(allowed), *given[:begin], axis, *given[end:], *flags]
            return shlex.join([*program("sweep"), *words, f"--run_dir={report.directory}"])
    return None


def differing(
    records: Sequence[stats.Record], *, allowed: Sequence[str] = ()
) -> list[dict[str, str] | None]:
    """Return the values of each config, by path, in which not all configs agree.

    Inherited values are left out, as they follow from others.

    Args:
      records: the points; None stands for one without a readable config.
      allowed: packages of the user's own that configs may name.
    """
    configs = [_values(record, tuple(allowed)) for record in records]
    known = [config for config in configs if config is not None]
    counts = Counter(item for config in known for item in config.items())
    common = {item for item, count in counts.items() if count == len(known)}
    return [cfg and dict(item for item in cfg.items() if item not in common) for cfg in configs]


def _values(record: stats.Record, allowed: tuple[str, ...]) -> dict[str, str] | None:
    try:
        lines = list(outlines.rows(load_run(record.directory, allowed=allowed), defaults=True))
    except (ConfigError, RunError):
        return None
    own = [line for line in lines if line.path and line.text and line.kind != "inherited"]
    return {line.path: line.text for line in own}


def document(report: stats.Report, *, allowed: Sequence[str] = ()) -> dict[str, Any]:
    """Return all that the page shows as plain data.

    Args:
      report: the report.
      allowed: packages of the user's own that configs may name.
    """
    configs = differing(report.records, allowed=allowed)
    numbers = {record: i for i, record in enumerate(report.records)}
    unfinished = [group for group in report.groups if not group.finals]
    return {
        "title": report.directory.resolve().name,
        "objective": report.objective.name,
        "larger": report.objective.is_larger_better,
        "verdict": report.verdict,
        "commands": commands(report, allowed=allowed),
        "is_search": (report.directory / SEARCH).exists(),
        "leaders": leader_tables(report),
        "method": stats.METHOD,
        "best": numbers[report.best],
        "points": [
            {key: value for key, value in record.row.items() if key != "metrics"}
            | {"final": record.final, "last": record.last, "best": record.best, "config": config}
            for record, config in zip(report.records, configs, strict=True)
        ],
        "order": [numbers[record] for record in report.order],
        "axes": [
            asdict(importance.columns[0]) | {"title": importance.columns[0].title}
            for importance in report.importances
            if len(importance.columns) == 1
        ],
        "importances": [
            {"label": label, "share": row.share, "text": text, "is_repeat": row.is_repeat}
            for row, (label, text) in zip(
                report.importances, importance_table(report)[1], strict=True
            )
        ],
        "groups": [
            {"name": group.name, "members": [numbers[record] for record in group.records]}
            | {"count": len(group.finals), "mean": group.mean, "spread": group.spread}
            for group in [*report.ranking, *unfinished]
        ],
        "effects": [
            {"label": f"{effect.label} {effect.rest}".strip(), "text": _change(effect)}
            | {"difference": effect.difference, "spread": effect.spread, "all": effect.differences}
            for effect in report.effects
        ],
        "curves": _curves(report),
    }


def _curves(report: stats.Report) -> dict[str, Any]:
    """Return the steps and numbers of each point by metric, averaged where they are too many."""
    most = max(_FEWEST, min(_MOST, _NUMBERS // len(report.records)))
    panels: dict[str, list[Any]] = {}
    for metric in dict.fromkeys((report.objective.name, *_CURVES)):
        panels[metric] = []
        for record in report.records:
            series = record.series(metric)
            width = math.ceil(len(series) / most) or 1
            parts = [series[at : at + width] for at in range(0, len(series), width)]
            means = [statistics.fmean(value for value, _ in part) for part in parts]
            steps = [part[-1][1] for part in parts]
            panels[metric].append([steps, [float(f"{mean:.5g}") for mean in means]])
    return {metric: curves for metric, curves in panels.items() if any(x for x, _ in curves)}


def page(document: dict[str, Any]) -> str:
    """Return a report, as `document` makes it, as an HTML page that needs no other file.

    Raises:
      DataError: Plotly is missing.
    """
    import_extra("plotly", extra="report", purpose="a page, which --nopage leaves out,")
    from plotly.offline import get_plotlyjs  # late: an extra

    return assembled(
        resources.files("fidgpt.sweep.report"),
        _SCRIPTS,
        title=document["title"],
        data=document,
        library=get_plotlyjs(),
        # Plotly writes styles of its own, draws pictures, and makes functions for the graphics
        # card.
        policy="form-action 'none'; base-uri 'none'; style-src 'unsafe-inline'; img-src data: "
        "blob:; script-src 'unsafe-eval' {scripts}",
    )


@dataclass(frozen=True)
class InlinePage:
    """The page of a report, which a notebook shows in a frame.

    Attributes:
      report: the report.
      allowed: packages of the user's own that configs may name.
    """

    report: stats.Report
    allowed: Sequence[str] = ()

    def _repr_html_(self) -> str:
        text = html.escape(page(document(self.report, allowed=self.allowed)))
        return f'<iframe srcdoc="{text}" style="width: 100%; height: 900px; border: 0"></iframe>'


def write_page(
    report: stats.Report, out: str | Path | None = None, *, allowed: Sequence[str] = ()
) -> Path:
    """Write a report as an HTML page; return the path of the page.

    Args:
      report: the report.
      out: the file; defaults to `report.html` in the directory of the sweep.
      allowed: packages of the user's own that configs may name.

    Raises:
      DataError: Plotly is missing.
      OSError: the file cannot be written.
    """
    path = report.directory / "report.html" if out is None else Path(out)
    text = page(document(report, allowed=allowed))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path
