"""A graph as it is after `bind`, with the memory of who said what and what stands by default."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.arguments import Key, assign, every, given
from fidgpt.graph.bind import resolve
from fidgpt.graph.clone import clone
from fidgpt.graph.scope import Said
from fidgpt.graph.walk import Node, children, join, nodes, step_to

Place = tuple[int, str]  # the identity of a part or container, and the step to what it holds


@dataclass(frozen=True, slots=True)
class Argument:
    """What a part gets for one parameter.

    Attributes:
      value: a plain value, a part, or a container of them; `fdl.NO_VALUE` where there is none.
      said: the place from which the value is heard; None where it stands in the part itself.
      is_default: whether nobody said anything, and the default stands.
    """

    value: Any
    said: Said | None = None
    is_default: bool = False

    @property
    def is_own(self) -> bool:
        """Whether the value was set in this very place."""
        return self.said is None and not self.is_default and self.value is not fdl.NO_VALUE


NOTHING = Argument(fdl.NO_VALUE)


def place_of(said: Said) -> Place:
    """The place that says a quantity."""
    return id(said.node.value), step_to(said.key)


class Bound:
    """A copy of a graph, bound; the graph itself is not touched.

    Attributes:
      root: the copy.
      nodes: its nodes, parents first.
      node_of: each node by the identity of its value.
      paths: the first path of each node, by the identity of its value.
      hearers: the paths of the parameters that hear each place.
    """

    def __init__(self, root: Any) -> None:
        self.root = clone(root)
        copies = zip(nodes(root), nodes(self.root), strict=True)
        self._originals = {id(copy.value): original.value for original, copy in copies}
        heard = resolve(self.root)
        self._heard = {(id(one.part), one.key): one.said for one in heard}
        self.hearers: Mapping[Place, list[str]] = defaultdict(list)
        for one in heard:
            self.hearers[place_of(one.said)].append(one.path)
            assign(one.part, one.key, one.said.value)
        self.nodes = self._said_first(nodes(self.root))
        self.node_of = {id(node.value): node for node in self.nodes}
        self.paths = {id(self.root): ""}
        for node in self.nodes[1:]:
            parent, step = node.parents[0]
            self.paths[id(node.value)] = self.path_of((id(parent.value), step))
        self._arguments = {id(node.value): self._read(node.value) for node in self.nodes}
        self._with_parts = self._find_holders()

    def arguments(self, part: fdl.Buildable) -> dict[Key, Argument]:
        """All arguments of a part of the copy."""
        return self._arguments[id(part)]

    def original(self, value: Any) -> Any:
        """The node of the given graph of which a node is the copy; a plain value itself."""
        return self._originals.get(id(value), value)

    def has_parts(self, value: Any) -> bool:
        """Whether a value is a part or a container that holds one."""
        return id(value) in self._with_parts

    def path_of(self, place: Place) -> str:
        """The path of a place, through the first place that holds the node; "" for the root."""
        holder, step = place
        return join(self.paths.get(holder, ""), step)

    def other_place(self, value: Any, path: str) -> str | None:
        """A place other than `path` that holds a part; None where there is none."""
        node = self.node_of.get(id(value))
        if node is None or not node.is_shared:
            return None
        parent, step = node.parents[self.paths[id(value)] == path]
        return self.path_of((id(parent.value), step))

    def _said_first(self, found: list[Node]) -> list[Node]:
        """A part that is heard has its path from the place that says it."""
        heard = {(part, step_to(key)) for part, key in self._heard}
        for node in found:
            node.parents.sort(key=lambda parent: (id(parent[0].value), parent[1]) in heard)
        return found

    def _read(self, value: Any) -> dict[Key, Argument]:
        if not isinstance(value, fdl.Buildable):
            return {}
        known = given(value)
        return {
            key: Argument(
                held,
                self._heard.get((id(value), key)),
                is_default=key not in known and held is not fdl.NO_VALUE,
            )
            for key, held in every(value).items()
        }

    def _find_holders(self) -> set[int]:
        found: set[int] = set()
        for node in reversed(self.nodes):
            held = (id(child) for _, child in children(node.value))
            if isinstance(node.value, fdl.Buildable) or any(one in found for one in held):
                found.add(id(node.value))
        return found
