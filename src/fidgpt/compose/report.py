"""Reports on a composition: changes, errors with their directives, no-ops and overridden ones."""

import contextlib
import itertools
import operator
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.compose.composition import Composition, Effect, edits_between
from fidgpt.compose.directives import is_base, is_by_machine, split_directive
from fidgpt.compose.messages import directive_error, label, underlined
from fidgpt.graph import ConfigError, ConfigErrors, check_and_bind, clone, find, find_parameter
from fidgpt.graph.building import Constraint
from fidgpt.graph.edits import carry_out
from fidgpt.graph.errors import listed, raise_all
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, follow, parse_path
from fidgpt.graph.provenance import Assignment, Source, assignments_at, assignments_of
from fidgpt.graph.walk import title

_ITEM = re.compile(r"\[\d+\]")
_BY = operator.attrgetter("by")


@contextlib.contextmanager
def naming_directives(made: Composition, *, allow_noop: bool = False) -> Iterator[None]:
    """Name the directives behind errors found inside, and those that changed nothing.

    Raises:
      ConfigErrors: something was found, and this is all of it.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigErrors(
            [*Attribution(made).messages(error), *_noops(made, allow_noop)]
        ) from error


def other_errors(
    made: Composition, *, constraints: Iterable[Constraint] = (), allow_noop: bool = False
) -> list[str]:
    """Return the errors in what some directives made while others of them are wrong themselves.

    Errors that no directive caused are left out: a wrong one may have been meant to mend them.
    """
    try:
        check_and_bind(made.config, constraints=constraints)
    except ConfigError as error:
        messages = Attribution(made).messages(error, attributed_only=True)
        return [*messages, *_noops(made, allow_noop)]
    return _noops(made, allow_noop)


class Attribution:
    """Finds the directives that set the values from which the errors of a graph come."""

    def __init__(self, made: Composition) -> None:
        self._root = made.config
        self._inherited: dict[tuple[int, Any], list[Assignment]] = {}
        with contextlib.suppress(ConfigError):  # a graph that cannot be bound is among the errors
            for one in made.resolved.inherited:
                found = assignments_of(one.binding.node.value, one.binding.key)
                self._inherited[id(one.part), one.key] = found

    def messages(self, error: ConfigError, *, attributed_only: bool = False) -> list[str]:
        """Return one message for all errors of the same directives, which it shows.

        Args:
          error: the errors.
          attributed_only: whether to leave out errors that no directive caused.
        """
        groups: dict[Any, tuple[list[Source], list[ConfigError]]] = {}
        for one in error.mistakes:
            directives = self.directives_behind(one)
            key = tuple(directives) or _ITEM.sub("[]", str(one))
            if directives or not attributed_only:
                groups.setdefault(key, (directives, []))[1].append(one)
        return [_message("\n".join(grouped(errors)), by) for by, errors in groups.values()]

    def directives_behind(self, error: ConfigError) -> list[Source]:
        """Return the directives, in order, that set the values from which an error comes.

        Everything else was set by the config that the graph began with, which is none of them.
        """
        sources = [self._source(ref) for path in error.sources if (ref := self._nearest(path))]
        found = [one for one in sources if one and one.kind == "directive" and one.run is None]
        found = [one for one in found if not is_base(one.text)]
        return sorted(dict.fromkeys(found), key=lambda one: one.number)

    def _nearest(self, path: str) -> ParameterRef | None:
        """Return the parameter at a path, or the nearest one above that exists before binding."""
        with contextlib.suppress(ConfigError):
            keys = parse_path(path)
            for end in range(len(keys), 0, -1):
                with contextlib.suppress(ConfigError):
                    return follow(self._root, keys[:end], path)
        return None

    def _source(self, ref: ParameterRef) -> Source | None:
        """Return what last assigned a parameter, or what contains it."""
        nearest: ParameterRef | None = ref
        while nearest is not None:
            inherited = self._inherited.get((id(nearest.container), nearest.key), [])
            if own := assignments_at(nearest) or inherited:
                return (inherited if inherited and own[0].value is fdl.NO_VALUE else own)[0].by
            nearest = nearest.above
        return None


def grouped(errors: Iterable[ConfigError]) -> list[str]:
    """Return one message for all errors that differ only in the index of an item of a list."""
    groups: dict[str, list[ConfigError]] = {}
    for error in errors:
        groups.setdefault(_ITEM.sub("[]", str(error)), []).append(error)
    messages: list[str] = []
    for first, *others in groups.values():
        places = [one.place for one in others if one.place]
        more = f"\nThe same at {listed(places, most=2)}." if places else ""
        messages.append(f"{first}{more}")
    return messages


def _message(message: str, directives: list[Source]) -> str:
    if len(directives) < 2:
        found = (directive_error(one.number, one.text, message) for one in directives)
        return next(found, message)
    shown = "\n".join(underlined(one.text, message) for one in directives)
    below = textwrap.indent(message, "  ", lambda _: True)
    names = " and ".join(label(one.number, one.text) for one in directives)
    if not any(one.where for one in directives):
        names = f"directives {' and '.join(str(one.number) for one in directives)}"
    return f"{names} conflict:\n{shown}\n{below}"


class Report(NamedTuple):
    """What directives did, in lines.

    Attributes:
      changes: what each of them changed.
      warnings: those that a later one overrides, and those that set what was set already.
    """

    changes: list[str]
    warnings: list[str]


def report(made: Composition, *, verbose: bool = False, allow_noop: bool = False) -> Report:
    """Return what each directive changed, and what a user may not have meant.

    Args:
      made: the composition.
      verbose: whether to include every change with its values.
      allow_noop: whether a directive that changes nothing is no error.

    Raises:
      ConfigErrors: a directive that asks for a change made none; all of them are named.
    """
    effects = [one for one in made.effects if one.kind.role != "base"]
    if not effects:
        return Report([], made.unused)
    raise_all([] if allow_noop else [_noop_message(one) for one in effects if _is_noop(one)])
    inheriting = Counter(one.binding.path for one in made.resolved.inherited)
    changes: list[str] = []
    for effect in (one for one in effects if one.edits):
        text = f"{effect.text}: {len(effect.edits)} value{'s' * (len(effect.edits) > 1)}"
        if count := sum(inheriting[edit.path] for edit in effect.edits):
            text += f", inherited by {count} parameter{'s' * (count > 1)}"
        changes.append(text)
        if verbose:
            changes += [
                f"  {edit.path}: {_described(edit.before)} -> {_described(edit.after)}"
                for edit in effect.edits
            ]
    idle = [
        f"{one.text} changes nothing: the config already has it."
        for one in effects
        if not one.edits
    ]
    return Report(changes, [*made.unused, *idle, *overridden(made)])


def _is_noop(effect: Effect) -> bool:
    may_be = effect.kind.restates or effect.kind.role == "base" or is_by_machine(effect.text)
    return not may_be and not effect.edits


def _noops(made: Composition, allow_noop: bool) -> list[str]:
    with contextlib.suppress(ConfigError):  # the graph cannot be bound, which is reported anyway
        return [_noop_message(one) for one in made.effects if not allow_noop and _is_noop(one)]
    return []


def _noop_message(effect: Effect) -> str:
    return (
        f"{effect.text} ({label(effect.number, effect.text)}) changes nothing: the config already "
        "has it.\n  Remove it, or add --allow_noop for a script that cannot know."
    )


def _described(value: object) -> str:
    if value is fdl.NO_VALUE:
        return "unset"
    return f"{title(value)}(...)" if isinstance(value, fdl.Buildable) else leaf_text(value)


def overridden(made: Composition) -> Iterator[str]:
    """Yield a sentence for each parameter that a directive sets after an earlier one had.

    To keep a value in another place, or to change it relative to what it is, overrides nothing.
    """
    edited = {(one.source, edit.path): one for one in made.effects for edit in one.edits}
    paths = Counter(path for _, path in edited)
    for (source, path), effect in edited.items():
        # A ValueError: the place is gone, or code needs what the earlier directive had done.
        with contextlib.suppress(ValueError):
            found = assignments_at(find_parameter(made.config, path)) if paths[path] > 1 else []
            values = [(by, next(same).value) for by, same in itertools.groupby(found, _BY)]
            values = values[[by for by, _ in values].index(source) + 1 :]
            earlier = edited.get((values[0][0], path)) if values else None
            before = values[1][1] if values[1:] else fdl.NO_VALUE
            if earlier is not None and not _is_relative(effect, path, before):
                yield (
                    f"{effect.text} ({label(effect.number, effect.text)}) overrides {path} as set "
                    f"by {earlier.text} ({label(earlier.number, earlier.text)})."
                )


def _is_relative(effect: Effect, path: str, before: Any) -> bool:
    """Return whether what a directive sets depends on what is there.

    Args:
      effect: the directive, and what it changed.
      path: the parameter.
      before: the value before the one that it may depend on.

    Raises:
      ConfigError: code cannot do without that one.
    """
    if effect.rerun is None:
        return effect.kind.is_relative(split_directive(effect.text)[1])

    def take_back(root: Any) -> None:
        value = before if before is fdl.NO_VALUE else clone(before)
        carry_out([(find_parameter(root, path), value)])

    differences = edits_between(effect.rerun(lambda _: None), effect.rerun(take_back))
    inside = (f"{path}.", f"{path}[")
    return any(one.path == path or one.path.startswith(inside) for one in differences)


def unused_blocks(made: Composition) -> list[str]:
    """Return a sentence for each model with more blocks than layers, as one unrolled too early.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    from fidgpt.model import Transformer  # late: it imports torch

    found: list[str] = []
    for model in find(made.resolved.bound, Transformer):
        depth, blocks = model.num_layers, model.blocks
        depth = fdl.build(depth) if is_formula(depth) else depth
        if isinstance(depth, int) and isinstance(blocks, list | tuple) and len(blocks) > depth:
            found.append(
                f"only the first {depth} of the {len(blocks)} blocks of a model make layers, as "
                f"its num_layers is {depth}. Set the depth before fiddler:unroll."
            )
    return found
