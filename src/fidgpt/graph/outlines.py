"""The graph as indented text and as a flat list."""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.collection import gc_paused
from fidgpt.graph.binding import Inherited, Resolved, inherit_all, unset_parameters
from fidgpt.graph.fiddle import all_arguments, default_of, raw_arguments, set_arguments
from fidgpt.graph.formulas import is_formula
from fidgpt.graph.storage.codec import home_of
from fidgpt.graph.walk import IS_PART, LEAVES, Node, children, is_node, join, nodes, step_to, title

_WIDTH = 100
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Code:
    """An expression: words alone, or items between two brackets.

    Attributes:
      text: the whole on one line.
      head: the text before the items, with the opening bracket.
      items: the items, each with the text before it, such as `name=`.
      tail: the closing bracket.
    """

    text: str
    head: str = ""
    items: tuple[tuple[str, "Code"], ...] = ()
    tail: str = ""


def bracketed(head: str, items: Iterable[tuple[str, Code]], tail: str) -> Code:
    """Items between brackets; a tuple of one item keeps its comma."""
    items = tuple(items)
    inside = ", ".join(before + item.text for before, item in items)
    comma = "," if head == "(" and len(items) == 1 else ""
    return Code(f"{head}{inside}{comma}{tail}", head, items, tail)


def quoted(text: str) -> Code:
    """A text as a literal, in double quotes unless it holds some."""
    literal = repr(text)
    return Code(f'"{literal[1:-1]}"' if '"' not in text and literal[0] == "'" else literal)


def lines(code: Code, *, before: str = "", after: str = "", indent: int = 0) -> Iterator[str]:
    """An expression on one line if it fits, else with a line for each of its items."""
    margin = _INDENT * indent
    if not code.items or len(margin + before + code.text + after) <= _WIDTH:
        yield margin + before + code.text + after
        return
    yield margin + before + code.head
    for name, item in code.items:
        yield from lines(item, before=name, after=",", indent=indent + 1)
    yield margin + code.tail + after


_PLAIN = (int, float, bool, str, type(None), tuple)
_KINDS = {fdl.Partial: " (partial)", fdl.ArgFactory: " (new at every call)"}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a graph that is read from top to bottom.

    Attributes:
      depth: how many parts and containers it lies inside of.
      name: of the parameter or item; "" for the root.
      path: the first path of the place.
      text: the value, or the title of a part that is written out below; "" for a container.
      kind: "part" for what is written out below; "set", "inherited" or "default" for a value, and
        "same" for one that is set to the default.
    """

    depth: int
    name: str
    path: str
    text: str
    kind: Literal["part", "set", "inherited", "default", "same"]


@gc_paused()
def outline(root: Any, *, defaults: bool = False, color: bool = False) -> str:
    """One line for every argument that is set or inherited; defaults are left out unless asked for.

    A part that several places hold is written out at its first path, marked `&path`, and is
    `*path` in the other places. An inherited value shows its source after `<-`; one
    that nothing sets, as in a part of a larger graph, shows the tag there.

    Args:
      root: the graph, or a part of one, or a graph resolved.
      defaults: whether defaults are written too; each is marked, or dim on a terminal.
      color: whether the text is for a terminal.

    Raises:
      ConfigErrors: a tag has two values, or a part contains itself.
    """
    return "".join(f"{_line(row, color)}\n" for row in rows(root, defaults=defaults))


def rows(root: Any, *, defaults: bool = False) -> Iterator[Row]:
    """The lines of a graph, top to bottom, as `outline` writes them.

    Raises:
      ConfigErrors: as `outline` does.
    """
    return _Outline(root, defaults).rows(root.root if isinstance(root, Resolved) else root)


def leaf_text(value: Any) -> str:
    """A value that is no part, as one would write it, on one line."""
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{home_of(value)}.{value.__qualname__}"
    text = repr(value)
    return " ".join((_named(value) if "<" in text else text).splitlines())


def _named(value: Any) -> str:
    """As `repr`, with enums by their names, as one would write them."""
    if isinstance(value, enum.Enum) and value.name:
        return f"{type(value).__name__}.{value.name}"
    if type(value) is list:
        return f"[{', '.join(map(_named, value))}]"
    if type(value) is tuple and value:
        return f"({', '.join(map(_named, value))}{',' * (len(value) == 1)})"
    if type(value) is dict:
        return f"{{{', '.join(f'{_named(key)}: {_named(one)}' for key, one in value.items())}}}"
    return repr(value)


def _line(row: Row, color: bool) -> str:
    label = f"{row.name}: " if row.name else ""
    line = f"{'  ' * row.depth}{label}{row.text}".rstrip()
    if row.kind != "default":
        return line
    return f"\x1b[2m{line}\x1b[0m" if color else f"{line}  (default)"


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A plain value, with the kind of its row."""

    kind: Literal["default", "same"]
    value: Any


@dataclass(frozen=True, slots=True)
class _Unbound:
    """Stands for the value of an unset parameter whose tag nothing sets."""

    tags: str


