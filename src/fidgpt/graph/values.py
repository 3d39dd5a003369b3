"""Values from text, read by the annotation of the parameter."""

import enum
import inspect
import pathlib
import sys
import typing
from typing import Any

from fidgpt.graph import hints
from fidgpt.graph.errors import ConfigError, suggest
from fidgpt.graph.expressions import UNREADABLE, evaluate, is_whole, parsed, split_at_commas


def items_in(text: str, hint: Any) -> list[str]:
    """The texts of the items of a list or tuple, where one may stand; none for what is neither.

    Brackets may be left out where there are several: `a, b`.
    """
    if not (_takes(list, hint) or _takes(tuple, hint)):
        return []
    inner = text.strip()
    brackets = inner[:1] + inner[-1:]
    if brackets == "[]":
        return _stripped(inner[1:-1])
    items = _stripped(inner[1:-1] if brackets == "()" else inner)
    return items if len(items) > 1 or inner.endswith(",)") else []


def entries_in(text: str, hint: Any) -> dict[str, str]:
    """The texts of a dict's values by those of its keys, where one may stand; none else."""
    inner = text.strip()
    if not _takes(dict, hint) or inner[:1] + inner[-1:] != "{}":
        return {}
    entries = [entry.partition(":") for entry in _stripped(inner[1:-1])]
    if not all(colon for _, colon, _ in entries):
        return {}
    return {key.strip(): value.strip() for key, _, value in entries}


def _takes(kind: type, hint: Any) -> bool:
    """Whether a container of Python's own may stand where a hint is asked, whatever is in it."""
    return any(_is_asked(kind, one) for one in hints.members_of(hint))


