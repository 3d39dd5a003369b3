"""A graph as text: an outline in which a shared part is written once and then named."""

from collections.abc import Iterator
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.arguments import every, given
from fidgpt.graph.bind import Heard, resolve
from fidgpt.graph.walk import children, join, nodes, step_to, title

_KINDS = {fdl.Partial: " (partial)", fdl.ArgFactory: " (new at every call)"}


def outline(root: Any) -> str:
    """One line for every argument that is set or heard; defaults are left out.

    A part that several places hold is written out at its first path, marked `&path`, and is
    `*path` in the other places. A value that is heard from another place shows it after `<-`.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    return "\n".join(_Outline(root).lines(root)) + "\n"


def leaf_text(value: Any) -> str:
    """A value that is no part, as one would write it, on one line."""
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return " ".join(repr(value).splitlines())


class _Outline:
    """Knows what is heard in a graph, and the names of what is shared."""

    def __init__(self, root: Any) -> None:
        every_heard = resolve(root)
        self._heard = {(id(heard.part), heard.key): heard for heard in every_heard}
        is_heard = {id(heard.said.value) for heard in every_heard}
        self._names = {
            id(node.value): node.path
            for node in nodes(root)
            if node.is_shared or (id(node.value) in is_heard and _holds_parts(node.value))
        }

    def lines(self, root: Any) -> Iterator[str]:
        """The lines, top to bottom; without recursion, so that depth is no limit."""
        left = [("", "", "", root)]
        while left:
            indent, label, path, value = left.pop()
            text = self._text(value, path)
            yield f"{indent}{label}{text or self._title(value)}".rstrip()
            if text is None:
                below = self._inside(value, path)
                left += [(f"{indent}  ", f"{name}: ", at, item) for name, at, item in below[::-1]]

    def _text(self, value: Any, path: str) -> str | None:
        """A value that takes one line; None for one that is written out below its title."""
        if isinstance(value, Heard):
            said = value.said
            name = self._names.get(id(said.value))
            return f"{leaf_text(said.value)}  <- {said.path}" if name is None else f"*{name}"
        if self._names.get(id(value), path) != path:
            return f"*{self._names[id(value)]}"
        return None if _holds_parts(value) else leaf_text(value)

    def _title(self, value: Any) -> str:
        if not _is_part(value):
            return ""
        anchor = f"&{self._names[id(value)]} " if id(value) in self._names else ""
        return f"{anchor}{title(value)}{_KINDS.get(type(value), '')}"

    def _inside(self, value: Any, path: str) -> list[tuple[str, str, Any]]:
        """What is below a title: the name, the path and the value of each line."""
        if not _is_part(value):
            keys = value if isinstance(value, dict) else [f"[{i}]" for i in range(len(value))]
            held = zip(keys, children(value), strict=True)
            return [self._unwrapped(str(key), path + step, item) for key, (step, item) in held]
        known = given(value)
        heard = {key: self._heard.get((id(value), key)) for key in every(value)}
        return [
            (str(key), join(path, step_to(key)), known.get(key, heard[key]))
            for key in every(value)
            if key in known or heard[key] is not None
        ]

    def _unwrapped(self, name: str, path: str, item: Any) -> tuple[str, str, Any]:
        """A quantity that stands in a list is a part of its own, and reads like an argument."""
        if not isinstance(item, TaggedValueCls):
            return name, path, item
        value = given(item).get("value", self._heard.get((id(item), "value")))
        return name, f"{path}.value", value


def _is_part(value: Any) -> bool:
    return isinstance(value, fdl.Buildable)


def _holds_parts(value: Any) -> bool:
    if _is_part(value):
        return True
    held = value.values() if isinstance(value, dict) else value
    return isinstance(value, list | tuple | dict) and any(_holds_parts(child) for child in held)
