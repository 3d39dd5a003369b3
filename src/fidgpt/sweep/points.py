"""Points of a sweep: composed, checked, named, and compared with what their axes chose."""

import contextlib
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.compose import report
from fidgpt.compose.catalogue import Catalogue, call_fiddler, own_catalogue
from fidgpt.compose.composition import Effect, compose
from fidgpt.compose.directives import is_base, tag_named, takes_numbers
from fidgpt.compose.messages import Written
from fidgpt.cost import TRAINING_PASSES, count_parameters, forward_pass
from fidgpt.errors import raise_all
from fidgpt.graph import ConfigError, find_parameters, resolve, walk
from fidgpt.graph.edits import Edit, KeptGraph
from fidgpt.graph.variants import CheckedGraph
from fidgpt.model import InitError
from fidgpt.runs.building import build_trainer, constraints_of, groups_of, try_optimizer
from fidgpt.sweep.axes import Axis, Choice, Item, Names, parsed
from fidgpt.train import Trainer
from fidgpt.train.estimates.summary_text import counted

__all__ = ["Plan", "Point", "plan"]

_MOST_SHOWN = 2  # mistakes
MOST_POINTS = 10_000  # which take seconds to check; more are a typing error
_MOST_KNOWN = 256  # points that others are compared with
MOST_WRONG = 200  # wrong points, after which no more are checked


@dataclass(frozen=True)
class Cost:
    """The cost of a point.

    Attributes:
      parameters: of the model.
      flops: of the whole run, forward and backward.
      num_steps: optimizer steps.
      num_processes: the least number that its mesh takes.
      tokens: of the whole run.
      kind: the same for points whose steps take the same time.
    """

    parameters: int
    flops: int
    num_steps: int
    num_processes: int = 1
    tokens: int = 0
    kind: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Point:
    """One config of a sweep.

    Attributes:
      directives: all directives of the config, in order.
      fingerprint: its identity; two points with one fingerprint are the same run.
      name: what varies, in short.
      cost: parameters, FLOPs and steps.
      values: what each axis chose, by the name of the axis.
    """

    directives: tuple[str, ...]
    fingerprint: str
    name: str
    cost: Cost
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """The first digits of the fingerprint, which name the run directory."""
        return self.fingerprint[:12]


