"""Tags as variables, the graph as their scope: open quantities hear the nearest that is said."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fiddle as fdl

from fidgpt.collection import without_collection
from fidgpt.graph.binding.mistakes import hearing, nobody_says, two_values
from fidgpt.graph.binding.scope import Conflict, Said, Scope, Scopes, Tag, look_up
from fidgpt.graph.errors import ConfigError, raise_all
from fidgpt.graph.structure.arguments import Key, assign, default_of, every
from fidgpt.graph.structure.clone import copies_of
from fidgpt.graph.structure.walk import IS_PART, Node, is_node, join, nodes, parts, step_to, title
from fidgpt.graph.typed.formula import is_formula
from fidgpt.graph.typed.lookup import look_up_names


@dataclass(eq=False, slots=True)
class Heard:
    """One open parameter and what it hears.

    Attributes:
      node: the part whose parameter it is, with its place.
      key: its name, or its number where it has none.
      said: the value and the place that says it.
    """

    node: Node
    key: Key
    said: Said

    @property
    def part(self) -> fdl.Buildable:
        """The part whose parameter it is."""
        return self.node.value

    @property
    def path(self) -> str:
        """The parameter's path."""
        return join(self.node.path, step_to(self.key))


@without_collection()
def bind(root: Any) -> Any:
    """A copy of the graph in which every open tagged parameter has its value.

    A parameter that carries a tag and no value is open. It takes the value of the nearest
    enclosing part that has one under that tag, or under a tag that it inherits from, as a name in
    Python means what the nearest enclosing scope binds it to. A value that is itself a part is
    computed in the scope of the place that says it. Where nobody says the quantity the parameter's
    own default stands. Formulas get the values that they name. Binding twice changes nothing, and
    a part of a bound graph stands for itself: `bind(cfg).model` can be saved and compared alone.

    Raises:
      ConfigErrors: all at once, every quantity that nobody says and every one that is said in two
        ways: to a shared part, by two arguments of one part, or under two tags of one parameter.
      ConfigError: a part contains itself, or a quantity is computed from itself.
    """
    return bind_nodes(root, nodes(root))[0]


def bind_nodes(root: Any, found: list[Node]) -> tuple[Any, list[Heard]]:
    """What `bind` returns, for a graph of which the nodes are known, and what was heard.

    Raises:
      ConfigErrors, ConfigError: as `bind` does.
    """
    every_heard = hear(found)
    copies = copies_of(found)
    bound = copies[id(root)]
    for heard in every_heard:
        value = copies.get(id(heard.said.value), heard.said.value)
        _assign_heard(copies[id(heard.part)], heard, value)
    for node in found:
        for key in open_parameters(copies[id(node.value)]):
            assign(copies[id(node.value)], key, default_of(node.value, key))
    if any(is_formula(node.value) for node in found):
        look_up_names(bound, parts(bound))
    elif any(is_node(heard.said.value) for heard in every_heard):
        nodes(bound)  # refuses what hears itself
    return bound, every_heard


def _assign_heard(part: fdl.Buildable, heard: Heard, value: Any) -> None:
    """Sets an argument; that it was set is part of the history of the place that says it."""
    if not isinstance(heard.key, str):
        assign(part, heard.key, value)
        return
    part.__arguments__[heard.key] = value
    told = heard.said.node.value.__argument_history__.get(heard.said.key, ())
    part.__argument_history__[heard.key] += told[-1:]


def hears(root: Any, part: fdl.Buildable, key: Key) -> bool:
    """Whether a part around an open parameter says its quantity."""
    tags = open_parameters(part).get(key, frozenset())
    scopes = Scopes()
    for node in nodes(root) if tags else ():
        scopes.enter(node)
        if node.value is part:
            return _listen(part, tags, scopes.at(node, key)) is not None
    return False


@without_collection()
def resolve(root: Any) -> list[Heard]:
    """What each open parameter of the graph hears, without changing anything.

    Raises:
      ConfigErrors: as `bind` does.
    """
    return hear(nodes(root))


def hear(found: Iterable[Node], *, is_whole: bool = True) -> list[Heard]:
    """What each open parameter of some nodes, parents first, hears.

    Args:
      found: the nodes.
      is_whole: whether nothing is around them, so that it is a mistake to hear of nobody.

    Raises:
      ConfigErrors: as `bind` does.
    """
    heard: list[Heard] = []
    unsaid: dict[frozenset[Tag], list[tuple[Node, str]]] = {}
    conflicts: dict[Any, tuple[Conflict, list[str]]] = {}
    scopes = Scopes()
    for node in found:
        scopes.enter(node)
        for key, tags, word in _words(node, scopes):
            if isinstance(word, Said):
                heard.append(Heard(node, key, word))
            elif isinstance(word, Conflict):
                sides = (tags, word.first[0], word.second[0])
                place = join(node.path, step_to(key))
                conflicts.setdefault(sides, (word, []))[1].append(place)
            elif is_whole and default_of(node.value, key) is fdl.NO_VALUE:
                unsaid.setdefault(tags, []).append((node, join(node.path, step_to(key))))
    raise_all(
        [one for tags, hearers in unsaid.items() for one in nobody_says(tags, hearers)]
        + [two_values(sides[0], *conflict) for sides, conflict in conflicts.items()]
    )
    return heard


def listen(part: fdl.Buildable, scope: Scope) -> dict[Key, Said]:
    """What the open parameters of a part hear; those of which the default stands are left out.

    Args:
      part: the part.
      scope: what is said around it, and by itself.

    Raises:
      ConfigError: a quantity is said by nobody, or in two ways; `resolve` tells of all of them.
    """
    heard: dict[Key, Said] = {}
    for key, tags in open_parameters(part).items():
        word = _listen(part, tags, scope)
        if isinstance(word, Said):
            heard[key] = word
        elif word is not None or default_of(part, key) is fdl.NO_VALUE:
            raise ConfigError(f"{hearing([f'{title(part)}.{key}'], tags)}, which is not said.")
    return heard


def open_parameters(part: Any) -> dict[Key, frozenset[Tag]]:
    """The parameters of a part that carry a tag and have no value; none for a container."""
    if not IS_PART[type(part)] or not part.__argument_tags__:
        return {}
    tagged, known = part.__argument_tags__, part.__arguments__
    found = {key: frozenset(tags) for key, tags in tagged.items() if tags and key not in known}
    return found if len(found) < 2 else {key: found[key] for key in every(part) if key in found}


def _words(
    node: Node, scopes: Scopes
) -> Iterator[tuple[Key, frozenset[Tag], Said | Conflict | None]]:
    """The open parameters of a node that was entered, each with its tags and what it hears."""
    for key, tags in open_parameters(node.value).items():
        yield key, tags, _listen(node.value, tags, scopes.at(node, key))


def _listen(part: Any, tags: frozenset[Tag], scope: Scope) -> Said | Conflict | None:
    """What a parameter with these tags hears; with two tags, they must not disagree."""
    if len(tags) == 1:
        return look_up(next(iter(tags)), scope)
    every_found = [look_up(tag, scope) for tag in sorted(tags, key=str)]
    first = None
    for found in every_found:
        if isinstance(found, Conflict):
            return found
        if isinstance(first, Said) and found is not None and not first.agrees(found):
            return Conflict(Node(part), (first.path, first), (found.path, found))
        first = first or found
    return first
