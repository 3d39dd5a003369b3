"""Drawings of graphs and of the differences between them."""

import enum
import html
import shutil
import subprocess
import sysconfig
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph import errors, hints, paths
from fidgpt.graph.difference import changes
from fidgpt.graph.difference.comparison import (
    Comparison,
    Edge,
    PlaceKey,
    arguments_of,
    diff,
    tags_of,
)
from fidgpt.graph.outlines import outline
from fidgpt.graph.storage.bound import BoundGraph
from fidgpt.graph.walk import children, is_shared_object, step_to, title


class Mark(enum.Enum):
    """How a node, a place or an arrow differs."""

    NONE = enum.auto()  # no difference is drawn
    SAME = enum.auto()
    FOLLOWED = enum.auto()  # inherits another value than before
    CHANGED = enum.auto()
    ADDED = enum.auto()
    REMOVED = enum.auto()


class Kind(enum.Enum):
    """What a node makes."""

    OBJECT = enum.auto()
    FACTORY = enum.auto()  # called later, or once for each call
    QUANTITY = enum.auto()  # computes a number


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
    """

    name: str
    text: str = ""
    was: str = ""
    tags: tuple[str, ...] = ()
    lost_tags: tuple[str, ...] = ()
    is_inherited: bool = False
    mark: Mark = Mark.NONE


@dataclass(slots=True)
class Box:
    """One node.

    Attributes:
      path: the first place that holds it.
      title: what it calls.
      kind: what it makes.
      is_shared: whether several places, or all calls of a factory, hold the one object.
      old_title: what it called, if that was something else.
      count: how many equal items of a list it represents.
      mark: how it differs.
      rows: its arguments.
    """

    path: str
    title: str
    kind: Kind
    is_shared: bool = False
    old_title: str = ""
    count: int = 1
    mark: Mark = Mark.NONE
    rows: list[Row] = field(default_factory=list)

    @property
    def is_dim(self) -> bool:
        """Whether a difference is drawn, and this node has none."""
        changed = {Mark.CHANGED, Mark.ADDED, Mark.REMOVED}
        return self.mark is Mark.SAME and not any(row.mark in changed for row in self.rows)


class Arrow(NamedTuple):
    """A row of one box that holds another box."""

    tail: int
    row: int
    head: int
    is_inherited: bool = False
    mark: Mark = Mark.NONE


class Picture(NamedTuple):
    """All boxes, in reading order from the root, and all arrows between them."""

    boxes: list[Box]
    arrows: list[Arrow]


def picture(root: Any, *, since: Any = None, at: str = "", depth: int | None = None) -> Picture:
    """Return what `draw` draws: each node under a start, once.

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
        raise errors.ConfigError(f"{at or 'the root'} is no part, so there is nothing to draw.")
    lines = _Lines(bound, comparison)
    near = None if depth is None else _within(lines, start, depth)
    boxes: list[Box] = []
    found: list[tuple[int, int, _Lead]] = []
    numbers: dict[int, int] = {}
    todo = [_Lead(start, False, Mark.NONE)]
    while todo:
        part, *_, count = todo.pop()
        if id(part) in numbers:
            continue
        tail = numbers[id(part)] = len(boxes)
        boxes.append(lines.box(part, count))
        first = len(found)
        for i, (row, leads) in enumerate(lines.of(part)):
            kept = [lead for lead in leads if near is None or id(lead.part) in near]
            if leads and not kept:
                times = f" × {leads[0].times}" if leads[0].times > 1 else ""
                row.text = f"{title(leads[0].part)}{times} ..."
            boxes[-1].rows.append(row)
            found += [(tail, i, lead) for lead in kept]
        todo += [lead for *_, lead in reversed(found[first:])]
    arrows = [
        Arrow(tail, i, numbers[id(to.part)], to.is_inherited, to.mark) for tail, i, to in found
    ]
    return Picture(boxes, arrows)


def _within(lines: "_Lines", start: Any, depth: int) -> set[int]:
    """Return the identities of the nodes that so many arrows, or fewer, lead to."""
    near, level = {id(start)}, [start]
    for _ in range(depth):
        leads = [lead.part for part in level for _, leads in lines.of(part) for lead in leads]
        level = list({id(part): part for part in leads if id(part) not in near}.values())
        near |= set(map(id, level))
    return near


class _Lead(NamedTuple):
    """A node to which a row leads, and how many equal ones it represents."""

    part: Any
    is_inherited: bool
    mark: Mark
    times: int = 1


