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

from fidgpt.graph.difference.changes import (
    Change,
    ItemMoved,
    PartReplaced,
    TagsChanged,
    diff_text,
    ranges,
    short,
)
from fidgpt.graph.difference.comparison import (
    Argument,
    Comparison,
    Edge,
    PlaceKey,
    arguments_of,
    tags_of,
)
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.hints import is_quantity
from fidgpt.graph.outlines import outline
from fidgpt.graph.paths import find_parameter
from fidgpt.graph.storage.bound import BoundGraph
from fidgpt.graph.walk import children, is_shared_object, step_to, title


class Mark(enum.Enum):
    """What became of a part, a place or an arrow."""

    NONE = enum.auto()  # no difference is drawn
    SAME = enum.auto()
    FOLLOWED = enum.auto()  # inherits another value than before
    CHANGED = enum.auto()
    ADDED = enum.auto()
    REMOVED = enum.auto()


@dataclass(slots=True)
class Note:
    """The difference at one parameter of the new graph.

    Attributes:
      mark: what became of it.
      was: the old value as text; empty where there was none, or a part.
      gone: the old part that stood there; None where there was none, or the same.
      lost_tags: the quantities that it no longer carries.
    """

    mark: Mark
    was: str = ""
    gone: Any = None
    lost_tags: tuple[str, ...] = ()


class Overlay:
    """No difference: every part and place is what it is.

    Attributes:
      old: the old graph; None without a difference.
    """

    old: BoundGraph | None = None

    def mark(self, part: Any) -> Mark:
        """What became of a part."""
        return Mark.NONE

    def note(self, place: PlaceKey) -> Note:
        """What became of a place."""
        return Note(Mark.NONE)

    def old_title(self, part: Any) -> str:
        """What the part called before it called something else; empty where it did not."""
        return ""

    def left(self, container: Any) -> list[tuple[str, Any]]:
        """The items that a list lost, each with the step that led to it."""
        return []

    def heir(self, gone: Any) -> Any:
        """Return the new node that corresponds to an old one; None if it was removed."""
        return None


class Difference(Overlay):
    """What became of the parts and places of a graph since an old one."""

    def __init__(self, comparison: Comparison) -> None:
        self.old = comparison.old
        self._comparison = comparison
        self._notes: dict[PlaceKey, Note] = {}
        self._left: dict[int, list[tuple[str, Any]]] = {}
        self._old_titles: dict[int, str] = {}
        for edge, change in comparison.changes():
            self._take(edge, change)

    def mark(self, part: Any) -> Mark:
        if self._comparison.old.knows(part):
            return Mark.REMOVED
        if self._comparison.predecessor(part) is None:
            return Mark.ADDED
        return Mark.CHANGED if id(part) in self._old_titles else Mark.SAME

    def note(self, place: PlaceKey) -> Note:
        return self._notes.get(place) or Note(Mark.SAME)

    def old_title(self, part: Any) -> str:
        return self._old_titles.get(id(part), "")

    def left(self, container: Any) -> list[tuple[str, Any]]:
        return self._left.get(id(container), [])

    def heir(self, gone: Any) -> Any:
        return self._comparison.heir(gone)

    def _take(self, edge: Edge, change: Change | None) -> None:
        _, place = edge.places
        if place is None:
            self._left.setdefault(edge.holders[1], []).append((edge.steps[0] or "", edge.old.value))
            return
        if isinstance(change, PartReplaced) and self._comparison.is_same(edge):
            self._old_titles[id(edge.new.value)] = title(edge.old.value)
        elif isinstance(change, TagsChanged):
            self._notes.setdefault(place, Note(Mark.CHANGED)).lost_tags = change.removed
        elif isinstance(change, ItemMoved):
            self._notes[place] = Note(Mark.CHANGED, was=edge.steps[0] or "")
        else:
            lost_tags = self.note(place).lost_tags
            self._notes[place] = self._changed(edge, is_own=change is not None, lost_tags=lost_tags)

    def _changed(self, edge: Edge, *, is_own: bool, lost_tags: tuple[str, ...]) -> Note:
        was, now = edge.old.value, edge.new.value
        if not is_own:
            mark = Mark.FOLLOWED
        elif was is fdl.NO_VALUE:
            mark = Mark.ADDED
        else:
            mark = Mark.REMOVED if now is fdl.NO_VALUE else Mark.CHANGED
        if self._comparison.old.has_parts(was):
            return Note(mark, gone=was, lost_tags=lost_tags)
        is_shown = was is not fdl.NO_VALUE and not (
            was is None and self._comparison.new.has_parts(now)
        )
        text = short(was) if is_shown else ""
        return Note(mark, was=text, lost_tags=lost_tags)


