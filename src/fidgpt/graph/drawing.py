"""Drawings of graphs and of the differences between them."""

import dataclasses
import html
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import fiddle as fdl

from fidgpt.graph import errors, hints, paths
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.difference import changes
from fidgpt.graph.difference.comparison import Comparison, Edge, diff
from fidgpt.graph.outlines import leaf_text, outline
from fidgpt.graph.walk import Node, children, is_shared_object, part_around, step_to, title

# How a node, a row or an arrow differs; "" where no difference is drawn, and "followed" where
# another value than before is inherited.
Mark = Literal["", "same", "followed", "changed", "added", "removed"]


class Arrow(NamedTuple):
    """A node to which a row leads, and how many equal ones it represents."""

    part: Any
    is_inherited: bool = False
    mark: Mark = ""
    times: int = 1


@dataclass(slots=True)
class Row:
    """One argument of a node.

    Attributes:
      name: its name, with the index or key of an item.
      text: the value; empty for a node, to which an arrow leads.
      was: the old value, where a difference is drawn.
      tags: the tags that it sets, or inherits.
      lost_tags: those that it no longer carries.
      is_inherited: whether the value is inherited.
      mark: how it differs.
      arrows: the nodes to which it leads.
    """

    name: str = ""
    text: str = ""
    was: str = ""
    tags: tuple[str, ...] = ()
    lost_tags: tuple[str, ...] = ()
    is_inherited: bool = False
    mark: Mark = ""
    arrows: list[Arrow] = field(default_factory=list)


@dataclass(slots=True)
class Box:
    """One node.

    Attributes:
      part: the node.
      path: the first place that holds it.
      rows: its arguments.
      kind: what it makes: an object, a factory that is called later, or a number.
      is_shared: whether several places, or all calls of a factory, hold the one object.
      mark: how it differs.
      old_title: what it called, if that was something else.
      count: how many equal items of a list it represents.
      holders: who holds it, as far as no arrow of the drawing shows that.
    """

    part: Any
    path: str
    rows: list[Row]
    kind: Literal["object", "factory", "quantity"]
    is_shared: bool
    mark: Mark
    old_title: str
    count: int = 1
    holders: str = ""

    @property
    def title(self) -> str:
        """What it calls."""
        return title(self.part)

    @property
    def is_dim(self) -> bool:
        """Whether a difference is drawn, and this node has none."""
        changed = {"changed", "added", "removed"}
        return self.mark == "same" and not any(row.mark in changed for row in self.rows)


def picture(root: Any, *, since: Any = None, at: str = "", depth: int | None = None) -> list[Box]:
    """Return what `draw` draws: each node under a start once, the nearer first.

    Equal items of a list that nothing else holds are one box. Of a node more than `depth` arrows
    away from the start only the name is left, in the row that holds it.

    Raises:
      ConfigErrors: a graph cannot be bound.
      ConfigError: there is no node at `at`.
    """
    comparison = None if since is None else Comparison(since, root)
    bound = BoundGraph(root) if comparison is None else comparison.new
    start = paths.find_parameter(bound.root, at).value if at else bound.root
    if not bound.has_parts(start):
        raise errors.ConfigError(f"{at or 'the root'} is not a component to draw.")
    drawer = _Drawer(bound, comparison)
    boxes = {id(start): drawer.box(start)}
    level = list(boxes.values())
    while level and depth != 0:
        near: dict[int, Box] = {}
        for arrow in (arrow for box in level for row in box.rows for arrow in row.arrows):
            if id(arrow.part) not in boxes and id(arrow.part) not in near:
                near[id(arrow.part)] = drawer.box(arrow.part, arrow.times)
        boxes |= near
        level = list(near.values())
        depth = depth and depth - 1
    for row in (row for box in level for row in box.rows if row.arrows):  # of the deepest boxes
        first = row.arrows[0]
        row.arrows = [arrow for arrow in row.arrows if id(arrow.part) in boxes]
        if not row.arrows:
            row.text = f"{title(first.part)}{f' × {first.times}' * (first.times > 1)} ..."
    for box in boxes.values():
        if box.is_shared and box.kind != "quantity":
            box.holders = drawer.holders(box, boxes)
    return list(boxes.values())


