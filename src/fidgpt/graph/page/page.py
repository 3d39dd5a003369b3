"""The HTML page of a graph."""

import base64
import hashlib
import html
import json
from importlib import resources
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph.binding import bind, resolve
from fidgpt.graph.difference.changes import Change
from fidgpt.graph.difference.comparison import diff
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.page.tables import Rows, Tables
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.walk import Node, children, is_node, join, nodes


def results(root: Any, found: list[Node]) -> dict[int, str]:
    """Return the result of each computed value among the nodes of a graph, by identity.

    One that is computed from any other node is left out, as building that may
    take long. Where one fails, there are none: building reports it.

    Raises:
      ConfigErrors: the graph cannot be bound.
    """
    asked = [node for node in found if node.parents and is_quantity(node.value)]
    if not asked:
        return {}
    bound = bind(root)
    quick = _quick(bound)
    copies = {id(node.value): find_parameter(bound, node.path).value for node in asked}
    computed = {number: copy for number, copy in copies.items() if id(copy) in quick}
    try:
        built = fdl.build(list(computed.values()))  # together, each once
    except Exception:  # whatever the functions do with wrong arguments
        return {}
    return dict(zip(computed, map(leaf_text, built), strict=True))


def _quick(root: Any) -> set[int]:
    """The nodes that hold nothing but quantities, by identity."""
    quick: set[int] = set()
    for node in reversed(nodes(root)):
        is_part = isinstance(node.value, fdl.Buildable)
        if is_part and not (is_quantity(node.value) or isinstance(node.value, TaggedValueCls)):
            continue
        if all(id(child) in quick for _, child in children(node.value) if is_node(child)):
            quick.add(id(node.value))
    return quick


ParameterRef = tuple[int, int]  # the numbers of a node and of its row
_FEW = 24  # plain values in a list that is written on one line
_SHALLOW = 4  # lists in lists that are


class Graph:
    """The nodes of a graph for a page.

    A list of a few plain values is a value on one line; a longer one is a node with a row for
    each.

    Attributes:
      nodes: the nodes as data, the root first.
    """

    def __init__(self, root: Any, tables: Tables) -> None:
        found = nodes(root)
        small = _small(found)
        shown = [node for node in found if id(node.value) not in small or not node.parents]
        numbers = {id(node.value): number for number, node in enumerate(shown)}
        inherited = {(id(one.part), one.key): one for one in resolve(root)}
        rows = Rows(numbers, inherited, tables)
        self.nodes = [_node(node, rows, tables) for node in shown]
        for number, text in results(root, shown).items():
            self.nodes[numbers[number]]["result"] = text
        steps = [{row["step"]: j for j, row in enumerate(node["rows"])} for node in self.nodes]
        for node, described in zip(shown, self.nodes, strict=True):
            holders = ((numbers[id(holder.value)], step) for holder, step in node.parents)
            described["parents"] = [(i, steps[i][step]) for i, step in holders]

    def places(self) -> dict[str, ParameterRef]:
        """The row at each path, by the first path of the node that holds it."""
        paths = [""] * len(self.nodes)
        found: dict[str, ParameterRef] = {}
        for i, node in enumerate(self.nodes):
            if node["parents"]:
                holder, row = node["parents"][0]
                paths[i] = join(paths[holder], self.nodes[holder]["rows"][row]["step"])
            found |= {join(paths[i], row["step"]): (i, j) for j, row in enumerate(node["rows"])}
        return found


def _node(node: Node, rows: Rows, tables: Tables) -> dict[str, Any]:
    described = {"kind": type(node.value).__name__, "rows": rows.of(node.value)}
    if isinstance(node.value, fdl.Buildable):
        described["call"] = tables.calls.number(node.value)
    return described


