"""Binding: a tag is a variable, the graph its scope; an unset parameter inherits its value."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.cloning import copies_of
from fidgpt.graph.errors import ConfigError, listed, raise_all
from fidgpt.graph.fiddle import (
    Key,
    all_arguments,
    argument_history,
    argument_tags,
    assign,
    default_of,
    raw_arguments,
    set_arguments,
)
from fidgpt.graph.formulas import is_formula, look_up_names
from fidgpt.graph.walk import IS_PART, Node, is_node, join, nodes, parts, step_to, title

Tag = Any  # a class derived from fdl.Tag, which the metaclass hides from type checkers


@dataclass(frozen=True, slots=True)
class Binding:
    """A quantity and the argument that says it."""

    value: Any
    node: Node
    key: Key

    @property
    def path(self) -> str:
        return join(self.node.path, step_to(self.key))

    def agrees(self, other: "Binding | Conflict | None") -> bool:
        """Whether both say one value: the same part, or equal plain values."""
        if not isinstance(other, Binding):
            return False
        if self.value is other.value:
            return True
        if type(self.value) is not type(other.value) or (is_node(self.value) and parts(self.value)):
            return False
        return self.value == other.value


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two values of one quantity at one node.

    Attributes:
      node: a node that two places hold, or a part with two arguments that say the quantity.
      first: the path through which one value comes, and that value; None where nobody says it.
      second: the same of the other one.
    """

    node: Node
    first: tuple[str, Binding | None]
    second: tuple[str, Binding | None]


Scope = dict[Tag, Binding | Conflict]


def look_up(tag: Tag, scope: Scope) -> Binding | Conflict | None:
    """What a scope says of a quantity, under its tag or one that the tag inherits from."""
    for base in tag.__mro__:
        if base in scope:
            return scope[base]
    return None


class Scopes:
    """The scope of every node, filled in one pass that meets parents before children."""

    def __init__(self) -> None:
        self._around: dict[int, Scope] = {}
        self._sayings: dict[int, dict[Key, frozenset[Tag]]] = {}
        self._inside: dict[int, Scope] = {}

    def enter(self, node: Node) -> None:
        """Works out what is said around a node, and what it says itself."""
        me = id(node.value)
        scope = self._through(*node.parents[0]) if len(node.parents) == 1 else self._merged(node)
        if said := sayings(node.value):
            self._around[me], self._sayings[me] = scope, said
            scope = overlay(scope, node, said)
        self._inside[me] = scope

    def around(self, node: Node) -> Scope:
        """The scope in which a node stands that was entered, without what it says itself."""
        me = id(node.value)
        return self._around[me] if me in self._around else self._inside[me]

    def at(self, node: Node, key: Key | None) -> Scope:
        """The scope of one argument of a node that was entered.

        An argument does not hear itself: `HiddenDim.new(fdl.Config(half, HiddenDim.new()))` is
        half of what the parts around say.
        """
        said = self._sayings.get(id(node.value))
        if said is None or key not in said:
            return self._inside[id(node.value)]
        others = {name: tags for name, tags in said.items() if name != key}
        return overlay(self._around[id(node.value)], node, others)

    def _merged(self, node: Node) -> Scope:
        """What is said around a node through all its parents."""
        if not node.parents:
            return {}
        first, first_step = node.parents[0]
        merged = self._through(first, first_step)
        for parent, step in node.parents[1:]:
            scope = self._through(parent, step)
            if scope is not merged:
                places = join(first.path, first_step), join(parent.path, step)
                merged = _merge(node, merged, scope, places)
        return merged

    def _through(self, parent: Node, step: str) -> Scope:
        """The scope of what a step leads to."""
        if id(parent.value) not in self._sayings:
            return self._inside[id(parent.value)]
        return self.at(parent, _key_of(step))


def sayings(value: Any) -> dict[Key, frozenset[Tag]]:
    """The arguments of a part that say quantities, with their tags; none for a container."""
    if not IS_PART[type(value)] or not argument_tags(value):
        return {}
    tagged, known = argument_tags(value), raw_arguments(value)
    found = {key: frozenset(own) for key, own in tagged.items() if own and key in known}
    return (
        found
        if len(found) < 2
        else {key: found[key] for key in set_arguments(value) if key in found}
    )