class DryRuns:
    """Tries points without training them; a part that several points share is checked once.

    Args:
      catalogue: the names that make the points.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._models: dict[Any, tuple[Any, int, int]] = {}  # model, parameters, FLOPs of a token
        self._groups: dict[Any, list[dict[str, Any]] | None] = {}  # of parameters
        self._optimizers: set[tuple[Any, ...]] = set()  # keys of optimizers that were tried

    def of(self, cfg: fdl.Config, like: CheckedGraph | None = None) -> tuple[CheckedGraph, Cost]:
        """Check that a config can be trained, as a variant of `like` if it is one; return its cost.

        Raises:
          ConfigError, InitError: it cannot be trained.
        """
        checked = like and like.variant(cfg)
        trainer = checked and self._built(checked)
        if checked is None or trainer is None:
            checked = CheckedGraph(cfg, constraints_of(self._catalogue), fixed=_FIXED)
        key = checked.key("model", "seq_len")
        known = self._models.get(key)
        trainer = trainer or (known and self._built(checked, model=known[0]))
        trainer = trainer or build_trainer(cfg, self._catalogue)
        if known is None:
            forward = forward_pass(trainer.model, seq_len=trainer.seq_len).total
            parameters = count_parameters(trainer.model).total
            known = self._models[key] = (trainer.model, parameters, TRAINING_PASSES * forward)
            self._built(checked, model=trainer.model)
        sequences = trainer.stream.full_batches(trainer.num_steps) * trainer.batch_size
        tokens = round(sequences * trainer.step.sequences_per_row * trainer.seq_len)
        size = trainer.parallel.planned_size
        kind = checked.key(*_TIMED)
        return checked, Cost(known[1], known[2] * tokens, trainer.num_steps, size, tokens, kind)

    def _built(self, graph: CheckedGraph, **model: Any) -> Trainer | None:
        """Build the rest of a trainer around a model; a variant's around the model of its original.

        None if that fails: building all of it reports the error and its place.
        """
        parts = graph.key("model", "trainable", "groups")
        key = *parts, *graph.key("optimizer")
        try:
            trainer = graph.build(**model)
            if key not in self._optimizers:
                if parts not in self._groups:
                    self._groups[parts] = groups_of(trainer)
                groups = self._groups[parts]
                try_optimizer(trainer, groups and [*map(dict, groups)])
        except Exception:
            return None
        self._optimizers.add(key)
        return trainer if isinstance(trainer, Trainer) else None


# What the time of a step depends on.
_TIMED = ("model", "seq_len", "batch_size", "micro_batch_size", "trainable", "loss", "precision")
_TIMED += ("parallel", "step", "batch_growth", "seq_len_growth")
_FIXED = ("model", "parallel", "seq_len", "step")  # `build_trainer` and trainers read their content


class Maker:
    """Makes the points of some axes; fast for points in the order of their axes.

    Args:
      items: directives, and axes in their places among them.
      catalogue: the names that directives may use.

    Attributes:
      items: as given.
      axes: the axes among them.
      first: the first choice of each axis.
    """

    def __init__(self, items: Sequence[Item], catalogue: Catalogue) -> None:
        self.items = items
        self.axes = [item for item in items if isinstance(item, Axis)]
        self.first = [axis.choices[0] for axis in self.axes]
        self._names = Names(self.axes)
        self._catalogue = catalogue
        self._compose = functools.lru_cache(64)(self._composed)
        self._dry_runs = DryRuns(catalogue)
        self._known: dict[Any, tuple[Sequence[Choice], CheckedGraph]] = {}
        self._is_plain = [True] * len(self.axes)  # whether an axis changes plain values alone

    def _composed(self, directives: tuple[str, ...]) -> KeptGraph:
        *others, last = directives or ("",)
        if not directives or (not others and is_base(last)):
            return KeptGraph(compose(directives, self._catalogue).config, self._catalogue.parts)
        base = self._compose(tuple(others))
        kind, name, sign, value = parsed(last)
        with contextlib.suppress(ConfigError):  # composed from its directives, it names the error
            if kind == "fiddler":
                return base.changed_by(
                    last, lambda root: call_fiddler(value, root, self._catalogue)
                )
            if kind in ("set", "tag") and "$" not in last:
                selector = tag_named(base.tags(), name, self._catalogue) if kind == "tag" else name
                return base.changed(selector, sign, value)
        graph = compose([last], self._catalogue, base=base.root, first=len(directives)).config
        return KeptGraph(graph, self._catalogue.parts)

    def graph(self, chosen: Sequence[Choice]) -> fdl.Config:
        """Return the graph of a choice of each axis, which must not be changed.

        Raises:
          ConfigErrors: directives are wrong; all are named.
        """
        directives = self._directives(chosen)
        try:
            return self._compose(directives).root
        except ConfigError:
            return compose(directives, self._catalogue).config

    def point(self, chosen: Sequence[Choice], graph: fdl.Config) -> Point:
        """Return the point of a choice of each axis and its graph.

        Raises:
          ConfigError, InitError: it cannot be trained.
        """
        checked, cost = self._checked(chosen, graph)
        values = self._names.values(chosen, checked.value)
        name = self._names.name(chosen, values)
        return Point(self._directives(chosen), checked.fingerprint, name, cost, values)

    def _checked(self, chosen: Sequence[Choice], graph: fdl.Config) -> tuple[CheckedGraph, Cost]:
        first, like = self._known.get(self._kind(chosen), (chosen, None))
        checked, cost = self._dry_runs.of(graph, like)
        if like is None or checked.hashed.root is not like.hashed.root:
            for i, (choice, other) in enumerate(zip(first, chosen, strict=True)):
                self._is_plain[i] &= choice == other
            recent = [*self._known.values()][-_MOST_KNOWN:]
            self._known = {self._kind(pair[0]): pair for pair in [*recent, (chosen, checked)]}
        return checked, cost

    def _kind(self, chosen: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return the choices of the axes that change more than plain values."""
        pairs = zip(chosen, self._is_plain, strict=True)
        return tuple(choice for choice, is_plain in pairs if not is_plain)

    def _directives(self, chosen: Sequence[Choice]) -> tuple[str, ...]:
        choices = iter(chosen)
        given = (next(choices).directives if isinstance(i, Axis) else (i,) for i in self.items)
        return tuple(itertools.chain(*given))

    @functools.cached_property
    def effects(self) -> tuple[list[str], list[str]]:
        """What axes change, from points in which each choice appears.

        A directive undoes an axis if it changes anything that the axis chose; another axis does if
        it sets all of it again.

        Two lists of lines: each directive that undoes what an axis chose; and for each thing that
        varies, how many parameters it changes at most.
        """
        axes = [a if isinstance(a, Axis) else Axis("", (Choice((a,)),)) for a in self.items]
        counts = {_subject(d): 0 for d in _varied(itertools.chain(*(a.choices for a in self.axes)))}
        mistakes: dict[tuple[str, str], str] = {}
        outside: dict[str, None] = {}
        for at in range(max((_num_effects(axis) for axis in axes), default=0)):
            chosen = [(axis, axis.choices[min(at, len(axis.choices) - 1)]) for axis in axes]
            sample = [(d, axis.text) for axis, choice in chosen for d in choice.directives]
            composition = compose([directive for directive, _ in sample], self._catalogue)
            inherited = Counter(item.binding.path for item in resolve(composition.config))
            edits = {effect.number: _edits(effect) for effect in composition.effects}
            with contextlib.suppress(ConfigError):
                mistakes |= {("", line): line for line in report.outdated(composition)}
            outside |= dict.fromkeys(report.reaching_out(composition))
            before: list[tuple[str, list[Edit]]] = []
            for number, (directive, text) in enumerate(sample, start=1):
                mine, (_, name, sign, _) = edits.get(number, []), parsed(directive)
                later = text or f"{directive} (directive {number})"
                for first, theirs in before:
                    lost = [e.path for e in theirs if _is_undone(e, mine, composition.config)]
                    if lost and (not text or (name and not sign and len(lost) == len(theirs))):
                        mistakes[later, first] = (
                            f"{later} overwrites what {first} chose of {lost[0]}.\n"
                            "  Put it before the axis, or remove one of them."
                        )
                if text:
                    before.append((text, mine))
                    moved = report.num_places(composition, mine)
                    moved += sum(inherited[edit.path] for edit in mine)
                    counts[_subject(directive)] = max(counts[_subject(directive)], moved)
        lines = [
            f"{directive} changes {counted(count, 'parameter')}"
            if count
            else f"{directive} changes nothing: the config already has it"
            for directive, count in counts.items()
            if not is_base(directive)
        ]
        return list(mistakes.values()), [*lines, *outside]


