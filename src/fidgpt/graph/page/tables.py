"""The tables of the HTML page."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl

from fidgpt.graph.assignments import Assignment, assignments_of, unset_by
from fidgpt.graph.binding import Inherited
from fidgpt.graph.difference.changes import short
from fidgpt.graph.docs import doc_of
from fidgpt.graph.fiddle import (
    Key,
    all_arguments,
    argument_history,
    default_of,
    parameter_of,
    set_arguments,
)
from fidgpt.graph.hints import hint_of, name_of
from fidgpt.graph.outlines import leaf_text
from fidgpt.graph.walk import children, is_node, step_to, title


class Texts:
    """Texts by number, each once.

    Attributes:
      all: the texts, in the order of their numbers.
    """

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text, old or new."""
        if text not in self._numbers:
            self._numbers[text] = len(self.all)
            self.all.append(text)
        return self._numbers[text]


class Tags:
    """Tags by number, each with its documentation.

    Attributes:
      all: the tags, in the order of their numbers.
    """

    def __init__(self) -> None:
        self.all: list[dict[str, str]] = []
        self._numbers: dict[Any, int] = {}

    def numbers(self, part: fdl.Buildable, key: Key) -> list[int]:
        """The numbers of the tags of an argument."""
        return [self._number(tag) for tag in sorted(fdl.get_tags(part, key), key=str)]

    def _number(self, tag: Any) -> int:
        if tag not in self._numbers:
            self._numbers[tag] = len(self.all)
            self.all.append({"name": tag.__name__, "doc": inspect.getdoc(tag) or ""})
        return self._numbers[tag]


class Calls:
    """What parts call, by number, with the type, the default and the doc of each parameter.

    Attributes:
      all: the calls, in the order of their numbers.
    """

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}

    def number(self, part: fdl.Buildable) -> int:
        """The number of what a part calls."""
        function = fdl.get_callable(part)
        if id(function) not in self._numbers:
            self._numbers[id(function)] = len(self.all)
            self.all.append(
                {
                    "name": title(part),
                    "module": getattr(function, "__module__", None) or "",
                    "doc": doc_of(function).summary,
                    "parameters": {},
                }
            )
        return self._numbers[id(function)]

    def describe(self, part: fdl.Buildable, key: Key) -> None:
        """Writes down a parameter of what a part calls, unless it is."""
        parameters = self.all[self.number(part)]["parameters"]
        step = step_to(key)
        if step not in parameters:
            parameters[step] = _parameter(part, key)


@dataclass(frozen=True, slots=True)
class Tables:
    """All that the rows of a page name by number."""

    calls: Calls = field(default_factory=Calls)
    tags: Tags = field(default_factory=Tags)
    places: Texts = field(default_factory=Texts)


def _parameter(part: fdl.Buildable, key: Key) -> dict[str, str]:
    parameter, default = parameter_of(part, key), default_of(part, key)
    docs = doc_of(fdl.get_callable(part)).parameters
    described = {
        "type": name_of(hint_of(part, key)),
        "default": "" if default is fdl.NO_VALUE else leaf_text(default),
        "doc": docs.get(parameter.name, "") if parameter else "",
    }
    return {name: text for name, text in described.items() if text}


Described = dict[str, Any]  # a value as text, and the numbers of its source and line of code
_FEW = 8  # items of a list that are written out


def assignments(part: fdl.Buildable, key: Key, places: Texts, *, step: str = "") -> list[Described]:
    """Return the assignments to an argument, or to an item at `step` inside of it.

    Equal ones from one line of code that follow each other are merged.
    """
    found = [_described(one, places) for one in assignments_of(part, key, step)]
    return [one for i, one in enumerate(found) if i == 0 or one != found[i - 1]]


def assigned_items(part: fdl.Buildable) -> dict[str, list[str]]:
    """Return the items of each argument that were assigned, each as the step to it."""
    found: dict[str, list[str]] = {}
    for name in argument_history(part):
        key, bracket, item = str(name).partition("[")
        if bracket:
            found.setdefault(key, []).append(bracket + item)
    return found


def what_unset(part: fdl.Buildable, key: Key, places: Texts) -> Described | None:
    """Return what gave an argument its tag and no value, if known."""
    found = unset_by(part, key)
    return None if found is None else _described(found, places)


