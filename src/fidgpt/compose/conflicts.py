"""Directives in each other's way: those that do nothing, or that a later one undoes or outdates."""

import contextlib
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
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.identity import is_same
from fidgpt.graph.provenance import short_text
from fidgpt.graph.walk import is_node


def is_noop(effect: Effect) -> bool:
    """Return whether a directive that asks for a change makes none."""
    may_be = effect.kind.restates or effect.kind.role == "base" or is_by_machine(effect.text)
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
        return effect.kind.is_relative(split_directive(effect.meant)[1])

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
