"""Which changes of its graph a resumed run allows."""

import enum
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt import errors
from fidgpt.graph import fiddle, paths
from fidgpt.graph.difference import changes
from fidgpt.graph.difference.comparison import diff


class Permission(enum.IntEnum):
    """How a parameter may change.

    A tag has it as the class attribute `may_change`, a constructor as the mapping `MAY_CHANGE` from
    names of arguments: one of the names below in small letters. It holds for all that is inside
    the argument, unless something nearer has its own. The default is never.
    """

    NEVER = 0  # what was computed so far could not be used: the model, its data, its seed
    RESTART = 1  # the numbers that follow differ from those that the run would have had
    LIVE = 2  # no number that is computed depends on it


@dataclass(frozen=True, slots=True)
class Allowed:
    """A change with which a run may be resumed."""

    change: changes.Change
    permission: Permission


def allowed_changes(old: Any, new: Any) -> list[Allowed]:
    """Return what differs between a run's graph and the one with which it is resumed.

    Raises:
      ConfigErrors: something may not change; all of it is named, but of a part that is another
        one, its arguments are not.
    """
    decisions = [Allowed(change, _of_change(old, new, change)) for change in diff(old, new)]
    refused = [decision.change for decision in decisions if decision.permission is Permission.NEVER]
    places = tuple(f"{change.path}{sign}" for change in refused for sign in ".[")
    errors.raise_all([_refusal(change) for change in refused if not change.path.startswith(places)])
    return decisions


def permission_of(root: Any, path: str) -> Permission:
    """Return how the parameter at a path may change; for one that is gone, how its holder may."""
    permission, value = Permission.NEVER, root
    for key in paths.parse_path(path) if path else ():
        is_part = isinstance(value, fdl.Buildable)
        if is_part and fiddle.parameter_of(value, key) is not None:
            names = [getattr(tag, "may_change", None) for tag in fdl.get_tags(value, key)]
            names.append(getattr(fdl.get_callable(value), "MAY_CHANGE", {}).get(key))
            own = next((name for name in names if name is not None), None)
            permission = Permission[own.upper()] if own else permission
        try:
            value = fiddle.set_arguments(value)[key] if is_part else value[key]
        except (KeyError, IndexError, TypeError):
            break
    return permission


def _of_change(old: Any, new: Any, change: changes.Change) -> Permission:
    """Return the stricter permission of both graphs."""
    sides = [(old, change.old.path), (new, change.new.path)]
    return min(permission_of(root, path) for root, path in sides if path is not None)


def _refusal(change: changes.Change) -> errors.ConfigError:
    sources = (change.path, change.new.inherited_from, change.new.shared_with)
    return errors.ConfigError(
        f"{change.path or 'the root'} cannot change when a run is resumed: {change.detail}.\n"
        "  Leave it as it is, or start a new run.",
        place=change.path,
        sources=filter(None, sources),
    )