_Line = tuple[Row, list[_Lead]]


@dataclass(slots=True)
class _Note:
    """The difference at one parameter of the new graph.

    Attributes:
      mark: how it differs.
      was: the old value as text; empty where there was none, or a node.
      gone: the old node that stood there; None where there was none, or the same.
      lost_tags: the tags that it no longer carries.
    """

    mark: Mark
    was: str = ""
    gone: Any = None
    lost_tags: tuple[str, ...] = ()


class _Lines:
    """The rows of each node, and where they lead."""

    def __init__(self, bound: BoundGraph, comparison: Comparison | None) -> None:
        self._bound = bound
        self._comparison = comparison
        self._notes: dict[PlaceKey, _Note] = {}
        self._left: dict[int, list[tuple[str, Any]]] = {}  # items that a list lost
        self._old_titles: dict[int, str] = {}
        if comparison is not None:
            for edge, change in comparison.changed_edges():
                self._add_note(edge, change, comparison)
        self._looks = self._find_looks()

    def box(self, part: Any, count: int) -> Box:
        """Return the box of a node, without rows."""
        kind = Kind.QUANTITY if hints.is_quantity(part) else Kind.OBJECT
        if isinstance(part, fdl.Partial | fdl.ArgFactory):
            kind = Kind.FACTORY
        bound = self._bound_of(part)
        is_shared = is_shared_object(bound.node_of[id(part)])
        old_title = self._old_titles.get(id(part), "")
        return Box(
            bound.path(part), title(part), kind, is_shared, old_title, count, self._mark(part)
        )

    def of(self, part: Any) -> list[_Line]:
        """Return the rows of a node, each with where it leads."""
        if not isinstance(part, fdl.Buildable):
            return list(self._items("", part, Mark.NONE))
        lines: list[_Line] = []
        for key, argument in arguments_of(self._bound_of(part), part).items():
            note = self._note((id(part), step_to(key)))
            is_changed = note.mark not in (Mark.NONE, Mark.SAME)
            is_inherited = argument.binding is not None
            if argument.is_own or is_inherited or is_changed:
                row = Row(str(key), tags=tags_of(part, key), is_inherited=is_inherited)
                lines += self._line(row, argument.value, note)
        if self._is_gone(part):
            return [(row, [to for to in leads if self._is_gone(to.part)]) for row, leads in lines]
        return lines

    def _add_note(self, edge: Edge, change: changes.Change | None, comparison: Comparison) -> None:
        _, place = edge.places
        if place is None:
            self._left.setdefault(edge.holders[1], []).append((edge.steps[0] or "", edge.old.value))
            return
        was, now = edge.old.value, edge.new.value
        if isinstance(change, changes.PartReplaced) and comparison.is_same(edge):
            self._old_titles[id(now)] = title(was)
            return
        note = self._notes.setdefault(place, _Note(Mark.CHANGED))
        if isinstance(change, changes.TagsChanged):
            note.lost_tags = change.removed
        elif isinstance(change, changes.ItemMoved):
            note.was = edge.steps[0] or ""
        else:
            if change is None:
                note.mark = Mark.FOLLOWED
            elif was is fdl.NO_VALUE:
                note.mark = Mark.ADDED
            elif now is fdl.NO_VALUE:
                note.mark = Mark.REMOVED
            if comparison.old.has_parts(was):
                note.gone = was
            elif was is not fdl.NO_VALUE and not (was is None and comparison.new.has_parts(now)):
                note.was = changes.short(was)

    def _note(self, place: PlaceKey) -> _Note:
        return self._notes.get(place) or _Note(Mark.SAME if self._comparison else Mark.NONE)

    def _mark(self, part: Any) -> Mark:
        if self._comparison is None:
            return Mark.NONE
        if self._comparison.old.knows(part):
            return Mark.REMOVED
        if self._comparison.predecessor(part) is None:
            return Mark.ADDED
        return Mark.CHANGED if id(part) in self._old_titles else Mark.SAME

    def _heir(self, gone: Any) -> Any:
        """Return the new node that corresponds to an old one; None if it was removed."""
        return self._comparison.heir(gone) if self._comparison else None

    def _is_gone(self, part: Any) -> bool:
        return self._mark(part) is Mark.REMOVED and self._heir(part) is None

    def _bound_of(self, value: Any) -> BoundGraph:
        is_old = self._comparison is not None and self._comparison.old.knows(value)
        return self._comparison.old if self._comparison and is_old else self._bound

    def _line(self, row: Row, value: Any, note: _Note) -> Iterator[_Line]:
        row.was, row.lost_tags, row.mark = note.was, note.lost_tags, note.mark
        before = list(self._before(note.gone))
        if not self._bound_of(value).has_parts(value):
            row.text = "" if value is fdl.NO_VALUE else changes.short(value)
            yield row, before
        elif isinstance(value, fdl.Buildable):
            is_new = note.mark in (Mark.CHANGED, Mark.ADDED)
            now = _Lead(value, row.is_inherited, Mark.ADDED if is_new else note.mark)
            yield row, [now, *before]
        else:
            yield from self._items(row.name, value, note.mark)
            if before:
                yield Row(row.name, mark=Mark.REMOVED), before

    def _items(self, name: str, container: Any, mark: Mark) -> Iterator[_Line]:
        """Yield the items of a container, the equal ones of a list as one."""
        groups: dict[Hashable, tuple[list[str], Any]] = {}
        for step, value in children(container):
            node = self._bound.node_of.get(id(value))
            is_alone = node is not None and len(node.parents) == 1
            may_join = isinstance(value, fdl.Buildable) and not isinstance(container, dict)
            look = self._looks[id(value)] if is_alone and may_join else step
            groups.setdefault(look, ([], value))[0].append(step)
        for steps, value in groups.values():
            note = self._note((id(container), steps[0]))
            if note.mark is Mark.SAME and mark is not Mark.SAME:
                note = _Note(mark)
            indices = changes.ranges(int(step[1:-1]) for step in steps) if len(steps) > 1 else ""
            row = Row(name + (f"[{indices}]" if indices else steps[0]))
            for line, leads in self._line(row, value, note):
                yield line, [lead._replace(times=len(steps)) for lead in leads]
        for step, value in self._left.get(id(container), ()):
            leads = list(self._before(value))
            yield (
                Row(name + step, was="" if leads else changes.short(value), mark=Mark.REMOVED),
                leads,
            )

    def _before(self, gone: Any) -> Iterator[_Lead]:
        """Yield where old arrows led: to nodes that are gone, or to their new ones."""
        if isinstance(gone, fdl.Buildable):
            heir = self._heir(gone)
            yield _Lead(gone if heir is None else heir, False, Mark.REMOVED)
        elif gone is not None:
            for _, child in children(gone):
                yield from self._before(child)

    def _find_looks(self) -> dict[int, int]:
        """Return a key for each node; equal for nodes that look alike and hold the same."""
        numbers: dict[Hashable, int] = {}
        looks: dict[int, int] = {}
        for node in self._bound.nodes:
            value, me = node.value, id(node.value)
            look: Hashable = ("shared", me)
            if not node.is_shared:
                steps = [step for step, _ in children(value)]
                if isinstance(value, fdl.Buildable):
                    steps = [step_to(key) for key in self._bound.arguments(value)]
                notes = [self._note((me, step)) for step in steps]
                look = (
                    self._bound.content[me],
                    tuple(looks[id(one)] for one in self._bound.held(value)),
                    (self._mark(value), self._old_titles.get(me)),
                    tuple((note.mark, note.was, note.lost_tags, id(note.gone)) for note in notes),
                )
            looks[me] = numbers.setdefault(look, len(numbers))
        return looks


