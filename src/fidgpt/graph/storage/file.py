"""The file format: a graph as JSON that reads well in a diff, and a graph from JSON.

A file is an object with `format`, `version`, `fingerprint` and `parts`. Parts lie side by side
under their first path, parents first, and name each other by it, so that a shared part is written
once. Each says what it calls and what is `set`; which parameters carry `tags`; what its open
parameters `heard` when it was written, for the reader's sake; and the `defaults` of the rest, so
that a default that has changed since does not change an old run.
"""

import json
import re
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValue, TaggedValueCls

from fidgpt.graph.arguments import Key, assign, every, given, parameter_of
from fidgpt.graph.bind import resolve
from fidgpt.graph.errors import ConfigError, at, suggest
from fidgpt.graph.storage.codec import decode, encode, encode_default
from fidgpt.graph.storage.fingerprint import fingerprint
from fidgpt.graph.storage.names import find_name, is_tag, name_of
from fidgpt.graph.walk import nodes, parts

FORMAT = "fidgpt.config"
VERSION = 1
_TAGGED = "TaggedValue"  # a quantity that stands in a list; it calls nothing
_KINDS = {"Config": fdl.Config, "Partial": fdl.Partial, "ArgFactory": fdl.ArgFactory}
_SECTIONS = ("set", "tags", "heard", "defaults")


def dump(root: fdl.Buildable) -> str:
    """A graph as the text of a file; the same graph gives the same bytes.

    Raises:
      ConfigError: something in the graph has no name or form that a file can hold, or the graph
        cannot be bound.
    """
    heard: dict[int, dict[str, Any]] = {}
    paths = {id(node.value): node.path for node in nodes(root)}
    for one in resolve(root):
        heard.setdefault(id(one.part), {})[str(one.key)] = encode(one.said.value, paths)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": fingerprint(root),
        "parts": {
            node.path: _write(node.value, paths, heard.get(id(node.value), {}))
            for node in parts(root)
        },
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace").decode()  # half a character becomes \\udc80


def load(text: str, *, source: str = "the config file", allowed: tuple[str, ...] = ()) -> Any:
    """The graph that a file holds.

    Args:
      text: contents of the file.
      source: how to call the file in messages.
      allowed: packages of the user's own whose callables the file may name.

    Raises:
      ConfigError: the text is no such file, or names what it may not, or what is not there.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}.") from None
    written = _parts_of(document, source)
    try:
        with at(source):
            return _read(written, allowed)
    except ConfigError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ConfigError(f"{source} is damaged: {error!r:.200}.") from None


def _parts_of(document: Any, source: str) -> dict[str, Any]:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f"{source} is not a fidgpt config: it does not say format {FORMAT!r}.")
    if document.get("version") != VERSION:
        raise ConfigError(
            f"{source} has version {document.get('version')!r:.40}, and this fidgpt reads "
            f"{VERSION}."
        )
    written = document.get("parts")
    if not isinstance(written, dict) or "" not in written:
        raise ConfigError(f"{source} is damaged: it holds no root part.")
    return written


def _write(part: fdl.Buildable, paths: dict[int, str], heard: dict[str, Any]) -> dict[str, Any]:
    arguments, known = every(part), given(part)
    sections = {
        "set": {str(key): encode(value, paths) for key, value in known.items()},
        "tags": {
            str(key): sorted(map(name_of, fdl.get_tags(part, key)))
            for key in arguments
            if fdl.get_tags(part, key)
        },
        "heard": heard,
        "defaults": {
            str(key): encode_default(value)
            for key, value in arguments.items()
            if key not in known and str(key) not in heard and value is not fdl.NO_VALUE
        },
    }
    return _head(part) | {name: section for name, section in sections.items() if section}


def _head(part: fdl.Buildable) -> dict[str, Any]:
    """What kind of part it is, and what it calls."""
    if isinstance(part, TaggedValueCls):
        return {_TAGGED: None}
    kind = type(part).__name__
    if kind not in _KINDS:
        raise ConfigError(f"a {kind} cannot be saved: use Config, Partial or ArgFactory.")
    return {kind: name_of(fdl.get_callable(part))}


def _read(written: dict[str, Any], allowed: tuple[str, ...]) -> Any:
    made: dict[str, fdl.Buildable] = {}
    for path, part in written.items():
        with at(path[:80] or "the root"):
            made[path] = _make(part, allowed)
    for path, part in written.items():
        with at(path[:80] or "the root"):
            _fill(made[path], part, made, allowed)
    reached = {id(node.value) for node in parts(made[""])}
    for path, part in made.items():
        if id(part) not in reached:
            raise ConfigError(f"no part holds {path:.80}: delete it, or put it where it belongs.")
    return made[""]


def _make(written: dict[str, Any], allowed: tuple[str, ...]) -> fdl.Buildable:
    """A part without its arguments."""
    kinds = [kind for kind in (*_KINDS, _TAGGED) if kind in written]
    unknown = [name for name in written if name not in (*_KINDS, _TAGGED, *_SECTIONS)]
    if len(kinds) != 1 or unknown:
        what = f"it says {unknown[0]!r:.40}" if unknown else "it says what it calls not just once"
        known = f"{', '.join(_KINDS)}, with {', '.join(_SECTIONS)}"
        raise ConfigError(f"{what}, and a part is one of {known}.")
    if kinds == [_TAGGED]:
        names = written["tags"]["value"]
        return TaggedValue(tags=[_find_tag(name, allowed) for name in names])
    called = find_name(written[kinds[0]], allowed=allowed)
    if not callable(called) or is_tag(called):
        raise ConfigError(f"{written[kinds[0]]!r:.80} is no constructor.")
    return _KINDS[kinds[0]](called)


def _fill(
    part: fdl.Buildable, written: dict[str, Any], made: dict[str, Any], allowed: tuple[str, ...]
) -> None:
    for name, tags in written.get("tags", {}).items():
        for tag in tags:
            fdl.add_tag(part, _key(part, name), _find_tag(tag, allowed))
    for name, value in written.get("set", {}).items():
        assign(part, _key(part, name), decode(value, made, allowed=allowed))
    now = {str(key): value for key, value in every(part).items()}
    for name, value in written.get("defaults", {}).items():
        if name not in now or encode_default(now[name]) == value:
            continue
        if isinstance(value, dict) and "default" in value:
            raise ConfigError(
                f"{name} was left at its default, of type {value['default']}, which a file cannot "
                "hold and which has changed since."
            )
        assign(part, _key(part, name), decode(value, made, allowed=allowed))


def _key(part: fdl.Buildable, name: str) -> Key:
    """The name or number of an argument, from its name in a file."""
    names: dict[str, Key] = {str(key): key for key in every(part)}
    if name in names:
        return names[name]
    key: Key = int(name) if re.fullmatch("[0-9]{1,9}", name) else name
    if parameter_of(part, key) is None:
        raise ConfigError(f"there is no parameter {name!r:.80}. {suggest(name, names)}")
    return key


def _find_tag(name: str, allowed: tuple[str, ...]) -> Any:
    tag = find_name(name, allowed=allowed)
    if not is_tag(tag):
        raise ConfigError(f"{name!r:.80} is no tag.")
    return tag
