"""A graph as plain data: each node once, with a row for each of its arguments or items."""

from typing import Any

import fiddle as fdl

from fidgpt.graph.binding.bind import resolve
from fidgpt.graph.page.results import results
from fidgpt.graph.page.rows import Rows
from fidgpt.graph.page.tables import Tables
from fidgpt.graph.structure.walk import Node, children, is_node, join, nodes

Place = tuple[int, int]  # the numbers of a node and of its row
_FEW = 24  # plain values in a list that is written on one line
_SHALLOW = 4  # lists in lists that are


class Graph:
    """The nodes of a graph for a page.

    A list of a few plain values is a value on one line; a longer one is a node with a row for
    each.

    Attributes:
      nodes: the nodes as data, the root first.
    """

    def __init__(self, root: Any, tables: Tables) -> None:
        found = nodes(root)
        small = _small(found)
        shown = [node for node in found if id(node.value) not in small or not node.parents]
        numbers = {id(node.value): number for number, node in enumerate(shown)}
        heard = {(id(heard.part), heard.key): heard for heard in resolve(root)}
        rows = Rows(numbers, heard, tables)
        self.nodes = [_node(node, rows, tables) for node in shown]
        for number, text in results(root, shown).items():
            self.nodes[numbers[number]]["result"] = text
        steps = [{row["step"]: j for j, row in enumerate(node["rows"])} for node in self.nodes]
        for node, described in zip(shown, self.nodes, strict=True):
            holders = ((numbers[id(holder.value)], step) for holder, step in node.parents)
            described["parents"] = [(i, steps[i][step]) for i, step in holders]

    def places(self) -> dict[str, Place]:
        """The row at each path, by the first path of the node that holds it."""
        paths = [""] * len(self.nodes)
        found: dict[str, Place] = {}
        for i, node in enumerate(self.nodes):
            if node["parents"]:
                holder, row = node["parents"][0]
                paths[i] = join(paths[holder], self.nodes[holder]["rows"][row]["step"])
            found |= {join(paths[i], row["step"]): (i, j) for j, row in enumerate(node["rows"])}
        return found


def _node(node: Node, rows: Rows, tables: Tables) -> dict[str, Any]:
    described = {"kind": type(node.value).__name__, "rows": rows.of(node.value)}
    if isinstance(node.value, fdl.Buildable):
        described["call"] = tables.calls.number(node.value)
    return described


def _small(found: list[Node]) -> set[int]:
    """Lists and tuples of a few plain values, and empty dicts, by identity."""
    sizes: dict[int, tuple[int, int]] = {}
    for node in reversed(found):
        if isinstance(node.value, fdl.Buildable) or (isinstance(node.value, dict) and node.value):
            continue
        held = [child for _, child in children(node.value)]
        below = [sizes.get(id(child)) if is_node(child) else (1, 0) for child in held]
        if None in below:
            continue
        count = sum(one[0] for one in below if one)
        depth = 1 + max((one[1] for one in below if one), default=0)
        if count <= _FEW and depth <= _SHALLOW:
            sizes[id(node.value)] = count, depth
    return set(sizes)
