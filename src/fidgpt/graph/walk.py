"""The nodes of a config graph, every parent before its children, and copies of them."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.errors import ConfigError
from fidgpt.graph import fiddle, hints
from fidgpt.graph.fiddle import Key, kind_of, named_defaults, raw_arguments, set_arguments

NODE_TYPES = (fdl.Buildable, list, tuple, dict)
B = TypeVar("B", bound=fdl.Buildable)


class _Subclasses(dict[type, bool]):
    """Whether a type is a subclass of some; `isinstance` of a Buildable takes ten times as long."""

    def __init__(self, bases: tuple[type, ...]) -> None:
        super().__init__()
        self._bases = bases

    def __missing__(self, kind: type) -> bool:
        answer = self[kind] = issubclass(kind, self._bases)
        return answer


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
      compared: the arguments whose values were compared to decide what others inherit.
    """

    value: Any
    parents: list[tuple["Node", str]] = field(default_factory=list)
    compared: set[Key] = field(default_factory=set)

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


def places(node: Node, step: str) -> list[str]:
    """Return the paths of one parameter or item; inside a shared part it has several.

    Args:
      node: what holds it.
      step: the step from there.
    """
    inside, around = step, node
    while len(around.parents) == 1:
        around, outer = around.parents[0]
        inside = outer + inside
    return [join(path, inside) for path in around.paths] or [inside.removeprefix(".")]


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
    return walk(root, held_nodes)[1]


def walk(
    root: Any, held_by: Callable[[Any], list[tuple[str, Any]]]
) -> tuple[dict[int, Node], list[Node]]:
    """Return every node under `root`, in reading order by identity, and as `nodes` does.

    Args:
      root: the first node.
      held_by: returns the nodes that a node holds, each with the step that leads to it.

    Raises:
      ConfigError: a part contains itself.
    """
    first = Node(root)
    node_of = {id(root): first}
    held = {id(root): held_by(root)}
    todo = [(step, child, first) for step, child in reversed(held[id(root)])]
    is_tree = True
    while todo:
        step, value, parent = todo.pop()
        if node := node_of.get(id(value)):
            node.parents.append((parent, step))
            is_tree = False
            continue
        node = node_of[id(value)] = Node(value, [(parent, step)])
        if below := held_by(value):
            held[id(value)] = below
            todo += [(step, child, node) for step, child in reversed(below)]
    return node_of, list(node_of.values()) if is_tree else _parents_first(first, node_of, held)


def _parents_first(
    first: Node, node_of: dict[int, Node], held: dict[int, list[tuple[str, Any]]]
) -> list[Node]:
    """Return nodes that were found in reading order, each after the last of its parents."""
    order: list[Node] = []
    left = [first] if not first.parents else []
    waiting = {key: len(node.parents) for key, node in node_of.items()}
    while left:
        order.append(left.pop())
        for _, child in reversed(held.get(id(order[-1].value), ())):
            waiting[id(child)] -= 1
            if not waiting[id(child)]:
                left.append(node_of[id(child)])
    if len(order) < len(node_of):
        raise next(_loops(first, node_of.values()))
    return order


def _loops(first: Node, graph_nodes: Iterable[Node]) -> Iterator[ConfigError]:
    """Yield the error of each node that contains itself, in reading order."""
    back, first.parents = first.parents, []  # so that its path is empty
    for node in graph_nodes:
        for parent, step in back if node is first else node.parents[1:]:
            above = parent
            while above is not node and above is not first:
                above = above.parents[0][0]
            if above is node:
                inner = join(parent.path, step)
                yield ConfigError(
                    f"{node.path or 'the root'} ({title(node.value)}) contains itself, at {inner}: "
                    "a component or quantity cannot depend on itself.",
                    place=node.path,
                    sources=[node.path, inner],
                )


def parts(root: Any) -> list[Node]:
    """The nodes under `root` that are deferred calls, each once."""
    return [node for node in nodes(root) if IS_PART[type(node.value)]]


def holders(graph_nodes: list[Node]) -> set[int]:
    """The nodes other than plain containers, by identity, given all nodes, parents first."""
    holders: set[int] = set()
    for node in reversed(graph_nodes):
        held = any(id(child) in holders for _, child in children(node.value))
        if held or IS_PART[type(node.value)]:
            holders.add(id(node.value))
    return holders


def join(path: str, step: str) -> str:
    """A path made longer by a step, without the dot in front of a first name."""
    return (path + step).removeprefix(".")


