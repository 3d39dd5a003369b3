"""Plain data as YAML text: what stands in two places is written once, and depth is no limit."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fidgpt.interop.yaml_in import is_read_as_text

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_BLOCKS = 40  # levels in block style; further in, indentation would outgrow what it indents


def write_yaml(root: Any, *, anchors: Mapping[int, str]) -> str:
    """A YAML text for a tree of mappings, lists and plain values.

    Args:
      root: what to write; it holds no loops.
      anchors: names for containers, by their `id`, that are written once and referred to.
    """
    lines: list[str] = []
    written: set[int] = set()
    todo = [_Row("", "", "", root, 0)]
    while todo:
        row = todo.pop()
        value = row.value
        if row.level >= _BLOCKS or id(value) in written or not _needs_lines(value):
            lines.append(row.begin + "".join(_flow(value, anchors, written)))
            continue
        anchor = _anchor(value, anchors, written)
        inner = [*_inside(row, value)]
        if row.head.endswith("- ") and not anchor:  # the first entry goes on its line
            inner[0] = inner[0]._replace(dashes=f"{row.dashes}- ")
        elif row.level or anchor:
            lines.append(f"{row.begin}{anchor}".rstrip())
        todo += reversed(inner)
    return "\n".join(lines) + "\n"


class _Row(NamedTuple):
    """An entry to write: `dashes` of lists that begin on its line take the end of its indent."""

    indent: str
    dashes: str
    head: str
    value: Any
    level: int

    @property
    def begin(self) -> str:
        return f"{self.indent.removesuffix(' ' * len(self.dashes))}{self.dashes}{self.head}"


def _needs_lines(value: Any) -> bool:
    """Whether a value is too much for one line: a mapping, or a list that holds another."""
    if isinstance(value, list):
        return any(isinstance(item, dict | list) for item in value)
    return isinstance(value, dict) and bool(value)


def _inside(row: _Row, value: Any) -> Iterator[_Row]:
    """The entries of a container, one level further in."""
    indent = f"{row.indent}  " if row.level else ""
    for head, item in _rows(value):
        yield _Row(indent, "", head, item, row.level + 1)


def _rows(value: Any) -> Iterator[tuple[str, Any]]:
    """What begins the line of each entry, and the entry."""
    if isinstance(value, dict):
        return ((f"{scalar_text(key)}: ", item) for key, item in value.items())
    return (("- ", item) for item in value)


def _anchor(value: Any, anchors: Mapping[int, str], written: set[int]) -> str:
    if id(value) not in anchors:
        return ""
    written.add(id(value))
    return f"&{anchors[id(value)]} "


def _flow(root: Any, anchors: Mapping[int, str], written: set[int]) -> Iterator[str]:
    """The pieces of a value on one line."""
    todo: list[tuple[str, Any]] = [("value", root)]
    while todo:
        kind, value = todo.pop()
        if kind == "text":
            yield value
        elif not isinstance(value, dict | list):
            yield scalar_text(value)
        elif id(value) in written:
            yield f"*{anchors[id(value)]}"
        else:
            yield _anchor(value, anchors, written)
            todo += reversed(_flow_pieces(value))


def _flow_pieces(value: Any) -> list[tuple[str, Any]]:
    is_mapping = isinstance(value, dict)
    pieces: list[tuple[str, Any]] = [("text", "{" if is_mapping else "[")]
    for number, entry in enumerate(value):
        key = f"{scalar_text(entry)}: " if is_mapping else ""
        pieces.append(("text", f"{', ' if number else ''}{key}"))
        pieces.append(("value", value[entry] if is_mapping else entry))
    return [*pieces, ("text", "}" if is_mapping else "]")]


def scalar_text(value: Any) -> str:
    """None, a boolean, a number or a text as YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if _BARE.fullmatch(value) and is_read_as_text(value):
        return value
    return _quoted(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    mantissa, exponent, power = repr(value).partition("e")
    return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{exponent}{power}"


def _quoted(text: str) -> str:
    """In double quotes, with a sign for whatever YAML would read as something else."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(one if _is_printable(one) else f"\\U{ord(one):08X}" for one in plain)


def _is_printable(one: str) -> bool:
    return one.isprintable() and not "\ud800" <= one <= "\udfff"
