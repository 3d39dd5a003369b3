"""Selectors: paths with wildcards, slices, tags and classes that match many parameters."""

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.errors import ConfigError, MissingEntry, suggest
from fidgpt.graph.fiddle import Key, all_arguments, assign, set_arguments
from fidgpt.graph.hints import element_hint, hint_of
from fidgpt.graph.paths import (
    ParameterRef,
    describe,
    find_parameter,
    follow,
    is_named,
    key_at,
    meant,
    nobody_carries,
    own_key,
)
from fidgpt.graph.walk import Node, is_node, nodes, parts, step_to, title


@dataclass(eq=False, slots=True)
class Spot:
    """A value and where it was met; paths and annotations are worked out when asked for.

    Attributes:
      value: the value, or `fdl.NO_VALUE` of a parameter that is not set.
      above: the spot that holds it; None for where the way begins.
      key: its place in what holds it.
      origin: the place where the way begins; None where that is the root, and past the beginning.
    """

    value: Any
    above: "Spot | None" = None
    key: Key = ""
    origin: ParameterRef | None = None
    _hint: Any = fdl.NO_VALUE
    _path: str | None = None

    @property
    def path(self) -> str:
        """The path that led here."""
        if self._path is None:
            self._path = "".join(map(_step, self._way())).removeprefix(".")
        return self._path

    @property
    def hint(self) -> Any:
        """What the annotation asks here."""
        unknown: list[Spot] = []
        spot: Spot | None = self
        while spot is not None and spot._hint is fdl.NO_VALUE:
            unknown.append(spot)
            spot = None if spot._is_argument() else spot.above
        for one in reversed(unknown):
            one._hint = one._own_hint()
        return self._hint

    @property
    def place(self) -> ParameterRef | None:
        """The place of the value; None for the root, which has none."""
        if isinstance(self.value, TaggedValueCls) and self.above is not None:
            inner = Spot(set_arguments(self.value).get("value", fdl.NO_VALUE), self, "value")
            return inner.place
        if self.above is None:
            return self.origin
        holder = self.above.path
        path = (holder + _step(self)).removeprefix(".")
        return ParameterRef(self.above.value, self.key, self.hint, path, holder, self._within())

    def _within(self) -> tuple[fdl.Buildable, Key, str] | None:
        steps, spot = "", self
        while spot.above is not None:
            if isinstance(spot.above.value, fdl.Buildable):
                return (spot.above.value, spot.key, steps) if steps else None
            steps = f"[{spot.key!r}]{steps}"
            spot = spot.above
        if not steps or spot.origin is None:
            return None
        if spot.origin.within is None:
            return (spot.origin.container, spot.origin.key, steps)
        part, key, before = spot.origin.within
        return part, key, before + steps

    def _is_argument(self) -> bool:
        """Whether a part holds the value, so that only the part knows what is asked."""
        above = self.above.value if self.above else None
        return isinstance(above, fdl.Buildable) and not isinstance(above, TaggedValueCls)

    def _own_hint(self) -> Any:
        if self.above is None:
            return self.origin.hint if self.origin else Any
        if self._is_argument():
            return hint_of(self.above.value, self.key)
        if isinstance(self.above.value, TaggedValueCls):
            return self.above._hint
        return element_hint(self.above._hint, self.key)

    def _way(self) -> list["Spot"]:
        way: list[Spot] = [self]
        spot: Spot = self
        while spot.above is not None:
            spot = spot.above
            way.append(spot)
        return way[::-1]


def entries(value: Any) -> Iterable[tuple[Key, Any]]:
    """What a node holds, by key."""
    if isinstance(value, fdl.Buildable):
        return set_arguments(value).items()
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def inside(spot: Spot) -> list[Spot]:
    """The spots directly below one."""
    return [Spot(value, spot, key) for key, value in entries(spot.value)]


def below(spots: Iterable[Spot]) -> Iterator[Spot]:
    """Every part, list, tuple and dict at or below some spots once, in reading order."""
    met: set[int] = set()
    left = list(spots)[::-1]
    while left:
        spot = left.pop()
        if is_node(spot.value) and id(spot.value) not in met:
            met.add(id(spot.value))
            yield spot
            left += inside(spot)[::-1]


