"""The order in which the nodes of a graph are stored."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.binding import (
    Binding,
    Inherited,
    Scope,
    Scopes,
    bind,
    inherited_arguments,
    resolve,
    sayings,
)
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.fiddle import Key, all_arguments, named_defaults, set_arguments
from fidgpt.graph.formulas import formula, is_formula
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.walk import IS_NODE, IS_PART, LEAVES, Node, join, nodes, parts, step_to

ParameterRef = tuple[Any, Any, Any]  # a node, what holds it, and the key there
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
        self.lead: dict[int, ParameterRef] = {}
        self.again: dict[int, list[ParameterRef]] = {}
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

    def places(self, value: Any) -> list[ParameterRef]:
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
        ways: list[Iterator[ParameterRef]] = [iter([(self.root, None, None)])]
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

    def _meet_again(self, place: ParameterRef) -> None:
        """Remembers one more place of a node, which must have been left by now."""
        me = id(place[0])
        if me not in self.twins:
            nodes(self.root)  # which says where it contains itself
        self.again.setdefault(me, []).append(place)

    def _below(self, part: Any) -> list[ParameterRef]:
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
    known, parameters = all_arguments(part), part.__signature_info__.parameters
    others = sorted(key for key in known if isinstance(key, str) and key not in parameters)
    first = {key: value for key, value in known.items() if key not in others}
    return first | {key: known[key] for key in others}


def _items(value: Any) -> list[ParameterRef]:
    """The nodes in a container; those of a dict by their sorted keys."""
    if isinstance(value, dict):
        pairs = sorted(value.items(), key=lambda item: str(item[0]))
    elif not isinstance(value, list | tuple) or LEAVES.issuperset(map(type, value)):
        return []
    else:
        pairs = enumerate(value)
    return [(child, value, key) for key, child in pairs if IS_NODE[type(child)]]


Kind = tuple[int, int]  # the twin of a node, and the identity of the scope around it


class Hearing:
    """Hears for the nodes of a graph: twins in one scope hear the same, and so does all inside.

    Scopes are looked up from a node upwards, so that of many twins only the first is looked into.
    """

    def __init__(self, walked: Walked) -> None:
        """Hears for every part of a graph.

        Raises:
          ConfigError: a quantity is said by nobody, or in two ways.
        """
        self._walked = walked
        self._scopes = Scopes()
        self._nodes: dict[int, Node] = {}
        self._around: dict[int, Scope] = {id(None): {}}  # which holds the root
        self._heard: dict[int, dict[Key, Binding]] = {}
        self._known: dict[Kind, dict[Key, Binding]] = {}
        self._listen_everywhere()

    def kind(self, value: Any) -> Kind:
        """The same for nodes that build the same; nodes of two kinds may do so too."""
        scope = self._around.get(id(value))
        return self._walked.twins[id(value)], id(self._scope(value) if scope is None else scope)

    def of(self, part: Any) -> Mapping[Key, Binding]:
        """What the open parameters of a part hear, those apart of which the default stands."""
        heard = self._heard.get(id(part))
        if heard is None:
            scope = self._through(part, None)
            kind = self._walked.twins[id(part)], id(scope)
            if kind not in self._known:
                self._known[kind] = inherited_arguments(part, scope)
            heard = self._heard[id(part)] = self._known[kind]
        return heard

    def said(self) -> list[Binding]:
        """What anybody hears, each at least once."""
        return [said for known in self._known.values() for said in known.values()]

    def all(self) -> list[Inherited]:
        """What each open parameter hears, in the order in which one reads the graph."""
        return [
            Inherited(self._entered(value), key, said)
            for value, *_ in self._walked.lead.values()
            if IS_PART[type(value)] and value.__argument_tags__
            for key, said in self.of(value).items()
        ]

    def _listen_everywhere(self) -> None:
        """Looks into every node that has no twin in the same scope, or holds what others hold."""
        entangled = self._entangled()
        met: set[int] = set()
        kinds: set[Kind] = set()
        todo: list[Any] = [self._walked.root]
        while todo:
            value = todo.pop()
            kind = self.kind(value)
            if id(value) in met or (kind in kinds and id(value) not in entangled):
                continue
            met.add(id(value))
            kinds.add(kind)
            if IS_PART[type(value)] and value.__argument_tags__:
                self.of(value)
            todo += self._walked.held.get(id(value), ())

    def _entangled(self) -> set[int]:
        """The parts that several places hold, and all that hold them, however deep."""
        found: set[int] = set()
        held_again = [self._walked.lead[me][0] for me in self._walked.again]
        # A list that is a default lies in many places, and hears nothing.
        todo = [one for one in held_again if IS_PART[type(one)] or id(one) in self._walked.held]
        while todo:
            value = todo.pop()
            if id(value) not in found:
                found.add(id(value))
                todo += [holder for _, holder, _ in self._walked.places(value)]
        return found

    def _scope(self, value: Any) -> Scope:
        """What is said around a node, after what is said around all that hold it."""
        known, lead, again = self._around, self._walked.lead, self._walked.again
        todo = [value]
        while todo:
            me = id(todo[-1])
            if me in known:
                todo.pop()
                continue
            _, holder, key = lead[me]
            holders = [holder, *(other for _, other, _ in again.get(me, ()))]
            missing = [one for one in holders if id(one) not in known]
            if missing:
                todo += missing
            elif len(holders) == 1:
                known[me] = self._through(holder, key)
            else:
                known[me] = self._met(todo[-1])
        return known[id(value)]

    def _met(self, value: Any) -> Scope:
        """What is said around a node that several places hold, in which they must agree."""
        places = self._walked.places(value)
        scopes = {id(one): one for one in [self._through(*place[1:]) for place in places]}
        if len(scopes) == 1:
            return next(iter(scopes.values()))
        return self._scopes.around(self._entered(value))

    def _through(self, holder: Any, key: Any) -> Scope:
        """What is said around all that a node holds under a key; itself under None."""
        if sayings(holder):
            return self._scopes.at(self._entered(holder), key)
        return self._around[id(holder)] if id(holder) in self._around else self._scope(holder)

    def _entered(self, value: Any) -> Node:
        """A node in its scope, entered after all that hold it."""
        todo = [value]
        while todo:
            value = todo[-1]
            places = self._walked.places(value)
            missing = [holder for _, holder, _ in places if id(holder) not in self._nodes]
            if missing:
                todo += missing
                continue
            todo.pop()
            if id(value) not in self._nodes:
                parents = [
                    (self._nodes[id(holder)], step_between(holder, key))
                    for _, holder, key in places
                ]
                node = self._nodes[id(value)] = Node(value, parents)
                self._scopes.enter(node)
        return self._nodes[id(value)]


class Owners:
    """Who owns what: a part that only one block's insides hold belongs to that block.

    Lists and other containers own nothing. Takes n log n time at most, of which little is seen.

    Attributes:
      depth: how many owners a part has above it, by its identity.
    """

    def __init__(self, walked: Walked) -> None:
        self.depth: dict[int, int] = {}
        self._up: dict[int, int] = {}
        self._jump: dict[int, int] = {}
        self._owner: dict[int, int] = {}
        for value in reversed(walked.nodes):
            me = id(value)
            owner = self._owner.get(me)
            anchor = me
            if owner is None or isinstance(value, fdl.Buildable):
                self._enter(me, owner)
            else:
                anchor = owner
            for child in walked.held.get(me, ()):
                known = self._owner.get(id(child))
                self._owner[id(child)] = anchor if known is None else self._common(known, anchor)

    def owner(self, value: Any) -> int:
        """The identity of the part that owns another."""
        return self._owner[id(value)]

    def _enter(self, me: int, owner: int | None) -> None:
        """Adds a part to the tree of owners, with a jump to one far above it."""
        if owner is None:
            self.depth[me], self._up[me], self._jump[me] = 0, me, me
            return
        depth, far = self.depth, self._jump[owner]
        farther = self._jump[far]
        is_even = depth[owner] - depth[far] == depth[far] - depth[farther]
        self.depth[me], self._up[me] = depth[owner] + 1, owner
        self._jump[me] = farther if is_even else owner

    def _common(self, one: int, other: int) -> int:
        """The deepest part that owns both, or is one of them."""
        if one == other:
            return one
        depth, up, jump = self.depth, self._up, self._jump
        if depth[one] < depth[other]:
            one, other = other, one
        while depth[one] > depth[other]:
            one = jump[one] if depth[jump[one]] >= depth[other] else up[one]
        while one != other:
            step = jump if jump[one] != jump[other] else up
            one, other = step[one], step[other]
        return one


# Of these types, values are leaves, and equal exactly if Python says that they are.
PLAIN = frozenset({int, str, bool, type(None), type(fdl.NO_VALUE)})
_NOTHING_OF_ORDER: Mapping[Key, Binding] = {}
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
    def lead(self) -> Mapping[int, ParameterRef]:
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
    def heard(self) -> list[Inherited]:
        """What open parameters hear, in the order in which one reads the graph."""
        return self._hearing.all() if self._hearing else []

    def heard_by(self, part: Any) -> Mapping[Key, Binding]:
        """What the open parameters of a part hear."""
        return self._hearing.of(part) if self._hearing else _NOTHING_OF_ORDER

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

    def places(self, value: Any) -> list[ParameterRef]:
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
    known = {id(node.value): set_arguments(_at(bound, node.path)) for node in formulas}
    looked = [value for one in known.values() for value in one["values"].values()]
    twins: dict[int, Any] = {}
    if any(isinstance(value, fdl.Buildable) for value in looked):
        twins = {id(_at(bound, node.path)): node.value for node in parts(root)}
    for one in known.values():
        values = {name: twins.get(id(value), value) for name, value in one["values"].items()}
        one["values"] = values
    return known


def _at(root: Any, path: str) -> Any:
    place = find_parameter(root, path) if path else None
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
