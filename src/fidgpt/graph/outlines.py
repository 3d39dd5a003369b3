"""The graph as indented text and as a flat list."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.collection import gc_paused
from fidgpt.graph import fiddle
from fidgpt.graph.binding import Resolved, unset_parameters
from fidgpt.graph.codec import home_of, is_same
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.walk import IS_PART, LEAVES, children, holders, join, step_to, title

_PLAIN = (int, float, bool, str, type(None), tuple)
_KINDS = {fdl.Partial: " (partial)", fdl.ArgFactory: " (new on each call)"}


Kind = Literal["part", "set", "inherited", "default", "same"]
# The name, path and value of a line, its kind, and its text if that does not follow from the value.
_Line = tuple[str, str, Any, Kind, str | None]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a graph that is read from top to bottom.

    Attributes:
      depth: the number of nodes around it.
      name: of the parameter or item; "" for the root.
      path: the first path of the place.
      text: the value, or the title of a node that is written out below; "" for a container.
      kind: "part" for a node that is written out below; "set", "inherited" or "default" for a
        value, and "same" for one that is set to the default.
    """

    depth: int
    name: str
    path: str
    text: str
    kind: Kind


@gc_paused()
def outline(root: Any, *, defaults: bool = False, color: bool = False) -> str:
    """Return a line for every argument that is set or inherited, and on request for defaults.

    A node that several places hold is written out at its first path, marked `&path`, and is
    `*path` in the other places. An inherited value shows its source after `<-`; one
    that nothing sets, as in a part of a larger graph, shows the tag there.

    Args:
      root: the graph, or a node of one, or a graph resolved.
      defaults: whether defaults are written too; each is marked, or dim on a terminal.
      color: whether the text is for a terminal.

    Raises:
      ConfigErrors: a tag has two values, or a node contains itself.
    """
    return "".join(f"{_line(row, color)}\n" for row in rows(root, defaults=defaults))


def rows(root: Any, *, defaults: bool = False) -> Iterator[Row]:
    """Yield the lines of a graph, top to bottom, as `outline` writes them.

    Raises:
      ConfigErrors: as `outline` does.
    """
    return _Outline(root, defaults).rows()


def leaf_text(value: Any) -> str:
    """Return a value as in code, on one line, with each node as `X()`."""
    kind = fiddle.kind_of(value)
    if kind in LEAVES:
        return repr(value)
    if isinstance(value, fdl.Buildable):
        return fiddle.set_arguments(value)["text"] if is_formula(value) else f"{title(value)}()"
    if kind is dict:
        return f"{{{', '.join(f'{key!r}: {leaf_text(item)}' for key, item in value.items())}}}"
    if kind is list:
        return f"[{', '.join(map(leaf_text, value))}]"
    if kind is tuple:
        return f"({', '.join(map(leaf_text, value))}{',' * (len(value) == 1)})"
    if isinstance(value, enum.Enum) and value.name:
        return f"{kind.__name__}.{value.name}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{home_of(value)}.{value.__qualname__}"
    return " ".join(repr(value).splitlines())


def _line(row: Row, color: bool) -> str:
    label = f"{row.name}: " if row.name else ""
    line = f"{'  ' * row.depth}{label}{row.text}".rstrip()
    if row.kind != "default":
        return line
    return f"\x1b[2m{line}\x1b[0m" if color else f"{line}  (default)"


class _Outline:
    """The inherited values of a graph, and the names of its shared nodes."""

    def __init__(self, root: Any, defaults: bool) -> None:
        self._with_defaults = defaults
        self._resolved = Resolved.of(root, is_whole=False)
        self._holders = holders(self._resolved.nodes)
        sources = self._holders & {id(one.binding.value) for one in self._resolved.inherited}
        self._names = {
            id(node.value): node.path
            for node in self._resolved.nodes
            if node.is_shared or id(node.value) in sources
        }

    def rows(self) -> Iterator[Row]:
        """Yield the rows, top to bottom; without recursion, so that depth is no limit."""
        todo: list[tuple[int, _Line]] = [(0, ("", "", self._resolved.root, "set", None))]
        while todo:
            depth, (name, path, value, kind, text) = todo.pop()
            text = self._text(value, path) if text is None else text
            if text is not None:
                yield Row(depth, name, path, text, kind)
                continue
            is_part = IS_PART[type(value)]
            called = f"{title(value)}{_KINDS.get(type(value), '')}" if is_part else ""
            yield Row(depth, name, path, self._anchor(value) * is_part + called, "part")
            todo += [(depth + 1, line) for line in reversed(list(self._inside(value, path)))]

    def _text(self, value: Any, path: str) -> str | None:
        """Return a value that takes one line; None for one that is written out below its title."""
        if type(value) in LEAVES:
            return leaf_text(value)
        if self._names.get(id(value), path) != path:
            return f"*{self._names[id(value)]}"
        if is_formula(value):
            return f"{self._anchor(value)}{fiddle.set_arguments(value)['text']}"
        return None if id(value) in self._holders else leaf_text(value)

    def _anchor(self, value: Any) -> str:
        return f"&{self._names[id(value)]} " if id(value) in self._names else ""

    def _inside(self, value: Any, path: str) -> Iterator[_Line]:
        """Yield the lines below a title."""
        if IS_PART[type(value)]:
            for key in fiddle.all_arguments(value):
                yield from self._argument(value, key, str(key), join(path, step_to(key)))
            return
        keys = value if isinstance(value, dict) else [f"[{i}]" for i in range(len(value))]
        for key, (step, item) in zip(keys, children(value), strict=True):
            if isinstance(item, TaggedValueCls):  # it reads like an argument
                yield from self._argument(item, "value", str(key), f"{path}{step}.value")
            else:
                yield str(key), path + step, item, "set", None

    def _argument(
        self, part: fdl.Buildable, key: fiddle.Key, name: str, path: str
    ) -> Iterator[_Line]:
        known, default = fiddle.raw_arguments(part), fiddle.default_of(part, key)
        binding = self._resolved.inherited_by(part).get(key)
        if key in known:
            is_default = type(known[key]) in _PLAIN and is_same(known[key], default)
            yield name, path, known[key], "same" if is_default else "set", None
        elif binding is not None:
            source = self._names.get(id(binding.value))
            text = f"{leaf_text(binding.value)}  <- {binding.path}"
            yield name, path, None, "inherited", text if source is None else f"*{source}"
        elif default is fdl.NO_VALUE and key in (unset := unset_parameters(part)):
            tags = " and ".join(sorted(tag.__name__ for tag in unset[key]))
            yield name, path, None, "inherited", f"?  <- {tags}"
        elif self._with_defaults and default is not fdl.NO_VALUE:
            yield name, path, default, "default", None


def flat(root: Any, *, defaults: bool = False) -> str:
    """Return a line for every argument that is set or inherited, in reading order.

    Shared nodes are marked `&path` and named `*path`, and inherited values show their source, as
    in an outline. With `defaults`, defaults are listed too.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    shown = rows(root, defaults=defaults)
    return "".join(f"{row.path} = {row.text}\n" for row in shown if row.path and row.text)


def set_lines(root: Any) -> str:
    """Return the lines of `flat` without defaults and inherited values.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    shown = (row for row in rows(root) if row.kind in ("set", "part"))
    return "".join(f"{row.path} = {row.text}\n" for row in shown if row.path and row.text)
