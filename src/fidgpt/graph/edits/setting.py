"""Setting values at every selected place, saying quantities anew, and going back to defaults."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import fiddle as fdl

from fidgpt.graph.edits.alike import Remaking
from fidgpt.graph.edits.edit import Edit, carry_out
from fidgpt.graph.edits.reading import Parts, Reader
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.selecting.naming import nobody_carries
from fidgpt.graph.selecting.place import Place
from fidgpt.graph.selecting.selectors import places, places_of_tag, tags_in
from fidgpt.graph.structure.clone import own_value
from fidgpt.graph.structure.walk import title

NO_PARTS: Mapping[str, Any] = MappingProxyType({})


def set_text(root: Any, selector: str, text: str, *, parts: Parts = NO_PARTS) -> list[Edit]:
    """Sets what a text means, by the annotation, at every place that a selector names.

    Args:
      root: the graph.
      selector: a path or a selector of many places.
      text: a value, a formula with names in braces, or a part such as `RoPE(theta=5e5)`.
      parts: constructors that the text may name.

    Returns:
      What changed; nothing where all places held that value.

    Raises:
      ConfigError: the selector names nothing, or the text means nothing that fits in one of its
        places; the graph is as it was.
    """
    return _set_text(root, places(root, selector), text, parts)


def set_value(root: Any, selector: str, value: Any) -> list[Edit]:
    """Sets a value at every place that a selector names.

    A part is held by all of them; of a list or dict each of them gets its own.

    Returns:
      What changed.

    Raises:
      ConfigError: the selector names nothing, or the value does not fit; the graph is as it was.
    """
    return carry_out((place, own_value(value)) for place in places(root, selector))


def tag_text(root: Any, tag: type[fdl.Tag], text: str, *, parts: Parts = NO_PARTS) -> list[Edit]:
    """Says a quantity anew wherever it is said; where nobody says it, where it would be heard.

    Returns:
      What changed.

    Raises:
      ConfigError: no parameter carries the tag, or the text does not fit; the graph is as it was.
    """
    return _set_text(root, carriers(root, tag), text, parts)


def delete(root: Any, selector: str) -> list[Edit]:
    """Takes values away: a default stands again, an open quantity is heard again.

    An entry of a dict is taken out of it; an item of a list cannot be, because those that follow
    would have other names from then on.

    Returns:
      What changed; nothing where nothing was set.

    Raises:
      ConfigError: the selector names nothing, or an item of a list or tuple.
    """
    return carry_out((place, fdl.NO_VALUE) for place in places(root, selector))


def carriers(root: Any, tag: type[fdl.Tag]) -> list[Place]:
    """The places where a quantity is said, or else would be heard.

    Raises:
      ConfigError: there is none.
    """
    if found := places_of_tag(root, tag):
        return found
    raise ConfigError(nobody_carries(tag, tags_in(root).values(), where=title(root)))


def _set_text(root: Any, found: list[Place], text: str, parts: Parts) -> list[Edit]:
    reader = Reader(root, text, parts)
    planned = [(place, reader.read(place)) for place in found]
    return carry_out(planned, same=Remaking(root, keeps_sharing=False).is_same)