def _is_asked(kind: type, hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    if hints.is_unknown(hint) or typing.is_typeddict(origin):
        return hints.is_unknown(hint) or kind is dict
    is_own = getattr(origin, "__module__", "") in ("builtins", "collections.abc")
    return is_own and inspect.isclass(origin) and issubclass(kind, origin)


def _stripped(text: str) -> list[str]:
    return [piece.strip() for piece in split_at_commas(text)]


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
    except OverflowError:
        raise ConfigError(f"{text!r:.60} is too large a number.") from None
    except FloatingPointError:
        raise ConfigError(
            f"{text!r:.60} is too small a number: as a float it would be 0.0."
        ) from None
    collected = "" if _left_open(text) else _one_by_one(text, hint)
    if collected and hints.fits(collected, hint):
        return collected
    raise ConfigError(_no_such_value(text, hint))


def _readings(text: str, hint: Any) -> list[Any]:
    """What a text may mean, the likeliest first."""
    members, choices, word = hints.members_of(hint), _choices(hint), text.strip()
    if word in choices:
        return [choices[word]]
    kind, _, name = word.rpartition(".")  # as in Python code: Color.RED
    if kind and name in choices and _path_of(type(choices[name])).endswith(f".{kind}"):
        return [choices[name]]
    if any(map(hints.is_device, members)) and (device := _device(word)):
        return [device]
    is_quoted = word[:1] in ("'", '"') and word[:1] == word[-1:] and len(word) > 1
    if members == (str,) and not is_quoted:
        return [text]
    takes_path = any(inspect.isclass(one) and issubclass(one, pathlib.Path) for one in members)
    others: list[Any] = [pathlib.Path(word)] if takes_path and word else []
    if float in members and word.lower() in ("inf", "+inf", "-inf"):
        return [float(word), text]
    try:
        # Python ends a quoted text at the end of a line; on a command line it may have several.
        value = evaluate(parsed(word.replace("\n", "\\n") if is_quoted else word))
    except UNREADABLE as error:
        is_out_of_range = isinstance(error, OverflowError | FloatingPointError)
        if is_out_of_range and str not in members:
            raise
        return [text, *others]
    if isinstance(value, str) and is_quoted:
        named = [choices[value]] if value in choices else []
        return [value, *named, *([pathlib.Path(value)] if takes_path else [])]
    if isinstance(value, str):
        return [text, *others]  # a bare word, of which Python would drop (), and what follows a #
    return [value, text, *others]


def _one_by_one(text: str, hint: Any) -> Any:
    """A list, tuple or dict whose items mean something by their own annotation; else empty.

    Raises:
      ConfigError: an item means nothing that fits.
    """
    if items := items_in(text, hint):
        asked = [hints.element_hint(hint, i) for i in range(len(items))]
        if any(map(hints.is_unknown, asked)):
            return []
        values = [read_value(item, one) for item, one in zip(items, asked, strict=True)]
        return as_asked(tuple(values) if text.lstrip()[:1] == "(" else values, hint)
    entries = {read_key(key, hint): one for key, one in entries_in(text, hint).items()}
    if any(hints.is_unknown(hints.element_hint(hint, key)) for key in entries):
        return {}
    return {key: read_value(one, hints.element_hint(hint, key)) for key, one in entries.items()}


def read_key(text: str, hint: Any) -> Any:
    """The key of a dict that is annotated `hint`: a bare word may be the name of one.

    Raises:
      ConfigError: the text means nothing that a key may be.
    """
    asked, key = hints.key_hint(hint), read_value(text, Any)
    key = as_asked(key, asked)
    return read_value(text, asked) if isinstance(key, str) and not hints.fits(key, asked) else key


def as_asked(value: Any, hint: Any) -> Any:
    """1e3 where an int is asked, [1, 2] where a tuple is, and an int where only a float is."""
    members = hints.members_of(hint)
    if is_whole(value):
        return int(value) if int in members and float not in members else value
    if type(value) is int and float in members and int not in members:
        return float(value)
    if isinstance(value, dict):
        keys = {key: as_asked(key, hints.key_hint(hint)) for key in value}
        return {
            keys[key]: as_asked(one, hints.element_hint(hint, keys[key]))
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        items = [as_asked(item, hints.element_hint(hint, i)) for i, item in enumerate(value)]
        origins = {typing.get_origin(member) or member for member in members}
        asked = [kind for kind in (type(value), list, tuple) if kind in origins]
        return asked[0](items) if asked else type(value)(items)
    return value


def _device(word: str) -> Any:
    """The device of a name such as `cpu` or `cuda:1`; None where it is no name of one."""
    try:
        return sys.modules["torch"].device(word)  # whoever wrote the annotation has imported it
    except RuntimeError:
        return None


def _choices(hint: Any) -> dict[str, Any]:
    """The names that enums, Literals and dtypes among the members of a hint offer."""
    choices: dict[str, Any] = {}
    for member in hints.members_of(hint):
        if typing.get_origin(member) is typing.Literal:
            choices |= {str(value): value for value in typing.get_args(member)}
        elif inspect.isclass(member) and issubclass(member, enum.Enum):
            choices |= {item.name: item for item in member}
        elif hints.is_dtype(member):
            known = vars(sys.modules["torch"])
            named = {name: value for name, value in known.items() if isinstance(value, member)}
            choices |= named | {f"torch.{name}": value for name, value in named.items()}
    return choices


def _path_of(kind: type) -> str:
    return f".{kind.__module__}.{kind.__qualname__}"


def _left_open(text: str) -> str:
    """The first bracket of a text that is not closed; "" where all are, or a quote may hold it."""
    opened: list[str] = []
    for letter in text if not set(text) & set("'\"") or text[:1] in "[({" else "":
        if letter in "[({":
            opened.append(letter)
        elif letter in "])}" and opened:
            opened.pop()
    return opened[0] if opened else ""


def _no_such_value(text: str, hint: Any) -> str:
    name = hints.name_of(hint)
    article = f"{'an' if name[:1] in 'aeiou' else 'a'} " if name.isidentifier() else ""
    if not text.strip():
        return f"nothing stands after the '=', and it takes {article}{name}."
    message = f"{text!r:.60} is not {article}{name}."
    if opened := _left_open(text):
        return f"{message} The {opened} in it stays open."
    if choices := _choices(hint):
        return f"{message} {suggest(text, choices)}"
    element = hints.element_hint(hint, 0)
    if not hints.is_unknown(element) and hints.fits(text, element):
        return f"{message} Write {[text]!r:.60}."
    if not hints.can_be_typed(hint):
        return f"{message} It takes a part, which cannot be typed: use a fiddler to set it."
    return message
