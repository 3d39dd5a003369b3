"""How the tests of `page` read a page, and the graphs of which they make pages."""

import json
from html.parser import HTMLParser
from typing import Any

import fiddle as fdl

from fidgpt.graph.page import page

from .parts import Outer, Part, Wide, Width

ParameterRef = tuple[int, int]


class Reader(HTMLParser):
    """Reads a page as a browser does: its elements, and what the scripts and the style hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[list[str]] = []
        self._is_open = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        self.texts.append([])
        self._is_open = True

    def handle_endtag(self, tag: str) -> None:
        self._is_open = False

    def handle_data(self, data: str) -> None:
        if self._is_open:
            self.texts[-1].append(data)

    def inside(self, tag: str) -> list[str]:
        """The texts directly inside of the elements of a kind."""
        return [
            "".join(text) for name, text in zip(self.tags, self.texts, strict=True) if name == tag
        ]


class Data:
    """The data in a page, with the rows by their paths."""

    def __init__(self, root: Any, *, other: Any = None) -> None:
        self.all = json.loads(Reader(page(root, other=other)).inside("script")[0])
        self.nodes: list[dict[str, Any]] = self.all["new"]

    def row(self, path: str, *, side: str = "new") -> dict[str, Any]:
        return self.paths(side)[path]

    def paths(self, side: str = "new") -> dict[str, dict[str, Any]]:
        nodes = self.all[side]
        paths: list[str] = []
        found: dict[str, dict[str, Any]] = {}
        for node in nodes:
            first = node["parents"][:1]
            steps = [paths[i] + nodes[i]["rows"][j]["step"] for i, j in first]
            paths.append("".join(steps))
            for row in node["rows"]:
                found[(paths[-1] + row["step"]).removeprefix(".")] = row
        return found

    def place(self, number: int | None) -> str:
        return "" if number is None else self.all["places"][number]


def wide(count: int) -> fdl.Config[Outer]:
    """A graph with three times as many parts, one of which all the others hold."""
    shared = fdl.Config(Part, width=3)
    blocks = [
        fdl.Partial(
            Outer,
            width=Width.new(),
            depth=i,
            child=fdl.ArgFactory(Part, width=Width.new(), child=shared),
            other=fdl.ArgFactory(Wide, width=Width.new()),
        )
        for i in range(count)
    ]
    return fdl.Config(Outer, width=Width.new(64), child=blocks)


def chain(length: int) -> fdl.Config[Part]:
    """Each part holds the next."""
    part = fdl.Config(Part, width=0)
    for i in range(1, length):
        part = fdl.Config(Part, width=i, child=part)
    return part
