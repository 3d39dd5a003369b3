"""Points of a sweep."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl
import torch

from fidgpt.collection import gc_paused
from fidgpt.compose.catalogue import Catalogue, own_catalogue
from fidgpt.compose.directives import composed
from fidgpt.compose.runs import CONSTRAINTS, build_trainer
from fidgpt.compose.trial import try_optimizer
from fidgpt.cost import TRAINING_PASSES, count_parameters, flops_per_token
from fidgpt.graph import ConfigError, check_and_bind
from fidgpt.graph.errors import raise_all
from fidgpt.graph.fiddle import copy_part, raw_arguments
from fidgpt.graph.storage.bound import BoundGraph
from fidgpt.model import StartError
from fidgpt.sweep.moves import Names, moves, overwritten, samples_of, vain
from fidgpt.sweep.values import Axis, Choice, Item
from fidgpt.train import Trainer
from fidgpt.train.facts import measured_flops


@dataclass(frozen=True)
class Cost:
    """What a point asks of a machine.

    Attributes:
      parameters: of the model.
      flops: of the whole run, forward and backward.
      num_steps: optimizer steps.
    """

    parameters: int
    flops: int
    num_steps: int


@dataclass(frozen=True)
class _Known:
    model: Any
    parameters: int
    flops_per_token: int


class DryRuns:
    """One point after another; the model that several of them have in common is built once."""

    def __init__(self) -> None:
        self._models: dict[tuple[str, int], _Known] = {}

    def of(self, cfg: fdl.Config) -> tuple[str, Cost, fdl.Config]:
        """The fingerprint of a point that can be trained, what it costs, and its bound graph.

        Raises:
          ConfigError, StartError: it cannot; the message says why.
        """
        identity, graph = self._checked(cfg)
        bound = graph.root
        model, seq_len = getattr(bound, "model", None), getattr(bound, "seq_len", None)
        if isinstance(model, fdl.Buildable) and isinstance(seq_len, int):
            tried = self._known(cfg, (graph.digest[id(model)], seq_len))
            trainer = _around(tried.model, bound) or build_trainer(cfg)
        else:
            trainer = build_trainer(cfg)
            tried = _counted(trainer)
        flops = tried.flops_per_token * trainer.num_steps * trainer.batch_size * trainer.seq_len
        cost = Cost(tried.parameters, flops, trainer.num_steps)
        return identity, cost, bound

    def _checked(self, cfg: fdl.Config) -> tuple[str, BoundGraph]:
        """The fingerprint of a graph without errors short of its constructors, and the graph."""
        graph = BoundGraph(check_and_bind(cfg, constraints=CONSTRAINTS, construct=False))
        return graph.fingerprint(), graph

    def _known(self, cfg: fdl.Config, key: tuple[str, int]) -> _Known:
        if key not in self._models:
            self._models[key] = _counted(build_trainer(cfg))
        return self._models[key]


def _counted(trainer: Trainer) -> _Known:
    model, seq_len = trainer.model, trainer.seq_len
    measured = measured_flops(model, seq_len=seq_len) or {}
    forward = flops_per_token(model, seq_len=seq_len) + sum(measured.values())
    return _Known(model, count_parameters(model).total, TRAINING_PASSES * forward)


def _around(model: Any, bound: fdl.Config) -> Trainer | None:
    """The rest of a trainer built around a model that is known; None where that fails."""
    rest = copy_part(bound, {**raw_arguments(bound), "model": model})
    try:
        with torch.device("meta"):
            trainer = fdl.build(rest)
        try_optimizer(trainer)
    except Exception:  # building all of it tells what is wrong and where
        return None
    return trainer if isinstance(trainer, Trainer) else None


@dataclass(frozen=True)
class Point:
    """One config of a sweep.

    Attributes:
      directives: all that makes the config, in order.
      varied: those that the axes chose.
      fingerprint: its identity; two points with one fingerprint are the same run.
      name: what varies, in short.
      values: what each axis chose, by the name of the axis.
      cost: what it asks of a machine.
    """

    directives: tuple[str, ...]
    varied: tuple[str, ...]
    fingerprint: str
    name: str
    cost: Cost
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """The first digits of the fingerprint, which name its run directory."""
        return self.fingerprint[:12]


@dataclass(frozen=True)
class Draft:
    """The graph after some directives, and what was wrong with them.

    Attributes:
      root: the graph; None where it cannot even begin.
      mistakes: a message for each directive that is wrong.
    """

    root: fdl.Config | None
    mistakes: tuple[str, ...] = ()


class Composer:
    """Makes the graphs of points; fast where each is asked for beside those that resemble it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._way: list[tuple[str, Draft]] = []

    def compose(self, directives: Sequence[str]) -> Draft:
        """The graph of some directives, not to be changed; all that is wrong with them is told."""
        known = 0
        for (directive, _), asked in zip(self._way, directives, strict=False):
            if directive != asked:
                break
            known += 1
        del self._way[known:]
        draft = self._way[-1][1] if self._way else None
        for number, directive in enumerate(directives[known:], start=known + 1):
            draft = self._next(draft, number, directive)
            self._way.append((directive, draft))
        return draft or self._begun([])

    def _next(self, draft: Draft | None, number: int, directive: str) -> Draft:
        if draft is None:
            return self._begun([directive])
        if draft.root is None:  # all that follows would fail for this reason alone
            return draft
        try:
            made = composed([directive], self._catalogue, base=draft.root, first=number)
        except ConfigError as error:
            return Draft(draft.root, (*draft.mistakes, str(error)))
        return Draft(made.root, draft.mistakes)

    def _begun(self, directives: list[str]) -> Draft:
        """The graph of a first directive; where that alone is wrong, the base it was said of."""
        try:
            return Draft(composed(directives, self._catalogue).root)
        except ConfigError as error:
            if not directives:
                return Draft(None, (str(error),))
            kind = directives[0].partition(":")[0].strip()
            base = None if kind.startswith("config") else self._begun([]).root
            return Draft(base, (str(error),))


