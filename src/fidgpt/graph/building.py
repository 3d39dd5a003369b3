"""From a graph to the objects it describes."""

from collections.abc import Iterable
from typing import Any

from fidgpt.graph.checking import checked, is_plain
from fidgpt.graph.constraints import Constraint, refused
from fidgpt.graph.fiddle import call, raw_arguments, set_arguments
from fidgpt.graph.walk import IS_NODE, IS_PART, nodes


def build(root: Any, *, constraints: Iterable[Constraint] = ()) -> Any:
    """Checks, binds and builds a graph; every node once, bottom-up.

    Args:
      root: the graph.
      constraints: what must hold in the whole bound graph; see `checked`.

    Raises:
      ConfigError: the graph is wrong, or a constructor refused its arguments, with an error of
        any kind; the message names the part.
    """
    bound = checked(root, constraints=constraints)
    if not IS_NODE[type(bound)]:
        return bound
    built: dict[int, Any] = {}
    for value in _in_order(bound):
        built[id(value)] = _built(value, built, bound)
    return built[id(bound)]


def _in_order(root: Any) -> list[Any]:
    """The nodes of a graph, each after what it holds, in the order in which one reads them.

    The order is Fiddle's own: what constructors draw at random depends on it.
    """
    ordered: list[Any] = []
    entered: set[int] = set()
    todo = [(root, False)]
    while todo:
        value, is_done = todo.pop()
        if is_done:
            ordered.append(value)
        elif id(value) not in entered:
            entered.add(id(value))
            todo.append((value, True))
            todo += [(child, False) for child in reversed(_held(value)) if IS_NODE[type(child)]]
    return ordered


def _held(value: Any) -> list[Any]:
    if IS_PART[type(value)]:
        return [*set_arguments(value).values()]
    return [*value.values()] if isinstance(value, dict) else [*value]


def _built(value: Any, built: dict[int, Any], root: Any) -> Any:
    """What a node becomes once all that it holds was built."""
    if not IS_PART[type(value)]:
        return _container(value, built) if is_plain(value) else value
    arguments = {key: built.get(id(one), one) for key, one in raw_arguments(value).items()}
    try:
        return call(value, arguments)
    except Exception as error:  # a division by head_dim=0 is the user's mistake too
        kind = "" if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: "
        path = next(node.path for node in nodes(root) if node.value is value)
        raise refused(path, value, f"{kind}{error}") from error


def _container(value: Any, built: dict[int, Any]) -> Any:
    if isinstance(value, dict):
        return {key: built.get(id(item), item) for key, item in value.items()}
    items = [built.get(id(item), item) for item in value]
    return items if isinstance(value, list) else getattr(type(value), "_make", tuple)(items)