class Kind(enum.Enum):
    """What becomes of a part."""

    OBJECT = enum.auto()
    FACTORY = enum.auto()  # called later, or once for each call
    QUANTITY = enum.auto()  # computes a number


@dataclass(slots=True)
class Row:
    """One argument of a part.

    Attributes:
      name: how the part calls it, with the index or key of an item.
      text: the value; empty for a part, to which an arrow leads.
      was: the old value, where a difference is drawn.
      tags: the tags that it sets, or inherits.
      lost_tags: those that it no longer carries.
      is_inherited: whether the value is inherited.
      mark: what became of it.
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
    """One part.

    Attributes:
      path: the first place that holds it.
      title: what it calls.
      kind: what becomes of it.
      is_shared: whether several places, or all calls of a factory, hold the one object.
      old_title: what it called, if that was something else.
      count: how many equal items of a list it represents.
      mark: what became of it.
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
        """Whether a difference is drawn, and this part has none."""
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


class Ink(NamedTuple):
    """Colours of a box: its border, its ground, its text, and faint text."""

    line: str
    paper: str
    text: str
    faint: str


class Chip(NamedTuple):
    """Colours of a tag."""

    paper: str
    text: str


PLAIN = Ink("#64748b", "#ffffff", "#0f172a", "#94a3b8")
SHARED = Ink("#d97706", "#fef3c7", "#451a03", "#b08968")
QUANTITY = Ink("#0891b2", "#ecfeff", "#083344", "#7aa5b0")
ADDED = Ink("#16a34a", "#dcfce7", "#052e16", "#6aa583")
REMOVED = Ink("#dc2626", "#fee2e2", "#7f1d1d", "#c08080")
DIM = Ink("#cbd5e1", "#ffffff", "#94a3b8", "#b6c1cf")
DIM_SHARED = Ink("#f0cf9a", "#fffaeb", "#b08968", "#cdb596")
ROWS = {
    Mark.CHANGED: "#fef08a",
    Mark.FOLLOWED: "#fef9c3",
    Mark.ADDED: ADDED.paper,
    Mark.REMOVED: REMOVED.paper,
}
ARROWS = {Mark.ADDED: ADDED.line, Mark.REMOVED: REMOVED.line, Mark.SAME: DIM.line}
CHIPS = (
    Chip("#dbeafe", "#1d4ed8"),
    Chip("#dcfce7", "#15803d"),
    Chip("#fce7f3", "#be185d"),
    Chip("#ede9fe", "#6d28d9"),
    Chip("#ffedd5", "#c2410c"),
    Chip("#ccfbf1", "#0f766e"),
    Chip("#fee2e2", "#b91c1c"),
    Chip("#e0e7ff", "#4338ca"),
    Chip("#ecfccb", "#4d7c0f"),
    Chip("#fae8ff", "#a21caf"),
    Chip("#cffafe", "#0e7490"),
    Chip("#fef3c7", "#92400e"),
)


def ink_of(box: Box) -> Ink:
    """The colours of a box."""
    if box.mark in (Mark.ADDED, Mark.REMOVED):
        return ADDED if box.mark is Mark.ADDED else REMOVED
    if box.is_shared and box.kind is not Kind.QUANTITY:
        return DIM_SHARED if box.is_dim else SHARED
    if box.is_dim:
        return DIM
    return QUANTITY if box.kind is Kind.QUANTITY else PLAIN


def text_of(row: Row, ink: Ink) -> str:
    """The colour of a row's text: inherited values that did not change are faint."""
    if row.mark is Mark.FOLLOWED:
        return PLAIN.line
    stands_back = row.is_inherited and row.mark in (Mark.NONE, Mark.SAME)
    return ink.faint if stands_back else ink.text


def chips_of(boxes: list[Box]) -> dict[str, Chip]:
    """Colours for the tags of a picture, in the order in which it shows them."""
    tags = dict.fromkeys(
        tag for box in boxes for row in box.rows for tag in (*row.tags, *row.lost_tags)
    )
    return {tag: CHIPS[i % len(CHIPS)] for i, tag in enumerate(tags)}


