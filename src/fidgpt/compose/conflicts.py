"""Directives in each other's way: those that do nothing, or that a later one undoes or outdates."""

import contextlib
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from fidgpt.compose.composition import Composition, Effect, edits_between
from fidgpt.compose.directives import is_by_machine, split_directive
from fidgpt.compose.messages import directives_error
from fidgpt.graph import ConfigError, clone, diff, find_parameter
from fidgpt.graph.binding import numbers_in
from fidgpt.graph.difference.changes import SharingChanged, describe
from fidgpt.graph.difference.expectations import Unmet
from fidgpt.graph.edits import Edit, carry_out
from fidgpt.graph.errors import listed
from fidgpt.graph.fiddle import argument_history, raw_arguments
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.identity import is_same
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import parse_path
from fidgpt.graph.provenance import (
    Assignment,
    Source,
    assignments_at,
    assignments_of,
    origin_of,
    short_text,
)
from fidgpt.graph.walk import Node, is_node, join, parts, step_to, title


def _is_noop(effect: Effect) -> bool:
    may_be = effect.kind.restates or effect.kind.role == "base" or is_by_machine(effect.text)
    return not may_be and not effect.edits


def own_errors(composition: Composition, *, allow_noop: bool = False) -> list[str]:
    """Return the errors that are in directives, whatever the graph that they composition."""
    with contextlib.suppress(ConfigError):  # the graph cannot be bound, which is reported anyway
        idle = [
            f"{one.named} changes nothing: the config already has it.\n  Remove it, or add "
            "--allow_noop for a script that cannot know."
            for one in composition.effects
            if not allow_noop and _is_noop(one)
        ]
        return [*idle, *outdated(composition)]
    return []


def described(value: object) -> str:
    """Return a value in a few words; a component by its name alone."""
    if value is fdl.NO_VALUE:
        return "unset"
    return f"{title(value)}(...)" if isinstance(value, fdl.Buildable) else leaf_text(value)


