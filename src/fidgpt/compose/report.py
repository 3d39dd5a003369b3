"""Reports on a composition: what its directives changed, and all that a user may not have meant.

Directives may be in each other's way: do nothing, or be undone or outdated by a later one. Errors
name the directives that set the values that they are about.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.compose import directives as registry
from fidgpt.compose.composition import Composition, Effect, edits_between
from fidgpt.compose.messages import directives_error
from fidgpt.errors import ConfigError, ConfigErrors, listed, raise_all
from fidgpt.graph import Assignment, Source, check_and_bind, clone, diff, find_parameter
from fidgpt.graph.binding import numbers_in
from fidgpt.graph.building import Constraint
from fidgpt.graph.codec import is_same
from fidgpt.graph.difference.changes import SharingChanged, describe
from fidgpt.graph.difference.places import Unmet
from fidgpt.graph.edits import Edit, carry_out
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.paths import ParameterRef, follow, parse_path
from fidgpt.graph.provenance import assignments_at, assignments_of, places_of, short_text
from fidgpt.graph.walk import is_node


@contextlib.contextmanager
def naming_directives(composition: Composition, *, allow_noop: bool = False) -> Iterator[None]:
    """Name the directives behind errors found inside, and those that changed nothing.

    Raises:
      ConfigErrors: something was found, and this is all of it.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigErrors(
            [
                *messages_of(composition, error),
                *own_errors(composition, allow_noop=allow_noop),
            ]
        ) from error


def other_errors(
    composition: Composition, *, constraints: Iterable[Constraint] = (), allow_noop: bool = False
) -> list[str]:
    """Return the errors in what some directives made while others of them are wrong themselves.

    Errors that no directive caused are left out: a wrong one may have been meant to mend them.
    """
    messages: list[str] = []
    try:
        check_and_bind(composition.config, constraints=constraints)
    except ConfigError as error:
        messages = messages_of(composition, error, attributed_only=True)
    return [*messages, *own_errors(composition, allow_noop=allow_noop)]


class Report(NamedTuple):
    """What directives did, in lines.

    Attributes:
      changes: what each of them changed.
      warnings: those that a later one overrides, those that set what was set already, and those
        that reach further than the path written in them.
    """

    changes: list[str]
    warnings: list[str]


def report(composition: Composition, *, verbose: bool = False, allow_noop: bool = False) -> Report:
    """Return what each directive changed, and what a user may not have meant.

    Args:
      composition: the composition.
      verbose: whether to include every change with its values.
      allow_noop: whether a directive that changes nothing is no error.

    Raises:
      ConfigErrors: a directive that asks for a change made none, or one computed something from
        what a later one changed; all of them are named.
    """
    effects = [effect for effect in composition.effects if effect.kind.role != "base"]
    if not effects:
        return Report([], composition.unused)
    raise_all(own_errors(composition, allow_noop=allow_noop))
    inheriting = Counter(inherited.binding.path for inherited in composition.resolved.inherited)
    changes: list[str] = []
    for effect in (item for item in effects if item.edits):
        text = f"{effect.text}: {len(effect.edits)} value{'s' * (len(effect.edits) > 1)}"
        if (count := num_places(composition, effect.edits)) > len(effect.edits):
            text += f" in {count} places"
        if count := sum(inheriting[edit.path] for edit in effect.edits):
            text += f", inherited by {count} parameter{'s' * (count > 1)}"
        changes.append(text)
        if verbose:
            changes += [
                f"  {edit.path}: {short_text(edit.before)} -> {short_text(edit.after)}"
                for edit in effect.edits
            ]
    idle = [
        f"{effect.text} changes nothing: the config already has it."
        for effect in effects
        if not effect.edits
    ]
    others = [*overridden(composition), *_tying_settings(composition), *reaching_out(composition)]
    return Report(changes, [*composition.unused, *idle, *others])