def _step(spot: Spot) -> str:
    if spot.above is None:
        return spot.origin.path if spot.origin else ""
    if isinstance(spot.above.value, TaggedValueCls):  # a quantity in a list
        return ""
    return step_to(spot.key) if isinstance(spot.above.value, fdl.Buildable) else f"[{spot.key!r}]"


class Kind(NamedTuple):
    """A kind of step.

    Attributes:
      take: the spots that it takes, given those before it and what it names.
      nothing: why it takes none of them.
    """

    take: Callable[[list[Spot], Any], list[Spot]]
    nothing: Callable[[list[Spot], Any], str]


def _once(spots: Iterable[Spot]) -> list[Spot]:
    """A node that several places hold is walked through once."""
    first: dict[int, Spot] = {}
    for spot in spots:
        first.setdefault(id(spot.value), spot)
    return list(first.values())


def _named(spots: list[Spot], key: Key) -> list[Spot]:
    return [found for spot in _once(spots) if (found := _argument(spot, key))]


def _argument(spot: Spot, key: Key) -> Spot | None:
    value = spot.value
    if isinstance(value, fdl.Buildable):
        own = own_key(value, key)
        if own is None or (own not in value.__arguments__ and not _is_listed(value, key, own)):
            return None
        return Spot(value.__arguments__.get(own, fdl.NO_VALUE), spot, own)
    if isinstance(value, dict):
        return Spot(value[key], spot, key) if key in value else None
    if isinstance(value, list | tuple) and isinstance(key, int) and -len(value) <= key < len(value):
        return Spot(value[key], spot, key % len(value))
    return None


def _is_listed(part: fdl.Buildable, key: Key, own: Key) -> bool:
    """Whether a parameter is there by its name; `**kwargs` would take any."""
    return key in part.__signature_info__.parameters or own in all_arguments(part)


def _entries(spots: list[Spot], _: str) -> list[Spot]:
    return [
        one
        for spot in _once(spots)
        for one in inside(spot)
        if not isinstance(spot.value, fdl.Buildable) or isinstance(one.key, int)
    ]


def _sliced(spots: list[Spot], text: str) -> list[Spot]:
    chosen = slice(*(int(number) if number else None for number in text.split(":")))
    return [
        one
        for spot in _once(spots)
        if isinstance(spot.value, list | tuple)
        for one in inside(spot)[chosen]
    ]


def _calling(spots: list[Spot], name: str) -> list[Spot]:
    found = [spot for spot in below(spots) if isinstance(spot.value, fdl.Buildable)]
    wanted = {id(function) for function in meant(functions_of(found), name)}
    return [spot for spot in found if id(fdl.get_callable(spot.value)) in wanted]


def functions_of(spots: Iterable[Spot]) -> list[Any]:
    """What the parts at or below some spots call, each once."""
    called = [
        fdl.get_callable(spot.value)
        for spot in below(spots)
        if isinstance(spot.value, fdl.Buildable)
    ]
    return list({id(function): function for function in called}.values())


def _tagged(spots: list[Spot], name: str) -> list[Spot]:
    wanted = {id(tag) for tag in meant(every_tag(spots), name, sign="@")}
    return carriers(spots, lambda own: id(own) in wanted)


def carriers(spots: list[Spot], is_meant: Callable[[Any], bool]) -> list[Spot]:
    """Where tags that are meant are said; where nobody says them, where they would be heard."""
    found = [
        Spot(spot.value.__arguments__.get(key, fdl.NO_VALUE), spot, key)
        for spot in below(spots)
        if isinstance(spot.value, fdl.Buildable)
        for key, tags in spot.value.__argument_tags__.items()
        if any(map(is_meant, tags))
    ]
    return [spot for spot in found if spot.value is not fdl.NO_VALUE] or found


def tags_of(spots: list[Spot]) -> dict[str, Any]:
    """The tags that parameters at or below some spots carry, by name."""
    return {tag.__name__: tag for tag in every_tag(spots)}


def every_tag(spots: Iterable[Spot]) -> set[Any]:
    """The tags that parameters at or below some spots carry."""
    parts = [spot.value for spot in below(spots) if isinstance(spot.value, fdl.Buildable)]
    return {tag for part in parts for tags in part.__argument_tags__.values() for tag in tags}