class _Drawer:
    """Makes the box of each node, with its rows and where they lead."""

    def __init__(self, graph: BoundGraph, comparison: Comparison | None) -> None:
        self._graph = graph
        self._comparison = comparison
        self._notes: dict[int, dict[str, Row]] = {}  # how places of the new graph differ, by holder
        self._left: dict[int, list[Row]] = {}  # items that a container lost
        self._old_titles: dict[int, str] = {}
        for edge, change in comparison.changed_edges() if comparison else ():
            self._add_note(edge, change)

    def box(self, part: Any, count: int = 1) -> Box:
        """Return the box of a node."""
        kind: Any = "quantity" if hints.is_quantity(part) else "object"
        if isinstance(part, fdl.Partial | fdl.ArgFactory):
            kind = "factory"
        old_title, mark = self._old_titles.get(id(part), ""), ""
        if self._comparison is not None:
            is_new = self._comparison.predecessor(part) is None
            mark = "added" if is_new else "changed" if old_title else "same"
        node, rows = self._graph.node_of[id(part)], list(self._rows(part))
        return Box(part, node.path, rows, kind, is_shared_object(node), mark, old_title, count)

    def holders(self, box: Box, drawn: Collection[int]) -> str:
        """Return who holds a shared node, beside those with an arrow to it."""
        node = self._graph.node_of[id(box.part)]
        above = [one for holder, _ in node.parents if (one := part_around(holder))]
        factory = _outermost_factory(above[0]) if len(above) == 1 else None
        by = f"one for all calls of {title(factory.value)}" if factory else ""
        hidden = {one.path or "the root": None for one in above if id(one.value) not in drawn}
        also = f"also held by {errors.listed(list(hidden), most=2)}" if hidden else ""
        return ", ".join(filter(None, (by, also)))

    def _rows(self, part: Any) -> Iterator[Row]:
        if not isinstance(part, fdl.Buildable):
            yield from self._items("", part, "")
            return
        for key in self._graph.arguments(part):
            argument, row = self._graph.argument(part, key), self._note(part, step_to(key))
            row.is_inherited = argument.binding is not None
            if argument.is_own or row.is_inherited or row.mark not in ("", "same"):
                row.name, row.tags = str(key), changes.tag_names(part, key)
                yield from self._written(row, argument.value)
        known = {step_to(key) for key in self._graph.arguments(part)}
        for step, row in self._notes.get(id(part), {}).items():
            if step not in known and row.was:  # what is here now does not have this argument
                yield dataclasses.replace(row, name=step.removeprefix("."), mark="removed")

    def _add_note(self, edge: Edge, change: changes.Change | None) -> None:
        (_, holder), was, now = edge.holders, edge.old.value, edge.new.value
        text = "" if was is fdl.NO_VALUE else leaf_text(was)
        if change and change.old.shared_with:
            text = str(change.old)
        if isinstance(change, changes.PartReplaced) and isinstance(now, fdl.Buildable):
            self._old_titles[id(now)] = title(was)
        elif now is fdl.NO_VALUE and not isinstance(holder, fdl.Buildable):
            row = Row(edge.steps[0] or "", was=text, mark="removed")
            self._left.setdefault(id(holder), []).append(row)
        elif edge.steps[1] is not None:
            notes = self._notes.setdefault(id(holder), {})
            note = notes.setdefault(edge.steps[1], Row(mark="changed"))
            if isinstance(change, changes.TagsChanged):
                note.lost_tags = change.removed
            elif isinstance(change, changes.ItemMoved):
                note.was = edge.steps[0] or ""
            else:
                is_new = was is fdl.NO_VALUE
                mark = "added" if is_new else "removed" if now is fdl.NO_VALUE else "changed"
                note.mark = mark if change else "followed"
                note.was = "" if was is None and isinstance(now, fdl.Buildable) else text

    def _note(self, holder: Any, step: str) -> Row:
        known = self._notes.get(id(holder), {}).get(step)
        note = known or Row(mark="same" if self._comparison else "")
        return dataclasses.replace(note, arrows=[])

    def _written(self, row: Row, value: Any) -> Iterator[Row]:
        """Yield the row of a value; of a container that holds nodes, those of its items."""
        if isinstance(value, fdl.Buildable):
            mark = "added" if row.mark == "changed" else row.mark
            row.arrows = [Arrow(value, row.is_inherited, mark)]
        elif self._graph.has_parts(value):
            yield from self._items(row.name, value, row.mark)
            return
        elif value is not fdl.NO_VALUE:
            row.text = leaf_text(value)
        yield row

    def _items(self, name: str, container: Any, mark: Mark) -> Iterator[Row]:
        """Yield the items of a container, the equal ones of a list as one."""
        groups: dict[Hashable, tuple[list[str], Any]] = {}
        for step, value in children(container):
            node = self._graph.node_of.get(id(value))
            is_alone = node is not None and len(node.parents) == 1
            may_join = isinstance(value, fdl.Buildable) and not isinstance(container, dict)
            look = self._look(value) if is_alone and may_join else step
            groups.setdefault(look, ([], value))[0].append(step)
        for steps, value in groups.values():
            row = self._note(container, steps[0])
            row.mark = mark if row.mark == "same" and mark else row.mark
            indices = changes.ranges(int(step[1:-1]) for step in steps) if len(steps) > 1 else ""
            row.name = name + (f"[{indices}]" if indices else steps[0])
            for one in self._written(row, value):
                one.arrows = [arrow._replace(times=len(steps)) for arrow in one.arrows]
                yield one
        for row in self._left.get(id(container), ()):
            yield dataclasses.replace(row, name=name + row.name)

    def _look(self, part: Any) -> Hashable:
        """Return a key of a node: equal for those that are equal, and were equal before."""
        old = self._comparison and self._comparison.predecessor(part)
        was = self._comparison.old.digest[id(old)] if self._comparison and old else None
        return self._graph.digest[id(part)], was