_MAX_WIDTH = 28  # characters of a value
_TABLE = '<table border="0" cellborder="0" cellspacing="0" cellpadding="2">'
_NO_CHIP = Chip("", "")


def label(box: Box, chips: Mapping[str, Chip]) -> str:
    """The table of a box: its title, then a row for each argument, row `i` with the port `ri`."""
    ink = ink_of(box)
    rows = [f'<tr><td align="left" colspan="3">{_title(box, ink)}</td></tr>']
    rows += ["<hr/>"] if box.rows else []
    for i, row in enumerate(box.rows):
        is_dim = box.is_dim and row.mark is Mark.SAME
        rows.append(_row(row, f"r{i}", ink, {} if is_dim else chips))
    return f"<{_TABLE}{''.join(rows)}</table>>"


def key(picture: Picture) -> str:
    """What the colours and lines of a picture mean, as far as they occur in it."""
    boxes = picture.boxes
    marks = {box.mark for box in boxes} | {row.mark for box in boxes for row in box.rows}
    entries = [
        (any(box.is_shared for box in boxes), SHARED.paper, "one object, shared"),
        (any(box.kind is Kind.FACTORY for box in boxes), "", "- - a factory, called later"),
        (any(box.kind is Kind.QUANTITY for box in boxes), QUANTITY.paper, "a computed number"),
        (any(row.is_inherited for box in boxes for row in box.rows), "", "← inherited"),
        (Mark.CHANGED in marks, ROWS[Mark.CHANGED], "changed"),
        (Mark.FOLLOWED in marks, ROWS[Mark.FOLLOWED], "follows"),
        (Mark.ADDED in marks, ADDED.paper, "new"),
        (Mark.REMOVED in marks, REMOVED.paper, "gone"),
    ]
    cells = [_key_entry(paper, text) for occurs, paper, text in entries if occurs]
    if not cells:
        return ""
    table = '<table border="0" cellborder="0" cellspacing="8" cellpadding="3">'
    return f"<{table}<tr>{''.join(cells)}</tr></table>>"


def _key_entry(paper: str, text: str) -> str:
    background = f' bgcolor="{paper}" style="rounded"' if paper else ""
    return f"<td{background}>{_font(_escaped(text), color='#475569', size=10)}</td>"


def _title(box: Box, ink: Ink) -> str:
    text = _font(f"<b>{_escaped(box.title)}</b>", color=ink.text, size=12)
    if box.old_title:
        text = f"{_font(f'<s>{_escaped(box.old_title)}</s>', color=REMOVED.line)} → {text}"
    if box.count > 1:
        text += _font(f"  × {box.count}", color=ink.text, size=12)
    return text


def _row(row: Row, port: str, ink: Ink, chips: Mapping[str, Chip]) -> str:
    paper = ROWS.get(row.mark)
    background = f' bgcolor="{paper}"' if paper else ""
    start = f'<td align="left"{background}'
    name = _font(_escaped(row.name), color=text_of(row, ink))
    tags = [_chip(tag, row, ink, chips) for tag in row.tags]
    tags += [_lost_chip(tag) for tag in row.lost_tags]
    if not (row.text or row.was or tags):
        return f'<tr>{start} colspan="3" port="{port}">{name}</td></tr>'
    value = _value(row, text_of(row, ink))
    return (
        f'<tr>{start}>{name}</td>{start}>{value}</td>{start} port="{port}">{_line(tags)}</td></tr>'
    )


def _value(row: Row, color: str) -> str:
    text = _font(_escaped(_shortened(row.text)), color=color) if row.text else " "
    if not row.was:
        return text
    was = _font(f"<s>{_escaped(_shortened(row.was))}</s>", color=REMOVED.line)
    return f"{was} → <b>{text}</b>" if row.text else was


def _chip(tag: str, row: Row, ink: Ink, chips: Mapping[str, Chip]) -> str:
    """The tag of a row: on coloured ground if the row sets it, with an arrow if it inherits."""
    chip = chips.get(tag, _NO_CHIP)
    text = _font(f"{'← ' * row.is_inherited}{_escaped(tag)}", color=chip.text or ink.faint, size=9)
    is_pill = chip.paper and not row.is_inherited
    style = f'bgcolor="{chip.paper}" style="rounded"' if is_pill else 'align="left"'
    return f"<td {style}>{text}</td>"


