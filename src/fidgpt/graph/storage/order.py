"""A bound graph walked once: its nodes, children first, and all that each part gets."""

from collections.abc import Iterable
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.arguments import Key, every, given, named_defaults
from fidgpt.graph.bind import Heard, bind, hear, resolve
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.formula import formula, is_formula
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.walk import IS_NODE, IS_PART, Node, join, nodes, parts, step_to

# Of these types, values are leaves, and equal exactly if Python says that they are.
PLAIN = frozenset({int, str, bool, type(None), type(fdl.NO_VALUE)})
_LEAVES = PLAIN | {float}


class Order:
    """The nodes of a graph as it is once it is bound; the graph itself is not touched.

    Attributes:
      root: the graph.
      nodes: every part and container once, children before what holds them.
      arguments: all arguments of each part, heard ones and defaults included, `fdl.NO_VALUE`
        where there is none; by the identity of the part.
      held: the nodes that a node holds, in order, as often as it does; by identity.
      lead: the first place that holds a node, as the holder and the key; by identity.
      several: the identities of the parts that more than one place holds.
      heard: what open parameters hear.
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
        self.heard: list[Heard] = []
        self._extra: dict[int, dict[Key, Any]] = {}
        self._walk()
        if bound and any(_is_open(value) for value in self.nodes):
            self._bind()
        self._spread()

    @property
    def has_more_nodes(self) -> bool:
        """Whether the graph holds a node in more places once it is bound than as it is written."""
        return bool(self._extra)

    def as_nodes(self) -> list[Node]:
        """The nodes, parents first, each with all places that hold it, those that hear it last."""
        made = {id(value): Node(value) for value in reversed(self.nodes)}
        for me, (holder, key) in self.lead.items():
            if holder is not None:
                made[me].parents.append((made[id(holder)], step_between(holder, key)))
        for me, places in self._again.items():
            made[me].parents += [(made[id(one)], step_between(one, key)) for one, key in places]
        # Nothing is met again in a tree, of which the nodes are met parents first.
        return list(made.values()) if self._again else [made[me] for me in self.lead]

    def path(self, value: Any) -> str:
        """The path of a node through the first place that holds it; "" for the root."""
        steps: list[str] = []
        while (place := self.lead[id(value)])[0] is not None:
            value, key = place
            steps.append(step_between(value, key))
        return "".join(reversed(steps)).removeprefix(".")

    def places(self, value: Any) -> list[tuple[Any, Any]]:
        """All places that hold a node, each as the holder and the key; none for the root."""
        first = self.lead[id(value)]
        return [] if first[0] is None else [first, *self._again.get(id(value), ())]

    def is_held_once(self, value: Any) -> bool:
        """Whether one place alone holds a node."""
        return id(value) not in self._again

    def place(self, holder: Any, key: Any) -> str:
        """The path of an argument or item of a node."""
        return join(self.path(holder), step_between(holder, key))

    def _bind(self) -> None:
        """Adds what open parameters hear and what formulas look up."""
        try:
            self.heard = hear(self.as_nodes())
        except ConfigError:
            resolve(self.root)  # which names places in the order in which one reads them
            raise
        if self._again:
            read = {me: number for number, me in enumerate(self.lead)}
            self.heard.sort(key=lambda one: read[id(one.part)])
        formulas = looked_up(self.root, self.nodes)
        if not formulas and not any(IS_NODE[type(one.said.value)] for one in self.heard):
            for one in self.heard:
                self.arguments[id(one.node.value)][one.key] = one.said.value
            return
        for one in self.heard:
            self._extra.setdefault(id(one.part), {})[one.key] = one.said.value
        for me, arguments in formulas.items():
            self._extra.setdefault(me, {}).update(arguments)
        self._walk()
        self._said_first()

    def _walk(self) -> None:
        """Visits everything."""
        self.nodes: list[Any] = []
        self.arguments: dict[int, dict[Key, Any]] = {}
        self.held: dict[int, list[Any]] = {}
        self.lead: dict[int, tuple[Any, Any]] = {}
        self.several: set[int] = set()
        self._again: dict[int, list[tuple[Any, Any]]] = {}
        entered: set[int] = set()
        lead, ordered = self.lead, self.nodes
        todo: list[tuple[Any, Any, Any]] = [(self.root, None, None)]
        while todo:
            value, holder, key = todo.pop()
            me = id(value)
            if holder is _Done:
                entered.remove(me)
                ordered.append(value)
                continue
            if me in lead:
                if me in entered:
                    nodes(self.root)  # which says where it contains itself
                self.several.add(me)
                self._again.setdefault(me, []).append((holder, key))
                continue
            lead[me] = holder, key
            below = self._below(value, me) if IS_PART[type(value)] else _items(value)
            if not below:
                ordered.append(value)
                continue
            entered.add(me)
            self.held[me] = [child for child, *_ in below]
            todo.append((value, _Done, None))
            todo += reversed(below)

    def _below(self, part: Any, me: int) -> list[tuple[Any, Any, Any]]:
        """Reads the arguments of a part; those that are nodes, each with its place."""
        named = named_defaults(part)
        held = _sorted(part) if named is None else {**named, **part.__arguments__}
        if me in self._extra:
            held |= self._extra[me]
        self.arguments[me] = held
        if _LEAVES.issuperset(map(type, held.values())):
            return []
        return [(child, part, key) for key, child in held.items() if IS_NODE[type(child)]]

    def _said_first(self) -> None:
        """A part that is heard has its path from a place that says it."""
        hearing = {(id(one.part), one.key) for one in self.heard}
        for one in self.heard:
            me = id(one.said.value)
            if me in self._again:
                places = [self.lead[me], *self._again[me]]
                places.sort(key=lambda place: (id(place[0]), place[1]) in hearing)
                self.lead[me], *self._again[me] = places

    def _spread(self) -> None:
        """What lies in a list that two places hold, two places hold: a list is but its items."""
        if not self.several:
            return
        for value in reversed(self.nodes):
            if id(value) in self.several and not isinstance(value, fdl.Buildable):
                self.several.update(map(id, self.held.get(id(value), ())))
        self.several.intersection_update(self.arguments)


class _Done:
    """Marks that all that a node holds was visited."""


def step_between(holder: Any, key: Any) -> str:
    """The step from a node to what it holds under a key."""
    if isinstance(holder, fdl.Buildable):
        return step_to(key)
    return f"[{key!r}]"


def _sorted(part: Any) -> dict[Key, Any]:
    """All arguments, those that `**kwargs` takes last and by name: their order says nothing."""
    known, parameters = every(part), part.__signature_info__.parameters
    others = sorted(key for key in known if isinstance(key, str) and key not in parameters)
    first = {key: value for key, value in known.items() if key not in others}
    return first | {key: known[key] for key in others}


def looked_up(root: Any, found: Iterable[Any]) -> dict[int, dict[Key, Any]]:
    """The arguments that formulas get when a graph is bound, by the identity of the formula.

    Args:
      root: the graph.
      found: the values of its nodes.

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


def _items(value: Any) -> list[tuple[Any, Any, Any]]:
    """The nodes in a container, each with its place; those of a dict by their sorted keys."""
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda item: str(item[0]))
    elif not isinstance(value, list | tuple) or _LEAVES.issuperset(map(type, value)):
        return []
    else:
        pairs = enumerate(value)
    return [(child, value, key) for key, child in pairs if IS_NODE[type(child)]]
