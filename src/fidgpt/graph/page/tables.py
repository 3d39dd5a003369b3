"""What many places of a graph have in common, written once in a page: calls, tags and lines."""

import inspect
from dataclasses import dataclass, field
from typing import Any

import fiddle as fdl

from fidgpt.graph.signatures.docs import doc_of
from fidgpt.graph.signatures.hints import hint_of, name_of
from fidgpt.graph.structure.arguments import Key, default_of, parameter_of
from fidgpt.graph.structure.walk import step_to, title
from fidgpt.graph.views.outline import leaf_text


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
