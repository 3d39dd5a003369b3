"""The report."""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fidgpt.sweep.objective import Objective
from fidgpt.sweep.report.analysis import (
    METHOD,
    Effect,
    Group,
    Leader,
    choose_objective,
    effects_of,
    group_name,
    groups_of,
    importance,
    is_beyond_noise,
    leaders_of,
    ranked,
)
from fidgpt.sweep.report.records import Column, Record, columns_of, read_records

_LINEAGE, _MEMBER = "lineage.jsonl", "member"  # of a population
_ONCE = (
    "Each of them ran once, so nobody knows whether that is noise: run them with other seeds, by "
    "--repeat=seed:3."
)
_POPULATION = (
    "Each of them ran once, so nobody knows whether that is noise: run the commands of the best "
    "with another seed."
)
_BEYOND = "That is more than repeated runs explain (t-test of the two, 95 %)."
_WITHIN = "Repeated runs differ as much (t-test of the two, 95 %): take them for equal."


@dataclass(frozen=True)
class Report:
    """What a sweep came to.

    Attributes:
      directory: of the sweep.
      records: its points, in the order of its table.
      columns: its axes on which points differ.
      objective: what points are compared by.
      is_population: whether runs were cloned from one another, with other values from there on.
    """

    directory: Path
    records: Sequence[Record]
    columns: Sequence[Column]
    objective: Objective
    is_population: bool = False

    @cached_property
    def groups(self) -> list[Group]:
        """The points by what they have in common, where some only repeat others."""
        return groups_of(self.records, self.columns, self.objective)

    @cached_property
    def ranking(self) -> list[Group]:
        """The groups of which a point is finished, the best mean first."""
        return ranked(self.groups, self.objective)

    @property
    def best(self) -> Record:
        """The first finished point of the best group: not that with the luckiest seed."""
        members = [self.records[at] for at in self.ranking[0].members]
        return next(one for one in members if one.final(self.objective.name) is not None)

    @cached_property
    def leaders(self) -> dict[str, list[Leader]]:
        """What won at each value of an axis, by the axis, where there are several axes."""
        return leaders_of(self.ranking, self.columns)

    @cached_property
    def effects(self) -> list[Effect]:
        """What each thing did that an ablation left out."""
        return effects_of(self.records, self.columns, self.objective)

    @cached_property
    def importances(self) -> list[tuple[Column, float | None]]:
        """The axes with the share of the variance that they explain, the largest first."""
        shares = [(one, importance(one, self.records, self.objective)) for one in self.columns]
        return sorted(shares, key=lambda one: -1.0 if one[1] is None else one[1], reverse=True)

    @property
    def has_repeats(self) -> bool:
        """Whether some points only repeat others."""
        return any(column.is_repeat for column in self.columns)

    def name_of(self, group: Group) -> str:
        """What the points of a group have in common, in short."""
        return group_name(group, self.records, self.columns)

    @property
    def verdict(self) -> list[str]:
        """Sentences: which one won, by how much, and whether that may be noise."""
        first, *others = self.ranking
        count = f", the mean of {len(first.finals)} runs" if len(first.finals) > 1 else ""
        name, value = self.objective.name, first.mean
        won = f"{self.name_of(first)} won, with {name} {number(value)}{count}."
        if not others:
            return [won, "No other point is finished, so there is nothing to compare it with."]
        second = others[0]
        gap = abs((second.mean or 0.0) - (value or 0.0))
        ahead = f"It is {gap:.3g} ahead of {self.name_of(second)} ({number(second.mean)})."
        return [won, ahead, self._noise(first, second)]

    def _noise(self, first: Group, second: Group) -> str:
        is_beyond = is_beyond_noise(first, second)
        if is_beyond is None:
            return _POPULATION if self.is_population else _ONCE
        told = _BEYOND if is_beyond else _WITHIN
        once = next((one for one in (first, second) if len(one.finals) == 1), None)
        return told if once is None else f"{told} But {self.name_of(once)} ran once only."


def number(value: float | None) -> str:
    """A number with five digits; a dash for none."""
    return "-" if value is None else f"{value:#.5g}".rstrip(".")


def read_report(
    directory: str | Path,
    *,
    objective: str | None = None,
    repeats: Sequence[str] = (),
) -> Report:
    """What a sweep came to so far, from its directory alone.

    Args:
      directory: of the sweep.
      objective: the metric to compare by, `max:NAME` where more of it is better; unless said, that
        of the sweep, or else the held-out loss.
      repeats: the axes that only repeat a run; those named `seed` unless said.

    Raises:
      ConfigError: there is no sweep, no point of it is finished, or none measured the objective.
    """
    path = Path(directory)
    records = read_records(path)
    chosen = choose_objective(records, path, said=objective)
    columns = columns_of(records, repeats=repeats)
    is_population = (path / _LINEAGE).exists()
    if is_population:  # which member a run is of says nothing about it
        columns = [column for column in columns if column.label != _MEMBER]
    return Report(path, records, columns, chosen, is_population)


Cells = Sequence[Any]
_REPEATED = ("best at step", "mean over repeats", "spread over repeats", "repeats")
_OF_THE_RUN = ("step", "num_steps", "parameters", "seconds", "attempts", "last_words")


