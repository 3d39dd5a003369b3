"""What the open parameters of a walked graph hear, worked out once for nodes that are alike."""

from collections.abc import Mapping
from typing import Any

from fidgpt.graph.binding.bind import Heard, listen
from fidgpt.graph.binding.scope import Said, Scopes
from fidgpt.graph.storage.walked import Walked, step_between
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import IS_PART, Node

Kind = tuple[int, int]  # the twin of a node, and the identity of the scope around it
_NOTHING: Mapping[Key, Said] = {}


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
        self._known: dict[Kind, dict[Key, Said]] = {}
        self._listen_everywhere()

    def kind(self, value: Any) -> Kind:
        """The same for nodes that build the same; nodes of two kinds may do so too."""
        place, again = self._walked.lead[id(value)], self._walked.again
        is_item = place[1] is not None and not IS_PART[type(place[1])] and id(value) not in again
        one = place[1] if is_item else value  # an item stands in the scope of the list around it
        node = self._nodes.get(id(one)) or self._entered(one)
        return self._walked.twins[id(value)], id(self._scopes.around(node))

    def of(self, part: Any) -> Mapping[Key, Said]:
        """What the open parameters of a part hear, those apart of which the default stands."""
        node = self._nodes.get(id(part)) or self._entered(part)
        kind = self._walked.twins[id(part)], id(self._scopes.at(node, None))  # with what it says
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = listen(node, self._scopes)
        return known

    def said(self) -> list[Said]:
        """What anybody hears, each at least once."""
        return [said for known in self._known.values() for said in known.values()]

    def all(self) -> list[Heard]:
        """What each open parameter hears, in the order in which one reads the graph."""
        return [
            Heard(self._nodes[me], key, said)
            for me, (value, *_) in self._walked.lead.items()
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
