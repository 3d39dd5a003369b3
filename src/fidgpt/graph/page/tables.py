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
from fidgpt.graph.fiddle import Key, all_arguments, default_of, parameter_of, set_arguments
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
    """Tags by number, with the sentence that says what each is.

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


Told = dict[str, Any]  # a value as text, and the numbers of the directive and of the line of code
_FEW = 8  # items of a list that are written out


def who(part: fdl.Buildable, key: Key, places: Texts, *, step: str = "") -> list[Told]:
    """What was said to an argument, or to an item at `step` inside of it.

    What was said twice in the same words at one place is there once.
    """
    told = [_told(said, places) for said in assignments_of(part, key, step)]
    return [one for i, one in enumerate(told) if i == 0 or one != told[i - 1]]


def steps_said(part: fdl.Buildable) -> dict[str, list[str]]:
    """The items inside of each argument of which something was said, each as the step to it."""
    found: dict[str, list[str]] = {}
    for name in part.__argument_history__:
        key, bracket, item = str(name).partition("[")
        if bracket:
            found.setdefault(key, []).append(bracket + item)
    return found


def who_left_open(part: fdl.Buildable, key: Key, places: Texts) -> Told | None:
    """Who gave an argument its tag and no value, if it is known."""
    said = unset_by(part, key)
    return None if said is None else _told(said, places)


def said_text(value: Any) -> str:
    """A value as one would write it, on one line; of a part only its name."""
    if value is fdl.NO_VALUE:
        return "taken away"
    if isinstance(value, fdl.Buildable):
        return f"{title(value)}()"
    if not is_node(value):
        return leaf_text(value)
    items = list(value.values()) if isinstance(value, dict) else list(value)
    if len(items) > _FEW or any(map(is_node, items)):
        return f"{type(value).__name__} of {len(items)}"
    return leaf_text(value)


def _told(said: Assignment, places: Texts) -> Told:
    told: Told = {"text": said_text(said.value)}
    if said.by:
        told["by"] = places.number(str(said.by))
    if said.where:
        told["where"] = places.number(said.where)
    return told


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
        self, numbers: Mapping[int, int], heard: Mapping[tuple[int, Key], Inherited], tables: Tables
    ) -> None:
        self._numbers = numbers
        self._heard = heard
        self._tables = tables
        self._owners: dict[int, _Owner] = {}  # by the identity of a list or dict

    def of(self, value: Any) -> list[Row]:
        """The rows of a node, in the order of the signature or of the items."""
        if isinstance(value, fdl.Buildable):
            known, said = set_arguments(value), steps_said(value)
            return [
                self._argument(value, key, held, key in known, said.get(str(key), []))
                for key, held in all_arguments(value).items()
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

    def _hearing(self, heard: Inherited) -> Row:
        """What is heard, and from which row."""
        said = heard.said
        source = self._numbers[id(said.node.value)], step_to(said.key)
        return {**self._holding(said.value), "text": said_text(said.value), "from": source}