def _outermost_factory(node: Node | None) -> Node | None:
    """Return the outermost of the factories that lead to a part; None if it is no factory."""
    found: Node | None = None
    while node is not None and isinstance(node.value, fdl.Partial | fdl.ArgFactory):
        found, node = node, part_around(node.parents[0][0]) if node.parents else None
    return found


class _Ink(NamedTuple):
    """Colors of a box: its border, its ground, its text, and faint text."""

    line: str
    paper: str
    text: str
    faint: str


_PLAIN = _Ink("#64748b", "#ffffff", "#0f172a", "#94a3b8")
_SHARED = _Ink("#d97706", "#fef3c7", "#451a03", "#b08968")
_QUANTITY = _Ink("#0891b2", "#ecfeff", "#083344", "#7aa5b0")
_ADDED = _Ink("#16a34a", "#dcfce7", "#052e16", "#6aa583")
_REMOVED = "#dc2626"
_DIM = _Ink("#cbd5e1", "#ffffff", "#94a3b8", "#b6c1cf")
_ROWS = {"changed": "#fef08a", "followed": "#fef9c3", "added": _ADDED.paper, "removed": "#fee2e2"}
_ARROWS = {"added": _ADDED.line, "same": _DIM.line}
_CHIPS = (  # ground and text of a tag
    *(("#dbeafe", "#1d4ed8"), ("#dcfce7", "#15803d"), ("#fce7f3", "#be185d")),
    *(("#ede9fe", "#6d28d9"), ("#ffedd5", "#c2410c"), ("#ccfbf1", "#0f766e")),
    *(("#e2e8f0", "#334155"), ("#e0e7ff", "#4338ca"), ("#fee2e2", "#b91c1c")),
    *(("#ecfccb", "#4d7c0f"), ("#cffafe", "#0e7490"), ("#fae8ff", "#a21caf")),
)
# By the tag: in all drawings of a process, as those of a notebook, it has one color.
_chips: dict[str, tuple[str, str]] = {}
_Chips = Mapping[str, tuple[str, str]]
_LONG_FLOAT = re.compile(r"\b\d+\.\d{7,}(?:e[+-]\d+)?")
_MAX_WIDTH = 28  # characters of a value
_TABLE = '<table border="0" cellborder="0" cellspacing="{}" cellpadding="{}">'
_NOTEBOOK_DEPTH = 3
_LEFT = ' align="left"'
_GRAPH = {"rankdir": "LR", "nodesep": "0.12", "ranksep": "0.4", "bgcolor": "white"}
_FONT = {"fontname": "Arial", "fontsize": "11"}
_NODE = {"shape": "box", "margin": "0.05,0.03", "height": "0", "width": "0"}


