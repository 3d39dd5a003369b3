"""Commands that a report hands out: the best point again, and the two best with other seeds."""

import shlex
from collections.abc import Sequence

from fidgpt.cli.catalogue.catalogue import own_catalogue
from fidgpt.cli.directives.changes import assignment
from fidgpt.cli.directives.spelling import split_directive
from fidgpt.cli.running.again import command_for
from fidgpt.cli.running.saying import allow_flags, train_command
from fidgpt.graph import ConfigError, load
from fidgpt.sweep.points.axes import ASSIGNED
from fidgpt.sweep.report.records import Record
from fidgpt.sweep.report.report import Report

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
        from fidgpt.sweep.tune.lineage import Lineage, schedule  # late: what it comes with is large
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
