"""Paths such as `model.blocks[0].attention.window`: reading and following them."""

import ast
import inspect
import re
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.errors import ConfigError, MissingEntry, listed, nearest, suggest
from fidgpt.graph.selecting.place import Opened, Place, Within, describe, inside_of
from fidgpt.graph.signatures.hints import can_be_typed, element_hint, hint_of
from fidgpt.graph.structure.arguments import (
    Key,
    default_factory_of,
    default_of,
    every,
    has_factory,
    named_defaults,
    parameter_of,
)
from fidgpt.graph.structure.walk import IS_PART, is_node, join, parts, step_to, title

TEXT = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_STEP = re.compile(rf"\.?([A-Za-z_]\w*)|\[(-?[0-9]{{1,9}})\]|\[({TEXT})\]")

_REMEDIES = (  # for what is found where a step should begin
    (r"\.?[0-9]", " An item is written [0]."),
    (r"\[[A-Za-z_]", " An entry of a dict is written ['name'], or .name."),
    (r"[/\\]", " Steps are joined by dots."),
    (r"[A-Za-z_]", " A dot is missing."),
    (r"\.$", " A name is missing."),
    (r"[+~]", " Nothing stands before a path: += behind it adds items, and del: takes away."),
    (r"\*\*|\.\*\*", " Any depth is written **.name, with a name after it."),
    (r"\.?\*", " All items are written [*], all depths **.name."),
)


def parse_path(path: str) -> list[Key]:
    """The keys that a path names, in order.

    Raises:
      ConfigError: the text is not a path.
    """
    keys: list[Key] = []
    at = 0
    while at < len(path):
        key, at = key_at(path, at)
        keys.append(key)
    if not keys:
        raise ConfigError("the path is empty: name a parameter, such as model.hidden_dim.")
    return keys


def key_at(path: str, at: int) -> tuple[Key, int]:
    """The key that begins at a position of a path, and the position after it.

    Raises:
      ConfigError: none begins there.
    """
    match = _STEP.match(path, at)
    if match is None or (at and match[1] and path[at] != "."):
        remedy = next((how for what, how in _REMEDIES if re.match(what, path[at:])), "")
        raise ConfigError(
            f"{path!r:.80} is not a path: it goes wrong at {path[at:]!r:.40}.{remedy}"
        )
    return match[1] or (int(match[2]) if match[2] else _unquoted(match[3])), match.end()


def find_place(root: Any, path: str) -> Place:
    """Follows a path to the parameter or element that it names, set or not.

    Raises:
      ConfigError: a name on the way does not exist; the nearest ones are suggested.
    """
    return follow(root, parse_path(path), path)


def follow(root: Any, keys: list[Key], path: str) -> Place:
    """The place that keys lead to, one after the other; `path` is how messages call it.

    Raises:
      ConfigError: as `find_place` does.
    """
    part, walked, start = _last_part(root, keys)
    place = _argument(root, part, keys[start], walked) if start else None
    for key in keys[start + bool(start) :]:
        place = _step(root, place, key, path)
    assert place is not None  # a path has at least one key
    if isinstance(place.value, TaggedValueCls):  # a quantity in a list keeps its tag
        return Place(place.value, "value", place.hint, place.path, place.holder)
    return place


def _last_part(root: Any, keys: list[Key]) -> tuple[Any, str, int]:
    """The last part on a way, its path, and how many keys lead to it; the root where none does.

    What may stand in its parameters is its own affair, whatever lies before it.
    """
    found, steps, value = (root, "", 0), "", root
    for i, key in enumerate(keys[:-1]):
        if IS_PART[type(value)] and isinstance(key, str):
            steps += f".{key}"
            value = value.__arguments__.get(key)
        elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            steps += f"[{key}]"
            value = value[key]
        else:
            break
        if IS_PART[type(value)]:
            found = value, steps.removeprefix("."), i + 1
    return found


def _unquoted(text: str) -> str:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise ConfigError(f"{text:.40} is no text as Python writes it.") from None