def _small(found: list[Node]) -> set[int]:
    """Lists and tuples of a few plain values, and empty dicts, by identity."""
    sizes: dict[int, tuple[int, int]] = {}
    for node in reversed(found):
        if isinstance(node.value, fdl.Buildable) or (isinstance(node.value, dict) and node.value):
            continue
        held = [child for _, child in children(node.value)]
        below = [sizes.get(id(child)) if is_node(child) else (1, 0) for child in held]
        if None in below:
            continue
        count = sum(one[0] for one in below if one)
        depth = 1 + max((one[1] for one in below if one), default=0)
        if count <= _FEW and depth <= _SHALLOW:
            sizes[id(node.value)] = count, depth
    return set(sizes)


def changes(old: tuple[Any, Graph], new: tuple[Any, Graph]) -> list[dict[str, Any]]:
    """Every difference, with the place in each graph; no place where a graph has none.

    Raises:
      ConfigErrors: a graph cannot be bound.
    """
    places = old[1].places(), new[1].places()
    return [_described(change, *places) for change in diff(old[0], new[0])]


def _described(
    change: Change, old: dict[str, ParameterRef], new: dict[str, ParameterRef]
) -> dict[str, Any]:
    sides = {"old": _place(change.old.path, old), "new": _place(change.new.path, new)}
    return {
        "kind": type(change).__name__,
        "sign": change.sign,
        "path": change.path or "the root",
        "detail": change.detail,
        **{name: place for name, place in sides.items() if place is not None},
    }


def _place(path: str | None, places: dict[str, ParameterRef]) -> ParameterRef | None:
    if path == "":
        return 0, -1  # the root is in no row
    return None if path is None else places.get(path)


# In the order in which they use each other.
_SCRIPTS = (
    "model",
    "dom",
    "compare",
    "row",
    "tree",
    "layout",
    "box",
    "graph",
    "search",
    "panel",
    "main",
)


def page(root: Any, *, other: Any = None, title: str = "config", other_title: str = "other") -> str:
    """A graph as an HTML page that needs nothing but itself, to be opened from a file.

    It has a tree and a drawn graph that unfold, a search by path, tag, type and doc, and shows
    where each value comes from. The graph is not changed.

    Args:
      root: the graph.
      other: an earlier graph to compare it with, side by side.
      title: what the page is called.
      other_title: what the other graph is called.

    Raises:
      ConfigErrors: a graph cannot be bound.
    """
    style = _read("style.css")
    layout = _read("dagre.min.js").partition("//# sourceMappingURL")[0]
    script = "\n".join(["'use strict';", *(_read(f"{name}.js") for name in _SCRIPTS)])
    titles = {"new": title, "old": other_title}
    data = json.dumps({"titles": titles, **document(root, other=other)}, separators=(",", ":"))
    parts = {
        "title": html.escape(title.encode("utf-8", "replace").decode()),
        "policy": _policy(style, layout, script),
        "style": style,
        "data": data.replace("<", "\\u003c"),  # no text in a config may end the script
        "layout": layout,
        "script": script,
    }
    pieces = _read("page.html").split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def document(root: Any, *, other: Any = None) -> dict[str, Any]:
    """All that a page knows of a graph, and of another to compare it with, as plain data.

    Takes time and space linear in the size of the graphs.

    Raises:
      ConfigErrors: a graph cannot be bound.
    """
    tables = Tables()
    graph = Graph(root, tables)
    described: dict[str, Any] = {"new": graph.nodes}
    if other is not None:
        old = Graph(other, tables)
        described |= {"old": old.nodes, "changes": changes((other, old), (root, graph))}
    common = {"calls": tables.calls, "tags": tables.tags, "places": tables.places}
    return described | {name: table.all for name, table in common.items()}


def _policy(style: str, *scripts: str) -> str:
    """Nothing from outside, and no script but these: whatever a config holds, it cannot run."""
    sources = " ".join(map(_digest, scripts))
    return f"default-src 'none'; style-src {_digest(style)}; script-src {sources}"


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _read(name: str) -> str:
    return resources.files("fidgpt.graph.page").joinpath(name).read_text(encoding="utf-8")
