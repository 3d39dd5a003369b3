"""The nodes of a config graph, in an order in which every parent comes before its children."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import Key, raw_arguments, set_arguments

NODE_TYPES = (fdl.Buildable, list, tuple, dict)


class _Subclasses(dict[type, bool]):
    """Whether a type is a subclass of some; `isinstance` of a Buildable takes ten times as long."""

    def __init__(self, bases: tuple[type, ...]) -> None:
        super().__init__()
        self._bases = bases

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = issubclass(kind, self._bases)
        return found


IS_NODE = _Subclasses(NODE_TYPES)  # by the type of a value
IS_PART = _Subclasses((fdl.Buildable,))
LEAVES = frozenset({int, float, str, bool, type(None)})  # types of most values: no need to ask


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
    return IS_NODE[type(value)]


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """What a node holds, each with the step that leads to it: `.name`, `[0]` or `['key']`."""
    if IS_PART[type(value)]:
        for key, child in set_arguments(value).items():
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
    first = Node(root, [])
    found = {id(root): first}
    held: dict[int, list[tuple[str, Any]]] = {id(root): _held_nodes(root)}
    is_tree = True
    todo = [(step, child, first) for step, child in reversed(held[id(root)])]
    while todo:
        step, value, parent = todo.pop()
        me = id(value)
        if me in found:
            found[me].parents.append((parent, step))
            is_tree = False
            continue
        node = found[me] = Node(value, [(parent, step)])
        if below := _held_nodes(value):
            held[me] = below
            todo += [(step, child, node) for step, child in reversed(below)]
    if is_tree:
        return list(found.values())
    return [found[id(value)] for value in _parents_first(root, held)]


def parts(root: Any) -> list[Node]:
    """The nodes under `root` that are deferred calls, each once."""
    return [node for node in nodes(root) if IS_PART[type(node.value)]]


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


def _held_nodes(value: Any) -> list[tuple[str, Any]]:
    """The nodes that a node holds, each with the step that leads to it."""
    kind = type(value)
    if IS_PART[kind]:
        if LEAVES.issuperset(map(type, raw_arguments(value).values())):
            return []
        return [
            (step_to(key), one) for key, one in set_arguments(value).items() if IS_NODE[type(one)]
        ]
    if kind is list or kind is tuple:
        return [(f"[{i}]", one) for i, one in enumerate(value) if IS_NODE[type(one)]]
    return [(step, child) for step, child in children(value) if IS_NODE[type(child)]]


def _steps_to_nodes(value: Any) -> Iterator[tuple[Any, str, Any]]:
    return ((value, step, child) for step, child in _held_nodes(value))


def _parents_first(root: Any, held: dict[int, list[tuple[str, Any]]]) -> list[Any]:
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
            pending = [child for _, child in held.get(id(value), ())]
        while pending:
            child = pending.pop()
            if state.get(id(child)) == "entered":
                raise _first_loop(root)
            if id(child) not in state:
                stack += [(value, pending), (child, None)]
                break
        else:
            state[id(value)] = "left"
            left.append(value)
    return left[::-1]


def _first_loop(root: Any) -> ConfigError:
    """The mistake of the first way down, as one reads, that comes to a node that it passed."""
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
            outer = "".join(steps[: passed[0] + 1]).removeprefix(".")
            inner = "".join([*steps, step]).removeprefix(".")
            return ConfigError(
                f"{outer or 'the root'} ({title(child)}) contains itself, at {inner}: "
                "a part cannot be built, nor a quantity computed, from itself.",
                place=outer,
                sources=[outer, inner],
            )
        if id(child) not in done:
            way, steps, left = [*way, child], [*steps, step], [*left, _steps_to_nodes(child)]


def is_shared_object(node: Node) -> bool:
    """Whether several places hold the one object that a part builds, or all calls of a factory do.

    What an `ArgFactory` creates is never shared.
    """
    if not isinstance(node.value, fdl.Config | fdl.Partial):
        return False
    holder = node.parents[0][0] if node.parents else None
    while holder is not None and not isinstance(holder.value, fdl.Buildable):
        holder = holder.parents[0][0] if holder.parents else None
    in_factory = holder is not None and isinstance(holder.value, fdl.Partial | fdl.ArgFactory)
    return len(node.parents) > 1 or (in_factory and isinstance(node.value, fdl.Config))
