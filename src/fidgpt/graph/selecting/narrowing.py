"""What each step of a selector takes from the spots before it, and what is said of nothing."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph.errors import suggest
from fidgpt.graph.selecting.naming import meant
from fidgpt.graph.selecting.paths import own_key
from fidgpt.graph.selecting.place import describe
from fidgpt.graph.selecting.spots import Spot, below, inside
from fidgpt.graph.structure.arguments import Key, every
from fidgpt.graph.structure.walk import title


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
    return key in part.__signature_info__.parameters or own in every(part)


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
            names |= {str(name) for name in every(spot.value)}
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