def overlay(around: Scope, node: Node, tagged: dict[Key, frozenset[Tag]]) -> Scope:
    """A nearer word hides the farther one, for the tags that inherit from it too.

    Two arguments of one part that say the same tag differently are a conflict, like two places.
    """
    scope = around
    mine: dict[Tag, Binding] = {}
    for key, tags in tagged.items():
        said = Binding(raw_arguments(node.value)[key], node, key)
        for tag in tags:
            scope = {t: s for t, s in scope.items() if t in mine or not issubclass(t, tag)}
            earlier = mine.setdefault(tag, said)
            scope[tag] = (
                earlier
                if earlier is said or earlier.agrees(said)
                else Conflict(node, (earlier.path, earlier), (said.path, said))
            )
    return scope


def _merge(node: Node, one: Scope, two: Scope, places: tuple[str, str]) -> Scope:
    """What both scopes say alike; a conflict for each quantity that they do not."""
    merged: Scope = {}
    for tag in one.keys() | two.keys():
        here, there = look_up(tag, one), look_up(tag, two)
        if isinstance(here, Conflict):
            merged[tag] = here
        elif isinstance(there, Conflict):
            merged[tag] = there
        elif here is not None and here.agrees(there):
            merged[tag] = here
        else:
            merged[tag] = Conflict(node, (places[0], here), (places[1], there))
    return merged


def _key_of(step: str) -> Key | None:
    return step[1:] if step.startswith(".") else None


def formula_of(node: Node) -> Node | None:
    """The formula that an open quantity belongs to; None where it belongs to none."""
    above = node.parents[0][0] if node.parents else node
    holder = above.parents[0][0] if above.parents else above
    return holder if is_formula(holder.value) and above.value is not holder.value else None


def asked_in_vain(name: str, formula: Node) -> ConfigError:
    """That a formula asks for a tag where it cannot be heard, and what to write instead."""
    root = formula
    while root.parents:
        root = root.parents[0][0]
    said = list(_said(root, name))
    if any(place == formula.path for _, place in said):
        return ConfigError(
            f"{formula.path} is {formula.value.text}, and says {name} itself: it cannot be "
            "computed from itself.\n"
            f"  To change what it is now, write for example {formula.path}*=2.",
            place=formula.path,
        )
    remedy = "No part of this graph does: write the path of a number in its place."
    if said:
        holder, place = said[0]
        remedy = f"{place} says it for what is inside of {holder}: write {{{place}}}."
    return ConfigError(
        f"{formula.path} is {formula.value.text}, and no part around it says {name}.\n  {remedy}",
        place=formula.path,
    )


def _said(root: Node, name: str) -> Iterator[tuple[str, str]]:
    """The parts that say a quantity, each with the place in it."""
    for node in parts(root.value):
        for key, tags in argument_tags(node.value).items():
            is_said = raw_arguments(node.value).get(key, fdl.NO_VALUE) is not fdl.NO_VALUE
            if is_said and any(tag.__name__ == name for tag in tags):
                yield node.path, join(node.path, step_to(key))


def unset_errors(tags: frozenset[Tag], hearers: list[tuple[Node, str]]) -> Iterator[ConfigError]:
    """The mistakes of parameters, each with its part, that hear tags that nobody says."""
    name = sorted(tag.__name__ for tag in tags)[0]
    formulas = [found for node, _ in hearers if (found := formula_of(node))]
    yield from (asked_in_vain(name, one) for one in formulas)
    hearers = [one for one in hearers if formula_of(one[0]) is None]
    if not hearers:
        return
    paths = [path for _, path in hearers]
    them = "it" if len(paths) == 1 else "them"
    around = f"cfg.{_enclosing(hearers[0][0], paths)}".rstrip(".")
    yield ConfigError(
        f"{inheriting_text(paths, tags)}, and no part around {them} says {name}.\n"
        f"  Say it for one part alone:  set:{paths[0]}=...\n"
        f"  or for all that is inside:  {around}.<parameter> = {name}.new(...)",
        place=paths[0],
        sources=paths,
    )


