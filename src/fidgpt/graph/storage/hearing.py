"""What the open parameters of a walked graph hear, worked out once for nodes that are alike."""

from collections.abc import Mapping
from typing import Any

from fidgpt.graph.binding.bind import Heard, listen
from fidgpt.graph.binding.scope import Said, Scope, Scopes, sayings
from fidgpt.graph.storage.walked import Walked, step_between
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import IS_PART, Node

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
        self._heard: dict[int, dict[Key, Said]] = {}
        self._known: dict[Kind, dict[Key, Said]] = {}
        self._listen_everywhere()

    def kind(self, value: Any) -> Kind:
        """The same for nodes that build the same; nodes of two kinds may do so too."""
        scope = self._around.get(id(value))
        return self._walked.twins[id(value)], id(self._scope(value) if scope is None else scope)

    def of(self, part: Any) -> Mapping[Key, Said]:
        """What the open parameters of a part hear, those apart of which the default stands."""
        heard = self._heard.get(id(part))
        if heard is None:
            scope = self._through(part, None)
            kind = self._walked.twins[id(part)], id(scope)
            if kind not in self._known:
                self._known[kind] = listen(part, scope)
            heard = self._heard[id(part)] = self._known[kind]
        return heard

    def said(self) -> list[Said]:
        """What anybody hears, each at least once."""
        return [said for known in self._known.values() for said in known.values()]

    def all(self) -> list[Heard]:
        """What each open parameter hears, in the order in which one reads the graph."""
        return [
            Heard(self._entered(value), key, said)
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