class _Ink(NamedTuple):
    """Colours of a box: its border, its ground, its text, and faint text."""

    line: str
    paper: str
    text: str
    faint: str


_PLAIN = _Ink("#64748b", "#ffffff", "#0f172a", "#94a3b8")
_SHARED = _Ink("#d97706", "#fef3c7", "#451a03", "#b08968")
_QUANTITY = _Ink("#0891b2", "#ecfeff", "#083344", "#7aa5b0")
_ADDED = _Ink("#16a34a", "#dcfce7", "#052e16", "#6aa583")
_REMOVED = _Ink("#dc2626", "#fee2e2", "#7f1d1d", "#c08080")
_DIM = _Ink("#cbd5e1", "#ffffff", "#94a3b8", "#b6c1cf")
_DIM_SHARED = _Ink("#f0cf9a", "#fffaeb", "#b08968", "#cdb596")
_ROWS = {
    Mark.CHANGED: "#fef08a",
    Mark.FOLLOWED: "#fef9c3",
    Mark.ADDED: _ADDED.paper,
    Mark.REMOVED: _REMOVED.paper,
}
_ARROWS = {Mark.ADDED: _ADDED.line, Mark.REMOVED: _REMOVED.line, Mark.SAME: _DIM.line}
_CHIPS = (  # ground and text of a tag
    *(("#dbeafe", "#1d4ed8"), ("#dcfce7", "#15803d"), ("#fce7f3", "#be185d")),
    *(("#ede9fe", "#6d28d9"), ("#ffedd5", "#c2410c"), ("#ccfbf1", "#0f766e")),
    *(("#fee2e2", "#b91c1c"), ("#e0e7ff", "#4338ca"), ("#ecfccb", "#4d7c0f")),
    *(("#fae8ff", "#a21caf"), ("#cffafe", "#0e7490"), ("#fef3c7", "#92400e")),
)
_Chips = Mapping[str, tuple[str, str]]  # by the tag
_MAX_WIDTH = 28  # characters of a value
_TABLE = '<table border="0" cellborder="0" cellspacing="{}" cellpadding="{}">'
_GRAPH = {"rankdir": "LR", "nodesep": "0.12", "ranksep": "0.4", "bgcolor": "white"}
_FONT = {"fontname": "Arial", "fontsize": "11"}
_NODE = {"shape": "box", "margin": "0.05,0.03", "height": "0", "width": "0"}


