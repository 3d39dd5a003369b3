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
from fidgpt.graph.fiddle import argument_history
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import parse_path
from fidgpt.graph.provenance import (
    Assignment,
    Source,
    assignments_at,
    assignments_of,
    short_text,
)
from fidgpt.graph.walk import is_node, parts, title


def _is_noop(effect: Effect) -> bool:
    may_be = effect.kind.restates or effect.kind.role == "base" or is_by_machine(effect.text)
    return not may_be and not effect.edits


def own_errors(made: Composition, *, allow_noop: bool = False) -> list[str]:
    """Return the errors that are in directives, whatever the graph that they made."""
    with contextlib.suppress(ConfigError):  # the graph cannot be bound, which is reported anyway
        idle = [
            f"{one.named} changes nothing: the config already has it.\n  Remove it, or add "
            "--allow_noop for a script that cannot know."
            for one in made.effects
            if not allow_noop and _is_noop(one)
        ]
        return [*idle, *outdated(made)]
    return []


def described(value: object) -> str:
    """Return a value in a few words; a component by its name alone."""
    if value is fdl.NO_VALUE:
        return "unset"
    return f"{title(value)}(...)" if isinstance(value, fdl.Buildable) else leaf_text(value)


def overridden(made: Composition) -> Iterator[str]:
    """Yield a sentence for each parameter that a directive sets after an earlier one had.

    To keep a value in another place, or to change it relative to what it is, overrides nothing. To
    set the very value that is there does if the earlier directive would change that one again.
    """
    edited = {
        (one.source, path): one
        for one in made.effects
        for edit in one.edits
        for path in (edit.path, *_assigned_around(made, one, edit.path))
    }
    effects: dict[Source | None, Effect] = {one.source: one for one in made.effects}
    found: dict[str, list[Assignment]] = {}
    for _, path in edited:
        with contextlib.suppress(ConfigError):  # the place is gone
            found[path] = assignments_at(find_parameter(made.config, path))
    assigned = {(one.by, path): effects.get(one.by) for path in found for one in found[path]}
    for (source, path), effect in (edited | assigned).items():
        groups = itertools.groupby(found.get(path, ()), operator.attrgetter("by"))
        values = [(by, next(same).value) for by, same in groups]
        while values and values[0][0] != source:  # later ones
            del values[0]
        earlier = edited.get((values[1][0], path)) if values[1:] else None
        if effect is None or earlier is None:
            continue
        with contextlib.suppress(ValueError):  # code needs what the earlier directive had done
            if (source, path) in edited:
                known = [edit.before for edit in earlier.edits if edit.path == path]
                before = [*known, *(value for _, value in values[2:]), fdl.NO_VALUE][0]
                overrides = not _is_relative(effect, path, before)
            else:
                overrides = _is_relative(earlier, path, values[0][1])
            if overrides:
                yield f"{effect.named} overrides {path} as set by {earlier.named}."


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
        yield f"{by.named} removes {listed(paths, most=2)} as set by {effect.named}."


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
            path: (one, _with_number(made, edit))
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


def _with_number(made: Composition, edit: Edit) -> Edit:
    """Return an edit with the number of a formula that it sets, on which code may depend."""
    if is_quantity(edit.after):
        with contextlib.suppress(ConfigError):  # the place is gone
            ref = find_parameter(made.config, edit.path)
            number = numbers_in(made.config)(ref.container, ref.key)
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
