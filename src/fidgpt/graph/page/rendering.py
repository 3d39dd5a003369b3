"""The HTML page of a graph."""

import base64
import hashlib
import html
import inspect
import json
from collections.abc import Callable, Hashable, Iterator
from importlib import resources
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.graph import fiddle, hints, provenance
from fidgpt.graph.binding import Binding, Resolved
from fidgpt.graph.difference import comparison
from fidgpt.graph.difference.changes import Change, short
from fidgpt.graph.docs import doc_of
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.walk import Node, children, is_node, join, parts, step_to
from fidgpt.graph.walk import title as title_of

_FEW = 24  # plain values in a list that is written on one line
_SHORT = 8  # items of an assigned list that are written out
# In the order in which they use each other.
_SCRIPTS = [
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
]
_Row = dict[str, Any]
_Place = tuple[int, int]  # the numbers of a node and of its row


def page(root: Any, *, other: Any = None, title: str = "config", other_title: str = "other") -> str:
    """Return a graph as an HTML page that needs no other file, to be opened from disk.

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
    sources = " ".join(map(_digest, (layout, script)))
    parts = {
        "title": html.escape(title.encode("utf-8", "replace").decode()),
        # Nothing from outside, and no script but these: whatever a config holds cannot run.
        "policy": f"default-src 'none'; style-src {_digest(style)}; script-src {sources}",
        "style": style,
        "data": data.replace("<", "\\u003c"),  # no text in a config may end the script
        "layout": layout,
        "script": script,
    }
    pieces = _read("page.html").split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _read(name: str) -> str:
    return resources.files("fidgpt.graph.page").joinpath(name).read_text(encoding="utf-8")


def document(root: Any, *, other: Any = None) -> dict[str, Any]:
    """Return all that a page knows of a graph, and of another to compare it with, as plain data.

    Takes time and space linear in the size of the graphs.

    Raises:
      ConfigErrors: a graph cannot be bound.
    """
    tables = {name: _Table() for name in ("calls", "tags", "places")}
    graph = _Graph(root, tables)
    described: dict[str, Any] = {"new": graph.nodes}
    if other is not None:
        old = _Graph(other, tables)
        places = old.places(), graph.places()
        changes = [_change(change, *places) for change in comparison.diff(other, root)]
        described |= {"old": old.nodes, "changes": changes}
    return described | {name: table.all for name, table in tables.items()}


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


class _Table:
    """Entries by number, each once.

    Attributes:
      all: the entries, in the order of their numbers.
    """

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable, make: Callable[[], Any]) -> int:
        """Return the number of an entry, made if it is new."""
        if key not in self._numbers:
            self._numbers[key] = len(self.all)
            self.all.append(make())
        return self._numbers[key]


class _Graph:
    """The nodes of a graph for a page.

    A list of a few plain values is a value on one line; a longer one is a node with a row for
    each.

    Attributes:
      nodes: the nodes as data, the root first.
    """

    def __init__(self, root: Any, tables: dict[str, _Table]) -> None:
        resolved = Resolved.of(root)
        small = _small(resolved.nodes)
        shown = [one for one in resolved.nodes if id(one.value) not in small or not one.parents]
        self._tables = tables
        self._numbers = {id(node.value): number for number, node in enumerate(shown)}
        self._inherited = {(id(one.part), one.key): one.binding for one in resolved.inherited}
        # By the identity of a list or dict, the argument that it is in, and the way from there.
        self._owners: dict[int, tuple[fdl.Buildable, fiddle.Key, str]] = {}
        self.nodes = [self._node(node.value) for node in shown]
        for number, text in _results(resolved, shown).items():
            self.nodes[self._numbers[number]]["result"] = text
        steps = [{row["step"]: j for j, row in enumerate(node["rows"])} for node in self.nodes]
        for node, described in zip(shown, self.nodes, strict=True):
            holders = ((self._numbers[id(holder.value)], step) for holder, step in node.parents)
            described["parents"] = [(i, steps[i][step]) for i, step in holders]

    def places(self) -> dict[str, _Place]:
        """Return the row at each path, by the first path of the node that holds it."""
        paths = [""] * len(self.nodes)
        found: dict[str, _Place] = {"": (0, -1)}  # the root is in no row
        for i, node in enumerate(self.nodes):
            if node["parents"]:
                holder, row = node["parents"][0]
                paths[i] = join(paths[holder], self.nodes[holder]["rows"][row]["step"])
            found |= {join(paths[i], row["step"]): (i, j) for j, row in enumerate(node["rows"])}
        return found

    def _node(self, value: Any) -> dict[str, Any]:
        described = {"kind": type(value).__name__}
        if not isinstance(value, fdl.Buildable):
            return described | {"rows": [self._item(value, *one) for one in children(value)]}
        items: dict[str, list[str]] = {}  # that were assigned, by their argument
        for name in fiddle.argument_history(value):
            key, bracket, item = str(name).partition("[")
            if bracket:
                items.setdefault(key, []).append(bracket + item)
        function = fdl.get_callable(value)
        call = {"name": title_of(value), "module": getattr(function, "__module__", None) or ""}
        call |= {"doc": doc_of(function).summary, "parameters": {}}
        number = self._tables["calls"].number(id(function), lambda: call)
        parameters = self._tables["calls"].all[number]["parameters"]
        rows = []
        for key, held in fiddle.all_arguments(value).items():
            if step_to(key) not in parameters:
                parameters[step_to(key)] = _parameter(value, key)
            rows.append(self._argument(value, key, held, items.get(str(key), [])))
        return described | {"rows": rows, "call": number}

    def _argument(self, part: fdl.Buildable, key: fiddle.Key, held: Any, steps: list[str]) -> _Row:
        """Return the row of an argument, whose items at `steps` were assigned."""
        row: _Row = {"step": step_to(key)}
        binding = self._inherited.get((id(part), key))
        if binding is not None:
            row |= self._inheriting(binding)
            origin = provenance.unset_by(part, key)
            row["unset_by"] = None if origin is None else self._assignment(origin)
        else:
            row |= self._holding(held)
            if key not in fiddle.set_arguments(part):
                row["state"] = "unset" if held is fdl.NO_VALUE else "default"
        row["tags"] = [
            self._tables["tags"].number(
                tag, lambda tag=tag: {"name": tag.__name__, "doc": inspect.getdoc(tag) or ""}
            )
            for tag in sorted(fdl.get_tags(part, key), key=str)
        ]
        found = list(self._assignments(part, key))
        if "node" not in row:
            inside = [
                (step, one)
                for step in reversed(steps)
                for one in self._assignments(part, key, step)
            ]
            found = [*({**one, "text": f"{step} = {one['text']}"} for step, one in inside), *found]
        row["assignments"] = found
        self._own(held, (part, key, ""))
        return {name: content for name, content in row.items() if content not in (None, [])}

    def _item(self, holder: Any, step: str, held: Any) -> _Row:
        row = {"step": step, **self._holding(held)}
        if owner := self._owners.get(id(holder)):
            part, key, way = owner
            if found := list(self._assignments(part, key, way + step)):
                row["assignments"] = found
            self._own(held, (part, key, way + step))
        return row

    def _own(self, held: Any, owner: tuple[fdl.Buildable, fiddle.Key, str]) -> None:
        if is_node(held) and not isinstance(held, fdl.Buildable):
            self._owners.setdefault(id(held), owner)

    def _holding(self, value: Any) -> _Row:
        """Return the number of a node, or the text of a plain value."""
        if value is fdl.NO_VALUE:
            return {}
        number = self._numbers.get(id(value))
        if number is not None:
            return {"node": number}
        return {"text": short(value) if is_node(value) else leaf_text(value)}

    def _inheriting(self, source: Binding) -> _Row:
        """Return the inherited value, and the row that sets it."""
        row = self._numbers[id(source.node.value)], step_to(source.key)
        return {**self._holding(source.value), "text": _value_text(source.value), "from": row}

    def _assignments(self, part: fdl.Buildable, key: fiddle.Key, step: str = "") -> Iterator[_Row]:
        """Yield the assignments to an argument, or to an item at `step` inside of it.

        Equal ones from one line of code that follow each other are merged.
        """
        last = None
        for one in provenance.assignments_of(part, key, step):
            described = self._assignment(one)
            if described != last:
                yield described
            last = described

    def _assignment(self, one: provenance.Assignment) -> _Row:
        described: _Row = {"text": _value_text(one.value)}
        for name, text in (("by", str(one.by or "")), ("where", one.where)):
            if text:
                described[name] = self._tables["places"].number(text, lambda text=text: text)
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


def _value_text(value: Any) -> str:
    """Return a value as in code, on one line; of a node only its name."""
    if value is fdl.NO_VALUE:
        return "removed"
    if isinstance(value, fdl.Buildable):
        return f"{title_of(value)}()"
    if not is_node(value):
        return leaf_text(value)
    items = list(value.values()) if isinstance(value, dict) else list(value)
    if len(items) > _SHORT or any(map(is_node, items)):
        return f"{type(value).__name__} of {len(items)}"
    return leaf_text(value)


def _small(found: list[Node]) -> set[int]:
    """Return the identities of lists and tuples of a few plain values, and of empty dicts."""
    sizes: dict[int, int] = {}
    for node in reversed(found):
        if not isinstance(node.value, fdl.Buildable) and not (
            isinstance(node.value, dict) and node.value
        ):
            held = [child for _, child in children(node.value)]
            size = 1 + sum(sizes.get(id(one), _FEW) if is_node(one) else 1 for one in held)
            if size <= _FEW:
                sizes[id(node.value)] = size
    return set(sizes)


def _results(resolved: Resolved, shown: list[Node]) -> dict[int, str]:
    """Return the result of each computed value among the nodes of a graph, by identity.

    One that is computed from any other node is left out, as building that may take long. So is one
    that fails: building reports it.
    """
    found: dict[int, str] = {}
    for node in shown:
        if node.parents and hints.is_quantity(node.value):
            copy = find_parameter(resolved.bound, node.path).value
            inner = [one.value for one in parts(copy)]
            if all(hints.is_quantity(one) or isinstance(one, TaggedValueCls) for one in inner):
                result = hints.computed(copy)
                found |= {} if result is fdl.NO_VALUE else {id(node.value): leaf_text(result)}
    return found