def _ink_of(box: Box) -> _Ink:
    if box.mark in (Mark.ADDED, Mark.REMOVED):
        return _ADDED if box.mark is Mark.ADDED else _REMOVED
    if box.is_shared and box.kind is not Kind.QUANTITY:
        return _DIM_SHARED if box.is_dim else _SHARED
    if box.is_dim:
        return _DIM
    return _QUANTITY if box.kind is Kind.QUANTITY else _PLAIN


def _source(picture: Picture) -> str:
    """Return a picture in Graphviz's language."""
    import graphviz  # takes as long to import as all of fidgpt.graph, and not everyone draws

    boxes = picture.boxes
    tags = [tag for box in boxes for row in box.rows for tag in (*row.tags, *row.lost_tags)]
    chips = {tag: _CHIPS[i % len(_CHIPS)] for i, tag in enumerate(dict.fromkeys(tags))}
    graph_attr = {**_GRAPH, **_FONT, "label": _key(boxes), "labeljust": "l"}
    edge_attr = {"arrowsize": "0.6"}
    digraph = graphviz.Digraph(
        "config", graph_attr=graph_attr, node_attr={**_NODE, **_FONT}, edge_attr=edge_attr
    )
    for i, box in enumerate(boxes):
        ink = _ink_of(box)
        digraph.node(
            f"n{i}",
            _label(box, ink, chips),
            color=ink.line,
            fillcolor=ink.paper,
            penwidth="2" if box.is_shared else "1",
            style="rounded,filled,dashed" if box.kind is Kind.FACTORY else "rounded,filled",
            tooltip=graphviz.escape(box.path or box.title),
        )
    for arrow in picture.arrows:
        is_dashed = arrow.is_inherited or arrow.mark is Mark.REMOVED
        digraph.edge(
            f"n{arrow.tail}:r{arrow.row}:e",
            f"n{arrow.head}:w",
            color=_ARROWS.get(arrow.mark) or _ink_of(boxes[arrow.head]).line,
            style="dashed" if is_dashed else "solid",
        )
    return digraph.source


def _key(boxes: list[Box]) -> str:
    """Return what the colours and lines of boxes mean, as far as they occur."""
    rows = [row for box in boxes for row in box.rows]
    marks = {box.mark for box in boxes} | {row.mark for row in rows}
    entries = [
        (any(box.is_shared for box in boxes), _SHARED.paper, "one object, shared"),
        (any(box.kind is Kind.FACTORY for box in boxes), "", "- - a factory, called later"),
        (any(box.kind is Kind.QUANTITY for box in boxes), _QUANTITY.paper, "a computed number"),
        (any(row.is_inherited for row in rows), "", "← inherited"),
        (Mark.CHANGED in marks, _ROWS[Mark.CHANGED], "changed"),
        (Mark.FOLLOWED in marks, _ROWS[Mark.FOLLOWED], "follows"),
        (Mark.ADDED in marks, _ADDED.paper, "new"),
        (Mark.REMOVED in marks, _REMOVED.paper, "gone"),
    ]
    cells = [
        f"<td{_ground(paper)}>{_font(text, '#475569', size=10)}</td>"
        for occurs, paper, text in entries
        if occurs
    ]
    return f"<{_TABLE.format(8, 3)}<tr>{''.join(cells)}</tr></table>>" if cells else ""


