"""Which changes a resumed run allows."""

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.cloning import clone
from fidgpt.graph.difference.changes import Change
from fidgpt.graph.difference.comparison import diff
from fidgpt.graph.errors import ConfigError, raise_all
from fidgpt.graph.fiddle import Key, parameter_of, set_arguments
from fidgpt.graph.paths import find_parameter, parse_path
from fidgpt.graph.walk import Node, nodes, parts

_WORD = "WRAPS"  # of a constructor: the argument that it stands around, and how


def without_those_around(root: Any) -> Any:
    """A copy of a graph in which each place holds what a part there stands around."""
    copy = clone(root)
    around = [node for node in nodes(copy) if _said(node.value)]
    outermost = [
        (path, node)
        for node in around
        for path, (parent, _) in zip(node.paths, node.parents, strict=True)
        if not _said(parent.value)
    ]
    for path, node in outermost:
        find_parameter(copy, path).set(_inside(node))
    return copy


def those_around(root: Any) -> Counter[tuple[Any, str]]:
    """How many parts of each kind stand around others, with the word of how they may come."""
    return Counter(
        (fdl.get_callable(node.value), permission)
        for node in parts(root)
        for permission in _said(node.value).values()
    )


def _inside(node: Node) -> Any:
    value = node.value
    while said := _said(value):
        value = set_arguments(value)[next(iter(said))]
    return value


def _said(value: Any) -> dict[str, str]:
    """The arguments that a part stands around, each with how it may come or go."""
    if not isinstance(value, fdl.Buildable):
        return {}
    said = getattr(fdl.get_callable(value), _WORD, {})
    return {name: how for name, how in said.items() if name in set_arguments(value)}


class Permission(enum.IntEnum):
    """How a parameter may change; a tag says it of its quantity, a constructor of its arguments.

    A tag has it as the class attribute `may_change`, a constructor as the mapping `MAY_CHANGE`
    from names of arguments: one of the names below in small letters. It holds for all that is
    inside the argument, unless something nearer says otherwise. Where nobody says anything, the
    answer is never.

    A part that stands around another one has the mapping `WRAPS` from the name of that
    argument to how it may come, go, or be another: `{"stream": "live"}`.
    """

    NEVER = 0  # what was computed so far could not be used: the model, its data, its seed
    RESTART = 1  # the numbers that follow differ from those that the run would have had
    LIVE = 2  # no number that is computed depends on it


@dataclass(frozen=True, slots=True)
class Allowed:
    """A change that a run may go on with."""

    change: Change
    permission: Permission


def allowed_changes(old: Any, new: Any) -> list[Allowed]:
    """What differs between a run's graph and the one that it is to go on with.

    Parts that may stand around others come and go as their constructors say.

    Raises:
      ConfigErrors: something may not change; all of it is named.
    """
    found = [Allowed(change, _of_change(old, new, change)) for change in diff(old, new)]
    refused = [one.change for one in found if one.permission is Permission.NEVER]
    if refused and (around := those_around(old) | those_around(new)):
        was, now = without_those_around(old), without_those_around(new)
        left = [one for one in diff(was, now) if _of_change(was, now, one) is Permission.NEVER]
        is_as_before = those_around(old) == those_around(new)
        refused = refused if left and is_as_before else left
        how = min(Permission[name.upper()] for _, name in around)
        found = [Allowed(one.change, one.permission or how) for one in found]
    raise_all([_refusal(change) for change in refused])
    return found


def permission_of(root: Any, path: str) -> Permission:
    """How the parameter at a path may change; of what is not there, the part that would hold it."""
    permission = Permission.NEVER
    for holder, key in _steps(root, path):
        said = _declared_permission(holder, key)
        permission = permission if said is None else said
    return permission


def _steps(root: Any, path: str) -> Iterator[tuple[Any, Key]]:
    """Each container on the way with the key that leads on, as far as the path goes."""
    value = root
    for key in parse_path(path) if path else []:
        yield value, key
        try:
            value = set_arguments(value)[key] if isinstance(value, fdl.Buildable) else value[key]
        except (KeyError, IndexError, TypeError):
            return


def _declared_permission(holder: Any, key: Key) -> Permission | None:
    if not isinstance(holder, fdl.Buildable) or parameter_of(holder, key) is None:
        return None
    of_tags = [getattr(tag, "may_change", None) for tag in fdl.get_tags(holder, key)]
    of_call = getattr(fdl.get_callable(holder), "MAY_CHANGE", {}).get(key)
    names = [name for name in (*of_tags, of_call) if name is not None]
    return Permission[names[0].upper()] if names else None


def _of_change(old: Any, new: Any, change: Change) -> Permission:
    """The stricter of what both graphs say."""
    sides = [(old, change.old.path), (new, change.new.path)]
    return min(permission_of(root, path) for root, path in sides if path is not None)


def _refusal(change: Change) -> ConfigError:
    sources = (change.path, change.new.inherited_from, change.new.shared_with)
    return ConfigError(
        f"{change.path or 'the root'} may not change while a run goes on: {change.detail}.\n"
        "  Leave it as it is, or begin a new run.",
        place=change.path,
        sources=filter(None, sources),
    )
