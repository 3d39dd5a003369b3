"""The points of a sweep: what its axes multiply to, composed and built before any of them runs."""

import itertools
from dataclasses import dataclass

from fidgpt.cli.catalogue import own_catalogue
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


def points_of(directives: list[str], axes: list[str]) -> list[Point]:
    """The points of a sweep, composed and built, each fingerprint once.

    Raises:
      ConfigErrors: some points are wrong; all of them are named, and none may start.
    """
    points: dict[str, Point] = {}
    mistakes: list[str] = []
    catalogue = own_catalogue()
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
        points.setdefault(identity, Point(directives_of_point, varied, identity))
    raise_all(list(dict.fromkeys(mistakes)))
    return list(points.values())


def axis_values(axis: str) -> list[str]:
    """The directives that an axis stands for: one for each of its values.

    Raises:
      ConfigError: the axis has no values.
    """
    kind, rest = split_directive(axis)
    left, equals, right = rest.partition("=")
    is_assignment = kind in ("set", "tag")
    values = split_at_commas(right if is_assignment else rest)
    if not kind or not values or (is_assignment and not equals):
        raise ConfigError(f"--sweep={axis} has no values: write KIND:NAME=VALUE,VALUE.")
    prefix = f"{kind}:{left}=" if is_assignment else f"{kind}:"
    return [prefix + value.strip() for value in values]
