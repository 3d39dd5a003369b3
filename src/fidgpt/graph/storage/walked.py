"""A graph as it is written, walked once: what holds what, and which nodes are written alike."""

from collections.abc import Iterator, Mapping
from typing import Any

from fidgpt.graph.structure.arguments import Key, every, named_defaults
from fidgpt.graph.structure.walk import IS_NODE, IS_PART, LEAVES, nodes, step_to

Place = tuple[Any, Any, Any]  # a node, what holds it, and the key there
_Form = tuple[Any, ...]  # what a node calls, and the identities of what it holds
_NOTHING: Mapping[int, dict[Key, Any]] = {}


class Walked:
    """The nodes of a graph, each visited once.

    Twins are nodes that are written alike: they call the same with the very same values under the
    same names, carry the same tags, and hold twins. Most nodes of a large graph are twins of a few,
    so that what holds for all twins is worked out for a few. Nodes may be equal and no twins.

    Attributes:
      root: the graph.
      lead: the first place that holds a node, by its identity, in the order in which one reads.
      again: the other places of those nodes that have more.
      held: the nodes that a node holds, in order, as often as it does.
      twins: the identity of the first node that is written like a node, by the identity of that,
        children before what holds them.
      firsts: the nodes that are not written like an earlier one, in the same order.
    """

    def __init__(self, root: Any, extra: Mapping[int, dict[Key, Any]] = _NOTHING) -> None:
        """Walks a graph.

        Args:
          root: the graph.
          extra: arguments that parts have besides those that are written, by their identity.

        Raises:
          ConfigError: a part contains itself.
        """
        self.root = root
        self.lead: dict[int, Place] = {}
        self.again: dict[int, list[Place]] = {}
        self.held: dict[int, list[Any]] = {}
        self.twins: dict[int, int] = {}
        self.firsts: list[Any] = []
        self._extra = extra
        self._leaves: dict[_Form, int] = {}
        self._forms: dict[_Form, int] = {}
        self._names: dict[int, Mapping[Key, Any] | None] = {}
        self._walk()

    @property
    def nodes(self) -> list[Any]:
        """Every part and container once, children before what holds them."""
        lead = self.lead
        return [lead[me][0] for me in self.twins]

    def places(self, value: Any) -> list[Place]:
        """All places that hold a node; none for the root."""
        first = self.lead[id(value)]
        return [] if first[1] is None else [first, *self.again.get(id(value), ())]

    def arguments(self, part: Any) -> dict[Key, Any]:
        """All arguments of a part, defaults included, `fdl.NO_VALUE` where there is none."""
        named = named_defaults(part)
        known = _sorted(part) if named is None else {**named, **part.__arguments__}
        return known | self._extra[id(part)] if id(part) in self._extra else known

    def _walk(self) -> None:
        lead, twins, leaves = self.lead, self.twins, self._leaves
        entered: list[tuple[Any, _Form]] = []
        ways: list[Iterator[Place]] = [iter([(self.root, None, None)])]
        while ways:
            for place in ways[-1]:
                value = place[0]
                me = id(value)
                if me in lead:
                    self._meet_again(place)
                    continue
                lead[me] = place
                form = self._form(value, me)
                twin = leaves.get(form)
                if twin is not None:  # what is written like it holds no nodes
                    twins[me] = twin
                elif below := self._below(value) if IS_PART[type(value)] else _items(value):
                    self.held[me] = [one[0] for one in below]
                    entered.append((value, form))
                    ways.append(iter(below))
                    break
                else:
                    leaves[form] = twins[me] = me
                    self.firsts.append(value)
            else:
                ways.pop()
                if entered:
                    self._leave(*entered.pop())

    def _meet_again(self, place: Place) -> None:
        """Remembers one more place of a node, which must have been left by now."""
        me = id(place[0])
        if me not in self.twins:
            nodes(self.root)  # which says where it contains itself
        self.again.setdefault(me, []).append(place)

    def _below(self, part: Any) -> list[Place]:
        """The nodes that a part holds, those among its defaults included."""
        names, known = self._names_of(part), part.__arguments__
        if names is None:
            known = self.arguments(part)
            return [(one, part, key) for key, one in known.items() if IS_NODE[type(one)]]
        if LEAVES.issuperset(map(type, known.values())):
            return []
        return [
            (one, part, key)
            for key in names
            if type(one := known.get(key)) not in LEAVES and IS_NODE[type(one)]
        ]

    def _names_of(self, part: Any) -> Mapping[Key, Any] | None:
        """The parameters of a part, in order; None where more than what is set may be nodes."""
        function = id(part.__fn_or_cls__)
        if function not in self._names:
            named = None if self._extra else named_defaults(part)
            has_nodes = named is not None and any(IS_NODE[type(one)] for one in named.values())
            self._names[function] = None if has_nodes else named
        return self._names[function]

    def _leave(self, value: Any, form: _Form) -> None:
        """Finds the first node that is written like one of which all that it holds was left."""
        me = id(value)
        form = tuple(map(self.twins.get, form, form))
        twin = self.twins[me] = self._forms.setdefault(form, me)
        if twin == me:
            self.firsts.append(value)

    def _form(self, value: Any, me: int) -> _Form:
        """The same for nodes that are written alike and hold the very same."""
        kind = type(value)
        if not IS_PART[kind]:
            held = (*value, *value.values()) if isinstance(value, dict) else value
            return kind, *map(id, held)
        known, tags = value.__arguments__, value.__argument_tags__
        if me in self._extra:
            known = {**known, **self._extra[me]}
        if not tags:
            return kind, id(value.__fn_or_cls__), *known, *map(id, known.values())
        carried = map(tuple, tags.values())
        return kind, id(value.__fn_or_cls__), *known, *map(id, known.values()), *tags, *carried


def step_between(holder: Any, key: Any) -> str:
    """The step from a node to what it holds under a key."""
    return step_to(key) if IS_PART[type(holder)] else f"[{key!r}]"


def _sorted(part: Any) -> dict[Key, Any]:
    """All arguments, those that `**kwargs` takes last and by name: their order says nothing."""
    known, parameters = every(part), part.__signature_info__.parameters
    others = sorted(key for key in known if isinstance(key, str) and key not in parameters)
    first = {key: value for key, value in known.items() if key not in others}
    return first | {key: known[key] for key in others}


def _items(value: Any) -> list[Place]:
    """The nodes in a container; those of a dict by their sorted keys."""
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda item: str(item[0]))
    elif not isinstance(value, list | tuple) or LEAVES.issuperset(map(type, value)):
        return []
    else:
        pairs = enumerate(value)
    return [(child, value, key) for key, child in pairs if IS_NODE[type(child)]]
