"""From a graph to the objects that it describes: check, bind, build."""

from collections.abc import Iterable
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.binding import Resolved
from fidgpt.graph.checking import inherited_errors, node_errors
from fidgpt.graph.constraints import (
    Constraint,
    constraint_errors,
    constructor_errors,
    rejection,
)
from fidgpt.graph.errors import ConfigError, raise_all
from fidgpt.graph.fiddle import PreparedConfig, failed_call
from fidgpt.graph.walk import Node, nodes

T = TypeVar("T")


class Config(PreparedConfig[T]):
    """A `fdl.Config` that `fdl.build` checks and binds first, where it is the root of the graph.

    It makes `fdl.build(cfg)` alone enough for a graph with unset parameters; `graph.build` needs no
    such root, and names what is wrong by its path.
    """

    def __prepare__(self) -> fdl.Buildable:
        return _plain(check_and_bind(self, construct=False))


@gc_paused()
def check_and_bind(
    root: Any, *, constraints: Iterable[Constraint] = (), construct: bool = True
) -> Any:
    """Return the bound graph if nothing is wrong with it.

    Beyond what `check` finds: unset quantities, conflicting ones, inherited values of a wrong type,
    broken constraints, and arguments that a constructor rejects.

    Args:
      root: the graph, or the graph resolved.
      constraints: functions that inspect the whole bound graph and raise ValueError.
      construct: whether to call the constructors; see `constructor_errors`.

    Raises:
      ConfigErrors: every error, all at once.
    """
    bound, found, errors = _bound(root, constraints)
    raise_all([*errors, *(constructor_errors(found, errors) if construct else ())])
    return bound


def rejections(root: Any, *, constraints: Iterable[Constraint] = ()) -> list[ConfigError]:
    """Return what constraints and constructors reject in a graph that can be shown nevertheless.

    Raises:
      ConfigErrors: the graph has other errors; these are all of them.
    """
    bound, found, errors = _bound(root, ())
    rejected = [*constraint_errors(bound, constraints)]
    rejected += constructor_errors(found, [*errors, *rejected])
    raise_all([*errors, *rejected] if errors else [])
    return rejected


def resolve_checked(root: Any) -> Resolved:
    """Return a graph resolved; where that fails, report the errors of its nodes as well.

    Raises:
      ConfigErrors: every error, all at once.
    """
    if isinstance(root, Resolved):
        return root
    found = nodes(root)
    try:
        resolved = Resolved(root, found)
        _ = resolved.bound
    except ConfigError as error:
        raise_all([*node_errors(found), *error.mistakes])
        raise
    return resolved


def build(root: Any, *, constraints: Iterable[Constraint] = ()) -> Any:
    """Check, bind and build a graph: `fdl.build`, with errors that name the path and the remedy.

    Args:
      root: the graph, or the graph resolved.
      constraints: functions that inspect the whole bound graph and raise ValueError.

    Raises:
      ConfigError: the graph is wrong, or a constructor raised an exception of any kind.
    """
    bound, found, errors = _bound(root, constraints)
    failure: ConfigError | None = None
    if not errors:
        try:
            return fdl.build(_plain(bound))
        except RecursionError as error:
            failure = ConfigError("the graph is nested too deeply for fdl.build to build it.")
            failure.__cause__ = error
        except Exception as error:  # a division by head_dim=0 is the user's mistake too
            failure = _failure(found, error)
    raise_all([*errors, *constructor_errors(found, errors)])
    raise failure or AssertionError("raise_all raises the errors")


def _bound(
    root: Any, constraints: Iterable[Constraint]
) -> tuple[Any, list[Node], list[ConfigError]]:
    """The bound graph, its nodes, and what is wrong with it short of its constructors."""
    resolved = resolve_checked(root)
    errors, bound = node_errors(resolved.nodes), resolved.bound
    copies = nodes(bound)
    if not errors:  # a value that is wrong where it is set is wrong wherever it is inherited
        errors = inherited_errors(copies, resolved.inherited)
    return bound, copies, [*errors, *constraint_errors(bound, constraints)]


def _plain(root: Any) -> Any:
    """A root that `fdl.build` builds as it is."""
    return fdl.cast(fdl.Config, root) if isinstance(root, Config) else root


def _failure(found: list[Node], error: Exception) -> ConfigError:
    """What made `fdl.build` fail, with the path of the node whose call it was."""
    part, cause = failed_call(error)
    node = next((node for node in found if node.value is part), found[0])
    return rejection(node, cause)
