"""Formulas: a number computed from other numbers of the graph, each named where it stands.

    set:schedule.decay_steps={num_steps} // 10

A name in braces is a path from the root, or `@` and a tag that is heard where the formula stands.
What a path leads to is looked up when the graph is bound, so that a formula follows every change,
in whatever order the two were said.
"""

import re
from collections.abc import Mapping
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue

from fidgpt.graph.errors import ConfigError, at, suggest
from fidgpt.graph.selecting.paths import parse_path
from fidgpt.graph.selecting.place import Place
from fidgpt.graph.selecting.selectors import tags_in
from fidgpt.graph.signatures.annotations import is_unknown, members_of
from fidgpt.graph.structure.arguments import Key
from fidgpt.graph.typed.arithmetic import compute, is_whole, refuse_unreadable

Number = int | float
_NAME = re.compile(r"\{([^{}]*)\}")
_REFERENCE = re.compile(r"\{\s*@?[A-Za-z_\[][^{}:,]*\}")


def formula(
    text: str, values: Mapping[str, Number] | None = None, whole: bool = False
) -> int | float:
    """The number that `text` computes from numbers named in braces.

    Args:
      text: arithmetic with `+ - * / // % **`, min, max, round and int.
      values: the number for each name; a bound graph has them all.
      whole: whether a whole number is asked; a float that is one becomes an int.

    Raises:
      ConfigError: the text is no arithmetic, or what it gives is not whole.
    """
    with at(text):
        result = compute(*_with_plain_names(text, values or {}))
    if not whole or isinstance(result, int):
        return result
    if not is_whole(result):
        raise ConfigError(f"{text} is {result!r}, which is not a whole number.")
    return int(result)


def is_formula(part: Any) -> bool:
    """Whether a value is a formula."""
    return isinstance(part, fdl.Buildable) and fdl.get_callable(part) is formula


def says_formula(text: str, hint: Any) -> bool:
    """Whether a text means a formula where `hint` is asked, rather than a text or a dict."""
    if "{" not in text:
        return False
    members = members_of(hint)
    takes_numbers = any(is_unknown(one) or one in (int, float) for one in members)
    return takes_numbers and _REFERENCE.search(text) is not None


def make_formula(root: Any, text: str, *, place: Place | None = None) -> fdl.Config[Any]:
    """A formula that stands somewhere under `root`.

    Raises:
      ConfigError: it is no arithmetic, names a tag that there is not, or the place itself.
    """
    tags: dict[str, Any] = {}
    for name in dict.fromkeys(names_in(text)):
        tag = _tag_of(root, name)
        keys = None if tag else parse_path(name)
        if tag is not None:
            tags[name] = TaggedValue(tags=[tag])
        if place is not None and _is_itself(root, place, keys, tag):
            raise ConfigError(
                "it cannot be computed from itself. To change what it is now, write "
                f"for example {place.path}*=2."
            )
    with at(text):
        _refuse_unreadable(text)
    made = fdl.Config(formula, text=text.strip())
    if tags:
        made.values = tags
    return made


def _is_itself(root: Any, place: Place, keys: list[Key] | None, tag: Any) -> bool:
    """Whether a formula names its own place: by the keys of a path, or by a tag of the root."""
    if tag is None:
        return keys == parse_path(place.path)
    return place.container is root and tag in fdl.get_tags(root, place.key)


def _refuse_unreadable(text: str) -> None:
    names = list(dict.fromkeys(names_in(text)))
    try:
        refuse_unreadable(*_with_plain_names(text, dict.fromkeys(names, 1)))
    except ConfigError as error:
        told = re.sub(r"\b_(\d+)\b", lambda found: f"{{{names[int(found[1])]}}}", str(error))
        raise ConfigError(told) from None


def names_in(text: str) -> list[str]:
    """The names in braces, in order."""
    return [name.strip() for name in _NAME.findall(text)]


def _with_plain_names(text: str, values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The text with a plain name for each one in braces, and the numbers by plain name."""
    plain = {name: f"_{i}" for i, name in enumerate(dict.fromkeys(names_in(text)))}
    for name in plain:
        if name not in values:
            raise ConfigError(f"{name} has no value before the graph is bound.")
    text = _NAME.sub(lambda match: f" {plain[match[1].strip()]} ", text)
    return text, {plain[name]: value for name, value in values.items() if name in plain}


def _tag_of(root: Any, name: str) -> Any:
    """The tag that a name in braces stands for; None for a path."""
    known = tags_in(root)
    if name.startswith("@"):
        if name[1:] not in known:
            raise ConfigError(f"no parameter carries the tag {name[1:]}. {suggest(name, known)}")
        return known[name[1:]]
    if name in known and not (isinstance(root, fdl.Buildable) and hasattr(root, name)):
        return known[name]
    return None
