"""The nodes of a config graph, in an order in which every parent comes before its children."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl

from fidgpt.graph.arguments import Key, given
from fidgpt.graph.errors import ConfigError

NODE_TYPES = (fdl.Buildable, list, tuple, dict)


@dataclass(eq=False, slots=True)
class Node:
    """A part, list, tuple or dict of the graph.

    Attributes:
      value: the object itself.
      parents: every node that holds the value, each with the step that leads from it; the
        first is the one that a reader meets first.
    """

    value: Any
    parents: list[tuple["Node", str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The first path that leads to the node; "" for the root."""
        steps: list[str] = []
        node = self
        while node.parents:
            node, step = node.parents[0]
            steps.append(step)
        return "".join(reversed(steps)).removeprefix(".")

    @property
    def paths(self) -> list[str]:
        """A path through each place that holds the node."""
        return [join(parent.path, step) for parent, step in self.parents]

    @property
    def is_shared(self) -> bool:
        """Whether this is a part that more than one place holds."""
        return isinstance(self.value, fdl.Buildable) and len(self.parents) > 1


def is_node(value: Any) -> bool:
    """Whether a value has an identity in the graph, rather than being a leaf."""
    return isinstance(value, NODE_TYPES)


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """What a node holds, each with the step that leads to it: `.name`, `[0]` or `['key']`."""
    if isinstance(value, fdl.Buildable):
        for key, child in given(value).items():
            yield step_to(key), child
    elif isinstance(value, dict):
        for key, child in value.items():
            yield f"[{key!r}]", child
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield f"[{index}]", child


def nodes(root: Any) -> list[Node]:
    """Every node under `root` once, parents first.

    A node's parents are in the order in which one reads the graph from top to bottom, so that its
    path is the one that a reader meets first.

    Linear in the number of edges, and without recursion, so that depth is no limit.

    Raises:
      ConfigError: a part contains itself.
    """
    steps = list(_in_reading_order(root))
    held: dict[int, list[Any]] = {}
    for parent, _, child in steps:
        held.setdefault(id(parent), []).append(child)
    ordered = _parents_first(root, held)
    found = {id(value): Node(value) for value in ordered}
    for parent, step, child in steps:
        found[id(child)].parents.append((found[id(parent)], step))
    return [found[id(value)] for value in ordered]


def parts(root: Any) -> list[Node]:
    """The nodes under `root` that are deferred calls, each once."""
    return [node for node in nodes(root) if isinstance(node.value, fdl.Buildable)]


def join(path: str, step: str) -> str:
    """A path made longer by a step, without the dot in front of a first name."""
    return (path + step).removeprefix(".")


def title(value: Any) -> str:
    """The name of what a part calls, or of a container's type."""
    if not isinstance(value, fdl.Buildable):
        return type(value).__name__
    function = fdl.get_callable(value)
    return getattr(function, "__qualname__", repr(function))


def step_to(key: Key) -> str:
    """The step to an argument of a part: by name, or by number where it has no name."""
    return f".{key}" if isinstance(key, str) else f"[{key}]"


def _in_reading_order(root: Any) -> Iterator[tuple[Any, str, Any]]:
    """Every step from a node to a node, as they are met when each node is read where first met."""
    met = {id(root)}
    stack = [_steps_to_nodes(root)]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
            continue
        yield found
        child = found[-1]
        if id(child) not in met:
            met.add(id(child))
            stack.append(_steps_to_nodes(child))


def _steps_to_nodes(value: Any) -> Iterator[tuple[Any, str, Any]]:
    return ((value, step, child) for step, child in children(value) if is_node(child))


def _parents_first(root: Any, held: dict[int, list[Any]]) -> list[Any]:
    """Depth-first search from the last child to the first, read backwards."""
    left: list[Any] = []
    state: dict[int, str] = {}
    stack: list[tuple[Any, list[Any] | None]] = [(root, None)]
    while stack:
        value, pending = stack.pop()
        if pending is None:
            if id(value) in state:
                continue
            state[id(value)] = "entered"
            pending = list(held.get(id(value), []))
        while pending:
            child = pending.pop()
            if state.get(id(child)) == "entered":
                raise ConfigError(_first_loop(root))
            if id(child) not in state:
                stack += [(value, pending), (child, None)]
                break
        else:
            state[id(value)] = "left"
            left.append(value)
    return left[::-1]


def _first_loop(root: Any) -> str:
    """The message for the first way down, as one reads, that comes to a node that it passed."""
    way, steps, left = [root], [""], [_steps_to_nodes(root)]
    done: set[int] = set()
    while True:
        found = next(left[-1], None)
        if found is None:
            done.add(id(way[-1]))
            way, steps, left = way[:-1], steps[:-1], left[:-1]
            continue
        _, step, child = found
        passed = [i for i, value in enumerate(way) if value is child]
        if passed:
            outer = "".join(steps[: passed[0] + 1]).removeprefix(".") or "the root"
            inner = "".join([*steps, step]).removeprefix(".")
            return (
                f"{outer} ({title(child)}) contains itself, at {inner}: "
                "a part cannot be built, nor a quantity computed, from itself."
            )
        if id(child) not in done:
            way, steps, left = [*way, child], [*steps, step], [*left, _steps_to_nodes(child)]