def _tying_settings(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each tie of factories, of which every use makes a component."""
    is_shared = getattr(getattr(composition.config, "model", None), "sharing", None) is not None
    for effect in () if is_shared else composition.effects:
        ties = registry.split_directive(effect.meant)[0] == "tie"
        if ties and any(isinstance(edit.after, fdl.Partial) for edit in effect.edits):
            yield (
                f"{effect.named} shares settings, not weights: each use of a factory makes a "
                "component of its own. fiddler:share_blocks ties weights of layers."
            )


def num_places(composition: Composition, edits: Iterable[Edit]) -> int:
    """Return how many paths the parameters have that a directive changed."""
    return sum(len(_places(composition, edit.path)) for edit in edits)


def reaching_out(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each directive that changes places outside of the path written in it.

    So it does where the path leads into a node that other places share; a selector of many
    parameters may have meant them.
    """
    for effect in composition.effects:
        kind, rest = registry.split_directive(effect.meant)
        if effect.rerun is not None or "PATH" not in effect.kind.syntax.partition("=")[0]:
            continue
        written = registry.split_assignment(rest)[0] if registry.assigns(kind) else rest.strip()
        for edit in effect.edits if {*written}.isdisjoint("*:@") else ():
            places = _places(composition, edit.path)
            if outside := places[1:]:
                yield (
                    f"{effect.named} also changes "
                    f"{listed(outside, most=2)}: {len(places)} places share one component. "
                    f"untie:{_shared_at(composition, edit.path)} before it gives this one its own."
                )
                break


def _places(composition: Composition, path: str) -> list[str]:
    """Return all paths of a parameter; the one given, if it is no longer in the graph."""
    try:
        return places_of(composition.resolved, path)
    except ConfigError:
        return [path]


def _shared_at(composition: Composition, path: str) -> str:
    """Return the part of a path that leads to the innermost shared node on the way."""
    ref = find_parameter(composition.config, path).above
    while ref is not None:
        node = composition.resolved.node_of.get(id(ref.value))
        if node is not None and node.is_shared:
            return ref.path
        ref = ref.above
    return path


def is_noop(effect: Effect) -> bool:
    """Return whether a directive that asks for a change makes none."""
    may_be = (
        effect.kind.restates or effect.kind.role == "base" or registry.is_by_machine(effect.text)
    )
    return not may_be and not effect.edits


def own_errors(composition: Composition, *, allow_noop: bool = False) -> list[str]:
    """Return the errors that are in directives, whatever the graph that they make."""
    with contextlib.suppress(ConfigError):  # the graph cannot be bound, which is reported anyway
        idle = [
            f"{effect.named} changes nothing: the config already has it.\n  Remove it, or add "
            "--allow_noop for a script that cannot know."
            for effect in composition.effects
            if not allow_noop and is_noop(effect)
        ]
        return [*idle, *outdated(composition)]
    return []


def overridden(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each parameter that a directive sets after an earlier one had.

    To change a value relative to what it is, or to move it, overrides nothing.
    """
    last: dict[str, Effect] = {}
    for effect in composition.effects:
        for edit in effect.edits:
            is_unset = edit.after is fdl.NO_VALUE and not edit.path.endswith("]")
            if effect.rerun is not None and is_unset:
                continue
            earlier = last.get(edit.path)
            if earlier is None and effect.rerun is not None:  # in a component that one added
                around = (last[path] for path in reversed(last) if _is_inside(edit.path, path))
                earlier = next((other for other in around if other is not effect), None)
            last[edit.path] = effect
            if earlier is None or _has_moved(earlier, edit.before):
                continue
            with contextlib.suppress(ValueError):  # code needs what the earlier directive had done
                if not _is_relative(effect, edit.path, earlier.edits) and _would_set(
                    composition, earlier, edit.path
                ):
                    yield f"{effect.named} overrides {edit.path} as set by {earlier.named}."


def _has_moved(effect: Effect, value: Any) -> bool:
    """Return whether a directive took a value from another place."""
    return any(edit.after is fdl.NO_VALUE and is_same(edit.before, value) for edit in effect.edits)


def _would_set(composition: Composition, effect: Effect, path: str) -> bool:
    """Return whether a directive, applied once more, would change the value at a path."""
    if effect.rerun is None:
        return True
    try:
        changes = diff(composition.config, effect.rerun(root=composition.config))
    except ConfigError:  # it does not apply any more
        return True
    return any(_is_inside(change.path, path) or _is_inside(path, change.path) for change in changes)


def _is_relative(effect: Effect, path: str, undone: list[Edit]) -> bool:
    """Return whether the value that a directive sets depends on the value before.

    A directive that replaces values that do not suit it and leaves others does not depend on them.

    Args:
      effect: the directive, and what it changed.
      path: the parameter.
      undone: edits before it that it may depend on.

    Raises:
      ConfigError: code cannot do without them.
    """
    if effect.rerun is None:
        return effect.kind.is_relative(registry.split_directive(effect.meant)[1])

    # Blocks that a pattern got when it became longer stay: they say nothing about what they hold.
    undone = [e for e in undone if e.before is not fdl.NO_VALUE or not e.path.endswith("]")]

    def take_back(root: Any) -> None:
        for edit in undone:
            value = edit.before if edit.before is fdl.NO_VALUE else clone(edit.before)
            with contextlib.suppress(*[ConfigError] * (edit is not undone[0])):  # inside of another
                carry_out([(find_parameter(root, edit.path), value)])
        without.append(clone(root))

    without: list[Any] = []
    rerun = effect.rerun(take_back)
    return all(
        any(
            _is_inside(change.path, path)
            for change in diff(other, rerun)
            if not isinstance(change, SharingChanged)  # what was taken back is a copy
        )
        for other in (effect.rerun(), without[0])
    )


def outdated(composition: Composition) -> Iterator[str]:
    """Yield an error for each directive that computed something from what a later one changed.

    Such code is run again on the graph that it got, with the later values in it: it is outdated if
    it then sets other values, or other parameters.
    """
    for number, effect in enumerate(composition.effects):
        if effect.rerun is None:
            continue
        own = [edit.path for edit in effect.edits]
        later: dict[str, tuple[Effect, Edit]] = {}
        for later_effect in composition.effects[number + 1 :]:
            later |= {edit.path: (later_effect, edit) for edit in later_effect.edits}
        values = {
            path: (effect, _with_number(composition, edit))
            for path, (effect, edit) in later.items()
            if _is_plain(edit.after) and not any(_is_inside(path, outer) for outer in own)
        }
        settled = [*later]
        if not values or not _depends(effect, [edit for _, edit in values.values()], settled):
            continue
        for path, (later_effect, edit) in values.items():
            if _depends(effect, [edit], settled):
                yield directives_error(
                    [effect.source, later_effect.source],
                    f"{effect.text} depends on {path}, which {later_effect.text} changes later. "
                    f"Put {effect.text} after it.",
                )
                break


def _with_number(composition: Composition, edit: Edit) -> Edit:
    """Return an edit with the number of a formula that it sets, on which code may depend."""
    if is_quantity(edit.after):
        with contextlib.suppress(ConfigError):  # the place is gone
            ref = find_parameter(composition.config, edit.path)
            number = numbers_in(composition.config)(ref.container, ref.key)
            return edit if number is fdl.NO_VALUE else edit._replace(after=number)
    return edit


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
            edit.path: describe(edit.after) if _is_plain(edit.after) else short_text(edit.after)
            for edit in edits_between(before[0], after)
            if not any(_is_inside(edit.path, path) for path in settled)
        }

    try:
        return outcome([]) != outcome(values)
    except ConfigError as error:  # it cannot do with these values
        return any(isinstance(mistake, Unmet) for mistake in error.mistakes)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or the like, or computes one."""
    return is_quantity(value) or (not is_node(value) and value is not fdl.NO_VALUE)


def _is_inside(path: str, outer: str) -> bool:
    """Return whether a path is another one, or inside of what stands there."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


_ITEM = re.compile(r"\[\d+\]")


def messages_of(
    composition: Composition, error: ConfigError, *, attributed_only: bool = False
) -> list[str]:
    """Return one message for all errors of the same directives, which it shows.

    Args:
      composition: whose graph is wrong.
      error: the errors.
      attributed_only: whether to leave out errors that no directive caused.
    """
    inherited: dict[tuple[int, Any], list[Assignment]] = {}
    with contextlib.suppress(ConfigError):  # a graph that cannot be bound is among the errors
        for item in composition.resolved.inherited:
            sources = assignments_of(item.binding.node.value, item.binding.key)
            inherited[id(item.part), item.key] = sources
    groups: dict[Any, tuple[list[Source], list[ConfigError]]] = {}
    for mistake in error.mistakes:
        refs = [_nearest(composition.config, path) for path in mistake.sources]
        behind = dict.fromkeys(_source(ref, inherited) for ref in refs if ref)
        # Everything else was set by the config that the graph began with.
        directives = sorted(
            (
                s
                for s in behind
                if s and s.kind == "directive" and not (s.run or registry.is_base(s.text))
            ),
            key=lambda source: source.number,
        )
        key = tuple(directives) or _ITEM.sub("[]", str(mistake))
        if directives or not attributed_only:
            groups.setdefault(key, (directives, []))[1].append(mistake)
    return [directives_error(by, "\n".join(grouped(errors))) for by, errors in groups.values()]


def _nearest(root: Any, path: str) -> ParameterRef | None:
    """Return the parameter at a path, or the nearest one above that exists before binding."""
    with contextlib.suppress(ConfigError):
        keys = parse_path(path)
        for end in range(len(keys), 0, -1):
            with contextlib.suppress(ConfigError):
                return follow(root, keys[:end], path)
    return None


def _source(
    ref: ParameterRef, all_inherited: dict[tuple[int, Any], list[Assignment]]
) -> Source | None:
    """Return what last assigned a parameter, or what contains it."""
    nearest: ParameterRef | None = ref
    while nearest is not None:
        inherited = all_inherited.get((id(nearest.container), nearest.key), [])
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
        places = [source.place for source in others if source.place]
        more = f"\nThe same at {listed(places, most=2)}." if places else ""
        messages.append(f"{first}{more}")
    return messages