def _ink_of(box: Box) -> _Ink:
    if box.mark == "added":
        return _ADDED
    if box.is_dim:
        return _DIM
    if box.kind == "quantity":
        return _QUANTITY
    return _SHARED if box.is_shared else _PLAIN


def _source(boxes: list[Box]) -> str:
    """Return a picture in Graphviz's language."""
    import graphviz  # takes as long to import as all of fidgpt.graph, and not everyone draws

    tags = [tag for box in boxes for row in box.rows for tag in (*row.tags, *row.lost_tags)]
    for tag in tags:
        _chips.setdefault(tag, _CHIPS[len(_chips) % len(_CHIPS)])
    graph_attr = {**_GRAPH, **_FONT, "label": _key(boxes), "labeljust": "l"}
    digraph = graphviz.Digraph(
        "config", graph_attr=graph_attr, node_attr=_NODE | _FONT, edge_attr={"arrowsize": "0.6"}
    )
    numbers = {id(box.part): i for i, box in enumerate(boxes)}
    for i, box in enumerate(boxes):
        ink = _ink_of(box)
        digraph.node(
            f"n{i}",
            _label(box, ink, _chips),
            color=ink.line,
            fillcolor=ink.paper,
            penwidth="2" if box.is_shared else "1",
            style="rounded,filled,dashed" if box.kind == "factory" else "rounded,filled",
            tooltip=graphviz.escape(box.path or box.title),
        )
    for i, box in enumerate(boxes):
        for j, arrow in ((j, arrow) for j, row in enumerate(box.rows) for arrow in row.arrows):
            head = numbers[id(arrow.part)]
            digraph.edge(
                f"n{i}:r{j}:e",
                f"n{head}:w",
                color=_line_of(arrow, boxes[head]),
                style="dashed" if arrow.is_inherited else "solid",
            )
    return digraph.source


def _line_of(arrow: Arrow, box: Box) -> str:
    """Return the color of an arrow to a box."""
    return _ARROWS.get(arrow.mark) or _ink_of(box).line


def _key(boxes: list[Box]) -> str:
    """Return what the colors and lines of boxes mean, as far as they occur."""
    rows = [row for box in boxes for row in box.rows]
    arrows = [arrow for row in rows for arrow in row.arrows]
    found = {box.kind for box in boxes} | {one.mark for one in (*boxes, *rows)}
    by_id = {id(box.part): box for box in boxes}
    is_shared = any(box.is_shared and box.kind != "quantity" for box in boxes)
    lines = {_line_of(arrow, by_id[id(arrow.part)]) for arrow in arrows}
    entries = [
        (_PLAIN.line in lines, "", "holds", _PLAIN.line),
        (is_shared, _SHARED.paper, "one object, shared", _SHARED.line),
        ("factory" in found, "", "- - a factory, called later", ""),
        ("quantity" in found, _QUANTITY.paper, "a computed number", _QUANTITY.line),
        (any(row.is_inherited for row in rows), "", "← inherited", ""),
        (any(arrow.is_inherited for arrow in arrows), "", "⇢ inherited component", ""),
        (_DIM.line in lines, "", "as before", _DIM.line),
        ("changed" in found, _ROWS["changed"], "changed", ""),
        ("followed" in found, _ROWS["followed"], "follows", ""),
        ("added" in found, _ADDED.paper, "new", _ADDED.line),
        ("removed" in found, _ROWS["removed"], "removed", ""),
    ]
    cells = []
    for occurs, paper, text, line in entries:
        arrow = f"{_font('→', line, size=12, mark='b')} " if line in lines else ""
        if occurs:
            cells.append(f"<td{_ground(paper)}>{arrow}{_font(text, '#475569', size=10)}</td>")
    return f"<{_TABLE.format(8, 3)}<tr>{''.join(cells)}</tr></table>>" if cells else ""