class Maker:
    """Makes the points of some axes; fast where each is asked for beside those that resemble it.

    Args:
      items: directives, and axes in the places where theirs belong among them.
      catalogue: what has a name.

    Attributes:
      items: as they were given.
      axes: those among them.
      labels: the names of the axes.
    """

    def __init__(self, items: Sequence[Item], catalogue: Catalogue) -> None:
        self.items = items
        self.axes = [item for item in items if isinstance(item, Axis)]
        self._names = Names(self.axes)
        self.labels = self._names.labels
        self._composer = Composer(catalogue)
        self._dry_runs = DryRuns()

    def draft(self, chosen: Sequence[Choice]) -> Draft:
        """The graph of a choice of each axis, not to be changed, and all that is wrong with it."""
        return self._composer.compose(self._directives(chosen))

    def point(self, chosen: Sequence[Choice], graph: fdl.Config) -> Point:
        """The point of a choice of each axis, whose graph is this one.

        Raises:
          ConfigError, StartError: it cannot be trained.
        """
        identity, cost, bound = self._dry_runs.of(graph)
        return Point(
            self._directives(chosen),
            varied(chosen),
            identity,
            self._names.name(chosen, bound),
            cost,
            self._names.values(chosen, bound),
        )

    def _directives(self, chosen: Sequence[Choice]) -> tuple[str, ...]:
        choices = iter(chosen)
        return tuple(
            directive
            for item in self.items
            for directive in (next(choices).directives if isinstance(item, Axis) else (item,))
        )


def varied(chosen: Sequence[Choice]) -> tuple[str, ...]:
    """The directives that axes chose."""
    return tuple(directive for choice in chosen for directive in choice.directives)


@dataclass(frozen=True)
class Plan:
    """The points of a sweep, in the order of its axes.

    Attributes:
      points: each fingerprint once.
      labels: the names of the axes.
      num_folded: combinations that make the same run as an earlier one.
      moves: a line for each directive that varies: how many parameters it moves.
    """

    points: list[Point]
    labels: list[str]
    num_folded: int
    moves: list[str]


def plan(items: Sequence[Item], *, allowed: tuple[str, ...] = ()) -> Plan:
    """The points of a sweep.

    Args:
      items: directives, and axes in the places where theirs belong among them; axes multiply.
      allowed: packages of the user's own whose callables a config may name.

    Raises:
      ConfigErrors: some points are wrong, and all of them are named; or an axis changes nothing,
        or a directive overwrites what one chose.
    """
    with gc_paused():
        return _Planning(items, allowed).plan()


class _Planning:
    """The work of planning, as far as it is."""

    def __init__(self, items: Sequence[Item], allowed: tuple[str, ...]) -> None:
        self._catalogue = own_catalogue(allowed)
        self._maker = Maker(items, self._catalogue)
        self._points: dict[str, Point] = {}
        self._identities: dict[tuple[int, ...], str] = {}
        # By message, the points that it holds for; none where it names a directive itself.
        self._mistakes: dict[str, list[str]] = {}

    def plan(self) -> Plan:
        items, axes = self._maker.items, self._maker.axes
        for numbers in itertools.product(*(range(len(axis.choices)) for axis in axes)):
            self._add(numbers, [axis.choices[i] for axis, i in zip(axes, numbers, strict=True)])
        raise_all([_told(message, points) for message, points in self._mistakes.items()])
        samples = list(samples_of(items, self._catalogue))
        raise_all(overwritten(samples) or vain(axes, self._identities))  # one may come of the other
        points = list(self._points.values())
        folded = len(self._identities) - len(points)
        return Plan(points, self._maker.labels, folded, moves(samples, axes))

    def _add(self, numbers: tuple[int, ...], chosen: Sequence[Choice]) -> None:
        draft = self._maker.draft(chosen)
        if draft.mistakes or draft.root is None:
            self._mistakes.setdefault("\n\n".join(draft.mistakes), [])
            return
        try:
            point = self._maker.point(chosen, draft.root)
        except (ConfigError, StartError) as error:
            self._mistakes.setdefault(str(error), []).append(" ".join(varied(chosen)))
            return
        self._identities[numbers] = point.fingerprint
        self._points.setdefault(point.fingerprint, point)


def _told(message: str, points: list[str]) -> str:
    """A mistake, below all the points that make it."""
    indented = message.replace("\n", "\n  ")
    return "".join(f"{point}:\n" for point in points) + (f"  {indented}" if points else message)
