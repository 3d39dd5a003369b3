"""Selectors: one text that names many places, such as `model.blocks[*].dropout` or `:RMSNorm.eps`.

model.hidden_dim        a path names one place
blocks[*]  blocks[1::2] every entry, or a slice of them
**.dropout              a name at any depth; `model.**.window` below the model
:RMSNorm.eps            in every part that calls RMSNorm or a subclass of it
:lab.parts.RMSNorm.eps  the same, where two classes have one name
@LearningRate           where the quantity is said; where nobody says it, where it is heard
@lab.tags.Width         the same, where two tags have one name
"""

import itertools
import re
import sys
from collections.abc import Iterable
from typing import Any

import fiddle as fdl

from fidgpt.graph.errors import ConfigError, MissingEntry
from fidgpt.graph.selecting.naming import is_named
from fidgpt.graph.selecting.narrowing import KINDS, carriers, every_tag, functions_of, tags_of
from fidgpt.graph.selecting.paths import find_place, follow, key_at
from fidgpt.graph.selecting.place import Place, describe
from fidgpt.graph.selecting.spots import Spot
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.structure.walk import is_node

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


def places(root: Any, selector: str) -> list[Place]:
    """The places that a selector names, each once, in the order in which one reads the graph.

    Raises:
      ConfigError: the selector is none, or nothing is there; the nearest names are suggested.
    """
    if _SPECIAL.isdisjoint(selector):
        return [find_place(root, selector)]
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


def places_of_tag(root: Any, tag: type[fdl.Tag]) -> list[Place]:
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


def _places_of(spots: list[Spot], selector: str) -> list[Place]:
    found = [place for spot in spots if (place := spot.place)]
    if not found:
        raise ConfigError(f"{selector} is the whole graph: name a parameter of it.")
    return list({(id(place.container), place.key): place for place in found}.values())