def value_text(value: Any) -> str:
    """A value as one would write it, on one line; of a part only its name."""
    if value is fdl.NO_VALUE:
        return "removed"
    if isinstance(value, fdl.Buildable):
        return f"{title(value)}()"
    if not is_node(value):
        return leaf_text(value)
    items = list(value.values()) if isinstance(value, dict) else list(value)
    if len(items) > _FEW or any(map(is_node, items)):
        return f"{type(value).__name__} of {len(items)}"
    return leaf_text(value)


def _described(one: Assignment, places: Texts) -> Described:
    described: Described = {"text": value_text(one.value)}
    if one.by:
        described["by"] = places.number(str(one.by))
    if one.where:
        described["where"] = places.number(one.where)
    return described


Row = dict[str, Any]
_Owner = tuple[fdl.Buildable, Key, str]  # the argument that a list is in, and the way from there


class Rows:
    """Makes the rows of the nodes of a graph, parents before children.

    Args:
      numbers: the number of each node that the page shows, by the identity of its value.
      inherited: the inherited arguments, by the identity of the node and the key.
      tables: what the rows have in common.
    """

    def __init__(
        self,
        numbers: Mapping[int, int],
        inherited: Mapping[tuple[int, Key], Inherited],
        tables: Tables,
    ) -> None:
        self._numbers = numbers
        self._inherited = inherited
        self._tables = tables
        self._owners: dict[int, _Owner] = {}  # by the identity of a list or dict

    def of(self, value: Any) -> list[Row]:
        """The rows of a node, in the order of the signature or of the items."""
        if isinstance(value, fdl.Buildable):
            known, items = set_arguments(value), assigned_items(value)
            return [
                self._argument(value, key, held, key in known, items.get(str(key), []))
                for key, held in all_arguments(value).items()
            ]
        return [self._item(value, step, held) for step, held in children(value)]

    def _argument(
        self, part: fdl.Buildable, key: Key, held: Any, is_set: bool, steps: list[str]
    ) -> Row:
        """The row of an argument, whose items at `steps` were assigned."""
        tables = self._tables
        tables.calls.describe(part, key)
        row: Row = {"step": step_to(key)}
        inherited = self._inherited.get((id(part), key))
        if inherited is not None:
            row |= self._inheriting(inherited)
            row["unset_by"] = what_unset(part, key, tables.places)
        else:
            row |= self._holding(held)
            if not is_set:
                row["state"] = "unset" if held is fdl.NO_VALUE else "default"
        row["tags"] = tables.tags.numbers(part, key)
        row["assignments"] = assignments(part, key, tables.places)
        if "node" not in row:
            row["assignments"] = [*self._assignments_inside(part, key, steps), *row["assignments"]]
        self._own(held, (part, key, ""))
        return {name: content for name, content in row.items() if content not in (None, [])}

    def _item(self, holder: Any, step: str, held: Any) -> Row:
        row = {"step": step, **self._holding(held)}
        if owner := self._owners.get(id(holder)):
            part, key, way = owner
            if found := assignments(part, key, self._tables.places, step=way + step):
                row["assignments"] = found
            self._own(held, (part, key, way + step))
        return row

    def _own(self, held: Any, owner: _Owner) -> None:
        if is_node(held) and not isinstance(held, fdl.Buildable):
            self._owners.setdefault(id(held), owner)

    def _assignments_inside(
        self, part: fdl.Buildable, key: Key, steps: list[str]
    ) -> list[Described]:
        """Return the assignments to the items of a list on one line, each with its step."""
        return [
            {**one, "text": f"{step} = {one['text']}"}
            for step in reversed(steps)
            for one in assignments(part, key, self._tables.places, step=step)
        ]

    def _holding(self, value: Any) -> Row:
        """The number of a node, or the text of a plain value."""
        if value is fdl.NO_VALUE:
            return {}
        number = self._numbers.get(id(value))
        if number is not None:
            return {"node": number}
        return {"text": short(value) if is_node(value) else leaf_text(value)}

    def _inheriting(self, inherited: Inherited) -> Row:
        """The inherited value, and the row that sets it."""
        source = inherited.binding
        row = self._numbers[id(source.node.value)], step_to(source.key)
        return {**self._holding(source.value), "text": value_text(source.value), "from": row}
