"""From a bound graph, and a difference laid over it, to the boxes and arrows of a picture."""

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

import fiddle as fdl

from fidgpt.graph.difference.bound import Argument, Bound
from fidgpt.graph.difference.changes import short
from fidgpt.graph.difference.likeness import Numbers, content, number, tags_of
from fidgpt.graph.difference.text import ranges
from fidgpt.graph.drawing.overlay import Mark, Note, Overlay
from fidgpt.graph.drawing.picture import Arrow, Box, Kind, Picture, Row
from fidgpt.graph.drawing.sharing import is_shared_object
from fidgpt.graph.structure.quantities import is_quantity
from fidgpt.graph.structure.walk import children, step_to, title


class _Lead(NamedTuple):
    """A part to which a row leads, and how many equal ones it stands for."""

    part: Any
    is_heard: bool
    mark: Mark
    times: int = 1


_Line = tuple[Row, list[_Lead]]


def sketch(bound: Bound, root: Any, overlay: Overlay, *, depth: int | None = None) -> Picture:
    """The picture of what lies under a node of a bound graph, each part once.

    Equal items of a list that nobody else holds are one box. Of a part more than `depth` arrows
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
    arrows = [Arrow(tail, i, numbers[id(to.part)], to.is_heard, to.mark) for tail, i, to in found]
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

    def __init__(self, bound: Bound, overlay: Overlay) -> None:
        self._bound = bound
        self._overlay = overlay
        self._looks = number(bound, {}, self._look)

    def box(self, part: Any, count: int, rows: list[Row]) -> Box:
        bound = self._bound_of(part)
        return Box(
            bound.paths[id(part)],
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
            for key, argument in self._bound_of(part).arguments(part).items()
            for line in self._argument(part, key, argument)
        ]
        if self._is_gone(part):
            return [(row, [to for to in leads if self._is_gone(to.part)]) for row, leads in lines]
        return lines

    def _argument(self, part: Any, key: str | int, argument: Argument) -> Iterator[_Line]:
        note = self._overlay.note((id(part), step_to(key)))
        is_told = note.mark not in (Mark.NONE, Mark.SAME)
        if not argument.is_own and argument.said is None and not is_told:
            return
        row = Row(str(key), tags=tags_of(part, key), is_heard=argument.said is not None)
        yield from self._line(row, argument.value, note)

    def _line(self, row: Row, value: Any, note: Note) -> Iterator[_Line]:
        row.was, row.lost_tags, row.mark = note.was, note.lost_tags, note.mark
        before = list(self._before(note.gone))
        if not self._bound_of(value).has_parts(value):
            row.text = "" if value is fdl.NO_VALUE else short(value)
            yield row, before
        elif isinstance(value, fdl.Buildable):
            is_new = note.mark in (Mark.CHANGED, Mark.ADDED)
            now = _Lead(value, row.is_heard, Mark.ADDED if is_new else note.mark)
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

    def _bound_of(self, value: Any) -> Bound:
        old = self._overlay.old
        return old if old is not None and old.knows(value) else self._bound

    def _look(self, bound: Bound, value: Any, numbers: Numbers) -> Hashable:
        """Alike are nodes that are drawn alike, and hold the same shared parts."""
        if bound.node_of[id(value)].is_shared:
            return "shared", id(value)
        steps = [step for step, _ in children(value)]
        if isinstance(value, fdl.Buildable):
            steps = [step_to(key) for key in bound.arguments(value)]
        notes = [self._overlay.note((id(value), step)) for step in steps]
        return (
            content(bound, value, numbers),
            (self._overlay.mark(value), self._overlay.old_title(value)),
            tuple((note.mark, note.was, note.lost_tags, id(note.gone)) for note in notes),
        )


def _kind(part: Any) -> Kind:
    if isinstance(part, fdl.Partial | fdl.ArgFactory):
        return Kind.FACTORY
    return Kind.QUANTITY if is_quantity(part) else Kind.OBJECT


def _joined(steps: list[str]) -> str:
    if len(steps) == 1:
        return steps[0]
    return f"[{ranges(int(step[1:-1]) for step in steps)}]"