def _varied(chosen: Iterable[Choice]) -> tuple[str, ...]:
    return tuple(itertools.chain(*(choice.directives for choice in chosen)))


@dataclass(frozen=True)
class Plan:
    """The points of a sweep, in the order of its axes.

    Attributes:
      points: each fingerprint once.
      num_folded: combinations that make the same run as an earlier one.
      moves: a line for each directive that varies: how many parameters it changes.
    """

    points: list[Point]
    num_folded: int
    moves: list[str]


def plan(items: Sequence[Item], *, allowed: tuple[str, ...] = ()) -> Plan:
    """Return the points of a sweep.

    Args:
      items: directives, and axes in their places among them; axes multiply.
      allowed: packages of the user's own whose callables a config may name.

    Raises:
      ConfigErrors: some points are wrong, and the first are named; or an axis changes nothing,
        or a directive overwrites what one chose.
    """
    maker = Maker(items, own_catalogue(allowed))
    count = math.prod(len(axis.choices) for axis in maker.axes)
    if count > MOST_POINTS:
        sizes = " x ".join(f"{len(axis.choices):,}" for axis in maker.axes)
        raise ConfigError(
            f"{sizes} values make {count:,} points, and a sweep has {MOST_POINTS:,} at most: name "
            "fewer values, or choose among them by --search=random:100 with --space in place of "
            "--sweep."
        )
    points: dict[str, Point] = {}
    identities: dict[tuple[int, ...], str] = {}
    # By message, the points that it is about; none if it names a directive itself.
    mistakes: dict[str, list[tuple[str, ...]]] = {}
    ranges = (range(len(axis.choices)) for axis in maker.axes)
    for number, numbers in enumerate(itertools.product(*ranges)):
        if number - len(identities) >= MOST_WRONG:
            break
        chosen = [axis.choices[i] for axis, i in zip(maker.axes, numbers, strict=True)]
        with gc_paused():  # but not for all points, which would keep all their graphs
            try:
                graph = maker.graph(chosen)
            except ConfigError as error:
                mistakes.setdefault(str(error), [])
                continue
            try:
                point = maker.point(chosen, graph)
            except (ConfigError, InitError) as error:
                mistakes.setdefault(str(error), []).append(_varied(chosen))
                continue
        identities[numbers] = point.fingerprint
        points.setdefault(point.fingerprint, point)
    messages = [_message(text, names) for text, names in mistakes.items()]
    others = len(messages) - _MOST_SHOWN
    raise_all(messages[:_MOST_SHOWN] + [f"and {others} more of the kind."] * (others > 0))
    with gc_paused():
        overwritten, moves = maker.effects
    raise_all(overwritten or _without_effect(maker.axes, identities))
    return Plan(list(points.values()), len(identities) - len(points), moves)