def _no_name(spots: list[Spot], key: Key) -> str:
    names: set[str] = set()
    for spot in _once(spots):
        if isinstance(spot.value, fdl.Buildable):
            names |= {str(name) for name in all_arguments(spot.value)}
        elif isinstance(spot.value, dict):
            names |= set(map(str, spot.value))
    if not names and isinstance(key, str):
        first = spots[0]
        state = "not set" if first.value is fdl.NO_VALUE else describe(first.value)
        return f"{first.path or 'the root'} is {state}, and has no parameters."
    return f"nothing there has a parameter {key!r}. {suggest(str(key), names)}"


def _no_entries(spots: list[Spot], text: str) -> str:
    first = spots[0]
    if not isinstance(first.value, list | tuple | dict):
        return f"{first.path or 'the root'} is {describe(first.value)}, and has no entries."
    count = len(first.value)
    return f"{first.path} has {count or 'no'} {'entry' if count == 1 else 'entries'}."


def _no_call(spots: list[Spot], name: str) -> str:
    parts = [spot.value for spot in below(spots) if isinstance(spot.value, fdl.Buildable)]
    functions = {id(fdl.get_callable(part)): part for part in parts}.values()
    bare = name.rpartition(".")[2]
    return f"no part there is a {name}. {suggest(bare, map(title, functions))}"


def _no_tag(spots: list[Spot], name: str) -> str:
    bare = name.rpartition(".")[2]
    return f"no parameter there carries the tag {name}. {suggest(bare, tags_of(spots))}"


KINDS = {
    "key": Kind(_named, _no_name),
    "all": Kind(_entries, _no_entries),
    "slice": Kind(_sliced, _no_entries),
    "deep": Kind(lambda spots, _: list(below(spots)), _no_entries),
    "called": Kind(_calling, _no_call),
    "tag": Kind(_tagged, _no_tag),
}


_WILD = re.compile(
    r"\.?(?P<deep>\*\*)(?=[.:@\[])"
    r"|(?P<all>\[\*\])"
    r"|\[(?P<slice>-?[0-9]{0,9}:-?[0-9]{0,9}(?::-?[1-9][0-9]{0,8})?)\]"
    r"|:(?P<called>[A-Za-z_]\w*)"
    r"|\.?@(?P<tag>[A-Za-z_]\w*)"
)
_SPECIAL = frozenset("*:@")  # what a plain path has not, save in quotes
_EXAMPLES = "model.blocks[*].dropout, **.dropout, :RMSNorm.eps or @LearningRate"
_NAMED = {"called": functions_of, "tag": every_tag}  # among what a name is looked up
Step = tuple[str, Any]  # the kind of a step, and what it names


def find_parameters(root: Any, selector: str) -> list[ParameterRef]:
    """The places that a selector names, each once, in the order in which one reads the graph.

    Raises:
      ConfigError: the selector is none, or nothing is there; the nearest names are suggested.
    """
    if _SPECIAL.isdisjoint(selector):
        return [find_parameter(root, selector)]
    steps = parse_selector(selector)
    first = next((i for i, (kind, _) in enumerate(steps) if kind != "key"), None)
    if first is None:
        return [follow(root, [key for _, key in steps], selector)]
    spots = [_beginning(root, [key for _, key in steps[:first]], selector)]
    left = steps[first:]
    while left:
        (kind, named), *left = left
        if kind in _NAMED:
            named, left = _whole_name(_NAMED[kind](spots), named, left)
        found = KINDS[kind].take(spots, named)
        if not found:
            why = KINDS[kind].nothing(spots, named)
            mistake = MissingEntry if kind == "slice" else ConfigError
            raise mistake(f"{selector} selects nothing: {why}", place=spots[0].path)
        spots = found
    return _places_of(spots, selector)


def _whole_name(known: Iterable[Any], name: str, left: list[Step]) -> tuple[str, list[Step]]:
    """The longest name of a class that begins with a word and goes on with steps; what is left."""
    words = [str(key) for _, key in itertools.takewhile(_is_name, left)]
    functions = list(known)
    for count in range(len(words), 0, -1):
        if is_named(functions, dotted := ".".join([name, *words[:count]])):
            return dotted, left[count:]
    if name in sys.modules and not is_named(functions, name):  # a class that there is not
        count = max(0, len(words) - 1)
        return ".".join([name, *words[:count]]), left[count:]
    return name, left


