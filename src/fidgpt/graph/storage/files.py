"""Config files: written, read and migrated."""

import json
import re
from collections import Counter
from typing import Any, Literal

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.binding import Resolved
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.expressions import read_float
from fidgpt.graph.storage.document import FORMAT, VERSION, Reading, write

_NOTHING = re.compile(r"(\s|#.*(\n|$)|---[ \t]*(\n|$)|\.\.\.[ \t]*(\n|$))*")
_YAML = re.compile(r"(%.*\n|#.*\n|---.*\n|\s)*[\"'A-Za-z_][^\n{]*:(\s|$)")
_MOST = 96  # characters of a list or dict that stays on one line
_SECTIONS = 3  # how deep in a document the sections of a node lie
_to_json = json.JSONEncoder(ensure_ascii=False).encode
DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@gc_paused()
def dump(root: fdl.Buildable | Resolved, *, form: Literal["json", "yaml"] = "json") -> str:
    """Return a graph as the text of a file; the same graph gives the same bytes.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    document = write(root)
    text = to_json(document) if form == "json" else to_yaml(document)
    return text.encode("utf-8", "backslashreplace").decode()  # half a character becomes \\udc80


def load(text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()) -> Any:
    """Return the graph that a file holds, JSON or YAML.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: the text is not such a file, or names what it may not, or what does not exist.
    """
    return load_with_changes(text, source=source, allowed=allowed)[0]


@gc_paused()
def load_with_changes(
    text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()
) -> tuple[Any, list[str]]:
    """Return the graph that a file holds, and what has changed since the file was written.

    There is a line for each parameter that was renamed or removed, as its constructor declares, and
    for each default that is another one today; that of the file is kept.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: as `load` does.
    """
    document = read_document(text, source, FORMAT)
    written = document.get("parts")
    if not isinstance(written, dict) or "" not in written:
        raise ConfigError(f"{source} is damaged: it holds no root part.")
    try:
        with at(source):
            reading = Reading(written, allowed)
            return reading.root(), reading.changes
    except ConfigError:
        raise
    except DAMAGED as error:
        raise ConfigError(f"{source} is damaged: {error!r:.200}.") from None


def read_document(text: str, source: str, form: str) -> dict[str, Any]:
    """Return the document of a file of a format, whose version is checked.

    Raises:
      ConfigError: the text is not such a document.
    """
    what = form.removeprefix("fidgpt.")
    document = _data_of(text.removeprefix("\ufeff"), source, what)  # a mark of some editors
    found = document.get("format") if isinstance(document, dict) else None
    if found != form:
        others = {
            FORMAT: "it is a whole config",
            "fidgpt.patch": "it is a patch, which changes one",
        }
        why = others.get(str(found), f"its format is not {form!r}")
        raise ConfigError(f"{source} is not a fidgpt {what}: {why}.")
    if document.get("version") != VERSION:
        version = document.get("version")
        raise ConfigError(f"{source} has version {version!r:.40}, and this fidgpt reads {VERSION}.")
    return document


def _data_of(text: str, source: str, what: str) -> Any:
    """Return the data of a text, which is JSON or else YAML."""
    if _NOTHING.fullmatch(text):
        raise ConfigError(f"{source} is empty: it holds no {what}.")
    try:
        with at(source):
            return read_json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "["):
            raise ConfigError(f"{source} is not JSON: {error}.") from None
    if not _YAML.match(text):
        raise ConfigError(f"{source} is not a fidgpt {what}, neither JSON nor YAML.")
    with at(source):
        from fidgpt.graph.yaml import read_yaml  # late: most files are JSON

        return read_yaml(text)


def to_json(document: dict[str, Any]) -> str:
    """Return a document as JSON."""
    return _json(document, 0) + "\n"


def to_yaml(document: dict[str, Any]) -> str:
    """Return a document as YAML.

    Raises:
      ConfigError: it holds characters that YAML has no form for.
    """
    from fidgpt.graph.yaml import write_yaml  # late: most files are JSON

    if found := re.search("[\ud800-\udfff]", _to_json(document)):
        raise ConfigError(f"{found[0]!r} has no form in YAML: save it as JSON.")
    return write_yaml(document, is_flow=_is_short)


def _json(value: Any, depth: int) -> str:
    if _is_short(value, depth):
        return _to_json(value)
    if isinstance(value, dict):
        items = [f"{_to_json(key)}: {_json(item, depth + 1)}" for key, item in value.items()]
    else:
        items = [_json(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    end = "\n" + " " * depth
    return f"{opening}{end} {f',{end} '.join(items)}{end}{closing}"


def _is_short(value: Any, depth: int) -> bool:
    """Return whether a value takes one line: a leaf, or a list or dict of few leaves.

    The sections of a node never do, so that a second argument adds a line and changes none.
    """
    if not isinstance(value, dict | list) or not value:
        return True
    if depth <= _SECTIONS:
        return False
    if isinstance(value, dict):
        ((key, item), *others) = value.items()
        return key != "dict" and not others and _is_short(item, depth)
    return not any(isinstance(one, dict | list) for one in value) and len(str(value)) <= _MOST


def read_json(text: str) -> Any:
    """Return the data of a JSON text.

    Raises:
      ConfigError: an object has a key twice, or a number is NaN, infinite, too large or too small.
      ValueError, RecursionError: it is not JSON.
    """
    return json.loads(
        text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=read_float
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ConfigError(f"it has {twice!r:.60} twice in one place: remove one of them.")
    return found


def _refuse_constant(word: str) -> Any:
    raise ConfigError(f'{word} is not a JSON number: write {{"float": "{float(word)}"}}.')