def _enclosing(node: Node, paths: list[str]) -> str:
    """The path of the nearest part above a node that is above all of some paths."""
    while node.parents:
        node = node.parents[0][0]
        inside = (join(node.path, "."), node.path + "[")
        is_part = isinstance(node.value, fdl.Buildable)
        if is_part and all(path.startswith(inside) for path in paths):
            break
    return node.path


def two_values(tags: frozenset[Tag], conflict: Conflict, paths: list[str]) -> ConfigError:
    """The mistake of parameters, by their paths, that would hear two values."""
    sides = (conflict.first, conflict.second)
    is_shared = any(said is None or said.path != through for through, said in sides)
    remedy = f"Say it there:  set:{paths[0]}=..."
    if is_shared:
        place = title(conflict.node.value)
        remedy = f"Both reach one {place}. {remedy}, or give each place its own {place}."
    lines = [
        f"{inheriting_text(paths, tags)}, of which there are two values:",
        *(f"  {_one_side(*side)}" for side in sides),
        f"  {remedy}",
    ]
    ways = [path for through, said in sides for path in (through, said and said.path) if path]
    return ConfigError("\n".join(lines), place=paths[0], sources=[*paths, *ways])


def _one_side(path: str, said: Binding | None) -> str:
    if said is None:
        return f"through {path}: nobody says it"
    value = f"{title(said.value)}(...)" if isinstance(said.value, fdl.Buildable) else said.value
    through = "" if path == said.path else f"through {path}: "
    return f"{through}{value!s:.60}, said by {said.path}"


def inheriting_text(paths: list[str], tags: frozenset[Tag]) -> str:
    """That parameters hear tags, as the beginning of a sentence."""
    return f"{listed(paths, most=2)} {'hears' if len(paths) == 1 else 'hear'} {_names(tags)}"


def _names(tags: frozenset[Tag]) -> str:
    return " and ".join(sorted(tag.__name__ for tag in tags))


@dataclass(eq=False, slots=True)
class Inherited:
    """One open parameter and what it hears.

    Attributes:
      node: the part whose parameter it is, with its place.
      key: its name, or its number where it has none.
      said: the value and the place that says it.
    """

    node: Node
    key: Key
    said: Binding

    @property
    def part(self) -> fdl.Buildable:
        """The part whose parameter it is."""
        return self.node.value

    @property
    def path(self) -> str:
        """The parameter's path."""
        return join(self.node.path, step_to(self.key))


@gc_paused()
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
    return Resolved.of(root).bound


class Resolved:
    """A graph with what its unset parameters inherit and its bound copy, found once and passed on.

    Functions of a whole graph, such as `build`, `outline`, `why_text`, `dump` and `fingerprint`,
    take one in place of the graph, which must not change any more.

    Attributes:
      root: the graph.
      nodes: its nodes, parents first.
      inherited: what each unset parameter inherits.
    """

    def __init__(self, root: Any, found: list[Node] | None = None) -> None:
        """Resolve a graph.

        Args:
          root: the graph.
          found: its nodes, if they are known.

        Raises:
          ConfigErrors, ConfigError: as `bind` does.
        """
        self.root = root
        self.nodes = nodes(root) if found is None else found
        self.inherited = inherit_all(self.nodes)

    @classmethod
    def of(cls, root: Any) -> "Resolved":
        """Return a graph resolved; it may be so already."""
        return root if isinstance(root, cls) else cls(root)

    @cached_property
    def bound(self) -> Any:
        """The bound copy of the graph."""
        copies = copies_of(self.nodes)
        bound = copies[id(self.root)]
        for one in self.inherited:
            value = copies.get(id(one.said.value), one.said.value)
            _assign_heard(copies[id(one.part)], one, value)
        for node in self.nodes:
            for key in unset_parameters(copies[id(node.value)]):
                assign(copies[id(node.value)], key, default_of(node.value, key))
        if any(is_formula(node.value) for node in self.nodes):
            look_up_names(bound, parts(bound))
        elif any(is_node(one.said.value) for one in self.inherited):
            nodes(bound)  # refuses what hears itself
        return bound


def _assign_heard(part: fdl.Buildable, heard: Inherited, value: Any) -> None:
    """Sets an argument; that it was set is part of the history of the place that says it."""
    if not isinstance(heard.key, str):
        assign(part, heard.key, value)
        return
    raw_arguments(part)[heard.key] = value
    told = argument_history(heard.said.node.value).get(heard.said.key, ())
    argument_history(part)[heard.key] += told[-1:]


