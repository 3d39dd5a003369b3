"""Config files: written, read and migrated."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any, Literal

import fiddle as fdl

from fidgpt.collection import gc_paused
from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.formulas import read_float
from fidgpt.graph.storage.reading import Reading
from fidgpt.graph.storage.writing import FORMAT, VERSION, write

_MOST = 96  # characters of a list or dict that stays on one line
_WORDS = {None: "null", True: "true", False: "false"}
_BRANCHES = frozenset({dict, list})
_SECTIONS = 3  # how deep in a document a part's `set` lies
_to_json = json.JSONEncoder(ensure_ascii=False).encode
# Texts that every reader of YAML takes for texts: no numbers, dates, nor words such as `no`.
_BARE = re.compile(r"[A-Za-z_][\w.\[\]/-]*(:[A-Za-z_][\w.]*)?", re.ASCII)
_NOT_BARE = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
# What YAML takes for the end of a line, or does not take as it is; only texts in quotes have any.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_NO_YAML = re.compile("[\ud800-\udfff]")
_LONGEST_KEY = 1000  # characters; what is longer, YAML takes for a key only behind a question mark


def to_json(document: dict[str, Any]) -> str:
    """The document as JSON."""
    lines: list[str] = []
    _write_json(lines, document, "", 0)
    return "\n".join(lines)[:-1] + "\n"


def to_yaml(document: dict[str, Any]) -> str:
    """The document as YAML.

    Raises:
      ConfigError: it holds characters that YAML has no form for.
    """
    lines: list[str] = []
    _write_yaml(lines, document, "", 0)
    text = _escaped("\n".join(lines) + "\n")
    if found := _NO_YAML.search(text):
        raise ConfigError(f"{found[0]!r} has no form in YAML: save it as JSON.")
    return text


def _write_json(lines: list[str], value: Any, label: str, depth: int) -> None:
    """Appends the lines of a list or dict that takes more than one, with a comma at their end."""
    is_dict = type(value) is dict
    opening, closing = "{}" if is_dict else "[]"
    lines.append(f"{label}{opening}")
    start = " " * (depth + 1)
    for key, item in value.items() if is_dict else enumerate(value):
        name = f"{start}{encode_basestring(str(key))}: " if is_dict else start
        write = _WRITERS.get(type(item))
        if write is not None:  # as for most
            lines.append(f"{name}{write(item)},")
        elif _is_short(item, depth + 1):
            lines.append(f"{name}{_leaf(item)},")
        else:
            _write_json(lines, item, name, depth + 1)
    lines[-1] = lines[-1][:-1]
    lines.append(f"{start[1:]}{closing},")


def _leaf(value: Any) -> str:
    if type(value) is dict and len(value) == 1:  # by far the most are
        [(key, item)] = value.items()
        return f"{{{encode_basestring(key)}: {_leaf(item)}}}"
    write = _WRITERS.get(type(value), _to_json)
    return write(value)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else _to_json(value)


# What is written most, by type; Python's own writer starts from scratch each time, which is slower.
_WRITERS: dict[type, Callable[[Any], str]] = {
    str: encode_basestring,
    int: repr,
    float: _number,
    bool: _WORDS.__getitem__,
    type(None): _WORDS.__getitem__,
}


def _write_yaml(lines: list[str], value: Any, indent: str, depth: int) -> None:
    """Appends the lines of a list or dict that takes more than one."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        label = (
            f"{indent}{_yaml_key(str(key), indent)}:" if isinstance(value, dict) else f"{indent}-"
        )
        if isinstance(item, str):
            lines.append(f"{label} {_yaml_text(item)}")
        elif _is_short(item, depth + 1):
            lines.append(f"{label} {_to_json(item)}")
        else:
            lines.append(label)
            _write_yaml(lines, item, f"{indent}  ", depth + 1)


def _yaml_key(text: str, indent: str) -> str:
    key = _yaml_text(text)
    return f"? {key}\n{indent}" if len(_escaped(key)) > _LONGEST_KEY else key


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _yaml_text(text: str) -> str:
    is_bare = _BARE.fullmatch(text) and text.lower() not in _NOT_BARE
    return text if is_bare else encode_basestring(text)