def _label(box: Box, ink: _Ink, chips: _Chips) -> str:
    """Return the table of a box: its title, then its rows, of which row `i` has the port `ri`."""
    text = _font(box.title, ink.text, size=12, mark="b")
    if box.old_title:
        text = f"{_font(box.old_title, _REMOVED, mark='s')} → {text}"
    if box.count > 1:
        text += _font(f"  × {box.count}", ink.text, size=12)
    rows = [f'<tr><td align="left" colspan="3">{text}</td></tr>']
    if box.holders:
        holders = _font(box.holders, ink.faint, size=9)
        rows.append(f'<tr><td align="left" colspan="3">{holders}</td></tr>')
    rows.append("<hr/>" * bool(box.rows))
    for i, row in enumerate(box.rows):
        rows.append(_row(row, f"r{i}", ink, {} if box.is_dim and row.mark == "same" else chips))
    return f"<{_TABLE.format(0, 2)}{''.join(rows)}</table>>"


def _row(row: Row, port: str, ink: _Ink, chips: _Chips) -> str:
    color = ink.faint if row.is_inherited and row.mark in ("", "same") else ink.text
    color = _PLAIN.line if row.mark == "followed" else color
    start = f'<td align="left"{_ground(_ROWS.get(row.mark, ""), style="")}'
    name = _font(row.name, color)
    tags = []
    for tag in row.tags:  # on colored ground if the row sets it, with an arrow if it inherits
        paper, text = ("", ink.faint) if row.is_inherited else chips.get(tag, ("", ink.faint))
        label = _font(f"{'← ' * row.is_inherited}{tag}", text, size=9)
        tags.append(f"<td{_ground(paper) or _LEFT}>{label}</td>")
    tags += [f"<td>{_font(tag, _REMOVED, size=9, mark='s')}</td>" for tag in row.lost_tags]
    if not (row.text or row.was or tags):
        return f'<tr>{start} colspan="3" port="{port}">{name}</td></tr>'
    new, old = _rounded(row.text), _rounded(row.was)
    if new == old:  # which differ where they are rounded
        new, old = row.text, row.was
    value = _font(_shortened(new), color) if new else " "
    if row.was:
        was = _font(_shortened(old), _REMOVED, mark="s")
        value = f"{was} → <b>{value}</b>" if row.text else was
    cells = f"{_TABLE.format(0, 1)}<tr>{''.join(tags)}</tr></table>" if tags else " "
    return f'<tr>{start}>{name}</td>{start}>{value}</td>{start} port="{port}">{cells}</td></tr>'


def _ground(paper: str, style: str = ' style="rounded"') -> str:
    return f' bgcolor="{paper}"{style}' if paper else ""


def _font(text: str, color: str, *, size: int = 11, mark: str = "") -> str:
    r"""Return text as it is, whatever it holds, in a color, bold or struck through.

    XML has no control characters, not even escaped, and Graphviz replaces `\N` by a name.
    """
    printable = "".join(c if c.isprintable() else "�" for c in text)
    text = html.escape(printable, quote=True).replace("\\", "\\\\")
    text = f"<{mark}>{text}</{mark}>" if mark else text
    return f'<font color="{color}" point-size="{size}">{text}</font>'