def inherits(root: Any, part: fdl.Buildable, key: Key) -> bool:
    """Whether a part around an open parameter says its quantity."""
    tags = unset_parameters(part).get(key, frozenset())
    scopes = Scopes()
    for node in nodes(root) if tags else ():
        scopes.enter(node)
        if node.value is part:
            return _listen(part, tags, scopes.at(node, key)) is not None
    return False


@gc_paused()
def resolve(root: Any) -> list[Inherited]:
    """What each open parameter of the graph hears, without changing anything.

    Raises:
      ConfigErrors: as `bind` does.
    """
    return Resolved.of(root).inherited


def inherit_all(found: Iterable[Node], *, is_whole: bool = True) -> list[Inherited]:
    """What each open parameter of some nodes, parents first, hears.

    Args:
      found: the nodes.
      is_whole: whether nothing is around them, so that it is a mistake to hear of nobody.

    Raises:
      ConfigErrors: as `bind` does.
    """
    heard: list[Inherited] = []
    unsaid: dict[frozenset[Tag], list[tuple[Node, str]]] = {}
    conflicts: dict[Any, tuple[Conflict, list[str]]] = {}
    scopes = Scopes()
    for node in found:
        scopes.enter(node)
        for key, tags, word in _words(node, scopes):
            if isinstance(word, Binding):
                heard.append(Inherited(node, key, word))
            elif isinstance(word, Conflict):
                sides = (tags, word.first[0], word.second[0])
                place = join(node.path, step_to(key))
                conflicts.setdefault(sides, (word, []))[1].append(place)
            elif is_whole and default_of(node.value, key) is fdl.NO_VALUE:
                unsaid.setdefault(tags, []).append((node, join(node.path, step_to(key))))
    raise_all(
        [one for tags, hearers in unsaid.items() for one in unset_errors(tags, hearers)]
        + [two_values(sides[0], *conflict) for sides, conflict in conflicts.items()]
    )
    return heard


def inherited_arguments(part: fdl.Buildable, scope: Scope) -> dict[Key, Binding]:
    """What the open parameters of a part hear; those of which the default stands are left out.

    Args:
      part: the part.
      scope: what is said around it, and by itself.

    Raises:
      ConfigError: a quantity is said by nobody, or in two ways; `resolve` tells of all of them.
    """
    heard: dict[Key, Binding] = {}
    for key, tags in unset_parameters(part).items():
        word = _listen(part, tags, scope)
        if isinstance(word, Binding):
            heard[key] = word
        elif word is not None or default_of(part, key) is fdl.NO_VALUE:
            raise ConfigError(
                f"{inheriting_text([f'{title(part)}.{key}'], tags)}, which is not said."
            )
    return heard


def unset_parameters(part: Any) -> dict[Key, frozenset[Tag]]:
    """The parameters of a part that carry a tag and have no value; none for a container."""
    if not IS_PART[type(part)] or not argument_tags(part):
        return {}
    tagged, known = argument_tags(part), raw_arguments(part)
    found = {key: frozenset(tags) for key, tags in tagged.items() if tags and key not in known}
    return (
        found
        if len(found) < 2
        else {key: found[key] for key in all_arguments(part) if key in found}
    )


def _words(
    node: Node, scopes: Scopes
) -> Iterator[tuple[Key, frozenset[Tag], Binding | Conflict | None]]:
    """The open parameters of a node that was entered, each with its tags and what it hears."""
    for key, tags in unset_parameters(node.value).items():
        yield key, tags, _listen(node.value, tags, scopes.at(node, key))


def _listen(part: Any, tags: frozenset[Tag], scope: Scope) -> Binding | Conflict | None:
    """What a parameter with these tags hears; with two tags, they must not disagree."""
    if len(tags) == 1:
        return look_up(next(iter(tags)), scope)
    every_found = [look_up(tag, scope) for tag in sorted(tags, key=str)]
    first = None
    for found in every_found:
        if isinstance(found, Conflict):
            return found
        if isinstance(first, Binding) and found is not None and not first.agrees(found):
            return Conflict(Node(part), (first.path, first), (found.path, found))
        first = first or found
    return first
