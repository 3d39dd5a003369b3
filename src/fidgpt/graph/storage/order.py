"""A graph as it is once it is bound: its nodes, children first, and all that each part gets."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.binding.bind import Heard, bind, resolve
from fidgpt.graph.binding.scope import Said
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.storage.hearing import Hearing
from fidgpt.graph.storage.owners import Owners
from fidgpt.graph.storage.walked import Place, Walked, step_between
from fidgpt.graph.structure.arguments import Key, given
from fidgpt.graph.structure.walk import IS_NODE, IS_PART, Node, join, parts
from fidgpt.graph.typed.formula import formula, is_formula

# Of these types, values are leaves, and equal exactly if Python says that they are.
PLAIN = frozenset({int, str, bool, type(None), type(fdl.NO_VALUE)})
_NOTHING: Mapping[Key, Said] = {}
_NONE: Sequence[Any] = ()


class Order:
    """The nodes of a graph as it is once it is bound; the graph itself is not touched.

    Attributes:
      root: the graph.
    """

    def __init__(self, root: Any, *, bound: bool = True) -> None:
        """Walks a graph.

        Args:
          root: the graph.
          bound: whether open parameters have what they hear, or stay open.

        Raises:
          ConfigErrors: the graph cannot be bound.
          ConfigError: a part contains itself.
        """
        self.root = root
        self._walked = Walked(root)
        self._hearing: Hearing | None = None
        self.has_more_nodes = False
        if bound and any(map(_is_open, self._walked.firsts)):
            self._bind()

    @property
    def lead(self) -> Mapping[int, Place]:
        """The first place that holds a node, by its identity, in the order in which one reads."""
        return self._walked.lead

    @cached_property
    def nodes(self) -> list[Any]:
        """Every part and container once, children before what holds them."""
        return self._walked.nodes

    @cached_property
    def several(self) -> set[int]:
        """The identities of the parts that more than one place holds.

        What lies in a list that two places hold, two places hold: a list is but its items.
        """
        found: set[int] = set()
        todo = [self._walked.lead[me][0] for me in self._walked.again]
        while todo:
            value = todo.pop()
            if id(value) not in found:
                found.add(id(value))
                todo += () if IS_PART[type(value)] else self.held(value)
        return {me for me in found if IS_PART[type(self._walked.lead[me][0])]}

    @cached_property
    def owners(self) -> Owners:
        """Who owns what several places hold."""
        return Owners(self._walked)

    @cached_property
    def heard(self) -> list[Heard]:
        """What open parameters hear, in the order in which one reads the graph."""
        return self._hearing.all() if self._hearing else []

    def heard_by(self, part: Any) -> Mapping[Key, Said]:
        """What the open parameters of a part hear."""
        return self._hearing.of(part) if self._hearing else _NOTHING

    def arguments(self, part: Any) -> dict[Key, Any]:
        """All arguments of a part, heard ones and defaults included.

        `fdl.NO_VALUE` stands where there is none.
        """
        known = self._walked.arguments(part)
        if self._hearing and self.hears and part.__argument_tags__:
            for key, said in self._hearing.of(part).items():
                known[key] = said.value
        return known

    def kind(self, value: Any) -> Hashable:
        """The same for nodes that are written alike and hear alike, so that they build the same."""
        if self._hearing and self.hears:
            return self._hearing.kind(value)
        return self._walked.twins[id(value)]

    def kind_as_written(self, value: Any) -> Hashable:
        """The same for nodes that are written alike and hear alike, whatever they heard besides."""
        return self._hearing.kind(value) if self._hearing else self._walked.twins[id(value)]

    def knows(self, value: Any) -> bool:
        """Whether a value is a node of the graph."""
        return id(value) in self._walked.lead

    def overlaps(self, other: "Order") -> bool:
        """Whether a part is in both graphs."""
        mine, others = self.lead, other.lead
        return any(IS_PART[type(mine[me][0])] for me in mine.keys() & others.keys())

    @property
    def hears(self) -> bool:
        """Whether nodes that are written alike may be different, because they hear."""
        return self._hearing is not None and not self.has_more_nodes

    @property
    def has_many_twins(self) -> bool:
        """Whether most nodes are written like another."""
        return 2 * len(self._walked.firsts) < len(self._walked.twins)

    def held(self, value: Any) -> Sequence[Any]:
        """The nodes that a node holds, in order, as often as it does."""
        return self._walked.held.get(id(value), _NONE)

    def as_nodes(self) -> list[Node]:
        """The nodes, parents first, each with all places that hold it, those that hear it last."""
        lead, again = self._walked.lead, self._walked.again
        # Nothing is met again in a tree, of which the nodes are met parents first.
        ids = reversed(self._walked.twins) if again else iter(lead)
        made = {me: Node(lead[me][0]) for me in ids}
        for node in made.values():
            node.parents += [
                (made[id(holder)], step_between(holder, key))
                for _, holder, key in self._walked.places(node.value)
            ]
        return list(made.values())

    def as_node(self, value: Any) -> Node:
        """One node with its places, and what is around it up to the next part."""
        node = top = Node(value)
        while places := self._walked.places(top.value):
            top.parents = [(Node(holder), step_between(holder, key)) for _, holder, key in places]
            top, _ = top.parents[0]
            if IS_PART[type(top.value)]:
                break
        return node

    def path(self, value: Any) -> str:
        """The path of a node through the first place that holds it; "" for the root."""
        steps: list[str] = []
        while (place := self.lead[id(value)])[1] is not None:
            _, value, key = place
            steps.append(step_between(value, key))
        return "".join(reversed(steps)).removeprefix(".")

    def places(self, value: Any) -> list[Place]:
        """All places that hold a node; none for the root."""
        return self._walked.places(value)

    def is_held_once(self, value: Any) -> bool:
        """Whether one place alone holds a node."""
        return id(value) not in self._walked.again

    def place(self, holder: Any, key: Any) -> str:
        """The path of an argument or item of a node."""
        return join(self.path(holder), step_between(holder, key))

    def _bind(self) -> None:
        """Finds out what open parameters hear and what formulas look up."""
        try:
            self._hearing = Hearing(self._walked)
        except ConfigError:
            resolve(self.root)  # which tells of all that is wrong
            raise
        formulas = looked_up(self.root, self._walked.firsts)
        if formulas or any(IS_NODE[type(said.value)] for said in self._hearing.said()):
            self._walk_again(formulas)

    def _walk_again(self, formulas: Mapping[int, dict[Key, Any]]) -> None:
        """Walks through what is heard, too."""
        extra: dict[int, dict[Key, Any]] = {}
        for one in self.heard:
            extra.setdefault(id(one.part), {})[one.key] = one.said.value
        for me, arguments in formulas.items():
            extra.setdefault(me, {}).update(arguments)
        self.has_more_nodes = True
        self._walked = Walked(self.root, extra)
        self._say_first()

    def _say_first(self) -> None:
        """Gives a part that is heard its path from a place that says it."""
        lead, again = self._walked.lead, self._walked.again
        hearing = {(id(one.part), one.key) for one in self.heard}
        for one in self.heard:
            me = id(one.said.value)
            if me in again:
                places = [lead[me], *again[me]]
                places.sort(key=lambda place: (id(place[1]), place[2]) in hearing)
                lead[me], *again[me] = places


def looked_up(root: Any, found: Iterable[Any]) -> dict[int, dict[Key, Any]]:
    """The arguments that formulas get when a graph is bound, by the identity of the formula.

    Args:
      root: the graph.
      found: values of its nodes, one of each form at least.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    if not any(is_formula(value) for value in found if IS_PART[type(value)]):
        return {}
    formulas = [node for node in parts(root) if is_formula(node.value)]
    bound = bind(root)
    known = {id(node.value): given(_at(bound, node.path)) for node in formulas}
    looked = [value for one in known.values() for value in one["values"].values()]
    twins: dict[int, Any] = {}
    if any(isinstance(value, fdl.Buildable) for value in looked):
        twins = {id(_at(bound, node.path)): node.value for node in parts(root)}
    for one in known.values():
        values = {name: twins.get(id(value), value) for name, value in one["values"].items()}
        one["values"] = values
    return known


def _at(root: Any, path: str) -> Any:
    place = find_place(root, path) if path else None
    if place is None:
        return root
    return place.container if isinstance(place.container, TaggedValueCls) else place.value


def _is_open(part: Any) -> bool:
    """Whether a node is a part that gets arguments only when the graph is bound."""
    if not IS_PART[type(part)]:
        return False
    tags = part.__argument_tags__
    if part.__fn_or_cls__ is formula or not tags:
        return part.__fn_or_cls__ is formula
    known = part.__arguments__
    return any(own and key not in known for key, own in tags.items())
