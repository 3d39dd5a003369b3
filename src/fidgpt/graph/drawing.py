"""Drawings of graphs."""

import html
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import fiddle as fdl

from fidgpt.graph import errors, hints, paths
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.difference import changes
from fidgpt.graph.outlines import leaf_text, outline
from fidgpt.graph.walk import Node, children, is_shared_object, part_around, title


class Arrow(NamedTuple):
    """A node to which a row leads, and how many equal ones it represents."""

    part: Any
    is_inherited: bool = False
    times: int = 1


@dataclass(slots=True)
class Row:
    """One argument of a node.

    Attributes:
      name: its name, with the index or key of an item.
      text: the value; empty for a node, to which an arrow leads.
      tags: the tags that it sets, or inherits.
      is_inherited: whether the value is inherited.
      arrows: the nodes to which it leads.
    """

    name: str
    text: str = ""
    tags: tuple[str, ...] = ()
    is_inherited: bool = False
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
      count: how many equal items of a list it represents.
      holders: who holds it, as far as no arrow of the drawing shows that.
    """

    part: Any
    path: str
    rows: list[Row]
    kind: Literal["object", "factory", "quantity"]
    is_shared: bool
    count: int = 1
    holders: str = ""

    @property
    def title(self) -> str:
        """What it calls."""
        return title(self.part)


def picture(root: Any, *, at: str = "", depth: int | None = None) -> list[Box]:
    """Return what `draw` draws: each node under a start once, the nearer first.

    Equal items of a list that nothing else holds are one box. Of a node more than `depth` arrows
    away from the start only the name is left, in the row that holds it.

    Raises:
      ConfigErrors: the graph cannot be bound.
      ConfigError: there is no node at `at`.
    """
    bound = BoundGraph(root)
    start = paths.find_parameter(bound.root, at).value if at else bound.root
    if not bound.has_parts(start):
        raise errors.ConfigError(f"{at or 'the root'} is not a component to draw.")
    drawer = _Drawer(bound)
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

    def __init__(self, graph: BoundGraph) -> None:
        self._graph = graph

    def box(self, part: Any, count: int = 1) -> Box:
        """Return the box of a node."""
        kind: Any = "quantity" if hints.is_quantity(part) else "object"
        if isinstance(part, fdl.Partial | fdl.ArgFactory):
            kind = "factory"
        node = self._graph.node_of[id(part)]
        return Box(part, node.path, list(self._rows(part)), kind, is_shared_object(node), count)

    def holders(self, box: Box, drawn: Collection[int]) -> str:
        """Return who holds a shared node, beside those with an arrow to it."""
        node = self._graph.node_of[id(box.part)]
        above = [part for holder, _ in node.parents if (part := part_around(holder))]
        factory = _outermost_factory(above[0]) if len(above) == 1 else None
        by = f"one for all calls of {title(factory.value)}" if factory else ""
        hidden = {part.path or "the root": None for part in above if id(part.value) not in drawn}
        also = f"also held by {errors.listed(list(hidden), most=2)}" if hidden else ""
        return ", ".join(filter(None, (by, also)))

    def _rows(self, part: Any) -> Iterator[Row]:
        if not isinstance(part, fdl.Buildable):
            yield from self._items("", part)
            return
        for key in self._graph.arguments(part):
            argument = self._graph.argument(part, key)
            is_inherited = argument.binding is not None
            if argument.is_own or is_inherited:
                row = Row(str(key), tags=changes.tag_names(part, key), is_inherited=is_inherited)
                yield from self._written(row, argument.value)

    def _written(self, row: Row, value: Any) -> Iterator[Row]:
        """Yield the row of a value; of a container that holds nodes, those of its items."""
        if isinstance(value, fdl.Buildable):
            row.arrows = [Arrow(value, row.is_inherited)]
        elif self._graph.has_parts(value):
            yield from self._items(row.name, value)
            return
        else:
            row.text = leaf_text(value)
        yield row

    def _items(self, name: str, container: Any) -> Iterator[Row]:
        """Yield the items of a container, the equal ones of a list as one."""
        groups: dict[Hashable, tuple[list[str], Any]] = {}
        for step, value in children(container):
            node = self._graph.node_of.get(id(value))
            is_alone = node is not None and len(node.parents) == 1
            may_join = isinstance(value, fdl.Buildable) and not isinstance(container, dict)
            look = self._graph.digest[id(value)] if is_alone and may_join else step
            groups.setdefault(look, ([], value))[0].append(step)
        for steps, value in groups.values():
            indices = changes.ranges(int(step[1:-1]) for step in steps) if len(steps) > 1 else ""
            for row in self._written(Row(name + (f"[{indices}]" if indices else steps[0])), value):
                row.arrows = [arrow._replace(times=len(steps)) for arrow in row.arrows]
                yield row


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
_CHIPS = (  # ground and text of a tag
    *(("#dbeafe", "#1d4ed8"), ("#dcfce7", "#15803d"), ("#fce7f3", "#be185d")),
    *(("#ede9fe", "#6d28d9"), ("#ffedd5", "#c2410c"), ("#ccfbf1", "#0f766e")),
    *(("#e2e8f0", "#334155"), ("#e0e7ff", "#4338ca"), ("#fee2e2", "#b91c1c")),
    *(("#ecfccb", "#4d7c0f"), ("#cffafe", "#0e7490"), ("#fae8ff", "#a21caf")),
)
# By the tag: in all drawings of a process, as those of a notebook, it has one color.
_chips: dict[str, tuple[str, str]] = {}
_LONG_FLOAT = re.compile(r"\b\d+\.\d{7,}(?:e[+-]\d+)?")
_MAX_WIDTH = 28  # characters of a value
_TABLE = '<table border="0" cellborder="0" cellspacing="{}" cellpadding="{}">'
_NOTEBOOK_DEPTH = 3
_LEFT = ' align="left"'
_GRAPH = {"rankdir": "LR", "nodesep": "0.12", "ranksep": "0.4", "bgcolor": "white"}
_FONT = {"fontname": "Arial", "fontsize": "11"}
_NODE = {"shape": "box", "margin": "0.05,0.03", "height": "0", "width": "0"}


def _ink_of(box: Box) -> _Ink:
    if box.kind == "quantity":
        return _QUANTITY
    return _SHARED if box.is_shared else _PLAIN


def _source(boxes: list[Box]) -> str:
    """Return a picture in Graphviz's language."""
    import graphviz  # takes as long to import as all of fidgpt.graph, and not everyone draws

    for tag in (tag for box in boxes for row in box.rows for tag in row.tags):
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
            _label(box, ink),
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
                color=_ink_of(boxes[head]).line,
                style="dashed" if arrow.is_inherited else "solid",
            )
    return digraph.source


