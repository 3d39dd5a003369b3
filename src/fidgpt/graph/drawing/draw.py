"""A graph as a picture: each part a box, each argument that is a part an arrow."""

from typing import Any

from fidgpt.graph.difference.bound import Bound
from fidgpt.graph.difference.compare import Comparison
from fidgpt.graph.difference.diff import changes_of
from fidgpt.graph.difference.text import diff_text
from fidgpt.graph.drawing.ink import ARROWS, chips_of, ink_of
from fidgpt.graph.drawing.label import key, label
from fidgpt.graph.drawing.overlay import Difference, Mark, Overlay
from fidgpt.graph.drawing.picture import Arrow, Kind, Picture
from fidgpt.graph.drawing.render import Drawing
from fidgpt.graph.drawing.sketch import sketch
from fidgpt.graph.errors import ConfigError
from fidgpt.graph.selecting.paths import find_place
from fidgpt.graph.views.outline import outline

_GRAPH = {"rankdir": "LR", "nodesep": "0.12", "ranksep": "0.4", "bgcolor": "white"}
_FONT = {"fontname": "Arial", "fontsize": "11"}
_NODE = {"shape": "box", "margin": "0.05,0.03", "height": "0", "width": "0"}


def draw(root: Any, *, since: Any = None, at: str = "", depth: int | None = None) -> Drawing:
    """Draws a graph as it is once it is bound, or the difference to an earlier one.

    Each part is one box, however many places hold it: what is shared has a colour of its own and
    an arrow from each of its places. Dashed boxes are factories, made anew at every call. What a
    parameter hears from a part around it is faint. Equal items of a list are one box, `× 3`.
    The graph is not changed.

    Args:
      root: the graph.
      since: an earlier graph; then what differs stands out, and what is gone is drawn too.
      at: the path of a part, to draw that part alone: "model".
      depth: how many arrows away from there parts are boxes; all of them unless said.

    Raises:
      ConfigErrors: a graph cannot be bound.
      ConfigError: there is no part at `at`.
    """
    if since is None:
        bound, overlay = Bound(root), Overlay()
        text = outline(root)
    else:
        comparison = Comparison(since, root)
        bound, overlay = comparison.new, Difference(comparison)
        text = diff_text(changes_of(comparison))
    picture = sketch(bound, _start(bound, at), overlay, depth=depth)
    return Drawing(_source(picture), text)


def _start(bound: Bound, at: str) -> Any:
    start = find_place(bound.root, at).value if at else bound.root
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
        is_dashed = arrow.is_heard or arrow.mark is Mark.REMOVED
        digraph.edge(
            f"n{arrow.tail}:r{arrow.row}:e",
            f"n{arrow.head}:w",
            color=_color(arrow, picture),
            style="dashed" if is_dashed else "solid",
        )
    return digraph.source


def _color(arrow: Arrow, picture: Picture) -> str:
    return ARROWS.get(arrow.mark) or ink_of(picture.boxes[arrow.head]).line