def overridden(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each parameter that a directive sets after an earlier one had.

    To keep a value in another place, or to change it relative to what it is, overrides nothing. To
    set the very value that is there does if the earlier directive would change that one again.
    """
    edited = {
        (one.source, path): one
        for one in composition.effects
        for edit in one.edits
        for path in (edit.path, *_assigned_around(composition, one, edit.path))
    }
    effects: dict[Source | None, Effect] = {one.source: one for one in composition.effects}
    found: dict[str, list[Assignment]] = {}
    for _, path in edited:
        with contextlib.suppress(ConfigError):  # the place is gone
            found[path] = assignments_at(find_parameter(composition.config, path))
    assigned = {(one.by, path): effects.get(one.by) for path in found for one in found[path]}
    for (source, path), effect in (edited | assigned).items():
        groups = itertools.groupby(found.get(path, ()), operator.attrgetter("by"))
        values = [(by, next(same).value) for by, same in groups]
        while values and values[0][0] != source:  # later ones
            del values[0]
        earlier = effects.get(values[1][0]) if values[1:] else None
        if len(values) == 1:
            earlier = _set_before(composition, source, path)
        if effect is None or earlier is None:
            continue
        is_edit, known = ((one, path) in edited for one in (source, earlier.source))
        is_edit |= len(values) > 1 and _differ(values[0][1], values[1][1])  # inside of an edit
        # A value in a component that the earlier one added is there for other directives to set;
        # code that sets it without that one, too, overrides it.
        added = is_edit and effect.rerun and any(_is_inside(path, e.path) for e in earlier.edits)
        if not known and not added:
            continue
        undone = earlier.edits if is_edit else [Edit(path, values[0][1], fdl.NO_VALUE)]
        with contextlib.suppress(ValueError):  # code needs what the earlier directive had done
            is_relative = _is_relative(effect if is_edit else earlier, path, undone)
            if is_relative != is_edit and _would_set(composition, earlier, path):
                yield f"{effect.named} overrides {path} as set by {earlier.named}."


def _differ(one: Any, other: Any) -> bool:
    """Return whether two values are plain, and different."""
    return not is_node(one) and not is_node(other) and not is_same(one, other)


def _set_before(composition: Composition, source: Source | None, path: str) -> Effect | None:
    """Return what had set the value that a directive replaced, with the component around it."""
    number = next((i for i, one in enumerate(composition.effects) if one.source == source), 0)
    edits = composition.effects[number].edits
    replaced = [edit.before for edit in edits if edit.path == path and _is_plain(edit.before)]
    if not replaced or any(_removes(edit, path) for edit in edits):  # which is reported as such
        return None
    for effect in reversed(composition.effects[:number]):
        for edit in effect.edits:
            if edit.path == path:
                return effect if is_same(edit.after, replaced[0]) else None
    return None


def _would_set(composition: Composition, effect: Effect, path: str) -> bool:
    """Return whether a directive, applied once more, would change what is at a path."""
    if effect.rerun is None:
        return True
    try:
        changes = diff(composition.config, effect.rerun(root=composition.config))
    except ConfigError:  # it does not apply any more
        return True
    return any(_is_inside(one.path, path) or _is_inside(path, one.path) for one in changes)


def _assigned_around(composition: Composition, effect: Effect, path: str) -> Iterator[str]:
    """Yield the paths of components around a parameter that a directive assigned as a whole."""
    with contextlib.suppress(ConfigError):  # the place is gone
        ref = find_parameter(composition.config, path).above
        while ref is not None:
            if any(one.by == effect.source for one in assignments_at(ref)):
                yield ref.path
            ref = ref.above


def _is_relative(effect: Effect, path: str, undone: list[Edit]) -> bool:
    """Return whether what a directive sets depends on what is there.

    To replace a value that does not suit it, and to leave others, is not to depend on it.

    Args:
      effect: the directive, and what it changed.
      path: the parameter.
      undone: edits before it that it may depend on.

    Raises:
      ConfigError: code cannot do without them.
    """
    if effect.rerun is None:
        return effect.kind.is_relative(split_directive(effect.meant)[1])

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
            _is_inside(one.path, path)
            for one in diff(other, rerun)
            if not isinstance(one, SharingChanged)  # what was taken back is a copy
        )
        for other in (effect.rerun(), without[0])
    )


def _removes(edit: Edit, path: str) -> bool:
    """Return whether an edit replaced what is around a parameter, or removed it."""
    return _is_inside(path, edit.path) and (path != edit.path or edit.after is fdl.NO_VALUE)


def removed(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each two directives of which the later one removed what one had set.

    What was kept under another name, or in another place, is not removed.
    """
    kept: dict[Source, set[str]] = {}
    for node in parts(composition.config):
        for key in list(argument_history(node.value)):
            for one in assignments_of(node.value, key):
                if one.by:
                    kept.setdefault(one.by, set()).update((str(key), short_text(one.value)))
    lost: dict[tuple[Effect, Effect], list[str]] = {}
    for number, effect in enumerate(composition.effects):
        later = [(one, edit) for one in composition.effects[number + 1 :] for edit in one.edits]
        for edit in effect.edits if later else ():
            words = {str(parse_path(edit.path)[-1]), short_text(edit.after)}
            if edit.after is fdl.NO_VALUE or not words.isdisjoint(kept.get(effect.source, ())):
                continue
            by = next((one for one, other in later if _removes(other, edit.path)), None)
            if by is not None:
                lost.setdefault((by, effect), []).append(edit.path)
    for (by, effect), paths in lost.items():
        yield f"{by.named} removes {listed(paths, most=2)} as set by {effect.named}."


def left_behind(composition: Composition) -> Iterator[str]:
    """Yield a sentence for each directive that changes a value, but no copy that code had made.

    A pattern of blocks that a fiddler made longer, for example, has such copies.
    """
    for number, effect in enumerate(composition.effects):
        code = [one for one in composition.effects[:number] if one.rerun is not None]
        if effect.rerun is not None or not code:
            continue
        later = (one.before for one in composition.effects[number:] if one.rerun is not None)
        now, copied_by = _Copies(next(later, composition.config)), dict[str, Effect]()
        for one, before in [(one, _Copies(one.before)) for one in code]:
            for edit in effect.edits:
                with contextlib.suppress(ConfigError):  # the place is gone, or was not there before
                    copies = now.of(edit.path, edit.before)
                    known = before.of(edit.path) if copies else ()
                    copied_by |= dict.fromkeys({*copies} - {*known}, one)
        for one in dict.fromkeys(copied_by.values()):
            paths = sorted(path for path, by in copied_by.items() if by is one)
            yield (
                f"{effect.named} does not change {listed(paths, most=4)}, copied by "
                f"{one.named}: before that one, it changes both."
            )


class _Copies:
    """The components of a graph that are copies of each other."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._alike: dict[int, list[Node]] = {}
        for node in parts(root):
            for entries in argument_history(node.value).values():
                for first in entries[:1]:
                    self._alike.setdefault(id(first), []).append(node)

    def of(self, path: str, value: Any = ...) -> list[str]:
        """Return where copies of the component around a parameter have its value, or a given one.

        Raises:
          ConfigError: there is no such parameter.
        """
        changed = find_parameter(self._root, path)
        part, key = changed.container, changed.key
        value = changed.value if value is ... else value
        # Of a node of another kind, only some arguments are copies.
        origins = [origin_of(part), origin_of(part, key)]
        alike = (node for one in origins if one for node in self._alike[id(one)])
        return [
            join(node.path, step_to(key))
            for node in dict.fromkeys(alike)
            if node.value is not part
            for held in [raw_arguments(node.value).get(key, fdl.NO_VALUE)]
            if is_same(held, value) or origin_of(held) is origin_of(value) is not None
        ]


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
        for one in composition.effects[number + 1 :]:
            later |= {edit.path: (one, edit) for edit in one.edits}
        values = {
            path: (one, _with_number(composition, edit))
            for path, (one, edit) in later.items()
            if _is_plain(edit.after) and not any(_is_inside(path, outer) for outer in own)
        }
        settled = [*later]
        if not values or not _depends(effect, [edit for _, edit in values.values()], settled):
            continue
        for path, (one, edit) in values.items():
            if _depends(effect, [edit], settled):
                yield directives_error(
                    [effect.source, one.source],
                    f"{effect.text} depends on {path}, which {one.text} changes later. "
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
            edit.path: describe(edit.after) if _is_plain(edit.after) else described(edit.after)
            for edit in edits_between(before[0], after)
            if not any(_is_inside(edit.path, path) for path in settled)
        }

    try:
        return outcome([]) != outcome(values)
    except ConfigError as error:  # it cannot do with these values
        return any(isinstance(one, Unmet) for one in error.mistakes)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or the like, or computes one."""
    return is_quantity(value) or (not is_node(value) and value is not fdl.NO_VALUE)


def _is_inside(path: str, outer: str) -> bool:
    """Return whether a path is another one, or inside of what stands there."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))
