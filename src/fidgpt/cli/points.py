"""The points of a sweep: what its axes multiply to, composed and built before any of them runs."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from fidgpt.cli.catalogue import own_catalogue
from fidgpt.cli.changes import assignment
from fidgpt.cli.directives import compose, split_directive
from fidgpt.cli.runs import build_trainer
from fidgpt.graph import ConfigError, fingerprint
from fidgpt.graph.calls import split_at_commas
from fidgpt.graph.errors import raise_all


@dataclass(frozen=True)
class Point:
    """One config of a sweep.

    Attributes:
      directives: all that makes the config, in order.
      varied: those that the axes chose.
      fingerprint: its identity; two points with one fingerprint are the same run.
    """

    directives: tuple[str, ...]
    varied: tuple[str, ...]
    fingerprint: str


def points_of(
    directives: list[str], axes: list[str], *, allowed: tuple[str, ...] = ()
) -> list[Point]:
    """The points of a sweep, composed and built, each fingerprint once.

    Raises:
      ConfigErrors: some points are wrong; all of them are named, and none may start; or
        the values of an axis all make the same runs.
    """
    points: dict[str, Point] = {}
    identities: dict[tuple[str, ...], str] = {}
    mistakes: list[str] = []
    catalogue = own_catalogue(allowed)
    for varied in itertools.product(*(axis_values(axis) for axis in axes)):
        directives_of_point = (*directives, *varied)
        try:
            cfg = compose(directives_of_point, catalogue)
        except ConfigError as error:
            mistakes.append(str(error))
            continue
        try:
            build_trainer(cfg)
            identity = fingerprint(cfg)
        except ConfigError as error:
            mistakes.append(f"{' '.join(varied)}:\n  {error}")
            continue
        identities[varied] = identity
        points.setdefault(identity, Point(directives_of_point, varied, identity))
    raise_all(list(dict.fromkeys(mistakes)) or list(_vain(axes, identities)))
    return list(points.values())


def axis_values(axis: str) -> list[str]:
    """The directives that an axis stands for: one for each of its values.

    Raises:
      ConfigError: the axis has no values.
    """
    kind, rest = split_directive(axis)
    no_values = f"--sweep={axis} has no values: write KIND:NAME=VALUE,VALUE."
    is_assignment = kind in ("set", "tag", "use", "tie")
    try:
        right = assignment(rest, axis)[2] if is_assignment else rest
    except ConfigError:
        raise ConfigError(no_values) from None
    values = split_at_commas(right)
    if not kind or not values:
        raise ConfigError(no_values)
    prefix = f"{kind}:{rest.removesuffix(right)}"
    return [prefix + value.strip() for value in values]


def _vain(axes: list[str], identities: dict[tuple[str, ...], str]) -> Iterator[str]:
    """A message for each axis whose values all make the same runs, whatever the others are."""
    for i, axis in enumerate(axes):
        runs: dict[tuple[str, ...], list[str]] = {}
        for varied, identity in identities.items():
            runs.setdefault((*varied[:i], *varied[i + 1 :]), []).append(identity)
        if all(len(found) > 1 and len(set(found)) == 1 for found in runs.values()):
            yield (
                f"--sweep={axis} changes nothing: all its values make the same run, because it is "
                "so already, or a later directive overrules it."
            )