def _lost_chip(tag: str) -> str:
    return f"<td>{_font(f'<s>{_escaped(tag)}</s>', color=REMOVED.line, size=9)}</td>"


def _line(cells: list[str]) -> str:
    """Cells side by side, as the content of one cell."""
    table = '<table border="0" cellborder="0" cellspacing="0" cellpadding="1">'
    return f"{table}<tr>{''.join(cells)}</tr></table>" if cells else " "


def _font(text: str, *, color: str, size: int = 11) -> str:
    return f'<font color="{color}" point-size="{size}">{text}</font>'


def _escaped(text: str) -> str:
    r"""Text as it is, whatever it holds.

    XML has no control characters, not even escaped, and Graphviz replaces `\N` by a name.
    """
    printable = "".join(c if c.isprintable() else "�" for c in text)
    return html.escape(printable, quote=True).replace("\\", "\\\\")


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"


class _Lead(NamedTuple):
    """A node to which a row leads, and how many equal ones it represents."""

    part: Any
    is_inherited: bool
    mark: Mark
    times: int = 1


_Line = tuple[Row, list[_Lead]]


def sketch(bound: BoundGraph, root: Any, overlay: Overlay, *, depth: int | None = None) -> Picture:
    """The picture of what lies under a node of a bound graph, each part once.

    Equal items of a list that nothing else holds are one box. Of a part more than `depth` arrows
    away from the node only the name is left, in the row that holds it.
    """
    lines = _Lines(bound, overlay)
    near = None if depth is None else _within(lines, root, depth)
    boxes: list[Box] = []
    found: list[tuple[int, int, _Lead]] = []
    numbers: dict[int, int] = {}
    stack = [_Lead(root, False, Mark.NONE)]
    while stack:
        part, *_, count = stack.pop()
        if id(part) in numbers:
            continue
        tail = numbers[id(part)] = len(boxes)
        rows = lines.of(part)
        if near is not None:
            rows = [_folded(row, leads, near) for row, leads in rows]
        boxes.append(lines.box(part, count, [row for row, _ in rows]))
        leads = [(tail, i, lead) for i, (_, row_leads) in enumerate(rows) for lead in row_leads]
        found += leads
        stack += [lead for *_, lead in reversed(leads)]
    arrows = [
        Arrow(tail, i, numbers[id(to.part)], to.is_inherited, to.mark) for tail, i, to in found
    ]
    return Picture(boxes, arrows)


def _within(lines: "_Lines", root: Any, depth: int) -> set[int]:
    """The identities of the parts that so many arrows, or fewer, lead to."""
    near, level = {id(root)}, [root]
    for _ in range(depth):
        leads = [lead.part for part in level for _, leads in lines.of(part) for lead in leads]
        level = list({id(part): part for part in leads if id(part) not in near}.values())
        near |= set(map(id, level))
    return near


def _folded(row: Row, leads: list[_Lead], near: set[int]) -> _Line:
    kept = [lead for lead in leads if id(lead.part) in near]
    if leads and not kept:
        times = f" × {leads[0].times}" if leads[0].times > 1 else ""
        row.text = f"{title(leads[0].part)}{times} ..."
    return row, kept