def _is_short(value: Any, depth: int) -> bool:
    """Whether a value is written on one line: as a list or dict that holds no other, or but one.

    The sections of a part are never, so that a second argument adds a line and changes none.
    """
    kind = type(value)
    if kind not in _BRANCHES or not value:
        return True
    if depth <= _SECTIONS:
        return False
    if kind is dict:
        ((key, item), *others) = value.items()
        return key != "dict" and not others and _is_short(item, depth)
    return _BRANCHES.isdisjoint(map(type, value)) and len(str(value)) <= _MOST


def read_json(text: str) -> Any:
    """The data of a JSON text.

    Raises:
      ConfigError: an object has a key twice, or a number is none, or too large.
      ValueError, RecursionError: it is no JSON.
    """
    return json.loads(
        text, object_pairs_hook=_once_each, parse_constant=_no_number, parse_float=read_float
    )


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The entries of an object; of two with one key, JSON itself would drop the first."""
    found = dict(pairs)
    if len(found) < len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ConfigError(f"it has {twice!r:.60} twice in one place: remove one of them.")
    return found


def _no_number(word: str) -> Any:
    raise ConfigError(f'{word} is not a JSON number: write {{"float": "{float(word)}"}}.')


_NOTHING = re.compile(r"(\s|#.*(\n|$)|---[ \t]*(\n|$)|\.\.\.[ \t]*(\n|$))*")
_YAML = re.compile(r"(%.*\n|#.*\n|---.*\n|\s)*[\"'A-Za-z_][^\n{]*:(\s|$)")
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)


@gc_paused()
def dump(root: fdl.Buildable, *, form: Literal["json", "yaml"] = "json") -> str:
    """A graph as the text of a file; the same graph gives the same bytes.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    document = write(root)
    text = to_json(document) if form == "json" else to_yaml(document)
    return text.encode("utf-8", "backslashreplace").decode()  # half a character becomes \\udc80


def load(text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()) -> Any:
    """The graph that a file holds, JSON or YAML.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: the text is no such file, or names what it may not, or what is not there.
    """
    return load_with_changes(text, source=source, allowed=allowed)[0]


@gc_paused()
def load_with_changes(
    text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()
) -> tuple[Any, list[str]]:
    """The graph that a file holds, and what has changed since the file was written.

    A line for each parameter that was renamed or is gone, as its constructor declares, and for each
    default that is another one today; the file's stands. The arguments are those of `load`.

    Raises:
      ConfigError: as `load` does.
    """
    written = _parts_of(_data_of(text, source), source)
    try:
        with at(source):
            reading = Reading(written, allowed)
            return reading.root(), reading.changes
    except ConfigError:
        raise
    except _DAMAGED as error:
        raise ConfigError(f"{source} is damaged: {error!r:.200}.") from None


def _data_of(text: str, source: str) -> Any:
    """Return the data of a text, which is JSON or else YAML."""
    text = text.removeprefix("\ufeff")  # the mark that some editors put before UTF-8 text
    if _NOTHING.fullmatch(text):
        raise ConfigError(f"{source} is empty: it holds no config.")
    try:
        with at(source):
            return read_json(text)
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] in ("{", "["):
            raise ConfigError(f"{source} is not JSON: {error}.") from None
        if not _YAML.match(text):
            raise ConfigError(f"{source} is not a fidgpt config, neither JSON nor YAML.") from None
    from fidgpt.graph.yaml import read_yaml  # late: most files are JSON

    with at(source):
        return read_yaml(text)


def _parts_of(document: Any, source: str) -> dict[str, Any]:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        is_patch = isinstance(document, dict) and document.get("format") == "fidgpt.patch"
        why = (
            "it is a patch, which changes one" if is_patch else f"it does not say format {FORMAT!r}"
        )
        raise ConfigError(f"{source} is not a fidgpt config: {why}.")
    if document.get("version") != VERSION:
        raise ConfigError(
            f"{source} has version {document.get('version')!r:.40}, and this fidgpt reads "
            f"{VERSION}."
        )
    written = document.get("parts")
    if not isinstance(written, dict) or "" not in written:
        raise ConfigError(f"{source} is damaged: it holds no root part.")
    return written
