"""The HTML page of a graph."""

import base64
import hashlib
import html
import inspect
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph import fiddle, hints, provenance
from fidgpt.graph.binding import Resolved
from fidgpt.graph.difference import comparison
from fidgpt.graph.difference.changes import Change
from fidgpt.graph.docs import doc_of
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.walk import Node, children, holders, is_node, join, parts, step_to
from fidgpt.graph.walk import title as title_of

# In the order in which they use each other.
_JS = (
    *("model", "dom", "compare", "row", "tree", "layout"),
    *("box", "graph", "search", "panel", "main"),
)
_Row = dict[str, Any]
_Table = dict[Hashable, tuple[int, Any]]  # entries and their numbers, by what makes them equal
_Place = tuple[int, int]  # the numbers of a node and of its row


class Size(NamedTuple):
    """What a part of a graph becomes.

    Attributes:
      objects: how many there are, such as one for each layer.
      parameters: of all of them.
      bytes: of these parameters.
    """

    objects: int
    parameters: int
    bytes: int


def page(
    root: Any,
    *,
    other: Any = None,
    title: str = "config",
    other_title: str = "other",
    focus: str = "model",
    sizes: Mapping[str, Size] | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a graph as an HTML page that needs no other file, to be opened from disk.

    It has a tree and a drawn graph that unfold, a search by path, tag, type and doc, and shows
    where each value comes from. The graph is not changed.

    Args:
      root: the graph.
      other: an earlier graph to compare it with, side by side.
      title: what the page is called.
      other_title: what the other graph is called.
      focus: the path of the part on which the page opens; without it, on the root.
      sizes: of parts, by path.
      facts: names and values, shown beside the whole graph.

    Raises:
      ConfigErrors: a graph cannot be bound.
    """
    titles, shown = {"new": title, "old": other_title}, document(root, other=other, sizes=sizes)
    folder = resources.files("fidgpt.graph.page")
    layout = folder.joinpath("dagre.min.js").read_text(encoding="utf-8")
    return assembled(
        folder,
        _JS,
        title=title,
        data={"titles": titles, "focus": focus, "facts": [*facts], **shown},
        library=layout.partition("//# sourceMappingURL")[0],
        policy="style-src {style}; script-src {scripts}",
    )


def assembled(
    folder: Traversable,
    scripts: Sequence[str],
    *,
    title: str,
    data: Mapping[str, Any],
    library: str,
    policy: str,
) -> str:
    """Return an HTML page that needs no other file, from those in a folder.

    Args:
      folder: holds `page.html`, `style.css` and the scripts.
      scripts: their names, each after those that it uses.
      title: of the page.
      data: what the scripts show.
      library: a script that they use.
      policy: what the browser may take, beside nothing, given the digests of style and scripts.
    """

    def read(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    style = read("style.css")
    script = "\n".join(["'use strict';", *(read(f"{name}.js") for name in scripts)])
    digests = {"style": digest(style), "scripts": f"{digest(library)} {digest(script)}"}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    parts = {
        "title": html.escape(title.encode("utf-8", "replace").decode()),
        # Nothing from outside, and no script but these: whatever is shown cannot run.
        "policy": f"default-src 'none'; {policy.format_map(digests)}",
        "style": style,
        "data": text.replace("<", "\\u003c"),  # no text in it may end the script
        "library": library,
        "script": script,
    }
    pieces = read("page.html").split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def document(
    root: Any, *, other: Any = None, sizes: Mapping[str, Size] | None = None
) -> dict[str, Any]:
    """Return all that a page knows of a graph, and of another to compare it with, as plain data.

    Takes time and space linear in the size of the graphs.

    Args:
      root: the graph.
      other: another one.
      sizes: of parts of the graph, by path.

    Raises:
      ConfigErrors: a graph cannot be bound.
    """
    tables: dict[str, _Table] = {"calls": {}, "tags": {}, "places": {}}
    graph = _Graph(root, tables)
    described: dict[str, Any] = {"new": graph.nodes}
    rows = graph.places() if sizes or other is not None else {}
    for path, size in (sizes or {}).items():
        node, row = rows[path]
        graph.nodes[graph.nodes[node]["rows"][row]["node"]]["size"] = size
    if other is not None:
        old = _Graph(other, tables)
        places = old.places(), rows
        changes = [_change(change, *places) for change in comparison.diff(other, root)]
        described |= {"old": old.nodes, "changes": changes}
    entries = {name: [entry for _, entry in table.values()] for name, table in tables.items()}
    return described | entries


def _change(change: Change, old: dict[str, _Place], new: dict[str, _Place]) -> dict[str, Any]:
    """Return a difference with the row in each graph; no row where a graph has none."""
    sides = {"old": old.get(change.old.path or ""), "new": new.get(change.new.path or "")}
    paths = {"old": change.old.path, "new": change.new.path}
    return {
        "kind": type(change).__name__,
        "sign": change.sign,
        "path": change.path or "the root",
        "detail": change.detail,
        **{name: row for name, row in sides.items() if row and paths[name] is not None},
    }


class _Graph:
    """The nodes of a graph for a page; a list or dict without parts is a value on one line.

    Attributes:
      nodes: the nodes as data, the root first.
    """

    def __init__(self, root: Any, tables: dict[str, _Table]) -> None:
        resolved = Resolved.of(root)
        held = holders(resolved.nodes)
        shown = [node for node in resolved.nodes if id(node.value) in held or not node.parents]
        self._tables = tables
        self._numbers = {id(node.value): number for number, node in enumerate(shown)}
        self._resolved = resolved
        self.nodes = [self._node(node.value) for node in shown]
        for number, text in _results(resolved, shown).items():
            self.nodes[self._numbers[number]]["result"] = text
        steps = [{row["step"]: j for j, row in enumerate(node["rows"])} for node in self.nodes]
        for node, described in zip(shown, self.nodes, strict=True):
            places = ((self._numbers[id(holder.value)], step) for holder, step in node.parents)
            described["parents"] = [(i, steps[i][step]) for i, step in places]

    def places(self) -> dict[str, _Place]:
        """Return the row at each path, by the first path of the node that holds it."""
        paths = [""] * len(self.nodes)
        places: dict[str, _Place] = {"": (0, -1)}  # the root is in no row
        for i, node in enumerate(self.nodes):
            if node["parents"]:
                holder, row = node["parents"][0]
                paths[i] = join(paths[holder], self.nodes[holder]["rows"][row]["step"])
            places |= {join(paths[i], row["step"]): (i, j) for j, row in enumerate(node["rows"])}
        return places

    def _number(self, table: str, key: Hashable, entry: Any) -> int:
        """Return the number of an entry of a table, added if it is new."""
        entries = self._tables[table]
        return entries.setdefault(key, (len(entries), entry))[0]

    def _node(self, value: Any) -> dict[str, Any]:
        described = {"kind": fiddle.kind_of(value).__name__}
        if not isinstance(value, fdl.Buildable):
            rows = [{"step": step, **self._holding(held)} for step, held in children(value)]
            return described | {"rows": rows}
        function = fdl.get_callable(value)
        call = {"name": title_of(value), "module": getattr(function, "__module__", None) or ""}
        call |= {"doc": doc_of(function).summary, "parameters": {}}
        number = self._number("calls", id(function), call)
        parameters = self._tables["calls"][id(function)][1]["parameters"]
        rows = []
        for key, held in fiddle.all_arguments(value).items():
            if step_to(key) not in parameters:
                parameters[step_to(key)] = _parameter(value, key)
            rows.append(self._argument(value, key, held))
        return described | {"rows": rows, "call": number}

    def _argument(self, part: fdl.Buildable, key: fiddle.Key, held: Any) -> _Row:
        row: _Row = {"step": step_to(key)}
        binding = self._resolved.inherited_by(part).get(key)
        if binding is not None:
            row |= {**self._holding(binding.value), "text": _text(binding.value)}
            row["from"] = self._numbers[id(binding.node.value)], step_to(binding.key)
            origin = provenance.unset_by(part, key)
            row["unset_by"] = None if origin is None else self._assignment(origin)
        else:
            row |= self._holding(held)
            if key not in fiddle.set_arguments(part):
                row["state"] = "unset" if held is fdl.NO_VALUE else "default"
        row["tags"] = [
            self._number("tags", tag, {"name": tag.__name__, "doc": inspect.getdoc(tag) or ""})
            for tag in sorted(fdl.get_tags(part, key), key=str)
        ]
        row["assignments"] = list(self._assignments(part, key))
        return {name: content for name, content in row.items() if content not in (None, [])}

    def _holding(self, value: Any) -> _Row:
        """Return the number of a node, or the text of a plain value."""
        if value is fdl.NO_VALUE:
            return {}
        number = self._numbers.get(id(value))
        return {"text": leaf_text(value)} if number is None else {"node": number}

    def _assignments(self, part: fdl.Buildable, key: fiddle.Key) -> Iterator[_Row]:
        """Yield the assignments to the items of an argument, then those to the argument.

        Equal ones from one line of code that follow each other are merged.
        """
        names = [str(name) for name in reversed(fiddle.argument_history(part))]
        steps = [name[len(str(key)) :] for name in names if name.startswith(f"{key}[")]
        last = None
        for step in (*steps, ""):
            for assignment in provenance.assignments_of(part, key, step):
                described = self._assignment(assignment)
                if described != last:
                    prefix = f"{step} = " if step else ""
                    yield {**described, "text": prefix + described["text"]}
                last = described

    def _assignment(self, assignment: provenance.Assignment) -> _Row:
        described: _Row = {"text": _text(assignment.value)}
        for name, text in (("by", str(assignment.by or "")), ("where", assignment.where)):
            if text:
                described[name] = self._number("places", text, text)
        return described


def _parameter(part: fdl.Buildable, key: fiddle.Key) -> dict[str, str]:
    parameter, default = fiddle.parameter_of(part, key), fiddle.default_of(part, key)
    docs = doc_of(fdl.get_callable(part)).parameters
    described = {
        "type": hints.name_of(hints.hint_of(part, key)),
        "default": "" if default is fdl.NO_VALUE else leaf_text(default),
        "doc": docs.get(parameter.name, "") if parameter else "",
    }
    return {name: text for name, text in described.items() if text}


def _text(value: Any) -> str:
    """Return what was assigned or is inherited, on one line; of a list of nodes, its length."""
    if value is fdl.NO_VALUE:
        return "removed"
    holds_nodes = is_node(value) and any(is_node(child) for _, child in children(value))
    if holds_nodes and not isinstance(value, fdl.Buildable):
        return f"{fiddle.kind_of(value).__name__} of {len(value)}"
    return leaf_text(value)


def _results(resolved: Resolved, shown: list[Node]) -> dict[int, str]:
    """Return the result of each computed value among the nodes of a graph, by identity.

    One that is computed from any other node is left out, as building that may take long. So is one
    that fails: building reports it.
    """
    results: dict[int, str] = {}
    for node in shown:
        if node.parents and hints.is_quantity(node.value):
            copy = resolved.copies[id(node.value)]
            inner = [node.value for node in parts(copy)]
            if all(hints.is_quantity(item) or isinstance(item, TaggedValueCls) for item in inner):
                result = hints.computed(copy)
                results |= {} if result is fdl.NO_VALUE else {id(node.value): leaf_text(result)}
    return results