class _Lines:
    """The rows of each part, and where they lead."""

    def __init__(self, bound: BoundGraph, overlay: Overlay) -> None:
        self._bound = bound
        self._overlay = overlay
        self._looks = self._find_looks()

    def box(self, part: Any, count: int, rows: list[Row]) -> Box:
        bound = self._bound_of(part)
        return Box(
            bound.path(part),
            title(part),
            _kind(part),
            is_shared_object(bound.node_of[id(part)]),
            self._overlay.old_title(part),
            count,
            self._overlay.mark(part),
            rows,
        )

    def of(self, part: Any) -> list[_Line]:
        if not isinstance(part, fdl.Buildable):
            return list(self._items("", part, Mark.NONE))
        lines = [
            line
            for key, argument in arguments_of(self._bound_of(part), part).items()
            for line in self._argument(part, key, argument)
        ]
        if self._is_gone(part):
            return [(row, [to for to in leads if self._is_gone(to.part)]) for row, leads in lines]
        return lines

    def _argument(self, part: Any, key: str | int, argument: Argument) -> Iterator[_Line]:
        note = self._overlay.note((id(part), step_to(key)))
        is_changed = note.mark not in (Mark.NONE, Mark.SAME)
        if not argument.is_own and argument.binding is None and not is_changed:
            return
        row = Row(str(key), tags=tags_of(part, key), is_inherited=argument.binding is not None)
        yield from self._line(row, argument.value, note)

    def _line(self, row: Row, value: Any, note: Note) -> Iterator[_Line]:
        row.was, row.lost_tags, row.mark = note.was, note.lost_tags, note.mark
        before = list(self._before(note.gone))
        if not self._bound_of(value).has_parts(value):
            row.text = "" if value is fdl.NO_VALUE else short(value)
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
        """The items of a container, the equal ones of a list as one."""
        for steps, value in self._groups(container):
            note = self._overlay.note((id(container), steps[0]))
            if note.mark is Mark.SAME and mark is not Mark.SAME:
                note = Note(mark)
            for row, leads in self._line(Row(name + _joined(steps)), value, note):
                yield row, [lead._replace(times=len(steps)) for lead in leads]
        for step, value in self._overlay.left(container):
            leads = list(self._before(value))
            was = "" if leads else short(value)
            yield Row(name + step, was=was, mark=Mark.REMOVED), leads

    def _groups(self, container: Any) -> Iterator[tuple[list[str], Any]]:
        groups: dict[Hashable, tuple[list[str], Any]] = {}
        for step, value in children(container):
            node = self._bound.node_of.get(id(value))
            is_alone = node is not None and len(node.parents) == 1
            may_join = is_alone and isinstance(value, fdl.Buildable)
            may_join = may_join and not isinstance(container, dict)
            look = self._looks[id(value)] if may_join else step
            groups.setdefault(look, ([], value))[0].append(step)
        yield from groups.values()

    def _is_gone(self, part: Any) -> bool:
        return self._overlay.mark(part) is Mark.REMOVED and self._overlay.heir(part) is None

    def _before(self, gone: Any) -> Iterator[_Lead]:
        """Where the arrows led that are no more: to parts that are gone, or to what they became."""
        if isinstance(gone, fdl.Buildable):
            heir = self._overlay.heir(gone)
            yield _Lead(gone if heir is None else heir, False, Mark.REMOVED)
        elif gone is not None:
            for _, child in children(gone):
                yield from self._before(child)

    def _bound_of(self, value: Any) -> BoundGraph:
        old = self._overlay.old
        return old if old is not None and old.knows(value) else self._bound

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
                notes = [self._overlay.note((me, step)) for step in steps]
                look = (
                    self._bound.content[me],
                    tuple(looks[id(one)] for one in self._bound.held(value)),
                    (self._overlay.mark(value), self._overlay.old_title(value)),
                    tuple((note.mark, note.was, note.lost_tags, id(note.gone)) for note in notes),
                )
            looks[me] = numbers.setdefault(look, len(numbers))
        return looks


def _kind(part: Any) -> Kind:
    if isinstance(part, fdl.Partial | fdl.ArgFactory):
        return Kind.FACTORY
    return Kind.QUANTITY if is_quantity(part) else Kind.OBJECT


def _joined(steps: list[str]) -> str:
    if len(steps) == 1:
        return steps[0]
    return f"[{ranges(int(step[1:-1]) for step in steps)}]"


