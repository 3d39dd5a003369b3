"""Reports on a composition: what its directives changed, and all that a user may not have meant."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import fiddle as fdl

from fidgpt.compose.attribution import messages_of
from fidgpt.compose.composition import Composition
from fidgpt.compose.conflicts import overridden, own_errors
from fidgpt.compose.directives import assigns, split_assignment, split_directive
from fidgpt.errors import listed, raise_all
from fidgpt.graph import ConfigError, ConfigErrors, check_and_bind, find_parameter
from fidgpt.graph.building import Constraint
from fidgpt.graph.edits import Edit
from fidgpt.graph.provenance import places_of, short_text


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
        ties = split_directive(effect.meant)[0] == "tie"
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
        kind, rest = split_directive(effect.meant)
        if effect.rerun is not None or "PATH" not in effect.kind.syntax.partition("=")[0]:
            continue
        written = split_assignment(rest)[0] if assigns(kind) else rest.strip()
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
