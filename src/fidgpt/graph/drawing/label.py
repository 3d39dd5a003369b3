"""A box of a picture, and the key to all, in Graphviz's HTML-like language."""

import html
from collections.abc import Mapping

from fidgpt.graph.drawing.ink import (
    ADDED,
    QUANTITY,
    REMOVED,
    ROWS,
    SHARED,
    Chip,
    Ink,
    ink_of,
    text_of,
)
from fidgpt.graph.drawing.overlay import Mark
from fidgpt.graph.drawing.picture import Box, Kind, Picture, Row

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
        (any(row.is_heard for box in boxes for row in box.rows), "", "← said by a part around"),
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
    """The tag of a row: on coloured ground where the row says it, with an arrow where it hears."""
    chip = chips.get(tag, _NO_CHIP)
    text = _font(f"{'← ' * row.is_heard}{_escaped(tag)}", color=chip.text or ink.faint, size=9)
    is_pill = chip.paper and not row.is_heard
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