_PATIENCE = 60  # seconds
_SOURCES = ("dot", "gv")
_REMEDY = (
    "Install Graphviz (Debian, Ubuntu: apt install graphviz) or run: pip install graphviz-pure"
)


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

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def svg(self) -> str:
        """The picture as SVG.

        Raises:
          RuntimeError: there is no program that could draw it, or none succeeded.
        """
        return self._render("svg").decode()

    def save(self, path: str | Path) -> Path:
        """Writes the picture in the format of the path's suffix: .svg, .png, or .dot as it is.

        Raises:
          RuntimeError: there is no program that could draw it, or none succeeded.
        """
        path = Path(path)
        suffix = path.suffix.removeprefix(".").lower()
        path.write_bytes(self.source.encode() if suffix in _SOURCES else self._render(suffix))
        return path

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """What a notebook shows: the richest that it can of these."""
        try:
            return {"image/svg+xml": self.svg(), "text/plain": self.text}
        except RuntimeError:
            return {"text/plain": self.text}

    def _render(self, suffix: str) -> bytes:
        complaint = "There is neither dot nor graphviz-pure."
        for program in _programs():
            try:
                done = subprocess.run(
                    [program, f"-T{suffix}"],
                    input=self.source.encode(),
                    capture_output=True,
                    timeout=_PATIENCE,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                complaint = f"{error}"
                continue
            if done.returncode == 0 and done.stdout:
                return done.stdout
            complaint = f"{program}: {done.stderr.decode(errors='replace').strip()[:300]}"
        raise RuntimeError(
            f"The graph could not be drawn as {suffix or 'a file'}. {complaint}\n  {_REMEDY}"
        )


def _programs() -> Iterator[str]:
    """Graphviz itself, and the port of it that pip installs beside Python."""
    beside = sysconfig.get_path("scripts")
    found = [shutil.which("dot"), shutil.which("graphviz-pure", path=beside)]
    yield from (program for program in [*found, shutil.which("graphviz-pure")] if program)


_GRAPH = {"rankdir": "LR", "nodesep": "0.12", "ranksep": "0.4", "bgcolor": "white"}
_FONT = {"fontname": "Arial", "fontsize": "11"}
_NODE = {"shape": "box", "margin": "0.05,0.03", "height": "0", "width": "0"}


def draw(root: Any, *, since: Any = None, at: str = "", depth: int | None = None) -> Drawing:
    """Draws a graph as it is once it is bound, or the difference to an earlier one.

    Each part is one box, however many places hold it: what is shared has a colour of its own and
    an arrow from each of its places. Dashed boxes are factories, called for each use.
    Inherited values are faint. Equal items of a list are one box, `× 3`.
    The graph is not changed.

    Args:
      root: the graph.
      since: an earlier graph; then differences are highlighted, and removed nodes are drawn too.
      at: the path of a part, to draw that part alone: "model".
      depth: how many arrows away from there parts are boxes; None for all of them.

    Raises:
      ConfigErrors: a graph cannot be bound.
      ConfigError: there is no part at `at`.
    """
    if since is None:
        bound, overlay = BoundGraph(root), Overlay()
        text = outline(root)
    else:
        comparison = Comparison(since, root)
        bound, overlay = comparison.new, Difference(comparison)
        text = diff_text(one for _, one in comparison.changes() if one is not None)
    picture = sketch(bound, _start(bound, at), overlay, depth=depth)
    return Drawing(_source(picture), text)


def _start(bound: BoundGraph, at: str) -> Any:
    start = find_parameter(bound.root, at).value if at else bound.root
    if not bound.has_parts(start):
        raise ConfigError(f"{at or 'the root'} is no part, so there is nothing to draw.")
    return start


def _source(picture: Picture) -> str:
    import graphviz  # takes as long to import as all of fidgpt.graph, and not everyone draws

    chips = chips_of(picture.boxes)
    graph_attr = {**_GRAPH, **_FONT, "label": key(picture), "labeljust": "l"}
    edge_attr = {"arrowsize": "0.6"}
    digraph = graphviz.Digraph(
        "config", graph_attr=graph_attr, node_attr={**_NODE, **_FONT}, edge_attr=edge_attr
    )
    for i, box in enumerate(picture.boxes):
        ink = ink_of(box)
        style = "rounded,filled,dashed" if box.kind is Kind.FACTORY else "rounded,filled"
        digraph.node(
            f"n{i}",
            label(box, chips),
            color=ink.line,
            fillcolor=ink.paper,
            penwidth="2" if box.is_shared else "1",
            style=style,
            tooltip=graphviz.escape(box.path or box.title),
        )
    for arrow in picture.arrows:
        is_dashed = arrow.is_inherited or arrow.mark is Mark.REMOVED
        digraph.edge(
            f"n{arrow.tail}:r{arrow.row}:e",
            f"n{arrow.head}:w",
            color=_color(arrow, picture),
            style="dashed" if is_dashed else "solid",
        )
    return digraph.source


def _color(arrow: Arrow, picture: Picture) -> str:
    return ARROWS.get(arrow.mark) or ink_of(picture.boxes[arrow.head]).line
