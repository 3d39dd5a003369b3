"""Places that a patch names: what they held when it was made, and what they hold now."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import fiddle as fdl

from fidgpt import errors
from fidgpt.graph import codec, fiddle, files, formulas
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import ParameterRef, parse_path
from fidgpt.graph.walk import IS_NODE, title


def both(
    old: Mapping[Any, Any], new: Mapping[Any, Any], default: Any
) -> Iterator[tuple[Any, tuple[Any, Any]]]:
    """Yield the keys of two mappings, each with both values."""
    for key in {**old, **new}:
        yield key, (old.get(key, default), new.get(key, default))


def outside(value: Any) -> Any:
    """Return what a place held, as far as it is compared: of a node, what it calls.

    A formula is a value, as its text has it.
    """
    if value is fdl.NO_VALUE:
        return value
    if formulas.is_formula(value):
        return {"formula": fiddle.set_arguments(value)["text"]}
    if isinstance(value, fdl.Buildable):
        return {"a": getattr(fdl.get_callable(value), "__qualname__", "?")}
    if isinstance(value, list | tuple):
        return [outside(item) for item in value]
    try:
        if isinstance(value, dict):
            return codec.encode_items(value, outside)
        return codec.encode(value)
    except errors.ConfigError:
        return {"a": type(value).__name__}


def text_of(value: Any, made: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return a value of a patch, or of a graph, for a message.

    Args:
      value: the value.
      made: the new nodes of the patch.
    """
    if value is fdl.NO_VALUE:
        return "not set"
    match value:
        case fdl.Buildable():
            return leaf_text(value) if formulas.is_formula(value) else f"a {title(value)}"
        case {"a": name, **rest} if not rest:
            return f"a {name}"
        case {"formula": str(text), **rest} if not rest:
            return text
        case {"keep": path, **rest} if not rest:
            return f"the part at {path or 'the root'}"
        case {"part": str(path), **rest} if not rest:
            return _text_of_new((made or {}).get(path, {}))
        case list() if any(isinstance(item, dict) for item in value):
            return f"[{', '.join(text_of(item, made) for item in value):.200}]"
    return f"{value!r:.60}"


def _text_of_new(entry: Mapping[str, Any]) -> str:
    called = next((str(entry[kind]) for kind in files.KINDS if kind in entry), "")
    if called == codec.name_of(formulas.formula):
        return str(entry["set"]["text"])
    return f"a new {called.rpartition(':')[2] or 'part'}"


def difference_text(was: Any, now: Any) -> str | None:
    """Return how a place differs from what `outside` returned; None if it does not."""
    if repr(was) == repr(now):
        return None
    return f"it was {text_of(was)} when the difference was taken, but is {text_of(now)}"


def keys_of(path: str) -> list[fiddle.Key]:
    """Return the keys of a path; none for the root."""
    return parse_path(path) if path else []


def held(holder: Any, key: fiddle.Key) -> Any:
    """Return what a node holds under a key; `fdl.NO_VALUE` where there is nothing."""
    try:
        return (fiddle.raw_arguments(holder) if isinstance(holder, fdl.Buildable) else holder)[key]
    except (LookupError, TypeError):
        return fdl.NO_VALUE


def follow(root: Any, path: str, *, is_there: bool = False) -> ParameterRef:
    """Return the place at a path, which may hold nothing unless `is_there`.

    Raises:
      ConfigError: there is no such place.
    """
    ref = ParameterRef.to_root(root)
    for key in keys_of(path):
        ref = ParameterRef(held(ref.container, ref.key), key, ref)
        if not IS_NODE[type(ref.container)]:
            raise errors.ConfigError("there is no such path in this graph.")
    if is_there and held(ref.container, ref.key) is fdl.NO_VALUE:
        raise errors.ConfigError("there is no such path in this graph.")
    return ref


def checked_place(
    root: Any, path: str, change: Mapping[str, Any], find: codec.Find
) -> ParameterRef:
    """Look up a place, and check that it holds what it did when the patch was made.

    Raises:
      ConfigError: there is no such place, or it holds something else.
    """
    ref = follow(root, path)
    value = held(ref.container, ref.key)
    if "call" in change and not _calls(value, change["call"][0], find):
        called = str(change["call"][0]).rpartition(":")[2]
        now = f"is {text_of(value)}"
        raise errors.ConfigError(f"it was a {called} when the difference was taken, but {now}.")
    was = change.get("old", fdl.NO_VALUE)
    if change.keys() & {"old", "new"} and (wrong := difference_text(was, outside(value))):
        raise errors.ConfigError(f"{wrong}.")
    return ref


def _calls(value: Any, name: str, find: codec.Find) -> bool:
    """Return whether a node calls what has a name, or had it."""
    called = fdl.get_callable(value) if isinstance(value, fdl.Buildable) else None
    with contextlib.suppress(errors.ConfigError):
        return called is not None and (codec.name_of(called) == name or called is find(name))
    return False
