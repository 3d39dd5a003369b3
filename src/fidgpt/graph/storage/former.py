"""Config files of former versions, in which wrappers stood around what they wrapped."""

import inspect
from typing import Any

from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage import codec

Entries = dict[str, dict[str, Any]]  # the nodes of a file, by path


def unwrap(entries: Entries, find: codec.Find) -> None:
    """Move the wrappers in the nodes of a file beside what they wrapped.

    A wrapper declares this as `WRAPPED`: the argument that held what it wrapped, and the argument
    of their common holder that takes the wrapper today, such as `("block", "recompute")`. If it
    still has the former argument, it is a Partial now.

    Raises:
      ConfigError: a node names what a file may not, or a wrapper was around some items of a list
        only, other than each n-th one.
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
        for name, value in [*values.items()]:
            found = [inside(item) for item in (value if isinstance(value, list) else [value])]
            items = [item for item, _ in found]
            values[name] = items if isinstance(value, list) else items[0]
            for argument in dict.fromkeys(key for _, around in found for key in around):
                places = [i for i, (_, around) in enumerate(found) if argument in around]
                wrapper = found[places[0]][1][argument]
                taken = values.setdefault(argument, {"part": wrapper})["part"]
                entries[taken] = wrappers[taken][0]  # the first wrapper stands for all
                if places == [0] != [*range(len(items))]:
                    wrappers[wrapper][0]["set"]["every"] = len(items)
                elif len(places) < len(items):
                    raise ConfigError(f"{argument} was around some items of {path}.{name} only.")


def _path(value: Any) -> Any:
    """Return the path of the node that a value refers to; None if it refers to none."""
    return value.get("part", value.get("shared")) if isinstance(value, dict) else None
