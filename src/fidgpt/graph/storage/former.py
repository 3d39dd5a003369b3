"""Config files of former versions, in which wrappers stood around what they wrapped."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from fidgpt.graph.errors import ConfigError, at, listed
from fidgpt.graph.storage import codec

Entries = dict[str, dict[str, Any]]  # the nodes of a file, by path


def unwrap(entries: Entries, find: codec.Find) -> None:
    """Move the wrappers in the nodes of a file beside what they wrapped.

    A wrapper declares this as `WRAPPED`: the argument that held what it wrapped, and the argument
    of their common holder that takes the wrapper today, such as `("block", "recompute")`. If it
    still has the former argument, it is a Partial now.

    Raises:
      ConfigError: a node names what a file may not; or wrappers of one kind differed, were around
        other layers than all or each n-th one, or where there can be none today.
    """
    wrappers: dict[str, tuple[dict[str, Any], Any, str]] = {}  # entry, what it wrapped, argument
    for path, entry in [*entries.items()]:
        with at(path[:80] or "the root", place=path):
            called: Any = find(entry["Config"]) if "Config" in entry else None
        former, argument = getattr(called, "WRAPPED", ("", ""))
        if former in entry.get("set", ()):
            wrapped = entry["set"].pop(former)
            if owner := entry.pop("one_in", None):  # what it wrapped was shared with it
                wrapped = {"shared": _path(wrapped)}
                entries[_path(wrapped)]["one_in"] = owner
            if former in inspect.signature(called).parameters:
                entry["Partial"] = entry.pop("Config")
            wrappers[path] = entries.pop(path), wrapped, argument

    left = {*wrappers}

    def form(value: Any) -> Any:
        """Return a value with the nodes that it owns in place of their paths."""
        if isinstance(value, dict) and isinstance(value.get("part"), str):
            return form(entries[value["part"]])
        if isinstance(value, dict):
            return {key: form(one) for key, one in value.items()}
        return [form(one) for one in value] if isinstance(value, list) else value

    def inside(value: Any) -> tuple[Any, dict[str, str]]:
        """Return what is inside of wrappers, and their paths by the argument that takes them."""
        if (path := _path(value)) not in wrappers:
            return value, {}
        _, wrapped, argument = wrappers[path]
        innermost, others = inside(wrapped)
        return innermost, {argument: path, **others}

    for path, entry in [*entries.items()]:
        if "one_in" in entry:
            entry["one_in"] = _path(inside({"part": entry["one_in"]})[0])
        values = entry.get("set", {})
        around: dict[str, dict[str, dict[int, str]]] = {}  # by argument, field and position
        for name, value in [*values.items()]:
            found = [inside(item) for item in (value if isinstance(value, list) else [value])]
            items = [item for item, _ in found]
            values[name] = items if isinstance(value, list) else items[0]
            for i, (_, by_argument) in enumerate(found):
                for argument, wrapper in by_argument.items():
                    around.setdefault(argument, {}).setdefault(name, {})[i] = wrapper
        for argument, fields in around.items():
            taken = [wrapper for by_place in fields.values() for wrapper in by_place.values()]
            first, called = wrappers[taken[0]][0], find(_called(wrappers[taken[0]][0]))
            holder = find(_called(entry))
            if argument not in inspect.signature(holder).parameters:
                raise ConfigError(
                    f"{path}.{next(iter(fields))} was inside of {called.__name__}, which only "
                    f"components that take {argument!r} can have today.",
                    place=path,
                )
            if any(form(wrappers[one][0]) != form(first) for one in taken):
                raise ConfigError(
                    f"{argument} of {path} differed between {listed(sorted(taken), most=3)}; "
                    "today it is the same for all of them.",
                    place=path,
                )
            every = _interval(values, fields)
            if every is None or (every > 1 and "every" not in inspect.signature(called).parameters):
                raise ConfigError(
                    f"{argument} was around {listed(sorted(taken), most=3)} only, of the items of "
                    f"{path}.{' and .'.join(_lists(values, fields))}; today it is around all of "
                    "them, or each n-th layer.",
                    place=path,
                )
            if every > 1:
                first["set"]["every"] = every
            values[argument] = {"part": taken[0]}  # the first wrapper stands for all
            entries[taken[0]] = first
            left.discard(taken[0])
    for path, entry in entries.items():
        if wrapper := next((one for one in _paths_in(entry.get("set", {})) if one in left), None):
            raise ConfigError(
                f"{wrapper} was a wrapper inside of {path}, where there can be none today.",
                place=path,
            )


def _called(entry: dict[str, Any]) -> str:
    """Return what the node of an entry calls."""
    return next(entry[kind] for kind in ("Config", "Partial", "ArgFactory") if kind in entry)


def _lists(values: dict[str, Any], fields: Iterable[str]) -> list[str]:
    """Return the arguments that a wrapper of some fields is around: with a list, all lists."""
    if not any(isinstance(values[name], list) for name in fields):
        return [*fields]
    return [name for name, v in values.items() if isinstance(v, list) and any(map(_path, v))]


def _interval(values: dict[str, Any], fields: dict[str, dict[int, str]]) -> int | None:
    """Return n if a wrapper was around each n-th layer, from the first one; else None."""
    names = _lists(values, fields)
    counts = [len(values[name]) if isinstance(values[name], list) else 1 for name in names]
    if [len(fields.get(name, ())) for name in names] == counts:
        return 1
    places = [*fields.get(names[0], ())] if len(names) == 1 else []
    every = counts[0] // max(1, len(places))
    is_regular = bool(places) and places == [*range(0, counts[0], every)]
    return every if is_regular and counts[0] % every == 0 else None


def _paths_in(value: Any) -> Iterator[str]:
    """Yield the paths of all nodes that a value refers to."""
    if isinstance(path := _path(value), str):
        yield path
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from _paths_in(item)


def _path(value: Any) -> Any:
    """Return the path of the node that a value refers to; None if it refers to none."""
    return value.get("part", value.get("shared")) if isinstance(value, dict) else None
