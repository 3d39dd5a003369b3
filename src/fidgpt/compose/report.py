"""Reports on a composition: changes, errors with their directives, no-ops and overruled ones."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import dropwhile
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.compose.composition import Composition, Effect, edits_between, is_model
from fidgpt.compose.directives import is_by_machine, split_directive
from fidgpt.compose.errors import Attribution
from fidgpt.graph import ConfigError, ConfigErrors, check_and_bind, clone, find_parameter, parts
from fidgpt.graph.building import Constraint
from fidgpt.graph.edits import carry_out
from fidgpt.graph.errors import raise_all
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.provenance import Assignment, assignments_at
from fidgpt.graph.walk import join, title


@contextlib.contextmanager
def naming_directives(made: Composition, *, allow_noop: bool = False) -> Iterator[None]:
    """Name the directives behind errors found inside, and those that changed nothing.

    Raises:
      ConfigErrors: something was found, and this is all of it.
    """
    try:
        yield
    except ConfigError as error:
        messages = Attribution(made.config, lambda: made.resolved).messages(error)
        raise ConfigErrors([*messages, *_noops(made, allow_noop)]) from error


def other_errors(
    made: Composition, *, constraints: Iterable[Constraint] = (), allow_noop: bool = False
) -> list[str]:
    """Return the errors in what some directives made while others of them are wrong themselves.

    Errors that no directive caused are left out: a wrong one may have been meant to mend them.
    """
    messages: list[str] = []
    try:
        check_and_bind(made.config, constraints=constraints)
    except ConfigError as error:
        attribution = Attribution(made.config, lambda: made.resolved)
        messages = attribution.messages(error, attributed_only=True)
    return [*messages, *_noops(made, allow_noop)]


class Report(NamedTuple):
    """What directives did, in lines.

    Attributes:
      changes: what each of them changed.
      warnings: those that a later one overruled, and those that set what was set already.
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
        return Report([], [])
    raise_all([] if allow_noop else [_noop_message(one) for one in effects if _is_noop(one)])
    inheriting = Counter(one.binding.path for one in made.resolved.inherited)
    changes: list[str] = []
    for effect in (one for one in effects if one.edits):
        counts = [inheriting[edit.path] for edit in effect.edits if edit.path in inheriting]
        text = f"{effect.text}: {_counted(len(effect.edits), 'value')}"
        if counts:
            which = "" if len(counts) == len(effect.edits) == 1 else f" {len(counts)}"
            text += f",{which} inherited by {_counted(sum(counts), 'parameter')}"
        changes.append(text)
        if verbose:
            changes += [
                f"  {edit.path}: {_described(edit.before)} -> {_described(edit.after)}"
                for edit in effect.edits
            ]
    idle = [
        f"{one.text} changes nothing: the config already has this."
        for one in effects
        if not one.edits
    ]
    return Report(changes, [*idle, *overruled(made)])


def _is_noop(effect: Effect) -> bool:
    may_be = effect.kind.restates or effect.kind.role == "base" or is_by_machine(effect.text)
    return not may_be and not effect.edits


def _noops(made: Composition, allow_noop: bool) -> list[str]:
    with contextlib.suppress(ConfigError):  # the graph cannot be bound, which is reported anyway
        return [_noop_message(one) for one in made.effects if not allow_noop and _is_noop(one)]
    return []


def _noop_message(effect: Effect) -> str:
    return (
        f"{effect.text} (directive {effect.number}) changes nothing: the config is so "
        "already.\n  Leave it out, or add --allow_noop where a script cannot know."
    )


def _described(value: object) -> str:
    if value is fdl.NO_VALUE:
        return "unset"
    return f"{title(value)}(...)" if isinstance(value, fdl.Buildable) else leaf_text(value)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def overruled(made: Composition) -> Iterator[str]:
    """Yield a sentence for each parameter that a directive sets after an earlier one had.

    To keep a value in another place, or to change it relative to what it is, overrules nothing.
    """
    last: dict[str, Effect] = {}
    for effect in made.effects:
        for edit in effect.edits:
            earlier = last.get(edit.path)
            if earlier is not None and _overrules(effect, earlier, made.config, edit.path):
                yield (
                    f"{effect.text} (directive {effect.number}) overrules {edit.path} as set by "
                    f"{earlier.text} (directive {earlier.number})."
                )
            last[edit.path] = effect


def _overrules(effect: Effect, earlier: Effect, root: Any, path: str) -> bool:
    def past(assignments: list[Assignment], own: Effect) -> list[Assignment]:
        return list(dropwhile(lambda one: one.by == own.source, assignments))

    try:
        assignments = assignments_at(find_parameter(root, path))
        since = list(dropwhile(lambda one: one.by != effect.source, assignments))
        before = past(since, effect)
        if not since or not before or before[0].by != earlier.source:
            return False
        return not _is_relative(effect, path, past(before, earlier))
    except ConfigError:  # the place is gone, or the directive needs what the earlier one had done
        return False


def _is_relative(effect: Effect, path: str, before: list[Assignment]) -> bool:
    """Return whether what a directive sets depends on what is there.

    Args:
      effect: the directive, and what it changed.
      path: the parameter.
      before: the assignments before the one that it may depend on.

    Raises:
      ConfigError: code cannot do without that assignment.
    """
    if effect.rerun is None:
        return effect.kind.is_relative(split_directive(effect.text)[1])

    def take_back(root: Any) -> None:
        value = clone(before[0].value) if before else fdl.NO_VALUE
        carry_out([(find_parameter(root, path), value)])

    differences = edits_between(effect.rerun(lambda _: None), effect.rerun(take_back))
    inside = (f"{path}.", f"{path}[")
    return any(one.path == path or one.path.startswith(inside) for one in differences)


def unused_blocks(made: Composition) -> list[str]:
    """Return a sentence for each model with more blocks than layers, as one unrolled too early.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    found: list[str] = []
    for node in parts(made.resolved.bound):
        if not is_model(node.value):
            continue
        depth, blocks = node.value.num_layers, node.value.blocks
        depth = fdl.build(depth) if is_formula(depth) else depth
        if isinstance(depth, int) and isinstance(blocks, list | tuple) and len(blocks) > depth:
            name, last = join(node.path, ".blocks"), len(blocks) - 1
            unused = (
                f"{name}[{depth}] makes" if depth == last else f"{name}[{depth}] to [{last}] make"
            )
            found.append(
                f"{unused} no layer: {name} has {len(blocks)} entries, and "
                f"{join(node.path, '.num_layers')} is {depth}. Set the depth before fiddler:unroll."
            )
    return found
