"""The page: one text with the graph, the style and the scripts inside."""

import base64
import hashlib
import html
import json
from importlib import resources
from typing import Any

from fidgpt.graph.page.changes import changes
from fidgpt.graph.page.graph import Graph
from fidgpt.graph.page.tables import Tables

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

    It has a tree and a drawn graph that unfold, a search by path, tag, type and doc, and tells of
    each value where it comes from. The graph is not changed.

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
