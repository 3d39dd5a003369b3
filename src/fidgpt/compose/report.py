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
from fidgpt.compose.directives import (
    assigns,
    is_base,
    is_by_machine,
    split_assignment,
    split_directive,
)
from fidgpt.compose.messages import directive_error, label, underlined
from fidgpt.graph import (
    ConfigError,
    ConfigErrors,
    check_and_bind,
    clone,
    diff,
    find,
    find_parameter,
)
from fidgpt.graph.building import Constraint
from fidgpt.graph.difference.changes import SharingChanged, describe
from fidgpt.graph.edits import Edit, carry_out
from fidgpt.graph.errors import listed, raise_all
from fidgpt.graph.fiddle import argument_history
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, follow, parse_path
from fidgpt.graph.provenance import (
    Assignment,
    Source,
    assignments_at,
    assignments_of,
    places_of,
    short_text,
)
from fidgpt.graph.walk import is_node, join, parts, title

_ITEM = re.compile(r"\[\d+\]")
_LONGEST = 1000  # entries of a list in which a slice is looked for
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
            [*Attribution(made).messages(error), *_own_errors(made, allow_noop)]
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
        return [*messages, *_own_errors(made, allow_noop)]
    return _own_errors(made, allow_noop)


class Attribution:
    """Finds the directives that set the values from which the errors of a graph come."""

    def __init__(self, made: Composition) -> None:
        self._made = made
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
        return [
            _message("\n".join([*grouped(errors), *self._other_names(errors, by)]), by)
            for by, errors in groups.values()
        ]

    def _other_names(self, errors: list[ConfigError], by: list[Source]) -> Iterator[str]:
        """Yield a line for each path in errors that directives wrote as another of the same value.

        So it is where a part that holds the value is shared.
        """
        effects = [one for one in self._made.effects if one.rerun is None]
        written = {edit.path for one in effects if one.source in by for edit in one.edits}
        for source in dict.fromkeys(path for error in errors for path in error.sources):
            with contextlib.suppress(ConfigError):
                for path in written.intersection(places_of(self._made.resolved, source)) - {source}:
                    yield f"{path} is the same as {source}, which shares it."

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
      ConfigErrors: a directive that asks for a change made none, or one computed something from
        what a later one changed; all of them are named.
    """
    effects = [one for one in made.effects if one.kind.role != "base"]
    if not effects:
        return Report([], made.unused)
    raise_all(_own_errors(made, allow_noop))
    inheriting = Counter(one.binding.path for one in made.resolved.inherited)
    changes: list[str] = []
    for effect in (one for one in effects if one.edits):
        text = f"{effect.text}: {len(effect.edits)} value{'s' * (len(effect.edits) > 1)}"
        if (count := num_places(made, effect.edits)) > len(effect.edits):
            text += f" in {count} places"
        if count := sum(inheriting[edit.path] for edit in effect.edits):
            text += f", inherited by {count} parameter{'s' * (count > 1)}"
        if inner := shared_inside(made, effect):
            text += f"; {listed(inner, most=2)} inside stays shared"
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
    warnings = [*made.unused, *idle, *overridden(made), *removed(made), *reaching_out(made)]
    return Report(changes, warnings)


def _is_noop(effect: Effect) -> bool:
    may_be = effect.kind.restates or effect.kind.role == "base" or is_by_machine(effect.text)
    return not may_be and not effect.edits


def _own_errors(made: Composition, allow_noop: bool) -> list[str]:
    """Return the errors that are in directives, whatever the graph that they made."""
    with contextlib.suppress(ConfigError):  # the graph cannot be bound, which is reported anyway
        idle = [_noop_message(one) for one in made.effects if not allow_noop and _is_noop(one)]
        return [*idle, *outdated(made)]
    return []


def _noop_message(effect: Effect) -> str:
    return (
        f"{effect.text} ({label(effect.number, effect.text)}) changes nothing: the config already "
        "has it.\n  Remove it, or add --allow_noop for a script that cannot know."
    )


def _named(effect: Effect) -> str:
    return f"{effect.text} ({label(effect.number, effect.text)})"


def _described(value: object) -> str:
    if value is fdl.NO_VALUE:
        return "unset"
    return f"{title(value)}(...)" if isinstance(value, fdl.Buildable) else leaf_text(value)


def overridden(made: Composition) -> Iterator[str]:
    """Yield a sentence for each parameter that a directive sets after an earlier one had.

    To keep a value in another place, or to change it relative to what it is, overrides nothing.
    """
    edited = {
        (one.source, path): one
        for one in made.effects
        for edit in one.edits
        for path in (edit.path, *_assigned_around(made, one, edit.path))
    }
    paths = Counter(path for _, path in edited)
    for (source, path), effect in edited.items():
        # A ValueError: the place is gone, or code needs what the earlier directive had done.
        with contextlib.suppress(ValueError):
            found = assignments_at(find_parameter(made.config, path)) if paths[path] > 1 else []
            values = [(by, next(same).value) for by, same in itertools.groupby(found, _BY)]
            values = values[[by for by, _ in values].index(source) + 1 :]
            earlier = edited.get((values[0][0], path)) if values else None
            known = [edit.before for edit in earlier.edits if edit.path == path] if earlier else []
            before = [*known, *(value for _, value in values[1:]), fdl.NO_VALUE][0]
            if earlier is not None and not _is_relative(effect, path, before):
                yield (
                    f"{effect.text} ({label(effect.number, effect.text)}) overrides {path} as set "
                    f"by {earlier.text} ({label(earlier.number, earlier.text)})."
                )


def _assigned_around(made: Composition, effect: Effect, path: str) -> Iterator[str]:
    """Yield the paths of components around a parameter that a directive assigned as a whole."""
    with contextlib.suppress(ConfigError):  # the place is gone
        ref = find_parameter(made.config, path).above
        while ref is not None:
            if any(one.by == effect.source for one in assignments_at(ref)):
                yield ref.path
            ref = ref.above


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
        return effect.kind.is_relative(split_directive(effect.meant)[1])

    def take_back(root: Any) -> None:
        value = before if before is fdl.NO_VALUE else clone(before)
        carry_out([(find_parameter(root, path), value)])

    differences = diff(effect.rerun(lambda _: None), effect.rerun(take_back))
    return any(
        _is_inside(one.path, path)
        for one in differences
        if not isinstance(one, SharingChanged)  # what was taken back is a copy
    )


def _removes(edit: Edit, path: str) -> bool:
    """Return whether an edit replaced what is around a parameter, or removed it."""
    return _is_inside(path, edit.path) and (path != edit.path or edit.after is fdl.NO_VALUE)


def num_places(made: Composition, edits: Iterable[Edit]) -> int:
    """Return how many paths the parameters have that a directive changed."""
    return sum(len(_places(made, edit.path)) for edit in edits)


def shared_inside(made: Composition, effect: Effect) -> list[str]:
    """Return the paths of shared nodes inside of nodes that a directive replaced by equal ones."""
    found: list[str] = []
    for edit in effect.edits:
        sides = (edit.before, edit.after)
        if effect.rerun is None and all(isinstance(one, fdl.Buildable) for one in sides):
            is_copy = fdl.get_callable(edit.before) is fdl.get_callable(edit.after)
            for node in parts(edit.after)[1:] if is_copy else ():
                known = made.resolved.node_of.get(id(node.value))
                if known is not None and known.is_shared and not is_quantity(node.value):
                    found.append(join(edit.path, f".{node.path}"))
    return found


def reaching_out(made: Composition) -> Iterator[str]:
    """Yield a sentence for each directive that changes places outside of the path written in it.

    So it does where the path leads into a node that other places share.
    """
    for effect in made.effects:
        kind, rest = split_directive(effect.meant)
        if effect.rerun is not None or "PATH" not in effect.kind.syntax.partition("=")[0]:
            continue
        written = split_assignment(rest)[0] if assigns(kind) else rest.strip()
        pattern = _pattern_of(written)
        for edit in effect.edits:
            places = _places(made, edit.path)
            outside = [one for one in places[1:] if not pattern.fullmatch(one)]
            if outside and "@" not in written and not written.startswith(":"):
                yield (
                    f"{_named(effect)} also changes "
                    f"{listed(outside, most=2)}: {len(places)} places share one component. "
                    f"untie:{_shared_at(made, edit.path)} before it gives this one its own."
                )
                break


def removed(made: Composition) -> Iterator[str]:
    """Yield a sentence for each two directives of which the later one removed what one had set.

    What was kept under another name, or in another place, is not removed.
    """
    kept: dict[Source, set[str]] = {}
    for node in parts(made.config):
        for key in list(argument_history(node.value)):
            for one in assignments_of(node.value, key):
                if one.by:
                    kept.setdefault(one.by, set()).update((str(key), short_text(one.value)))
    lost: dict[tuple[Effect, Effect], list[str]] = {}
    for number, effect in enumerate(made.effects):
        later = [(one, edit) for one in made.effects[number + 1 :] for edit in one.edits]
        for edit in effect.edits if later else ():
            words = {str(parse_path(edit.path)[-1]), short_text(edit.after)}
            if edit.after is fdl.NO_VALUE or not words.isdisjoint(kept.get(effect.source, ())):
                continue
            by = next((one for one, other in later if _removes(other, edit.path)), None)
            if by is not None:
                lost.setdefault((by, effect), []).append(edit.path)
    for (by, effect), paths in lost.items():
        yield (f"{_named(by)} removes {listed(paths, most=2)} as set by {_named(effect)}.")


def outdated(made: Composition) -> Iterator[str]:
    """Yield an error for each directive that computed something from what a later one changed.

    Such code is run again on the graph that it got, with the later values in it: it is outdated if
    it then sets other values, or other parameters.
    """
    for number, effect in enumerate(made.effects):
        if effect.rerun is None:
            continue
        own = [edit.path for edit in effect.edits]
        later: dict[str, tuple[Effect, Edit]] = {}
        for one in made.effects[number + 1 :]:
            later |= {edit.path: (one, edit) for edit in one.edits}
        values = {
            path: (one, edit)
            for path, (one, edit) in later.items()
            if _is_plain(edit.after) and not any(_is_inside(path, outer) for outer in own)
        }
        settled = [*later]
        if not values or not _depends(effect, [edit for _, edit in values.values()], settled):
            continue
        for path, (one, edit) in values.items():
            if _depends(effect, [edit], settled):
                yield _message(
                    f"{effect.text} depends on {path}, which {one.text} changes later. "
                    f"Put {effect.text} after it.",
                    [effect.source, one.source],
                )
                break


def _depends(effect: Effect, values: list[Edit], settled: list[str]) -> bool:
    """Return whether code does something else if a graph has other values before.

    Args:
      effect: the code.
      values: edits whose values to set.
      settled: paths that do not count, because they are changed afterwards in any case.
    """

    def outcome(values: list[Edit]) -> dict[str, str]:
        before: list[Any] = []

        def change(root: Any) -> None:
            for edit in values:
                with contextlib.suppress(ConfigError):  # there is no such place yet
                    carry_out([(find_parameter(root, edit.path), edit.after)])
            before.append(clone(root))

        assert effect.rerun is not None
        after = effect.rerun(change)
        return {
            edit.path: describe(edit.after) if _is_plain(edit.after) else _described(edit.after)
            for edit in edits_between(before[0], after)
            if not any(_is_inside(edit.path, path) for path in settled)
        }

    with contextlib.suppress(ConfigError):  # it cannot do with these values
        return outcome([]) != outcome(values)
    return False


def _places(made: Composition, path: str) -> list[str]:
    """Return all paths of a parameter; the one given, if it is no longer in the graph."""
    try:
        return places_of(made.resolved, path)
    except ConfigError:
        return [path]


def _shared_at(made: Composition, path: str) -> str:
    """Return the part of a path that leads to the innermost shared node on the way."""
    ref = find_parameter(made.config, path).above
    while ref is not None:
        node = made.resolved.node_of.get(id(ref.value))
        if node is not None and node.is_shared:
            return ref.path
        ref = ref.above
    return path


def _pattern_of(selector: str) -> re.Pattern[str]:
    """Return a pattern of the paths that a selector names."""

    def indices(match: re.Match[str]) -> str:
        bounds = match[1].replace("\\", "")
        if "-" in bounds or bounds == "*":  # counted from an end that is not known here
            return r"\[[^]]*\]"
        chosen = slice(*(int(number) if number else None for number in bounds.split(":")))
        return rf"\[(?:{'|'.join(map(str, range(*chosen.indices(_LONGEST))))})\]"

    text = re.escape(selector).replace(r"\*\*\.", r"(?:.*\.)?").replace(r"\*\*", ".*")
    return re.compile(re.sub(r"\\\[(\\\*|[\d\\-]*:[\d\\:-]*)\\\]", indices, text))


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or the like, or computes one."""
    return is_quantity(value) or (not is_node(value) and value is not fdl.NO_VALUE)


def _is_inside(path: str, outer: str) -> bool:
    """Return whether a path is another one, or inside of what stands there."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


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