def _key(boxes: list[Box]) -> str:
    """Return what the colors and lines of boxes mean, as far as they occur."""
    rows = [row for box in boxes for row in box.rows]
    arrows = [arrow for row in rows for arrow in row.arrows]
    kinds = {box.kind for box in boxes}
    by_id = {id(box.part): box for box in boxes}
    is_shared = any(box.is_shared and box.kind != "quantity" for box in boxes)
    lines = {_ink_of(by_id[id(arrow.part)]).line for arrow in arrows}
    entries = [
        (_PLAIN.line in lines, "", "holds", _PLAIN.line),
        (is_shared, _SHARED.paper, "one object, shared", _SHARED.line),
        ("factory" in kinds, "", "- - a factory, called later", ""),
        ("quantity" in kinds, _QUANTITY.paper, "a computed number", _QUANTITY.line),
        (any(row.is_inherited for row in rows), "", "← inherited", ""),
        (any(arrow.is_inherited for arrow in arrows), "", "⇢ inherited component", ""),
    ]
    cells: list[str] = []
    for occurs, paper, text, line in entries:
        arrow = f"{_font('→', line, size=12, mark='b')} " if line in lines else ""
        if occurs:
            cells.append(f"<td{_ground(paper)}>{arrow}{_font(text, '#475569', size=10)}</td>")
    return f"<{_TABLE.format(8, 3)}<tr>{''.join(cells)}</tr></table>>" if cells else ""


def _label(box: Box, ink: _Ink) -> str:
    """Return the table of a box: its title, then its rows, of which row `i` has the port `ri`."""
    text = _font(box.title, ink.text, size=12, mark="b")
    if box.count > 1:
        text += _font(f"  × {box.count}", ink.text, size=12)
    rows = [f'<tr><td align="left" colspan="3">{text}</td></tr>']
    if box.holders:
        holders = _font(box.holders, ink.faint, size=9)
        rows.append(f'<tr><td align="left" colspan="3">{holders}</td></tr>')
    rows.append("<hr/>" * bool(box.rows))
    rows += [_row(row, f"r{i}", ink) for i, row in enumerate(box.rows)]
    return f"<{_TABLE.format(0, 2)}{''.join(rows)}</table>>"


def _row(row: Row, port: str, ink: _Ink) -> str:
    color = ink.faint if row.is_inherited else ink.text
    name = _font(row.name, color)
    tags: list[str] = []
    for tag in row.tags:  # on colored ground if the row sets it, with an arrow if it inherits
        paper, text = ("", ink.faint) if row.is_inherited else _chips[tag]
        label = _font(f"{'← ' * row.is_inherited}{tag}", text, size=9)
        tags.append(f"<td{_ground(paper) or _LEFT}>{label}</td>")
    if not (row.text or tags):
        return f'<tr><td align="left" colspan="3" port="{port}">{name}</td></tr>'
    value = _font(_shortened(_rounded(row.text)), color) if row.text else " "
    cells = f"{_TABLE.format(0, 1)}<tr>{''.join(tags)}</tr></table>" if tags else " "
    start = '<td align="left"'
    return f'<tr>{start}>{name}</td>{start}>{value}</td>{start} port="{port}">{cells}</td></tr>'


def _ground(paper: str) -> str:
    return f' bgcolor="{paper}" style="rounded"' if paper else ""


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


def draw(root: Any, *, at: str = "", depth: int | None = None) -> Drawing:
    """Draw a graph as it is once it is bound.

    Each node is one box, however many places hold it: what is shared has a color of its own and
    an arrow from each of its places. Dashed boxes are factories, called for each use.
    Inherited values are faint. Equal items of a list are one box, `× 3`.
    The graph is not changed.

    Args:
      root: the graph.
      at: the path of a node, to draw that alone: "model".
      depth: how many arrows away from there nodes are boxes; None for all of them.

    Raises:
      ConfigErrors: the graph cannot be bound.
      ConfigError: there is no node at `at`.
    """
    return Drawing(_source(picture(root, at=at, depth=depth)), outline(root))