def title(value: Any) -> str:
    """The name of what a part calls, or of a container's type."""
    if not isinstance(value, fdl.Buildable):
        return kind_of(value).__name__
    function = fdl.get_callable(value)
    return getattr(function, "__qualname__", repr(function))


def step_to(key: Key) -> str:
    """The step to an argument of a part: by name, or by number where it has no name."""
    return f".{key}" if isinstance(key, str) else f"[{key}]"


def step_from(holder: Any, key: Any) -> str:
    """The step from a node to what it holds under a key."""
    return step_to(key) if IS_PART[type(holder)] else f"[{key!r}]"


def held_nodes(value: Any) -> list[tuple[str, Any]]:
    """The nodes that a node holds, each with the step that leads to it."""
    if not IS_PART[type(value)]:
        return [(step, child) for step, child in children(value) if IS_NODE[type(child)]]
    known = raw_arguments(value)
    plain = getattr(known, "arguments", known)  # without recording that they are read
    if LEAVES.issuperset(map(type, plain.values())):
        return []
    inner = {key for key, child in plain.items() if IS_NODE[type(child)]}
    keys = inner and (named_defaults(value) or set_arguments(value))
    return [(step_to(key), known[key]) for key in keys if key in inner]


def part_around(node: Node | None) -> Node | None:
    """A node that is a part, or else the first part around it; None if there is none."""
    while node is not None and not isinstance(node.value, fdl.Buildable):
        node = node.parents[0][0] if node.parents else None
    return node


def is_shared_object(node: Node) -> bool:
    """Whether several places hold the one object that a part builds, or all calls of a factory do.

    What an `ArgFactory` creates is never shared.
    """
    if not isinstance(node.value, fdl.Config | fdl.Partial):
        return False
    holder = part_around(node.parents[0][0]) if node.parents else None
    in_factory = holder is not None and isinstance(holder.value, fdl.Partial | fdl.ArgFactory)
    return len(node.parents) > 1 or (in_factory and isinstance(node.value, fdl.Config))


@gc_paused()
def clone(root: Any) -> Any:
    """A copy of a whole graph: what was one part stays one part; leaves are not copied.

    A list or dict is a value: where several places hold one, each of them gets its own.
    A copy of a bound graph takes changes, but what was inherited is set in it, and does not follow.
    """
    return copies_of(nodes(root))[id(root)]


def clone_part(part: B) -> B:
    """A copy of one part that holds the same parts inside.

    Of a factory, what it creates at every call (`ArgFactory`, `Partial`) is copied, and a
    `Config`, which is built once for all calls, is held by both: a RoPE, or a table. A deferred
    computation of a number is copied too, because it follows the part that asks for it.
    """
    inner = nodes(part)
    kept = [node.value for node in inner[1:] if isinstance(node.value, fdl.Config)]
    return copies_of(inner, kept=[part for part in kept if not hints.is_quantity(part)])[id(part)]


def copies_of(graph_nodes: Iterable[Node], *, kept: Iterable[Any] = ()) -> dict[int, Any]:
    """A copy of each of the nodes of a graph, parents first, by the identity of the node.

    What is `kept` is in the copies itself. A root that is no node of a graph is its own copy.
    """
    copies = {id(value): value for value in kept}
    used: set[int] = set()

    def take(value: Any) -> Any:  # the copy for one more place; a list or dict is copied for each
        me = id(value)
        if IS_PART[type(value)] or me not in copies:
            return copies.get(me, value)
        if me in used:
            return _with_children(value, take)
        used.add(me)
        return copies[me]

    for node in reversed([*graph_nodes]):  # children first, so that depth is no limit
        if id(node.value) not in copies:
            copies[id(node.value)] = _with_children(node.value, take)
    return copies


def _with_children(value: Any, take: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if IS_PART[kind]:
        arguments = dict(raw_arguments(value))
        if not LEAVES.issuperset(map(type, arguments.values())):
            arguments = {
                key: arg if type(arg) in LEAVES else take(arg) for key, arg in arguments.items()
            }
        return fiddle.copy_part(value, arguments)
    if not IS_NODE[kind]:
        return value
    if isinstance(value, tuple):
        return getattr(kind, "_make", kind)(map(take, value))  # named tuples have a _make
    shell = copy.copy(value)
    if isinstance(value, dict):
        shell.update((key, take(item)) for key, item in value.items())
    else:
        shell[:] = map(take, value)
    return shell