def _message(text: str, points: Sequence[tuple[str, ...]]) -> str:
    """Return a mistake below the first points that it is about."""
    if not points:
        return text
    indented = text.replace("\n", "\n  ")
    names = [" ".join(map(_typed, point)) for point in points[:2]]
    names += [f"and {len(points) - 2} more points"] * (len(points) > 2)
    return "".join(f"{name}:\n" for name in names) + f"  {indented}"


def _typed(directive: str) -> str:
    """Return a directive as it would be typed, with its flag, if a flag held it."""
    where = directive.where if isinstance(directive, Written) else ""
    return f"{where}={directive}" if where.startswith("--") else directive


def _without_effect(axes: Sequence[Axis], identities: Mapping[tuple[int, ...], str]) -> list[str]:
    """Return a message for each axis whose values all make the same runs.

    Args:
      axes: all of them.
      identities: the fingerprint of each point, by the indices of its choices.
    """
    mistakes: list[str] = []
    for i, axis in enumerate(axes):
        runs = {(*key[:i], *key[i + 1 :], identity) for key, identity in identities.items()}
        if len(axis.choices) > 1 and len(runs) * len(axis.choices) == len(identities):
            mistakes.append(
                f"{axis.text} changes nothing: all its values make the same run, because the "
                "config has that value already, or a later directive overrides it."
            )
    return mistakes


def _num_effects(axis: Axis) -> int:
    """Return how many choices may change different parameters."""
    # Different numbers change the same parameters, but one number may be the old value.
    is_number = all(takes_numbers(parsed(directive).kind) for directive in _varied(axis.choices))
    return min(len(axis.choices), 2) if is_number else len(axis.choices)


def _edits(effect: Effect) -> list[Edit]:
    try:
        return effect.edits
    except ConfigError:  # a graph need not be valid between two directives
        return []


def _is_undone(edit: Edit, later: Sequence[Edit], root: Any) -> bool:
    """Return whether later edits changed what an edit had set."""
    paths = [change.path for change in later]
    if edit.path in paths:
        return True
    if not any(edit.path.startswith((f"{path}.", f"{path}[")) for path in paths):
        return False
    try:
        value = find_parameters(root, edit.path)[0].value
    except ConfigError:
        return True
    return not walk.is_node(value) and value != edit.after


def _subject(directive: str) -> str:
    """Return the kind of a directive and what it sets; the whole directive if it sets no name."""
    kind, name, _, _ = parsed(directive)
    return f"{kind}:{name}" if name else directive
