"""Config files of former versions, in which wrappers stood around what they wrapped."""

import inspect
from collections.abc import Mapping
from typing import Any

from fidgpt.graph.errors import ConfigError, at
from fidgpt.graph.storage import codec

Parts = dict[str, dict[str, Any]]  # the entries of a file, by path


def unwrapped(written: Mapping[str, Any], find: codec.Find) -> Parts:
    """Return the nodes of a file with wrappers beside what they wrapped.

    A wrapper declares this as `WRAPPED`: the argument that held what it wrapped, and the argument
    of their common holder that takes the wrapper today, such as `("block", "recompute")`. If it
    still has the former argument, it is a Partial now.

    Raises:
      ConfigError: a wrapper names what a file may not, or was around some items of a list only,
        other than each n-th one.
    """
    wrappers: dict[str, tuple[str, str]] = {}
    for path, entry in written.items():
        if "Config" in entry and not {"block", "stream"}.isdisjoint(entry.get("set", ())):
            with at(path[:80] or "the root", place=path):
                declared = getattr(find(entry["Config"]), "WRAPPED", ("", ""))
                wrappers |= {path: declared} if declared[0] in entry["set"] else {}
    if not wrappers:
        return dict(written)
    parts = {path: {**entry, "set": dict(entry.get("set", {}))} for path, entry in written.items()}

    placed: set[str] = set()

    def unwrap(reference: Any) -> tuple[Any, dict[str, str]]:
        """Return the reference to what is wrapped, and the wrappers by the argument of today."""
        around: dict[str, str] = {}
        while isinstance(reference, dict):
            ((word, path),) = list(reference.items())[:1] or [("", "")]
            if not isinstance(path, str) or path not in wrappers:
                break
            inner, argument = wrappers[path]
            around[argument] = path
            reference = parts[path]["set"][inner]
            if word == "shared":  # what a shared wrapper wrapped was shared with it
                ((_, held),) = reference.items()
                parts[held]["one_in"] = parts[path]["one_in"]
                reference = {"shared": held}
        return reference, around

    for path, entry in parts.items():
        values = entry["set"]
        for name, value in [*values.items()] if path not in wrappers else ():
            items = value if isinstance(value, list) else [value]
            found = [unwrap(item) for item in items]
            for argument in dict.fromkeys(key for _, around in found for key in around):
                places = [i for i, (_, around) in enumerate(found) if argument in around]
                wrapper = found[places[0]][1][argument]
                placed.add(values.setdefault(argument, {"part": wrapper})["part"])
                if places == [0] != [*range(len(items))]:
                    parts[wrapper]["set"]["every"] = len(items)
                elif len(places) < len(items):
                    raise ConfigError(f"{argument} was around some items of {path}.{name} only.")
            inner = [reference for reference, _ in found]
            values[name] = inner if isinstance(value, list) else inner[0]
    for path, (inner, _) in wrappers.items():
        held = next(iter(parts[path]["set"].pop(inner).values()))
        for entry in parts.values():
            if entry.get("one_in") == path:
                entry["one_in"] = held
        if inner in inspect.signature(find(parts[path]["Config"])).parameters:
            parts[path]["Partial"] = parts[path].pop("Config")
        if path not in placed:
            del parts[path]
    return parts
