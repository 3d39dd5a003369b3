"""Everything that can be set in a graph, in the order in which one reads it."""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
from fiddle.tagging import TaggedValueCls

from fidgpt.cli.index.choices import choices_of
from fidgpt.graph import ConfigError, Heard, nodes, resolve, title
from fidgpt.graph.signatures.docs import doc_of, first_sentence
from fidgpt.graph.signatures.hints import element_hint, hint_of, name_of
from fidgpt.graph.structure.arguments import every, given
from fidgpt.graph.structure.walk import children, is_node, join, step_to
from fidgpt.graph.views.outline import leaf_text

Knob = dict[str, Any]
LONGEST = 120  # letters of a value


def knobs_of(root: fdl.Buildable, meet: Callable[[Any], None] = lambda _: None) -> list[Knob]:
    """One dict for each parameter and each element that is a part; `meet` is shown every hint.

    A part that several places hold is told once, where one reads it first; the others say `same`.
    """
    return _Reader(root, meet).read()


class _Reader:
    """Knows the graph around the places that are told."""

    def __init__(self, root: fdl.Buildable, meet: Callable[[Any], None]) -> None:
        self._root = root
        self._meet = meet
        self._heard = {(id(heard.part), heard.key): heard for heard in _heard(root)}
        self._paths = {id(node.value): node.path for node in nodes(root)}
        self._anonymous = _held_plain(root)

    def read(self) -> list[Knob]:
        knobs: list[Knob] = []
        left: list[tuple[str, Any, Any]] = [("", self._root, Any)]
        while left:
            path, value, hint = left.pop()
            below = []
            for knob, child, asked in self._inside(path, value, hint):
                self._meet(asked)
                knobs.append(knob)
                if is_node(child) and id(child) not in self._anonymous and "same" not in knob:
                    below.append((knob["path"], child, asked))
            left += reversed(below)
        return knobs

    def _inside(self, path: str, value: Any, hint: Any) -> list[tuple[Knob, Any, Any]]:
        if isinstance(value, fdl.Buildable):
            return [self._argument(path, value, key) for key in every(value)]
        found = []
        for key, (step, child) in zip(_keys(value), children(value), strict=True):
            asked = element_hint(hint, key)
            found.append((self._knob(join(path, step), asked, child), child, asked))
        return found

    def _argument(self, path: str, part: fdl.Buildable, key: Any) -> tuple[Knob, Any, Any]:
        value = every(part)[key]
        hint = hint_of(part, key)
        heard = self._heard.get((id(part), key))
        knob = self._knob(
            join(path, step_to(key)), hint, heard.said.value if heard else value, heard
        )
        if not heard and key not in given(part):
            knob["unset"] = True
        tags = sorted(fdl.get_tags(part, key), key=lambda tag: tag.__name__)
        if tags:
            knob["tags"] = [tag.__name__ for tag in tags]
        own = doc_of(fdl.get_callable(part)).parameters.get(str(key), "")
        if doc := own or (first_sentence(tags[0].description) if tags else ""):
            knob["doc"] = doc
        return knob, fdl.NO_VALUE if heard or "unset" in knob else value, hint

    def _knob(self, path: str, hint: Any, value: Any, heard: Heard | None = None) -> Knob:
        knob: Knob = {"path": path, "type": name_of(hint), "value": self._text(value)}
        if heard:
            knob["heard"] = heard.said.path
        elif isinstance(value, fdl.Buildable) and not isinstance(value, TaggedValueCls):
            knob["part"] = title(value)
            if self._paths.get(id(value), path) != path:
                knob["same"] = self._paths[id(value)]
        elif is_node(value) and id(value) not in self._anonymous:
            knob["holds"] = True
        if choices := choices_of(hint):
            knob["choices"] = choices
        return knob

    def _text(self, value: Any) -> str:
        if value is fdl.NO_VALUE:
            return ""
        if isinstance(value, fdl.Buildable):
            return title(value)
        if is_node(value) and id(value) not in self._anonymous and len(value):
            shown = ", ".join(self._text(child) for _, child in children(value))
            text = f"{{{shown}}}" if isinstance(value, dict) else f"[{shown}]"
        else:
            text = leaf_text(value)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _held_plain(root: Any) -> set[int]:
    """The lists, tuples and dicts that hold no part anywhere, and read as one value."""
    plain: set[int] = set()
    for node in reversed(nodes(root)):  # children first
        value = node.value
        held = [] if isinstance(value, fdl.Buildable) else [child for _, child in children(value)]
        if not isinstance(value, fdl.Buildable) and all(
            not is_node(child) or id(child) in plain for child in held
        ):
            plain.add(id(value))
    return plain


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value)))


def _heard(root: fdl.Buildable) -> list[Heard]:
    try:
        return resolve(root)
    except ConfigError:  # a config that leaves something for the command line to say
        return []
