"""The arguments of a part, or the items of a list or dict, as plain data: a row for each."""

from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from fidgpt.graph.binding.bind import Heard
from fidgpt.graph.difference.changes import short
from fidgpt.graph.page.tables import Tables
from fidgpt.graph.page.who import Told, said_text, steps_said, who, who_left_open
from fidgpt.graph.structure.arguments import Key, every, given
from fidgpt.graph.structure.walk import children, is_node, step_to
from fidgpt.graph.views.outline import leaf_text

Row = dict[str, Any]
_Owner = tuple[fdl.Buildable, Key, str]  # the argument that a list is in, and the way from there


class Rows:
    """Makes the rows of the nodes of a graph, parents before children.

    Args:
      numbers: the number of each node that the page shows, by the identity of its value.
      heard: what is heard, by the identity of the part and the key.
      tables: what the rows have in common.
    """

    def __init__(
        self, numbers: Mapping[int, int], heard: Mapping[tuple[int, Key], Heard], tables: Tables
    ) -> None:
        self._numbers = numbers
        self._heard = heard
        self._tables = tables
        self._owners: dict[int, _Owner] = {}  # by the identity of a list or dict

    def of(self, value: Any) -> list[Row]:
        """The rows of a node, in the order of the signature or of the items."""
        if isinstance(value, fdl.Buildable):
            known, said = given(value), steps_said(value)
            return [
                self._argument(value, key, held, key in known, said.get(str(key), []))
                for key, held in every(value).items()
            ]
        return [self._item(value, step, held) for step, held in children(value)]

    def _argument(
        self, part: fdl.Buildable, key: Key, held: Any, is_set: bool, steps: list[str]
    ) -> Row:
        """The row of an argument, in which something was said of the items at `steps`."""
        tables = self._tables
        tables.calls.describe(part, key)
        row: Row = {"step": step_to(key)}
        heard = self._heard.get((id(part), key))
        if heard is not None:
            row |= self._hearing(heard)
            row["open"] = who_left_open(part, key, tables.places)
        else:
            row |= self._holding(held)
            if not is_set:
                row["state"] = "unset" if held is fdl.NO_VALUE else "default"
        row["tags"] = tables.tags.numbers(part, key)
        row["who"] = who(part, key, tables.places)
        if "node" not in row:
            row["who"] = [*self._said_inside(part, key, steps), *row["who"]]
        self._own(held, (part, key, ""))
        return {name: content for name, content in row.items() if content not in (None, [])}

    def _item(self, holder: Any, step: str, held: Any) -> Row:
        row = {"step": step, **self._holding(held)}
        if owner := self._owners.get(id(holder)):
            part, key, way = owner
            if said := who(part, key, self._tables.places, step=way + step):
                row["who"] = said
            self._own(held, (part, key, way + step))
        return row

    def _own(self, held: Any, owner: _Owner) -> None:
        if is_node(held) and not isinstance(held, fdl.Buildable):
            self._owners.setdefault(id(held), owner)

    def _said_inside(self, part: fdl.Buildable, key: Key, steps: list[str]) -> list[Told]:
        """What was said to the items of a list that stands on one line, each with its step."""
        return [
            {**one, "text": f"{step} = {one['text']}"}
            for step in reversed(steps)
            for one in who(part, key, self._tables.places, step=step)
        ]

    def _holding(self, value: Any) -> Row:
        """The number of a node, or the text of a plain value."""
        if value is fdl.NO_VALUE:
            return {}
        number = self._numbers.get(id(value))
        if number is not None:
            return {"node": number}
        return {"text": short(value) if is_node(value) else leaf_text(value)}

    def _hearing(self, heard: Heard) -> Row:
        """What is heard, and from which row."""
        said = heard.said
        source = self._numbers[id(said.node.value)], step_to(said.key)
        return {**self._holding(said.value), "text": said_text(said.value), "from": source}