def _rounded(text: str) -> str:
    """Return the text of a value with five digits of each float that has many more."""
    if "'" in text or '"' in text:  # numbers in a text are part of it
        return text
    return _LONG_FLOAT.sub(lambda found: f"≈{float(found[0]):.5g}", text)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"


class Drawing:
    """A picture of a graph in Graphviz's language, and the same in words.

    A notebook shows the picture if `dot` or `graphviz-pure` is installed, and the words otherwise.

    Attributes:
      source: the picture in Graphviz's language.
      text: its content, as text.
    """

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def svg(self) -> str:
        """Return the picture as SVG.

        Raises:
          RuntimeError: there is no program that draws, or none succeeded.
        """
        return self._render("svg").decode()

    def save(self, path: str | Path) -> Path:
        """Write the picture in the format of the path's suffix: .svg, .png, or .dot as it is.

        Raises:
          RuntimeError: there is no program that draws, or none succeeded.
        """
        path = Path(path)
        suffix = path.suffix.removeprefix(".").lower()
        is_source = suffix in ("dot", "gv")
        path.write_bytes(self.source.encode() if is_source else self._render(suffix))
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return what a notebook shows: the richest that it can of these."""
        try:
            return {"image/svg+xml": self.svg(), "text/plain": self.text}
        except RuntimeError:
            return {"text/plain": self.text}

    def _render(self, suffix: str) -> bytes:
        problem = "There is neither dot nor graphviz-pure."
        beside = sysconfig.get_path("scripts")  # where pip installs the port of Graphviz
        found = [shutil.which("dot"), shutil.which("graphviz-pure", path=beside)]
        for program in filter(None, [*found, shutil.which("graphviz-pure")]):
            command, content = [program, f"-T{suffix}"], self.source.encode()
            try:
                done = subprocess.run(
                    command, input=content, capture_output=True, timeout=60, check=True
                )
            except (OSError, subprocess.SubprocessError) as error:
                stderr = getattr(error, "stderr", None) or b""
                problem = f"{error} {stderr.decode(errors='replace').strip()[:300]}"
                continue
            if done.stdout:
                return done.stdout
            problem = f"{program} wrote nothing."
        raise RuntimeError(
            f"The graph could not be drawn as {suffix or 'a file'}. {problem}\n  Install Graphviz "
            "(Debian, Ubuntu: apt install graphviz) or run: pip install graphviz-pure"
        )


def show_configs() -> bool:
    """Let notebooks draw every graph that they show; return whether there is a notebook."""
    shell = sys.modules.get("IPython")
    running: Any = shell.get_ipython() if shell else None
    if running is None or not hasattr(running, "display_formatter"):
        return False
    running.display_formatter.formatters["image/svg+xml"].for_type(fdl.Buildable, svg_of)
    return True


def svg_of(root: Any) -> str | None:
    """Return a graph as SVG; None, so that it is shown as text, where it cannot be drawn."""
    try:
        return draw(root, depth=_NOTEBOOK_DEPTH).svg()
    except (errors.ConfigError, RuntimeError):  # incomplete, or there is no program that draws
        return None


def draw(root: Any, *, since: Any = None, at: str = "", depth: int | None = None) -> Drawing:
    """Draw a graph as it is once it is bound, or the difference from an earlier one.

    Each node is one box, however many places hold it: what is shared has a color of its own and
    an arrow from each of its places. Dashed boxes are factories, called for each use.
    Inherited values are faint. Equal items of a list are one box, `× 3`.
    The graph is not changed.

    Args:
      root: the graph.
      since: an earlier graph; then differences are highlighted, and old values are struck through.
      at: the path of a node, to draw that alone: "model".
      depth: how many arrows away from there nodes are boxes; None for all of them.

    Raises:
      ConfigErrors: a graph cannot be bound.
      ConfigError: there is no node at `at`.
    """
    source = _source(picture(root, since=since, at=at, depth=depth))
    return Drawing(source, outline(root) if since is None else changes.diff_text(diff(since, root)))
