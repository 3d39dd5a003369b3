"""The colours of a drawing."""

from typing import NamedTuple

from fidgpt.graph.drawing.overlay import Mark
from fidgpt.graph.drawing.picture import Box, Kind, Row


class Ink(NamedTuple):
    """Colours of a box: its border, its ground, its text, and text that stands back."""

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
    """The colour of a row's text: what is heard and as it was stands back."""
    if row.mark is Mark.FOLLOWED:
        return PLAIN.line
    stands_back = row.is_heard and row.mark in (Mark.NONE, Mark.SAME)
    return ink.faint if stands_back else ink.text


def chips_of(boxes: list[Box]) -> dict[str, Chip]:
    """Colours for the tags of a picture, in the order in which it shows them."""
    tags = dict.fromkeys(
        tag for box in boxes for row in box.rows for tag in (*row.tags, *row.lost_tags)
    )
    return {tag: CHIPS[i % len(CHIPS)] for i, tag in enumerate(tags)}
