"""A graph as it is after `bind`, with the memory of who said what and what stands by default."""

import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.graph.binding.bind import Heard
from fidgpt.graph.binding.scope import Said, sayings
from fidgpt.graph.drawing.sharing import is_shared_object
from fidgpt.graph.storage.merkle import Merkle, Table
from fidgpt.graph.storage.noted import WrittenMerkle
from fidgpt.graph.storage.order import Order
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import IS_PART, Node, join, step_to

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
_NOTHING: Mapping[int, Any] = {}


def place_of(said: Said) -> Place:
    """The place that says a quantity."""
    return id(said.node.value), step_to(said.key)


class Bound:
    """A graph, bound in the mind: the graph itself is not touched.

    Attributes:
      root: the graph.
      table: gives the numbers of its nodes.
      merkle: these numbers, which are the same for what builds the same.
      paths: the first path of each node, by the identity of its value.
    """

    def __init__(
        self, root: Any, table: Table | None = None, originals: Mapping[int, Any] = _NOTHING
    ) -> None:
        """Reads a graph.

        Args:
          root: the graph.
          table: gives the numbers, the same for graphs that are to be compared.
          originals: where `root` is a copy, the nodes that are meant by the identity of theirs.

        Raises:
          ConfigErrors: the graph cannot be bound.
        """
        self.root = root
        self.table = table or Table()
        self._order = Order(root)
        self.merkle = Merkle(self._order, self.table)
        self.paths = _Paths(self._order)
        self._originals = originals

    def original(self, value: Any) -> Any:
        """The node of the graph that is meant; a plain value itself."""
        return self._originals.get(id(value), value)

    def overlaps(self, other: "Bound") -> bool:
        """Whether a part is in both graphs."""
        return self._order.overlaps(other._order)

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """Its nodes, parents first, with all places that hold each, those that hear it last."""
        return self._order.as_nodes()

    @functools.cached_property
    def node_of(self) -> Mapping[int, Node]:
        """Each node by the identity of its value."""
        return {id(node.value): node for node in self.nodes}

    def is_shared_object(self, part: Any) -> bool:
        """Whether several places hold the one object that a part builds, or all calls of one."""
        return is_shared_object(self._order.as_node(part))

    def knows(self, value: Any) -> bool:
        """Whether a value is a node of this graph."""
        return self._order.knows(value)

    def as_written(self, table: Table) -> Merkle:
        """Numbers for its nodes that are the same for what is written alike, whatever it hears."""
        return WrittenMerkle(self._order, table, self.kind)

    def kind(self, value: Any) -> Hashable:
        """The same only for nodes that are written alike and hear alike."""
        return id(value) if self._order.has_more_nodes else self._order.kind_as_written(value)

    def arguments(self, part: fdl.Buildable) -> dict[Key, Argument]:
        """All arguments of a part."""
        known, heard = part.__arguments__, self._order.heard_by(part)
        return {
            key: Argument(
                value,
                heard.get(key),
                is_default=key not in known and key not in heard and value is not fdl.NO_VALUE,
            )
            for key, value in self._order.arguments(part).items()
        }

    def held(self, value: Any) -> Sequence[Any]:
        """The nodes that a node holds, those that it hears included."""
        return self._order.held(value)

    def has_parts(self, value: Any) -> bool:
        """Whether a value is a part or a container that holds one."""
        return IS_PART[type(value)] or id(value) in self._holders

    def hearers(self, place: Place) -> tuple[str, ...]:
        """The paths of the parameters that hear a place."""
        holder, step = place
        at = self._order.lead.get(holder)
        if at is None or step not in map(step_to, sayings(at[0])):
            return ()
        return tuple(one.path for one in self._heard.get(place, ()))

    def path_of(self, place: Place) -> str:
        """The path of a place, through the first place that holds the node; "" for the root."""
        holder, step = place
        return join(self.paths.get(holder, ""), step)

    def other_place(self, value: Any, path: str) -> str | None:
        """A place other than `path` that holds a part; None where there is none."""
        if not isinstance(value, fdl.Buildable) or not self.knows(value):
            return None
        places = [
            self._order.place(holder, key) for _, holder, key in self._order.places(value)[:2]
        ]
        if len(places) < 2:
            return None
        return places[places[0] == path]

    @functools.cached_property
    def _heard(self) -> Mapping[Place, list[Heard]]:
        found: dict[Place, list[Heard]] = {}
        for one in self._order.heard:
            found.setdefault(place_of(one.said), []).append(one)
        return found

    @functools.cached_property
    def _holders(self) -> set[int]:
        """The containers that hold parts, however deep."""
        found: set[int] = set()
        for value in self._order.nodes:
            if not IS_PART[type(value)]:
                held = self.held(value)
                if any(IS_PART[type(one)] or id(one) in found for one in held):
                    found.add(id(value))
        return found


class _Paths(Mapping[int, str]):
    """The paths of nodes by identity, made when they are asked for."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def __getitem__(self, me: int) -> str:
        return self._order.path(self._order.lead[me][0])

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.lead)

    def __len__(self) -> int:
        return len(self._order.lead)