class _Outline:
    """The inherited values of a graph, and the names of its shared nodes."""

    def __init__(self, root: Any, defaults: bool) -> None:
        self._with_defaults = defaults
        found = root.nodes if isinstance(root, Resolved) else nodes(root)
        all_inherited = (
            root.inherited if isinstance(root, Resolved) else inherit_all(found, is_whole=False)
        )
        self._inherited = {(id(one.part), one.key): one for one in all_inherited}
        sources = {id(one.binding.value) for one in all_inherited}
        self._holders = _holders(found)
        self._names = {
            id(node.value): node.path
            for node in found
            if node.is_shared or (id(node.value) in sources and self._is_written_out(node.value))
        }

    def rows(self, root: Any) -> Iterator[Row]:
        """The rows, top to bottom; without recursion, so that depth is no limit."""
        left = [(0, "", "", root)]
        while left:
            depth, name, path, value = left.pop()
            kind, value = (value.kind, value.value) if isinstance(value, _Leaf) else ("set", value)
            text = self._text(value, path)
            if text is None:
                yield Row(depth, name, path, self._title(value), "part")
                left += [(depth + 1, *one) for one in self._inside(value, path)[::-1]]
            else:
                is_inherited = isinstance(value, Inherited | _Unbound)
                yield Row(depth, name, path, text, "inherited" if is_inherited else kind)

    def _text(self, value: Any, path: str) -> str | None:
        """A value that takes one line; None for one that is written out below its title."""
        if type(value) in LEAVES:
            return leaf_text(value)
        if isinstance(value, _Unbound):
            return f"?  <- {value.tags}"
        if isinstance(value, Inherited):
            source = value.binding
            name = self._names.get(id(source.value))
            return f"{leaf_text(source.value)}  <- {source.path}" if name is None else f"*{name}"
        if self._names.get(id(value), path) != path:
            return f"*{self._names[id(value)]}"
        if is_formula(value):
            return f"{self._anchor(value)}{set_arguments(value)['text']}"
        return None if self._is_written_out(value) else leaf_text(value)

    def _is_written_out(self, value: Any) -> bool:
        """Whether a value is a part, or a container of the graph that holds one."""
        return id(value) in self._holders and is_node(value)

    def _title(self, value: Any) -> str:
        if not _is_part(value):
            return ""
        return f"{self._anchor(value)}{title(value)}{_KINDS.get(type(value), '')}"

    def _anchor(self, value: Any) -> str:
        return f"&{self._names[id(value)]} " if id(value) in self._names else ""

    def _inside(self, value: Any, path: str) -> list[tuple[str, str, Any]]:
        """What is below a title: the name, the path and the value of each line."""
        if not _is_part(value):
            keys = value if isinstance(value, dict) else [f"[{i}]" for i in range(len(value))]
            held = zip(keys, children(value), strict=True)
            return [self._unwrapped(str(key), path + step, item) for key, (step, item) in held]
        return list(self._arguments(value, path))

    def _arguments(self, part: fdl.Buildable, path: str) -> Iterator[tuple[str, str, Any]]:
        known, unset = raw_arguments(part), unset_parameters(part)
        for key, value in all_arguments(part).items():
            inherited = None if key in known else self._inherited.get((id(part), key))
            place = join(path, step_to(key))
            if key in known:
                is_same = type(value) in _PLAIN and is_default(value, default_of(part, key))
                yield str(key), place, _Leaf("same", value) if is_same else value
            elif inherited is not None:
                yield str(key), place, inherited
            elif value is fdl.NO_VALUE and key in unset:
                yield str(key), place, _unbound(unset[key])
            elif self._with_defaults and value is not fdl.NO_VALUE:
                yield str(key), place, _Leaf("default", value)

    def _unwrapped(self, name: str, path: str, item: Any) -> tuple[str, str, Any]:
        """A tagged item of a list is a node of its own, and is written like an argument."""
        if not isinstance(item, TaggedValueCls):
            return name, path, item
        inherited = self._inherited.get((id(item), "value")) or _unbound(item.tags)
        return name, f"{path}.value", set_arguments(item).get("value", inherited)


def is_default(value: Any, default: Any) -> bool:
    """Whether a plain value equals the default; 1 and 1.0 differ."""
    return value is default or (type(value) is type(default) and repr(value) == repr(default))


def _unbound(tags: Iterable[Any]) -> _Unbound:
    return _Unbound(" and ".join(sorted(tag.__name__ for tag in tags)))


def _is_part(value: Any) -> bool:
    return IS_PART[type(value)]


def _holders(found: list[Node]) -> set[int]:
    """The parts, and the containers that hold one, of nodes in which parents come first."""
    holders: set[int] = set()
    for node in reversed(found):
        held = any(id(child) in holders for _, child in children(node.value))
        if held or _is_part(node.value):
            holders.add(id(node.value))
    return holders


def flat(root: Any, *, defaults: bool = False) -> str:
    """Return a line for every argument that is set or inherited, in reading order.

    Shared parts are marked `&path` and named `*path`, and inherited values show their source, as
    in an outline. With `defaults`, defaults are listed too.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    return "".join(
        f"{row.path} = {row.text}\n"
        for row in rows(root, defaults=defaults)
        if row.path and row.text
    )


def set_lines(root: Any) -> str:
    """The lines of `flat` that say something: no default, and nothing that is inherited.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    return "".join(
        f"{row.path} = {row.text}\n"
        for row in rows(root)
        if row.path and row.text and row.kind in ("set", "part")
    )