def _label(box: Box, ink: _Ink, chips: _Chips) -> str:
    """Return the table of a box: its title, then its rows, of which row `i` has the port `ri`."""
    text = _font(box.title, ink.text, size=12, mark="b")
    if box.old_title:
        text = f"{_font(box.old_title, _REMOVED.line, mark='s')} → {text}"
    if box.count > 1:
        text += _font(f"  × {box.count}", ink.text, size=12)
    rows = [f'<tr><td align="left" colspan="3">{text}</td></tr>', "<hr/>" * bool(box.rows)]
    for i, row in enumerate(box.rows):
        is_dim = box.is_dim and row.mark is Mark.SAME
        rows.append(_row(row, f"r{i}", ink, {} if is_dim else chips))
    return f"<{_TABLE.format(0, 2)}{''.join(rows)}</table>>"


def _row(row: Row, port: str, ink: _Ink, chips: _Chips) -> str:
    is_faint = row.is_inherited and row.mark in (Mark.NONE, Mark.SAME)
    color = ink.faint if is_faint else ink.text
    color = _PLAIN.line if row.mark is Mark.FOLLOWED else color
    start = f'<td align="left"{_ground(_ROWS.get(row.mark, ""), style="")}'
    name = _font(row.name, color)
    tags = [_chip(tag, row, ink, chips) for tag in row.tags]
    tags += [f"<td>{_font(tag, _REMOVED.line, size=9, mark='s')}</td>" for tag in row.lost_tags]
    if not (row.text or row.was or tags):
        return f'<tr>{start} colspan="3" port="{port}">{name}</td></tr>'
    value = _font(_shortened(row.text), color) if row.text else " "
    if row.was:
        was = _font(_shortened(row.was), _REMOVED.line, mark="s")
        value = f"{was} → <b>{value}</b>" if row.text else was
    cells = f"{_TABLE.format(0, 1)}<tr>{''.join(tags)}</tr></table>" if tags else " "
    return f'<tr>{start}>{name}</td>{start}>{value}</td>{start} port="{port}">{cells}</td></tr>'


def _chip(tag: str, row: Row, ink: _Ink, chips: _Chips) -> str:
    """Return a tag: on coloured ground if the row sets it, with an arrow if it inherits."""
    paper, color = chips.get(tag, ("", ink.faint))
    text = _font(f"{'← ' * row.is_inherited}{tag}", color, size=9)
    ground = ' align="left"' if row.is_inherited or not paper else _ground(paper)
    return f"<td{ground}>{text}</td>"


def _ground(paper: str, style: str = ' style="rounded"') -> str:
    return f' bgcolor="{paper}"{style}' if paper else ""


def _font(text: str, color: str, *, size: int = 11, mark: str = "") -> str:
    r"""Return text as it is, whatever it holds, in a colour, bold or struck through.

    XML has no control characters, not even escaped, and Graphviz replaces `\N` by a name.
    """
    printable = "".join(c if c.isprintable() else "�" for c in text)
    text = html.escape(printable, quote=True).replace("\\", "\\\\")
    text = f"<{mark}>{text}</{mark}>" if mark else text
    return f'<font color="{color}" point-size="{size}">{text}</font>'


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


def draw(root: Any, *, since: Any = None, at: str = "", depth: int | None = None) -> Drawing:
    """Draw a graph as it is once it is bound, or the difference from an earlier one.

    Each node is one box, however many places hold it: what is shared has a colour of its own and
    an arrow from each of its places. Dashed boxes are factories, called for each use.
    Inherited values are faint. Equal items of a list are one box, `× 3`.
    The graph is not changed.

    Args:
      root: the graph.
      since: an earlier graph; then differences are highlighted, and removed nodes are drawn too.
      at: the path of a node, to draw that alone: "model".
      depth: how many arrows away from there nodes are boxes; None for all of them.

    Raises:
      ConfigErrors: a graph cannot be bound.
      ConfigError: there is no node at `at`.
    """
    source = _source(picture(root, since=since, at=at, depth=depth))
    return Drawing(source, outline(root) if since is None else changes.diff_text(diff(since, root)))