def _step(root: Any, above: Place | None, key: Key, path: str) -> Place:
    if above is None:
        if _is_part(root):
            return _argument(root, root, key, "")
        return _entry(root, _from_the_start(root, key), Any, "")
    value = above.value
    if _is_part(value):
        return _argument(root, value, key, above.path, above.opens)
    if value is fdl.NO_VALUE:
        opened = _opened(above, path)
        opens = (*above.opens, (above.container, above.key, opened))
        return _argument(root, opened, key, above.path, opens)
    if not is_node(value):
        raise ConfigError(f"{above.path} is {describe(value)}, so there is nothing at {path}.")
    key = _from_the_start(value, key)
    return _entry(value, key, above.hint, above.path, inside_of(above, key))


def _is_part(value: Any) -> bool:
    return isinstance(value, fdl.Buildable)


def _from_the_start(container: Any, key: Key) -> Key:
    """The number of an item that was counted from the end, so that each place has one path."""
    if not isinstance(container, list | tuple) or not isinstance(key, int):
        return key
    return key + len(container) if -len(container) <= key < 0 else key


def _opened(place: Place, path: str) -> fdl.Buildable:
    """A part for what the default factory of a parameter would make."""
    factory = default_factory_of(place.container, place.key)
    if factory is None or not (isinstance(factory, type) or inspect.signature(factory).parameters):
        raise ConfigError(_nothing_at(place, path))
    is_called_later = isinstance(place.container, fdl.Partial | fdl.ArgFactory)
    return (fdl.ArgFactory if is_called_later else fdl.Config)(factory)


def _nothing_at(place: Place, path: str) -> str:
    message = f"{place.path} is not set, so there is nothing at {path}."
    if has_factory(place.container, place.key):
        return f"{message} Its default is made anew by the code: set it whole, set:{place.path}=..."
    default = type(default_of(place.container, place.key))
    if default in (type(None), type(fdl.NO_VALUE)) and not can_be_typed(place.hint):
        return f"{message} Put a part there first, use:{place.path}=..."
    if default in (list, dict, tuple):
        return f"{message} Its default belongs to the code: set it whole, set:{place.path}=..."
    if default.__module__ == "builtins" or default is type(fdl.NO_VALUE):
        return message
    return (
        f"{message} Its default, of type {default.__name__}, belongs to the code: put a part of "
        f"your own there first, set:{place.path}={default.__name__}(...)."
    )


def _entry(container: Any, key: Key, hint: Any, walked: str, within: Within | None = None) -> Place:
    is_known = -len(container) <= key < len(container) if isinstance(key, int) else False
    if isinstance(container, dict):
        is_known = key in container
    if not is_known:
        raise MissingEntry(_no_such_entry(container, key, walked), place=walked)
    hint = element_hint(hint, key)
    return Place(container, key, hint, f"{walked}[{key!r}]", walked, within)


def own_key(part: fdl.Buildable, key: Key) -> Key | None:
    """The key under which a part holds an argument; None where it takes no such argument."""
    if isinstance(key, str) and key in (named_defaults(part) or ()):
        return key
    parameter = parameter_of(part, key)
    if parameter is None or (isinstance(key, int) and key not in every(part)):
        return None
    if isinstance(key, str) and parameter.kind is parameter.POSITIONAL_ONLY:
        return list(part.__signature_info__.parameters).index(key)
    return key


def _argument(
    root: Any, part: fdl.Buildable, key: Key, walked: str, opens: tuple[Opened, ...] = ()
) -> Place:
    own = own_key(part, key)
    if own is None:
        raise ConfigError(_no_such_name(root, part, key, walked))
    path = join(walked, step_to(own))
    return Place(part, own, hint_of(part, own), path, walked, None, opens)


def _no_such_entry(container: Any, key: Key, walked: str) -> str:
    if isinstance(container, dict):
        return f"{walked} has no entry {key!r}. {suggest(str(key), map(str, container))}"
    count = f"{len(container)} {'entry' if len(container) == 1 else 'entries'}, counted from 0"
    return f"{walked} has {count if container else 'no entries'}; there is no {key!r} in it."


def _no_such_name(root: Any, part: fdl.Buildable, key: Key, walked: str) -> str:
    names = [str(name) for name in every(part)]
    where = f"{walked} ({title(part)})" if walked else title(part)
    elsewhere = [join(node.path, step_to(key)) for node in parts(root) if key in every(node.value)]
    if not elsewhere or nearest(str(key), names):
        return f"{where} has no parameter {key!r}. {suggest(str(key), names)}"
    return f"{where} has no parameter {key!r}. It exists at {listed(elsewhere, most=3)}."
