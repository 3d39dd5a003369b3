"""How the tests of `draw` look at a picture before it is drawn."""

from fidgpt.graph.drawing import Box, Mark, Picture, Row


def box(picture: Picture, title: str) -> Box:
    (found,) = [box for box in picture.boxes if box.title == title]
    return found


def row(box: Box, name: str) -> Row:
    (found,) = [row for row in box.rows if row.name == name]
    return found


def arrows(picture: Picture) -> list[tuple[str, str, str]]:
    """From which box, by which row, to which box."""
    boxes = picture.boxes
    return [
        (boxes[a.tail].title, boxes[a.tail].rows[a.row].name, boxes[a.head].title)
        for a in picture.arrows
    ]


def marks(picture: Picture) -> dict[str, set[Mark]]:
    """What became of the boxes, by title."""
    found: dict[str, set[Mark]] = {}
    for one in picture.boxes:
        found.setdefault(one.title, set()).add(one.mark)
    return found
