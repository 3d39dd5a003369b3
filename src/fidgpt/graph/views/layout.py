"""Python expressions that know how to break over lines, as the formatters of Python break them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_WIDTH = 100
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Code:
    """An expression: words alone, or items between two brackets.

    Attributes:
      text: the whole on one line.
      head: what stands before the items, with the opening bracket.
      items: the items, each with what stands before it, such as `name=`.
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