def _is_name(step: Step) -> bool:
    kind, key = step
    return kind == "key" and isinstance(key, str) and key.isidentifier()


def parse_selector(selector: str) -> list[Step]:
    """The steps of a selector, in order.

    Raises:
      ConfigError: the text is no selector.
    """
    steps: list[Step] = []
    at = 0
    while at < len(selector):
        if match := _WILD.match(selector, at):
            kind = str(match.lastgroup)
            steps.append((kind, match[kind]))
            at = match.end()
        else:
            key, at = key_at(selector, at)
            steps.append(("key", key))
    if not steps:
        raise ConfigError(f"the path is empty: name a parameter, such as {_EXAMPLES}.")
    return steps


def places_of_tag(root: Any, tag: type[fdl.Tag]) -> list[ParameterRef]:
    """Where a quantity is said; where nobody says it, where it would be heard.

    Empty where no parameter carries the tag or one that inherits from it.
    """
    found = carriers([Spot(root)], lambda own: issubclass(own, tag))
    return [place for spot in found if (place := spot.place)]


def tags_in(root: Any) -> dict[str, Any]:
    """The tags that parameters of a graph carry, by name."""
    return tags_of([Spot(root)])


def _beginning(root: Any, keys: list[Key], selector: str) -> Spot:
    if not keys:
        return Spot(root)
    place = follow(root, keys, selector)
    if is_node(place.value):
        return Spot(place.value, origin=place)
    is_unset = place.value is fdl.NO_VALUE
    state = "not set" if is_unset else describe(place.value)
    raise ConfigError(f"{place.path} is {state}, so there is nothing at {selector}.")


def _places_of(spots: list[Spot], selector: str) -> list[ParameterRef]:
    found = [place for spot in spots if (place := spot.place)]
    if not found:
        raise ConfigError(f"{selector} is the whole graph: name a parameter of it.")
    return list({(id(place.container), place.key): place for place in found}.values())


def find(root: Any, *functions: Any) -> list[fdl.Buildable]:
    """Every part under `root` that calls one of `functions` or a subclass of one, each once.

    Raises:
      ConfigError: there is none.
    """
    found = [node.value for node in parts(root) if _calls(node.value, functions)]
    if not found:
        wanted = " or ".join(getattr(f, "__name__", str(f)) for f in functions)
        raise ConfigError(f"{title(root)} holds no {wanted}, so there is nothing to change.")
    return found


def holders(root: Any, part: fdl.Buildable) -> list[Node]:
    """The nodes that hold a part; more than one where it is shared."""
    return [parent for node in nodes(root) if node.value is part for parent, _ in node.parents]


def tagged(root: Any, tag: type[fdl.Tag]) -> list[tuple[fdl.Buildable, Key]]:
    """Every (part, parameter) under `root` that carries a tag or one that inherits from it."""
    return [
        (node.value, key)
        for node in parts(root)
        for key in all_arguments(node.value)
        if any(issubclass(own, tag) for own in fdl.get_tags(node.value, key))
    ]


def set_tag(root: Any, tag: type[fdl.Tag], value: Any) -> int:
    """Says a quantity anew wherever it is said; returns at how many places.

    Parameters that hear the quantity are left open, and follow. Where nobody says it, because a
    default stands, every parameter that would hear it says it from now on.

    Raises:
      ConfigError: no parameter of the graph carries the tag.
    """
    carriers = tagged(root, tag)
    if not carriers:
        carried = {own for part, key in tagged(root, fdl.Tag) for own in _tags(part, key)}
        raise ConfigError(nobody_carries(tag, carried, where=title(root)))
    saying = [(part, key) for part, key in carriers if key in set_arguments(part)]
    for part, key in saying or carriers:
        assign(part, key, value)
    return len(saying or carriers)


def _tags(part: fdl.Buildable, key: Key) -> frozenset[Any]:
    return fdl.get_tags(part, key)


def _calls(part: fdl.Buildable, functions: tuple[Any, ...]) -> bool:
    called = fdl.get_callable(part)
    return any(
        called is function
        or (
            isinstance(called, type) and isinstance(function, type) and issubclass(called, function)
        )
        for function in functions
    )
