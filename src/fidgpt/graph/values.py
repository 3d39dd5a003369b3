"""Values from text, read by the annotation of the parameter."""

import contextlib
import enum
import inspect
import pathlib
import sys
import typing
from collections.abc import Callable
from typing import Any

from fidgpt.errors import ConfigError, suggest
from fidgpt.graph import expressions, hints
from fidgpt.graph.expressions import NO_NUMBER, split_at_commas


def item_texts(text: str, hint: Any) -> dict[Any, str]:
    """Return the texts of the items of a list, tuple or dict by key, where one may stand; else {}.

    Brackets may be left out where there are several: `a, b`.
    """
    inner = text.strip()
    brackets = inner[:1] + inner[-1:]
    if brackets == "{}" and _takes(dict, hint):
        entries = [entry.partition(":") for entry in split_at_commas(inner[1:-1])]
        is_dict = all(colon for _, colon, _ in entries)
        return {_read_key(key, hint): entry.strip() for key, _, entry in entries} if is_dict else {}
    if not (_takes(list, hint) or _takes(tuple, hint)):
        return {}
    items = split_at_commas(inner)
    if len(items) == 1 and brackets in ("[]", "()"):
        items = split_at_commas(inner[1:-1])
    is_list = brackets == "[]" or len(items) > 1 or inner.endswith(",)")
    return {i: item.strip() for i, item in enumerate(items)} if is_list else {}


def read_items(text: str, hint: Any, read: Callable[[Any, str], Any]) -> Any:
    """Return the container whose items a text has, each as `read` makes of its key and text."""
    items = {key: read(key, item_text) for key, item_text in item_texts(text, hint).items()}
    if text.lstrip()[:1] == "{":
        return items
    return as_asked((tuple if text.lstrip()[:1] == "(" else list)(items.values()), hint)


def _takes(kind: type, hint: Any) -> bool:
    """Whether a container of Python's own may stand where a hint applies, whatever is in it."""

    def is_one(member: Any) -> bool:
        origin = typing.get_origin(member) or member
        if hints.is_unknown(member):
            return True
        is_own = getattr(origin, "__module__", "") in ("builtins", "collections.abc")
        return is_own and inspect.isclass(origin) and issubclass(kind, origin)

    return any(map(is_one, hints.members_of(hint)))


def read_value(text: str, hint: Any) -> Any:
    """The value that `text` means where `hint` is asked.

    Numbers may be written 1e3, 1_024 or 2**10; a string needs no quotes, names of enums, Literals
    and dtypes neither; None, True, False, lists, tuples and dicts are written as in Python. A
    whole number is read as an int where an int is asked, however it is written; nothing else is
    converted.

    Raises:
      ConfigError: the text means nothing that fits.
    """
    try:
        for reading in _readings(text, hint):
            value = as_asked(reading, hint)
            if hints.fits(value, hint):
                return value
    except tuple(NO_NUMBER) as error:
        raise ConfigError(f"{text!r:.60} {NO_NUMBER[type(error)]}.") from None
    asked = {key: hints.element_hint(hint, key) for key in item_texts(text, hint)}
    if asked and not any(map(hints.is_unknown, asked.values())):
        value = read_items(text, hint, lambda key, item: read_value(item, asked[key]))
        if hints.fits(value, hint):
            return value
    raise ConfigError(_no_such_value(text, hint))


def _readings(text: str, hint: Any) -> list[Any]:
    """What a text may mean, the likeliest first."""
    members, choices, word = hints.members_of(hint), choices_of(hint), text.strip()
    if word in choices:
        return [choices[word]]
    if any(hints.is_torch(member, "device") for member in members):
        with contextlib.suppress(RuntimeError):  # it is not the name of one
            return [sys.modules["torch"].device(word)]
    is_quoted = word[:1] in ("'", '"') and word[:1] == word[-1:] and len(word) > 1
    if members == (str,) and not is_quoted:
        if word == "None":
            raise ConfigError("None is not a str: for the word, write it in quotes: 'None'.")
        return [text]
    takes_path = any(inspect.isclass(t) and issubclass(t, pathlib.Path) for t in members)
    others: list[Any] = [pathlib.Path(word)] if takes_path and word else []
    if float in members and word.lower() in ("inf", "+inf", "-inf"):
        return [float(word), text]
    try:
        # Python ends a quoted text at the end of a line; on a command line it may have several.
        value = expressions.evaluate(
            expressions.parsed(word.replace("\n", "\\n") if is_quoted else word)
        )
    except expressions.UNREADABLE as error:
        if type(error) in NO_NUMBER and str not in members:
            raise
        return [text, *others]
    if isinstance(value, str) and is_quoted:
        named = [choices[value]] if value in choices else []
        return [value, *named, *([pathlib.Path(value)] if takes_path else [])]
    if isinstance(value, str):
        return [text, *others]  # a bare word, from which Python would drop () and the text after #
    return [value, text, *others]


def _read_key(text: str, hint: Any) -> Any:
    """Return the key of a dict; a bare word may be the name of one."""
    text, asked = text.strip(), hints.key_hint(hint)
    key = as_asked(read_value(text, Any), asked)
    return read_value(text, asked) if isinstance(key, str) and not hints.fits(key, asked) else key


def as_asked(value: Any, hint: Any) -> Any:
    """1e3 where an int is asked, [1, 2] where a tuple is, and an int where only a float is."""
    members = hints.members_of(hint)
    if expressions.is_whole(value):
        return int(value) if int in members and float not in members else value
    if type(value) is int and float in members and int not in members:
        return float(value)
    if isinstance(value, dict):
        keys = {key: as_asked(key, hints.key_hint(hint)) for key in value}
        return {
            keys[key]: as_asked(item, hints.element_hint(hint, keys[key]))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [as_asked(item, hints.element_hint(hint, i)) for i, item in enumerate(value)]
        origins = {typing.get_origin(member) or member for member in members}
        asked = [kind for kind in (type(value), list, tuple) if kind in origins]
        return asked[0](items) if asked else type(value)(items)
    return value


def choices_of(hint: Any) -> dict[str, Any]:
    """The names that enums, Literals and dtypes among the members of a hint offer."""
    choices: dict[str, Any] = {}
    for member in hints.members_of(hint):
        if typing.get_origin(member) is typing.Literal:
            choices |= {str(value): value for value in typing.get_args(member)}
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            choices |= {item.name: item for item in member}
        elif hints.is_torch(member, "dtype"):
            known = vars(sys.modules["torch"])
            named = {name: value for name, value in known.items() if isinstance(value, member)}
            choices |= named | {f"torch.{name}": value for name, value in named.items()}
    return choices


def _no_such_value(text: str, hint: Any) -> str:
    name = hints.name_of(hint)
    article = f"{'an' if name[:1] in 'aeiou' else 'a'} " if name.isidentifier() else ""
    if not text.strip():
        return f"nothing follows the '='; it takes {article}{name}."
    message = f"{text!r:.60} is not {article}{name}."
    if choices := choices_of(hint):
        return f"{message} {suggest(text, choices)}"
    element = hints.element_hint(hint, 0)
    if not hints.is_unknown(element) and hints.fits(text, element):
        return f"{message} Write {[text]!r:.60}."
    if not hints.can_be_typed(hint):
        return f"{message} It takes a component, which cannot be typed: use a fiddler to set it."
    return message