def csv_text(report: Report) -> str:
    """A row for each point, in the order of the sweep; what is not known is empty."""
    name, labels = report.objective.name, [column.label for column in report.columns]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["rank", "name", "status", "fingerprint", *labels, f"final {name}", f"best {name}"]
    writer.writerow([*head, *_REPEATED, *_OF_THE_RUN, "directives"])
    for at, record in enumerate(report.records):
        row, group, best = record.row, _group(report, at), record.best(report.objective)
        cells = [_rank(report, group), row["name"], row["status"], row["fingerprint"]]
        cells += [record.values.get(label) for label in labels]
        cells += [record.final(report.objective.name), best and best.value, best and best.step]
        cells += [group.mean, group.spread, len(group.finals)]
        cells += [row[key] for key in _OF_THE_RUN]
        writer.writerow(_plain([*cells, " ".join(row["directives"])]))
    return text.getvalue()


def markdown_text(report: Report, command: str, repeat: str | None = None) -> str:
    """What won and how to run it again, the points from the best on, effects and importances.

    Args:
      report: what is told.
      command: the best point's.
      repeat: what runs the two best with other seeds.
    """
    pieces = [
        f"# {report.directory.resolve().name}",
        "\n".join(report.verdict),
        f"To run the best point again:\n\n```\n{command.strip()}\n```",
    ]
    if repeat is not None:
        pieces.append(f"To run the two best with other seeds:\n\n```\n{repeat}\n```")
    for label in report.leaders:
        pieces.append(f"## Best at each {label}\n\n{_table(*leaders_table(report, label))}")
    pieces.append(f"## Points\n\n{_points(report)}")
    if report.effects:
        pieces.append(f"## What was left out\n\n{_effects(report)}")
    if len(report.columns) > 1:
        shares = [(column.label, percent(share)) for column, share in report.importances]
        pieces.append(f"## Importance\n\n{METHOD}\n\n{_table(['axis', 'share'], shares)}")
    return "\n\n".join(pieces) + "\n"


def leaders_table(report: Report, label: str) -> tuple[list[str], list[list[str]]]:
    """What won at each value of an axis, by how much, and whether that may be noise."""
    head = [label, "best", report.objective.name, "ahead of the next by"]
    head += ["more than noise"] if report.has_repeats else []
    rows = []
    for leader in report.leaders[label]:
        cells = [leader.text, leader.others(report.columns, label)]
        cells += [_mean(leader.group) if report.has_repeats else number(leader.group.mean)]
        cells += ["-" if leader.ahead is None else f"{leader.ahead:.3g}"]
        rows.append(cells + ([_told(leader)] if report.has_repeats else []))
    return head, rows


def _told(leader: Leader) -> str:
    return {True: "yes", False: "no", None: "not known"}[leader.is_beyond_noise]


def percent(share: float | None) -> str:
    """A share in percent; of one that is not known, why."""
    return "too few points" if share is None else f"{share:.0%}"


def deviation(effect: Effect) -> str:
    """The difference that something made, with its sign, its spread and the number of pairs."""
    count = len(effect.differences)
    spread = f" ± {effect.spread:.2g} over {count} pairs" if effect.spread is not None else ""
    return f"{effect.difference:+.4g}{spread}"


def _points(report: Report) -> str:
    head = ["", "point", "fingerprint", "status", f"final {report.objective.name}", "best"]
    head += ["mean ± spread over repeats"] if report.has_repeats else []
    has_words = any(record.row["last_words"] for record in report.records)
    head += ["last words"] if has_words else []
    order = {at: place for place, at in enumerate(by_rank(report))}
    rows = []
    for at in sorted(order, key=order.__getitem__):
        record, group = report.records[at], _group(report, at)
        best = record.best(report.objective)
        cells = [_rank(report, group), record.name, f"`{record.row['fingerprint'][:12]}`"]
        cells += [_status(record), number(record.final(report.objective.name))]
        cells += ["-" if best is None else f"{number(best.value)} at step {best.step:,}"]
        cells += [_mean(group)] if report.has_repeats else []
        rows.append(cells + ([record.row["last_words"]] if has_words else []))
    return _table(head, rows)


def by_rank(report: Report) -> list[int]:
    """The numbers of the points, the best group first; then what is not finished."""
    ranks = {at: place for place, group in enumerate(report.ranking) for at in group.members}

    def key(at: int) -> tuple[bool, int, int]:
        is_done = report.records[at].final(report.objective.name) is not None
        return (not is_done, ranks.get(at, len(ranks)), at)

    return sorted(range(len(report.records)), key=key)


def _effects(report: Report) -> str:
    name = report.objective.name
    rows = [
        (effect.label, effect.rest, number(effect.mean), deviation(effect))
        for effect in report.effects
    ]
    return _table(["", "where", name, "difference to all"], rows)


def _status(record: Record) -> str:
    step, steps = record.row["step"], record.row["num_steps"]
    return record.status if record.is_finished else f"{record.status} at {step:,}/{steps:,}"


def _mean(group: Group) -> str:
    spread = f" ± {group.spread:.2g}" if group.spread is not None else ""
    return f"{number(group.mean)}{spread} ({len(group.finals)})"


def _group(report: Report, at: int) -> Group:
    return next(group for group in report.groups if at in group.members)


def _rank(report: Report, group: Group) -> int | None:
    return report.ranking.index(group) + 1 if group in report.ranking else None


def aligned(head: Sequence[str], rows: Sequence[Cells]) -> str:
    """A table for a terminal: columns as wide as what is in them."""
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join(line.rstrip() for line in padded)


def _table(head: Sequence[str], rows: Iterable[Cells]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(one) for one in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return " ".join(("" if value is None else str(value)).replace("|", "\\|").split())


def _plain(cells: Iterable[Any]) -> list[Any]:
    return ["" if cell is None else cell for cell in cells]
